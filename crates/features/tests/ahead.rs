//! Puts under reservations that were made ahead.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::unclear::{Mode, Unclear};
use common::*;
use tensorhold_core::{Clock, ErrorKind, SystemRng};
use tensorhold_features::{FeatureStore, Stored};
use tensorhold_index::store::{Transaction, TxnStore, Write};

const LENS: [usize; 2] = [1000, 10_000];

/// Ticks that are long enough for what is kept to stay for the length of a test.
fn patient() -> World {
    let mut world = World::new();
    world.index_config.tick = Duration::from_secs(5);
    world
}

fn keys(world: &World, part: &str) -> usize {
    let entries = world.txn_store.dump();
    entries.iter().filter(|entry| entry.key.contains(part)).count()
}

/// How many reservations made ahead are in the index.
fn kept(world: &World) -> usize {
    keys(world, "/p/~")
}

async fn until(world: &World, what: &str, ready: impl Fn() -> bool) {
    let begun = world.clock.now();
    while !ready() {
        assert!(world.clock.now().since(begun) < WITHIN, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Puts that follow each other, until reservations are kept.
async fn warm(world: &World, store: &FeatureStore) -> Vec<Stored> {
    let mut stored = Vec::new();
    for n in 0..2 {
        stored.push(put(store, item(&format!("run/warm-{n}"), &LENS, n)).await);
    }
    until(world, "reservations are made ahead", || kept(world) >= 8).await;
    stored
}

fn is_ahead(stored: &Stored) -> bool {
    let description = serde_json::to_value(&*stored.description).expect("JSON");
    !description["reserved_as"].is_null()
}

async fn consume(store: &FeatureStore, stored: &Stored, seed: u64) {
    let lease = take(store, stored).await;
    check_tensors(&get_all(store, &lease).await.expect("tensors"), &LENS, seed);
    ack(store, &lease).await.expect("acked");
}

#[tokio::test]
async fn a_put_takes_one_and_nothing_stays_of_it() {
    let world = patient();
    let store = world.open().await;
    let first = warm(&world, &store).await;
    let before = kept(&world);
    let stored = put(&store, item("run/1", &LENS, 7)).await;
    assert!(!is_ahead(&first[0]) && is_ahead(&stored));
    assert_eq!((kept(&world), keys(&world, "/a/~")), (before - 1, 1));
    let objects = objects_of(&store.config().store, &stored);
    assert_eq!(objects.len(), 4);
    for key in &objects {
        assert!(key.as_str().starts_with("s/~"), "{key}");
        assert!(world.cluster.objects().contains(key), "{key}");
    }
    let report = store.audit_orphans(Default::default(), WITHIN).await.expect("a report");
    assert_eq!(report.orphans, 0, "{report:?}");
    let other = world.open().await;
    consume(&other, &stored, 7).await;
    for (n, stored) in first.iter().enumerate() {
        consume(&store, stored, n as u64).await;
    }
    other.drain(WITHIN).await.expect("freed");
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
    assert_eq!(keys(&world, "/a/~"), 0);
}

#[tokio::test]
async fn a_sample_put_again_has_a_larger_generation() {
    let world = patient();
    let store = world.open().await;
    let mut last = warm(&world, &store).await.pop().expect("two");
    for n in 0..5 {
        let next = put(&store, item("run/warm-1", &LENS, 10 + n)).await;
        assert!(is_ahead(&next));
        assert!(next.reference.generation > last.reference.generation);
        let found = store.find(&[id("run/warm-1")], WITHIN).await.expect("found");
        let found = one(found).expect("live");
        assert_eq!(found.reference, next.reference);
        last = next;
    }
    store.drain(WITHIN).await.expect("the older ones are freed");
    consume(&store, &last, 14).await;
}

#[tokio::test]
async fn what_is_not_needed_goes_back_and_leaves_nothing() {
    let world = World::new();
    let store = world.open().await;
    for n in 0..40 {
        put(&store, item(&format!("run/{n}"), &[10], n)).await;
    }
    until(&world, "all are given back", || kept(&world) == 0).await;
    assert_eq!(keys(&world, "/f/"), 0, "there is nothing to remove");
    let objects = world.cluster.objects().len();
    assert_eq!(objects, 40);
}

#[tokio::test]
async fn a_store_that_closes_gives_them_back() {
    let world = patient();
    let store = world.open().await;
    warm(&world, &store).await;
    store.close(WITHIN).await.expect("closed");
    assert_eq!((kept(&world), keys(&world, "/f/")), (0, 0));
}

#[tokio::test]
async fn a_dead_process_leaves_nothing_that_a_sweep_does_not_find() {
    let world = patient();
    let (store, other) = (world.open().await, world.open().await);
    let first = warm(&world, &store).await;
    let stored = put(&store, item("run/1", &LENS, 7)).await;
    world.end_session(&store).await;
    drop(store);
    let swept = other.sweep(WITHIN).await.expect("swept");
    assert!(swept.taken_back.abandoned >= 7, "{swept:?}");
    assert_eq!((kept(&world), keys(&world, "/f/")), (0, 0));
    consume(&other, &stored, 7).await;
    for (n, stored) in first.iter().enumerate() {
        consume(&other, stored, n as u64).await;
    }
    other.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test]
async fn a_process_that_lost_its_session_makes_new_ones() {
    let world = patient();
    let store = world.open().await;
    warm(&world, &store).await;
    world.end_session(&store).await;
    let stored = put(&store, item("run/1", &LENS, 7)).await;
    assert!(!is_ahead(&stored), "what the lost session had reserved is not used");
    consume(&store, &stored, 7).await;
}

#[tokio::test]
async fn with_a_budget_and_for_many_objects_a_put_reserves_by_itself() {
    let world = patient();
    world.open().await.set_budget(1 << 20, WITHIN).await.expect("a budget");
    let store = world.open().await;
    for n in 0..5 {
        assert!(!is_ahead(&put(&store, item(&format!("run/{n}"), &LENS, n)).await));
    }
    assert_eq!(kept(&world), 0);

    let world = patient();
    let store = world.open().await;
    warm(&world, &store).await;
    let most = [4096 * 16];
    assert!(is_ahead(&put(&store, item("run/16", &most, 1)).await));
    assert!(!is_ahead(&put(&store, item("run/17", &[4096 * 16 + 1], 1)).await));
}

#[tokio::test]
async fn a_record_and_a_description_that_disagree_remove_nothing() {
    let world = patient();
    let store = world.open().await;
    warm(&world, &store).await;
    let victim = put(&store, item("run/victim", &LENS, 7)).await;
    let description = serde_json::to_vec(&*victim.description).expect("JSON");
    let record = r#"{"v":2,"generation":1,"nonce":5,"producer":1,"bytes":1,"readers":[],"reason":"Aborted","failed_frees":0,"reserved_as":{"name":"~0000000000000001-0","generation":1}}"#;
    let value = [record.as_bytes(), &[0], &description].concat();
    let root = world.txn_store.dump().into_iter().find_map(|entry| {
        let at = entry.key.find("/s/run")?;
        Some(entry.key[..at].to_owned())
    });
    let key = format!("{}/f/forged/{:016x}", root.expect("a live sample"), 1);
    let transaction = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::put(key, value)],
    };
    let client = world.txn_store.client();
    client.transact(&transaction, WITHIN).await.expect("written");
    let swept = store.sweep(WITHIN).await.expect("swept");
    assert_eq!((swept.freed, swept.quarantined), (0, 1), "{swept:?}");
    consume(&store, &victim, 7).await;
}

async fn open_unclear(world: &World) -> (Arc<Unclear>, FeatureStore) {
    let index = Unclear::new(world.index(world.txn_store.client()));
    let (engine, clock) = (world.cluster.connect(), world.clock.clone());
    let store = FeatureStore::open(engine, index.clone(), world.config(), clock, Arc::new(SystemRng));
    (index, store.await.expect("a store"))
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_or_given_up() {
    let world = patient();
    let (index, store) = open_unclear(&world).await;
    warm(&world, &store).await;
    index.set(Mode::MadeUntold);
    let stored = put(&store, item("run/made", &LENS, 7)).await;
    assert!(is_ahead(&stored));
    index.set(Mode::LostUntold);
    let objects = world.cluster.objects();
    let lost = store
        .put(item("run/lost", &LENS, 8), WITHIN)
        .await
        .expect_err("not made");
    assert_eq!(lost.kind(), ErrorKind::Unavailable, "{lost}");
    assert_eq!(lost.fact("sample"), Some("run/lost"));
    index.set(Mode::Pass);
    store.drain(WITHIN).await.expect("undone");
    assert_eq!(world.cluster.objects(), objects, "what it had written is removed");
    let found = store
        .find(&[id("run/made"), id("run/lost")], WITHIN)
        .await
        .expect("found");
    let found: Vec<_> = found
        .into_iter()
        .map(|found| found.map(|found| found.reference))
        .collect();
    assert_eq!(found, [Some(stored.reference.clone()), None]);
    consume(&store, &stored, 7).await;
}

#[tokio::test]
async fn a_put_outlives_the_session_of_its_reservation() {
    let world = patient();
    let (index, store) = open_unclear(&world).await;
    let warm = warm(&world, &store).await;
    // The process does not know yet that its session has ended: it learns that from the commit.
    index.set(Mode::SessionEnded);
    let stored = put(&store, item("run/1", &LENS, 7)).await;
    assert!(!is_ahead(&stored), "it was reserved again, in another session");
    assert_eq!(store.health(WITHIN).await.sessions_opened, 2);
    consume(&store, &stored, 7).await;
    for (seed, stored) in warm.iter().enumerate() {
        consume(&store, stored, seed as u64).await;
    }
    store.drain(WITHIN).await.expect("freed");
    assert_eq!(world.cluster.objects(), [], "of the first attempt, too");
}
