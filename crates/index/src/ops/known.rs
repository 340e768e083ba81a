//! Which objects of a store a record owns, for the audit that looks for objects that none does.
//!
//! An object's key names a sample and a generation. A record owns it if it is of that sample and that generation,
//! wherever the record is on its way: reserved, live, retired, to be freed, a dead letter, or in quarantine, from where
//! an operator may put it back. A record moves from one of these keys to the next in one transaction. So all of them
//! are read in one snapshot; a record that moves meanwhile is seen in one place or in the other.
//!
//! - A reservation or a live record of another generation owns nothing of this one, and a dead letter whose objects were
//!   removed owns none.
//! - A record that cannot be decoded here, unreadable or of a later release, may be of any generation: it counts.
//! - A lost sample's record (`l/`) does not count. It is kept only so that its objects are removed a second time, if they
//!   come back; no reader can get them any more. An audit that removes them earlier does the same.
//! - A sample that was reserved ahead has objects that name the reservation. An entry under `a/` says that a record owns
//!   them ([`crate::record::ahead`]).
//! - No record, and a generation that is larger than any that this index has given out: the object was put under another
//!   index, or under a later state of this one. That is no proof that nobody owns it, but that the wrong index was asked.

use std::collections::HashMap;

use tensorhold_core::{Deadline, Generation, Result};
use tensorhold_custody::{Live, Reserved, Retired};

use crate::index::TxnIndex;
use crate::record::ahead::is_named_ahead;
use crate::record::codec::decode_versioned;
use crate::record::types::{Known, SampleRef};
use crate::store::{Entry, Read};
use crate::txn::pages::MOST_BYTES;

impl TxnIndex {
    pub(crate) async fn do_known(&self, samples: &[SampleRef], deadline: Deadline) -> Result<Vec<Known>> {
        // Most objects are of live samples. One that is seen live needs no snapshot.
        let live = self.live_generations(samples, deadline).await?;
        let layout = self.core.layout();
        let is_live = |sample: &SampleRef| match live.get(&self.first_place(sample)) {
            Some(Some(generation)) => *generation == sample.generation,
            Some(None) => true,
            None => false,
        };
        let mut known: Vec<Option<Known>> = samples
            .iter()
            .map(|sample| is_live(sample).then_some(Known::Yes))
            .collect();
        let left: Vec<usize> = (0..samples.len()).filter(|at| known[*at].is_none()).collect();
        let reads_of_one = samples.first().map_or(1, |sample| layout.whereabouts(sample).len());
        let at_once = (self.core.txn_store().limits().operations / reads_of_one).max(1);
        for chunk in left.chunks(at_once) {
            let reads: Vec<Read> = chunk.iter().flat_map(|at| layout.whereabouts(&samples[*at])).collect();
            let snapshot = self
                .core
                .txn_store()
                .read(&reads, deadline.remaining(self.core.clock()))
                .await?;
            for (at, found) in chunk.iter().zip(snapshot.entries.chunks(reads_of_one)) {
                let sample = &samples[*at];
                let owns = |entry: &Entry| {
                    let generation = if layout.is_pending(&entry.key) {
                        decode_versioned::<Reserved>(entry).map(|read| read.record.generation)
                    } else if entry.key == layout.live(&sample.sample) {
                        decode_versioned::<Live>(entry).map(|read| Some(read.record.generation))
                    } else if entry.key == layout.dead_letter(sample) {
                        return decode_versioned::<Retired>(entry).map_or(true, |read| read.record.freed.is_none());
                    } else {
                        // Its key names the generation, or it is in quarantine.
                        return true;
                    };
                    generation.map_or(true, |generation| generation == Some(sample.generation))
                };
                known[*at] = Some(if found.iter().flatten().any(owns) {
                    Known::Yes
                } else if sample.generation.get() > snapshot.version.0 {
                    Known::Ahead
                } else {
                    Known::No
                });
            }
        }
        Ok(known.into_iter().map(|known| known.unwrap_or(Known::Yes)).collect())
    }

    /// The generations of the samples that are live, by the keys of their records; none for a record that cannot be
    /// decoded here.
    async fn live_generations(
        &self,
        samples: &[SampleRef],
        deadline: Deadline,
    ) -> Result<HashMap<String, Option<Generation>>> {
        let mut keys: Vec<String> = samples.iter().map(|sample| self.first_place(sample)).collect();
        keys.dedup();
        let (mut generations, mut left) = (HashMap::with_capacity(keys.len()), &keys[..]);
        while !left.is_empty() {
            let (entries, looked_at) = self.core.read_values(left, MOST_BYTES, deadline).await?;
            left = &left[looked_at.clamp(1, left.len())..];
            for entry in entries {
                let live = decode_versioned::<Live>(&entry).ok();
                generations.insert(entry.key, live.map(|live| live.record.generation));
            }
        }
        Ok(generations)
    }

    /// Where to look first. An entry of `a/` is no record: it is known to be of this generation by its key.
    fn first_place(&self, sample: &SampleRef) -> String {
        if is_named_ahead(&sample.sample) {
            return self.core.layout().owner_key(&sample.sample, sample.generation);
        }
        self.core.layout().live(&sample.sample)
    }
}
