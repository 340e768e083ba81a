//! What a case runs in: a store, a first process, and bounded waits.

use std::ops::Deref;

use tensorhold_core::testing::{CaseResult, Failure};
use tensorhold_custody::Tick;

use super::client::Client;
use super::{Backend, Harness};
use crate::SweepReport;

/// What a case runs in: a store of its own and a first process, whose helper methods it has too.
pub struct Context {
    // Declared before the harness, because processes are dropped before their store.
    first: Client,
    harness: Box<dyn Harness>,
}

impl Context {
    /// Starts a store for a case.
    pub async fn start(backend: &dyn Backend) -> CaseResult<Self> {
        let harness = backend.start().await?;
        let first = Client::open(harness.connect().await?).await?;
        Ok(Self { first, harness })
    }

    /// Another process.
    pub async fn join(&self) -> CaseResult<Client> {
        Client::open(self.harness.connect().await?).await
    }

    /// The store, from outside.
    pub fn harness(&self) -> &dyn Harness {
        self.harness.as_ref()
    }

    /// The process that a case begins with.
    pub fn first(&self) -> &Client {
        &self.first
    }

    /// Sweeps, one tick after the other, until the shared clock shows `tick`. A sweep advances it by one at most, so it
    /// stops exactly there. Returns the sum of the sweeps' reports.
    pub async fn until_tick(&self, tick: Tick) -> CaseResult<SweepReport> {
        let mut total = SweepReport::default();
        let left = tick.0.saturating_sub(self.tick().await?.0);
        // Real clocks are a little late; ten sweeps per tick are more than enough.
        for _ in 0..=left.saturating_mul(10) {
            let report = self.sweep().await?;
            total.looked_at += report.looked_at;
            total.abandoned += report.abandoned;
            total.taken_back += report.taken_back;
            total.retired += report.retired;
            total.sessions_cleared += report.sessions_cleared;
            if self.tick().await? >= tick {
                return Ok(total);
            }
            self.harness.pass(self.harness.settings().tick).await;
        }
        Err(Failure::new(format!(
            "the shared clock is at {} after {left} ticks of sweeping; it should be at {tick}",
            self.tick().await?
        )))
    }

    /// Lets so many ticks pass.
    pub async fn ticks(&self, count: u64) -> CaseResult<SweepReport> {
        let now = self.tick().await?;
        self.until_tick(now.after(count)).await
    }

    /// Lets a lease of so many ticks run out, grace included.
    pub async fn outlive(&self, ticks: u64) -> CaseResult<SweepReport> {
        self.ticks(ticks + self.harness.settings().grace_ticks + 1).await
    }
}

impl Deref for Context {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.first
    }
}
