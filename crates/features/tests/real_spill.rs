//! Samples that may lie on SSD: more of them than DRAM holds, two epochs of each, a holder that dies between the two.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects, and prints what it saw"
)]

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use common::servers::*;
use common::*;
use tensorhold_core::{Clock, ErrorKind, SystemClock};
use tensorhold_engine::{Engine, Presence};
use tensorhold_features::{
    FeatureConfig, FeatureStore, Lease, Publication, Residency, SampleRef, Stored, TensorOut, Tier,
};
use tensorhold_testkit::Cluster;
use tokio::task::block_in_place;

const LEN: usize = MIB;
const DRAM: u64 = 128 << 20;

fn start_with_ssd(offload_on_evict: bool) -> Cluster {
    let builder = Cluster::builder()
        .p2p_metadata(true)
        .holders(2)
        .segment_mib(64)
        .etcd_nodes(1)
        .offload_on_evict(offload_on_evict);
    block_in_place(|| builder.ssd(true).lease_ttl(Duration::from_secs(1)).start()).expect("a cluster")
}

fn spilling() -> FeatureConfig {
    FeatureConfig {
        residency: Residency::Spill,
        chunk_bytes: LEN as u64,
        ..config()
    }
}

/// Puts samples that stay for another epoch, many at a time: each waits for a heartbeat of the holders.
async fn put_all(store: &FeatureStore, count: usize) -> Vec<Stored> {
    let mut stored = Vec::new();
    for from in (0..count).step_by(64) {
        let puts = (from..(from + 64).min(count)).map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut one = item(&format!("run/{n}"), &[LEN], n as u64);
                one.publication = Publication {
                    retain: true,
                    ..publication()
                };
                store.put(one, 3 * WITHIN).await.expect("stored")
            })
        });
        for put in puts.collect::<Vec<_>>() {
            stored.push(put.await.expect("no panic"));
        }
    }
    stored
}

/// Reads a sample. On a busy machine a transfer may outlast the engine's read lease, which is short here; a trainer would
/// ask again, too.
async fn read(store: &FeatureStore, lease: &Lease) -> Vec<TensorOut> {
    for _ in 0..10 {
        match get_all(store, lease).await {
            Err(error) if error.kind() == ErrorKind::Unavailable && error.fact("reason").is_none() => {}
            other => return other.expect("its bytes"),
        }
    }
    panic!("ten reads of {} outlasted the engine's lease", lease.reference().sample);
}

/// Takes, reads and acknowledges every sample, with the next `ahead` of them on their way. Returns the median time that a
/// reader waits for a sample's bytes.
async fn epoch(store: &FeatureStore, samples: &[Stored], engine: &dyn Engine, ahead: usize) -> Duration {
    let clock = SystemClock::new();
    let (mut seen, mut waits) = (HashSet::new(), Vec::new());
    while seen.len() < samples.len() {
        let leases = store.lease_next(&trainers(), 8, WITHIN).await.expect("samples");
        assert!(!leases.is_empty(), "{} of {} came", seen.len(), samples.len());
        if ahead > 0 {
            store
                .prefetch_ready(&trainers(), ahead, 8, WITHIN)
                .await
                .expect("begun");
        }
        for lease in &leases {
            let name = lease.reference().sample.to_string();
            let seed: u64 = name.trim_start_matches("run/").parse().expect("a number");
            let begin = clock.now();
            let tensors = read(store, lease).await;
            waits.push(clock.now().since(begin));
            check_tensors(&tensors, &[LEN], seed);
            assert!(seen.insert(name), "a sample came twice");
            // The trainer works.
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        for outcome in store.ack(&leases, WITHIN).await {
            outcome.expect("acknowledged");
        }
        let usage = block_in_place(|| engine.usage(WITHIN)).expect("figures");
        assert!(usage.dram_used <= DRAM, "{} bytes of DRAM", usage.dram_used);
    }
    waits.sort();
    waits[waits.len() / 2]
}

async fn reopen_all(store: &FeatureStore, samples: &[Stored]) {
    let references: Vec<SampleRef> = samples.iter().map(|stored| stored.reference.clone()).collect();
    for chunk in references.chunks(32) {
        for outcome in store.reopen(chunk, WITHIN).await {
            outcome.expect("another epoch");
        }
    }
}

/// A store over two holders with SSD folders, and samples in it that are all on SSD.
struct Spilled {
    // Fields drop in order: clients before the cluster.
    store: FeatureStore,
    engine: Arc<dyn Engine>,
    samples: Vec<Stored>,
    cluster: Cluster,
}

impl Spilled {
    async fn new(samples: usize, config: FeatureConfig) -> Self {
        let cluster = start_with_ssd(false);
        let endpoints = cluster.endpoints();
        let engine = connect(&endpoints);
        // Nobody dies here but holders: a machine that others use too must not end the session.
        let store = open_for(&endpoints, engine.clone(), config, WITHIN).await;
        let spilled = Self {
            samples: put_all(&store, samples).await,
            store,
            engine,
            cluster,
        };
        assert_eq!(spilled.on_ssd(), samples, "committed means: seen on SSD");
        spilled
    }

    /// How many of the samples are on SSD.
    fn on_ssd(&self) -> usize {
        self.how_many(|found| matches!(found, Presence::Present { ssd: 1.., .. }))
    }

    fn how_many(&self, is_so: impl Fn(&Presence) -> bool) -> usize {
        let keys: Vec<_> = self.samples.iter().flat_map(keys_of).collect();
        let found = block_in_place(|| self.engine.probe(&keys, WITHIN)).expect("an answer");
        found.iter().filter(|found| is_so(found)).count()
    }

    async fn epoch(&self, ahead: usize) -> Duration {
        epoch(&self.store, &self.samples, &*self.engine, ahead).await
    }

    async fn lost(&self) -> u64 {
        self.store.health(WITHIN).await.counters.lost
    }

    /// Kills a holder, and waits until the master has dropped it: it would drop what the holder brings when it comes
    /// back before that.
    async fn kill_holder(&self) {
        let clock = SystemClock::new();
        block_in_place(|| self.cluster.holder(0).kill()).expect("killed");
        let gone = clock.now();
        while self.on_ssd() == self.samples.len() {
            assert!(clock.now().since(gone) < 3 * WITHIN, "the master keeps a dead holder");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_epochs_of_four_times_the_dram_lose_nothing() {
    const SAMPLES: usize = 512;
    let spilled = Spilled::new(SAMPLES, spilling()).await;
    let (store, samples) = (&spilled.store, &spilled.samples);
    let ids: Vec<_> = samples.iter().map(|stored| stored.reference.sample.clone()).collect();
    let tiers = store.tiers(&ids, WITHIN).await.expect("an answer");
    let cold = tiers.iter().filter(|tier| **tier == Some(Tier::Ssd)).count();
    assert!(cold >= SAMPLES - 128, "{cold} on SSD only");
    let plain = spilled.epoch(0).await;
    reopen_all(store, samples).await;
    let ahead = spilled.epoch(8).await;
    let stats = store.prefetch_stats();
    eprintln!("{cold} of {SAMPLES} on SSD only; wait per sample {plain:?}, with ahead=8 {ahead:?}; {stats:?}");
    assert_eq!(spilled.lost().await, 0);
    assert!(stats.sources.local > 0, "some were read ahead");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_comes_back_brings_its_samples() {
    const SAMPLES: usize = 160;
    let spilled = Spilled::new(SAMPLES, spilling()).await;
    spilled.epoch(0).await;
    reopen_all(&spilled.store, &spilled.samples).await;
    spilled.kill_holder().await;
    let left = spilled.on_ssd();
    let clock = SystemClock::new();
    let begun = clock.now();
    block_in_place(|| {
        let holder = spilled.cluster.holder(0);
        holder.relaunch().and_then(|()| holder.wait_ready())
    })
    .expect("back");
    while spilled.on_ssd() < SAMPLES {
        assert!(clock.now().since(begun) < 3 * WITHIN, "some did not come back");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    eprintln!(
        "{left} of {SAMPLES} were there without the holder; all {:?} after it was started again",
        clock.now().since(begun)
    );
    spilled.epoch(8).await;
    assert_eq!(spilled.lost().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_a_holder_had_that_stays_away_is_lost_and_says_so() {
    const SAMPLES: usize = 96;
    let config = FeatureConfig {
        loss_grace: Duration::from_secs(4),
        ..spilling()
    };
    let spilled = Spilled::new(SAMPLES, config).await;
    spilled.kill_holder().await;
    let left = spilled.how_many(|found| matches!(found, Presence::Present { .. }));
    let mut open = Vec::new();
    while open.len() < SAMPLES {
        let leases = spilled.store.lease_next(&trainers(), SAMPLES, WITHIN).await;
        open.extend(leases.expect("samples"));
    }
    let clock = SystemClock::new();
    let begun = clock.now();
    let (mut read, mut lost) = (0, 0);
    while !open.is_empty() {
        assert!(
            clock.now().since(begun) < 6 * WITHIN,
            "{} neither read nor lost",
            open.len()
        );
        let mut later = Vec::new();
        for lease in open {
            let name = lease.reference().sample.to_string();
            let seed: u64 = name.trim_start_matches("run/").parse().expect("a number");
            match get_all(&spilled.store, &lease).await {
                Ok(tensors) => {
                    check_tensors(&tensors, &[LEN], seed);
                    read += 1;
                }
                Err(error) if error.fact("reason") == Some("lost") => lost += 1,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    later.push(lease);
                }
            }
        }
        open = later;
    }
    eprintln!("of {SAMPLES} samples {read} were read and {lost} were lost; the master still had {left}");
    assert_eq!((read, lost), (left, SAMPLES - left));
    assert!(lost > 0, "the holder had samples");
    assert_eq!(spilled.lost().await, lost as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_writes_to_ssd_too_late_is_refused() {
    let cluster = start_with_ssd(true);
    let endpoints = cluster.endpoints();
    let engine = connect(&endpoints);
    let store = open_as(&endpoints, engine, spilling()).await;
    let error = store
        .put(item("run/0", &[LEN], 0), Duration::from_secs(4))
        .await
        .expect_err("nothing promises that it is kept");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("--enable_offload"), "{error}");
    assert!(store.find(&[id("run/0")], WITHIN).await.expect("an answer")[0].is_none());
}
