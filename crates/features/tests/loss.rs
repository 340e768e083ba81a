//! Loss is a verdict with evidence: what comes back is not condemned, what does not is told, and nothing stays behind.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::time::Duration;

use common::*;
use tensorhold_core::{Clock, ErrorKind};
use tensorhold_engine::{MemoryConfig, SsdConfig};
use tensorhold_features::{FeatureConfig, FeatureStore, Lease, Stored};

const LENS: [usize; 2] = [100, 10_000];

/// Two holders with an SSD each. The sample's copies are on one; the other is there to answer.
fn world() -> World {
    World::with(MemoryConfig {
        holders: 2,
        ssd: Some(SsdConfig {
            heartbeat: Duration::from_millis(5),
            ..SsdConfig::default()
        }),
        ..MemoryConfig::default()
    })
}

/// Puts a sample, and waits until all of it is on SSDs. Returns which holders have some of it.
async fn put_on_ssd(world: &World, store: &FeatureStore) -> (Stored, Vec<usize>) {
    let stored = put(store, item("run/1", &LENS, 1)).await;
    let all = world.cluster.objects().len();
    let begun = world.clock.now();
    while world.cluster.bucket(0).len() + world.cluster.bucket(1).len() < all {
        assert!(world.clock.now().since(begun) < WITHIN, "not on SSD");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let holders = (0..2)
        .filter(|holder| !world.cluster.bucket(*holder).is_empty())
        .collect();
    (stored, holders)
}

/// The master is restarted, and the holders of the sample are late.
fn restart_without(world: &World, holders: &[usize]) {
    for holder in holders {
        assert!(world.cluster.kill_holder(*holder));
    }
    world.cluster.restart_master();
}

async fn assert_missing(store: &FeatureStore, lease: &Lease) {
    let error = get_all(store, lease).await.expect_err("missing");
    let seen = (error.kind(), error.fact("reason"));
    assert_eq!(seen, (ErrorKind::Unavailable, Some("missing")), "{error}");
}

#[tokio::test]
async fn a_sample_whose_holder_registers_late_is_not_lost() {
    let world = world();
    let config = FeatureConfig {
        loss_grace: Duration::from_secs(30),
        ..world.config()
    };
    let store = world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await;
    let (stored, holders) = put_on_ssd(&world, &store).await;
    let lease = take(&store, &stored).await;
    restart_without(&world, &holders);
    assert_missing(&store, &lease).await;
    assert_eq!(store.health(WITHIN).await.suspected, 1);
    holders
        .iter()
        .for_each(|holder| assert!(world.cluster.restart_holder(*holder)));
    check_tensors(&get_all(&store, &lease).await.expect("its bytes"), &LENS, 1);
    let begun = world.clock.now();
    while store.health(WITHIN).await.suspected > 0 {
        assert!(world.clock.now().since(begun) < WITHIN, "still suspected");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.health(WITHIN).await.counters.lost, 0);
    ack(&store, &lease).await.expect("acked");
}

#[tokio::test]
async fn what_comes_back_after_the_verdict_is_removed() {
    let world = world();
    let store = world.open().await;
    let (stored, holders) = put_on_ssd(&world, &store).await;
    let lease = take(&store, &stored).await;
    restart_without(&world, &holders);
    let took = if holders.len() == 2 {
        // No holder is there that could say anything.
        tokio::time::sleep(world.config().loss_grace * 3).await;
        assert_missing(&store, &lease).await;
        world.cluster.restart_holder(holders[0]);
        until_lost(&store, &lease).await
    } else {
        until_lost(&store, &lease).await
    };
    assert!(took >= world.config().loss_grace, "{took:?}");
    drop(lease);
    store.drain(WITHIN).await.expect("let go of");
    // They are late; the objects are there again, and no reader wants them any more.
    holders
        .iter()
        .for_each(|holder| assert!(world.cluster.restart_holder(*holder)));
    assert!(!world.cluster.objects().is_empty());
    world.outlive_lost(&store).await;
    world.assert_empty();
}

#[tokio::test]
async fn without_a_holder_or_a_master_nothing_is_lost() {
    let world = world();
    let store = world.open().await;
    let (stored, holders) = put_on_ssd(&world, &store).await;
    let lease = take(&store, &stored).await;
    restart_without(&world, &[0, 1]);
    assert_missing(&store, &lease).await;
    tokio::time::sleep(world.config().loss_grace * 3).await;
    assert_missing(&store, &lease).await;
    // Restarted over and over, the master never has the time to say that they stay away.
    for _ in 0..8 {
        world.cluster.restart_holder(1 - holders[0]);
        restart_without(&world, &[1 - holders[0]]);
        world.cluster.restart_master();
        tokio::time::sleep(world.config().loss_grace / 4).await;
        assert_missing(&store, &lease).await;
    }
    assert_eq!(store.health(WITHIN).await.counters.lost, 0);
    holders
        .iter()
        .for_each(|holder| assert!(world.cluster.restart_holder(*holder)));
    check_tensors(&get_all(&store, &lease).await.expect("its bytes"), &LENS, 1);
}

#[tokio::test]
async fn an_outage_costs_a_group_no_attempts() {
    let world = world();
    let config = FeatureConfig {
        loss_grace: Duration::from_secs(30),
        ..world.config()
    };
    let store = world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await;
    let (_, holders) = put_on_ssd(&world, &store).await;
    restart_without(&world, &holders);
    for answer in 0..6 {
        let lease = one(store.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
        assert_missing(&store, &lease).await;
        if answer % 2 == 0 {
            one(store.nack(std::slice::from_ref(&lease), WITHIN).await).expect("handed back");
        }
        drop(lease);
        store.drain(WITHIN).await.expect("let go of");
    }
    holders
        .iter()
        .for_each(|holder| assert!(world.cluster.restart_holder(*holder)));
    let lease = one(store.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
    check_tensors(&get_all(&store, &lease).await.expect("its bytes"), &LENS, 1);
    // What was served and is handed back counts, as before.
    let record = store
        .find(&[id("run/1")], WITHIN)
        .await
        .expect("found")
        .remove(0)
        .expect("live")
        .record;
    assert_eq!(record.groups[0].attempts, 1);
}

#[tokio::test]
async fn a_get_by_reference_is_told_of_the_loss() {
    let world = world();
    let store = world.open().await;
    let (stored, holders) = put_on_ssd(&world, &store).await;
    restart_without(&world, &holders);
    if holders.len() == 2 {
        world.cluster.restart_holder(holders[0]);
    }
    let begun = world.clock.now();
    let error = loop {
        let error = match store
            .find_live(&id("run/1"), Some(stored.reference.generation), WITHIN)
            .await
        {
            Ok(glimpse) => store
                .get_unleased(glimpse, tensorhold_features::Wanted::All, WITHIN)
                .await
                .expect_err("gone"),
            Err(error) => error,
        };
        if error.kind() != ErrorKind::Unavailable {
            break error;
        }
        assert!(world.clock.now().since(begun) < WITHIN, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(
        (error.kind(), error.fact("reason")),
        (ErrorKind::NotFound, Some("lost")),
        "{error}"
    );
}
