//! Getting samples without a lease.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::held_up::{HeldUp, Mode};
use common::raw::{keys, keys_of, read_raw, replace_raw};
use common::*;
use tensorhold_core::{ErrorKind, Result};
use tensorhold_features::{FeatureConfig, FeatureStore, SampleRef, TensorOut, Wanted};

const LENS: [usize; 3] = [10_000, 0, 300];

async fn get(store: &FeatureStore, reference: &SampleRef) -> Result<Vec<TensorOut>> {
    let glimpse = store
        .find_live(&reference.sample, Some(reference.generation), WITHIN)
        .await?;
    store.get_unleased(glimpse, Wanted::All, WITHIN).await
}

#[tokio::test]
async fn it_writes_nothing_to_the_index() {
    let world = World::new();
    let (producer, reader) = (world.open().await, world.open().await);
    let stored = put(&producer, item("run/1", &LENS, 7)).await;
    let before = world.txn_store.dump();
    check_tensors(&get(&reader, &stored.reference).await.expect("tensors"), &LENS, 7);
    let any = reader.find_live(&id("run/1"), None, WITHIN).await.expect("it is live");
    assert_eq!(any.reference(), &stored.reference);
    let some = Wanted::Names(vec![name("t2")]);
    let tensors = reader.get_unleased(any, some, WITHIN).await.expect("tensors");
    assert_eq!(tensors.len(), 1);
    assert_eq!(world.txn_store.dump(), before);
    let counters = reader.health(WITHIN).await.counters;
    assert_eq!((counters.gets, counters.bytes_got), (2, 10_600));
}

#[tokio::test]
async fn torn_bytes_are_read_again_under_a_lease() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    for keyring in [None, Some(keys(&["k1"]))] {
        let config = FeatureConfig {
            keyring,
            ..world.config()
        };
        let store = world.open_on(engine.clone(), world.txn_store.client(), config).await;
        let stored = put(&store, item("run/1", &LENS, 7)).await;
        engine.set(Mode::TornOnce);
        check_tensors(&get(&store, &stored.reference).await.expect("tensors"), &LENS, 7);
        assert_eq!(
            store.health(WITHIN).await.counters.corrupt,
            0,
            "it was not: a removal tears bytes as well"
        );
        one(store.abort(&[id("run/1")], WITHIN).await).expect("aborted");
        // The lease that it took for that is let go of, so nothing holds the objects up.
        store.drain(WITHIN).await.expect("freed");
        store.close(WITHIN).await.expect("closed");
        world.assert_empty();
    }
}

#[tokio::test]
async fn bytes_that_are_wrong_under_a_lease_are_corrupt() {
    let world = World::new();
    let store = world.open().await;
    let stored = put(&store, item("run/1", &LENS, 7)).await;
    let raw = world.cluster.connect();
    let key = &keys_of(&world, &stored)[1];
    let mut bytes = read_raw(&*raw, key);
    bytes[5] ^= 1;
    replace_raw(&*raw, key, &bytes);
    let error = get(&store, &stored.reference).await.expect_err("corrupt");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(store.health(WITHIN).await.counters.corrupt, 1);
}

#[tokio::test]
async fn a_sample_that_went_away_after_the_glimpse_is_never_bytes() {
    let world = World::new();
    let (store, other) = (world.open().await, world.open().await);
    let stored = put(&store, item("run/1", &LENS, 7)).await;
    let glimpse = store.find_live(&id("run/1"), None, WITHIN).await.expect("it is live");
    one(other.abort(&[id("run/1")], WITHIN).await).expect("aborted");
    other.drain(WITHIN).await.expect("freed");
    let error = store
        .get_unleased(glimpse, Wanted::All, WITHIN)
        .await
        .expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = get(&store, &stored.reference).await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test]
async fn another_generation_is_fenced_although_its_bytes_are_there() {
    let world = World::new();
    let store = world.open().await;
    let before = put(&store, item("run/1", &LENS, 7)).await;
    let _keeps_its_bytes = read(&store, &before.reference).await;
    let now = put(&store, item("run/1", &LENS, 8)).await;
    let error = get(&store, &before.reference).await.expect_err("superseded");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    check_tensors(&get(&store, &now.reference).await.expect("tensors"), &LENS, 8);
}

#[tokio::test]
async fn a_sample_without_checksums_is_looked_up_again_after_its_bytes_have_come() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let config = FeatureConfig {
        checksum: false,
        ..world.config()
    };
    let store = world.open_on(engine.clone(), world.txn_store.client(), config).await;
    let other = world.open().await;
    let stored = put(&store, item("run/1", &LENS, 7)).await;
    let before = world.txn_store.dump();
    check_tensors(&get(&store, &stored.reference).await.expect("tensors"), &LENS, 7);
    assert_eq!(world.txn_store.dump(), before, "nothing is written to the index");
    let _keeps_its_bytes = read(&other, &stored.reference).await;
    engine.set(Mode::HangBeforeGet);
    let getting = tokio::spawn({
        let (store, reference) = (store.clone(), stored.reference.clone());
        async move { get(&store, &reference).await }
    });
    let held_up = async {
        while !engine.holds_one_up() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WITHIN, held_up).await.expect("its bytes move");
    one(other.abort(&[id("run/1")], WITHIN).await).expect("aborted");
    engine.let_go();
    let error = getting
        .await
        .expect("no panic")
        .expect_err("it ended while its bytes moved");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
