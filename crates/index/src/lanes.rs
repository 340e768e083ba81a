//! What those of one process know together about a group's ready list: what was seen and not taken yet, and which lanes
//! had nothing.

use std::collections::VecDeque;
use std::time::Duration;

use holdfast_core::Timestamp;
use holdfast_custody::Live;
use parking_lot::Mutex;

use crate::layout::LANES;
use crate::types::{SampleRef, Versioned};

/// The most entries of one look.
const MOST_AT_ONCE: usize = 256;

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
    lanes: Lanes,
    /// How many are taken while what was seen is fresh, more or less: so many are worth seeing at once.
    appetite: usize,
}

impl ReadyList {
    /// Up to `count` of what was seen, if it is fresh and there is any.
    pub(crate) fn take(&self, count: usize, now: Timestamp) -> Option<Vec<Found>> {
        let mut known = self.known.lock();
        let seen = known.found.len();
        known.found.retain(|(_, since)| now.since(*since) <= FRESH);
        if known.found.len() < seen {
            known.appetite /= 2;
        }
        let taken = count.min(known.found.len());
        let taken: Vec<Found> = known.found.drain(..taken).map(|(found, _)| found).collect();
        (!taken.is_empty()).then_some(taken)
    }

    /// Where to look, and how many are worth seeing: all that was seen before has been taken.
    pub(crate) fn next(&self, count: usize, start: u64) -> (Option<u64>, usize) {
        let mut known = self.known.lock();
        known.appetite = (2 * known.appetite).clamp(1, MOST_AT_ONCE);
        (known.lanes.next(start), known.appetite.max(count))
    }

    /// What looks into lanes showed: of each, whether there was nothing.
    pub(crate) fn saw(&self, lanes: impl IntoIterator<Item = (u64, bool)>) {
        let mut known = self.known.lock();
        lanes.into_iter().for_each(|(lane, empty)| known.lanes.saw(lane, empty));
    }

    /// What one who looked leaves to the others.
    pub(crate) fn leave(&self, found: impl IntoIterator<Item = Found>, now: Timestamp) {
        let found = found.into_iter().map(|found| (found, now));
        self.known.lock().found.extend(found);
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
    /// The first lane from `start` on that is worth a look; none if all had nothing lately.
    fn next(&mut self, start: u64) -> Option<u64> {
        self.looks += 1;
        let worth = |lane: &u64| {
            let until = usize::try_from(*lane).ok().and_then(|at| self.empty_until.get(at));
            until.is_some_and(|until| *until <= self.looks)
        };
        (0..LANES).map(|turn| (start + turn) % LANES).find(worth)
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

    #[test]
    fn what_was_seen_is_taken_once_and_only_while_it_is_fresh() {
        let (clock, list) = (ManualClock::new(), ReadyList::default());
        assert!(list.take(1, clock.now()).is_none());
        list.leave([found("a"), found("b"), found("c")], clock.now());
        let taken = list.take(2, clock.now()).expect("fresh");
        assert_eq!(taken.len(), 2);
        clock.advance(2 * FRESH);
        assert!(list.take(2, clock.now()).is_none(), "too old");
    }

    #[test]
    fn more_is_seen_at_once_as_long_as_it_is_all_taken() {
        let (clock, list) = (ManualClock::new(), ReadyList::default());
        let seen = |list: &ReadyList| list.next(1, 0).1;
        assert_eq!([seen(&list), seen(&list), seen(&list)], [1, 2, 4]);
        list.leave([found("a")], clock.now());
        clock.advance(2 * FRESH);
        list.take(1, clock.now());
        assert_eq!(seen(&list), 4, "half of it was enough");
        assert_eq!(list.next(64, 0).1, 64, "never less than is asked for");
    }

    #[test]
    fn a_lane_that_had_nothing_is_passed_over_for_a_while() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.next(3), Some(3));
        lanes.saw(3, true);
        assert_eq!(lanes.next(3), Some(4));
        for _ in 0..PASSED_OVER {
            lanes.next(5);
        }
        assert_eq!(lanes.next(3), Some(3), "it gets its look again");
    }

    #[test]
    fn no_lane_is_worth_a_look_when_all_had_nothing() {
        let mut lanes = Lanes::default();
        (0..LANES).for_each(|lane| lanes.saw(lane, true));
        assert_eq!(lanes.next(0), None);
        lanes.saw(7, false);
        assert_eq!(lanes.next(0), Some(7));
    }
}
