//! A holder that is killed on real servers: it is named within half a minute, puts go on, and what it held is counted; also
//! while the leading master dies.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects, and prints how long it took"
)]

mod common;

use std::time::Duration;

use common::servers::*;
use common::*;
use tensorhold_core::{Clock, SystemClock};
use tensorhold_engine::Holder;
use tensorhold_features::{FeatureConfig, FeatureStore, HoldersSeen, RecordQuery, Stage, Stored};
use tensorhold_testkit::Cluster;
use tokio::task::block_in_place;

const SAMPLES: usize = 16;
const LEN: usize = MIB;
/// An operator is told by then.
const NAMED_WITHIN: Duration = Duration::from_secs(30);

fn sweeping() -> FeatureConfig {
    FeatureConfig {
        sweep_every: Some(Duration::from_millis(200)),
        ..config()
    }
}

async fn put_all(store: &FeatureStore, prefix: &str) -> Vec<Stored> {
    let mut stored = Vec::new();
    for n in 0..SAMPLES {
        stored.push(put(store, item(&format!("{prefix}/{n}"), &[LEN], n as u64)).await);
    }
    stored
}

async fn seen_once(
    store: &FeatureStore,
    what: &str,
    within: Duration,
    is_so: impl Fn(&HoldersSeen) -> bool,
) -> HoldersSeen {
    let clock = SystemClock::new();
    let begun = clock.now();
    loop {
        // While etcd or a master is away there is no answer.
        let seen = store.holders_seen(WITHIN).await.unwrap_or_default();
        if is_so(&seen) {
            eprintln!("{what}: after {:.1} s", clock.now().since(begun).as_secs_f64());
            return seen;
        }
        assert!(clock.now().since(begun) < within, "{what}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The samples that are live, each read.
async fn readable(store: &FeatureStore) -> usize {
    let live = store
        .records(&RecordQuery::of(Stage::Live), None, 1000, WITHIN)
        .await
        .expect("a list")
        .records;
    for record in &live {
        let lease = read(store, &record.sample).await;
        get_all(store, &lease).await.expect("a live sample is there");
    }
    live.len()
}

/// How many samples lay on the holder that is missing.
fn held_by(missing: &HoldersSeen, before: &[Holder]) -> u64 {
    let [gone] = &missing.missing[..] else {
        panic!("one holder died: {missing:?}")
    };
    let holder = before
        .iter()
        .find(|holder| holder.name == gone.name)
        .expect("it was listed");
    holder.dram_used / LEN as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_named_in_time_and_puts_go_on() {
    let builder = Cluster::builder()
        .p2p_metadata(true)
        .holders(2)
        .segment_mib(128)
        .etcd_nodes(1);
    let cluster = block_in_place(|| builder.start()).expect("a cluster");
    let endpoints = cluster.endpoints();
    let store = open_as(&endpoints, connect(&endpoints), sweeping()).await;
    put_all(&store, "before").await;
    seen_once(&store, "both are listed", NAMED_WITHIN, |seen| seen.listed.len() == 2).await;
    let before = store.holders(WITHIN).await.expect("holders");
    block_in_place(|| cluster.holder(0).kill()).expect("killed");
    // The master has not noticed yet.
    put_all(&store, "after").await;
    let seen = seen_once(&store, "named, and its samples suspected", NAMED_WITHIN, |seen| {
        !seen.missing.is_empty() && seen.suspected > 0
    })
    .await;
    let held = held_by(&seen, &before);
    assert_eq!(seen.suspected, held, "what it held: {seen:?}");
    seen_once(&store, "settled", 4 * NAMED_WITHIN, |seen| {
        seen.suspected == 0 && !seen.unsettled
    })
    .await;
    assert_eq!(store.counters().lost, held);
    assert_eq!(readable(&store).await as u64, 2 * SAMPLES as u64 - held);
    store.close(WITHIN).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_and_the_leading_master_die_and_every_sample_is_there_or_reported() {
    let builder = Cluster::builder()
        .p2p_metadata(true)
        .holders(2)
        .segment_mib(64)
        .etcd_nodes(1)
        .ha(true);
    let cluster = block_in_place(|| builder.start()).expect("a cluster");
    let endpoints = cluster.endpoints();
    let store = open_as(&endpoints, connect(&endpoints), sweeping()).await;
    put_all(&store, "run").await;
    seen_once(&store, "both are listed", NAMED_WITHIN, |seen| seen.listed.len() == 2).await;
    let before = store.holders(WITHIN).await.expect("holders");
    block_in_place(|| {
        let leader = cluster.leader().expect("a leader");
        cluster.holder(0).kill().expect("killed");
        cluster.master(leader).kill().expect("killed");
    });
    // The new leader lists the objects of the dead holder, which has never registered with it.
    let seen = seen_once(&store, "suspected", 3 * NAMED_WITHIN, |seen| {
        seen.listed.len() == 1 && seen.suspected > 0
    })
    .await;
    let held = held_by(&seen, &before);
    seen_once(&store, "settled", 4 * NAMED_WITHIN, |seen| {
        seen.suspected == 0 && !seen.unsettled
    })
    .await;
    assert_eq!(store.counters().lost, held, "no more and no fewer than lay there");
    assert_eq!(readable(&store).await as u64, SAMPLES as u64 - held);
    store.close(WITHIN).await.expect("closed");
}
