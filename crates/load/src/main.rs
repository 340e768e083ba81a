//! The load generator: how the index serves samples that arrive at a fixed rate, for as long as it is told.
//! `cargo xtask load` runs it.
//!
//! It starts a real etcd, and producers and consumers that are processes of their own: this program, started again with a
//! task in its environment (module `worker`). They use the index ([`holdfast_index::Index`]) as the feature store does, with
//! reserve, commit, lease, acknowledge and freed, and move no bytes: the memory engine belongs to one process, so that what a
//! producer put there no consumer could get, and the real engine would be measured instead of the index. Reservations are not
//! made ahead.
//!
//! **Open loop.** Sample `i` is due at `start + i / rate`, whatever happened to those before it, and the latency of its put
//! counts from then. So a put that was late because others were slow counts as slow itself (no coordinated omission), and a
//! rate that cannot be served shows as a latency that grows. Waiting for the due time ends up to a millisecond late, and that
//! counts too.
//!
//! | latency | from | to |
//! |---|---|---|
//! | `put` | the due time | committed |
//! | `put_call` | the call of reserve | committed |
//! | `delivery` | the due time | leased by a consumer |
//! | `take` | the call, also if it waits for a sample to come | leased |
//! | `ack` | the call | acknowledged |
//! | `open`, `look` | the call; by one more process, some times a second, with `--live` or `--sessions` | done |
//!
//! What happened to each sample is in the workers' journals, which outlive a worker that is killed (`--crash-every`). In the end
//! each sample must have been delivered and acknowledged once, and the index must be empty; otherwise the run fails.
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
mod moves;
mod report;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use holdfast_core::{StoreId, SystemClock, SystemRng};
use holdfast_index::store::TxnStore;
use holdfast_index::{IndexConfig, TxnIndex};
use holdfast_index_etcd::{EtcdClusters, EtcdConfig, EtcdStore, NewStore, open_store};

/// Enough for any one call on a machine that does other things too.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);
/// The name of the store, which has its etcd to itself.
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
    /// The most samples in one put or take
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Puts or takes under way at once in each process
    #[arg(long, default_value_t = 8)]
    at_once: usize,
    /// Kill a producer or a consumer every so many seconds, in turns, and start another in its place
    #[arg(long)]
    crash_every: Option<u64>,
    /// Move the store to another etcd and back, so many seconds after the start and after each move
    #[arg(long)]
    move_every: Option<u64>,
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
            self.crash_every != Some(0),
            "--crash-every 0 would leave no time to work"
        );
        ensure!(
            self.live.len() == self.sessions.len() || self.live.len() == 1 || self.sessions.len() == 1,
            "as many numbers for --sessions as for --live"
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

/// The machine's monotonic clock in microseconds. Unlike [`holdfast_core::SystemClock`], whose time begins with its process, it
/// is the same in all processes: due times are compared across them.
pub(crate) fn now_us() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let [seconds, nanos] = [now.tv_sec, now.tv_nsec].map(i64::unsigned_abs);
    seconds * 1_000_000 + nanos / 1000
}

/// A connection of its own to etcd, and the clusters of the index whose home it is.
pub(crate) async fn open_clusters(endpoints: &[String]) -> Result<(Arc<EtcdStore>, Arc<EtcdClusters>)> {
    let clock = Arc::new(SystemClock::new());
    let config = EtcdConfig::new(endpoints.iter().cloned());
    let home = EtcdStore::open(config.clone(), clock.clone(), WITHIN).await;
    let home = home.context("cannot open etcd")?;
    let clusters = EtcdClusters::new(home.clone(), config, clock);
    Ok((Arc::new(home), Arc::new(clusters)))
}

/// A connection of its own to the store's etcd, and the index over it.
pub(crate) async fn open_index(endpoints: &[String]) -> Result<(Arc<dyn TxnStore>, TxnIndex)> {
    let (_, clusters) = open_clusters(endpoints).await?;
    let store = StoreId::new(STORE)?;
    let txn_store = open_store(clusters, &store, NewStore::Begins, &SystemRng, WITHIN).await;
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
