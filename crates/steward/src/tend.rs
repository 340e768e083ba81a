//! Looking after one store.
//!
//! ```text
//!            open                          told to stop
//!  Closed ──────────▶ Open ─────────────────────────────▶ closed for good
//!    ▲ │ fails: later  │ sweeps and collects while elected (the workers of the store do: `tensorhold_features`)
//!    └─┘               │ looks at sessions and budget
//!                      │ beside that: audits, ends the store if it is unused
//! ```
//! The store survives a lost session by itself, so it is opened once.
//!
//! The store itself looks at the engine's holders while this steward is in office (`tensorhold_features`), and has its samples
//! looked for when one has gone.
//!
//! Only the steward in office audits and ends. Both may take minutes, so they run beside the looks: the report stays fresh.
//!
//! # Unused
//! - UN1: the time for which a store was unused is made of this steward's own looks, one at most twice `look_every` after
//!   the other. A look that failed or came late (a stopped process, etcd away) begins it anew: nobody knows who had the
//!   store open meanwhile.
//! - UN2: a steward that stands by looks, too. What it has seen counts when it is elected.
//! - UN3: right before it ends the store it asks the index whether its current session holds the office, and
//!   [`FeatureStore::end`] asks before each page whether a process has the store open. One end at a time.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, OptionFuture};
use tensorhold_core::{Clock, ErrorKind, Result, SystemClock, SystemRng};
use tensorhold_features::{FeatureStore, LiveSession, Office, SweepReport, Sweeping};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::options::StoreOptions;
use crate::report::{BudgetReport, MOST_QUARANTINED, TakenBack};
use crate::state::{Auditing, State};

/// Pauses between attempts to open a store: the first, doubled each time up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long one look, and closing a store, may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How long an audit, and ending a store, may take.
const LONG: Duration = Duration::from_secs(600);

/// Looks after a store until it is told to stop.
pub(crate) async fn tend(state: Arc<State>, options: StoreOptions, stop: CancellationToken) {
    let id = options.store.clone();
    let mut pause = FIRST_PAUSE;
    let store = loop {
        let error = tokio::select! {
            () = stop.cancelled() => return,
            opened = open(&state, &options) => match opened {
                Ok(store) => break store,
                Err(error) => error,
            },
        };
        tracing::warn!(store = %id, %error, "the store cannot be opened; trying again");
        state.note(&id, |report| report.trouble = Some(error.to_string()));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    };
    tracing::info!(store = %id, read_only = state.options.read_only, "looking after a store");
    state.opened(&id, Some(store.clone()));
    state.note(&id, |report| {
        report.open = true;
        report.trouble = None;
    });
    let mut tending = Tending {
        state: &state,
        options: &options,
        store: &store,
        total: SweepReport::default(),
        unused: Unused::default(),
    };
    tokio::select! {
        () = tending.until(&stop) => {}
        // These do not end by themselves.
        () = audit_in_time(&state, &options, &store) => {}
        () = crate::view::keep(&state, &options, &store) => {}
    }
    state.opened(&id, None);
    state.note(&id, |report| report.open = false);
    if let Err(error) = store.close(WITHIN).await {
        tracing::warn!(store = %id, %error, "the store was not closed in time; its session ends by itself");
    }
}

async fn open(state: &State, options: &StoreOptions) -> Result<FeatureStore> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let index = state.connect.index(&options.store, crate::identity()).await?;
    let engine = state.connect.engine(&options.store).await?;
    let config = options.features(state.options.read_only);
    FeatureStore::open(engine, index, config, clock, Arc::new(SystemRng)).await
}

struct Tending<'a> {
    state: &'a State,
    options: &'a StoreOptions,
    store: &'a FeatureStore,
    /// What was taken back in all, as last told.
    total: SweepReport,
    unused: Unused,
}

/// For how long no process but stewards has had the store open.
#[derive(Debug, Default)]
struct Unused {
    since: Option<Instant>,
    /// When the sessions were listed last.
    looked: Option<Instant>,
}

impl Unused {
    /// Takes in that so many had it open.
    fn saw(&mut self, users: usize, now: Instant, look_every: Duration) {
        let in_time = self.looked.is_some_and(|looked| now - looked <= 2 * look_every);
        self.since = match users {
            0 => self.since.filter(|_| in_time).or(Some(now)),
            _ => None,
        };
        self.looked = Some(now);
    }

    /// It is not known who has it open.
    fn forget(&mut self) {
        *self = Self::default();
    }
}

impl<'a> Tending<'a> {
    async fn until(&mut self, stop: &CancellationToken) {
        let mut sweeping = self.store.sweeping();
        let mut looks = interval_at(Instant::now(), self.state.options.look_every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut holders = self.store.watching_holders();
        let mut ending: Option<BoxFuture<'a, bool>> = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = sweeping.changed() => {
                    // Its sender lives in the store.
                    if changed.is_err() {
                        return;
                    }
                    let told = sweeping.borrow_and_update().clone();
                    self.swept(&told);
                    if told.broken {
                        tracing::error!(store = %self.options.store, "this process sweeps no more; giving the store up");
                        return;
                    }
                }
                changed = holders.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    if let Some(seen) = &*holders.borrow_and_update() {
                        self.state.note(&self.options.store, |report| report.saw_holders(seen));
                    }
                }
                _ = looks.tick() => tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.look() => if ending.is_none() {
                        ending = self.unused_for_too_long().map(|unused| {
                            end_unused(self.state, self.options, self.store, unused).boxed()
                        });
                    }
                },
                Some(was_tried) = OptionFuture::from(ending.as_mut()) => {
                    ending = None;
                    if was_tried {
                        // Not again at every look.
                        self.unused.forget();
                    }
                }
            }
        }
    }

    /// For how long the store was unused, if that is too long.
    fn unused_for_too_long(&self) -> Option<Duration> {
        let unused = self.unused.since?.elapsed();
        let is_over = unused >= self.options.end_when_unused?;
        (is_over && !self.state.options.read_only && on_duty(self.store)).then_some(unused)
    }

    /// Takes in what the store's sweeper has told.
    fn swept(&mut self, told: &Sweeping) {
        let before = std::mem::replace(&mut self.total, told.total);
        let new = told.total.taken_back + told.total.abandoned + told.total.sessions_cleared
            - (before.taken_back + before.abandoned + before.sessions_cleared);
        self.state.note(&self.options.store, |report| {
            if told.on_duty != report.on_duty {
                let what = if told.on_duty { "took office" } else { "left office" };
                report.acted(what, "the office of steward was vacant, or its session has ended");
            }
            report.sweeping(told);
            report.taken_back = TakenBack::default();
            report.taken_back.add(&told.total);
            if new > 0 {
                let what = format!(
                    "took back {} leases and {} reservations, cleared {} sessions",
                    told.total.taken_back - before.taken_back,
                    told.total.abandoned - before.abandoned,
                    told.total.sessions_cleared - before.sessions_cleared
                );
                report.acted(what, "their sessions have ended, or their time was over");
            }
        });
    }

    /// Looks at what changes slowly.
    async fn look(&mut self) {
        let counters = self.store.counters();
        self.state.note(&self.options.store, |report| {
            let more = counters.freed.saturating_sub(report.freed);
            if more > 0 {
                report.acted(
                    format!("freed {more} samples"),
                    "they were retired and had no reader left",
                );
            }
            (report.freed, report.failed_frees) = (counters.freed, counters.failed_frees);
        });
        match self.store.sessions(WITHIN).await {
            Ok(sessions) => self.saw_sessions(&sessions),
            Err(error) => {
                tracing::warn!(store = %self.options.store, %error, "the sessions could not be listed");
                self.unused.forget();
                self.state.note(&self.options.store, |report| {
                    (report.users, report.unused_seconds) = (None, None);
                });
            }
        }
        match self.store.budget_use(WITHIN).await {
            Ok(used) => self.saw_budget(used.map(|used| BudgetReport {
                bytes: used.bytes,
                free: used.free,
                waiting: used.waiting.len() as u64,
                first_waits_for: used.waiting.first().map(|(_, bytes)| *bytes),
            })),
            Err(error) => tracing::warn!(store = %self.options.store, %error, "the budget could not be read"),
        }
        self.look_at_casualties().await;
        self.read_holders().await;
    }

    /// What the process has seen of the holders whose turn it is to look, if that is another one.
    async fn read_holders(&self) {
        let store = &self.options.store;
        if self.store.watching_holders().borrow().is_some() {
            return;
        }
        match self.store.holders_seen(WITHIN).await {
            Ok(seen) if seen.at_ms > 0 => self.state.note(store, |report| report.saw_holders(&seen)),
            Ok(_) => {}
            Err(error) => tracing::warn!(%store, %error, "what was seen of the holders could not be read"),
        }
    }

    /// Counts the records in quarantine, and the dead letters unless the page's look does.
    async fn look_at_casualties(&self) {
        let store = &self.options.store;
        if self.state.options.http.is_none() {
            let counts = self.store.counts(WITHIN).await;
            if let Err(error) = &counts {
                tracing::warn!(%store, %error, "the dead letters could not be counted");
            }
            self.state.counted(store, counts.ok().as_ref());
        }
        let quarantined = match self.store.quarantined(None, MOST_QUARANTINED, WITHIN).await {
            Ok(found) => Some(found.len() as u64),
            Err(error) => {
                tracing::warn!(%store, %error, "the quarantine could not be read");
                None
            }
        };
        self.state.note(store, |report| report.quarantined = quarantined);
    }

    fn saw_sessions(&mut self, sessions: &[LiveSession]) {
        let users = sessions.iter().filter(|session| !session.is_steward()).count();
        let look_every = self.state.options.look_every;
        self.unused.saw(users, Instant::now(), look_every);
        let unused = self.unused.since.map(|since| since.elapsed().as_secs());
        self.state.note(&self.options.store, |report| {
            report.users = Some(users as u64);
            report.unused_seconds = unused;
        });
    }

    fn saw_budget(&self, budget: Option<BudgetReport>) {
        if let Some(budget) = &budget {
            #[expect(clippy::cast_precision_loss, reason = "a part of the whole")]
            let is_short = (budget.free as f64) < self.options.warn_free * budget.bytes as f64;
            if is_short || budget.waiting > 0 {
                tracing::warn!(
                    store = %self.options.store,
                    budget = budget.bytes,
                    free = budget.free,
                    waiting = budget.waiting,
                    "the budget is nearly spent: consumers are slower than producers, or samples are not acknowledged"
                );
            }
        }
        self.state.note(&self.options.store, |report| report.budget = budget);
    }
}

fn on_duty(store: &FeatureStore) -> bool {
    store.sweeping().borrow().on_duty
}

/// Ends a store that was unused for so long. False if it was left alone, because this steward is not known to be in office.
async fn end_unused(state: &State, options: &StoreOptions, opened: &FeatureStore, unused: Duration) -> bool {
    let store = &options.store;
    // What was told may be old: this process may have been stopped, and another one elected.
    match opened.holds(Office::Steward, WITHIN).await {
        Ok(true) => {}
        Ok(false) => return false,
        Err(error) => {
            tracing::warn!(%store, %error, "it is not known who is in office; the store is not ended");
            return false;
        }
    }
    match opened.end(false, LONG).await {
        Ok(0) => {}
        Ok(ended) => {
            tracing::info!(%store, ended, ?unused, "ended the store: no process had it open");
            state.note(store, |report| {
                let why = format!("no process had the store open for {} s", unused.as_secs());
                report.acted(format!("ended the store: {ended} samples"), why);
            });
        }
        // A process has opened it meanwhile.
        Err(error) if error.kind() == ErrorKind::Conflict => {
            tracing::info!(%store, %error, "the store is in use again; what is left of it stays");
        }
        Err(error) => tracing::warn!(%store, %error, "the store could not be ended; trying again later"),
    }
    true
}

/// Audits a store when it is time to, for as long as it is polled.
async fn audit_in_time(state: &Arc<State>, options: &StoreOptions, store: &FeatureStore) {
    let Some(every) = options.audit_every else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(every).await;
        if on_duty(store) || state.options.read_only {
            audit(state, options, store).await;
        }
    }
}

async fn audit(state: &Arc<State>, options: &StoreOptions, opened: &FeatureStore) {
    let (store, read_only) = (&options.store, state.options.read_only);
    let Some(_auditing) = Auditing::begin(state, store) else {
        tracing::info!(%store, "an audit that was asked for over HTTP is under way; the next one is in its turn");
        return;
    };
    let audit = state.connect.audit(opened, read_only, LONG).await;
    state.audited(store, &audit);
    match audit {
        Ok(found) => {
            tracing::info!(%store, read_only, ?found, "audited: compared the engine's objects with the records");
            state.note(store, |report| {
                let what = format!(
                    "audited {} samples: {} orphans, {} removed, {} lost",
                    found.samples, found.orphans, found.removed, found.lost
                );
                report.acted(what, found.refused.as_deref().unwrap_or("it was time for an audit"));
            });
        }
        Err(error) => tracing::warn!(%store, %error, "an audit did not end"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_it_was_looked_counts() {
        const EVERY: Duration = Duration::from_secs(10);
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut unused = Unused::default();
        for seconds in [0, 10, 30] {
            unused.saw(0, at(seconds), EVERY);
        }
        assert_eq!(unused.since, Some(at(0)), "each look was in time");
        unused.saw(0, at(51), EVERY);
        assert_eq!(
            unused.since,
            Some(at(51)),
            "nobody looked for longer than twice the time"
        );
        unused.saw(1, at(60), EVERY);
        assert_eq!(unused.since, None, "it is used");
        unused.saw(0, at(70), EVERY);
        unused.forget();
        unused.saw(0, at(80), EVERY);
        assert_eq!(unused.since, Some(at(80)), "a look failed");
    }
}
