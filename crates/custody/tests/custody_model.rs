//! The model of the custody code, in sizes that every run of the tests can afford.
//!
//! The whole of it, and the big one (two producers, two consumers, two samples, one crash each):
//! `cargo run --release -p tensorhold-custody --example custody_model`.

#![allow(clippy::panic, clippy::print_stdout, reason = "helpers of tests fail loudly")]

mod model;

use std::collections::HashSet;

use model::reach::Reach;
use model::runs;
use model::steps::Custody;
use model::{Action, Left, Scenario, World};
use stateright::Model;
use tensorhold_custody::invariants::{LC3, LC4, LC5};

/// Prints what was explored and asserts that nothing is broken and nothing was missed.
fn assert_holds(scenario: Scenario, most: Option<usize>) {
    let name = scenario.name;
    let outcome = runs::explore(scenario, most, false, 2);
    println!("{name}: {} unique states, depth {}", outcome.unique, outcome.depth);
    assert!(outcome.bad().is_empty(), "{name}: {:#?}", outcome.bad());
    assert_eq!(outcome.complete, most.is_none());
}

#[test]
fn a_lease_that_ran_out_is_delivered_again_and_its_first_holder_is_fenced() {
    let left = |left| Left {
        faults: 0,
        failing_removes: 0,
        sweeper_deaths: 0,
        crashes: 0,
        ..left
    };
    let reaches = &[
        Reach::Consumed,
        Reach::DeadLetter,
        Reach::Abandoned,
        Reach::Orphan,
        Reach::DoubleFree,
        Reach::StaleReader,
        Reach::StaleAck,
    ];
    assert_holds(runs::redelivery().with_left(left).reaching(reaches), None);
}

#[test]
fn a_take_that_is_undone_costs_no_attempt_however_late_the_request_comes() {
    let left = |left| Left {
        untakes: 1,
        failing_removes: 0,
        sweeper_deaths: 0,
        crashes: 0,
        ..left
    };
    // With one attempt, a count that is one too high makes a dead letter of a sample that no consumer saw.
    let mut scenario = runs::redelivery()
        .with_left(left)
        .reaching(&[Reach::Consumed, Reach::Undone]);
    scenario.publication.max_attempts = 1;
    assert_holds(scenario, None);
}

#[test]
fn requests_that_come_late_twice_or_never_do_no_harm() {
    let left = |left| Left {
        ticks: 0,
        expiries: 0,
        failing_removes: 0,
        sweeper_deaths: 0,
        ..left
    };
    let reaches = &[Reach::Consumed, Reach::Abandoned, Reach::Orphan, Reach::DoubleFree];
    assert_holds(runs::redelivery().with_left(left).reaching(reaches), None);
}

#[test]
fn a_sweeper_that_dies_or_fails_leaves_the_rest_to_the_next() {
    let left = |left| Left {
        ticks: 0,
        faults: 0,
        expiries: 0,
        ..left
    };
    let reaches = &[Reach::Consumed, Reach::DoubleFree, Reach::FailedFree];
    assert_holds(runs::redelivery().with_left(left).reaching(reaches), None);
}

#[test]
fn a_later_commit_takes_the_place_of_an_earlier_one_under_its_readers() {
    let left = |left| Left {
        ticks: 0,
        crashes: 0,
        ..left
    };
    let reaches = &[Reach::Superseded, Reach::RetiredReader, Reach::Consumed];
    assert_holds(runs::supersession().with_left(left).reaching(reaches), None);
}

#[test]
fn a_producer_that_lost_its_reservation_commits_nothing() {
    let mut scenario = runs::supersession().reaching(&[Reach::Abandoned, Reach::Orphan, Reach::StaleCommit]);
    scenario.roles.truncate(2);
    assert_holds(scenario, None);
}

#[test]
fn two_groups_each_use_a_sample_once_whatever_is_lost() {
    let left = |left| Left {
        ticks: 1,
        expiries: 0,
        ..left
    };
    let reaches = &[Reach::Consumed, Reach::Aborted, Reach::Lost];
    assert_holds(runs::groups().with_left(left).reaching(reaches), None);
}

#[test]
fn a_retained_sample_serves_another_epoch() {
    let left = |left| Left { faults: 0, ..left };
    let reaches = &[Reach::Aborted, Reach::RetiredReader, Reach::StaleReader];
    assert_holds(runs::epochs().with_left(left).reaching(reaches), None);
}

#[test]
fn quota_that_come_back_let_a_waiting_producer_go_on() {
    let left = |left| Left {
        faults: 0,
        crashes: 1,
        failing_removes: 0,
        ..left
    };
    let reaches = &[Reach::Waiting, Reach::Consumed, Reach::DoubleFree];
    assert_holds(runs::pressure().with_left(left).reaching(reaches), None);
}

#[test]
fn the_first_states_of_a_world_where_everything_goes_wrong_are_sound() {
    assert_holds(runs::everything(), Some(50_000));
}

/// All states that can be reached by `next`.
fn reachable(model: &Custody, next: impl Fn(&World, Action) -> Option<World>) -> HashSet<World> {
    let mut seen: HashSet<World> = model.init_states().into_iter().collect();
    let mut open: Vec<World> = seen.iter().cloned().collect();
    let mut actions = Vec::new();
    while let Some(world) = open.pop() {
        model.actions(&world, &mut actions);
        for world in actions.drain(..).filter_map(|action| next(&world, action)) {
            if seen.insert(world.clone()) {
                open.push(world);
            }
        }
    }
    seen
}

/// Asserts that merging worlds that are alike neither hides a world nor makes one up.
fn assert_merging_is_exact(sweepers: usize, left: Left) {
    let mut scenario = runs::redelivery().with_left(|_| left);
    scenario.publication.max_attempts = 1;
    scenario.sweepers = sweepers;
    let model = Custody(scenario);
    let plain = reachable(&model, |world, action| model.plain_step(world, action));
    let merged = reachable(&model, |world, action| model.next_state(world, action));
    let folded: HashSet<World> = plain
        .iter()
        .map(|world| {
            let mut world = world.clone();
            world.normalise(&model.0);
            world
        })
        .collect();
    println!("{} plain states are {} merged ones", plain.len(), merged.len());
    assert!(plain.len() > 2 * merged.len());
    let missed: Vec<_> = folded.difference(&merged).take(1).collect();
    let made_up: Vec<_> = merged.difference(&folded).take(1).collect();
    assert!(
        missed.is_empty() && made_up.is_empty(),
        "missed {missed:#?}\nmade up {made_up:#?}"
    );
}

#[test]
fn worlds_that_are_taken_for_alike_lead_to_the_same_worlds() {
    let left = Left {
        ticks: 1,
        crashes: 1,
        ..Left::default()
    };
    assert_merging_is_exact(1, Left { faults: 1, ..left });
    assert_merging_is_exact(2, left);
}

/// Explores until something breaks, and asserts that it is this.
fn assert_found(scenario: Scenario, property: &str) {
    let name = scenario.name;
    let outcome = runs::explore(scenario, None, true, 1);
    let broken: Vec<_> = outcome
        .verdicts
        .iter()
        .filter(|verdict| verdict.property == property && !verdict.good)
        .collect();
    let [verdict] = broken.as_slice() else {
        panic!("{name}: {property} was not found broken: {:#?}", outcome.verdicts);
    };
    let path = verdict.path.as_deref().unwrap_or_default();
    println!(
        "{name}: {property} broken in {} steps, after {} states: {path:?}",
        path.len(),
        outcome.unique
    );
    assert!(!path.is_empty());
}

#[test]
fn bug_objects_freed_before_readers_end_is_found() {
    let mut scenario = runs::supersession();
    scenario.bugs.free_before_readers_end = true;
    assert_found(scenario, LC3.name());
}

#[test]
fn bug_token_not_checked_on_ack_is_found() {
    let mut scenario = runs::redelivery();
    scenario.bugs.token_not_checked_on_ack = true;
    assert_found(scenario, LC4.name());
}

#[test]
fn bug_quota_returned_twice_is_found() {
    let mut scenario = runs::pressure();
    scenario.bugs.quota_returned_twice = true;
    assert_found(scenario, LC5.name());
}
