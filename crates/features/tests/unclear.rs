//! Commits with an ambiguous outcome: nothing live is ever removed, nothing else stays.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::raw::keys_of;
use common::unclear::{Mode, Unclear};
use common::*;
use tensorhold_core::{Clock, Digest, ErrorKind, Retry, SystemRng};
use tensorhold_engine::{EngineExt, PutOptions};
use tensorhold_features::{AdoptedTensor, FeatureConfig, FeatureStore};

async fn open(world: &World) -> (Arc<Unclear>, FeatureStore) {
    open_with(world, world.config()).await
}

async fn open_with(world: &World, config: FeatureConfig) -> (Arc<Unclear>, FeatureStore) {
    let index = Unclear::new(world.index(world.txn_store.client()));
    let (engine, clock) = (world.cluster.connect(), world.clock.clone());
    let store = FeatureStore::open(engine, index.clone(), config, clock, Arc::new(SystemRng));
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
async fn of_a_batch_each_is_found_out_by_one_question_for_all() {
    let world = World::new();
    let (index, store) = open(&world).await;
    index.set(Mode::SomeMadeUntold);
    let batch = (0..5).map(|n| item(&format!("run/{n}"), &[1000], n)).collect();
    let results = store.put_many(batch, WITHIN).await;
    assert_eq!(index.most_aborted(), 5, "all of them at once");
    store.drain(WITHIN).await.expect("the others are undone");
    for (n, result) in (0..).zip(results) {
        let error = match result {
            Ok(stored) => {
                assert_eq!((n % 2, &stored.reference.sample), (0, &id(&format!("run/{n}"))));
                let lease = take(&store, &stored).await;
                check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[1000], n);
                ack(&store, &lease).await.expect("acked");
                continue;
            }
            Err(error) => error,
        };
        assert_eq!((n % 2, error.retry()), (1, Retry::Safe), "{error}");
    }
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test]
async fn a_silent_index_holds_a_batch_up_no_longer_than_one_sample() {
    const SAMPLES: u32 = 10;
    let world = World::new();
    let config = FeatureConfig {
        call_within: Duration::from_secs(1),
        ..world.config()
    };
    let each = config.call_within;
    let (index, store) = open_with(&world, config).await;
    index.set(Mode::MadeAndHung);
    let batch = (0..SAMPLES).map(|n| item(&format!("run/{n}"), &[100], 1)).collect();
    let begun = world.clock.now();
    let results = store.put_many(batch, WITHIN).await;
    let took = world.clock.now().since(begun);
    for result in results {
        assert_eq!(result.expect_err("nobody knows").retry(), Retry::Ambiguous);
    }
    assert!(
        took < each * SAMPLES / 2,
        "{took:?} for {SAMPLES} that take {each:?} each"
    );
}

#[tokio::test]
async fn an_adoption_is_found_out_in_the_same_way() {
    let world = World::new();
    let (index, store) = open(&world).await;
    let engine = world.cluster.connect();
    for (mode, live) in [(Mode::MadeUntold, true), (Mode::LostUntold, false)] {
        let region = engine.allocate(10_000, WITHIN).expect("memory");
        region.whole().write(0, &pattern(10_000, 1)).expect("fits");
        let key = tensorhold_core::ObjectKey::new(format!("x:{live}")).expect("a key");
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

#[tokio::test]
async fn a_sample_that_is_being_called_lost_is_never_said_to_be_only_fenced() {
    let world = World::new();
    let (index, store) = open_with(
        &world,
        FeatureConfig {
            call_within: Duration::from_secs(1),
            ..world.config()
        },
    )
    .await;
    let stored = put(&store, item("run/1", &[10_000], 1)).await;
    let lease = one(store.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
    index.set(Mode::RetiredToldLate);
    let engine = world.cluster.connect();
    for key in keys_of(&world, &stored) {
        engine.remove_one(&key, WITHIN).expect("removed");
    }
    // Every get until then says missing, and none says Fenced, also while the index has retired it and not told yet.
    until_lost(&store, &lease).await;
    let told = store.health(WITHIN).await.counters.lost;
    assert_eq!(told, 0, "the index has not answered yet, so this was in between");
}
