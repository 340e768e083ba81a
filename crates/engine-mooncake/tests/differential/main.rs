//! The differential test: the same seeded sequence of operations on the memory engine and on a real cluster.
//!
//! After every operation the two have answered alike, or the difference has a name ([`judge::Allowed`]) and the two are
//! brought to the same state again. Bytes that are read are also compared with a model: they must be those that were
//! put first. So tests on the memory engine say something about the real one.
//!
//! `TENSORHOLD_SEED=7` runs one seed again, `TENSORHOLD_SEED=24..96` runs as many as one likes.

#![allow(unreachable_pub, reason = "a program of its own: nothing is reachable from outside")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod defaults;
mod draw;
mod flawed;
mod judge;
mod model;
mod op;
mod plan;
mod pool;
mod profile;
mod run;
mod side;
mod sides;

use std::ops::Range;

use flawed::Flaw;
use judge::Allowed;
use profile::{PROFILES, Profile};
use run::{Difference, OPERATIONS, Tally, run};

/// The tests among which the seeds are divided, so that they can run side by side.
const GROUPS: u64 = 4;
/// The most operations, in percent, that may need an allowed difference; with more, the comparison would mean little.
const MOST_ALLOWED: u64 = 5;

/// The seeds to run: all profiles once, or what the environment says.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("TENSORHOLD_SEED") else {
        return 0..PROFILES;
    };
    let number = |text: &str| text.trim().parse::<u64>().expect("TENSORHOLD_SEED is 7 or 24..96");
    match text.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => number(&text)..number(&text) + 1,
    }
}

fn on_a_cluster(seed: u64, flaw: Option<Flaw>) -> Result<Tally, Box<Difference>> {
    let profile = Profile::of(seed);
    run(seed, &profile, &sides::memory(&profile, flaw), &sides::real(&profile))
}

/// Runs every fourth seed, each on a cluster of its own.
fn group(which: u64) -> Tally {
    let mut all = Tally::default();
    for seed in seeds().filter(|seed| seed % GROUPS == which) {
        match on_a_cluster(seed, None) {
            Ok(tally) => all.add(tally),
            Err(difference) => panic!("{difference}"),
        }
    }
    let least = all.seeds.len() * OPERATIONS;
    assert!(all.total() >= least as u64, "{all}");
    if all.seeds.len() > 1 {
        assert!(
            all.operations_allowed * 100 < all.total() * MOST_ALLOWED,
            "the two are said to agree, but too often only because a difference is allowed: {all}"
        );
    }
    all
}

#[test]
fn seeds_of_group_0() {
    println!("{}", group(0));
}

#[test]
fn seeds_of_group_1() {
    println!("{}", group(1));
}

#[test]
fn seeds_of_group_2() {
    println!("{}", group(2));
}

#[test]
fn seeds_of_group_3() {
    println!("{}", group(3));
}

/// The comparison itself adds no noise: an engine does not differ from itself, and needs no allowance for it.
#[test]
fn the_memory_engine_agrees_with_itself() {
    // One of each kind.
    for seed in [0, 1, 2, 4, 20] {
        let profile = Profile::of(seed);
        let tally = run(
            seed,
            &profile,
            &sides::memory(&profile, None),
            &sides::memory(&profile, None),
        );
        let tally = tally.unwrap_or_else(|difference| panic!("{difference}"));
        // With the machine's clock two memory engines may evict at different operations.
        let timing = tally.allowed.get(&Allowed::EvictionTiming).copied().unwrap_or(0);
        assert_eq!(tally.allowed.values().sum::<u64>(), timing, "{tally}");
    }
}

/// The comparison can fail: every flaw is found, in one of a few seeds.
#[test]
fn every_flaw_is_found() {
    const WITH_DEAD_WRITERS: [u64; 3] = [4, 9, 14];
    for flaw in Flaw::ALL {
        let difference = WITH_DEAD_WRITERS.into_iter().find_map(|seed| {
            let profile = Profile::of(seed);
            let (wrong, right) = (sides::memory(&profile, Some(flaw)), sides::memory(&profile, None));
            run(seed, &profile, &wrong, &right).err()
        });
        let found = difference.unwrap_or_else(|| panic!("{flaw:?} makes no difference"));
        println!(
            "{flaw:?}: seed {}, operation {}: {}",
            found.seed, found.operation, found.why
        );
    }
}

/// … and against the real engine, with all the information needed to run it again.
#[test]
fn a_flaw_is_found_against_the_real_engine() {
    for (seed, flaw) in [(1, Flaw::Overwrites), (3, Flaw::LoadsOtherLengths)] {
        let difference = on_a_cluster(seed, Some(flaw)).expect_err(&format!("{flaw:?} makes a difference"));
        let text = difference.to_string();
        println!("{flaw:?}: {text}\n");
        for part in [
            &format!("seed {seed}, operation "),
            "memory: ",
            "real: ",
            "TENSORHOLD_SEED=",
        ] {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
        assert_eq!(difference.last.len(), difference.operation.min(15), "{text}");
    }
}
