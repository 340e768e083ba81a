//! Many pages in several engine calls, with checksums computed in parallel.
//!
//! The pages of a put or get are cut into *units*, one engine call each, and processed in order by a few *lanes*: the
//! caller's own thread and short-lived helper threads that the call joins before it returns. A lane takes the next unit
//! and does the work before the call (a put's checksums). It then waits for its turn to move bytes. It does the work
//! after the call (a get's checksums) while another lane has its turn:
//!
//! ```text
//! put, lane 1  hash 1 │▒▒ move 1 ▒▒│ hash 3      │▒▒ move 3 ▒▒│
//!      lane 2  hash 2              │▒▒ move 2 ▒▒│ hash 4       │▒▒ move 4 ▒▒│
//! get, lane 1 │▒▒ move 1 ▒▒│ check 1            │▒▒ move 3 ▒▒│ check 3
//!      lane 2              │▒▒ move 2 ▒▒│ check 2             │▒▒ move 4 ▒▒│ check 4
//! ```
//!
//! How many units may move at once is a setting. One is best on TCP between two processes of a small machine, where a
//! second call only takes the processor from the first.
//!
//! Invariants:
//! - PP1: units are begun in order, and each at most once.
//! - PP2: no unit is begun after the cut: after a unit that broke the prefix, where only a prefix counts, or after a
//!   stop.
//! - PP3: every helper is joined before the call returns; a helper that panics fails its unit, not the process.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorhold_core::{Clock, Deadline, ObjectKey};

use super::page::{Page, Stop};

/// Bounds one engine call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub(super) pages: usize,
    pub(super) bytes: u64,
    /// Pieces of memory, footers included.
    pub(super) parts: usize,
}

/// Cuts pages into units within these bounds. Each unit has at least one page, and no key twice.
pub(super) fn units(pages: &[Page], most: Most) -> Vec<Range<usize>> {
    let mut units: Vec<Range<usize>> = Vec::new();
    let mut keys: HashSet<&ObjectKey> = HashSet::with_capacity(most.pages.min(pages.len()));
    let (mut bytes, mut parts) = (0, 0);
    for (at, page) in pages.iter().enumerate() {
        let (more_bytes, more_parts) = (page.bytes(), page.parts.len() + 1);
        let fits = |unit: &Range<usize>| {
            unit.len() < most.pages && bytes + more_bytes <= most.bytes && parts + more_parts <= most.parts
        };
        match units.last_mut() {
            Some(unit) if fits(unit) && keys.insert(&page.key) => {
                unit.end = at + 1;
                (bytes, parts) = (bytes + more_bytes, parts + more_parts);
            }
            _ => {
                units.push(at..at + 1);
                keys.clear();
                keys.insert(&page.key);
                (bytes, parts) = (more_bytes, more_parts);
            }
        }
    }
    units
}

/// Limits how many lanes move bytes at once.
#[derive(Debug)]
pub(super) struct Turns {
    free: Mutex<usize>,
    back: Condvar,
}

/// One turn; dropping it lets the next lane take its turn.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    pub(super) fn new(streams: usize) -> Self {
        Self {
            free: Mutex::new(streams.max(1)),
            back: Condvar::new(),
        }
    }

    /// Waits for a turn, but not beyond the deadline.
    pub(super) fn take(&self, clock: &dyn Clock, deadline: Deadline) -> Option<Turn<'_>> {
        let mut free = self.free.lock();
        while *free == 0 {
            let left: Duration = deadline.remaining(clock);
            if left.is_zero() {
                return None;
            }
            self.back.wait_for(&mut free, left);
        }
        *free -= 1;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.back.notify_one();
    }
}

/// What happens to the units after one that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    /// Begin none of them.
    Cut,
}

/// Processes `count` units on up to `lanes` threads. Returns the result of each unit; `None` for units that were not
/// begun or panicked.
pub(super) fn run<T: Send>(
    count: usize,
    lanes: usize,
    stop: &Stop,
    work: impl Fn(usize) -> (T, Then) + Sync,
) -> Vec<Option<T>> {
    let next = AtomicUsize::new(0);
    let cut = AtomicUsize::new(count);
    let results: Mutex<Vec<Option<T>>> = Mutex::new((0..count).map(|_| None).collect());
    let lane = || {
        while !stop.is_stopped() {
            let unit = next.fetch_add(1, Ordering::SeqCst);
            if unit >= cut.load(Ordering::SeqCst) {
                return;
            }
            let (result, then) = work(unit);
            if then == Then::Cut {
                cut.fetch_min(unit, Ordering::SeqCst);
            }
            if let Some(place) = results.lock().get_mut(unit) {
                *place = Some(result);
            }
        }
    };
    thread::scope(|scope| {
        let helpers: Vec<_> = (1..lanes.min(count))
            // If no thread can be started, the caller's thread does all the work.
            .map_while(|_| {
                let builder = thread::Builder::new().name("tensorhold-kvcache-lane".to_owned());
                builder.spawn_scoped(scope, lane).ok()
            })
            .collect();
        lane();
        for helper in helpers {
            if helper.join().is_err() {
                tracing::error!("a lane of a page store panicked; its pages have failed");
            }
        }
    });
    results.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use tensorhold_core::SystemClock;
    use tensorhold_engine::{EngineExt, MemoryCluster, MemoryConfig};

    #[test]
    fn units_keep_their_bounds_and_no_key_twice() {
        let engine = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new())).connect();
        let region = engine.allocate(1000, Duration::from_secs(1)).expect("memory");
        let page = |key: &str, len: usize| {
            Page::new(
                ObjectKey::new(key).expect("a key"),
                vec![region.span(0..len).expect("inside")],
            )
        };
        let pages = [
            page("a", 100),
            page("b", 100),
            page("a", 100),
            page("c", 1000),
            page("d", 10),
            page("e", 10),
        ];
        let most = |pages, bytes, parts| Most { pages, bytes, parts };
        assert_eq!(units(&pages, most(10, 400, 99)), [0..2, 2..3, 3..4, 4..6]);
        assert_eq!(units(&pages, most(1, u64::MAX, 99)).len(), 6);
        assert_eq!(
            units(&pages, most(10, u64::MAX, 5)),
            [0..2, 2..4, 4..6],
            "a part and a footer each"
        );
        assert_eq!(units(&pages, most(10, u64::MAX, 1)).len(), 6, "one page goes always");
        assert_eq!(units(&[], most(1, 1, 1)), []);
    }

    #[test]
    fn every_unit_is_done_once_and_none_behind_the_cut() {
        for lanes in [1, 2, 5] {
            let stop = Stop::default();
            let all = run(20, lanes, &stop, |unit| (unit, Then::GoOn));
            assert_eq!(all, (0..20).map(Some).collect::<Vec<_>>());
            let cut = run(1000, lanes, &stop, |unit| {
                (unit, if unit == 3 { Then::Cut } else { Then::GoOn })
            });
            assert!(cut[..=3].iter().all(Option::is_some));
            // Only the units that the other lanes had begun already.
            assert!(cut[4 + 1000 / 2..].iter().all(Option::is_none) || lanes > 1);
            stop.stop();
            assert_eq!(run(3, lanes, &stop, |unit| (unit, Then::GoOn)), [None, None, None]);
        }
    }

    #[test]
    fn a_helper_that_panics_fails_its_unit_only() {
        let helper = AtomicBool::new(false);
        let me = thread::current().id();
        let results = run(64, 2, &Stop::default(), |unit| {
            if thread::current().id() == me {
                // Leaves a unit for the helper.
                while !helper.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
            } else {
                helper.store(true, Ordering::SeqCst);
                panic!("on purpose");
            }
            (unit, Then::GoOn)
        });
        assert_eq!(results.iter().filter(|result| result.is_none()).count(), 1);
    }

    #[test]
    fn turns_are_bounded_and_waiting_for_one_ends() {
        let clock = SystemClock::new();
        let turns = Turns::new(1);
        let after = |millis| Deadline::after(&clock, Duration::from_millis(millis));
        let first = turns.take(&clock, after(1000)).expect("free");
        assert!(turns.take(&clock, after(10)).is_none());
        drop(first);
        assert!(turns.take(&clock, after(10)).is_some());
    }
}
