//! A holder that dies: it is missed, and what it held is suspected and then lost, without a read and without an audit; puts go
//! to another one.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::time::Duration;

use common::*;
use tensorhold_core::{Clock, ErrorKind};
use tensorhold_engine::MemoryConfig;
use tensorhold_features::{FeatureConfig, FeatureStore, HoldersSeen};

const SAMPLES: usize = 12;
const LENS: [usize; 2] = [100, 10_000];

fn world(notices_after: Duration) -> World {
    World::with(MemoryConfig {
        holders: 2,
        holder_loss_after: notices_after,
        ..MemoryConfig::default()
    })
}

/// A process that sweeps, and so looks at the holders.
async fn sweeper(world: &World) -> FeatureStore {
    let config = FeatureConfig {
        sweep_every: Some(Duration::from_millis(20)),
        loss_grace: Duration::from_millis(400),
        ..world.config()
    };
    world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await
}

async fn put_all(store: &FeatureStore) {
    for n in 0..SAMPLES {
        // One object each, so that a sample lies on one holder.
        put(store, item(&format!("run/{n}"), &[1000], n as u64)).await;
    }
}

/// What is seen of the holders, by any process, once it is so.
async fn seen_once(
    world: &World,
    store: &FeatureStore,
    what: &str,
    is_so: impl Fn(&HoldersSeen) -> bool,
) -> HoldersSeen {
    let begun = world.clock.now();
    loop {
        let seen = store.holders_seen(WITHIN).await.expect("an answer");
        if is_so(&seen) {
            return seen;
        }
        assert!(world.clock.now().since(begun) < WITHIN, "{what}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn names(seen: &HoldersSeen) -> Vec<&str> {
    seen.missing.iter().map(|one| one.name.as_str()).collect()
}

#[tokio::test]
async fn a_dead_holder_is_missed_and_its_samples_are_lost_without_a_read_or_an_audit() {
    let world = world(Duration::from_millis(100));
    let (store, watcher) = (world.open().await, sweeper(&world).await);
    put_all(&store).await;
    seen_once(&world, &store, "both are listed", |seen| seen.listed.len() == 2).await;
    assert!(world.cluster.kill_holder(0));
    let seen = seen_once(&world, &store, "its samples are suspected", |seen| seen.suspected > 0).await;
    assert_eq!(names(&seen), ["holder-0"]);
    let seen = seen_once(&world, &store, "the verdicts are delivered", |seen| {
        seen.suspected == 0 && !seen.unsettled
    })
    .await;
    let lost = watcher.counters().lost;
    let alive = world.cluster.objects().len();
    assert!(lost > 0 && lost < SAMPLES as u64, "{lost} of {SAMPLES} were lost");
    assert_eq!(names(&seen), ["holder-0"], "it is named after the verdicts, too");
    assert!(alive > 0, "the other holder has its samples");
    assert!(world.cluster.restart_holder(0));
    seen_once(&world, &store, "it is back", |seen| {
        seen.missing.is_empty() && seen.listed.len() == 2
    })
    .await;
}

#[tokio::test]
async fn a_holder_that_dies_while_nobody_looks_is_missed_by_the_next_process() {
    let world = world(Duration::from_millis(50));
    let first = sweeper(&world).await;
    put_all(&first).await;
    seen_once(&world, &first, "both are listed", |seen| seen.listed.len() == 2).await;
    first.close(WITHIN).await.expect("closed");
    assert!(world.cluster.kill_holder(1));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let next = sweeper(&world).await;
    let seen = seen_once(&world, &next, "its samples are suspected", |seen| seen.suspected > 0).await;
    assert_eq!(names(&seen), ["holder-1"]);
}

#[tokio::test]
async fn puts_that_meet_a_dead_holder_go_to_another_one() {
    // The engine does not notice while this test runs.
    let world = world(Duration::from_secs(600));
    let store = world.open().await;
    put_all(&store).await;
    assert!(world.cluster.kill_holder(0));
    for n in 0..SAMPLES {
        put(&store, item(&format!("run/after/{n}"), &LENS, n as u64)).await;
    }
    let batch = (0..SAMPLES).map(|n| item(&format!("run/batch/{n}"), &LENS, n as u64));
    for stored in store.put_many(batch.collect(), WITHIN).await {
        let stored = stored.expect("put");
        let lease = take(&store, &stored).await;
        get_all(&store, &lease).await.expect("its bytes");
    }
    store
        .drain(WITHIN)
        .await
        .expect("what was written on the way is removed");
    let live = world.records().iter().filter(|key| key.contains("/s/")).count();
    assert_eq!(live, 3 * SAMPLES, "{:?}", world.records());
}

#[tokio::test]
async fn a_put_that_meets_dead_holders_only_fails_by_its_deadline_and_leaves_nothing() {
    let world = world(Duration::from_secs(600));
    let store = world.open().await;
    for holder in 0..2 {
        assert!(world.cluster.kill_holder(holder));
    }
    let begun = world.clock.now();
    let error = store
        .put(item("run/1", &LENS, 1), Duration::from_millis(300))
        .await
        .expect_err("there is no holder");
    let took = world.clock.now().since(begun);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    store.drain(WITHIN).await.expect("drained");
    world.assert_empty();
}
