//! The feature store against the bare engine, turn by turn, on one real cluster with a real etcd: a sample of 128 MiB and
//! one of 4 MiB, five tensors each. A ratio is the median time of the bare engine over the median time of ours, so 1.0 is
//! as fast and less is slower. `reclaim` is the time from the last acknowledgement until the bytes are freed.
//! `cargo xtask bench features [--json]` runs it; the last line is one JSON object (times: ours, then bare).
//!
//! `cargo run --release -p holdfast-features --features embed --example features_bench [-- rounds [streams [chunk MiB [checksums: 1 or 0]]]]`
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_core::{Clock, DType, ObjectKey, SampleId, SystemClock, SystemRng, TensorName, TensorSpec};
use holdfast_engine::{Engine, EngineExt, GetOutcome, PutOptions, PutOutcome, Region, Transfer};
use holdfast_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use holdfast_features::{FeatureConfig, FeatureStore, GroupName, Publication, PutItem, TensorIn, Wanted};
use holdfast_index::{IndexConfig, KvIndex};
use holdfast_index_etcd::{EtcdConfig, EtcdKv};
use holdfast_testkit::{Cluster, Endpoints};

const WITHIN: Duration = Duration::from_secs(30);
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const WARM_UP: usize = 3;

struct Bench {
    engine: Arc<dyn Engine>,
    store: FeatureStore,
    clock: SystemClock,
    group: GroupName,
}

fn connect(endpoints: &Endpoints) -> Result<Arc<dyn Engine>> {
    let mut environment: BTreeMap<_, _> = endpoints.client_env.iter().cloned().collect();
    environment.insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
    Ok(Arc::new(MooncakeEngine::connect(MooncakeConfig {
        master: endpoints.master.clone(),
        metadata: endpoints.metadata.clone(),
        admin: endpoints.admin.clone(),
        environment,
        ..MooncakeConfig::default()
    })?))
}

/// Writes every page of the cluster's memory once, then empties it: the first write to a page costs twice as much.
fn touch(engine: &dyn Engine) -> Result<()> {
    let block = engine.allocate(32 * MIB, WITHIN)?;
    let mut keys = Vec::new();
    loop {
        let key = ObjectKey::new(format!("touch/{}", keys.len()))?;
        match engine.put_one(&key, &block.whole(), &PutOptions::default(), WITHIN)? {
            PutOutcome::Stored => keys.push(key),
            PutOutcome::Full => break,
            PutOutcome::Failed(error) => return Err(error.into()),
        }
    }
    engine.remove(&keys, WITHIN)?;
    Ok(())
}

#[derive(Default)]
struct Times {
    bare_put: Vec<f64>,
    bare_get: Vec<f64>,
    put: Vec<f64>,
    get: Vec<f64>,
    reclaim: Vec<f64>,
}

impl Bench {
    fn since(&self, begun: holdfast_core::Timestamp) -> f64 {
        self.clock.now().since(begun).as_secs_f64() * 1e3
    }

    fn bare(&self, turn: usize, source: &Region, target: &Region, sizes: &[usize], times: &mut Times) -> Result<()> {
        let batch = |region: &Region| -> Result<Vec<Transfer>> {
            let mut at = 0;
            let mut batch = Vec::new();
            for (n, size) in sizes.iter().enumerate() {
                let key = ObjectKey::new(format!("bare/{turn}/{n}"))?;
                batch.push(Transfer::new(key, region.span(at..at + size)?));
                at += size;
            }
            Ok(batch)
        };
        let (from, into) = (batch(source)?, batch(target)?);
        let begun = self.clock.now();
        let stored = self.engine.put(&from, &PutOptions::default(), WITHIN)?;
        times.bare_put.push(self.since(begun));
        ensure!(
            stored.iter().all(|outcome| matches!(outcome, PutOutcome::Stored)),
            "{stored:?}"
        );
        let begun = self.clock.now();
        let loaded = self.engine.get(&into, WITHIN)?;
        times.bare_get.push(self.since(begun));
        ensure!(
            loaded.iter().all(|outcome| matches!(outcome, GetOutcome::Loaded)),
            "{loaded:?}"
        );
        let keys: Vec<_> = from.iter().map(|transfer| transfer.key.clone()).collect();
        self.engine.remove(&keys, WITHIN)?;
        Ok(())
    }

    async fn ours(&self, turn: usize, source: &Region, sizes: &[usize], times: &mut Times) -> Result<()> {
        let mut at = 0;
        let mut tensors = Vec::new();
        for (n, size) in sizes.iter().enumerate() {
            let spec = TensorSpec::new(TensorName::new(format!("t{n}"))?, DType::Uint8, [*size as u64])?;
            tensors.push(TensorIn::new(spec, source.span(at..at + size)?));
            at += size;
        }
        let item = PutItem {
            sample: SampleId::new(format!("bench/{turn}"))?,
            tensors,
            publication: Publication {
                groups: vec![self.group.clone()],
                retain: false,
                max_attempts: 1,
            },
        };
        let begun = self.clock.now();
        let stored = self.store.put(item, WITHIN).await?;
        times.put.push(self.since(begun));
        let mut leases = self.store.lease(&self.group, &[stored.reference], WITHIN).await;
        let lease = leases.pop().context("no lease")??;
        let begun = self.clock.now();
        let tensors = self.store.get(&lease, Wanted::All, WITHIN).await?;
        times.get.push(self.since(begun));
        drop(tensors);
        for answer in self.store.ack(&[lease], WITHIN).await {
            answer?;
        }
        let begun = self.clock.now();
        self.store.drain(WITHIN).await?;
        times.reclaim.push(self.since(begun));
        Ok(())
    }
}

fn quantile(times: &mut [f64], q: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index between 0 and the length"
    )]
    let at = ((times.len() - 1) as f64 * q).round() as usize;
    times[at]
}

fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let json = std::env::args().any(|arg| arg == "--json");
    let mut report = serde_json::Map::new();
    let mut args = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--json")
        .map(|arg| arg.parse::<usize>());
    let mut next = |default| args.next().transpose().map(|given| given.unwrap_or(default));
    let (rounds, streams, chunk, checksum) = (next(31)?, next(2)?, next(16)?, next(1)? == 1);
    let cluster = Cluster::builder()
        .segment_mib(768)
        .p2p_metadata(true)
        .etcd_nodes(1)
        .start()?;
    let endpoints = cluster.endpoints();
    let engine = connect(&endpoints)?;
    touch(&*engine)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let config = FeatureConfig {
        streams,
        checksum,
        chunk_bytes: (chunk * MIB) as u64,
        ..FeatureConfig::new("bench".parse()?)
    };
    let kv = EtcdKv::open(EtcdConfig::new(endpoints.etcd), Arc::clone(&clock), WITHIN).await?;
    let index = KvIndex::new(
        Arc::new(kv),
        &config.store,
        IndexConfig::default(),
        Arc::clone(&clock),
        Arc::new(SystemRng),
    );
    let store = FeatureStore::open(Arc::clone(&engine), Arc::new(index), config, clock, Arc::new(SystemRng)).await?;
    let bench = Bench {
        engine,
        store,
        clock: SystemClock::new(),
        group: GroupName::new("trainers")?,
    };
    for (name, sizes) in [
        ("128m", [96 * MIB, 32 * MIB, 32 * KIB, 32 * KIB, 32 * KIB]),
        ("4m", [3 * MIB, MIB, KIB, KIB, KIB]),
    ] {
        let total = sizes.iter().sum();
        let (source, target) = (
            bench.engine.allocate(total, WITHIN)?,
            bench.engine.allocate(total, WITHIN)?,
        );
        source.whole().write(0, &vec![7; total])?;
        target.whole().write(0, &vec![1; total])?;
        let mut times = Times::default();
        for turn in 0..rounds + WARM_UP {
            if turn == WARM_UP {
                times = Times::default();
            }
            let turn_of = |side: usize| turn % 2 == side;
            if turn_of(0) {
                bench.bare(turn, &source, &target, &sizes, &mut times)?;
            }
            bench.ours(turn, &source, &sizes, &mut times).await?;
            if turn_of(1) {
                bench.bare(turn, &source, &target, &sizes, &mut times)?;
            }
        }
        for (what, bare, ours) in [
            ("put", &mut times.bare_put, &mut times.put),
            ("get", &mut times.bare_get, &mut times.get),
        ] {
            let [(low, ours_low), (bare, ours)] = [0.1, 0.5].map(|q| (quantile(bare, q), quantile(ours, q)));
            report.insert(format!("{what}_{name}"), rounded(bare / ours).into());
            report.insert(format!("{what}_{name}_ms"), vec![rounded(ours), rounded(bare)].into());
            if json {
                continue;
            }
            println!(
                "{name:>5} {what}  bare {bare:8.3} ms, ours {ours:8.3} ms, ratio {:.3}   (best tenth: {low:.3}, {ours_low:.3}, {:.3})",
                bare / ours,
                low / ours_low,
            );
        }
        let (median, p99) = (quantile(&mut times.reclaim, 0.5), quantile(&mut times.reclaim, 0.99));
        report.insert(format!("reclaim_{name}_ms"), vec![rounded(median), rounded(p99)].into());
        if !json {
            println!("{name:>5} reclaim  median {median:.3} ms, p99 {p99:.3} ms");
        }
    }
    bench.store.close(WITHIN).await?;
    println!("{}", serde_json::Value::Object(report));
    Ok(())
}
