//! What those of one process know together about a group's ready list: what was seen and not taken yet, and which lanes
//! had nothing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use holdfast_core::Timestamp;
use holdfast_custody::{Live, Version};

use crate::layout::LANES;
use crate::types::{SampleRef, Versioned};

/// The most entries of one look.
pub(crate) const MOST_AT_ONCE: usize = 256;

/// For how long what was seen is worth a try: others take from the same list.
const FRESH: Duration = Duration::from_millis(50);

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
#[derive(Debug, Default)]
pub(crate) struct ReadyList {
    /// How many samples those who are about to look want, all together.
    wanted: AtomicUsize,
    pub(crate) looked: tokio::sync::Mutex<Looked>,
}

/// Somebody who is about to look; counts until it is dropped.
pub(crate) struct InLine<'a> {
    list: &'a ReadyList,
    count: usize,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.list.wanted.fetch_sub(self.count, Ordering::Relaxed);
    }
}

impl ReadyList {
    pub(crate) fn come(&self, count: usize) -> InLine<'_> {
        self.wanted.fetch_add(count, Ordering::Relaxed);
        InLine { list: self, count }
    }

    pub(crate) fn wanted(&self) -> usize {
        self.wanted.load(Ordering::Relaxed)
    }
}

/// What was seen at the last look.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    pub(crate) found: VecDeque<Found>,
    pub(crate) version: Version,
    pub(crate) since: Option<Timestamp>,
    pub(crate) lanes: Lanes,
}

impl Looked {
    /// Up to `count` of what was seen, if it is fresh and there is any.
    pub(crate) fn take(&mut self, count: usize, now: Timestamp) -> Option<Vec<Found>> {
        if self.since.is_none_or(|since| now.since(since) > FRESH) {
            self.found.clear();
        }
        let taken: Vec<Found> = self.found.drain(..count.min(self.found.len())).collect();
        (!taken.is_empty()).then_some(taken)
    }
}

/// Which lanes are worth a look.
#[derive(Debug)]
pub(crate) struct Lanes {
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
    pub(crate) fn next(&mut self, start: u64) -> Option<u64> {
        self.looks += 1;
        let worth = |lane: &u64| {
            let until = usize::try_from(*lane).ok().and_then(|at| self.empty_until.get(at));
            until.is_some_and(|until| *until <= self.looks)
        };
        (0..LANES).map(|turn| (start + turn) % LANES).find(worth)
    }

    /// What a look into a lane showed: whether that was all there is in it.
    pub(crate) fn saw(&mut self, lane: u64, all_of_it: bool) {
        let until = if all_of_it { self.looks + PASSED_OVER } else { 0 };
        if let Some(place) = usize::try_from(lane).ok().and_then(|at| self.empty_until.get_mut(at)) {
            *place = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
