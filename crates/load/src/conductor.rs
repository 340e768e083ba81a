//! One run, from the process that starts the others: servers, workers, sweeps, kills, and the end.

use std::collections::BTreeMap;
use std::ops::Add;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tensorhold_core::{Clock, Deadline, SystemClock};
use tensorhold_custody::GroupName;
use tensorhold_index::store::{Read, prefix};
use tensorhold_index::{BudgetUse, Counts, Index, Session, Stage};
use tensorhold_testkit::{EtcdCluster, Process, ProcessSpec, cpu_us};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::etcd::EtcdFigures;
use crate::journal::{Event, Reader};
use crate::latency::{Latencies, merge};
use crate::ledger::Ledger;
use crate::report::Report;
use crate::worker::{Arrivals, Line, Role, TASK, Task, group_name, live_id, number_of, put};
use crate::{Options, Part, STORE, WITHIN, divide, now_us};

/// How often the conductor looks at the journals.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// As many records as a process that sweeps for a store looks at.
const SWEEP_LIMIT: usize = 1000;
/// How long everything may take to be used up after the last sample was due, beside three times the run's length: a rate that
/// cannot be served takes longer than the run, and one that is far from it ends here.
const SETTLE_WITHIN: Duration = Duration::from_secs(120);
/// Workers connect and read their start in less.
const LEAD: Duration = Duration::from_millis(200);

struct Worker {
    name: String,
    role: Role,
    process: Process,
    journal: Reader,
}

/// What is known of the workers that have ended.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) windows: BTreeMap<u64, Latencies>,
    pub(crate) cpu_us: f64,
    /// When the last producer was done.
    pub(crate) put_by_us: u64,
    /// Calls that had samples, of workers that were not killed.
    pub(crate) puts: u64,
    pub(crate) takes: u64,
    pub(crate) killed: u64,
    /// What was left of each cluster's budget in the end, if there was one.
    pub(crate) budgets: Vec<BudgetUse>,
}

/// A moment of the run, as etcd tells it.
pub(crate) struct Moment {
    pub(crate) at_seconds: f64,
    /// All clusters together.
    pub(crate) etcd: EtcdFigures,
    /// The requests that each cluster has answered.
    pub(crate) requests: Vec<f64>,
}

struct Conductor<'a> {
    options: &'a Options,
    live: u64,
    clock: SystemClock,
    interrupted: Arc<AtomicBool>,
    etcds: Vec<EtcdCluster>,
    runtime: Runtime,
    /// One for each etcd cluster.
    parts: Vec<Part>,
    start_us: u64,
    workers: Vec<Worker>,
    /// How many workers were started, for their names.
    started: usize,
    ended: Ended,
    ledger: Ledger,
    moments: Vec<Moment>,
}

pub(crate) fn run(options: &Options, live: u64, sessions: usize) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&interrupted);
    // The task ends with the runtime. Without it Ctrl-C would leave the servers' folder behind.
    runtime.spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            told.store(true, Ordering::Relaxed);
        }
    });
    let start = |_| EtcdCluster::start_compacted(1, options.history);
    let etcds = (0..options.clusters).map(start).collect::<Result<Vec<_>>>()?;
    let parts = runtime.block_on(async {
        let mut parts = Vec::with_capacity(etcds.len());
        for etcd in &etcds {
            parts.push(Part::open(&etcd.endpoints(), options.budget).await?);
        }
        Ok::<_, anyhow::Error>(parts)
    })?;
    let mut conductor = Conductor {
        options,
        live,
        clock: SystemClock::new(),
        interrupted,
        etcds,
        runtime,
        parts,
        start_us: 0,
        workers: Vec::new(),
        started: 0,
        ended: Ended::default(),
        ledger: Ledger::new(options.samples(), options.groups)?,
        moments: Vec::new(),
    };
    conductor.put_live()?;
    let idle = conductor.open_sessions(sessions)?;
    conductor.start_workers(sessions)?;
    conductor.watch()?;
    // Before the workers are told to end: what it takes to count what is left is not part of a sample's cost.
    conductor.moment()?;
    for worker in std::mem::take(&mut conductor.workers) {
        conductor.finish(worker)?;
    }
    let left = conductor.clear_up(1 + sessions as u64)?;
    for part in &conductor.parts {
        let budget = conductor.runtime.block_on(part.index.budget_use(WITHIN))?;
        conductor.ended.budgets.extend(budget);
    }
    drop(idle);
    Report::of(
        options,
        (live, sessions),
        conductor.start_us,
        &conductor.ended,
        &conductor.ledger,
        &conductor.moments,
        left,
    )
}

impl Conductor<'_> {
    /// Puts live samples for a group that has no consumers.
    fn put_live(&self) -> Result<()> {
        const AT_ONCE: u64 = 8;
        const BATCH: u64 = 30;
        if self.live == 0 {
            return Ok(());
        }
        eprintln!("load: putting {} live samples …", self.live);
        let others = [GroupName::new("others")?];
        let (live, bytes) = (self.live, self.options.bytes);
        let put_so_far = Arc::new(AtomicU64::new(0));
        self.runtime.block_on(async {
            // Dropped when this ends, also by an error, and its tasks with it.
            let mut tasks = JoinSet::new();
            for task in 0..AT_ONCE {
                let (parts, others) = (self.parts.clone(), others.clone());
                let done = Arc::clone(&put_so_far);
                tasks.spawn(async move {
                    for first in (task * BATCH..live).step_by(usize::try_from(AT_ONCE * BATCH)?) {
                        let numbers = first..live.min(first + BATCH);
                        let samples = numbers.map(|number| Ok((live_id(number)?, vec![b'd'; 200])));
                        for (part, samples) in divide(&parts, samples.collect::<Result<Vec<_>>>()?)? {
                            let count = samples.len() as u64;
                            put(part, samples, &others, bytes).await?;
                            done.fetch_add(count, Ordering::Relaxed);
                        }
                    }
                    Ok::<_, anyhow::Error>(())
                });
            }
            let mut ticks = tokio::time::interval(LOOK_EVERY);
            let mut said = self.clock.now();
            loop {
                tokio::select! {
                    ended = tasks.join_next() => match ended {
                        Some(ended) => ended??,
                        None => return Ok(()),
                    },
                    _ = ticks.tick() => self.check_interrupted()?,
                }
                if self.clock.now().since(said) >= PROGRESS_EVERY {
                    said = self.clock.now();
                    eprintln!("load: {} of {live} live samples", put_so_far.load(Ordering::Relaxed));
                }
            }
        })
    }

    /// So many on each cluster.
    fn open_sessions(&self, count: usize) -> Result<Vec<Session>> {
        let open = async {
            let mut sessions = Vec::with_capacity(count * self.parts.len());
            for part in &self.parts {
                for _ in 0..count {
                    sessions.push(part.index.open_session(WITHIN).await?);
                }
            }
            Ok(sessions)
        };
        self.runtime.block_on(open)
    }

    fn start_workers(&mut self, sessions: usize) -> Result<()> {
        let options = self.options;
        for first in 0..options.producers {
            let worker = self.start(Role::Produce(Arrivals {
                first,
                step: options.producers,
                until: options.samples(),
                rate: options.rate,
                groups: options.groups,
                bytes: options.bytes,
            }))?;
            self.workers.push(worker);
        }
        for consumer in 0..options.consumers {
            let group = u8::try_from(consumer % u64::from(options.groups))?;
            let worker = self.start(Role::Consume { group })?;
            self.workers.push(worker);
        }
        if self.live > 0 || sessions > 0 {
            let worker = self.start(Role::Probe { live: self.live })?;
            self.workers.push(worker);
        }
        for worker in &self.workers {
            self.wait_ready(worker)?;
        }
        self.start_us = now_us() + u64::try_from(LEAD.as_micros())?;
        self.moment()?;
        for worker in &self.workers {
            worker.process.tell(&self.start_us.to_string())?;
        }
        Ok(())
    }

    fn start(&mut self, role: Role) -> Result<Worker> {
        let kind = match role {
            Role::Produce(_) => "producer",
            Role::Consume { .. } => "consumer",
            Role::Probe { .. } => "prober",
        };
        let name = format!("{kind}-{}", self.started);
        self.started += 1;
        let file = |ending: &str| -> PathBuf { self.etcds[0].dir().join(format!("{name}.{ending}")) };
        let task = Task {
            clusters: self.etcds.iter().map(EtcdCluster::endpoints).collect(),
            journal: file("journal"),
            window_us: u64::try_from(self.options.window().as_micros())?,
            batch: self.options.batch,
            at_once: self.options.at_once,
            role: role.clone(),
        };
        let program = std::env::current_exe().context("where is this program?")?;
        let spec = ProcessSpec::new(&name, program, file("log")).env(TASK, serde_json::to_string(&task)?);
        Ok(Worker {
            process: Process::spawn(&spec)?,
            journal: Reader::new(task.journal),
            name,
            role,
        })
    }

    fn wait_ready(&self, worker: &Worker) -> Result<()> {
        let deadline = Deadline::after(&self.clock, WITHIN);
        while Line::all_in(&worker.process.output())?.is_empty() {
            let Worker { name, process, .. } = worker;
            ensure!(process.is_running(), "{name} ended at once:\n{}", process.output());
            ensure!(!deadline.passed(&self.clock), "{name} does not begin");
            self.check_interrupted()?;
            self.clock.sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn check_interrupted(&self) -> Result<()> {
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    /// Watches over the run until everything that was put is used up.
    fn watch(&mut self) -> Result<()> {
        let length = Duration::from_secs(self.options.seconds);
        let deadline = Deadline::after(&self.clock, LEAD + length * 3 + SETTLE_WITHIN);
        let window = self.options.window();
        let crash_every = self.options.crash_every.map(Duration::from_secs);
        let mut next_moment = window;
        let mut next_sweep = Duration::ZERO;
        let mut next_progress = PROGRESS_EVERY;
        let mut next_crash = crash_every;
        loop {
            self.clock.sleep(LOOK_EVERY);
            self.check_interrupted()?;
            self.read_journals()?;
            let producing = self.take_in_producers()?;
            let elapsed = Duration::from_micros(now_us().saturating_sub(self.start_us));
            if elapsed >= next_moment {
                self.moment()?;
                while next_moment <= elapsed {
                    next_moment += window;
                }
            }
            if elapsed >= next_progress {
                next_progress = elapsed + PROGRESS_EVERY;
                let counts = self.ledger.counts;
                eprintln!(
                    "load: {:.0} s of {}: {} put, {} leased, {} acknowledged, {} freed; {} killed",
                    elapsed.as_secs_f64(),
                    self.options.seconds,
                    counts.put,
                    counts.leased,
                    counts.acked,
                    counts.freed,
                    self.ended.killed
                );
            }
            if let (Some(at), Some(every), true) = (next_crash, crash_every, producing)
                && elapsed >= at
            {
                self.crash()?;
                next_crash = Some(elapsed + every);
            }
            if elapsed >= next_sweep {
                next_sweep = elapsed + self.parts[0].index.tick_length();
                self.sweep()?;
            }
            if !producing && self.is_settled()? {
                return Ok(());
            }
            let counts = self.ledger.counts;
            ensure!(
                !deadline.passed(&self.clock),
                "not used up after {elapsed:.0?}: {counts:?}; is the rate more than can be served?"
            );
        }
    }

    fn read_journals(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            for (event, number) in worker.journal.news()? {
                self.ledger.note(event, number)?;
            }
        }
        Ok(())
    }

    /// Takes in the producers that are done. Whether some are not; a worker that failed is an error.
    fn take_in_producers(&mut self) -> Result<bool> {
        let mut producing = false;
        for worker in std::mem::take(&mut self.workers) {
            match worker.process.exit_status() {
                None => {
                    producing |= matches!(worker.role, Role::Produce(_));
                    self.workers.push(worker);
                }
                Some(_) if matches!(worker.role, Role::Produce(_)) => self.finish(worker)?,
                Some(status) => bail!("{} ended ({status}):\n{}", worker.name, worker.process.output()),
            }
        }
        Ok(producing)
    }

    /// Waits for a worker's end, and takes in what it has told.
    fn finish(&mut self, mut worker: Worker) -> Result<()> {
        let Worker { name, process, .. } = &worker;
        let status = process.finish(WITHIN)?;
        ensure!(status.success(), "{name} ended with {status}:\n{}", process.output());
        for (event, number) in worker.journal.news()? {
            self.ledger.note(event, number)?;
        }
        self.take_in_lines(&worker)
    }

    fn take_in_lines(&mut self, worker: &Worker) -> Result<()> {
        for line in Line::all_in(&worker.process.output())? {
            match line {
                Line::Ready => {}
                Line::Window { window, latencies } => merge(self.ended.windows.entry(window).or_default(), &latencies)?,
                Line::Ended { at_us, cpu_us, calls } => {
                    self.ended.cpu_us += cpu_us;
                    match worker.role {
                        Role::Produce(_) => {
                            self.ended.put_by_us = self.ended.put_by_us.max(at_us);
                            self.ended.puts += calls;
                        }
                        Role::Consume { .. } => self.ended.takes += calls,
                        Role::Probe { .. } => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Kills the worker that has worked longest, producers and consumers in turns, and starts another in its place.
    fn crash(&mut self) -> Result<()> {
        let producers_turn = self.ended.killed % 2 == 1;
        let is_next = |worker: &Worker| match worker.role {
            Role::Produce(_) => producers_turn,
            Role::Consume { .. } => !producers_turn,
            Role::Probe { .. } => false,
        };
        let Some(at) = self.workers.iter().position(is_next) else {
            return Ok(()); // the producers are done
        };
        let mut killed = self.workers.remove(at);
        // Of the last window of a killed worker there are no latencies: it had no time to print them.
        self.ended.cpu_us += cpu_us(killed.process.pid())?;
        killed.process.kill()?;
        for (event, number) in killed.journal.news()? {
            self.ledger.note(event, number)?;
        }
        let events = killed.journal.all()?;
        self.ledger.killed(&events)?;
        self.take_in_lines(&killed)?;
        self.ended.killed += 1;
        let mut role = killed.role.clone();
        if let Role::Produce(arrivals) = &mut role {
            let begun = events.iter().filter(|(event, _)| *event == Event::Begun);
            if let Some(last) = begun.map(|(_, number)| *number).max() {
                arrivals.first = last + arrivals.step;
            }
        }
        let other = self.start(role)?;
        eprintln!("load: {} killed, {} in its place", killed.name, other.name);
        self.wait_ready(&other)?;
        other.process.tell(&self.start_us.to_string())?;
        self.workers.push(other);
        Ok(())
    }

    /// Sweeps as the process does that sweeps for a store. Frees what dead workers have left; the others free for themselves.
    fn sweep(&mut self) -> Result<()> {
        for part in &self.parts {
            let swept = part.index.sweep(&part.session, SWEEP_LIMIT, WITHIN);
            self.runtime.block_on(swept)?;
        }
        if self.ended.killed > 0 {
            self.free()?;
        }
        Ok(())
    }

    fn free(&mut self) -> Result<()> {
        let freed = self.runtime.block_on(async {
            let mut freed = Vec::new();
            for Part { index, session, .. } in &self.parts {
                let listed = index.to_free(None, SWEEP_LIMIT, WITHIN).await?;
                let samples: Vec<_> = listed.tasks.into_iter().map(|task| task.sample).collect();
                for (sample, answer) in samples.iter().zip(index.freed(session, &samples, WITHIN).await) {
                    if answer? {
                        freed.push(number_of(&sample.sample)?);
                    }
                }
            }
            Ok::<_, anyhow::Error>(freed)
        })?;
        freed
            .into_iter()
            .try_for_each(|number| self.ledger.note(Event::Freed, number))
    }

    /// Whether everything is used up. After a kill the journals may lack what the dead did last, so the index is asked.
    fn is_settled(&self) -> Result<bool> {
        if self.ended.killed == 0 {
            return Ok(self.ledger.is_settled());
        }
        let records = |counts: &Counts| Stage::ALL.into_iter().map(|stage| counts.of(stage)).sum::<u64>();
        Ok(self.counts()?.iter().map(records).sum::<u64>() <= self.live)
    }

    /// Of each cluster.
    fn counts(&self) -> Result<Vec<Counts>> {
        let count = |part: &Part| Ok(self.runtime.block_on(part.index.counts(WITHIN))?);
        self.parts.iter().map(count).collect()
    }

    fn moment(&mut self) -> Result<()> {
        let since = now_us() as f64 - self.start_us as f64;
        let each = self.etcds.iter().map(EtcdFigures::read).collect::<Result<Vec<_>>>()?;
        self.moments.push(Moment {
            at_seconds: since.max(0.0) / 1e6,
            requests: each.iter().map(|etcd| etcd.requests).collect(),
            etcd: each.into_iter().fold(EtcdFigures::default(), Add::add),
        });
        Ok(())
    }

    /// Sweeps until no session is left but so many of this process on each cluster, dead workers' among them, and returns the keys
    /// that are left of samples, but for those of live ones.
    fn clear_up(&mut self, own_sessions: u64) -> Result<Vec<String>> {
        let deadline = Deadline::after(&self.clock, SETTLE_WITHIN);
        loop {
            self.sweep()?;
            let counts = self.counts()?;
            let is_own = |counts: &Counts| counts.sessions + counts.ended_sessions <= own_sessions;
            let records = counts.iter().flat_map(|counts| counts.records).sum::<u64>();
            if counts.iter().all(is_own) && records <= self.live {
                break;
            }
            if deadline.passed(&self.clock) {
                break; // the keys below say what is left
            }
            self.check_interrupted()?;
            self.clock.sleep(LOOK_EVERY);
        }
        self.keys_left()
    }

    /// The keys that are left of samples, some of each kind at most. Live ones are left out by their ranges: to read past a
    /// million of them takes etcd minutes.
    fn keys_left(&self) -> Result<Vec<String>> {
        /// The kinds of keys of samples, but for live ones and those that are ready, and of what sessions were granted: see the
        /// index's layout.
        const KINDS: [&str; 10] = ["a", "d", "f", "g", "h", "k", "l", "p", "u", "x"];
        const SOME: usize = 1000;
        let mut ranges: Vec<_> = KINDS.map(|kind| prefix(format!("{STORE}/{kind}/"))).into();
        // The names of samples that came in the run begin with a digit.
        ranges.push(format!("{STORE}/s/0")..format!("{STORE}/s/:"));
        for group in 0..self.options.groups {
            ranges.push(prefix(format!("{STORE}/q/{}/", group_name(group)?)));
        }
        let some = |keys| Read::Range {
            keys,
            limit: SOME,
            keys_only: true,
        };
        let reads: Vec<_> = ranges.into_iter().map(some).collect();
        let mut left = Vec::new();
        for part in &self.parts {
            let snapshot = self.runtime.block_on(part.txn_store.read(&reads, WITHIN))?;
            left.extend(snapshot.entries.into_iter().flatten().map(|entry| entry.key));
        }
        Ok(left)
    }
}
