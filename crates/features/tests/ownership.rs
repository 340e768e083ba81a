//! A physical key belongs to one live generation of one store: whatever is adopted, refused, repeated or swept.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::*;
use tensorhold_core::{Digest, Error, ErrorKind, ObjectKey, Result, StoreId};
use tensorhold_engine::{EngineExt, PutOptions};
use tensorhold_features::{AdoptedTensor, Announcement, FeatureConfig, FeatureStore, Lease, Publication, Stored};
use tensorhold_index::store::{Condition, Transaction, TxnOutcome, TxnStore, Write};

const LEN: usize = 5000;

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).expect("a key")
}

/// What a serving engine does: writes an object under a key of its own.
fn write(world: &World, text: &str, seed: u64) {
    let engine = world.cluster.connect();
    let region = engine.allocate(LEN, WITHIN).expect("memory");
    region.whole().write(0, &pattern(LEN, seed)).expect("fits");
    engine
        .put_one(&key(text), &region.whole(), &PutOptions::default(), WITHIN)
        .expect("put");
}

fn tensor(object: &str, seed: u64) -> AdoptedTensor {
    AdoptedTensor {
        spec: spec("t0", LEN),
        key: key(object),
        digest: Some(Digest::of(&pattern(LEN, seed))),
    }
}

async fn adopt(store: &FeatureStore, sample: &str, tensor: AdoptedTensor, how: Publication) -> Result<Stored> {
    store.adopt_now(id(sample), vec![tensor], how, WITHIN).await
}

async fn assert_readable(store: &FeatureStore, stored: &Stored, seed: u64) -> Lease {
    let lease = read(store, &stored.reference).await;
    check_tensors(&get_all(store, &lease).await.expect("its bytes"), &[LEN], seed);
    lease
}

fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) -> Error {
    let error = result.expect_err("refused");
    assert_eq!(error.kind(), kind, "{error}");
    error
}

/// A process of another store on the same engine and the same index.
async fn open_other(world: &World, name: &str) -> FeatureStore {
    let store = StoreId::new(name).expect("a name");
    let config = FeatureConfig {
        store: store.clone(),
        ..world.config()
    };
    let index = world.index_of(&store, world.txn_store.client());
    FeatureStore::open(
        world.cluster.connect(),
        index,
        config,
        world.clock.clone(),
        std::sync::Arc::new(tensorhold_core::SystemRng),
    )
    .await
    .expect("a store")
}

#[tokio::test]
async fn an_adoption_that_is_repeated_is_the_same_sample() {
    let world = World::new();
    let store = world.open().await;
    write(&world, "s/x/a", 3);
    let first = adopt(&store, "run/1", tensor("s/x/a", 3), publication())
        .await
        .expect("adopted");
    let again = adopt(&store, "run/1", tensor("s/x/a", 3), publication())
        .await
        .expect("the same");
    store.drain(WITHIN).await.expect("drained");
    assert_eq!(world.cluster.objects(), [key("s/x/a")], "its object is there");
    assert_eq!(first.reference, again.reference);
    drop(assert_readable(&store, &again, 3).await);
    store.drain(WITHIN).await.expect("let go of");
    let lease = take(&store, &again).await;
    ack(&store, &lease).await.expect("acked");
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test]
async fn an_adoption_that_is_refused_leaves_the_live_sample_alone() {
    let world = World::new();
    let store = world.open().await;
    write(&world, "s/x/a", 3);
    write(&world, "s/x/b", 4);
    let live = adopt(&store, "run/1", tensor("s/x/a", 3), publication())
        .await
        .expect("adopted");
    let never = Publication {
        max_attempts: 0,
        ..publication()
    };
    refused(
        adopt(&store, "run/1", tensor("s/x/a", 3), never.clone()).await,
        ErrorKind::Invalid,
    );
    let twice = Publication {
        groups: vec![trainers(), trainers()],
        ..publication()
    };
    refused(
        adopt(&store, "run/2", tensor("s/x/b", 4), twice).await,
        ErrorKind::Invalid,
    );
    store.drain(WITHIN).await.expect("drained");
    assert_eq!(
        world.cluster.objects(),
        [key("s/x/a"), key("s/x/b")],
        "nothing was removed"
    );
    // The same object, said to be something else.
    let mut other = tensor("s/x/a", 3);
    other.digest = Some(Digest::of(b"other"));
    refused(adopt(&store, "run/1", other, publication()).await, ErrorKind::Conflict);
    store.drain(WITHIN).await.expect("drained");
    store.sweep(WITHIN).await.expect("swept");
    assert_readable(&store, &live, 3).await;
}

#[tokio::test]
async fn no_two_samples_own_one_object() {
    let world = World::new();
    let (store, other) = (world.open().await, world.open().await);
    write(&world, "s/x/a", 3);
    let live = adopt(&store, "run/1", tensor("s/x/a", 3), publication())
        .await
        .expect("adopted");
    let error = refused(
        adopt(&other, "run/2", tensor("s/x/a", 3), publication()).await,
        ErrorKind::Conflict,
    );
    assert_eq!(error.fact("owner"), Some("run/1"), "{error}");
    let announcement = Announcement {
        sample: id("run/3"),
        keys: vec![key("s/x/new"), key("s/x/a")],
        bytes: 10_000,
    };
    refused(other.announce(announcement.clone(), WITHIN).await, ErrorKind::Conflict);
    other.drain(WITHIN).await.expect("drained");
    other.sweep(WITHIN).await.expect("swept");
    let lease = take(&store, &live).await;
    check_tensors(&get_all(&store, &lease).await.expect("its bytes"), &[LEN], 3);
    ack(&store, &lease).await.expect("acked");
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
    // Freed, it may be written and owned again.
    let announced = other.announce(announcement, WITHIN).await.expect("announced");
    other.discard(&announced, WITHIN).await.expect("discarded");
    other.drain(WITHIN).await.expect("removed");
    world.assert_empty();
}

#[tokio::test]
async fn objects_of_stores_and_of_the_page_tier_are_not_for_adoption() {
    let world = World::new();
    let (store, neighbour) = (world.open().await, open_other(&world, "neighbour").await);
    let theirs = put(&neighbour, item("run/1", &[LEN], 3)).await;
    let own = put(&store, item("run/2", &[LEN], 4)).await;
    let mut objects: Vec<String> = world.cluster.objects().iter().map(ToString::to_string).collect();
    write(&world, "kv/tag/00ff/g0", 5);
    objects.push("kv/tag/00ff/g0".to_owned());
    objects.push("elsewhere/a".to_owned());
    write(&world, "elsewhere/a", 6);
    let before = world.cluster.objects();
    for object in &objects {
        refused(
            adopt(&store, "run/9", tensor(object, 3), publication()).await,
            ErrorKind::Denied,
        );
        let announcement = Announcement {
            sample: id("run/9"),
            keys: vec![key(object)],
            bytes: 10_000,
        };
        refused(store.announce(announcement, WITHIN).await, ErrorKind::Denied);
    }
    store.drain(WITHIN).await.expect("drained");
    store.sweep(WITHIN).await.expect("swept");
    assert_eq!(world.cluster.objects(), before, "nothing was removed");
    assert_readable(&neighbour, &theirs, 3).await;
    assert_readable(&store, &own, 4).await;
}

#[tokio::test]
async fn a_record_that_names_another_stores_object_removes_nothing() {
    let world = World::new();
    let (store, neighbour) = (world.open().await, open_other(&world, "neighbour").await);
    let theirs = put(&neighbour, item("run/1", &[LEN], 3)).await;
    let victim = world.cluster.objects()[0].to_string();
    write(&world, "s/x/a", 4);
    adopt(&store, "run/2", tensor("s/x/a", 4), publication())
        .await
        .expect("adopted");
    // An enemy, or a bug: the record names the neighbour's object.
    let entry = world
        .txn_store
        .dump()
        .into_iter()
        .find(|entry| entry.key == "s/s/run%2F2")
        .expect("a record");
    let text = String::from_utf8(entry.value).expect("text").replace("s/x/a", &victim);
    let forged = Transaction {
        conditions: vec![Condition::Unchanged(entry.key.clone(), entry.version)],
        writes: vec![Write::put(entry.key, text)],
    };
    assert!(matches!(
        world.txn_store.transact(&forged, WITHIN).await,
        Ok(TxnOutcome::Committed(_))
    ));
    let aborted = one(store.abort(&[id("run/2")], WITHIN).await);
    store.sweep(WITHIN).await.expect("swept");
    assert!(world.cluster.objects().contains(&key(&victim)), "{aborted:?}");
    assert_eq!(store.health(WITHIN).await.passed_over.quarantined, 1, "it is counted");
    let listed = store.quarantined(None, 10, WITHIN).await.expect("a list");
    assert!(
        listed.len() == 1 && listed[0].key.starts_with("s/f/run%2F2/"),
        "{listed:?}"
    );
    assert_readable(&neighbour, &theirs, 3).await;
}
