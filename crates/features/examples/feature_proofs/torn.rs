//! Proof 2, first half: readers against a writer that aborts and puts the same 100 MiB sample again and again.
//!
//! Three reader processes read as fast as they can, under leases and without, in turns. One of them is stopped
//! (SIGSTOP) again and again, at random moments and for longer than its session lives: its leases are taken back and
//! the objects it was reading are removed under its transfer, which then goes on. Every get that returns tensors must
//! have returned exactly the bytes that were committed for that generation; every other get is an error.
//!
//! Beside it, what the bare engine does to a reader of an object of the same size that is removed and written anew.
//!
//! The second half is in module `gone`.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use tensorhold_core::{Clock, Deadline, Rng, SystemClock, SystemRng};
use tensorhold_testkit::Cluster;

use crate::beside::{self, Amount};
use crate::crew::{Member, all};
use crate::gone;
use crate::journal::{Event, Which, most_frequent};
use crate::report::Report;
use crate::worker::Role;
use crate::world::{MIB, Settings};

const SAMPLE: &str = "run/rewritten";
const TICK: Duration = Duration::from_millis(200);
/// In ticks. Short, so that a stopped reader is found out soon.
const SESSION: u32 = 10;
const LEASE: u32 = 15;
/// How long the third reader is stopped: well past its session.
const STOPPED: Duration = Duration::from_millis(4500);
const LONGEST: Duration = Duration::from_secs(900);

pub(crate) fn run(quick: bool) -> Result<Report> {
    let (len, wanted, stops) = if quick { (16 * MIB, 40, 1) } else { (100 * MIB, 300, 6) };
    let mut report = Report::new("torn");
    report.note(format!(
        "sessions of {:?} and leases of {:?} instead of 10 s and 60 s, so that a stopped reader loses both",
        TICK * SESSION,
        TICK * LEASE
    ));
    rewrite(&mut report, len, wanted, stops)?;
    bare(&mut report, len, if quick { 5 } else { 20 });
    gone::run(&mut report, if quick { 1 } else { 5 })?;
    Ok(report)
}

/// The bare engine under the same treatment. Its result is not a claim of Tensorhold.
fn bare(report: &mut Report, len: usize, seconds: u64) {
    eprintln!("torn: the bare engine, for {seconds} s");
    let cluster = Cluster::builder().p2p_metadata(true).segment_mib(1024).start();
    let amount = Amount {
        len,
        seconds,
        ..Amount::default()
    };
    let found = cluster.and_then(|cluster| beside::run(&cluster, "bare_torn", amount));
    match found {
        Ok(found) => {
            let of = |name: &str| found.get(name).and_then(Value::as_u64).unwrap_or_default();
            let (complete, torn, failed) = (of("complete"), of("torn"), of("failed"));
            report.note(format!(
                "the bare engine in the same run: {torn} of {complete} reads that it called complete had torn bytes; \
                 {failed} failed"
            ));
            report.figure("bare_reads", complete);
            report.figure("bare_reads_torn", torn);
        }
        Err(error) => report.note(format!("the bare engine was not run: {error:#}")),
    }
}

fn rewrite(report: &mut Report, len: usize, wanted: usize, stops: usize) -> Result<()> {
    let clock = SystemClock::new();
    let cluster = Cluster::builder()
        .p2p_metadata(true)
        .segment_mib(1024)
        .etcd_nodes(1)
        .start()?;
    let mut settings = Settings::new(cluster.endpoints())?.with_times(TICK, SESSION, LEASE);
    settings.store.sweep_every = Some(TICK);
    settings.store.pool_bytes = 512 << 20;
    let role = Role::Rewrite {
        sample: SAMPLE.to_owned(),
        len,
    };
    let mut crew = vec![Member::start(cluster.dir(), &settings, "writer", role, None)?];
    for n in 0..3 {
        let role = Role::Reread {
            sample: SAMPLE.to_owned(),
        };
        crew.push(Member::start(
            cluster.dir(),
            &settings,
            &format!("reader-{n}"),
            role,
            None,
        )?);
    }
    for member in &mut crew {
        member.wait_ready()?;
    }
    let begun = clock.now();
    let deadline = Deadline::after(&clock, LONGEST);
    let (mut stopped, mut told) = (0, clock.now());
    loop {
        let mut reads = 0;
        for member in &mut crew {
            member.must_run()?;
            reads += member.count(|event| matches!(event, Event::Got { .. }))?;
        }
        if clock.now().since(told) >= Duration::from_secs(3) {
            told = clock.now();
            eprintln!(
                "torn: {reads} of {wanted} reads completed after {:.0?}",
                told.since(begun)
            );
        }
        if reads >= wanted && stopped >= stops {
            break;
        }
        ensure!(
            !deadline.passed(&clock),
            "only {reads} of {wanted} reads were completed in {LONGEST:?}"
        );
        if stopped < stops {
            let victim = &crew[3].process;
            victim.stop()?;
            clock.sleep(STOPPED);
            victim.resume()?;
            stopped += 1;
            clock.sleep(Duration::from_millis(1000 + SystemRng.below(1000)));
        } else {
            clock.sleep(Duration::from_millis(100));
        }
    }
    for member in &mut crew {
        member.finish()?;
    }
    judge(report, &crew, wanted, stopped);
    report.figure("sample_bytes", len);
    Ok(())
}

fn judge(report: &mut Report, crew: &[Member], wanted: usize, stopped: usize) {
    let committed: HashMap<&Which, u64> = all(crew)
        .filter_map(|event| match event {
            Event::Committed { which, seed } => Some((which, *seed)),
            _ => None,
        })
        .collect();
    let aborts = all(crew).filter(|event| matches!(event, Event::Aborted { .. })).count();
    let (mut reads, mut torn, mut stale, mut refused) = (0, 0, 0, Vec::new());
    for event in all(crew) {
        match event {
            Event::Got { which, seed, right } => {
                reads += 1;
                torn += usize::from(!right);
                stale += usize::from(committed.get(which) != Some(seed));
            }
            Event::NotGot { kind, .. } => refused.push(kind.clone()),
            _ => {}
        }
    }
    let trouble: Vec<String> = all(crew)
        .filter_map(|event| match event {
            Event::NotPut { why, .. } | Event::Trouble { why } => Some(why.clone()),
            _ => None,
        })
        .collect();
    report.claim(
        format!("at least {wanted} reads complete against abort and re-put"),
        format!(
            "{reads} complete, {} refused ({})",
            refused.len(),
            most_frequent(refused.clone())
        ),
        reads >= wanted,
    );
    report.claim(
        "no read has torn bytes, none those of another generation",
        format!("{torn} torn, {stale} of another generation"),
        torn == 0 && stale == 0,
    );
    report.note(format!(
        "{} generations were put, {aborts} of them aborted, the others replaced; a reader was stopped {stopped} times",
        committed.len()
    ));
    if !trouble.is_empty() {
        report.note(format!(
            "calls that failed and were repeated: {}",
            most_frequent(trouble)
        ));
    }
    report.figure("reads", reads);
    report.figure("reads_refused", refused.len());
    report.figure("reads_torn", torn);
    report.figure("reads_stale", stale);
    report.figure("generations", committed.len());
}
