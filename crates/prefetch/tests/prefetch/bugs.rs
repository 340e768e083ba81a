//! Bugs that reviews found in another prefetcher, by name, and what else a stranger would try.

use std::time::Duration;

use tensorhold_core::Clock;
use tensorhold_engine::{Engine, EngineExt, Presence, PutOptions, PutOutcome};
use tensorhold_prefetch::{Outcome, PrefetchConfig, Priority, Route};

use crate::world::{LEN, SECOND, World, config, in_dram, pattern};

fn names(outcomes: &[Option<Outcome>]) -> Vec<&'static str> {
    outcomes
        .iter()
        .map(|outcome| outcome.as_ref().map_or("pending", Outcome::name))
        .collect()
}

#[test]
fn what_is_on_ssd_is_read_ahead_and_the_get_asks_the_engine_no_more() {
    let world = World::new(Route::Buffer);
    let keys = &world.keys[..3];
    let (found, prefetch) = world
        .engine
        .exists_and_prefetch(keys, Priority::Guess, SECOND)
        .expect("lawful");
    assert!(
        found
            .iter()
            .all(|presence| matches!(presence, Presence::Present { dram: 0, ssd: 1, .. }))
    );
    assert_eq!(names(&prefetch.outcomes()), ["pending"; 3], "exists answers at once");
    world.steps();
    assert_eq!(names(&prefetch.outcomes()), ["resident"; 3]);
    let before = world.read_and_promoted()[0];
    for (n, key) in keys.iter().enumerate() {
        assert_eq!(world.get(key), Some(pattern(n)));
    }
    assert_eq!(world.read_and_promoted()[0], before, "from the buffer");
    assert_eq!(world.get(&keys[0]), Some(pattern(0)));
    assert_eq!(world.read_and_promoted()[0], before + 1, "the first get took it out");
    let stats = world.engine.stats();
    assert_eq!((stats.sources.local, stats.buffered, stats.buffer_bytes), (3, 0, 0));
}

#[test]
fn a_key_whose_attempt_could_not_be_begun_is_not_stuck() {
    for route in [Route::Buffer, Route::Promote] {
        let world = World::new(route);
        world.observed.fail_next(1);
        let prefetch = world.engine.prefetch(&world.keys[..1], Priority::Guess);
        world.steps();
        assert_eq!(names(&prefetch.outcomes()), ["failed"], "{route:?}");
        let again = world.engine.prefetch(&world.keys[..1], Priority::Guess);
        assert_eq!(
            names(&again.outcomes()),
            ["failed"],
            "remembered for a while, {route:?}"
        );
        world.clock.advance(world.config.remember);
        let again = world.engine.prefetch(&world.keys[..1], Priority::Guess);
        for _ in 0..10 {
            world.steps();
            world.clock.advance(SECOND / 4);
        }
        assert_eq!(names(&again.outcomes()), ["resident"], "{route:?}");
    }
}

#[test]
fn time_does_not_erase_what_is_in_flight() {
    let world = World::with(PrefetchConfig {
        within: 60 * SECOND,
        ..config(Route::Promote)
    });
    let first = world.engine.prefetch(&world.keys[..1], Priority::Guess);
    world.engine.step();
    assert_eq!(world.read_and_promoted()[1], 1);
    // No heartbeat is seen meanwhile: nobody steps.
    world.clock.advance(10 * world.config.remember);
    let second = world.engine.prefetch(&world.keys[..1], Priority::Guess);
    assert_eq!(names(&second.outcomes()), ["pending"], "it joined the first");
    world.steps();
    assert_eq!(names(&first.outcomes()), ["resident"]);
    assert_eq!(names(&second.outcomes()), ["resident"]);
    assert_eq!(world.engine.stats().outcomes.begun, 1, "one attempt for both");
}

#[test]
fn a_duplicate_trigger_joins_what_is_in_flight() {
    let world = World::new(Route::Promote);
    let handles: Vec<_> = (0..5)
        .map(|_| {
            let handle = world.engine.prefetch(&world.keys[..2], Priority::Guess);
            world.engine.step();
            handle
        })
        .collect();
    assert_eq!(world.engine.stats().outcomes.begun, 2);
    for _ in 0..4 {
        world.clock.advance(SECOND / 4);
        world.steps();
    }
    assert!(
        handles
            .iter()
            .all(|handle| names(&handle.outcomes()) == ["resident"; 2])
    );
    let counts = world.engine.stats().outcomes;
    assert_eq!((counts.asked, counts.ended()), (10, 10));
}

#[test]
fn progress_is_looked_up_for_all_keys_at_once_and_not_every_millisecond() {
    let world = World::with(PrefetchConfig {
        batch_objects: 16,
        queue: 64,
        ..config(Route::Promote)
    });
    let prefetch = world.engine.prefetch(&world.keys[..12], Priority::Wanted);
    world.steps();
    let begin = world.clock.now();
    while prefetch.progress().pending > 0 {
        world.clock.advance(Duration::from_millis(1));
        world.steps();
        assert!(
            world.clock.now().since(begin) < 10 * SECOND,
            "{:?}",
            prefetch.progress()
        );
    }
    let looks = world.probes().len();
    let millis = world.clock.now().since(begin).as_millis();
    assert!(looks as u128 <= millis / 25 + 1, "{looks} requests in {millis} ms");
}

#[test]
fn what_was_promoted_has_a_lease() {
    let world = World::new(Route::Promote);
    let prefetch = world.engine.prefetch(&world.keys[..1], Priority::Guess);
    world.engine.step();
    // Longer than the lease that the hint itself granted.
    world.clock.advance(2 * SECOND);
    assert!(!world.cluster.leased(&world.keys[0]));
    world.steps();
    assert_eq!(names(&prefetch.outcomes()), ["resident"]);
    assert!(world.cluster.leased(&world.keys[0]));
    assert!(in_dram(
        &world.engine.probe(&world.keys[..1], SECOND).expect("lawful")[0]
    ));
}

#[test]
fn a_full_buffer_refuses_and_cools_down_and_evicts_nothing_that_is_kept() {
    let world = World::new(Route::Buffer);
    let first = world.engine.prefetch(&world.keys[..4], Priority::Guess);
    world.steps();
    assert_eq!(names(&first.outcomes()), ["resident"; 4], "the buffer is full now");
    let second = world.engine.prefetch(&world.keys[4..10], Priority::Guess);
    world.steps();
    assert_eq!(names(&second.outcomes()), ["refused"; 6]);
    let (gets, probes) = (world.read_and_promoted()[0], world.probes().len());
    let third = world.engine.prefetch(&world.keys[10..12], Priority::Wanted);
    world.steps();
    assert_eq!(names(&third.outcomes()), ["refused"; 2], "cooling down");
    assert_eq!((world.read_and_promoted()[0], world.probes().len()), (gets, probes));
    assert!(world.keys[..4].iter().all(|key| world.engine.is_local(key)));
    world.clock.advance(world.config.keep);
    let fourth = world.engine.prefetch(&world.keys[4..8], Priority::Guess);
    world.steps();
    assert_eq!(
        names(&fourth.outcomes()),
        ["resident"; 4],
        "the old ones had their time"
    );
    assert_eq!(world.engine.stats().buffer_bytes, 4 * LEN);
}

#[test]
fn a_full_cluster_refuses_promotions() {
    let world = World::with(PrefetchConfig {
        dram_below: 0.0,
        ..config(Route::Promote)
    });
    let prefetch = world.engine.prefetch(&world.keys[..5], Priority::Guess);
    world.steps();
    assert_eq!(names(&prefetch.outcomes()), ["refused"; 5]);
    assert_eq!(world.read_and_promoted()[1], 0);
}

#[test]
fn a_request_that_waits_goes_before_guesses_and_takes_the_place_of_one() {
    let world = World::new(Route::Buffer);
    let guesses = world.engine.prefetch(&world.keys[..12], Priority::Guess);
    let more = world.engine.prefetch(&world.keys[12..13], Priority::Guess);
    assert_eq!(names(&more.outcomes()), ["refused"], "the queue is full");
    let wanted = world.engine.prefetch(&world.keys[13..15], Priority::Wanted);
    world.engine.step();
    assert_eq!(names(&wanted.outcomes()), ["resident"; 2]);
    let outcomes = names(&guesses.outcomes());
    assert_eq!(
        (outcomes[0], outcomes[1], outcomes[11], outcomes[10]),
        ("resident", "pending", "refused", "refused")
    );
}

#[test]
fn what_is_not_begun_in_time_expires_and_what_is_cancelled_ends_at_once() {
    let world = World::new(Route::Buffer);
    let old = world.engine.prefetch(&world.keys[..1], Priority::Guess);
    world.clock.advance(world.config.begin_within);
    let shared = world.engine.prefetch(&world.keys[1..2], Priority::Guess);
    let both = world.engine.prefetch(&world.keys[1..3], Priority::Guess);
    assert_eq!(names(&old.outcomes()), ["expired"]);
    both.cancel();
    assert_eq!(names(&both.outcomes()), ["cancelled", "cancelled"]);
    world.steps();
    assert_eq!(names(&shared.outcomes()), ["resident"], "another caller wanted it");
}

#[test]
fn what_is_removed_while_it_is_read_ahead_is_not_kept() {
    let world = World::new(Route::Promote);
    let prefetch = world.engine.prefetch(&world.keys[..1], Priority::Guess);
    world.engine.step();
    world.engine.remove(&world.keys[..1], SECOND).expect("lawful");
    world.clock.advance(SECOND);
    world.steps();
    assert_eq!(names(&prefetch.outcomes()), ["absent"]);
    assert_eq!(world.get(&world.keys[0]), None);
}

#[test]
fn closing_ends_everything() {
    for route in [Route::Buffer, Route::Promote] {
        let world = World::new(route);
        let prefetch = world.engine.prefetch(&world.keys[..8], Priority::Guess);
        world.engine.step();
        world.engine.close();
        assert_eq!(prefetch.progress().pending, 0, "{:?}", prefetch.progress());
        let late = world.engine.prefetch(&world.keys[..1], Priority::Guess);
        assert_eq!(names(&late.outcomes()), ["cancelled"]);
        assert_eq!(world.engine.stats().buffer_bytes, 0);
        assert_eq!(world.get(&world.keys[0]), Some(pattern(0)), "gets go on to work");
    }
}

#[test]
fn a_get_that_does_not_wait_leaves_no_second_copy() {
    let world = World::new(Route::Buffer);
    let waiting = world.engine.prefetch(&world.keys[..1], Priority::Guess);
    assert_eq!(world.get(&world.keys[0]), Some(pattern(0)));
    assert_eq!(
        names(&waiting.outcomes()),
        ["cancelled"],
        "not begun, and of no use any more"
    );
    world.steps();
    assert_eq!(world.engine.stats().buffered, 0);
}

#[test]
fn one_object_that_never_fits_does_not_stop_the_others() {
    let world = World::with(PrefetchConfig {
        buffer_bytes: LEN - 1,
        ..config(Route::Buffer)
    });
    let prefetch = world.engine.prefetch(&world.keys[..2], Priority::Guess);
    world.steps();
    assert_eq!(names(&prefetch.outcomes()), ["failed"; 2]);
    let more = world.engine.prefetch(&world.keys[2..3], Priority::Guess);
    assert_eq!(names(&more.outcomes()), ["pending"], "no cool-down");
}

/// Another program chose the key, and writes other bytes under it when the sample that had adopted the object is freed.
#[test]
fn what_another_program_named_is_never_served_as_it_was() {
    let world = World::named("theirs", config(Route::Buffer));
    let key = world.keys[0].clone();
    let (_, prefetch) = world
        .engine
        .exists_and_prefetch(std::slice::from_ref(&key), Priority::Guess, SECOND)
        .expect("lawful");
    let without_a_probe = world.engine.prefetch(&world.keys[1..2], Priority::Guess);
    world.steps();
    let other = world.cluster.connect();
    other.remove(std::slice::from_ref(&key), SECOND).expect("removed");
    let region = other.allocate(LEN, SECOND).expect("memory");
    region.whole().write(0, &pattern(77)).expect("fits");
    let put = other.put_one(&key, &region.whole(), &PutOptions::default(), SECOND);
    assert!(matches!(put.expect("lawful"), PutOutcome::Stored));
    assert!(world.get(&key) == Some(pattern(77)), "the bytes that are there now");
    assert_eq!(names(&prefetch.outcomes()), ["refused"]);
    assert_eq!(names(&without_a_probe.outcomes()), ["refused"]);
    assert_eq!(world.engine.stats().buffered, 0);

    // An engine that promotes it has one copy, which is written anew.
    let world = World::named("theirs", config(Route::Promote));
    let prefetch = world.engine.prefetch(&world.keys[..1], Priority::Guess);
    world.steps();
    for _ in 0..100 {
        world.clock.advance(SECOND / 20);
        world.steps();
    }
    assert_eq!(names(&prefetch.outcomes()), ["resident"]);
}
