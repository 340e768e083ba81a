//! Ten thousand sequences of two hundred events, everything checked after every event.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use tensorhold_kvcache::plan::flaw::Flaw;

use crate::actions::Action;
use crate::cases;
use crate::world::World;

const EVENTS: usize = 200;

/// Nothing is known beforehand but what can happen: the world is its own reference. `FLAW` is one of [`Flaw::ALL`].
struct Sequences<const FLAW: usize>;

const SOUND: usize = usize::MAX;

impl<const FLAW: usize> ReferenceStateMachine for Sequences<FLAW> {
    type State = ();
    type Transition = Action;

    fn init_state() -> BoxedStrategy<()> {
        Just(()).boxed()
    }

    fn transitions(_: &()) -> BoxedStrategy<Action> {
        (0u8..100, any::<u32>())
            .prop_map(|(what, bits)| Action { what, bits })
            .boxed()
    }

    fn apply(_: (), _: &Action) {}
}

impl<const FLAW: usize> StateMachineTest for Sequences<FLAW> {
    type SystemUnderTest = World;
    type Reference = Self;

    fn init_test(_: &()) -> World {
        World::new(Flaw::ALL.get(FLAW).copied())
    }

    fn apply(mut world: World, _: &(), action: Action) -> World {
        world.act(action);
        world
    }

    fn teardown(mut world: World) {
        world.settle();
    }
}

fn run<const FLAW: usize>(sequences: u32, seed: u8) -> Result<(), String> {
    let config = Config {
        cases: sequences,
        failure_persistence: None,
        max_shrink_iters: if FLAW == SOUND { 5_000 } else { 500 },
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(config.clone(), rng);
    let strategy = <Sequences<FLAW> as ReferenceStateMachine>::sequential_strategy(EVENTS);
    runner
        .run(&strategy, |(start, actions, seen)| {
            Sequences::<FLAW>::test_sequential(config.clone(), start, actions, seen);
            Ok(())
        })
        .map_err(|failure| failure.to_string())
}

#[test]
fn ten_thousand_sequences_hold_and_reach_every_case() {
    if let Err(failure) = run::<SOUND>(10_000, 1) {
        panic!("{failure}");
    }
    let missed = cases::table();
    assert!(missed.is_empty(), "never reached: {missed:?}");
}

/// The same property, on a planner that is wrong in one way. It is not told in which.
fn is_caught<const FLAW: usize>() {
    let Err(failure) = run::<FLAW>(10_000, 1) else {
        panic!("{:?} was not caught", Flaw::ALL[FLAW])
    };
    println!(
        "{:?} was caught: {}",
        Flaw::ALL[FLAW],
        failure.lines().next().unwrap_or_default()
    );
}

#[test]
fn a_suffix_under_the_wrong_prefix_is_caught() {
    is_caught::<0>();
}

#[test]
fn hashes_of_another_match_are_caught() {
    is_caught::<1>();
}

#[test]
fn a_backup_that_is_not_pinned_is_caught() {
    is_caught::<2>();
}

#[test]
fn an_abort_that_frees_at_once_is_caught() {
    is_caught::<3>();
}

#[test]
fn the_largest_count_over_ranks_is_caught() {
    is_caught::<4>();
}

#[test]
fn a_failed_backup_that_persists_is_caught() {
    is_caught::<5>();
}

#[test]
fn an_anchor_that_is_not_pinned_is_caught() {
    is_caught::<6>();
}

#[test]
fn a_deadline_that_never_comes_is_caught() {
    is_caught::<7>();
}
