//! The index benchmark: leases and acknowledgements through [`Index`](tensorhold_index::Index), and transactions of the
//! same shape sent bare with `etcd-client`, on one etcd, turn by turn. `cargo xtask bench index` runs it.
//!
//! A ratio is ours over bare, as throughput: 1.0 is as fast. It is the median over the rounds, and the side that goes first
//! alternates. Beside each `x` there are its interval (`x_low` to `x_high`, 95 %), `x_rounds`, and the same ratio of processor
//! time (`x_cpu` of this process, `x_cpu_servers` of etcd).
//! Metrics and logging are on, as in a program that is looked after; `TENSORHOLD_METRICS=off` switches both off.
//!
//! Also measured: the cost of a sweep with a hundred times more samples, and the cost of quota when every producer
//! waits for it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints")]

mod bare;
mod credits;
mod ours;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tensorhold_core::{Clock, SystemClock};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
pub(crate) use tensorhold_testkit::quantile;
use tensorhold_testkit::{EtcdCluster, Paired};

/// Enough for anything on a machine that does other things too.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);

/// One workload: the number of workers, and the number of samples at a time.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    workers: usize,
    batch: usize,
    /// Samples in a round, over all workers.
    samples: usize,
    rounds: usize,
}

const SHAPES: [Shape; 3] = [
    Shape {
        name: "seq",
        workers: 1,
        batch: 1,
        samples: 150,
        rounds: 31,
    },
    Shape {
        name: "unbatched",
        workers: 16,
        batch: 1,
        samples: 1_600,
        rounds: 21,
    },
    Shape {
        name: "batched",
        workers: 16,
        batch: 64,
        samples: 8_192,
        rounds: 21,
    },
];

pub(crate) fn median(figures: &mut [f64]) -> f64 {
    quantile(figures, 0.5)
}

pub(crate) fn rounded(figure: f64) -> f64 {
    (figure * 1e4).round() / 1e4
}

/// A ratio with its interval, and the ratios of processor time beside it.
pub(crate) fn report_ratio(
    report: &mut serde_json::Map<String, serde_json::Value>,
    name: &str,
    wall: Paired,
    cpu: [f64; 2],
) {
    let [own, etcd] = cpu;
    let beside = [(format!("{name}_cpu"), own), (format!("{name}_cpu_servers"), etcd)];
    for (name, figure) in wall.figures(name).into_iter().chain(beside) {
        report.insert(name, rounded(figure).into());
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let (json, quick) = (
        arguments.iter().any(|a| a == "--json"),
        arguments.iter().any(|a| a == "--quick"),
    );
    // One part alone, for a developer who works on it: `--only batched`.
    let only = arguments.iter().skip_while(|a| *a != "--only").nth(1);
    let wanted = |part: &str| only.is_none_or(|only| only == part);
    if std::env::var_os("TENSORHOLD_METRICS").is_none_or(|setting| setting != "off") {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_writer(std::io::sink)
            .init();
    }
    let clock = SystemClock::new();
    let mut report = serde_json::Map::new();
    {
        let etcd = EtcdCluster::start(1)?;
        let endpoints = etcd.endpoints();
        for mut shape in SHAPES.into_iter().filter(|shape| wanted(shape.name)) {
            if quick {
                shape.rounds /= 3;
            }
            let figures = compare(&endpoints, shape, &clock, etcd.node(0).pid()).await?;
            eprintln!(
                "{}: ours {:.0} pairs/s, bare {:.0} pairs/s",
                shape.name, figures.ours, figures.bare
            );
            report_ratio(
                &mut report,
                &format!("{}_ratio", shape.name),
                figures.ratio,
                figures.cpu_ratios,
            );
            report.insert(format!("{}_pairs_per_s", shape.name), figures.ours.round().into());
            report.insert(format!("{}_pairs_per_s_bare", shape.name), figures.bare.round().into());
            report.insert(
                format!("{}_pairs_per_s_spread", shape.name),
                figures.spread.map(f64::round).to_vec().into(),
            );
            let cpu = [figures.ours_cpu, figures.bare_cpu].concat();
            report.insert(format!("{}_cpu_us", shape.name), rounded(figures.ours_cpu[0]).into());
            // The bare side of the same run tells how fast the machine was: this one can be compared between runs.
            report.insert(
                format!("{}_cpu_relative", shape.name),
                rounded(figures.ours_cpu[0] / figures.bare_cpu[0]).into(),
            );
            report.insert(
                format!("{}_cpu_us_per_pair", shape.name),
                cpu.into_iter().map(f64::round).collect(),
            );
            if shape.batch == 1 && shape.workers == 1 {
                report.insert("seq_p50_ms".into(), rounded(figures.p50).into());
                report.insert("seq_p99_ms".into(), rounded(figures.p99).into());
            }
            if shape.batch > 1 {
                report.insert("batched_samples_per_s".into(), figures.ours.round().into());
            }
        }
        if wanted("credits") {
            credits::measure(&endpoints, &clock, etcd.node(0).pid(), &mut report).await?;
        }
    }
    if wanted("sweep") {
        sweep::measure(if quick { 100_000 } else { 1_000_000 }, &clock, &mut report).await?;
    }
    if !json {
        for (name, figure) in &report {
            println!("{name:<32} {figure}");
        }
    }
    println!("{}", serde_json::Value::Object(report));
    Ok(())
}

struct Figures {
    ours: f64,
    bare: f64,
    ratio: Paired,
    /// Bare over ours, so that more is better: of this process, and of etcd.
    cpu_ratios: [f64; 2],
    spread: [f64; 2],
    p50: f64,
    p99: f64,
    /// Microseconds of processor time per pair: of this process, and of etcd.
    ours_cpu: [f64; 2],
    bare_cpu: [f64; 2],
}

/// The processor time that all threads of this process and those of another have used, in microseconds.
pub(crate) fn cpu_us(other: u32) -> Result<[f64; 2]> {
    Ok([tensorhold_testkit::own_cpu_us(), tensorhold_testkit::cpu_us(other)?])
}

/// A connection of its own to the bench's etcd, under a root of its own.
pub(crate) async fn connect(endpoints: &[String], root: &str) -> Result<Arc<EtcdStore>> {
    let mut config = EtcdConfig::new(endpoints.iter().cloned());
    root.clone_into(&mut config.root);
    Ok(Arc::new(
        EtcdStore::open(config, Arc::new(SystemClock::new()), WITHIN).await?,
    ))
}

async fn compare(endpoints: &[String], shape: Shape, clock: &SystemClock, etcd: u32) -> Result<Figures> {
    let mut ours = ours::Ours::connect(endpoints, shape.name).await?;
    let mut bare = bare::Bare::connect(endpoints, shape.name).await?;
    let mut rates: [Vec<f64>; 2] = Default::default();
    let mut own_cpu: [Vec<f64>; 2] = Default::default();
    let mut cpu = [[0.0; 2]; 2];
    let mut pair_times = Vec::new();
    for round in 0..=shape.rounds {
        ours.prepare(shape.samples).await?;
        bare.prepare(shape.samples).await?;
        // Ours first, bare first, bare first, ours first, and so on.
        let first = round.div_ceil(2) % 2;
        for side in [first, 1 - first] {
            let (begin, before) = (clock.now(), cpu_us(etcd)?);
            let times = if side == 0 {
                ours.run(shape.workers, shape.batch, shape.samples).await?
            } else {
                bare.run(shape.workers, shape.batch).await?;
                Vec::new()
            };
            let rate = shape.samples as f64 / clock.now().since(begin).as_secs_f64();
            let after = cpu_us(etcd)?;
            // The first round warms connections and caches up.
            if round > 0 {
                rates[side].push(rate);
                own_cpu[side].push(after[0] - before[0]);
                for ((sum, after), before) in cpu[side].iter_mut().zip(after).zip(before) {
                    *sum += after - before;
                }
                pair_times.extend(times);
            }
        }
    }
    let [ours_cpu, bare_cpu] = cpu.map(|sums| sums.map(|sum| sum / (shape.samples * shape.rounds) as f64));
    let [mut our_rates, mut bare_rates] = rates;
    Ok(Figures {
        ratio: Paired::of(&our_rates, &bare_rates),
        // etcd's time is counted in ticks that are too coarse for one round.
        cpu_ratios: [Paired::of(&own_cpu[1], &own_cpu[0]).ratio, bare_cpu[1] / ours_cpu[1]],
        spread: [quantile(&mut our_rates, 0.25), quantile(&mut our_rates, 0.75)],
        ours: median(&mut our_rates),
        bare: median(&mut bare_rates),
        p50: quantile(&mut pair_times, 0.5),
        p99: quantile(&mut pair_times, 0.99),
        ours_cpu,
        bare_cpu,
    })
}
