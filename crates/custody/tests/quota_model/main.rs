//! The quota's model, in sizes that every run of the tests can afford.
//!
//! All of it, completely: `cargo run --release -p tensorhold-custody --example quota_model`.

mod model;

use model::{Bug, MOST_IN_A_ROW, Scenario, explore, served_in_a_row, small};

/// Enough to come to the situations that matter; the example explores all.
const SOME: usize = 400_000;

fn assert_holds(scenario: &Scenario, most: Option<usize>) {
    let (broken, states) = explore(scenario, most);
    assert!(broken.is_empty(), "{broken:?} after {states} states");
}

#[test]
fn two_processes_with_two_waiters_each_and_a_crash_each() {
    assert_holds(&small(), Some(SOME));
}

#[test]
fn a_process_with_two_waiters_and_one_with_one_completely() {
    let scenario = Scenario {
        waiters: [2, 1],
        crashes: [true, false],
        ..small()
    };
    assert_holds(&scenario, None);
}

#[test]
fn replies_that_are_lost_and_callers_that_leave() {
    let scenario = Scenario {
        crashes: [false, false],
        lost_replies: 1,
        leaves: 1,
        ..small()
    };
    assert_holds(&scenario, Some(SOME));
}

#[test]
fn change_that_a_process_keeps_in_memory_is_lost_with_it() {
    let scenario = Scenario {
        budget: 2,
        bug: Some(Bug::ChangeKeptInMemory),
        ..small()
    };
    assert!(explore(&scenario, Some(SOME)).0.contains(&"LC5"));
}

#[test]
fn a_budget_that_is_returned_twice_is_noticed() {
    let scenario = Scenario {
        bug: Some(Bug::ReturnedTwice),
        ..small()
    };
    assert!(explore(&scenario, Some(SOME)).0.contains(&"LC5"));
}

#[test]
fn a_process_that_serves_its_own_for_ever_is_noticed() {
    let scenario = Scenario {
        waiters: [60, 1],
        at_once: [3, 1],
        crashes: [false, false],
        ..small()
    };
    let most = served_in_a_row(&scenario);
    assert!((1..=MOST_IN_A_ROW).contains(&most), "{most}");
    let flawed = Scenario {
        bug: Some(Bug::OwnWaitersForEver),
        ..scenario
    };
    assert!(served_in_a_row(&flawed) > MOST_IN_A_ROW);
}
