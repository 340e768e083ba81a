//! What a store's life looks like in the metrics of its process, and what its health says.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{SOON, WITHIN, World, ack, get_all, item, put, take, trainers};
use tensorhold_core::{StoreId, SystemRng};
use tensorhold_features::{FeatureConfig, FeatureStore};
use tensorhold_metrics::registry;

/// Tests of one process share its registry, so each has a store of its own.
async fn open(world: &World, name: &str) -> FeatureStore {
    let store = StoreId::new(name).expect("a name");
    let index = world.index_of(&store, world.txn_store.client());
    let config = FeatureConfig {
        store,
        ..world.config()
    };
    FeatureStore::open(
        world.cluster.connect(),
        index,
        config,
        world.clock.clone(),
        Arc::new(SystemRng),
    )
    .await
    .expect("a store")
}

/// The value of a series.
fn value(series: &str) -> Option<f64> {
    let text = registry().text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().expect("a number"))
}

#[tokio::test]
async fn every_step_of_a_sample_is_counted_once_and_timed() {
    let world = World::new();
    let store = open(&world, "life").await;
    let stored = put(&store, item("run/1", &[5000, 10], 1)).await;
    let lease = take(&store, &stored).await;
    assert_eq!(value(r#"tensorhold_leases_held{store="life"}"#), Some(1.0));
    get_all(&store, &lease).await.expect("tensors");
    ack(&store, &lease).await.expect("acknowledged");
    store.drain(WITHIN).await.expect("freed");
    assert!(
        store
            .lease_next(&trainers(), 1, SOON)
            .await
            .expect("nothing")
            .is_empty()
    );
    store
        .get(&lease, tensorhold_features::Wanted::All, WITHIN)
        .await
        .expect_err("it is gone");
    store.sweep(WITHIN).await.expect("swept");
    for (series, count) in [
        (
            r#"operation_seconds_count{store="life",operation="put",outcome="ok"}"#,
            1.0,
        ),
        (
            r#"operation_seconds_count{store="life",operation="lease",outcome="ok"}"#,
            1.0,
        ),
        (
            r#"operation_seconds_count{store="life",operation="get",outcome="ok"}"#,
            1.0,
        ),
        (
            r#"operation_seconds_count{store="life",operation="get",outcome="fenced"}"#,
            1.0,
        ),
        (
            r#"operation_seconds_count{store="life",operation="ack",outcome="ok"}"#,
            1.0,
        ),
        (
            r#"operation_seconds_count{store="life",operation="lease_next",outcome="ok"}"#,
            1.0,
        ),
        (r#"samples_put_total{store="life"}"#, 1.0),
        (r#"put_bytes_total{store="life"}"#, 5010.0),
        (r#"samples_taken_total{store="life"}"#, 1.0),
        (r#"empty_takes_total{store="life"}"#, 1.0),
        (r#"samples_got_total{store="life"}"#, 1.0),
        (r#"samples_freed_total{store="life"}"#, 1.0),
        (r#"reclaim_seconds_count{store="life"}"#, 1.0),
        (r#"leases_held{store="life"}"#, 0.0),
        (r#"pending_frees{store="life"}"#, 0.0),
        (r#"sessions_opened_total{store="life"}"#, 1.0),
        (r#"engine_objects_total{store="life",call="put",outcome="stored"}"#, 3.0),
        (
            r#"engine_objects_total{store="life",call="remove",outcome="removed"}"#,
            3.0,
        ),
        (r#"loaded_objects_total{store="life",tier="unknown"}"#, 3.0),
    ] {
        assert_eq!(
            value(&format!("tensorhold_{series}")),
            Some(count),
            "{series}\n{}",
            registry().text()
        );
    }
    let swept = value(r#"tensorhold_index_reads_total{store="life",kind="range",cause="sweep"}"#);
    assert!(swept.is_some_and(|reads| reads > 0.0), "{}", registry().text());
    assert!(!registry().text().contains("run/1"), "no label names a sample");

    store.close(WITHIN).await.expect("closed");
    drop(store);
    assert_eq!(
        value(r#"tensorhold_samples_put_total{store="life"}"#),
        Some(1.0),
        "it outlives the store"
    );
    assert_eq!(
        value(r#"tensorhold_leases_held{store="life"}"#),
        None,
        "a gauge does not"
    );
    let again = open(&world, "life").await;
    put(&again, item("run/2", &[10], 1)).await;
    assert_eq!(value(r#"tensorhold_samples_put_total{store="life"}"#), Some(2.0));
    assert_eq!(value(r#"tensorhold_sessions_opened_total{store="life"}"#), Some(2.0));
}

#[tokio::test]
async fn an_operation_whose_caller_leaves_is_timed_all_the_same() {
    let world = World::new();
    let store = open(&world, "left").await;
    let group = trainers();
    let waiting = store.lease_next(&group, 1, WITHIN);
    assert!(
        tokio::time::timeout(SOON, waiting).await.is_err(),
        "there is nothing to take"
    );
    store.close(WITHIN).await.expect("closed");
    // Whether it saw first that its caller had left or that the store closes.
    let ended = |outcome| {
        value(&format!(
            r#"tensorhold_operation_seconds_count{{store="left",operation="lease_next",outcome="{outcome}"}}"#
        ))
    };
    let either = ended("ok").or_else(|| ended("unavailable"));
    assert_eq!(either, Some(1.0), "{}", registry().text());
}

#[tokio::test]
async fn health_tells_free_budget_oldest_lease_and_clock() {
    let world = World::new();
    let store = open(&world, "health").await;
    let health = store.health(WITHIN).await;
    assert_eq!(
        (health.free_budget, health.leases, health.oldest_lease),
        (None, 0, None)
    );
    store.close(WITHIN).await.expect("closed");

    // A session that was opened before the first budget is not bound by it.
    let store = StoreId::new("health").expect("a name");
    let index = world.index_of(&store, world.txn_store.client());
    index.ensure_budget(10_000, WITHIN).await.expect("a budget");
    let store = open(&world, "health").await;
    let first = put(&store, item("run/1", &[4000], 1)).await;
    let second = put(&store, item("run/2", &[1000], 1)).await;
    let older = take(&store, &first).await;
    let from = world.clock.as_ref();
    let taken = tensorhold_core::Clock::now(from);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let younger = take(&store, &second).await;
    store.sweep(WITHIN).await.expect("swept");
    let health = store.health(WITHIN).await;
    let since = tensorhold_core::Clock::now(from).since(taken);
    assert_eq!((health.free_budget, health.leases), (Some(5000), 2));
    let oldest = health.oldest_lease.expect("a lease");
    assert!(
        oldest >= Duration::from_millis(30) && oldest >= since - Duration::from_millis(20),
        "{oldest:?}"
    );
    let (tick, stood) = health.clock.expect("a sweep looks at the clock");
    assert!(tick.0 >= 1 && stood < WITHIN, "{tick:?} {stood:?}");

    ack(&store, &older).await.expect("acknowledged");
    let health = store.health(WITHIN).await;
    assert!(health.leases == 1 && health.oldest_lease.expect("the younger") < oldest + WITHIN);
    drop(younger);
    assert_eq!(store.health(WITHIN).await.leases, 0);
    store.drain(WITHIN).await.expect("freed");
    // The one that was not looked at goes back and stays live: its bytes are not free.
    assert_eq!(store.health(WITHIN).await.free_budget, Some(9000));
    // A clock that nobody moves stands still.
    tokio::time::sleep(Duration::from_millis(30)).await;
    let (again, later) = store.health(WITHIN).await.clock.expect("a clock");
    assert!(again == tick && later > stood, "{again:?} {later:?}");
}
