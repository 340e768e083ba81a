//! Processes that die, engines that hang, are late or lie: never wrong bytes, and nothing stays behind.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::raw::keys_of;
use common::*;
use tensorhold_core::{Clock, ErrorKind, Retry, SystemClock};
use tensorhold_engine::{EngineExt, PutOptions};
use tensorhold_features::{FeatureConfig, FeatureStore, Residency, Stored, Wanted};
use tensorhold_index::store::memory::Fate;

async fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let begun = clock.now();
    while !ready() {
        assert!(clock.now().since(begun) < WITHIN, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A store on an engine that can be held up.
async fn held_up(world: &World) -> (Arc<HeldUp>, FeatureStore) {
    let engine = HeldUp::new(world.cluster.connect());
    let store = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    (engine, store)
}

/// Puts other bytes of the same or another length under a committed object's key.
fn tamper(world: &World, stored: &Stored, object: usize, bytes: &[u8]) {
    let engine = world.cluster.connect();
    let key = keys_of(world, stored)[object].clone();
    engine.remove_one(&key, WITHIN).expect("removed");
    if !bytes.is_empty() {
        let region = engine.allocate(bytes.len(), WITHIN).expect("memory");
        region.whole().write(0, bytes).expect("fits");
        engine
            .put_one(&key, &region.whole(), &PutOptions::default(), WITHIN)
            .expect("put");
    }
}

#[tokio::test]
async fn altered_and_shortened_bytes_are_corrupt() {
    let world = World::new();
    let store = world.open().await;
    for (sample, bytes) in [("run/1", pattern(4096, 99)), ("run/2", pattern(4095, 2))] {
        let stored = put(&store, item(sample, &[100, 10_000], 1)).await;
        let lease = read(&store, &stored.reference).await;
        tamper(&world, &stored, 2, &bytes);
        let error = get_all(&store, &lease).await.expect_err("corrupt");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.fact("key").is_some_and(|key| key.ends_with("/t1/1")), "{error}");
        let rest = store
            .get(&lease, Wanted::Names(vec![name("t0")]), WITHIN)
            .await
            .expect("the rest");
        assert_eq!(rest[0].to_vec(), pattern(100, 1));
        drop(rest);
        assert_eq!(store.pool().usage().lent, 0);
    }
    assert_eq!(store.health(WITHIN).await.counters.corrupt, 2);
}

#[tokio::test]
async fn bytes_that_are_gone_mean_that_the_sample_is_lost() {
    let world = World::new();
    let store = world.open().await;
    // Only the first of them looks long enough to say that it is lost.
    let patient = FeatureConfig {
        loss_grace: Duration::from_secs(3600),
        ..world.config()
    };
    let other = world
        .open_on(world.cluster.connect(), world.txn_store.client(), patient)
        .await;
    let stored = put(&store, item("run/1", &[100, 10_000], 1)).await;
    let (mine, theirs) = (take(&store, &stored).await, read(&other, &stored.reference).await);
    tamper(&world, &stored, 1, &[]);
    let clock = SystemClock::new();
    // The first miss begins the grace.
    let begun = clock.now();
    let error = get_all(&store, &mine).await.expect_err("missing");
    assert_eq!(
        (error.kind(), error.fact("reason")),
        (ErrorKind::Unavailable, Some("missing")),
        "{error}"
    );
    let error = get_all(&other, &theirs).await.expect_err("missing");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "one miss is no verdict: {error}");
    assert_eq!(store.health(WITHIN).await.suspected, 1);
    until_lost(&store, &mine).await;
    let took = clock.now().since(begun);
    assert!(took >= world.config().loss_grace, "{took:?}");
    assert_eq!(store.health(WITHIN).await.counters.lost, 1);
    assert!(
        store.find(&[id("run/1")], WITHIN).await.expect("found")[0].is_none(),
        "nobody takes it any more"
    );
    let fenced = get_all(&other, &theirs).await.expect_err("retired");
    assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced}");
    drop((mine, theirs));
    store.drain(WITHIN).await.expect("let go of");
    other.drain(WITHIN).await.expect("let go of");
    world.outlive_lost(&store).await;
    world.assert_empty();
}

#[tokio::test]
async fn a_session_that_ended_fences_what_it_held_and_nothing_else() {
    let world = World::new();
    let (store, other) = (world.open().await, world.open().await);
    let stored = put(&store, item("run/1", &[5000], 1)).await;
    let lease = take(&store, &stored).await;
    world.end_session(&store).await;
    let error = get_all(&store, &lease).await.expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    let error = ack(&store, &lease).await.expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");

    // New operations go on in a new session.
    put(&store, item("run/2", &[5000], 2)).await;
    let health = store.health(WITHIN).await;
    assert_eq!(health.sessions_opened, 2);
    let error = ack(&store, &lease).await.expect_err("fenced for ever");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    other.sweep(WITHIN).await.expect("swept");
    let lease = take(&other, &stored).await;
    check_tensors(&get_all(&other, &lease).await.expect("tensors"), &[5000], 1);
}

#[tokio::test]
async fn bytes_that_went_with_the_lease_are_fenced_and_not_lost() {
    let world = World::new();
    let (engine, reader) = held_up(&world).await;
    let other = world.open().await;
    let stored = put(&other, item("run/1", &[10_000], 1)).await;
    let lease = read(&reader, &stored.reference).await;
    // From now on the pool has memory, so the next call is that for the bytes.
    get_all(&reader, &lease).await.expect("tensors");
    engine.set(Mode::HangBeforeGet);
    let getting = tokio::spawn({
        let (reader, lease) = (reader.clone(), lease.clone());
        async move { get_all(&reader, &lease).await }
    });
    // The lease holds when it is asked for the first time, and ends before the bytes move.
    while reader.health(WITHIN).await.calls == 0 {
        tokio::task::yield_now().await;
    }
    world.end_session(&reader).await;
    other.sweep(WITHIN).await.expect("swept");
    one(other.abort(&[id("run/1")], WITHIN).await).expect("aborted");
    other.drain(WITHIN).await.expect("freed");
    assert_eq!(world.cluster.objects(), []);
    engine.let_go();
    let error = getting.await.expect("no panic").expect_err("it went");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(reader.health(WITHIN).await.counters.lost, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_dies_half_way_leaves_nothing() {
    let world = World::new();
    let (engine, producer) = held_up(&world).await;
    let sweeper = world.open().await;
    engine.set(Mode::HangAfterPut);
    let writing = tokio::spawn({
        let producer = producer.clone();
        async move { producer.put(item("run/1", &[10_000], 1), WITHIN).await }
    });
    until("the objects are written", || world.cluster.objects().len() == 3).await;
    world.end_session(&producer).await;
    let swept = sweeper.sweep(WITHIN).await.expect("swept");
    assert_eq!((swept.taken_back.abandoned, swept.freed), (1, 1), "{swept:?}");
    assert_eq!(world.cluster.objects(), []);

    // It was not dead, only silent: it finds out, and its sample stays away.
    engine.let_go();
    let error = writing.await.expect("no panic").expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    producer.drain(WITHIN).await.expect("cleared up");
    world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_is_late_is_undone_when_it_has_landed() {
    let world = World::new();
    let (engine, store) = held_up(&world).await;
    engine.set(Mode::LatePut);
    let error = store
        .put(item("run/1", &[10_000, 5], 1), WITHIN)
        .await
        .expect_err("out of time");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let left = store.drain(SOON).await.expect_err("the engine has not let go");
    assert_eq!(
        (left.kind(), left.fact("held_by_engine")),
        (ErrorKind::Timeout, Some("1")),
        "{left}"
    );
    // Meanwhile no sweep may take the reservation for done, and no other put may take its place.
    world.open().await.sweep(WITHIN).await.expect("swept");
    let conflict = world
        .open()
        .await
        .put(item("run/1", &[1], 1), WITHIN)
        .await
        .expect_err("taken");
    assert_eq!(conflict.kind(), ErrorKind::Conflict, "{conflict}");
    assert_eq!(store.health(WITHIN).await.pending_frees, 1);

    engine.let_go();
    store.drain(WITHIN).await.expect("undone");
    world.assert_empty();
    put(&store, item("run/1", &[10_000, 5], 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_a_late_get_may_write_to_is_not_used_again() {
    let world = World::new();
    let (engine, store) = held_up(&world).await;
    let stored = put(&store, item("run/1", &[4000], 1)).await;
    let lease = read(&store, &stored.reference).await;
    engine.set(Mode::LateGet);
    let error = get_all(&store, &lease).await.expect_err("out of time");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(store.pool().usage().lent, 4096, "the engine still has it");
    let mine = store.pool().buffer(4096, WITHIN).await.expect("another buffer");
    mine.write(0, &[7; 4096]).expect("fits");
    engine.let_go();
    assert_eq!(mine.to_vec(), [7; 4096], "nobody else wrote to it");
    drop(mine);
    assert_eq!(store.pool().usage().lent, 0);
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[4000], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_that_is_aborted_while_it_is_put_is_never_seen() {
    let world = World::new();
    let (engine, store) = held_up(&world).await;
    engine.set(Mode::HangAfterPut);
    let writing = tokio::spawn({
        let store = store.clone();
        async move { store.put(item("run/1", &[10_000], 1), WITHIN).await }
    });
    until("the objects are written", || world.cluster.objects().len() == 3).await;
    one(store.abort(&[id("run/1")], WITHIN).await).expect("given up");
    engine.let_go();
    let error = writing.await.expect("no panic").expect_err("given up");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    store.drain(WITHIN).await.expect("cleared up");
    world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_goes_away_leaves_nothing_half_done() {
    let world = World::new();
    let (engine, store) = held_up(&world).await;
    engine.set(Mode::HangAfterPut);
    let caller = tokio::spawn({
        let store = store.clone();
        async move { store.put(item("run/1", &[10_000], 1), WITHIN).await }
    });
    until("the objects are written", || world.cluster.objects().len() == 3).await;
    caller.abort();
    assert!(caller.await.is_err());
    engine.let_go();
    store.close(WITHIN).await.expect("closed");
    world.assert_empty();
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_out() {
    for fate in [Fate::Applied, Fate::NotApplied, Fate::Later] {
        let world = World::new();
        let txn_store = world.txn_store.client();
        let store = world
            .open_on(world.cluster.connect(), txn_store.clone(), world.config())
            .await;
        txn_store.faults().spare(); // the reservation
        txn_store.faults().lose_reply(fate);
        let stored = put(&store, item("run/1", &[10_000], 1)).await;
        txn_store.land();
        let lease = take(&store, &stored).await;
        check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[10_000], 1);
        ack(&store, &lease).await.expect("acked");
        store.drain(WITHIN).await.expect("freed");
        world.assert_empty();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_is_full_at_the_commit_keeps_no_reservation() {
    let world = World::new();
    let txn_store = world.txn_store.client();
    let engine = HeldUp::new(world.cluster.connect());
    let store = world.open_on(engine.clone(), txn_store.clone(), world.config()).await;
    engine.set(Mode::HangAfterPut);
    let writing = tokio::spawn({
        let store = store.clone();
        async move { store.put(item("run/1", &[10_000], 1), WITHIN).await }
    });
    until("the objects are written", || world.cluster.objects().len() == 3).await;
    for _ in 0..2 {
        // The commit, and giving the reservation up.
        txn_store.faults().lose_reply(Fate::Full { applied: false });
    }
    engine.set(Mode::Pass);
    engine.let_go();
    let error = writing.await.expect("no panic").expect_err("full");
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Capacity, Retry::Safe),
        "{error}"
    );
    store.drain(WITHIN).await.expect("cleared up");
    world.assert_empty();
    put(&store, item("run/1", &[10_000], 2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_falls_silent_at_the_commit_loses_and_leaks_nothing() {
    let world = World::new();
    let txn_store = world.txn_store.client();
    let engine = HeldUp::new(world.cluster.connect());
    let config = FeatureConfig {
        call_within: Duration::from_millis(200),
        ..world.config()
    };
    let store = world.open_on(engine.clone(), txn_store.clone(), config).await;
    engine.set(Mode::HangAfterPut);
    let writing = tokio::spawn({
        let store = store.clone();
        async move { store.put(item("run/1", &[10_000], 1), Duration::from_millis(600)).await }
    });
    until("the objects are written", || world.cluster.objects().len() == 3).await;
    txn_store.faults().outage(1_000_000);
    engine.let_go();
    let error = writing.await.expect("no panic").expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(
        world.cluster.objects().len(),
        3,
        "nothing is removed that may be committed, or is still reserved"
    );
    txn_store.faults().outage(0);
    store.drain(WITHIN).await.expect("cleared up");
    world.assert_empty();
}

#[tokio::test]
async fn what_cannot_be_removed_stays_recorded_and_is_told() {
    let world = World::new();
    let store = world.open().await;
    let stored = put(&store, item("run/1", &[100], 1)).await;
    let lease = take(&store, &stored).await;
    // Its object is replaced by a put that never ended, which the engine does not remove.
    let key = one(keys_of(&world, &stored));
    world.cluster.connect().remove_one(&key, WITHIN).expect("removed");
    assert!(world.cluster.abandon_put(&key, 100));
    ack(&store, &lease).await.expect("acked");
    let left = store.drain(SOON).await.expect_err("it stays");
    assert_eq!(
        (left.kind(), left.fact("left"), left.fact("sample")),
        (ErrorKind::Timeout, Some("1"), Some("run/1"))
    );
    let swept = store.sweep(WITHIN).await.expect("swept");
    assert_eq!((swept.freed, swept.failed), (0, 1));
    assert!(!world.records().is_empty(), "it is recorded");
    assert!(store.health(WITHIN).await.counters.failed_frees >= 2);
    world.cluster.restart_master(); // it knows nothing of that put any more
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_outlasts_the_lease_renews_it() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let config = FeatureConfig {
        lease_ticks: 4,
        ..world.config()
    };
    let store = world.open_on(engine.clone(), world.txn_store.client(), config).await;
    let other = world.open().await;
    let stored = put(&store, item("run/1", &[5000], 1)).await;
    let lease = take(&store, &stored).await;
    engine.set(Mode::HangBeforeGet);
    let getting = tokio::spawn({
        let (store, lease) = (store.clone(), lease.clone());
        async move { get_all(&store, &lease).await }
    });
    // Sixteen ticks, four times as long as the lease and its grace.
    let clock = SystemClock::new();
    let begun = clock.now();
    while clock.now().since(begun) < 16 * world.index_config.tick {
        other.sweep(WITHIN).await.expect("swept");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    engine.let_go();
    check_tensors(&getting.await.expect("no panic").expect("tensors"), &[5000], 1);
    // Without a transfer nothing renews it.
    let begun = clock.now();
    while clock.now().since(begun) < 16 * world.index_config.tick {
        other.sweep(WITHIN).await.expect("swept");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let error = get_all(&store, &lease).await.expect_err("it ran out");
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Fenced, Retry::Never),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_sweeps_by_itself() {
    let world = World::new();
    let config = FeatureConfig {
        sweep_every: Some(Duration::from_millis(20)),
        ..world.config()
    };
    let sweeper = world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await;
    let producer = world.open().await;
    let stored = put(&producer, item("run/1", &[5000], 1)).await;
    let lease = take(&producer, &stored).await;
    world.end_session(&producer).await;
    std::mem::forget(lease);
    let again = one(sweeper
        .lease_next(&trainers(), 1, WITHIN)
        .await
        .expect("taken back from the dead"));
    ack(&sweeper, &again).await.expect("acked");
    sweeper.close(WITHIN).await.expect("closed");
    world.assert_empty();
}

#[tokio::test]
async fn a_put_to_ssd_that_nobody_confirms_says_so_in_its_time_and_leaves_nothing() {
    let world = World::new();
    let spilling = FeatureConfig {
        residency: Residency::Spill,
        ..world.config()
    };
    let engine = HeldUp::new(world.cluster.connect());
    let store = world.open_on(engine.clone(), world.txn_store.client(), spilling).await;
    let clock = SystemClock::new();
    // The in-memory engine has no SSD; in the second round its master does not answer.
    for mode in [Mode::Pass, Mode::SilentProbe] {
        engine.set(mode);
        let within = Duration::from_millis(600);
        let begun = clock.now();
        let error = store
            .put(item("run/1", &[100], 1), within)
            .await
            .expect_err("nothing promises that it is kept");
        assert!(clock.now().since(begun) < within, "the commit's share was used up");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("--enable_offload"), "{error}");
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(
            cause.is_some_and(|cause| cause.contains("out of time")),
            mode == Mode::SilentProbe
        );
        engine.set(Mode::Pass);
        assert!(store.find(&[id("run/1")], WITHIN).await.expect("an answer")[0].is_none());
    }
    store.close(WITHIN).await.expect("closed");
    world.assert_empty();
}

#[tokio::test]
async fn a_store_has_ended_only_when_its_last_object_is_gone() {
    let world = World::new();
    let (died, store) = (world.open().await, world.open().await);
    let stored = put(&died, item("run/1", &[100], 1)).await;
    let lease = take(&died, &stored).await;
    // Its object is replaced by a put that never ended, which the engine does not remove; then its process dies.
    let key = one(keys_of(&world, &stored));
    world.cluster.connect().remove_one(&key, WITHIN).expect("removed");
    assert!(world.cluster.abandon_put(&key, 100));
    ack(&died, &lease).await.expect("acked");
    world.end_session(&died).await;
    drop(died);
    let error = store
        .end(false, Duration::from_secs(1))
        .await
        .expect_err("one object is left");
    assert_eq!(
        (error.kind(), error.fact("left")),
        (ErrorKind::Timeout, Some("1")),
        "{error}"
    );
    world.cluster.restart_master(); // it knows nothing of that put any more
    store.end(false, WITHIN).await.expect("ended");
    world.assert_empty();
}
