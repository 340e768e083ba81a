//! What one process knows about a group's ready list, shared by all its consumers: samples that were seen and not taken
//! yet, which shards were empty, and how far the others were read.
//!
//! ```text
//!   seen ──kept──▶ found ──taken──▶ being leased ──the lease attempt ended, well or not──▶ (unknown again)
//!                    └── not fresh any more ──────────────────────────────────────────────────▲
//! ```
//! While takes wait for samples, the list is watched, and this is slightly different (module `waiting`).
//!
//! A sample that is found or being leased is known. A read that shows it again does not make two consumers of this
//! process try to lease it.
//!
//! A read of a shard continues where the last one ended: samples before that point are known, or gone. Deleted entries
//! are not free: for the store, a read from the start of a shard walks over all of them. But a sample that comes back
//! to the list lies before that point. So may one that was reserved early and committed late, and one that was seen and
//! not taken while it was fresh. So a shard is read from its start once in a while ([`FROM_THE_START`]), after a sample
//! that was seen in it was given up, and always before a caller concludes that the list is empty.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Generation, Timestamp};
use tensorhold_custody::Live;

use super::waiting::{Reached, Waits};
use crate::record::layout::{SHARDS, shard_of};
use crate::record::types::{SampleRef, Versioned};

/// The most entries that one read wants. Bounds the size of the reply.
const MOST_AT_ONCE: usize = 256;

/// The most shards that one read covers.
const MOST_SHARDS: usize = 16;

/// How many callers of one process read at the same time, each from other shards.
const LOOK_AT_ONCE: usize = 2;

/// For how long a sample that was seen is worth a lease attempt. Other processes take from the same list.
const FRESH: Duration = Duration::from_millis(100);

/// For how long reads of a shard continue where the last one ended, before one begins at its start again.
const FROM_THE_START: Duration = Duration::from_secs(1);

/// For how many reads an empty shard is skipped. After that it is read again, however many samples the others have, so
/// that no sample in it is left behind.
const PASSED_OVER: u64 = 2 * SHARDS;

/// For how long a sample that this process cannot take is skipped.
pub(super) const PASSED_BY: Duration = Duration::from_secs(10);

/// The most samples that are remembered as doubtful, and the most that are remembered as skipped. Bounds memory.
const MOST_REMEMBERED: usize = 65_536;

/// A sample that was seen in the ready list, or that is known by name only.
#[derive(Clone, Debug)]
pub(crate) struct ReadyEntry {
    pub(crate) sample: SampleRef,
    /// Its position in the list.
    pub(crate) order: Generation,
    /// The record, if the list held a copy of it.
    pub(crate) copied: Option<Versioned<Live>>,
}

impl From<&SampleRef> for ReadyEntry {
    fn from(sample: &SampleRef) -> Self {
        Self {
            sample: sample.clone(),
            order: sample.generation,
            copied: None,
        }
    }
}

/// One group's ready list, as one process knows it.
#[derive(Debug)]
pub(crate) struct ReadyList {
    pub(super) known: Mutex<Known>,
    pub(crate) looking: tokio::sync::Semaphore,
}

impl Default for ReadyList {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            looking: tokio::sync::Semaphore::new(LOOK_AT_ONCE),
        }
    }
}

/// What is known of a list, and who waits for more.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Samples that were seen and not taken yet, and when they were seen.
    pub(super) found: VecDeque<(ReadyEntry, Timestamp)>,
    /// All of those, and the samples that are being leased.
    pub(super) known: HashSet<SampleRef>,
    shards: Shards,
    /// About how many samples are taken while they are fresh: as many are worth reading at once.
    prefetch: usize,
    /// How many shards one read covers: the fewer samples a shard has, the more shards.
    fanout: usize,
    /// Samples that were in the list and once could not be leased.
    doubted: HashSet<SampleRef>,
    /// Samples that this process cannot take, and since when.
    passed_over: HashMap<SampleRef, Timestamp>,
    pub(super) waits: Waits,
}

/// Which shards to read, and how many entries of each.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShardScan {
    pub(crate) shards: Vec<Shard>,
    pub(crate) of_each: usize,
}

/// A shard to be read: after a key that was seen, or (none) from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) number: u64,
    pub(crate) after: Option<SeenTo>,
}

/// How far a shard was read, and when the last read from its start began; none if a sample before this key was given
/// up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenTo {
    pub(crate) key: String,
    since: Option<Timestamp>,
}

/// What a read showed of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Saw {
    /// All entries, up to this key if there were any: the shard has no more for now.
    All(Option<String>),
    /// The entries up to and including this key; there may be more.
    UpTo(String),
}

impl ReadyList {
    /// Up to `count` fresh samples that were seen; none if there are none. With `more` (there may be more to read),
    /// only if there are `count` of them.
    pub(crate) fn take(self: &Arc<Self>, count: usize, now: Timestamp, more: bool) -> Option<Reached> {
        let mut known = self.known.lock();
        known.forget_stale(now);
        let enough = known.found.len() >= if more { count } else { 1 };
        enough.then(|| self.reached(&mut known, count, now))
    }

    /// The fresh samples that were seen and not taken, in the order in which they will be.
    pub(crate) fn seen(&self, now: Timestamp) -> Vec<SampleRef> {
        let known = self.known.lock();
        let fresh = |(_, since): &&(ReadyEntry, Timestamp)| known.waits.is_watched() || now.since(*since) <= FRESH;
        let fresh = known.found.iter().filter(fresh);
        fresh.map(|(found, _)| found.sample.clone()).collect()
    }

    /// Adds samples that a read showed, for all consumers of this process. Returns how many of them were not known
    /// before.
    pub(crate) fn leave(&self, found: impl IntoIterator<Item = ReadyEntry>, now: Timestamp) -> usize {
        let known = &mut *self.known.lock();
        let before = known.found.len();
        let new = found
            .into_iter()
            .filter(|found| known.known.insert(found.sample.clone()));
        known.found.extend(new.map(|found| (found, now)));
        known.found.len() - before
    }

    /// Records that a sample in the list could not be leased. True if this is the second time.
    pub(crate) fn doubt(&self, sample: &SampleRef) -> bool {
        let mut known = self.known.lock();
        if known.doubted.remove(sample) {
            return true;
        }
        if known.doubted.len() >= MOST_REMEMBERED {
            known.doubted.clear();
        }
        known.doubted.insert(sample.clone());
        false
    }

    /// Records that this process cannot take a sample: it is skipped for a while.
    pub(crate) fn pass_over(&self, sample: &SampleRef, now: Timestamp) {
        let mut known = self.known.lock();
        if known.passed_over.len() >= MOST_REMEMBERED {
            known.passed_over.clear();
        }
        known.passed_over.insert(sample.clone(), now);
    }

    /// Removes the samples that this process cannot take.
    pub(crate) fn without_passed_over(&self, found: &mut Vec<ReadyEntry>, now: Timestamp) {
        let mut known = self.known.lock();
        if known.passed_over.is_empty() {
            return;
        }
        known.passed_over.retain(|_, since| now.since(*since) <= PASSED_BY);
        found.retain(|found| !known.passed_over.contains_key(&found.sample));
    }

    /// Which shards to read next, and how many entries of each. To be called when all samples seen before have been
    /// taken. No shards if all were empty lately.
    pub(crate) fn next(&self, count: usize, start: u64, now: Timestamp) -> ShardScan {
        let known = &mut *self.known.lock();
        known.prefetch = (2 * known.prefetch).clamp(1, MOST_AT_ONCE);
        let shards = known.shards.next(start, known.fanout.max(1), now);
        let of_each = known.prefetch.max(count).div_ceil(shards.len().max(1));
        ShardScan { shards, of_each }
    }

    /// All shards, each from where the last read of it ended.
    pub(crate) fn further(&self) -> Vec<Shard> {
        let known = self.known.lock();
        let shard = |(number, shard): (u64, &KnownShard)| Shard {
            number,
            after: shard.seen_to.clone(),
        };
        (0..SHARDS).zip(&known.shards.shards).map(shard).collect()
    }

    /// Records what a read of some shards, begun at `now`, showed of each, and how many samples that were out of how
    /// many wanted.
    pub(crate) fn saw(&self, shards: Vec<(Shard, Saw)>, (seen, wanted): (usize, usize), now: Timestamp) {
        let mut known = self.known.lock();
        if shards.iter().any(|(_, saw)| matches!(saw, Saw::UpTo(_))) {
            known.fanout /= 2;
        } else if seen < wanted / 2 {
            known.fanout = (2 * known.fanout).clamp(1, MOST_SHARDS);
        }
        for (shard, saw) in shards {
            known.shards.saw(shard, saw, now);
        }
    }
}

impl Known {
    /// Whether this process cannot take a sample.
    pub(super) fn is_passed_over(&self, sample: &SampleRef, now: Timestamp) -> bool {
        let since = self.passed_over.get(sample);
        since.is_some_and(|since| now.since(*since) <= PASSED_BY)
    }

    /// Forgets what is not fresh any more. While the list is watched, nothing goes stale.
    pub(super) fn forget_stale(&mut self, now: Timestamp) {
        if self.waits.is_watched() {
            return;
        }
        let Self {
            found,
            known,
            shards,
            prefetch: appetite,
            ..
        } = self;
        let seen = found.len();
        found.retain(|(found, since)| {
            let fresh = now.since(*since) <= FRESH;
            if !fresh {
                known.remove(&found.sample);
                shards.gave_up(shard_of(&found.sample.sample));
            }
            fresh
        });
        if found.len() < seen {
            *appetite /= 2;
        }
    }
}

/// Which shards are worth reading, and from which key on.
#[derive(Debug)]
struct Shards {
    looks: u64,
    shards: Vec<KnownShard>,
}

#[derive(Clone, Debug, Default)]
struct KnownShard {
    /// The shard is skipped until this read.
    empty_until: u64,
    seen_to: Option<SeenTo>,
}

impl Default for Shards {
    fn default() -> Self {
        Self {
            looks: 0,
            shards: (0..SHARDS).map(|_| KnownShard::default()).collect(),
        }
    }
}

impl Shards {
    /// The first shards from `start` on that are worth reading; none if all were empty lately.
    fn next(&mut self, start: u64, most: usize, now: Timestamp) -> Vec<Shard> {
        self.looks += 1;
        let looks = self.looks;
        let mut shards: Vec<(u64, &KnownShard)> = (0..SHARDS).zip(&self.shards).collect();
        shards.rotate_left(usize::try_from(start % SHARDS).unwrap_or(0));
        let worth = shards.into_iter().filter(|(_, shard)| shard.empty_until <= looks);
        let shard = |(number, shard): (u64, &KnownShard)| {
            let after = shard
                .seen_to
                .clone()
                .filter(|seen| seen.since.is_some_and(|since| now.since(since) <= FROM_THE_START));
            Shard { number, after }
        };
        worth.take(most).map(shard).collect()
    }

    /// A sample that was seen in a shard was not taken: its next read begins at the start.
    fn gave_up(&mut self, number: u8) {
        if let Some(seen_to) = self
            .shards
            .get_mut(usize::from(number))
            .and_then(|shard| shard.seen_to.as_mut())
        {
            seen_to.since = None;
        }
    }

    /// Records what a read of a shard showed.
    fn saw(&mut self, Shard { number, after }: Shard, saw: Saw, now: Timestamp) {
        let Some(place) = usize::try_from(number).ok().and_then(|at| self.shards.get_mut(at)) else {
            return;
        };
        let since = after.as_ref().map_or(Some(now), |after| after.since);
        let (empty_until, last) = match saw {
            Saw::All(last) => (self.looks + PASSED_OVER, last),
            Saw::UpTo(last) => (0, Some(last)),
        };
        let before = after.or(place.seen_to.take()).map(|seen| seen.key);
        *place = KnownShard {
            empty_until,
            seen_to: last.or(before).map(|key| SeenTo { key, since }),
        };
    }
}

#[cfg(test)]
mod tests;
