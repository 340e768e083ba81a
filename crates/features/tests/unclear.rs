//! Commits of which nobody says whether they were made: nothing live is ever removed, nothing else stays.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;

use common::unclear::{Mode, Unclear};
use common::*;
use holdfast_core::{Digest, ErrorKind, Retry, SystemRng};
use holdfast_engine::{EngineExt, PutOptions};
use holdfast_features::{AdoptedTensor, FeatureStore};

async fn open(world: &World) -> (Arc<Unclear>, FeatureStore) {
    let index = Unclear::new(world.index(world.kv.client()));
    let engine = world.cluster.connect();
    let store = FeatureStore::open(
        engine,
        index.clone(),
        world.config(),
        world.clock.clone(),
        Arc::new(SystemRng),
    );
    (index, store.await.expect("a store"))
}

/// The sample is live, and its bytes are there.
async fn use_up(store: &FeatureStore, seed: u64) {
    let lease = one(store.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
    check_tensors(&get_all(store, &lease).await.expect("tensors"), &[10_000], seed);
    ack(store, &lease).await.expect("acked");
    store.drain(WITHIN).await.expect("freed");
}

#[tokio::test]
async fn a_commit_that_was_made_is_found() {
    let world = World::new();
    let (index, store) = open(&world).await;
    index.set(Mode::MadeUntold);
    put(&store, item("run/1", &[10_000], 1)).await;
    store.drain(WITHIN).await.expect("nothing to free");
    use_up(&store, 1).await;
    world.assert_empty();
}

#[tokio::test]
async fn a_commit_that_was_not_made_is_given_up() {
    let world = World::new();
    let (index, store) = open(&world).await;
    index.set(Mode::LostUntold);
    let error = store
        .put(item("run/1", &[10_000], 1), WITHIN)
        .await
        .expect_err("not made");
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Unavailable, Retry::Safe),
        "{error}"
    );
    store.drain(WITHIN).await.expect("undone");
    world.assert_empty();
    index.set(Mode::Pass);
    put(&store, item("run/1", &[10_000], 2)).await;
    use_up(&store, 2).await;
}

#[tokio::test]
async fn while_nobody_knows_nothing_is_removed() {
    let world = World::new();
    let (index, store) = open(&world).await;
    index.set(Mode::MadeAndSilent);
    let error = store
        .put(item("run/1", &[10_000], 1), WITHIN)
        .await
        .expect_err("nobody knows");
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Unavailable, Retry::Ambiguous),
        "{error}"
    );
    store.drain(WITHIN).await.expect("nothing to free");
    index.set(Mode::Pass);
    store.sweep(WITHIN).await.expect("swept");
    use_up(&store, 1).await;
    world.assert_empty();
}

#[tokio::test]
async fn an_adoption_is_found_out_in_the_same_way() {
    let world = World::new();
    let (index, store) = open(&world).await;
    let engine = world.cluster.connect();
    for (mode, live) in [(Mode::MadeUntold, true), (Mode::LostUntold, false)] {
        let region = engine.allocate(10_000, WITHIN).expect("memory");
        region.whole().write(0, &pattern(10_000, 1)).expect("fits");
        let key = holdfast_core::ObjectKey::new(format!("x:{live}")).expect("a key");
        engine
            .put_one(&key, &region.whole(), &PutOptions::default(), WITHIN)
            .expect("put");
        let tensor = AdoptedTensor {
            spec: spec("t0", 10_000),
            key,
            digest: Some(Digest::of(&pattern(10_000, 1))),
        };
        index.set(mode);
        let adopted = store.adopt_now(id("run/1"), vec![tensor], publication(), WITHIN).await;
        assert_eq!(adopted.is_ok(), live, "{adopted:?}");
        store.drain(WITHIN).await.expect("cleared up");
        if live {
            use_up(&store, 1).await;
        }
        world.assert_empty();
    }
}
