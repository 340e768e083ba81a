//! Reading lists in parts: no reply of the store is larger than one message, however long the records are.
//!
//! A list's keys, which are short, are read first; then its values, a few at first and more as long as they are short.
//! So a list of records of any length costs as many bytes as are asked for, and about one more read. The values of keys
//! that follow each other are read as ranges, which cost the store less than as many single keys.

use std::collections::HashSet;
use std::ops::Range;

use tensorhold_core::{Deadline, Result};

use crate::record::layout::after;
use crate::store::{Entry, Read};
use crate::txn::TxnCore;

/// How many bytes of values one call reads before it stops. Bounds the memory and time of one step of a list.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// How many values the first read takes.
const FIRST: usize = 8;
/// If a read returns fewer bytes than this, the next one takes four times as many values; if more than [`LARGE_READ`],
/// half as many.
const SMALL_READ: usize = 256 << 10;
const LARGE_READ: usize = 4 << 20;
/// The most values that one range takes.
const MOST_VALUES: usize = 256;

impl TxnCore {
    /// The first keys of each range, in one snapshot.
    pub(crate) async fn read_keys(
        &self,
        ranges: impl IntoIterator<Item = Range<String>>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<Vec<String>>> {
        let range = |keys| Read::Range {
            keys,
            limit,
            keys_only: true,
        };
        let reads: Vec<Read> = ranges.into_iter().map(range).collect();
        let snapshot = self.txn_store().read(&reads, deadline.remaining(self.clock())).await?;
        let keys = |entries: Vec<Entry>| entries.into_iter().map(|entry| entry.key).collect();
        Ok(snapshot.entries.into_iter().map(keys).collect())
    }

    /// What each key holds, if it is there.
    pub(crate) async fn read_all(
        &self,
        keys: impl IntoIterator<Item = String>,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Entry>>> {
        let reads: Vec<Read> = keys.into_iter().map(Read::Key).collect();
        let mut found = Vec::with_capacity(reads.len());
        for chunk in reads.chunks(self.txn_store().limits().operations) {
            let snapshot = self.txn_store().read(chunk, deadline.remaining(self.clock())).await?;
            found.extend(snapshot.entries);
        }
        Ok(found)
    }

    /// The values of keys, in order, until `most_bytes` were read. Absent keys are left out. Also returns how many of
    /// the keys were looked at.
    pub(crate) async fn read_values(
        &self,
        keys: &[String],
        most_bytes: usize,
        deadline: Deadline,
    ) -> Result<(Vec<Entry>, usize)> {
        self.read_steps(keys, most_bytes, false, deadline).await
    }

    /// As [`TxnCore::read_values`], for keys between which there were no others when they were read: one range reads many.
    pub(crate) async fn read_run(
        &self,
        keys: &[String],
        most_bytes: usize,
        deadline: Deadline,
    ) -> Result<(Vec<Entry>, usize)> {
        self.read_steps(keys, most_bytes, true, deadline).await
    }

    async fn read_steps(
        &self,
        keys: &[String],
        most_bytes: usize,
        is_run: bool,
        deadline: Deadline,
    ) -> Result<(Vec<Entry>, usize)> {
        let operations = self.txn_store().limits().operations;
        let most = if is_run { MOST_VALUES } else { operations };
        let (mut entries, mut at, mut bytes, mut step) = (Vec::new(), 0, 0, FIRST);
        while at < keys.len() && bytes < most_bytes {
            let chunk = &keys[at..keys.len().min(at + step)];
            let mut read = if is_run {
                self.read_range_of(chunk, deadline).await?
            } else {
                None
            };
            if read.is_none() {
                read = Some(
                    self.read_all(chunk.iter().cloned(), deadline)
                        .await?
                        .into_iter()
                        .flatten()
                        .collect(),
                );
            }
            let read: Vec<Entry> = read.unwrap_or_default();
            let this: usize = read.iter().map(|entry| entry.value.len()).sum();
            entries.extend(read);
            (at, bytes) = (at + chunk.len(), bytes + this);
            if this < SMALL_READ {
                step = (4 * step).min(most);
            } else if this > LARGE_READ {
                step = (step / 2).max(1);
            }
        }
        Ok((entries, at))
    }

    /// The values of a run of keys, by one range. None if so many keys have come between them that some may be missing.
    async fn read_range_of(&self, run: &[String], deadline: Deadline) -> Result<Option<Vec<Entry>>> {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            return Ok(Some(Vec::new()));
        };
        let limit = run.len() + 1;
        let range = Read::Range {
            keys: first.clone()..after(last),
            limit,
            keys_only: false,
        };
        let snapshot = self
            .txn_store()
            .read(&[range], deadline.remaining(self.clock()))
            .await?;
        let mut entries: Vec<Entry> = snapshot.entries.into_iter().flatten().collect();
        if entries.len() >= limit {
            return Ok(None);
        }
        let wanted: HashSet<&String> = run.iter().collect();
        entries.retain(|entry| wanted.contains(&entry.key));
        Ok(Some(entries))
    }
}
