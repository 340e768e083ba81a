use std::iter::once;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::future::block_on;
use loom::sync::atomic::{AtomicIsize, Ordering};
use proptest::prelude::*;
use tensorhold_core::ErrorKind;

use super::table::{Ranges, Table};
use super::*;

const OPERATION: &str = "test";

/// The claims on one byte: the number of readers, or minus one for a writer.
struct Cell(AtomicIsize);

impl Cell {
    fn new() -> Self {
        Self(AtomicIsize::new(0))
    }

    fn work(&self, access: Access) {
        match access {
            Access::Read => {
                assert!(self.0.fetch_add(1, Ordering::SeqCst) >= 0, "B1: read under a writer");
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
            Access::Write => {
                assert_eq!(self.0.swap(-1, Ordering::SeqCst), 0, "B1: written beside another");
                self.0.store(0, Ordering::SeqCst);
            }
        }
    }
}

/// Threads that each claim ranges of two cells and work on them; all of them end, in every interleaving.
fn model(threads: &'static [(Access, &'static [usize])]) {
    loom::model(move || {
        let busy = Busy::default();
        let cells = Arc::new([Cell::new(), Cell::new()]);
        let spawned: Vec<_> = threads
            .iter()
            .map(|(access, wanted)| {
                let (busy, cells) = (busy.clone(), Arc::clone(&cells));
                loom::thread::spawn(move || {
                    let ranges = wanted.iter().map(|at| at * 10..at * 10 + 10);
                    let claim = block_on(busy.claim(OPERATION, *access, ranges).expect("lawful"));
                    for at in *wanted {
                        cells[*at].work(*access);
                    }
                    drop(claim);
                })
            })
            .collect();
        for thread in spawned {
            thread.join().expect("no panic");
        }
        assert_eq!(busy.0.with(|table| table.held().len()), 0, "everything is free");
    });
}

#[test]
fn in_every_interleaving_writers_are_alone_and_all_get_their_turn() {
    model(&[(Access::Write, &[0, 1]), (Access::Write, &[1, 0])]);
    model(&[(Access::Read, &[0, 1]), (Access::Write, &[1])]);
    model(&[(Access::Read, &[0]), (Access::Read, &[0])]);
}

#[test]
fn in_every_interleaving_three_that_cross_each_other_end() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let busy = Busy::default();
        let cells = Arc::new([Cell::new(), Cell::new()]);
        let work = |access: Access, wanted: &'static [usize]| {
            let (busy, cells) = (busy.clone(), Arc::clone(&cells));
            move || {
                let ranges = wanted.iter().map(|at| at * 10..at * 10 + 10);
                let claim = block_on(busy.claim(OPERATION, access, ranges).expect("lawful"));
                wanted.iter().for_each(|at| cells[*at].work(access));
                drop(claim);
            }
        };
        let threads = [
            loom::thread::spawn(work(Access::Write, &[0, 1])),
            loom::thread::spawn(work(Access::Read, &[0])),
        ];
        work(Access::Write, &[1])();
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn in_every_interleaving_a_waiter_that_leaves_is_in_nobodys_way() {
    loom::model(|| {
        let busy = Busy::default();
        let first = block_on(busy.claim(OPERATION, Access::Write, once(0..10)).expect("lawful"));
        let leaving = busy.claim(OPERATION, Access::Write, once(0..10)).expect("lawful");
        let last = {
            let busy = busy.clone();
            loom::thread::spawn(move || {
                drop(block_on(
                    busy.claim(OPERATION, Access::Read, once(5..6)).expect("lawful"),
                ));
            })
        };
        let leaver = loom::thread::spawn(move || drop(leaving));
        drop(first);
        leaver.join().expect("no panic");
        last.join().expect("no panic");
    });
}

#[test]
fn what_is_refused_names_what_holds_the_memory() {
    loom::model(|| {
        let busy = Busy::default();
        let claim = |access, range: Range<usize>| busy.claim(OPERATION, access, [range]).expect("lawful");
        let held = block_on(claim(Access::Write, 100..200));
        let mut waiting = claim(Access::Read, 150..300);
        let poll = Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(poll, Poll::Pending));
        let error = waiting.refusal();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let facts =
            ["used_by", "which", "address", "bytes"].map(|fact| error.fact(fact).unwrap_or_default().to_owned());
        assert_eq!(facts, ["test", "writes", "0x96", "50"], "{error}");
        assert!(busy.check_readable(OPERATION, 0..101).is_err());
        busy.check_readable(OPERATION, 0..100).expect("beside it");
        let twice = busy
            .claim(OPERATION, Access::Write, [0..10, 9..20])
            .expect_err("overlap");
        assert_eq!(twice.kind(), ErrorKind::Invalid);
        drop(busy.claim(OPERATION, Access::Read, [0..10, 9..20]).expect("read twice"));
        drop(held);
        drop(block_on(waiting));
        busy.check_readable(OPERATION, 0..1000).expect("free");
        drop(block_on(claim(Access::Write, 7..7)));
    });
}

#[derive(Clone, Debug)]
enum Step {
    Ask(bool, Vec<(usize, usize)>),
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let ranges = prop::collection::vec((0_usize..24, 1_usize..6), 1..4);
    prop_oneof![
        3 => (any::<bool>(), ranges).prop_map(|(write, ranges)| Step::Ask(write, ranges)),
        2 => (0_usize..64).prop_map(Step::End),
    ]
}

/// A claim as the test models it: byte by byte.
struct Known {
    id: u64,
    write: bool,
    bytes: Vec<bool>,
}

impl Known {
    fn conflicts(&self, other: &Self) -> bool {
        (self.write || other.write) && self.bytes.iter().zip(&other.bytes).any(|(a, b)| *a && *b)
    }
}

proptest! {
    #[test]
    fn overlapping_writers_never_coexist_and_nobody_waits_for_nothing(steps in prop::collection::vec(step(), 0..60)) {
        let mut table = Table::default();
        // In the order in which they were requested.
        let mut open: Vec<Known> = Vec::new();
        for step in steps {
            match step {
                Step::Ask(write, ranges) => {
                    let mut bytes = vec![false; 32];
                    for (from, len) in &ranges {
                        bytes[*from..from + len].fill(true);
                    }
                    let access = if write { Access::Write } else { Access::Read };
                    let ranges = Ranges::new(ranges.into_iter().map(|(from, len)| from..from + len));
                    let id = table.ask(OPERATION, access, ranges);
                    open.push(Known { id, write, bytes });
                }
                Step::End(which) if !open.is_empty() => {
                    let ended = open.remove(which % open.len());
                    table.end(ended.id);
                }
                Step::End(_) => {}
            }
            // By the definition: a claim is held if it conflicts with no earlier one (B1 to B4).
            let held: Vec<u64> = open
                .iter()
                .enumerate()
                .filter(|(at, claim)| !open[..*at].iter().any(|earlier| earlier.conflicts(claim)))
                .map(|(_, claim)| claim.id)
                .collect();
            let mut sorted = held.clone();
            sorted.sort_unstable();
            prop_assert_eq!(table.held(), sorted);
            for (at, a) in open.iter().enumerate().filter(|(_, a)| held.contains(&a.id)) {
                for b in open[..at].iter().filter(|b| held.contains(&b.id)) {
                    prop_assert!(!a.conflicts(b), "B1");
                }
            }
        }
    }
}
