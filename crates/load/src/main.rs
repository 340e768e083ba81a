//! The load generator: how the index serves samples that arrive at a fixed rate, for as long as it is told.
//! `cargo xtask load` runs it.
//!
//! It starts a real etcd, and producers and consumers that are processes of their own: this program, started again with a
//! task in its environment (module `worker`). They use the index ([`tensorhold_index::Index`]) as the feature store does, with
//! reserve, commit, lease, acknowledge and freed, and move no bytes: the memory engine belongs to one process, so that what a
//! producer put there no consumer could get, and the real engine would be measured instead of the index. Reservations are not
//! made ahead. With `--clusters` there are several etcds, each with a part of the samples, as for a store in partitions.
//!
//! **Open loop.** Sample `i` is due at `start + i / rate`, whatever happened to those before it, and the latency of its put
//! counts from then. So a put that was late because others were slow counts as slow itself (no coordinated omission), and a
//! rate that cannot be served shows as a latency that grows. Waiting for the due time ends up to a millisecond late, and that
//! counts too.
//!
//! | latency | from | to |
//! |---|---|---|
//! | `put` | the due time | committed; with several clusters, all that were put together |
//! | `put_call` | the call of reserve | the same |
//! | `delivery` | the due time | leased by a consumer |
//! | `take` | the call, also if it waits for a sample to come | leased |
//! | `ack` | the call | acknowledged |
//! | `open`, `look` | the call; by one more process, some times a second, with `--live` or `--sessions` | done |
//!
//! What happened to each sample is in the workers' journals, which outlive a worker that is killed (`--crash-every`). In the end
//! each sample must have been delivered and acknowledged once, the index must be empty, and of a `--budget` all must be back but what
//! live samples hold; otherwise the run fails.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this program talks to people and scripts"
)]

mod conductor;
mod etcd;
mod journal;
mod latency;
mod ledger;
mod report;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tensorhold_core::partition::MOST_PARTITIONS;
use tensorhold_core::{Partition, SampleId, StoreId, SystemClock, SystemRng};
use tensorhold_index::placement::NewStore;
use tensorhold_index::store::TxnStore;
use tensorhold_index::{Index, IndexConfig, Session, TxnIndex};
use tensorhold_index_etcd::{EtcdClusters, EtcdConfig, EtcdStore, open_store};

/// Enough for any one call on a machine that does other things too.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);
/// The name of the store, which has its etcd to itself. With several clusters, that of its part on each.
pub(crate) const STORE: &str = "load";

/// Samples that arrive at a fixed rate, on a real etcd
#[derive(Parser)]
#[command(name = "cargo xtask load", bin_name = "cargo xtask load")]
pub(crate) struct Options {
    /// Samples that arrive in a second, over all producers
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// For how many seconds they arrive
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Processes that put
    #[arg(long, default_value_t = 2)]
    producers: u64,
    /// Processes that take and acknowledge, divided among the groups
    #[arg(long, default_value_t = 2)]
    consumers: u64,
    /// Groups; each gets every sample
    #[arg(long, default_value_t = 1)]
    groups: u8,
    /// Bytes that a sample's record says it has; none are moved
    #[arg(long, default_value_t = 4 << 20)]
    bytes: u64,
    /// The budget of the store in bytes, or of its part on each cluster: every put needs quota, and in the end all must be back
    /// but what live samples hold. A put of more than 45 samples holds some while it waits for the rest, so a budget for fewer than all
    /// that are under way at once can come to a halt
    #[arg(long)]
    budget: Option<u64>,
    /// How many seconds of its history etcd keeps. Few by default, so that a run of a minute shows whether its file stops growing
    #[arg(long, default_value_t = 10)]
    history: u32,
    /// The most samples that are put or taken together; each cluster has a part of those that are put
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Puts under way at once in each process, and takes on each cluster
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// Etcd clusters, each with the samples that a partition of a store would have
    #[arg(long, default_value_t = 1)]
    clusters: u32,
    /// Kill a producer or a consumer every so many seconds, in turns, and start another in its place
    #[arg(long)]
    crash_every: Option<u64>,
    /// Live samples that no consumer takes, put before. Several numbers for several runs, side by side: 10000,1000000
    #[arg(long, value_delimiter = ',', default_value = "0")]
    live: Vec<u64>,
    /// Sessions that are open and do nothing. As many numbers as for `--live`
    #[arg(long, value_delimiter = ',', default_value = "0")]
    sessions: Vec<usize>,
    /// Print nothing but one JSON object, last
    #[arg(long)]
    json: bool,
}

impl Options {
    /// How many samples arrive.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be positive and not too many"
    )]
    fn samples(&self) -> u64 {
        (self.rate * self.seconds as f64) as u64
    }

    /// A minute, or a tenth of a run that is shorter than ten.
    fn window(&self) -> Duration {
        (Duration::from_secs(self.seconds) / 10).min(Duration::from_secs(60))
    }

    /// In how many windows samples arrive.
    fn windows(&self) -> u64 {
        let windows = Duration::from_secs(self.seconds)
            .as_nanos()
            .div_ceil(self.window().as_nanos().max(1));
        u64::try_from(windows).unwrap_or(u64::MAX)
    }

    fn check(&self) -> Result<()> {
        /// Keeps the ledger in memory, and a mistyped rate from filling the disk.
        const MOST_SAMPLES: f64 = 1e8;
        let samples = self.rate * self.seconds as f64;
        ensure!(
            (1.0..=MOST_SAMPLES).contains(&samples),
            "between 1 and 10^8 samples, not {samples}"
        );
        ensure!(
            self.producers > 0 && self.batch > 0 && self.at_once > 0,
            "nothing would be put"
        );
        ensure!(
            self.groups > 0 && self.consumers >= u64::from(self.groups),
            "each group needs a consumer: --consumers {} --groups {}",
            self.consumers,
            self.groups
        );
        ensure!(
            (1..=MOST_PARTITIONS).contains(&self.clusters),
            "--clusters takes a number from 1 to {MOST_PARTITIONS}"
        );
        if let Some(budget) = self.budget {
            self.check_budget(budget)?;
        }
        ensure!(self.history > 0, "--history 0 would keep all of it, for ever");
        ensure!(
            self.crash_every != Some(0),
            "--crash-every 0 would leave no time to work"
        );
        ensure!(
            self.live.len() == self.sessions.len() || self.live.len() == 1 || self.sessions.len() == 1,
            "as many numbers for --sessions as for --live"
        );
        Ok(())
    }

    /// A put of several lots holds one and waits for the next. A lot takes at most a quarter of the budget, so a put that needs no
    /// more than that is one, and none waits for another that waits.
    fn check_budget(&self, budget: u64) -> Result<()> {
        let batch = u64::try_from(self.batch)?;
        let live = self.live.iter().copied().max().unwrap_or(0);
        let of = |samples: u64| samples.checked_mul(self.bytes);
        ensure!(
            of(batch).is_some_and(|bytes| bytes <= budget / 4),
            "a quarter of --budget {budget} has no room for a put of {batch} samples of {} bytes",
            self.bytes
        );
        ensure!(
            live.checked_add(batch)
                .and_then(of)
                .is_some_and(|bytes| bytes <= budget),
            "--budget {budget} has no room for {live} live samples of {} bytes, were all on one cluster, and a put",
            self.bytes
        );
        ensure!(
            budget.checked_mul(self.clusters.into()).is_some(),
            "--budget {budget} on each of {} clusters is more than there are bytes",
            self.clusters
        );
        Ok(())
    }
}

fn main() -> Result<ExitCode> {
    if let Ok(task) = std::env::var(worker::TASK) {
        return worker::main(&task).map(|()| ExitCode::SUCCESS);
    }
    let options = Options::parse();
    options.check()?;
    let runs = options.live.len().max(options.sessions.len());
    let mut reports = Vec::new();
    for run in 0..runs {
        let live = *options.live.get(run).unwrap_or(&options.live[0]);
        let sessions = *options.sessions.get(run).unwrap_or(&options.sessions[0]);
        reports.push(conductor::run(&options, live, sessions)?);
    }
    report::print(&reports, options.json)?;
    Ok(if reports.iter().all(report::Report::holds) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The machine's monotonic clock in microseconds. Unlike [`tensorhold_core::SystemClock`], whose time begins with its process, it
/// is the same in all processes: due times are compared across them.
pub(crate) fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let [seconds, nanos] = [now.tv_sec, now.tv_nsec].map(i64::unsigned_abs);
    seconds * 1_000_000 + nanos / 1000
}

/// What is on one cluster: an index of its own, and this process's session in it.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) txn_store: Arc<dyn TxnStore>,
    pub(crate) index: Arc<TxnIndex>,
    pub(crate) session: Arc<Session>,
}

impl Part {
    /// With a budget, if one is given, and otherwise with the one that the store has.
    pub(crate) async fn open(endpoints: &[String], budget: Option<u64>) -> Result<Self> {
        let (txn_store, index) = open_index(endpoints).await?;
        if let Some(bytes) = budget {
            // Before the first session: those that are open already need no quota.
            index.set_budget(bytes, WITHIN).await?;
        }
        let session = Arc::new(index.open_session(WITHIN).await?);
        Ok(Self {
            txn_store,
            index: Arc::new(index),
            session,
        })
    }
}

/// Samples with their descriptions.
pub(crate) type Described = Vec<(SampleId, Vec<u8>)>;

/// Which of so many clusters has a sample.
pub(crate) fn cluster_of(sample: &SampleId, clusters: usize) -> Result<usize> {
    Ok(usize::try_from(Partition::of_sample(sample, u32::try_from(clusters)?))?)
}

/// Samples and the parts that have them, without parts that would have none.
pub(crate) fn divide(parts: &[Part], samples: Described) -> Result<Vec<(&Part, Described)>> {
    let mut divided: Vec<_> = parts.iter().map(|part| (part, Vec::new())).collect();
    for (sample, description) in samples {
        divided[cluster_of(&sample, parts.len())?].1.push((sample, description));
    }
    divided.retain(|(_, samples)| !samples.is_empty());
    Ok(divided)
}

/// A connection of its own to the store's etcd, and the index over it.
async fn open_index(endpoints: &[String]) -> Result<(Arc<dyn TxnStore>, TxnIndex)> {
    let clock = Arc::new(SystemClock::new());
    let config = EtcdConfig::new(endpoints.iter().cloned());
    let home = EtcdStore::open(config.clone(), clock.clone(), WITHIN).await;
    let clusters = EtcdClusters::new(home.context("cannot open etcd")?, config, clock);
    let store = StoreId::new(STORE)?;
    let txn_store = open_store(
        Arc::new(clusters),
        &store,
        NewStore::Begins,
        Arc::new(SystemRng),
        WITHIN,
    )
    .await;
    let txn_store = txn_store.context("cannot open the store")?;
    let index = TxnIndex::new(
        Arc::clone(&txn_store),
        &store,
        IndexConfig::default(),
        Arc::new(SystemClock::new()),
        Arc::new(SystemRng),
    );
    Ok((txn_store, index))
}
