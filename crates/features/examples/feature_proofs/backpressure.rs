//! Proof 4: producers that are faster than consumers wait their turn.
//!
//! The store's budget is a tenth of the work. Sixteen puts in four processes are always in flight, and one process of
//! consumers is too slow for them. Every put must succeed, none may be told that there is no room, and no put may wait
//! much longer than others: at most five times the median.

use std::time::Duration;

use anyhow::{Result, ensure};
use tensorhold_core::{Clock, Deadline, SystemClock};
use tensorhold_testkit::Cluster;

use crate::crew::{Member, all};
use crate::gauge::Gauge;
use crate::journal::{Event, most_frequent};
use crate::report::{Report, quantile, rounded};
use crate::worker::{Produce, Role};
use crate::world::{MIB, Settings, WITHIN, runtime};

const LENS: [usize; 2] = [3 * MIB, MIB];
const SAMPLE: u64 = 4 << 20;
const PRODUCERS: u64 = 4;
const AT_ONCE: usize = 4;
/// The longest wait is at most so many times the median.
const FAIR: f64 = 5.0;
const LONGEST: Duration = Duration::from_secs(300);

fn waits(member: &Member) -> Vec<f64> {
    let events = member.journal.events.iter();
    let wait = |event: &Event| match event {
        Event::Reserved { millis } => Some(*millis),
        _ => None,
    };
    events.filter_map(wait).collect()
}

pub(crate) fn run(quick: bool) -> Result<Report> {
    let samples: u64 = if quick { 160 } else { 800 };
    let budget = samples / 10 * SAMPLE;
    let clock = SystemClock::new();
    let cluster = Cluster::builder()
        .p2p_metadata(true)
        .segment_mib((budget >> 20) * 3 / 2)
        .etcd_nodes(1)
        .start()?;
    let mut settings = Settings::new(cluster.endpoints())?;
    settings.store.pool_bytes = 128 << 20;
    settings.store.sweep_every = Some(settings.index.tick);
    let runtime = runtime()?;
    let index = runtime.block_on(settings.index())?;
    runtime.block_on(index.set_budget(budget, WITHIN))?;
    let gauge = Gauge::start(settings.engine()?);
    let mut producers = Vec::new();
    for n in 0..PRODUCERS {
        let role = Role::Produce(Produce {
            count: Some(samples / PRODUCERS),
            lens: LENS.to_vec(),
            at_once: AT_ONCE,
            pause_millis: 0,
        });
        producers.push(Member::start(
            cluster.dir(),
            &settings,
            &format!("producer-{n}"),
            role,
            None,
        )?);
    }
    let role = Role::Consume {
        at_once: 2,
        use_millis: 50,
    };
    let mut consumers = vec![Member::start(cluster.dir(), &settings, "consumer", role, None)?];
    let begun = clock.now();
    let deadline = Deadline::after(&clock, LONGEST);
    let mut told = clock.now();
    loop {
        let (mut acked, mut failed) = (0, 0);
        for member in producers.iter_mut().chain(&mut consumers) {
            member.must_run()?;
            acked += member.count(|event| matches!(event, Event::Acked { .. }))? as u64;
            failed += member.count(|event| matches!(event, Event::NotPut { .. }))? as u64;
        }
        if clock.now().since(told) >= Duration::from_secs(2) {
            told = clock.now();
            eprintln!(
                "backpressure: {acked} of {samples} samples used up after {:.0?}",
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
    for member in producers.iter_mut().chain(&mut consumers) {
        member.finish()?;
    }
    let peak = gauge.stop()?;
    let mut report = Report::new("backpressure");
    report.note(format!(
        "{samples} samples of 4 MiB against a budget of {} MiB, {PRODUCERS} producer processes with {AT_ONCE} puts at \
         once each, one consumer process, {took:.1?}",
        budget >> 20
    ));
    judge(&mut report, &producers, &consumers, samples);
    report.claim(
        "the engine never holds more than the budget",
        format!("at most {:.2} of {} MiB", peak.bytes as f64 / MIB as f64, budget >> 20),
        peak.bytes <= budget && peak.bytes > 0,
    );
    report.figure("seconds", rounded(took.as_secs_f64()));
    report.figure("budget_bytes", budget);
    report.figure("peak_bytes", peak.bytes);
    Ok(report)
}

fn judge(report: &mut Report, producers: &[Member], consumers: &[Member], samples: u64) {
    let failures: Vec<String> = all(producers)
        .chain(all(consumers))
        .filter_map(|event| match event {
            Event::NotPut { why, .. }
            | Event::NotGot { why, .. }
            | Event::NotAcked { why, .. }
            | Event::Trouble { why } => Some(why.clone()),
            Event::Got {
                which, right: false, ..
            } => Some(format!("wrong bytes in {which:?}")),
            _ => None,
        })
        .collect();
    let put = all(producers)
        .filter(|event| matches!(event, Event::Committed { .. }))
        .count() as u64;
    let used = all(consumers)
        .filter(|event| matches!(event, Event::Acked { .. }))
        .count() as u64;
    report.claim(
        "no put fails, neither for want of room nor half-way, and every sample is used",
        format!(
            "{put} put, {used} used, {} failures {}",
            failures.len(),
            most_frequent(failures.clone())
        ),
        failures.is_empty() && put == samples && used == samples,
    );
    // The first ones find the budget untouched, and do not wait.
    let mut all_waits: Vec<f64> = producers.iter().flat_map(waits).collect();
    let unhindered = all_waits.len() / 10;
    all_waits.sort_by(f64::total_cmp);
    let mut waited = all_waits.split_off(unhindered);
    let (median, longest) = (quantile(&mut waited, 0.5), quantile(&mut waited, 1.0));
    report.claim(
        "producers really wait",
        format!("median {median:.1} ms, the shortest tenth left out"),
        median > 20.0,
    );
    report.claim(
        format!("nobody waits longer than {FAIR} times the median"),
        format!(
            "at most {longest:.1} ms, {:.2} times the median",
            longest / median.max(1e-9)
        ),
        longest <= FAIR * median,
    );
    let each: Vec<String> = producers
        .iter()
        .map(|member| format!("{:.0}", quantile(&mut waits(member), 0.5)))
        .collect();
    report.note(format!(
        "median wait of each producer process, in ms: {}",
        each.join(", ")
    ));
    report.figure("wait_median_ms", rounded(median));
    report.figure("wait_max_ms", rounded(longest));
    report.figure("wait_max_over_median", rounded(longest / median.max(1e-9)));
}
