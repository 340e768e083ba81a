//! Who sweeps: one steward, or, while there is none, two of the processes that use the store. Not all of them.
//!
//! Every process that may sweep watches the offices of its store ([`tensorhold_index::Office`]) and takes one that is vacant,
//! if it holds none. A process holds at most one.
//!
//! ```text
//!              no office vacant                 its office: taken                 a steward is there (for others than it)
//!  Standing by ◀───────────────▶ Candidate ─────────────────────────▶ On duty ◀──────────────────────────────▶ Resting
//!       ▲                        waits a little, takes the office       │ sweeps, wakes the collector             │
//!       └──────── its session ended; it resigned because its sweeps failed; the watch was lost: all anew ─────────┘
//! ```
//!
//! # Invariants
//! - DU1: nothing depends on there being one sweeper. Sweeps may run at once; an office only saves work.
//! - DU2: an office ends with its holder's session. So if all holders die, hang or are cut off, others take over when those
//!   sessions have ended: at the latest their time to live, [`WAIT`] of `sweep_every`, and one transaction later.
//! - DU3: nothing is read periodically except by those on duty. Changes of office are told by the watch.
//! - DU4: on duty, a process sweeps when the shared clock is due (if ticks are not shorter than `sweep_every`). A random pause
//!   would make ticks of one sweeper half as long again.
//! - DU5: a process that does not sweep still collects for as long as it has left samples of its own to sweeps.
//!
//! # What if…
//! - *…a thousand processes see an office become vacant?* Each waits a random time first, and does not try if another was
//!   faster meanwhile.
//! - *…one of the two sweepers is killed or stopped?* The other one goes on: the shared clock does not stand still until the
//!   session of the first has ended. If both are, or the only one is, leases last longer by at most DU2's bound.
//! - *…a holder lives and its sweeps fail, or it cannot reach the engine to free anything?* After [`MOST_FAILURES`] in a row
//!   it resigns, and stands back for a while.
//! - *…the sweeper panics?* Its session lives on, and would keep the office. So it resigns, and this process sweeps no more.
//! - *…the index cannot be reached?* Then no sweep would work either. It begins anew after a pause.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorhold_core::Result;
use tensorhold_index::{Leaders, Office, Session, SweepReport};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Reclaim;

const OPERATION: &str = "features.sweep";
/// A candidate waits for up to this part of `sweep_every`.
const WAIT: u32 = 2;
/// After so many failed sweeps in a row a process resigns.
const MOST_FAILURES: u32 = 3;

/// What this process knows and does about sweeping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweeping {
    /// Who holds the offices of the store, as last told.
    pub leaders: Leaders,
    /// The office that this process holds.
    pub office: Option<Office>,
    /// Whether it sweeps: it holds an office, and no steward is there if it is none.
    pub on_duty: bool,
    /// Sweeps that have ended.
    pub sweeps: u64,
    /// Sweeps that have failed.
    pub failed: u64,
    /// What the last one did.
    pub last: Option<SweepReport>,
    /// What all of them did.
    pub total: SweepReport,
    /// Why the last one failed, if it did.
    pub last_error: Option<String>,
    /// Whether this process sweeps no more because its sweeper has ended by a defect.
    pub broken: bool,
}

/// The offices that a process takes, the first one that is vacant.
fn offices(steward: bool) -> &'static [Office] {
    if steward {
        &[Office::Steward]
    } else {
        &[Office::Sweeper, Office::Deputy]
    }
}

/// Takes part in sweeping until it is told to stop. If that ends by a defect, the office is left to others.
pub(crate) async fn sweep(reclaim: Arc<Reclaim>, every: Duration, mut stop: watch::Receiver<bool>) {
    // It ends with this task, however that ends.
    let mut sweeper = JoinSet::new();
    sweeper.spawn(sweep_until(Arc::clone(&reclaim), every, stop.clone()));
    let Some(Err(failure)) = sweeper.join_next().await else {
        return;
    };
    tracing::error!(store = %reclaim.runtime.config.store, %failure, "the sweeper has ended by a defect; leaving its office");
    reclaim.duty.send_modify(|known| {
        (known.office, known.on_duty, known.broken) = (None, false, true);
        known.last_error = Some("the sweeper has ended by a defect; this process sweeps no more".to_owned());
    });
    // The offices of another session are not this process's, and that of this one ends with it.
    let Some(session) = reclaim.runtime.sessions.known() else {
        return;
    };
    while !*stop.borrow() && session.is_alive() {
        let Err(error) = reclaim.resign(&session).await else {
            return;
        };
        tracing::warn!(%error, "the office could not be left; trying again");
        tokio::select! {
            told = stop.changed() => if told.is_err() { return },
            () = tokio::time::sleep(reclaim.between(every / 2, every)) => {}
        }
    }
}

async fn sweep_until(reclaim: Arc<Reclaim>, every: Duration, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        if let Err(error) = reclaim.take_part(every, &mut stop).await {
            tracing::debug!(%error, "it is not known who sweeps; asking again");
            let pause = reclaim.between(every / 2, every);
            tokio::select! {
                _ = stop.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

impl Reclaim {
    /// A random time: at least `from`, and less than `spread` more.
    fn between(&self, from: Duration, spread: Duration) -> Duration {
        let spread = u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX);
        from + Duration::from_nanos(self.runtime.rng.below(spread.max(1)))
    }

    /// Leaves whatever office the session holds.
    async fn resign(&self, session: &Session) -> Result<()> {
        for office in offices(self.runtime.config.steward) {
            let within = self.runtime.config.call_within;
            self.runtime.index.resign(session, *office, within).await?;
        }
        Ok(())
    }

    /// When to sweep next.
    fn next_sweep(&self, every: Duration) -> Instant {
        const A_BIT: Duration = Duration::from_millis(1);
        let tick = self.runtime.index.tick_length();
        let stood = self.runtime.index.seen_clock().map(|(_, stood)| stood);
        let on_duty = self.duty.borrow().on_duty;
        let pause = match stood {
            Some(stood) if on_duty && tick >= every && stood < tick => (tick - stood).min(every) + A_BIT,
            Some(_) if on_duty => every,
            // Half to one and a half times as long, so that processes do not do the same at the same time.
            _ => self.between(every / 2, every),
        };
        Instant::now() + pause
    }

    /// Takes part with the current session, until that has ended or the watch is lost.
    async fn take_part(&self, every: Duration, stop: &mut watch::Receiver<bool>) -> Result<()> {
        let index = &self.runtime.index;
        let within = self.runtime.config.call_within;
        let session = self
            .runtime
            .sessions
            .current(OPERATION, self.runtime.own_deadline())
            .await?;
        let leaders = index.leaders(within).await?;
        let mut told = index.watch_leaders(&leaders, within).await?;
        self.told(&session, leaders);
        let (mut next, mut failures) = (self.next_sweep(every), 0);
        let mut candidate = self.wanted().map(|_| Instant::now());
        loop {
            let until = candidate.unwrap_or(next).min(next);
            tokio::select! {
                _ = stop.changed() => return Ok(()),
                () = session.ended() => {
                    self.told(&session, Leaders::default());
                    return Ok(());
                }
                leaders = told.next() => {
                    if self.told(&session, leaders?) {
                        // It takes over from another one.
                        next = Instant::now();
                    }
                    let wait = || Instant::now() + self.between(Duration::ZERO, every / WAIT);
                    candidate = self.wanted().map(|_| candidate.unwrap_or_else(wait));
                }
                () = tokio::time::sleep_until(until) => {
                    if candidate.is_some_and(|at| at <= Instant::now()) {
                        // Whatever the answer is, the watch tells it, too.
                        candidate = None;
                        if let Some(office) = self.wanted() {
                            index.lead(&session, office, within).await?;
                        }
                    }
                    if next > Instant::now() {
                        continue;
                    }
                    if self.duty.borrow().on_duty {
                        failures = if self.sweep_on_duty().await { 0 } else { failures + 1 };
                    } else if self.queue.has_left_to_sweeps() {
                        self.queue.wake_collector.notify_one();
                    }
                    next = self.next_sweep(every);
                    let office = self.duty.borrow().office;
                    if let Some(office) = office.filter(|_| failures >= MOST_FAILURES) {
                        tracing::warn!(office = office.name(), "sweeps failed again and again; leaving it to others");
                        failures = 0;
                        self.failed_collects.store(0, Ordering::Relaxed);
                        index.resign(&session, office, within).await?;
                        // Others have the time to take it.
                        candidate = Some(Instant::now() + 2 * every);
                    }
                }
            }
        }
    }

    /// The office that this process should take.
    fn wanted(&self) -> Option<Office> {
        let known = self.duty.borrow();
        let vacant = |office: &&Office| known.leaders.of(**office).is_none();
        let mut offices = offices(self.runtime.config.steward).iter();
        offices.find(vacant).copied().filter(|_| known.office.is_none())
    }

    /// Takes in who holds the offices now. True if this process is on duty and was not before.
    fn told(&self, session: &Session, leaders: Leaders) -> bool {
        let mut began = false;
        self.duty.send_modify(|known| {
            let mut offices = offices(self.runtime.config.steward).iter();
            known.office = offices.find(|office| leaders.is_held_by(**office, session.id())).copied();
            let others = leaders.of(Office::Steward).is_some() && known.office != Some(Office::Steward);
            let on_duty = known.office.is_some() && !others;
            began = on_duty && !known.on_duty;
            if on_duty != known.on_duty {
                let office = known.office.map(Office::name);
                tracing::info!(store = %self.runtime.config.store, on_duty, office, steward = others, "who sweeps has changed");
            }
            known.on_duty = on_duty;
            known.leaders = leaders;
        });
        began
    }

    /// Sweeps, and wakes the collector. Returns whether that worked.
    async fn sweep_on_duty(&self) -> bool {
        let swept = self.take_back(self.runtime.own_deadline(), true).await;
        self.duty.send_modify(|known| match &swept {
            Ok(report) => {
                known.sweeps += 1;
                known.last = Some(*report);
                known.total.add(report);
                known.last_error = None;
            }
            Err(error) => {
                known.failed += 1;
                known.last_error = Some(error.to_string());
            }
        });
        match &swept {
            Ok(report) if did_something(report) => tracing::info!(
                store = %self.runtime.config.store,
                leases = report.taken_back,
                reservations = report.abandoned,
                retired = report.retired,
                sessions = report.sessions_cleared,
                quarantined = report.quarantined,
                "taken back: their sessions have ended, or their time was over"
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a sweep did not end; the next one goes on"),
        }
        // For the samples that this sweep retired, and for those that other processes left behind.
        self.queue.wake_collector.notify_one();
        swept.is_ok() && self.failed_collects.load(Ordering::Relaxed) < MOST_FAILURES
    }
}

fn did_something(report: &SweepReport) -> bool {
    report.taken_back + report.abandoned + report.retired + report.sessions_cleared + report.quarantined > 0
}
