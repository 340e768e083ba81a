//! Reads that change nothing: what is live, and which tokens are good.

use tensorhold_core::{Deadline, ObjectKey, Result, SampleId, SampleKey};
use tensorhold_custody::Live;

use crate::index::TxnIndex;
use crate::record::ahead::is_named_ahead;
use crate::record::codec::{decode_versioned, unreadable_key};
use crate::record::refusal::owner;
use crate::record::types::{LeaseGrant, LiveSample, SampleRef, Versioned};
use crate::store::{Entry, Read};
use crate::txn::session::Session;

impl TxnIndex {
    /// Whether leases are still good.
    pub(crate) async fn do_check(
        &self,
        session: &Session,
        items: &[LeaseGrant],
        deadline: Deadline,
    ) -> Result<Vec<bool>> {
        let mut good = Vec::with_capacity(items.len());
        for chunk in items.chunks(self.core.txn_store().limits().operations - 1) {
            let mut reads: Vec<Read> = chunk
                .iter()
                .map(|item| Read::Key(self.core.layout().live(&item.sample.sample)))
                .collect();
            reads.push(Read::Key(self.core.layout().alive(session.id())));
            let mut snapshot = self
                .core
                .txn_store()
                .read(&reads, deadline.remaining(self.core.clock()))
                .await?;
            let alive = snapshot.entries.pop().is_some_and(|entries| !entries.is_empty());
            for (item, entries) in chunk.iter().zip(&snapshot.entries) {
                let live: Option<Versioned<Live>> = match entries.first().map(decode_versioned).transpose() {
                    // No session holds a record that cannot be decoded.
                    Err(error) if unreadable_key(&error).is_some() => None,
                    live => live?,
                };
                let holds = live.is_some_and(|live| {
                    live.record.generation == item.sample.generation && live.record.holds(item.token)
                });
                good.push(alive && holds);
            }
        }
        Ok(good)
    }

    pub(crate) async fn do_look(&self, samples: &[SampleId], deadline: Deadline) -> Result<Vec<Option<LiveSample>>> {
        let keys = samples.iter().map(|sample| self.core.layout().live(sample));
        let found = self.core.read_all(keys, deadline).await?;
        let mut views = Vec::with_capacity(samples.len());
        for (sample, entries) in samples.iter().zip(found) {
            let found = entries.first().map(|entry| view(sample, entry)).transpose();
            views.push(match found {
                // A quarantined sample is not live. One of a later release may be; only that release can tell.
                Err(error) if unreadable_key(&error).is_some() => {
                    self.core
                        .sort_out(entries, |entry| view(sample, entry), deadline)
                        .await?;
                    None
                }
                found => found?,
            });
        }
        Ok(views)
    }

    /// Which samples own objects that other writers named, or that were written under reservations made ahead; none for
    /// an object that no sample of this store owns.
    pub(crate) async fn do_owners(&self, keys: &[ObjectKey], deadline: Deadline) -> Result<Vec<Option<SampleRef>>> {
        let layout = self.core.layout();
        let places = keys.iter().map(|key| {
            let ahead = SampleKey::of_object(key).filter(|parts| is_named_ahead(&parts.sample));
            match ahead {
                Some(parts) => layout.owner_key(&parts.sample, parts.generation),
                None => layout.claim(key),
            }
        });
        let mut owners = Vec::with_capacity(keys.len());
        for entries in self.core.read_all(places, deadline).await? {
            // A claim that cannot be decoded has no owner, and goes into quarantine.
            let mut read = self.core.sort_out(entries, owner, deadline).await?;
            owners.push(read.good.pop());
        }
        Ok(owners)
    }
}

pub(crate) fn view(sample: &SampleId, entry: &Entry) -> Result<LiveSample> {
    let record: Versioned<Live> = decode_versioned(entry)?;
    Ok(LiveSample {
        sample: SampleRef {
            sample: sample.clone(),
            generation: record.record.generation,
        },
        description: record.description.as_deref().map(<[u8]>::to_vec).unwrap_or_default(),
        record,
    })
}
