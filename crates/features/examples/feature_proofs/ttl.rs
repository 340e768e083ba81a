//! Proof 1: how long a sample lives has nothing to do with how long the engine protects objects that were read.
//!
//! The master protects every object that was read for 300 s. Eight gigabytes of samples go through a pool of 256 MiB in
//! far less than that, eight samples at a time: a store that relied on that protection to end would stand still after
//! 64 samples.
//!
//! Beside it, the same workload on SpecForge's own store, on a cluster of the same kind, for a limited time.
//!
//! The store's budget bounds what is in flight: eight samples. A sample counts from before its first byte is written
//! until the index was told that its bytes are gone, so the engine can never hold more, whatever the processes do.

use std::time::Duration;

use anyhow::{Result, ensure};
use tensorhold_core::{Clock, Deadline, SystemClock};
use tensorhold_testkit::Cluster;

use crate::beside::{self, Amount};
use crate::crew::{Member, all};
use crate::gauge::{Gauge, master_counter};
use crate::journal::{Event, most_frequent};
use crate::report::{Report, quantile, rounded};
use crate::worker::{Produce, Role};
use crate::world::{MIB, Settings, WITHIN, runtime};

const SAMPLE: usize = 4 * MIB;
/// Two tensors.
const LENS: [usize; 2] = [3 * MIB, MIB];
const IN_FLIGHT: u64 = 8;
/// What one put writes at once: one sample.
const BATCH: u64 = 1;
const POOL_MIB: u64 = 256;
const LEASE: Duration = Duration::from_secs(300);
/// The goal for the time from the last acknowledgement until the bytes are free.
const GOAL_MILLIS: f64 = 50.0;
/// The proof gives up after this.
const LONGEST: Duration = Duration::from_secs(600);

/// `alone`: without SpecForge's own store, which takes ten times as long.
pub(crate) fn run(quick: bool, alone: bool) -> Result<Report> {
    let samples: u64 = if quick { 200 } else { 2000 };
    let clock = SystemClock::new();
    let cluster = cluster(1)?;
    let mut settings = Settings::new(cluster.endpoints())?;
    settings.store.max_in_flight = 8;
    settings.store.pool_bytes = 64 << 20;
    settings.store.sweep_every = Some(settings.index.tick);
    let runtime = runtime()?;
    let index = runtime.block_on(settings.index())?;
    runtime.block_on(index.set_budget(IN_FLIGHT * SAMPLE as u64, WITHIN))?;
    let engine = settings.engine()?;
    let admin = cluster.endpoints().admin;
    let gauge = Gauge::start(engine.clone());

    let begun = clock.now();
    let mut crew = Vec::new();
    for n in 0..2 {
        let role = Role::Consume {
            at_once: 4,
            use_millis: 0,
        };
        crew.push(Member::start(
            cluster.dir(),
            &settings,
            &format!("consumer-{n}"),
            role,
            None,
        )?);
        let role = Role::Produce(Produce {
            count: Some(samples / 2),
            lens: LENS.to_vec(),
            at_once: 4,
            pause_millis: 0,
        });
        crew.push(Member::start(
            cluster.dir(),
            &settings,
            &format!("producer-{n}"),
            role,
            None,
        )?);
    }
    let deadline = Deadline::after(&clock, LONGEST);
    let mut told = clock.now();
    loop {
        let (mut acked, mut failed) = (0, 0);
        for member in &mut crew {
            member.must_run()?;
            acked += member.count(|event| matches!(event, Event::Acked { .. }))? as u64;
            failed += member.count(|event| matches!(event, Event::NotPut { .. }))? as u64;
        }
        if clock.now().since(told) >= Duration::from_secs(2) {
            told = clock.now();
            eprintln!(
                "ttl: {acked} of {samples} samples used up after {:.0?}",
                told.since(begun)
            );
        }
        if acked + failed >= samples {
            break;
        }
        ensure!(
            !deadline.passed(&clock),
            "only {acked} of {samples} samples were used up in {LONGEST:?}"
        );
        clock.sleep(Duration::from_millis(50));
    }
    let took = clock.now().since(begun);
    for member in &mut crew {
        member.finish()?;
    }
    let peak = gauge.stop()?;
    let left = engine.usage(WITHIN)?;
    let evicted = master_counter(&admin, "master_evicted_key_count")?;
    let mut report = Report::new("ttl");
    report.note(format!(
        "{samples} samples of 4 MiB through a pool of {POOL_MIB} MiB in {took:.1?}, 2 producer and 2 consumer processes; \
         the master protects what was read for {LEASE:?}; in flight: the store's budget of {IN_FLIGHT} samples"
    ));
    judge(&mut report, &crew, samples);
    let bound = (IN_FLIGHT + BATCH) * SAMPLE as u64;
    report.claim(
        format!(
            "the engine never holds more than what is in flight and one batch, {} MiB",
            bound >> 20
        ),
        format!(
            "at most {:.2} MiB in {} looks",
            peak.bytes as f64 / MIB as f64,
            peak.looks
        ),
        peak.bytes <= bound && peak.bytes > 0,
    );
    report.claim("nothing is evicted", format!("{evicted} objects"), evicted == 0.0);
    report.claim(
        "nothing is left in the engine",
        format!("{} objects, {} bytes", left.objects, left.dram_used),
        left.objects == 0 && left.dram_used == 0,
    );
    report.figure("peak_bytes", peak.bytes);
    report.figure("bound_bytes", bound);
    report.figure("samples", samples);
    report.figure("seconds", rounded(took.as_secs_f64()));
    report.figure("samples_per_s", rounded(samples as f64 / took.as_secs_f64()));
    drop(cluster);
    if !alone {
        specforge(&mut report, samples, if quick { 8 } else { 30 });
    }
    Ok(report)
}

fn cluster(etcd_nodes: usize) -> Result<Cluster> {
    let builder = Cluster::builder().p2p_metadata(true).segment_mib(POOL_MIB);
    builder.lease_ttl(LEASE).etcd_nodes(etcd_nodes).start()
}

/// The same workload on SpecForge's own store. Its result is not a claim of Tensorhold.
fn specforge(report: &mut Report, samples: u64, seconds: u64) {
    eprintln!("ttl: the same on SpecForge's own store, for at most {seconds} s");
    let found = cluster(0).and_then(|cluster| {
        let amount = Amount {
            samples,
            seconds,
            ..Amount::default()
        };
        beside::run(&cluster, "specforge_ttl", amount)
    });
    match found {
        Ok(found) => {
            let of = |name: &str| found.get(name).cloned().unwrap_or_default();
            report.note(format!(
                "SpecForge 0.2's own store, the same workload for {} s: {} of {} samples put, {} got, {} puts and {} gets \
                 failed ({}), {} samples not freed",
                of("seconds"),
                of("puts"),
                samples,
                of("gets"),
                of("put_failures"),
                of("get_failures"),
                of("errors"),
                of("not_freed"),
            ));
            report.figure("specforge", found);
        }
        Err(error) => report.note(format!("SpecForge's own store was not run: {error:#}")),
    }
}

fn judge(report: &mut Report, crew: &[Member], samples: u64) {
    let count = |of: fn(&Event) -> bool| all(crew).filter(|event| of(event)).count() as u64;
    let put = count(|event| matches!(event, Event::Committed { .. }));
    let got = count(|event| matches!(event, Event::Got { right: true, .. }));
    let acked = count(|event| matches!(event, Event::Acked { .. }));
    let failures = all(crew).filter_map(|event| match event {
        Event::NotPut { why, .. }
        | Event::NotGot { why, .. }
        | Event::NotAcked { why, .. }
        | Event::Trouble { why } => Some(why.clone()),
        Event::Got {
            which, right: false, ..
        } => Some(format!("wrong bytes in {which:?}")),
        _ => None,
    });
    let failures: Vec<String> = failures.collect();
    report.claim(
        "no put, get or ack fails, every byte is right",
        if failures.is_empty() {
            format!("{put} put, {got} got, {acked} acked")
        } else {
            format!(
                "{put} put, {got} got, {acked} acked; {}",
                most_frequent(failures.clone())
            )
        },
        failures.is_empty() && (put, got, acked) == (samples, samples, samples),
    );
    let (mut sent, mut answered): (Vec<f64>, Vec<f64>) = all(crew)
        .filter_map(|event| match event {
            Event::Freed {
                after_sent,
                after_answered,
            } => Some((*after_sent, *after_answered)),
            _ => None,
        })
        .unzip();
    let [p50, p99, most] = [0.5, 0.99, 1.0].map(|q| quantile(&mut answered, q));
    let [sent_p50, sent_p99] = [0.5, 0.99].map(|q| quantile(&mut sent, q));
    report.claim(
        format!("from the last ack's answer until the bytes are free: p99 at most {GOAL_MILLIS} ms"),
        format!(
            "p50 {p50:.2} ms, p99 {p99:.2} ms, at most {most:.2} ms ({} samples)",
            answered.len()
        ),
        p99 <= GOAL_MILLIS && answered.len() as u64 == samples,
    );
    report.note(format!(
        "counted from when the last ack was sent instead: p50 {sent_p50:.2} ms, p99 {sent_p99:.2} ms"
    ));
    for (name, value) in [
        ("reclaim_p50_ms", p50),
        ("reclaim_p99_ms", p99),
        ("reclaim_max_ms", most),
        ("reclaim_from_sent_p50_ms", sent_p50),
        ("reclaim_from_sent_p99_ms", sent_p99),
    ] {
        report.figure(name, rounded(value));
    }
}
