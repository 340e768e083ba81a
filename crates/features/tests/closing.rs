//! A store that is closed beside calls that wait, or that are in the midst of something.
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::*;
use tensorhold_core::{Error, ErrorKind, Retry};
use tensorhold_features::{Announcement, FeatureStore, Lease, LossScope, PutItem};
use tensorhold_index::store::memory::Fate;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Far below the deadlines of what is waited for.
const PROMPTLY: Duration = Duration::from_secs(5);

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PROMPTLY, "{what}: not within {PROMPTLY:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn operations(store: &FeatureStore, count: usize) {
    until("operations are under way", async || {
        store.health(WITHIN).await.operations == count
    })
    .await;
}

/// Closes a store, at once.
async fn close(store: &FeatureStore) {
    let begun = Instant::now();
    store.close(WITHIN).await.expect("closed");
    assert!(begun.elapsed() < PROMPTLY, "after {:?}", begun.elapsed());
}

fn says_closed(error: &Error) {
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Unavailable, Retry::Never),
        "{error}"
    );
    assert!(error.to_string().contains("this store is closed"), "{error}");
}

fn take_in_a_task(store: &FeatureStore) -> JoinHandle<tensorhold_core::Result<Vec<Lease>>> {
    let store = store.clone();
    tokio::spawn(async move { store.lease_next(&trainers(), 1, 10 * WITHIN).await })
}

/// A sample that its group may take once.
fn once(sample: &str) -> PutItem {
    let mut item = item(sample, &[1000], 1);
    item.publication.max_attempts = 1;
    item
}

#[tokio::test]
async fn closing_ends_a_take_that_waits_and_it_takes_nothing_afterwards() {
    let world = World::new();
    let (producer, consumer) = (world.open().await, world.open().await);
    let taking = take_in_a_task(&consumer);
    operations(&consumer, 1).await;
    close(&consumer).await;
    says_closed(&taking.await.expect("no panic").expect_err("closed"));
    let health = consumer.health(WITHIN).await;
    assert_eq!((health.sessions_opened, health.session), (1, None));
    assert_eq!(producer.sessions(WITHIN).await.expect("sessions").len(), 1, "its own");
    // Not a dead letter of a take that nobody could answer for.
    put(&producer, once("run/1")).await;
    let lease = one(producer.lease_next(&trainers(), 1, WITHIN).await.expect("an answer"));
    ack(&producer, &lease).await.expect("acknowledged");
}

#[tokio::test]
async fn a_sample_that_is_leased_while_the_store_closes_goes_back_uncounted() {
    let world = World::new();
    let producer = world.open().await;
    let stored = put(&producer, once("run/1")).await;
    for by_name in [false, true] {
        let txn_store = world.txn_store.client();
        let consumer = world
            .open_on(world.cluster.connect(), txn_store.clone(), world.config())
            .await;
        // The index leases it at once, and says so when the store is closing already.
        txn_store
            .faults()
            .lose_reply(Fate::ToldAfter(Duration::from_millis(300)));
        let taking = {
            let (consumer, sample) = (consumer.clone(), stored.reference.clone());
            tokio::spawn(async move {
                let taken = match by_name {
                    true => one(consumer.lease(&trainers(), &[sample], WITHIN).await).map(|lease| vec![lease]),
                    false => consumer.lease_next(&trainers(), 1, WITHIN).await,
                };
                // A caller that gets a sample looks at it.
                taken.map(|leases| leases.iter().map(Lease::reference).collect::<Vec<_>>())
            })
        };
        let held = async || {
            let found = producer.find(&[id("run/1")], WITHIN).await.expect("an answer");
            one(found).is_some_and(|found| found.record.groups[0].attempts == 1)
        };
        until("it is leased", held).await;
        close(&consumer).await;
        says_closed(&taking.await.expect("no panic").expect_err("closed"));
        assert!(!held().await, "it went back uncounted");
    }
    let lease = one(producer.lease_next(&trainers(), 1, WITHIN).await.expect("an answer"));
    ack(&producer, &lease).await.expect("acknowledged");
}

#[tokio::test]
async fn a_session_that_is_being_opened_when_the_store_has_closed_is_ended() {
    let world = World::new();
    let txn_store = world.txn_store.client();
    let store = world
        .open_on(world.cluster.connect(), txn_store.clone(), world.config())
        .await;
    world.end_session(&store).await;
    txn_store.faults().slow(3 * SOON);
    let taking = take_in_a_task(&store);
    operations(&store, 1).await;
    // The session is opened for longer than the store takes to close.
    let error = store.close(SOON).await.expect_err("a call was in flight");
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    txn_store.faults().slow(Duration::ZERO);
    says_closed(&taking.await.expect("no panic").expect_err("closed"));
    let other = world.open().await;
    until("only its own session is left", async || {
        other.sessions(WITHIN).await.expect("sessions").len() == 1
    })
    .await;
    assert_eq!(store.health(WITHIN).await.session, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_whose_bytes_move_is_completed() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let store = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    engine.set(Mode::HangAfterPut);
    let putting = {
        let store = store.clone();
        tokio::spawn(async move { store.put(item("run/1", &[1000], 1), WITHIN).await })
    };
    until("its bytes are under way", async || engine.holds_one_up()).await;
    let closing = {
        let store = store.clone();
        tokio::spawn(async move { store.close(WITHIN).await })
    };
    until("it accepts nothing", async || {
        store.lease_ready(&trainers(), 1, WITHIN).await.is_err()
    })
    .await;
    engine.let_go();
    let stored = putting.await.expect("no panic").expect("put");
    closing.await.expect("no panic").expect("closed");
    let other = world.open().await;
    assert_eq!(take(&other, &stored).await.reference(), stored.reference);
}

#[tokio::test]
async fn closing_ends_whatever_waits() {
    let world = World::new();
    let index = world.index(world.txn_store.client());
    index.set_budget(1000, WITHIN).await.expect("a budget");
    let store = world.open().await;
    put(&store, item("run/1", &[1000], 1)).await; // the whole budget
    let budget = usize::try_from(store.pool().usage().budget).expect("small");
    let pool = store.pool().buffer(budget, WITHIN).await.expect("all of it");
    let late = 10 * WITHIN;
    let mut waiting: Vec<(&str, JoinHandle<Option<Error>>)> = Vec::new();
    let mut begin = |what, wait: std::pin::Pin<Box<dyn Future<Output = Option<Error>> + Send>>| {
        waiting.push((what, tokio::spawn(wait)));
    };
    let other = store.clone();
    begin(
        "quota for a put",
        Box::pin(async move { other.put(item("run/2", &[1000], 2), late).await.err() }),
    );
    let other = store.clone();
    begin(
        "quota for an announcement",
        Box::pin(async move {
            let announcement = Announcement {
                sample: id("run/3"),
                keys: vec![tensorhold_core::ObjectKey::new("x:1").expect("a key")],
                bytes: 1000,
            };
            other.announce(announcement, late).await.err()
        }),
    );
    let other = store.clone();
    begin(
        "losses",
        Box::pin(async move { other.lost(LossScope::Own, late).await.err() }),
    );
    let other = store.clone();
    begin(
        "memory",
        Box::pin(async move {
            let memory = other.pool().buffer(1000, late);
            other.unless_closed("test", memory).await.err()
        }),
    );
    operations(&store, 2).await;
    close(&store).await;
    for (what, waits) in waiting {
        let ended = tokio::time::timeout(PROMPTLY, waits).await;
        let ended = ended
            .unwrap_or_else(|_| panic!("{what} is waited for"))
            .expect("no panic");
        says_closed(&ended.unwrap_or_else(|| panic!("{what} came")));
    }
    drop(pool);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_a_drain_of_another_task() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let engine_of_store = Arc::clone(&engine);
    let store = world
        .open_on(engine_of_store, world.txn_store.client(), world.config())
        .await;
    engine.set(Mode::LatePut);
    store
        .put(item("run/1", &[1000], 1), SOON)
        .await
        .expect_err("out of time");
    let draining = {
        let store = store.clone();
        tokio::spawn(async move { store.drain(10 * WITHIN).await })
    };
    until("something is left", async || {
        store.health(WITHIN).await.pending_frees > 0
    })
    .await;
    store.close(SOON).await.expect_err("the engine still has its memory");
    let ended = tokio::time::timeout(PROMPTLY, draining)
        .await
        .expect("it ends")
        .expect("no panic");
    says_closed(&ended.expect_err("closed"));
    engine.let_go();
}
