//! Many seeds, and their sum.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde::Serialize;
use tensorhold_core::{Clock, SystemClock, Timestamp};

use crate::Seeds;
use crate::run::Outcome;

/// No seed takes longer, unless it hangs.
const LONGEST: Duration = Duration::from_secs(300);

/// What a seed showed, or why it showed nothing.
type Shown = std::result::Result<Outcome, String>;

/// A seed with something wrong.
#[derive(Debug, Serialize)]
struct Violation {
    seed: u64,
    wrong: Vec<String>,
}

/// The last line of a run.
#[derive(Debug, Default, Serialize)]
struct Summary {
    first: u64,
    seeds: u64,
    simulated_hours: f64,
    events: u64,
    events_per_s: f64,
    faults: BTreeMap<String, u64>,
    states: BTreeMap<String, u64>,
    violations: Vec<Violation>,
    /// Faults and states that no seed has seen.
    unreached: Vec<String>,
    /// Of the hashes of all seeds, in the order of the seeds.
    hash: String,
}

struct Runs {
    /// The seed after the last one.
    end: u64,
    /// When no seed is begun any more.
    until: Option<Timestamp>,
    next: Mutex<u64>,
    outcomes: Mutex<BTreeMap<u64, Shown>>,
    clock: SystemClock,
}

pub(crate) fn run(options: &Seeds) -> Result<()> {
    let clock = SystemClock::new();
    let begun = clock.now();
    let runs = Runs {
        end: options.first.saturating_add(options.seeds),
        until: options
            .minutes
            .map(|minutes| begun.after(Duration::from_secs(60 * minutes))),
        next: Mutex::new(options.first),
        outcomes: Mutex::default(),
        clock,
    };
    let jobs = match options.jobs {
        Some(jobs) => jobs,
        None => std::thread::available_parallelism()?.get(),
    };
    let quiet = options.json;
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| runs.work(quiet));
        }
    });
    let took = clock.now().since(begun);
    let summary = sum(options.first, std::mem::take(&mut *runs.outcomes.lock()), took);
    println!("{}", serde_json::to_string(&summary)?);
    if !summary.violations.is_empty() {
        bail!(
            "{} of {} seeds showed something wrong",
            summary.violations.len(),
            summary.seeds
        );
    }
    Ok(())
}

impl Runs {
    fn work(&self, quiet: bool) {
        loop {
            let seed = {
                let mut next = self.next.lock();
                if *next >= self.end || self.until.is_some_and(|until| self.clock.now() >= until) {
                    return;
                }
                *next += 1;
                *next - 1
            };
            let outcome = one(seed).map_err(|error| format!("{error:#}"));
            match &outcome {
                Ok(outcome) if outcome.wrong.is_empty() => {
                    if !quiet {
                        println!("seed {seed}: {} {} events", outcome.hash, outcome.events);
                    }
                }
                Ok(outcome) => eprintln!("seed {seed}: {:#?}", outcome.wrong),
                Err(error) => eprintln!("seed {seed}: {error}"),
            }
            self.outcomes.lock().insert(seed, outcome);
        }
    }
}

/// Runs a seed in a process of its own.
fn one(seed: u64) -> Result<Outcome> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("one").arg(seed.to_string());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = command.spawn()?;
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let process = Mutex::new(process);
    let (mut stdout, mut stderr) = (stdout.context("no output")?, stderr.context("no output")?);
    let (ended, end) = mpsc::channel::<()>();
    let output = std::thread::scope(|scope| {
        let watched = &process;
        scope.spawn(move || watch(watched, &end));
        let errors = scope.spawn(move || std::io::read_to_string(&mut stderr));
        let output = std::io::read_to_string(&mut stdout);
        drop(ended);
        output.map(|output| (output, errors.join()))
    });
    let (output, errors) = output?;
    let status = process.lock().wait()?;
    if !status.success() {
        let errors = errors.ok().and_then(std::io::Result::ok).unwrap_or_default();
        let tail = errors.lines().rev().take(12).collect::<Vec<_>>();
        bail!(
            "ended with {status}: {}",
            tail.into_iter().rev().collect::<Vec<_>>().join("\n")
        );
    }
    serde_json::from_str(&output).with_context(|| format!("no outcome: {output}"))
}

/// Kills a process that hangs.
fn watch(process: &Mutex<Child>, end: &Receiver<()>) {
    if let Err(RecvTimeoutError::Timeout) = end.recv_timeout(LONGEST) {
        drop(process.lock().kill());
    }
}

fn sum(first: u64, outcomes: BTreeMap<u64, Shown>, took: Duration) -> Summary {
    let mut summary = Summary {
        first,
        seeds: outcomes.len() as u64,
        ..Summary::default()
    };
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut seconds = 0.0;
    for (seed, outcome) in outcomes {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                let wrong = vec![error];
                summary.violations.push(Violation { seed, wrong });
                continue;
            }
        };
        for byte in outcome.hash.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        seconds += outcome.simulated_seconds;
        summary.events += outcome.events;
        for (what, count) in outcome.faults {
            *summary.faults.entry(what).or_default() += count;
        }
        for (what, count) in outcome.states {
            *summary.states.entry(what).or_default() += count;
        }
        if !outcome.wrong.is_empty() {
            let wrong = outcome.wrong;
            summary.violations.push(Violation { seed, wrong });
        }
    }
    let all = summary.faults.iter().chain(&summary.states);
    summary.unreached = all
        .filter(|(_, count)| **count == 0)
        .map(|(what, _)| what.clone())
        .collect();
    summary.simulated_hours = seconds / 3600.0;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let events = summary.events as f64;
    summary.events_per_s = (events / took.as_secs_f64().max(0.001)).round();
    summary.hash = format!("{hash:016x}");
    summary
}
