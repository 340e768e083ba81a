//! What those of one process know together about a group's ready list: what was seen and not taken yet, which lanes had
//! nothing, and how far the others were seen.
//!
//! ```text
//!   seen ──kept──▶ found ──taken──▶ reached for ──the taking has ended, well or not──▶ (unknown again)
//!                    └── not fresh any more ─────────────────────────────────────────────────▲
//! ```
//!
//! What is found or reached for is known: a look that shows it once more does not make two of one process reach for it.
//!
//! A look into a lane goes on where the last one ended: what lies before is known, or gone. To the store, what is gone from
//! a list is not free of charge: a look from the start of a lane passes all of it. But what comes back to the list lies
//! before; so may what was reserved early and committed late, and what was seen and not taken while it was fresh. So a lane
//! is looked into from its start once in a while ([`FROM_THE_START`]), after something that was seen in it was given up, and
//! always before somebody concludes that there is nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Timestamp;
use holdfast_custody::Live;
use parking_lot::Mutex;

use crate::layout::{LANES, lane_of};
use crate::types::{SampleRef, Versioned};

/// The most entries of one look.
const MOST_AT_ONCE: usize = 256;

/// The most lanes of one look.
const MOST_LANES: usize = 16;

/// How many of one process look at the same time, each into another lane.
const LOOK_AT_ONCE: usize = 2;

/// For how long what was seen is worth a try: others take from the same list.
const FRESH: Duration = Duration::from_millis(100);

/// For how long looks into a lane go on where the last one ended, before one begins at its start again.
const FROM_THE_START: Duration = Duration::from_secs(1);

/// For how many looks a lane that had nothing is passed over. After that it is looked into again, whatever the others
/// have, so that nothing in it is left behind.
const PASSED_OVER: u64 = 2 * LANES;

/// For how long a sample is passed over that cannot be taken here.
const PASSED_BY: Duration = Duration::from_secs(10);

/// How many samples are remembered as doubtful, or as passed over.
const MOST_REMEMBERED: usize = 65_536;

/// A sample that was seen in the ready list, or that is known by name only.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) sample: SampleRef,
    /// The record, if the list had a copy of it.
    pub(crate) copied: Option<Versioned<Live>>,
}

impl From<&SampleRef> for Found {
    fn from(sample: &SampleRef) -> Self {
        Self {
            sample: sample.clone(),
            copied: None,
        }
    }
}

/// One group's ready list, to those of one process.
#[derive(Debug)]
pub(crate) struct ReadyList {
    known: Mutex<Known>,
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

#[derive(Debug, Default)]
struct Known {
    /// What was seen and not taken yet, and when.
    found: VecDeque<(Found, Timestamp)>,
    /// All of that, and what is reached for.
    known: HashSet<SampleRef>,
    lanes: Lanes,
    /// How many are taken while what was seen is fresh, more or less: so many are worth seeing at once.
    appetite: usize,
    /// Into how many lanes one look goes: the less there is in a lane, the more.
    width: usize,
    /// What was in the list and could not be had, once.
    doubted: HashSet<SampleRef>,
    /// What cannot be taken by this process, and since when.
    passed_over: HashMap<SampleRef, Timestamp>,
}

/// Where one look goes, and how many it wants to see of each lane.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) of_each: usize,
}

/// A lane to be looked into: from after a key that was seen, if one was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) number: u64,
    pub(crate) after: Option<SeenTo>,
}

/// How far a lane was seen, and when that was begun at its start, unless something before it was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenTo {
    pub(crate) key: String,
    since: Option<Timestamp>,
}

/// What a look showed of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Saw {
    /// All of it, up to this key if there was one: it has nothing more for now.
    All(Option<String>),
    /// What lies before this key, and that.
    UpTo(String),
}

impl ReadyList {
    /// Up to `count` of what was seen, if it is fresh and there is any. If there may be more to see, then only if that is
    /// all that is asked for.
    pub(crate) fn take(self: &Arc<Self>, count: usize, now: Timestamp, more: bool) -> Option<Reached> {
        let mut known = self.known.lock();
        known.forget_stale(now);
        let enough = known.found.len() >= if more { count } else { 1 };
        enough.then(|| {
            let taken = count.min(known.found.len());
            let found = known.found.drain(..taken).map(|(found, _)| found).collect();
            Reached {
                list: Arc::clone(self),
                found,
            }
        })
    }

    /// What one who looked leaves to everybody, itself included. How much of it was not known.
    pub(crate) fn leave(&self, found: impl IntoIterator<Item = Found>, now: Timestamp) -> usize {
        let known = &mut *self.known.lock();
        let before = known.found.len();
        let new = found
            .into_iter()
            .filter(|found| known.known.insert(found.sample.clone()));
        known.found.extend(new.map(|found| (found, now)));
        known.found.len() - before
    }

    /// A sample that was in the list could not be had. True if that is so for the second time.
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

    /// A sample cannot be taken by this process: for a while, looks pass it.
    pub(crate) fn pass_over(&self, sample: &SampleRef, now: Timestamp) {
        let mut known = self.known.lock();
        if known.passed_over.len() >= MOST_REMEMBERED {
            known.passed_over.clear();
        }
        known.passed_over.insert(sample.clone(), now);
    }

    /// Leaves out what cannot be taken by this process.
    pub(crate) fn without_passed_over(&self, found: &mut Vec<Found>, now: Timestamp) {
        let mut known = self.known.lock();
        if known.passed_over.is_empty() {
            return;
        }
        known.passed_over.retain(|_, since| now.since(*since) <= PASSED_BY);
        found.retain(|found| !known.passed_over.contains_key(&found.sample));
    }

    /// Reaches for these, whoever else of this process does: there was nothing else to see.
    pub(crate) fn reach(self: &Arc<Self>, found: Vec<Found>) -> Reached {
        let list = Arc::clone(self);
        Reached { list, found }
    }

    /// Where to look, and how many are worth seeing: all that was seen before has been taken. Nowhere if all lanes had
    /// nothing lately.
    pub(crate) fn next(&self, count: usize, start: u64, now: Timestamp) -> Look {
        let known = &mut *self.known.lock();
        known.appetite = (2 * known.appetite).clamp(1, MOST_AT_ONCE);
        let lanes = known.lanes.next(start, known.width.max(1), now);
        let of_each = known.appetite.max(count).div_ceil(lanes.len().max(1));
        Look { lanes, of_each }
    }

    /// All lanes, each from where the last look into it ended.
    pub(crate) fn further(&self) -> Vec<Lane> {
        let known = self.known.lock();
        let lane = |(number, lane): (u64, &KnownLane)| Lane {
            number,
            after: lane.seen_to.clone(),
        };
        (0..LANES).zip(&known.lanes.lanes).map(lane).collect()
    }

    /// What a look at some lanes, begun at `now`, showed of each; and how many samples that were, of so many that it wanted.
    pub(crate) fn saw(&self, lanes: Vec<(Lane, Saw)>, (seen, wanted): (usize, usize), now: Timestamp) {
        let mut known = self.known.lock();
        if lanes.iter().any(|(_, saw)| matches!(saw, Saw::UpTo(_))) {
            known.width /= 2;
        } else if seen < wanted / 2 {
            known.width = (2 * known.width).clamp(1, MOST_LANES);
        }
        for (lane, saw) in lanes {
            known.lanes.saw(lane, saw, now);
        }
    }
}

impl Known {
    fn forget_stale(&mut self, now: Timestamp) {
        let Self {
            found,
            known,
            lanes,
            appetite,
            ..
        } = self;
        let seen = found.len();
        found.retain(|(found, since)| {
            let fresh = now.since(*since) <= FRESH;
            if !fresh {
                known.remove(&found.sample);
                lanes.gave_up(lane_of(&found.sample.sample));
            }
            fresh
        });
        if found.len() < seen {
            *appetite /= 2;
        }
    }
}

/// Samples that somebody reaches for: others of this process leave them alone until this is dropped.
#[derive(Debug)]
pub(crate) struct Reached {
    list: Arc<ReadyList>,
    found: Vec<Found>,
}

impl Deref for Reached {
    type Target = [Found];

    fn deref(&self) -> &[Found] {
        &self.found
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        let mut known = self.list.known.lock();
        self.found.iter().for_each(|found| {
            known.known.remove(&found.sample);
        });
    }
}

/// Which lanes are worth a look, and from where on.
#[derive(Debug)]
struct Lanes {
    looks: u64,
    lanes: Vec<KnownLane>,
}

#[derive(Clone, Debug, Default)]
struct KnownLane {
    /// Until which look it is passed over.
    empty_until: u64,
    seen_to: Option<SeenTo>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            looks: 0,
            lanes: (0..LANES).map(|_| KnownLane::default()).collect(),
        }
    }
}

impl Lanes {
    /// The first lanes from `start` on that are worth a look; none if all had nothing lately.
    fn next(&mut self, start: u64, most: usize, now: Timestamp) -> Vec<Lane> {
        self.looks += 1;
        let looks = self.looks;
        let mut lanes: Vec<(u64, &KnownLane)> = (0..LANES).zip(&self.lanes).collect();
        lanes.rotate_left(usize::try_from(start % LANES).unwrap_or(0));
        let worth = lanes.into_iter().filter(|(_, lane)| lane.empty_until <= looks);
        let lane = |(number, lane): (u64, &KnownLane)| {
            let after = lane
                .seen_to
                .clone()
                .filter(|seen| seen.since.is_some_and(|since| now.since(since) <= FROM_THE_START));
            Lane { number, after }
        };
        worth.take(most).map(lane).collect()
    }

    /// Something that was seen in a lane was not taken.
    fn gave_up(&mut self, number: u8) {
        if let Some(seen_to) = self
            .lanes
            .get_mut(usize::from(number))
            .and_then(|lane| lane.seen_to.as_mut())
        {
            seen_to.since = None;
        }
    }

    /// What a look into a lane showed.
    fn saw(&mut self, Lane { number, after }: Lane, saw: Saw, now: Timestamp) {
        let Some(place) = usize::try_from(number).ok().and_then(|at| self.lanes.get_mut(at)) else {
            return;
        };
        let since = after.as_ref().map_or(Some(now), |after| after.since);
        let (empty_until, last) = match saw {
            Saw::All(last) => (self.looks + PASSED_OVER, last),
            Saw::UpTo(last) => (0, Some(last)),
        };
        let before = after.or(place.seen_to.take()).map(|seen| seen.key);
        *place = KnownLane {
            empty_until,
            seen_to: last.or(before).map(|key| SeenTo { key, since }),
        };
    }
}

#[cfg(test)]
mod tests;
