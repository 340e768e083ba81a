//! Looking after one store.
//!
//! ```text
//!            open                          told to stop
//!  Closed ──────────▶ Open ─────────────────────────────▶ closed for good
//!    ▲ │ fails: later  │ ▲   sweeps and collects while elected (the workers of the store do: `tensorhold_features`)
//!    └─┘               │ │   looks at sessions and budget
//!                      ▼ │   beside that: audits, ends the store if it is unused
//!                      Idle: nobody uses it, and there is nothing to do ([`crate::idle`])
//! ```
//! The store survives a lost session by itself, so it stays open until it is idle.
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

use crate::idle::{self, Woken};
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

/// So many looks in a row that find nothing to do, and the store is closed.
const IDLE_LOOKS: u32 = 2;

/// Where the steward has a store from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// Its settings name it.
    Named,
    /// It was found in the index. Then it is opened only if it is in use, and may be forgotten.
    Found { forget_after: Option<Duration> },
}

/// Why a store is looked after no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The steward stops, or this process sweeps no more.
    Ended,
    /// Nothing of it is left.
    Forgotten,
}

/// What is known of a store whether it is open or not.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) unused: Unused,
    /// Whether it was ended since a process used it.
    pub(crate) ended: bool,
    /// When the next audit is to begin, if there are any.
    pub(crate) next_audit: Option<Instant>,
}

/// Why an open store is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closes {
    Stopped,
    Idle,
}

/// Looks after a store until it is told to stop, or until the store is forgotten.
pub(crate) async fn tend(state: Arc<State>, options: StoreOptions, origin: Origin, stop: CancellationToken) -> Left {
    let id = options.store.clone();
    let mut kept = Kept {
        next_audit: options.audit_every.map(|every| Instant::now() + every),
        ..Kept::default()
    };
    let forget_after = match origin {
        Origin::Named => None,
        Origin::Found { forget_after } => forget_after,
    };
    let may_rest = !state.options.read_only;
    let mut rests = may_rest && matches!(origin, Origin::Found { .. });
    let mut was_open = false;
    loop {
        if rests {
            match idle::rest(&state, &options, &mut kept, forget_after, was_open, &stop).await {
                Woken::Up => {}
                Woken::Stopped => return Left::Ended,
                Woken::Forgotten => {
                    state.forgot(&id);
                    return Left::Forgotten;
                }
            }
        }
        let Some(store) = open_in_time(&state, &options, &stop).await else {
            return Left::Ended;
        };
        tracing::info!(store = %id, read_only = state.options.read_only, "looking after a store");
        state.opened(&id, Some(store.clone()));
        state.note(&id, |report| {
            report.open = true;
            report.trouble = None;
        });
        let mut next_audit = kept.next_audit;
        let mut tending = Tending {
            state: &state,
            options: &options,
            store: &store,
            total: SweepReport::default(),
            kept: &mut kept,
            may_rest,
            idle_looks: 0,
        };
        let closes = tokio::select! {
            closes = tending.until(&stop) => closes,
            // These do not end by themselves.
            () = audit_in_time(&state, &options, &store, &mut next_audit) => Closes::Stopped,
            () = crate::view::keep(&state, &options, &store) => Closes::Stopped,
        };
        kept.next_audit = next_audit;
        state.opened(&id, None);
        state.note(&id, |report| (report.open, report.on_duty) = (false, false));
        if let Err(error) = store.close(WITHIN).await {
            tracing::warn!(store = %id, %error, "the store was not closed in time; its session ends by itself");
        }
        if closes == Closes::Stopped {
            return Left::Ended;
        }
        tracing::info!(store = %id, "leaving a store alone: nobody uses it, and there is nothing to do");
        state.page.rests(&id);
        (rests, was_open) = (true, true);
    }
}

/// Opens a store, however often that takes. None if it is told to stop.
async fn open_in_time(state: &State, options: &StoreOptions, stop: &CancellationToken) -> Option<FeatureStore> {
    let id = &options.store;
    let mut pause = FIRST_PAUSE;
    loop {
        let error = tokio::select! {
            () = stop.cancelled() => return None,
            opened = open(state, options) => match opened {
                Ok(store) => return Some(store),
                Err(error) => error,
            },
        };
        tracing::warn!(store = %id, %error, "the store cannot be opened; trying again");
        state.note(id, |report| report.trouble = Some(error.to_string()));
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
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
    kept: &'a mut Kept,
    /// Whether the store may be left alone when there is nothing to do.
    may_rest: bool,
    /// How many looks in a row have found nothing to do.
    idle_looks: u32,
}

/// For how long no process but stewards has had the store open.
#[derive(Debug, Default)]
pub(crate) struct Unused {
    pub(crate) since: Option<Instant>,
    /// When the sessions were listed last.
    looked: Option<Instant>,
}

impl Unused {
    /// Takes in that so many had it open.
    pub(crate) fn saw(&mut self, users: usize, now: Instant, look_every: Duration) {
        let in_time = self.looked.is_some_and(|looked| now - looked <= 2 * look_every);
        self.since = match users {
            0 => self.since.filter(|_| in_time).or(Some(now)),
            _ => None,
        };
        self.looked = Some(now);
    }

    /// It is not known who has it open.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

impl<'a> Tending<'a> {
    async fn until(&mut self, stop: &CancellationToken) -> Closes {
        let mut sweeping = self.store.sweeping();
        let mut looks = interval_at(Instant::now(), self.state.options.look_every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut holders = self.store.watching_holders();
        let mut ending: Option<BoxFuture<'a, Ending>> = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Closes::Stopped,
                changed = sweeping.changed() => {
                    // Its sender lives in the store.
                    if changed.is_err() {
                        return Closes::Stopped;
                    }
                    let told = sweeping.borrow_and_update().clone();
                    self.swept(&told);
                    if told.broken {
                        tracing::error!(store = %self.options.store, "this process sweeps no more; giving the store up");
                        return Closes::Stopped;
                    }
                }
                changed = holders.changed() => {
                    if changed.is_err() {
                        return Closes::Stopped;
                    }
                    if let Some(seen) = &*holders.borrow_and_update() {
                        self.state.note(&self.options.store, |report| report.saw_holders(seen));
                    }
                }
                _ = looks.tick() => tokio::select! {
                    () = stop.cancelled() => return Closes::Stopped,
                    is_idle = self.look_for_work() => if ending.is_none() {
                        ending = self.unused_for_too_long().map(|unused| {
                            end_unused(self.state, self.options, self.store, unused).boxed()
                        });
                        if ending.is_none() && is_idle && self.idle_looks >= IDLE_LOOKS {
                            return Closes::Idle;
                        }
                    }
                },
                Some(ended) = OptionFuture::from(ending.as_mut()) => {
                    ending = None;
                    if ended != Ending::LeftAlone {
                        // Not again at every look.
                        self.kept.unused.forget();
                    }
                    self.kept.ended |= ended == Ending::Ended;
                }
            }
        }
    }

    /// Looks, and says whether there was nothing to do.
    async fn look_for_work(&mut self) -> bool {
        self.look().await;
        let store = &self.options.store;
        let is_busy = !self.may_rest
            || self.state.is_audited(store)
            || self.is_to_end().is_some()
            || self.state.misses_holders(store);
        let is_idle = !is_busy
            && match self.state.connect.in_use(std::slice::from_ref(store), WITHIN).await {
                Ok(in_use) => in_use.is_empty(),
                Err(error) => {
                    tracing::debug!(%store, %error, "it is not known whether the store is in use");
                    false
                }
            };
        self.idle_looks = if is_idle { self.idle_looks + 1 } else { 0 };
        is_idle
    }

    /// For how long the store was unused, if it is to be ended for that.
    fn is_to_end(&self) -> Option<Duration> {
        let unused = self.kept.unused.since?.elapsed();
        (!self.kept.ended && unused >= self.options.end_when_unused?).then_some(unused)
    }

    /// As [`Tending::is_to_end`], if it is for this process to do.
    fn unused_for_too_long(&self) -> Option<Duration> {
        self.is_to_end()
            .filter(|_| !self.state.options.read_only && on_duty(self.store))
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
                self.kept.unused.forget();
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
        self.kept.unused.saw(users, Instant::now(), look_every);
        self.kept.ended &= users == 0;
        let unused = self.kept.unused.since.map(|since| since.elapsed().as_secs());
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

/// What became of ending a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// This steward is not known to be in office.
    LeftAlone,
    /// It did not end; it is tried again later.
    NotYet,
    Ended,
}

/// Ends a store that was unused for so long.
async fn end_unused(state: &State, options: &StoreOptions, opened: &FeatureStore, unused: Duration) -> Ending {
    let store = &options.store;
    // What was told may be old: this process may have been stopped, and another one elected.
    match opened.holds(Office::Steward, WITHIN).await {
        Ok(true) => {}
        Ok(false) => return Ending::LeftAlone,
        Err(error) => {
            tracing::warn!(%store, %error, "it is not known who is in office; the store is not ended");
            return Ending::LeftAlone;
        }
    }
    match opened.end(false, LONG).await {
        Ok(0) => Ending::Ended,
        Ok(ended) => {
            tracing::info!(%store, ended, ?unused, "ended the store: no process had it open");
            state.note(store, |report| {
                let why = format!("no process had the store open for {} s", unused.as_secs());
                report.acted(format!("ended the store: {ended} samples"), why);
            });
            Ending::Ended
        }
        // A process has opened it meanwhile.
        Err(error) if error.kind() == ErrorKind::Conflict => {
            tracing::info!(%store, %error, "the store is in use again; what is left of it stays");
            Ending::NotYet
        }
        Err(error) => {
            tracing::warn!(%store, %error, "the store could not be ended; trying again later");
            Ending::NotYet
        }
    }
}

/// Audits a store when it is time to, for as long as it is polled.
async fn audit_in_time(state: &Arc<State>, options: &StoreOptions, store: &FeatureStore, next: &mut Option<Instant>) {
    let (Some(every), Some(next)) = (options.audit_every, next) else {
        return std::future::pending().await;
    };
    let mut sweeping = store.sweeping();
    loop {
        tokio::time::sleep_until(*next).await;
        if !state.options.read_only {
            // It was opened for this, and is elected in a moment; if another steward is, that one audits.
            let elected = sweeping.wait_for(|told| told.on_duty || told.leaders.of(Office::Steward).is_some());
            if elected.await.is_err() {
                return std::future::pending().await;
            }
        }
        *next = Instant::now() + every;
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
