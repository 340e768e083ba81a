//! A worker process: this program, started again with a task in its environment.
//!
//! It says when it is ready, reads from its standard input when the run starts, and works until its task is done or its
//! standard input closes. On standard output it prints a line of JSON for each window.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Nonce, Rng, SampleId, SystemRng};
use tensorhold_custody::{GroupName, Publication};
use tensorhold_index::{AckOutcome, Commit, Index, LeaseGrant, Reserve, SampleRef, Terms};
use tensorhold_testkit::own_cpu_us;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::journal::{Event, Journal};
use crate::latency::{Recorder, Step, Summary};
use crate::{Described, Part, WITHIN, cluster_of, divide, now_us};

/// The variable that makes this program a worker.
pub(crate) const TASK: &str = "TENSORHOLD_LOAD_TASK";
/// Longer than a run of some minutes: leases end by an answer or with their session.
const LEASE_TICKS: u64 = 600;
/// What a sample's description looks like: the size of a real one.
const DESCRIPTION_BYTES: usize = 200;
/// How often a prober opens a session and looks at a sample.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// The endpoints of each cluster.
    pub(crate) clusters: Vec<Vec<String>>,
    pub(crate) journal: PathBuf,
    pub(crate) window_us: u64,
    pub(crate) batch: usize,
    pub(crate) at_once: usize,
    pub(crate) role: Role,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Puts samples when they are due.
    Produce(Arrivals),
    /// Takes, acknowledges and frees the samples of a group.
    Consume { group: u8 },
    /// Opens sessions, and looks at some of so many live samples.
    Probe { live: u64 },
}

/// The samples that one producer puts: `first`, `first + step` and so on, below `until`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Arrivals {
    pub(crate) first: u64,
    pub(crate) step: u64,
    pub(crate) until: u64,
    /// How many come in a second, over all producers.
    pub(crate) rate: f64,
    pub(crate) groups: u8,
    pub(crate) bytes: u64,
}

impl Arrivals {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and below the run's length in microseconds"
    )]
    fn due_us(&self, start_us: u64, number: u64) -> u64 {
        start_us + (number as f64 * 1e6 / self.rate) as u64
    }
}

/// What a worker prints.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Ready,
    Window {
        window: u64,
        latencies: BTreeMap<Step, Summary>,
    },
    /// The worker is done; when its work ended, how much processor time it took from the start on, and how many puts or takes
    /// it called that had samples.
    Ended {
        at_us: u64,
        cpu_us: f64,
        calls: u64,
    },
}

impl Line {
    pub(crate) fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(self)?)?;
        Ok(out.flush()?)
    }

    /// The lines in a worker's output; the others are messages.
    pub(crate) fn all_in(output: &str) -> Result<Vec<Self>> {
        let lines = output.lines().filter(|line| line.starts_with(['{', '"']));
        lines
            .map(|line| serde_json::from_str(line).with_context(|| format!("a worker printed {line}")))
            .collect()
    }
}

pub(crate) fn group_name(group: u8) -> Result<GroupName> {
    Ok(GroupName::new(format!("group-{group}"))?)
}

pub(crate) fn sample_id(number: u64) -> Result<SampleId> {
    Ok(SampleId::new(format!("{number:012}"))?)
}

/// The number of a sample that a producer put.
pub(crate) fn number_of(sample: &SampleId) -> Result<u64> {
    let number = sample.as_str().parse();
    number.with_context(|| format!("{sample} is not a sample of this run"))
}

/// A live sample that no consumer takes.
pub(crate) fn live_id(number: u64) -> Result<SampleId> {
    Ok(SampleId::new(format!("live-{number:012}"))?)
}

/// Reserves and commits samples.
pub(crate) async fn put(
    Part { index, session, .. }: &Part,
    samples: Described,
    groups: &[GroupName],
    bytes: u64,
) -> Result<()> {
    let reserve = |sample: &SampleId| Reserve {
        sample: sample.clone(),
        nonce: Nonce::draw(&SystemRng),
        bytes,
        plan: String::new(),
        claims: Vec::new(),
    };
    let wishes: Vec<_> = samples.iter().map(|(sample, _)| reserve(sample)).collect();
    let mut commits = Vec::with_capacity(samples.len());
    for ((sample, description), generation) in samples.into_iter().zip(index.reserve(session, &wishes, WITHIN).await) {
        let generation = generation.with_context(|| format!("{sample} cannot be reserved"))?;
        commits.push(Commit {
            sample: SampleRef { sample, generation },
            becomes: None,
            publication: Publication {
                groups: groups.to_vec(),
                retain: false,
                max_attempts: 1000,
            },
            description,
        });
    }
    for (commit, committed) in commits.iter().zip(index.commit(session, &commits, WITHIN).await) {
        committed.with_context(|| format!("{} cannot be committed", commit.name()))?;
    }
    Ok(())
}

/// What the tasks of a worker share.
struct Worker {
    /// One for each cluster.
    parts: Vec<Part>,
    journal: Journal,
    recorder: Recorder,
    start_us: u64,
    stop: CancellationToken,
    batch: usize,
    /// Puts or takes that had samples.
    calls: AtomicU64,
}

pub(crate) fn main(task: &str) -> Result<()> {
    let task: Task = serde_json::from_str(task)?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    let (starts, start) = oneshot::channel();
    // No thread joins it: it ends with the process, or when the conductor closes the pipe.
    std::thread::spawn(move || {
        let mut lines = std::io::stdin().lock().lines().map_while(Result::ok);
        if let Some(at_us) = lines.next().and_then(|line| line.parse::<u64>().ok()) {
            starts.send(at_us).ok();
            lines.for_each(drop);
        }
        told.cancel();
    });
    // One thread: there are more workers than cores.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let journal = Journal::open(&task.journal)?;
        let mut parts = Vec::with_capacity(task.clusters.len());
        for endpoints in &task.clusters {
            parts.push(Part::open(endpoints, None).await?);
        }
        Line::Ready.print()?;
        let start_us = tokio::time::timeout(WITHIN, start).await;
        let start_us = start_us.context("no start")?.context("the conductor has gone")?;
        let cpu_before = own_cpu_us();
        let worker = Arc::new(Worker {
            parts,
            journal,
            recorder: Recorder::new(start_us, task.window_us),
            start_us,
            stop,
            batch: task.batch,
            calls: AtomicU64::new(0),
        });
        match task.role {
            Role::Produce(arrivals) => produce(&worker, arrivals, task.at_once).await?,
            Role::Consume { group } => consume(&worker, group, task.at_once).await?,
            Role::Probe { live } => probe(&worker, live).await?,
        }
        let at_us = now_us();
        worker.recorder.finish()?;
        let worker = Arc::into_inner(worker).context("a task of this worker still runs")?;
        for part in &worker.parts {
            part.session.close(WITHIN).await?;
        }
        Line::Ended {
            at_us,
            cpu_us: own_cpu_us() - cpu_before,
            calls: worker.calls.load(Ordering::Relaxed),
        }
        .print()
    })
}

/// Waits for a moment of the schedule.
async fn wait_until(at_us: u64) {
    while let Some(left) = at_us.checked_sub(now_us()).filter(|left| *left > 0) {
        tokio::time::sleep(Duration::from_micros(left)).await;
    }
}

async fn join(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

async fn produce(worker: &Arc<Worker>, arrivals: Arrivals, at_once: usize) -> Result<()> {
    let groups = (0..arrivals.groups).map(group_name).collect::<Result<Vec<_>>>()?;
    let next = Arc::new(tokio::sync::Mutex::new(arrivals.first));
    let mut tasks = JoinSet::new();
    for _ in 0..at_once {
        let (worker, groups, next) = (Arc::clone(worker), groups.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                // Locked until the next sample is due: the tasks take turns at waiting for it.
                let mut next = next.lock().await;
                if *next >= arrivals.until {
                    return Ok(());
                }
                wait_until(arrivals.due_us(worker.start_us, *next)).await;
                let called = now_us();
                let numbers: Vec<u64> = (*next..arrivals.until)
                    .step_by(usize::try_from(arrivals.step)?)
                    .take(worker.batch)
                    .take_while(|number| arrivals.due_us(worker.start_us, *number) <= called)
                    .collect();
                *next += arrivals.step * numbers.len() as u64;
                // Before the next task begins others: so what is begun has no gap, and a producer that takes this one's place
                // goes on behind it.
                worker.journal.note(Event::Begun, &numbers)?;
                drop(next);
                let due = |number: &u64| arrivals.due_us(worker.start_us, *number);
                let described = |number: &u64| Ok((sample_id(*number)?, description(due(number))));
                let samples = numbers.iter().map(described).collect::<Result<Vec<_>>>()?;
                let divided = divide(&worker.parts, samples)?.into_iter();
                let puts = divided.map(|(part, samples)| put(part, samples, &groups, arrivals.bytes));
                let calls = try_join_all(puts).await?.len();
                worker.journal.note(Event::Put, &numbers)?;
                worker.calls.fetch_add(u64::try_from(calls)?, Ordering::Relaxed);
                worker.recorder.ended(Step::PutCall, called, numbers.len())?;
                for number in &numbers {
                    worker.recorder.ended(Step::Put, due(number), 1)?;
                }
            }
        });
    }
    join(tasks).await
}

/// A description that says when its sample was due.
fn description(due_us: u64) -> Vec<u8> {
    let mut description = vec![b'd'; DESCRIPTION_BYTES];
    description[..8].copy_from_slice(&due_us.to_le_bytes());
    description
}

fn due_of(grant: &LeaseGrant) -> Result<u64> {
    let due = grant.description.first_chunk::<8>();
    Ok(u64::from_le_bytes(*due.context("a description is too short")?))
}

async fn consume(worker: &Arc<Worker>, group: u8, at_once: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    for task in 0..at_once * worker.parts.len() {
        let worker = Arc::clone(worker);
        tasks.spawn(async move {
            let name = group_name(group)?;
            let part = &worker.parts[task % worker.parts.len()];
            while !worker.stop.is_cancelled() {
                use_some(&worker, part, group, &name).await?;
            }
            Ok(())
        });
    }
    join(tasks).await
}

/// Takes, acknowledges and frees the next samples, if some come.
async fn use_some(worker: &Worker, part: &Part, group: u8, name: &GroupName) -> Result<()> {
    let Worker { journal, recorder, .. } = worker;
    let Part { index, session, .. } = part;
    let terms = Terms {
        cancelled: &worker.stop,
        usable: &|_, _| Ok(()),
        settle: Duration::ZERO,
        waits: true,
    };
    let called = now_us();
    let held = index
        .take_next(session, name, worker.batch, LEASE_TICKS, terms, WITHIN)
        .await?;
    if held.is_empty() {
        return Ok(());
    }
    let numbers = held
        .iter()
        .map(|grant| number_of(&grant.sample.sample))
        .collect::<Result<Vec<_>>>()?;
    journal.note(Event::Leased { group }, &numbers)?;
    worker.calls.fetch_add(1, Ordering::Relaxed);
    recorder.ended(Step::Take, called, held.len())?;
    for grant in &held {
        recorder.ended(Step::Delivery, due_of(grant)?, 1)?;
    }

    let called = now_us();
    let mut free = Vec::new();
    let answers = index.ack(session, &held, WITHIN).await;
    recorder.ended(Step::Ack, called, held.len())?;
    for (grant, answer) in held.iter().zip(answers) {
        let answer = answer.with_context(|| format!("{} cannot be acknowledged", grant.sample.sample))?;
        if matches!(answer, AckOutcome::Retired { free: true, .. }) {
            free.push(grant.sample.clone());
        }
    }
    journal.note(Event::Acked { group }, &numbers)?;

    let mut freed = Vec::new();
    for (sample, answer) in free.iter().zip(index.freed(session, &free, WITHIN).await) {
        if answer.with_context(|| format!("{} cannot be freed", sample.sample))? {
            freed.push(number_of(&sample.sample)?);
        }
    }
    journal.note(Event::Freed, &freed)
}

/// One call at a time: its pauses are longer than its calls, so that nothing waits in line.
async fn probe(worker: &Worker, live: u64) -> Result<()> {
    let mut ticks = tokio::time::interval(PROBE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    wait_until(worker.start_us).await;
    while !worker.stop.is_cancelled() {
        ticks.tick().await;
        // Without live samples there is nothing to find, on any cluster.
        let among = if live == 0 { 1000 } else { live };
        let sample = live_id(SystemRng.below(among))?;
        let part = &worker.parts[cluster_of(&sample, worker.parts.len())?];
        let called = now_us();
        let session = part.index.open_session(WITHIN).await?;
        worker.recorder.ended(Step::Open, called, 1)?;
        session.close(WITHIN).await?;
        let called = now_us();
        let found = part.index.look(&[sample], WITHIN).await?;
        worker.recorder.ended(Step::Look, called, 1)?;
        ensure!(live == 0 || found.iter().all(Option::is_some), "a live sample is gone");
    }
    Ok(())
}
