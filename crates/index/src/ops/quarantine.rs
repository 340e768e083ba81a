//! Moving samples into quarantine whose description cannot be read, and listing what is there. [`crate::txn::quarantine`]
//! has the overview.

use tensorhold_core::{Deadline, Error, ErrorKind, Result};
use tensorhold_custody::Live;

use crate::index::TxnIndex;
use crate::record::codec::decode_versioned;
use crate::record::layout::after;
use crate::record::types::{Quarantined, SampleRef, Unreadable, Versioned};
use crate::store::Read;
use crate::txn::pages::MOST_BYTES;
use crate::txn::quarantine::SetAside;

const OPERATION: &str = "index.quarantine";

impl TxnIndex {
    /// Quarantines samples whose record can be decoded and whose description cannot.
    pub(crate) async fn do_quarantine(&self, items: &[Unreadable], deadline: Deadline) -> Vec<Result<bool>> {
        let mut results = Vec::with_capacity(items.len());
        for item in items {
            results.push(self.quarantine_one(item, deadline).await);
        }
        results
    }

    async fn quarantine_one(&self, item: &Unreadable, deadline: Deadline) -> Result<bool> {
        let SampleRef { sample, generation } = &item.sample;
        let reads = [
            Read::Key(self.core.layout().live(sample)),
            Read::Key(self.core.layout().retired_with_readers(sample, *generation)),
            Read::Key(self.core.layout().to_free(sample, *generation)),
        ];
        let snapshot = self
            .core
            .txn_store()
            .read(&reads, deadline.remaining(self.core.clock()))
            .await?;
        let mut moved = false;
        for (place, entry) in snapshot.entries.into_iter().enumerate() {
            let Some(entry) = entry.into_iter().next() else {
                continue;
            };
            let mut along = Vec::new();
            if place == 0 {
                let live: Versioned<Live> = decode_versioned(&entry)?;
                if live.record.generation != *generation {
                    continue;
                }
                along.extend(self.core.layout().ready_entries(sample, &live.record, None));
            }
            let aside = self.core.set_aside(&entry, &item.why, along, deadline).await?;
            moved |= aside != SetAside::Changed;
        }
        Ok(moved)
    }

    /// The records in quarantine, in key order: after this one, up to a limit.
    pub(crate) async fn do_quarantined(
        &self,
        after_this: Option<&Quarantined>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<Quarantined>> {
        let mut range = self.core.layout().all_aside();
        if let Some(last) = after_this.and_then(|last| self.core.layout().aside(&last.key, last.version)) {
            range.start = after(&last.info);
        }
        loop {
            let keys = self.core.read_keys([range.clone()], limit, deadline).await?;
            let keys = keys.into_iter().next().unwrap_or_default();
            let (entries, looked_at) = self.core.read_values(&keys, MOST_BYTES, deadline).await?;
            let found: Vec<Quarantined> = entries
                .iter()
                .filter_map(|entry| Quarantined::parse(self.core.layout(), entry))
                .collect();
            match looked_at.checked_sub(1).and_then(|last| keys.get(last)) {
                // An empty page would be taken for the end of the list.
                Some(last) if found.is_empty() => range.start = after(last),
                _ => return Ok(found),
            }
        }
    }

    /// The original bytes of a record in quarantine.
    pub(crate) async fn do_quarantined_bytes(&self, which: &Quarantined, deadline: Deadline) -> Result<Vec<u8>> {
        let gone = || {
            let message = "this record is not in quarantine (any more); list the quarantine again";
            Error::new(ErrorKind::NotFound, OPERATION, message).with("key", &which.key)
        };
        let aside = self.core.layout().aside(&which.key, which.version).ok_or_else(gone)?;
        let key = if which.in_place { which.key.clone() } else { aside.bytes };
        let snapshot = self
            .core
            .txn_store()
            .read(&[Read::Key(key)], deadline.remaining(self.core.clock()))
            .await?;
        let entry = snapshot.entries.into_iter().flatten().next();
        let entry = entry.filter(|entry| !which.in_place || entry.version == which.version);
        entry.map(|entry| entry.value).ok_or_else(gone)
    }
}
