//! Writers: puts that go together, and callers that leave.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::*;
use tensorhold_core::{Clock, ErrorKind, Result};
use tensorhold_features::{FeatureStore, Stored, Writer};

const LENS: [usize; 2] = [1000, 10_000];

type Putting<'a> = Pin<Box<dyn Future<Output = Result<Stored>> + Send + 'a>>;

/// A put of a writer that was called, and has not ended.
async fn begun<'a>(writer: &'a Writer, sample: &str, seed: u64) -> Putting<'a> {
    let mut putting: Putting<'a> = Box::pin(writer.put(item(sample, &LENS, seed), WITHIN));
    let ended = poll_fn(|context| Poll::Ready(putting.as_mut().poll(context).is_ready())).await;
    assert!(!ended, "{sample} has begun");
    putting
}

/// A store whose engine holds the first put of a writer up.
async fn held_up(world: &World) -> (Arc<HeldUp>, FeatureStore) {
    let engine = HeldUp::new(world.cluster.connect());
    let store = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    engine.set(Mode::HangAfterPut);
    (engine, store)
}

async fn until_held_up(world: &World, engine: &HeldUp) {
    let since = world.clock.now();
    while !engine.holds_one_up() {
        assert!(world.clock.now().since(since) < WITHIN, "a put is held up");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn live(store: &FeatureStore, sample: &str) -> Option<tensorhold_index::SampleRef> {
    let found = one(store.find(&[id(sample)], WITHIN).await.expect("an answer"));
    found.map(|found| found.reference)
}

async fn consume(store: &FeatureStore, stored: &Stored, seed: u64) {
    let lease = take(store, stored).await;
    check_tensors(&get_all(store, &lease).await.expect("tensors"), &LENS, seed);
    ack(store, &lease).await.expect("acked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_goes_together_and_is_told_one_by_one() {
    let world = World::new();
    let (engine, store) = held_up(&world).await;
    let writer = store.writer();
    let first = begun(&writer, "run/first", 1).await;
    until_held_up(&world, &engine).await;
    let mut waiting = Vec::new();
    for n in 0..5 {
        waiting.push(begun(&writer, &format!("run/{n}"), n).await);
    }
    let mut wrong = item("run/wrong", &LENS, 9);
    wrong.publication.max_attempts = 0;
    let mut refused = Box::pin(writer.put(wrong, WITHIN));
    assert!(poll_fn(|context| Poll::Ready(refused.as_mut().poll(context).is_pending())).await);
    engine.let_go();
    let first = first.await.expect("put");
    let mut stored = Vec::new();
    for putting in waiting {
        stored.push(putting.await.expect("put"));
    }
    assert_eq!(refused.await.expect_err("no attempts").kind(), ErrorKind::Invalid);
    for one in &stored {
        assert_eq!(one.version, stored[0].version, "one transaction");
        assert!(one.version > first.version, "after the first");
    }
    consume(&store, &first, 1).await;
    for (n, one) in stored.iter().enumerate() {
        consume(&store, one, n as u64).await;
    }
    let later = writer.put(item("run/later", &LENS, 7), WITHIN).await.expect("put");
    consume(&store, &later, 7).await;
    store.drain(WITHIN).await.expect("freed");
    assert_eq!(world.cluster.objects(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_gives_up_its_own_put_only() {
    let world = World::new();
    let (engine, store) = held_up(&world).await;
    let writer = store.writer();
    let first = begun(&writer, "run/first", 1).await;
    until_held_up(&world, &engine).await;
    let stays = begun(&writer, "run/stays", 2).await;
    drop(begun(&writer, "run/left", 3).await);
    drop(first);
    engine.let_go();
    let stays = stays.await.expect("put");
    assert_eq!(live(&store, "run/left").await, None, "its caller left while it waited");
    consume(&store, &stays, 2).await;
    store.drain(WITHIN).await.expect("undone and freed");
    assert_eq!(
        live(&store, "run/first").await,
        None,
        "its caller left while its bytes moved"
    );
    assert_eq!(world.cluster.objects(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_latest_call_counts_although_an_earlier_one_is_sent_later() {
    let world = World::new();
    let (engine, store) = held_up(&world).await;
    let writer = store.writer();
    let first = begun(&writer, "run/first", 1).await;
    until_held_up(&world, &engine).await;
    let by_writer = begun(&writer, "run/a", 2).await;
    let twice = begun(&writer, "run/b", 3).await;
    let again = begun(&writer, "run/b", 4).await;
    let mut direct = Box::pin(store.put(item("run/a", &LENS, 5), WITHIN));
    assert!(poll_fn(|context| Poll::Ready(direct.as_mut().poll(context).is_pending())).await);
    engine.let_go();
    first.await.expect("put");
    let direct = direct.await.expect("the latest call");
    for outdated in [by_writer, twice] {
        assert_eq!(outdated.await.expect_err("replaced").kind(), ErrorKind::Conflict);
    }
    let again = again.await.expect("the latest call");
    consume(&store, &direct, 5).await;
    consume(&store, &again, 4).await;
}
