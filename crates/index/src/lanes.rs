//! What those of one process know together about a group's ready list: what was seen and not taken yet, and which lanes
//! had nothing.
//!
//! ```text
//!   seen ──kept──▶ found ──taken──▶ reached for ──the taking has ended, well or not──▶ (unknown again)
//!                    └── not fresh any more ─────────────────────────────────────────────────▲
//! ```
//!
//! What is found or reached for is known: a look that shows it once more does not make two of one process reach for it.

use std::collections::{HashSet, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Timestamp;
use holdfast_custody::Live;
use parking_lot::Mutex;

use crate::layout::LANES;
use crate::types::{SampleRef, Versioned};

/// The most entries of one look.
const MOST_AT_ONCE: usize = 256;

/// The most lanes of one look.
const MOST_LANES: usize = 16;

/// How many of one process look at the same time, each into another lane.
const LOOK_AT_ONCE: usize = 2;

/// For how long what was seen is worth a try: others take from the same list.
const FRESH: Duration = Duration::from_millis(100);

/// For how many looks a lane that had nothing is passed over. After that it is looked into again, whatever the others
/// have, so that nothing in it is left behind.
const PASSED_OVER: u64 = 2 * LANES;

/// A sample that was seen in the ready list.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) sample: SampleRef,
    /// The record, if the list had a copy of it.
    pub(crate) copied: Option<Versioned<Live>>,
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
}

/// Where one look goes, and how many it wants to see of each lane.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) lanes: Vec<u64>,
    pub(crate) of_each: usize,
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

    /// Reaches for these, whoever else of this process does: there was nothing else to see.
    pub(crate) fn reach(self: &Arc<Self>, found: Vec<Found>) -> Reached {
        let list = Arc::clone(self);
        Reached { list, found }
    }

    /// Where to look, and how many are worth seeing: all that was seen before has been taken. Nowhere if all lanes had
    /// nothing lately.
    pub(crate) fn next(&self, count: usize, start: u64) -> Look {
        let known = &mut *self.known.lock();
        known.appetite = (2 * known.appetite).clamp(1, MOST_AT_ONCE);
        let lanes = known.lanes.next(start, known.width.max(1));
        let of_each = known.appetite.max(count).div_ceil(lanes.len().max(1));
        Look { lanes, of_each }
    }

    /// What a look at some lanes showed: of each, whether that was all of it.
    pub(crate) fn saw_all(&self, lanes: &[(u64, bool)]) {
        let mut known = self.known.lock();
        known.width = if lanes.iter().all(|(_, all)| *all) {
            (2 * known.width).clamp(1, MOST_LANES)
        } else {
            known.width / 2
        };
        // Of one that was seen to its end all is known now: what others have is next.
        lanes.iter().for_each(|(lane, all)| known.lanes.saw(*lane, *all));
    }

    /// What a look at all lanes showed: of each, whether there was nothing.
    pub(crate) fn saw(&self, lanes: impl IntoIterator<Item = (u64, bool)>) {
        let mut known = self.known.lock();
        lanes.into_iter().for_each(|(lane, empty)| known.lanes.saw(lane, empty));
    }
}

impl Known {
    fn forget_stale(&mut self, now: Timestamp) {
        let Self {
            found, known, appetite, ..
        } = self;
        let seen = found.len();
        found.retain(|(found, since)| {
            let fresh = now.since(*since) <= FRESH;
            if !fresh {
                known.remove(&found.sample);
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

/// Which lanes are worth a look.
#[derive(Debug)]
struct Lanes {
    looks: u64,
    /// Until which look a lane is passed over.
    empty_until: Vec<u64>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self {
            looks: 0,
            empty_until: (0..LANES).map(|_| 0).collect(),
        }
    }
}

impl Lanes {
    /// The first lanes from `start` on that are worth a look; none if all had nothing lately.
    fn next(&mut self, start: u64, most: usize) -> Vec<u64> {
        self.looks += 1;
        let worth = |lane: &u64| {
            let until = usize::try_from(*lane).ok().and_then(|at| self.empty_until.get(at));
            until.is_some_and(|until| *until <= self.looks)
        };
        let lanes = (0..LANES).map(|turn| (start + turn) % LANES);
        lanes.filter(worth).take(most).collect()
    }

    /// What a look into a lane showed: whether there was nothing.
    fn saw(&mut self, lane: u64, empty: bool) {
        let until = if empty { self.looks + PASSED_OVER } else { 0 };
        if let Some(place) = usize::try_from(lane).ok().and_then(|at| self.empty_until.get_mut(at)) {
            *place = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::{Clock, Generation, ManualClock, SampleId};

    use super::*;

    fn found(name: &str) -> Found {
        let sample = SampleRef {
            sample: SampleId::new(name).expect("a name"),
            generation: Generation::new(1).expect("a generation"),
        };
        Found { sample, copied: None }
    }

    fn names(reached: &Reached) -> Vec<&str> {
        reached.iter().map(|found| found.sample.sample.as_str()).collect()
    }

    #[test]
    fn what_was_seen_is_taken_once_and_only_while_it_is_fresh() {
        let (clock, list) = (ManualClock::new(), Arc::new(ReadyList::default()));
        assert!(list.take(1, clock.now(), false).is_none());
        list.leave([found("a"), found("b"), found("c")], clock.now());
        assert_eq!(names(&list.take(2, clock.now(), false).expect("fresh")), ["a", "b"]);
        clock.advance(2 * FRESH);
        assert!(list.take(2, clock.now(), false).is_none(), "too old");
        list.leave([found("c")], clock.now());
        assert_eq!(names(&list.take(2, clock.now(), false).expect("seen anew")), ["c"]);
    }

    #[test]
    fn less_than_is_asked_for_is_taken_only_when_there_is_no_more_to_see() {
        let (clock, list) = (ManualClock::new(), Arc::new(ReadyList::default()));
        list.leave([found("a"), found("b")], clock.now());
        assert!(list.take(3, clock.now(), true).is_none());
        assert_eq!(names(&list.take(3, clock.now(), false).expect("two")), ["a", "b"]);
    }

    #[test]
    fn what_somebody_reaches_for_is_not_found_by_another() {
        let (clock, list) = (ManualClock::new(), Arc::new(ReadyList::default()));
        list.leave([found("a"), found("b")], clock.now());
        let reached = list.take(1, clock.now(), false).expect("one");
        list.leave([found("a"), found("b"), found("c")], clock.now());
        assert_eq!(names(&list.take(9, clock.now(), false).expect("the rest")), ["b", "c"]);
        drop(reached);
        list.leave([found("a")], clock.now());
        assert_eq!(
            names(&list.take(9, clock.now(), false).expect("it was given up")),
            ["a"]
        );
    }

    #[test]
    fn more_is_seen_at_once_as_long_as_it_is_all_taken() {
        let (clock, list) = (ManualClock::new(), Arc::new(ReadyList::default()));
        let seen = |list: &ReadyList| list.next(1, 0).of_each;
        assert_eq!([seen(&list), seen(&list), seen(&list)], [1, 2, 4]);
        list.leave([found("a")], clock.now());
        clock.advance(2 * FRESH);
        assert!(list.take(1, clock.now(), false).is_none());
        assert_eq!(seen(&list), 4, "half of it was enough");
        assert_eq!(list.next(64, 0).of_each, 64, "never less than is asked for");
    }

    #[test]
    fn the_less_there_is_in_a_lane_the_more_lanes_are_looked_into() {
        let list = ReadyList::default();
        let look = list.next(8, 0);
        assert_eq!((look.lanes.as_slice(), look.of_each), ([0].as_slice(), 8));
        list.saw_all(&[(0, true)]);
        list.saw_all(&[(1, true)]);
        assert_eq!(
            list.next(8, 0),
            Look {
                lanes: vec![2, 3],
                of_each: 4
            }
        );
        list.saw_all(&[(2, false), (3, true)]);
        assert_eq!(list.next(8, 0).lanes, [2]);
    }

    #[test]
    fn a_lane_that_had_nothing_is_passed_over_for_a_while() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.next(3, 1), [3]);
        lanes.saw(3, true);
        assert_eq!(lanes.next(3, 1), [4]);
        for _ in 0..PASSED_OVER {
            lanes.next(5, 1);
        }
        assert_eq!(lanes.next(3, 1), [3], "it gets its look again");
    }

    #[test]
    fn no_lane_is_worth_a_look_when_all_had_nothing() {
        let mut lanes = Lanes::default();
        (0..LANES).for_each(|lane| lanes.saw(lane, true));
        assert!(lanes.next(0, 9).is_empty());
        lanes.saw(7, false);
        assert_eq!(lanes.next(0, 9), [7]);
    }
}
