//! A restarted master and late holders with an SSD: samples that come back are not declared lost, those that do not are
//! reported within the grace, and nothing is left of them.
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
use tensorhold_core::{Clock, ErrorKind, SystemClock};
use tensorhold_engine::{Engine, Presence};
use tensorhold_features::{FeatureStore, Lease, Stored};
use tensorhold_testkit::Cluster;
use tokio::task::block_in_place;

const SAMPLES: usize = 6;
const LEN: usize = MIB;

fn start_with_ssd() -> Cluster {
    let builder = Cluster::builder()
        .p2p_metadata(true)
        .holders(2)
        .segment_mib(64)
        .etcd_nodes(1);
    block_in_place(|| builder.ssd(true).lease_ttl(Duration::from_secs(1)).start()).expect("a cluster")
}

/// Whether all of a sample's objects have a copy on SSD.
fn is_on_ssd(engine: &dyn Engine, stored: &Stored) -> bool {
    let found = block_in_place(|| engine.probe(&keys_of(stored), WITHIN)).expect("an answer");
    found
        .iter()
        .all(|found| matches!(found, Presence::Present { ssd: 1.., .. }))
}

/// One try at each sample: how many came, and how many are missing. Nothing else happens to any.
async fn try_all(store: &FeatureStore, leases: &[Lease]) -> (usize, usize) {
    let (mut came, mut missing) = (0, 0);
    for (seed, lease) in leases.iter().enumerate() {
        match get_all(store, lease).await {
            Ok(tensors) => {
                check_tensors(&tensors, &[LEN], seed as u64);
                came += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                missing += 1;
            }
        }
    }
    (came, missing)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_master_and_a_late_holder_condemn_nothing_that_comes_back() {
    let cluster = start_with_ssd();
    let endpoints = cluster.endpoints();
    let engine = connect(&endpoints);
    let store = open_on(&endpoints, engine.clone()).await;
    let clock = SystemClock::new();
    let (mut samples, mut leases) = (Vec::new(), Vec::new());
    for n in 0..SAMPLES {
        let stored = put(&store, item(&format!("run/{n}"), &[LEN], n as u64)).await;
        leases.push(take(&store, &stored).await);
        samples.push(stored);
    }
    let begun = clock.now();
    while !samples.iter().all(|stored| is_on_ssd(&*engine, stored)) {
        assert!(clock.now().since(begun) < 3 * WITHIN, "not on SSD");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    // The master is restarted, one holder is late. Readers come meanwhile, over and over.
    block_in_place(|| {
        cluster.holder(0).stop().expect("stopped");
        cluster.master(0).restart().expect("restarted");
    });
    let restarted = clock.now();
    let mut most_missing = 0;
    while clock.now().since(restarted) < Duration::from_secs(8) {
        most_missing = most_missing.max(try_all(&store, &leases).await.1);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(most_missing > 0, "nobody met a miss, so this shows nothing");
    cluster.holder(0).resume().expect("resumed");
    let resumed = clock.now();
    loop {
        let (came, missing) = try_all(&store, &leases).await;
        if came == SAMPLES {
            break;
        }
        assert!(clock.now().since(resumed) < 3 * WITHIN, "{missing} did not come back");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eprintln!(
        "{most_missing} of {SAMPLES} were missing; all were back {:.1} s after the late holder went on",
        clock.now().since(resumed).as_secs_f64()
    );
    assert_eq!(store.health(WITHIN).await.counters.lost, 0, "condemned");

    // Now a holder stays away. What only it has is lost by the end of the grace, and no sooner; the rest comes back.
    block_in_place(|| {
        cluster.holder(0).kill().expect("killed");
        cluster.master(0).restart().expect("restarted");
    });
    let restarted = clock.now();
    let grace = config().loss_grace;
    let mut waiting: Vec<usize> = (0..SAMPLES).collect();
    let mut lost = Vec::new();
    while !waiting.is_empty() {
        let mut left = Vec::new();
        for at in waiting {
            match get_all(&store, &leases[at]).await {
                Ok(tensors) => check_tensors(&tensors, &[LEN], at as u64),
                Err(error) if error.fact("reason") == Some("lost") => {
                    let took = clock.now().since(restarted);
                    assert!(took >= grace, "lost after {took:?}");
                    lost.push(at);
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    left.push(at);
                }
            }
        }
        waiting = left;
        assert!(
            clock.now().since(restarted) < grace + 3 * WITHIN,
            "{waiting:?} neither come back nor are lost"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eprintln!(
        "{} of {SAMPLES} lost {:.1} s after the master was restarted, with a grace of {grace:?}",
        lost.len(),
        clock.now().since(restarted).as_secs_f64()
    );
    assert_eq!(store.health(WITHIN).await.counters.lost, lost.len() as u64);
    assert!(
        !lost.is_empty(),
        "nothing was on the holder that stayed away, so this shows nothing"
    );

    // It comes after all, with what it has on SSD; no reader needs that any more, and it is removed.
    block_in_place(|| cluster.holder(0).restart()).expect("restarted");
    drop(leases);
    let left = || -> usize { lost.iter().map(|at| present(&*engine, &keys_of(&samples[*at]))).sum() };
    let begun = clock.now();
    while left() == 0 {
        assert!(
            clock.now().since(begun) < 3 * WITHIN,
            "nothing came back, so this shows nothing"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eprintln!(
        "{} lost objects came back {:.1} s after their holder",
        left(),
        clock.now().since(begun).as_secs_f64()
    );
    let begun = clock.now();
    let mut freed = 0;
    while left() > 0 || freed < lost.len() {
        freed += store.sweep(WITHIN).await.expect("swept").freed;
        assert!(
            clock.now().since(begun) < 3 * WITHIN,
            "{} objects stay, {freed} samples are freed",
            left()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let ids: Vec<_> = samples.iter().map(|stored| stored.reference.sample.clone()).collect();
    let live = store.find(&ids, WITHIN).await.expect("found").iter().flatten().count();
    assert_eq!(live, SAMPLES - lost.len());
}
