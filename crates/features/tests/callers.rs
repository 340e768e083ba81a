//! Callers that leave: cancelled, timed out, or overtaken by a later call of their own process.
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod common;

use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::*;
use tensorhold_core::{ErrorKind, Nonce, ObjectKey, SystemRng};
use tensorhold_custody::{Publication, Reason};
use tensorhold_engine::{EngineExt, PutOptions};
use tensorhold_features::{AdoptedTensor, Announcement, FeatureStore, GroupName, SampleRef, Wanted};
use tensorhold_index::store::memory::Fate;
use tensorhold_index::{Commit, Reserve};
use tokio::time::Instant;

/// Far below the deadlines of what is waited for.
const PROMPTLY: Duration = Duration::from_secs(5);

/// How often the trainers have taken a sample.
async fn attempts(store: &FeatureStore, sample: &str) -> Option<u32> {
    let found = one(store.find(&[id(sample)], WITHIN).await.expect("an answer"))?;
    Some(found.record.groups[0].attempts)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PROMPTLY, "{what}: not within {PROMPTLY:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn idle(store: &FeatureStore) {
    until("operations end when their caller has left", async || {
        store.health(WITHIN).await.operations == 0
    })
    .await;
}

/// A sample that a later release has put, directly into the index.
async fn put_by_a_later_release(world: &World, sample: &str, groups: &[&str]) -> SampleRef {
    let index = world.index(world.txn_store.client());
    let session = index.open_session(WITHIN).await.expect("a session");
    let reserve = Reserve {
        sample: id(sample),
        nonce: Nonce::draw(&SystemRng),
        bytes: 10,
        plan: r#"{"v":1}"#.into(),
        claims: Vec::new(),
    };
    let generation = one(index.reserve(&session, &[reserve], WITHIN).await).expect("reserved");
    let reference = SampleRef {
        sample: id(sample),
        generation,
    };
    let groups = groups.iter().map(|name| GroupName::new(*name).expect("a name"));
    let commit = Commit {
        becomes: None,
        sample: reference.clone(),
        publication: Publication {
            groups: groups.collect(),
            ..publication()
        },
        description: br#"{"v":3,"anything":"new"}"#.to_vec(),
    };
    one(index.commit(&session, &[commit], WITHIN).await).expect("committed");
    reference
}

#[tokio::test]
async fn takes_that_timed_out_cost_a_later_sample_no_attempt() {
    let world = World::new();
    let (producer, consumer) = (world.open().await, world.open().await);
    for _ in 0..3 {
        let group = trainers();
        let take = consumer.lease_next(&group, 1, WITHIN);
        assert!(tokio::time::timeout(Duration::from_millis(50), take).await.is_err());
    }
    idle(&consumer).await;
    let stored = put(&producer, item("run/1", &[1000], 1)).await;
    let mut taken = consumer.lease_next(&trainers(), 1, WITHIN).await.expect("an answer");
    let lease = taken.pop().expect("it is there for the next consumer");
    assert_eq!(lease.reference(), stored.reference);
    assert_eq!(attempts(&producer, "run/1").await, Some(1), "the one that got it");
}

#[tokio::test]
async fn a_lease_that_nobody_looked_at_goes_back_uncounted() {
    let world = World::new();
    let store = world.open().await;
    put(&store, item("run/1", &[1000], 1)).await;
    for _ in 0..5 {
        let taken = store.lease_next(&trainers(), 1, WITHIN).await.expect("an answer");
        assert_eq!(taken.len(), 1);
        drop(taken);
        until("it goes back as if never taken", async || {
            attempts(&store, "run/1").await == Some(0)
        })
        .await;
    }
    let lease = one(store.lease_next(&trainers(), 1, WITHIN).await.expect("an answer"));
    assert_eq!(get_all(&store, &lease).await.expect("its bytes").len(), 1);
    drop(lease);
    store.drain(WITHIN).await.expect("drained");
    assert_eq!(attempts(&store, "run/1").await, Some(1), "what was looked at counts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn takes_that_are_cancelled_at_any_moment_cost_no_attempt() {
    let world = World::new();
    let (producer, consumer) = (world.open().await, world.open().await);
    put(&producer, item("run/1", &[1000], 1)).await;
    for round in 0..300_u64 {
        let group = trainers();
        let take = consumer.lease_next(&group, 1, WITHIN);
        let gone = tokio::time::timeout(Duration::from_micros(round * 7 % 900), take).await;
        drop(gone);
    }
    idle(&consumer).await;
    consumer.drain(WITHIN).await.expect("drained");
    let lease = one(consumer.lease_next(&trainers(), 1, WITHIN).await.expect("an answer"));
    assert_eq!(attempts(&producer, "run/1").await, Some(1));
    ack(&consumer, &lease).await.expect("acknowledged");
    consumer.drain(WITHIN).await.expect("drained");
    world.assert_empty();
}

/// A consumer whose first take is made at once, and told so long after.
async fn told_after(world: &World, delay: Duration) -> FeatureStore {
    let txn_store = world.txn_store.client();
    let consumer = world
        .open_on(world.cluster.connect(), txn_store.clone(), world.config())
        .await;
    txn_store.faults().lose_reply(Fate::ToldAfter(delay));
    consumer
}

#[tokio::test]
async fn a_take_that_is_answered_a_little_late_is_handed_over() {
    let world = World::new();
    let producer = world.open().await;
    let stored = put(&producer, item("run/1", &[1000], 1)).await;
    let consumer = told_after(&world, SOON + SOON).await;
    let lease = one(consumer.lease_next(&trainers(), 1, SOON).await.expect("an answer"));
    assert_eq!(lease.reference(), stored.reference);
    assert_eq!(attempts(&producer, "run/1").await, Some(1));
}

#[tokio::test]
async fn a_take_that_is_answered_after_its_caller_left_costs_no_attempt() {
    let world = World::new();
    let producer = world.open().await;
    let stored = put(&producer, item("run/1", &[1000], 1)).await;
    // The caller waits for a second past its deadline; the index may answer for as long as `call_within`.
    let late = Duration::from_secs(3);
    for by_name in [false, true] {
        let consumer = told_after(&world, late).await;
        let begun = Instant::now();
        let error = if by_name {
            one(consumer
                .lease(&trainers(), std::slice::from_ref(&stored.reference), SOON)
                .await)
            .expect_err("too late")
        } else {
            consumer.lease_next(&trainers(), 1, SOON).await.expect_err("too late")
        };
        assert!(begun.elapsed() < late, "the caller has its answer before the index has");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        until("it goes back as if never taken", async || {
            consumer.health(WITHIN).await.operations == 0 && attempts(&producer, "run/1").await == Some(0)
        })
        .await;
    }
}

#[tokio::test]
async fn closing_gives_back_what_a_cancelled_take_was_given() {
    let world = World::new();
    let (producer, consumer) = (world.open().await, world.open().await);
    put(&producer, item("run/1", &[1000], 1)).await;
    for micros in [0, 100, 300, 600, 1000] {
        let store = world.open().await;
        let group = trainers();
        let take = store.lease_next(&group, 1, WITHIN);
        drop(tokio::time::timeout(Duration::from_micros(micros), take).await);
        store.close(WITHIN).await.expect("closed");
        let report = consumer.sweep(WITHIN).await.expect("swept").taken_back;
        assert_eq!(report.taken_back, 0, "nothing is left to take back after {micros} µs");
        assert_eq!(attempts(&consumer, "run/1").await, Some(0), "after {micros} µs");
    }
}

#[tokio::test]
async fn closing_gives_back_a_lease_that_its_holder_has_not_looked_at() {
    let world = World::new();
    let producer = world.open().await;
    for sample in ["run/1", "run/2"] {
        put(&producer, item(sample, &[1000], 1)).await;
    }
    let consumer = world.open().await;
    let leases = consumer.lease_next(&trainers(), 2, WITHIN).await.expect("taken");
    let seen = leases[0].reference().sample;
    consumer.close(WITHIN).await.expect("closed");
    for sample in ["run/1", "run/2"] {
        let counted = u32::from(seen == id(sample));
        assert_eq!(attempts(&producer, sample).await, Some(counted), "{sample}");
    }
    assert!(leases[1].is_answered(), "its holder can see that it went back");
    drop(leases);
    let again = one(producer.lease_next(&trainers(), 2, WITHIN).await.expect("taken"));
    assert_ne!(
        again.reference().sample,
        seen,
        "the other one is still held by the ended session"
    );
}

#[tokio::test]
async fn an_older_consumer_leaves_what_a_newer_release_puts_to_others() {
    let world = World::new();
    let (old, watcher) = (world.open().await, world.index(world.txn_store.client()));
    // More of them than one look shows, for one group (the ready list has a copy) and for two (it has none).
    for n in 0..40 {
        put_by_a_later_release(&world, &format!("run/one-{n}"), &["trainers"]).await;
        put_by_a_later_release(&world, &format!("run/two-{n}"), &["others", "trainers"]).await;
    }
    for _ in 0..4 {
        let took = old
            .lease_next(&trainers(), 1, 10 * SOON)
            .await
            .expect("nothing is no error");
        assert!(took.is_empty());
    }
    for n in 0..40 {
        for (kind, at) in [("one", 0), ("two", 1)] {
            let view = one(watcher
                .look(&[id(&format!("run/{kind}-{n}"))], WITHIN)
                .await
                .expect("an answer"));
            let state = view.expect("it is live").record.record.groups[at].clone();
            assert_eq!(
                (state.attempts, format!("{:?}", state.progress)),
                (0, "Waiting".to_owned())
            );
        }
    }
    assert_eq!(
        old.health(WITHIN).await.counters.unreadable,
        80,
        "each is reported once"
    );
    // One that it can read comes, and is not hidden by the others; waiting for it is no busy loop.
    let waiting = tokio::spawn({
        let old = old.clone();
        async move { old.lease_next(&trainers(), 1, WITHIN).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stored = put(&old, item("run/readable", &[100], 1)).await;
    let lease = one(waiting.await.expect("no panic").expect("an answer"));
    assert_eq!(lease.reference(), stored.reference);
}

#[tokio::test]
async fn leasing_or_reading_what_a_newer_release_put_is_unsupported_and_leaves_it_as_it_was() {
    let world = World::new();
    let old = world.open().await;
    let reference = put_by_a_later_release(&world, "run/1", &["trainers"]).await;
    let before = world.txn_store.dump();
    let refs = std::slice::from_ref(&reference);
    for taken in [
        old.lease(&trainers(), refs, WITHIN).await,
        old.lease_shared(refs, WITHIN).await,
    ] {
        assert_eq!(one(taken).expect_err("refused").kind(), ErrorKind::Unsupported);
    }
    let records = |entries: Vec<tensorhold_index::store::Entry>| -> Vec<_> {
        entries.into_iter().filter(|entry| entry.key.contains("run")).collect()
    };
    assert_eq!(records(world.txn_store.dump()), records(before));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_whose_caller_left_while_it_waited_for_quota_is_not_made() {
    let world = World::new();
    let index = world.index(world.txn_store.client());
    index.set_budget(1000, WITHIN).await.expect("a budget");
    let store = world.open().await;
    let first = put(&store, item("run/1", &[900], 1)).await;
    let putting = store.put(item("run/2", &[900], 2), WITHIN);
    assert!(tokio::time::timeout(Duration::from_millis(100), putting).await.is_err());
    idle(&store).await;
    one(store.retire(&[first.reference], WITHIN).await).expect("retired");
    store.drain(WITHIN).await.expect("drained");
    assert!(one(store.find(&[id("run/2")], WITHIN).await.expect("an answer")).is_none());
    world.assert_empty();
    put(&store, item("run/3", &[1000], 3)).await; // the whole budget is there
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_whose_caller_left_while_its_bytes_moved_is_undone() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let store = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    engine.set(Mode::HangAfterPut);
    let putting = store.put(item("run/1", &[5000], 1), WITHIN);
    assert!(tokio::time::timeout(Duration::from_millis(200), putting).await.is_err());
    engine.set(Mode::Pass);
    engine.let_go();
    // What it leaves behind is known once it has ended.
    idle(&store).await;
    store.drain(WITHIN).await.expect("drained");
    assert!(one(store.find(&[id("run/1")], WITHIN).await.expect("an answer")).is_none());
    world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abort_sees_a_put_that_waits_for_quota() {
    let world = World::new();
    let index = world.index(world.txn_store.client());
    index.set_budget(1000, WITHIN).await.expect("a budget");
    let store = world.open().await;
    let first = put(&store, item("run/1", &[900], 1)).await;
    let putting = tokio::spawn({
        let store = store.clone();
        async move { store.put(item("run/2", &[900], 2), WITHIN).await }
    });
    until("it has begun", async || store.health(WITHIN).await.operations > 0).await;
    let begun = Instant::now();
    one(store.abort(&[id("run/2")], WITHIN).await).expect("it is seen");
    let error = putting.await.expect("no panic").expect_err("aborted");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert!(
        begun.elapsed() < PROMPTLY,
        "it ends at once, after {:?}",
        begun.elapsed()
    );
    one(store.retire(&[first.reference], WITHIN).await).expect("retired");
    store.drain(WITHIN).await.expect("drained");
    assert!(one(store.find(&[id("run/2")], WITHIN).await.expect("an answer")).is_none());
    world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_puts_of_one_sample_the_later_call_wins_while_the_first_waits_for_quota() {
    let world = World::new();
    let index = world.index(world.txn_store.client());
    index.set_budget(20_000, WITHIN).await.expect("a budget");
    let store = world.open().await;
    let mut fill = Vec::new();
    for n in 0..20 {
        fill.push(put(&store, item(&format!("run/fill-{n}"), &[1000], n)).await.reference);
    }
    let spawn = |bytes: usize, seed| {
        let store = store.clone();
        tokio::spawn(async move { store.put(item("run/x", &[bytes], seed), WITHIN).await })
    };
    let older = spawn(9000, 100);
    until("the older has begun", async || {
        store.health(WITHIN).await.operations == 1
    })
    .await;
    let newer = spawn(1000, 200);
    let begun = Instant::now();
    let error = older.await.expect("no panic").expect_err("a later call put it again");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(
        begun.elapsed() < PROMPTLY,
        "its wait ends with the later call, after {:?}",
        begun.elapsed()
    );
    for reference in fill {
        one(store.retire(&[reference], WITHIN).await).expect("retired");
    }
    let newer = newer.await.expect("no panic").expect("the later call is made");
    store.drain(WITHIN).await.expect("drained");
    let found = one(store.find(&[id("run/x")], WITHIN).await.expect("an answer")).expect("live");
    assert_eq!((found.reference, found.record.bytes), (newer.reference, 1000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_puts_of_one_sample_the_later_call_wins_while_the_first_moves_its_bytes() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let store = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    let spawn = |bytes: usize, seed| {
        let store = store.clone();
        tokio::spawn(async move { store.put(item("run/x", &[bytes], seed), WITHIN).await })
    };
    engine.set(Mode::HangAfterPut);
    let older = spawn(9000, 1);
    until("the older moves its bytes", async || {
        world.records().iter().any(|key| key.contains("/p/"))
    })
    .await;
    engine.set(Mode::Pass);
    let newer = spawn(1000, 2);
    let error = older.await.expect("no panic").expect_err("a later call put it again");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    engine.let_go();
    let newer = newer.await.expect("no panic").expect("the later call is made");
    store.drain(WITHIN).await.expect("drained");
    let lease = read(&store, &newer.reference).await;
    check_tensors(&get_all(&store, &lease).await.expect("its bytes"), &[1000], 2);
    drop(lease);
    one(store.retire(&[newer.reference], WITHIN).await).expect("retired");
    store.drain(WITHIN).await.expect("drained");
    world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_whose_caller_left_while_it_waited_for_memory_ends() {
    let world = World::new();
    let store = world.open().await;
    let stored = put(&store, item("run/1", &[100_000], 1)).await;
    let all = store.pool().buffer(8 << 20, WITHIN).await.expect("all of the pool");
    let lease = read(&store, &stored.reference).await;
    let getting = store.get(&lease, Wanted::All, WITHIN);
    assert!(tokio::time::timeout(Duration::from_millis(100), getting).await.is_err());
    idle(&store).await;
    drop(all);
    check_tensors(&get_all(&store, &lease).await.expect("its bytes"), &[100_000], 1);
    let why = one(store.retire(&[stored.reference], WITHIN).await).expect("retired");
    assert!(matches!(
        why,
        tensorhold_features::AckOutcome::Retired {
            reason: Reason::Aborted,
            ..
        }
    ));
}

fn key() -> ObjectKey {
    ObjectKey::new("x:a").expect("a key")
}

fn announcement() -> Announcement {
    Announcement {
        sample: id("run/x"),
        keys: vec![key()],
        bytes: 900,
    }
}

#[tokio::test]
async fn an_announcement_that_nobody_looked_at_is_given_back() {
    let world = World::new();
    let store = world.open().await;
    for _ in 0..3 {
        let announced = store.announce(announcement(), WITHIN).await.expect("announced");
        drop(announced);
        store.drain(WITHIN).await.expect("given back");
        world.assert_empty();
    }
    let announced = store.announce(announcement(), WITHIN).await.expect("announced");
    assert_eq!(announced.keys(), [key()]);
    drop(announced);
    store.drain(WITHIN).await.expect("nothing to do");
    let error = store.announce(announcement(), WITHIN).await.expect_err("reserved");
    assert_eq!(error.kind(), ErrorKind::Conflict, "what was looked at stays: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announcements_that_are_cancelled_at_any_moment_leave_nothing() {
    let world = World::new();
    let store = world.open().await;
    for round in 0..300_u64 {
        let announcing = store.announce(announcement(), WITHIN);
        let gone = tokio::time::timeout(Duration::from_micros(round * 7 % 900), announcing).await;
        drop(gone);
    }
    idle(&store).await;
    store.drain(WITHIN).await.expect("given back");
    world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announcement_whose_caller_left_while_it_waited_for_quota_ends() {
    let world = World::new();
    let index = world.index(world.txn_store.client());
    index.set_budget(1000, WITHIN).await.expect("a budget");
    let store = world.open().await;
    let first = put(&store, item("run/1", &[900], 1)).await;
    let announcing = store.announce(announcement(), WITHIN);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), announcing)
            .await
            .is_err()
    );
    idle(&store).await;
    one(store.retire(&[first.reference], WITHIN).await).expect("retired");
    store.drain(WITHIN).await.expect("drained");
    world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adoption_whose_caller_left_while_it_waited_for_quota_is_not_made() {
    let world = World::new();
    let index = world.index(world.txn_store.client());
    index.set_budget(1000, WITHIN).await.expect("a budget");
    let store = world.open().await;
    let first = put(&store, item("run/1", &[900], 1)).await;
    let engine = world.cluster.connect();
    let written = engine.allocate(900, WITHIN).expect("memory");
    engine
        .put_one(&key(), &written.whole(), &PutOptions::default(), WITHIN)
        .expect("put");
    let tensor = AdoptedTensor {
        spec: spec("t0", 900),
        key: key(),
        digest: None,
    };
    let adopting = store.adopt_now(id("run/x"), vec![tensor], publication(), WITHIN);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), adopting)
            .await
            .is_err()
    );
    idle(&store).await;
    one(store.retire(&[first.reference], WITHIN).await).expect("retired");
    store.drain(WITHIN).await.expect("drained");
    assert_eq!(world.records(), Vec::<String>::new());
    assert_eq!(world.cluster.objects(), [key()], "it was not taken into custody");
}
