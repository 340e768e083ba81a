//! Prefetch on exist, measured: how long objects take from SSD to memory by each route, what a get saves by it, and what
//! a probe costs. `cargo xtask bench prefetch` runs it.
//!
//! A real master, two holders of 64 MiB with an SSD folder each, and 400 objects of 1 MiB. The holders' heartbeat is a
//! second and promotes 16 objects, ten and sixteen times as much as Mooncake's defaults: the route by promotion is
//! measured at its best.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints")]
#![allow(clippy::expect_used, clippy::panic, reason = "a benchmark ends by panicking")]
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

#[path = "../tests/truths/bare.rs"]
#[allow(dead_code, unreachable_pub, reason = "this file uses a part of it")]
mod bare;
#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/prefetch/ssd_cluster.rs"]
#[allow(dead_code, reason = "this file uses a part of it")]
mod ssd_cluster;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tensorhold_core::{Clock, ObjectKey, SystemClock};
use tensorhold_engine::{Engine, EngineExt, GetOutcome};
use tensorhold_prefetch::{Outcome, PrefetchConfig, PrefetchEngine, Priority, Route};
use tensorhold_testkit::quantile;

use bare::{Bare, MIB};
use common::WITHIN;
use ssd_cluster::SsdCluster;

const OBJECTS: usize = 40;
const LONGEST: Duration = Duration::from_secs(6);

fn rounded(figure: f64) -> Value {
    ((figure * 1e3).round() / 1e3).into()
}

/// Seconds of processor time of a process, in the kernel's ticks of 10 ms.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

struct Bench {
    ssd: SsdCluster,
    clock: SystemClock,
}

impl Bench {
    /// Processor time so far: this process, the holders, the master.
    fn cpus(&self) -> [f64; 3] {
        let cluster = &self.ssd.cluster;
        [
            cpu(std::process::id()),
            (0..2).map(|n| cpu(cluster.holder(n).pid())).sum(),
            cpu(cluster.master(0).pid()),
        ]
    }

    fn gets(&self, engine: &dyn Engine, keys: &[ObjectKey]) -> Vec<f64> {
        let into = self.ssd.engine.allocate(MIB, WITHIN).expect("memory");
        let timed = |key: &ObjectKey| {
            let begin = self.clock.now();
            let got = engine.get_one(key, &into.whole(), WITHIN).expect("an outcome");
            matches!(got, GetOutcome::Loaded).then(|| self.clock.now().since(begin).as_secs_f64() * 1e3)
        };
        // On a machine that is busy otherwise a transfer may outlast the engine's read lease, which is short here.
        let again = |key: &ObjectKey| (0..3).find_map(|_| timed(key)).expect("one get of three works");
        keys.iter().map(again).collect()
    }

    /// Objects on SSD only; what the last round brought up is crowded out first.
    fn cold(&self, count: usize) -> Vec<ObjectKey> {
        let bare = Bare::connect(&self.ssd.cluster);
        let bulk = bare.filled(MIB, 9);
        for turn in 0.. {
            if self.ssd.cold_count() >= 300 {
                break;
            }
            assert!(turn < 4000, "objects stay in DRAM");
            if bare.put(
                &format!(
                    "crowd/{}",
                    self.clock.now().since(tensorhold_core::Timestamp::ORIGIN).as_nanos()
                ),
                &bulk.whole(),
                bare::Keep::Evictable,
            ) != 0
            {
                self.clock.sleep(Duration::from_millis(20));
            }
        }
        self.ssd.cold(count)
    }

    /// Times from the question until each object is in memory; the outcomes; and the gets that follow.
    fn route(&self, route: Route, rounds: usize, figures: &mut Map<String, Value>) -> Vec<f64> {
        let suffix = if route == Route::Buffer { "" } else { "_promote" };
        let (mut arrived, mut gets, mut resident) = (Vec::new(), Vec::new(), Vec::new());
        let mut cpus = [0.0; 3];
        let mut evicted = 0.0;
        for round in 0..rounds {
            eprintln!("{route:?}: round {} of {rounds}", round + 1);
            let keys = self.cold(OBJECTS);
            let config = PrefetchConfig {
                route,
                // As the cluster's DRAM is full by construction, a promotion must be let through to be measured.
                dram_below: 1.0,
                ..PrefetchConfig::default()
            };
            let engine = PrefetchEngine::new(
                Arc::clone(&self.ssd.engine),
                config,
                Arc::new(SystemClock::new()) as Arc<dyn Clock>,
            )
            .expect("lawful settings");
            let (before, evicted_before) = (self.cpus(), self.ssd.metric("master_evicted_key_count"));
            let begin = self.clock.now();
            let asked = engine.exists_and_prefetch(&keys, Priority::Guess, WITHIN);
            let (_, prefetch) = asked.expect("answers");
            let mut times: Vec<Option<f64>> = vec![None; OBJECTS];
            loop {
                let took = self.clock.now().since(begin);
                let outcomes = prefetch.wait(Duration::from_millis(1));
                for (time, outcome) in times.iter_mut().zip(&outcomes) {
                    if time.is_none() && matches!(outcome, Some(Outcome::Resident)) {
                        *time = Some(self.clock.now().since(begin).as_secs_f64() * 1e3);
                    }
                }
                if outcomes.iter().all(Option::is_some) || took > LONGEST {
                    break;
                }
            }
            let after = self.cpus();
            for (sum, (after, before)) in cpus.iter_mut().zip(after.iter().zip(before)) {
                *sum += after - before;
            }
            evicted += self.ssd.metric("master_evicted_key_count") - evicted_before;
            resident.push(times.iter().flatten().count());
            arrived.extend(times.iter().flatten());
            let there: Vec<ObjectKey> = keys
                .iter()
                .zip(&times)
                .filter(|(_, time)| time.is_some())
                .map(|(key, _)| key.clone())
                .collect();
            gets.extend(self.gets(&engine, &there));
        }
        resident.sort_unstable();
        let keys = (rounds * OBJECTS) as f64;
        figures.insert(format!("ttdram_p50_ms{suffix}"), rounded(quantile(&mut arrived, 0.5)));
        figures.insert(format!("ttdram_p99_ms{suffix}"), rounded(quantile(&mut arrived, 0.99)));
        figures.insert(format!("prefetched_of_40{suffix}"), resident[rounds / 2].into());
        figures.insert(format!("get_p50_ms{suffix}"), rounded(quantile(&mut gets, 0.5)));
        figures.insert(format!("evicted_per_key{suffix}"), rounded(evicted / keys));
        for (name, seconds) in ["client", "holder", "master"].into_iter().zip(cpus) {
            figures.insert(format!("cpu_ms_per_key_{name}{suffix}"), rounded(seconds * 1e3 / keys));
        }
        gets
    }

    fn requests(&self) -> f64 {
        let served = [
            "master_batch_get_replica_list_requests_total",
            "master_get_replica_list_requests_total",
        ];
        let served: f64 = served.iter().map(|name| self.ssd.metric(name)).sum();
        served + self.ssd.probes() as f64
    }

    /// Requests to the master for each key of a batch of 64, question and transfer together.
    fn requests_per_key(&self) -> f64 {
        let keys = self.cold(64);
        let config = PrefetchConfig::default();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let engine = PrefetchEngine::new(Arc::clone(&self.ssd.engine), config, clock).expect("lawful settings");
        let before = self.requests();
        let asked = engine.exists_and_prefetch(&keys, Priority::Guess, WITHIN);
        let (_, prefetch) = asked.expect("answers");
        assert!(prefetch.wait(LONGEST).iter().all(Option::is_some));
        self.gets(&engine, &keys);
        (self.requests() - before) / keys.len() as f64
    }

    /// Our probes over Mooncake's own, in turns: keys a second in batches of 64, from one thread.
    fn probe_ratio(&self, figures: &mut Map<String, Value>) {
        const TURN: Duration = Duration::from_millis(400);
        let keys = self.ssd.any(64);
        let names: Vec<&str> = keys.iter().map(ObjectKey::as_str).collect();
        let bare = Bare::connect(&self.ssd.cluster);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let engine = PrefetchEngine::new(Arc::clone(&self.ssd.engine), PrefetchConfig::default(), clock)
            .expect("lawful settings");
        let rate = |ask: &dyn Fn()| {
            let (begin, mut asked) = (self.clock.now(), 0_u64);
            while self.clock.now().since(begin) < TURN {
                ask();
                asked += 64;
            }
            asked as f64 / self.clock.now().since(begin).as_secs_f64()
        };
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..7 {
            let one = rate(&|| drop(engine.exists(&keys, WITHIN).expect("answers")));
            let other = rate(&|| drop(bare.batch_is_exist(&names)));
            ours.push(one);
            theirs.push(other);
            ratios.push(one / other);
        }
        figures.insert("probe_ratio".to_owned(), rounded(quantile(&mut ratios, 0.5)));
        figures.insert("probe_keys_per_s".to_owned(), quantile(&mut ours, 0.5).round().into());
        figures.insert(
            "is_exist_keys_per_s".to_owned(),
            quantile(&mut theirs, 0.5).round().into(),
        );
        let many = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| rate(&|| drop(engine.exists(&keys, WITHIN)))))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .sum::<f64>()
        });
        figures.insert("probe_keys_per_s_8_threads".to_owned(), many.round().into());
    }
}

fn main() {
    let [json, quick] = ["--json", "--quick"].map(|flag| std::env::args().any(|arg| arg == flag));
    let rounds = if quick { 2 } else { 5 };
    eprintln!("400 objects of 1 MiB go to 128 MiB of DRAM …");
    let bench = Bench {
        ssd: SsdCluster::start(400),
        clock: SystemClock::new(),
    };
    let mut figures = Map::new();
    let mut prefetched = bench.route(Route::Buffer, rounds, &mut figures);
    let cold = bench.cold(OBJECTS);
    let mut from_ssd = bench.gets(&*bench.ssd.engine, &cold);
    bench.route(Route::Promote, rounds, &mut figures);
    let (slow, fast) = (quantile(&mut from_ssd, 0.5), quantile(&mut prefetched, 0.5));
    figures.insert("get_ssd_p50_ms".to_owned(), rounded(slow));
    figures.insert("get_speedup".to_owned(), rounded(slow / fast));
    figures.insert("master_requests_per_key".to_owned(), rounded(bench.requests_per_key()));
    bench.probe_ratio(&mut figures);
    if !json {
        for (name, figure) in &figures {
            println!("{name:32} {figure}");
        }
    }
    println!("{}", Value::Object(figures));
}
