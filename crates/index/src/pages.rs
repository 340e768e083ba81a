//! Lists in parts: no answer of the store is larger than one message, however long the records are.
//!
//! A list is read as keys first, which are short, and then its values, a few at first and more as long as they are short.
//! So records of any length cost as many bytes as are asked for, and about one more read.

use std::ops::Range;

use holdfast_core::{Deadline, Result};

use crate::index::KvIndex;
use crate::kv::{Entry, Read};

/// So many bytes of values are read well at once: a look stops after this many.
pub(crate) const MOST_BYTES: usize = 8 << 20;
/// How many values the first read takes.
const FIRST: usize = 8;
/// Below this, the next read takes four times as many values; above [`LARGE_READ`], half as many.
const SMALL_READ: usize = 256 << 10;
const LARGE_READ: usize = 4 << 20;

impl KvIndex {
    /// The first keys of ranges, at one moment.
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
        let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
        let keys = |entries: Vec<Entry>| entries.into_iter().map(|entry| entry.key).collect();
        Ok(snapshot.entries.into_iter().map(keys).collect())
    }

    /// The values of keys in order, until so many bytes were read; those that are gone are left out. Also tells how many of
    /// the keys were looked at.
    pub(crate) async fn read_values(
        &self,
        keys: &[String],
        most_bytes: usize,
        deadline: Deadline,
    ) -> Result<(Vec<Entry>, usize)> {
        let (mut entries, mut at, mut bytes, mut step) = (Vec::new(), 0, 0, FIRST);
        while at < keys.len() && bytes < most_bytes {
            let chunk = &keys[at..keys.len().min(at + step)];
            let reads: Vec<Read> = chunk.iter().cloned().map(Read::Key).collect();
            let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            let read: Vec<Entry> = snapshot.entries.into_iter().flatten().collect();
            let this: usize = read.iter().map(|entry| entry.value.len()).sum();
            entries.extend(read);
            (at, bytes) = (at + chunk.len(), bytes + this);
            if this < SMALL_READ {
                step = (4 * step).min(self.kv().limits().operations);
            } else if this > LARGE_READ {
                step = (step / 2).max(1);
            }
        }
        Ok((entries, at))
    }
}
