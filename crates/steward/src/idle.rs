//! Leaving stores alone that nobody uses.
//!
//! ```text
//!            two looks find nothing to do: closed             a process opens it; it is time for an audit, or to end it
//!   Open ─────────────────────────────────────────▶ Idle ─────────────────────────────────────────────────────▶ Open
//!                                                    │ ▲ found in the index
//!                                                    ▼ unused for `forget_after`, and empty
//!                                                 forgotten
//! ```
//! A store that is open costs etcd a session, watches, and some reads each second, also if its run ended long ago. An idle one
//! costs two short reads of a request that many share, each [`EVERY`]. Why it needs no sweep is in the module `ops::idle` of
//! `tensorhold_index`.
//!
//! # What if…
//! - *…a process opens an idle store and dies at once?* Its session lives for longer than [`EVERY`], so the store is open
//!   again before that has ended. Until then the processes of the store sweep, as without a steward.
//! - *…etcd does not answer?* Nothing is known, the time for which stores were unused begins anew, and the next round asks.
//! - *…the steward changes nothing (`read_only`)?* Then it keeps every store open: seeing that one is idle clears up after
//!   sessions that have ended.
//! - *…a holder goes while a store is idle?* Nobody looks, and no bytes are got. The index keeps which holders there were, so
//!   its samples are looked for when it is opened next: by a process, or for an audit. While holders are missing, or samples
//!   are looked for because of that, an open store stays open.
//! - *…the store is on another cluster than the home?* It counts as in use, and stays open.
//! - *…a process opens a store that is being forgotten?* Either it is not forgotten, or the process begins it anew.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, StoreId};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::options::StoreOptions;
use crate::state::State;
use crate::tend::Kept;

/// How often idle stores are looked at: less than the time to live of a session.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// How long one round, and forgetting a store, may take.
const WITHIN: Duration = Duration::from_secs(10);

/// What one look at all idle stores has found.
#[derive(Debug, Default)]
pub(crate) struct Round {
    looked: BTreeSet<StoreId>,
    in_use: BTreeSet<StoreId>,
}

/// How often this steward looks at idle stores.
pub(crate) fn every(state: &State) -> Duration {
    state.options.look_every.min(EVERY)
}

/// Looks at the idle stores until it is told to stop.
pub(crate) async fn rounds(state: Arc<State>, stop: CancellationToken) {
    let mut looks = interval(every(&state));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let looked = state.resting();
        let asked: Vec<StoreId> = looked.iter().cloned().collect();
        if asked.is_empty() {
            continue;
        }
        let found = tokio::select! {
            () = stop.cancelled() => return,
            found = state.connect.in_use(&asked, WITHIN) => found,
        };
        match found {
            Ok(found) => {
                let in_use = found.into_iter().collect();
                state.rounds.send_replace(Arc::new(Round { looked, in_use }));
            }
            Err(error) => tracing::warn!(%error, "it is not known which idle stores are in use again; trying again"),
        }
    }
}

/// Why an idle store is not left alone any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// It is to be opened.
    Up,
    /// Nothing of it is left.
    Forgotten,
    /// The steward stops.
    Stopped,
}

/// A store that is idle. Dropping it ends that.
struct Resting<'a> {
    state: &'a State,
    store: &'a StoreId,
    asked: Arc<Notify>,
}

impl<'a> Resting<'a> {
    fn begin(state: &'a State, store: &'a StoreId, is_known: bool) -> Self {
        let asked = state.rests(store);
        state.note(store, |report| {
            report.idle = is_known;
            (report.on_duty, report.users, report.trouble) = (false, Some(0), None);
            (report.steward, report.sweepers) = (None, Vec::new());
            // They would grow old.
            (report.holders, report.backlog) = (None, Vec::new());
        });
        Self { state, store, asked }
    }
}

impl Drop for Resting<'_> {
    fn drop(&mut self) {
        self.state.rests_no_more(self.store);
        self.state.note(self.store, |report| {
            (report.idle, report.users) = (false, None);
        });
    }
}

/// Leaves a store alone until there is something to do. Forgets it after that time, if it is empty. If it is not known to be
/// idle, the first look tells.
pub(crate) async fn rest(
    state: &State,
    options: &StoreOptions,
    kept: &mut Kept,
    forget_after: Option<Duration>,
    is_known: bool,
    stop: &CancellationToken,
) -> Woken {
    let store = &options.store;
    let resting = Resting::begin(state, store, is_known);
    let mut rounds = state.rounds.subscribe();
    // The last round was before this.
    rounds.mark_unchanged();
    loop {
        tokio::select! {
            () = stop.cancelled() => return Woken::Stopped,
            () = resting.asked.notified() => return Woken::Up,
            // Its sender lives in the state.
            changed = rounds.changed() => if changed.is_err() {
                return Woken::Stopped;
            }
        }
        let round = Arc::clone(&rounds.borrow_and_update());
        if !round.looked.contains(store) {
            continue;
        }
        if round.in_use.contains(store) {
            return Woken::Up;
        }
        let now = Instant::now();
        kept.unused.saw(0, now, every(state));
        let unused = kept.unused.since.map(|since| now - since);
        state.note(store, |report| {
            report.idle = true;
            report.unused_seconds = unused.map(|unused| unused.as_secs());
        });
        let is_over = |time: Option<Duration>| unused.zip(time).is_some_and(|(unused, time)| unused >= time);
        let is_to_end = is_over(options.end_when_unused) && !kept.ended;
        if is_to_end || kept.next_audit.is_some_and(|at| at <= now) {
            return Woken::Up;
        }
        if is_over(forget_after) && forget(state, store, unused.unwrap_or_default()).await {
            return Woken::Forgotten;
        }
        if is_over(forget_after) {
            // Not again in each round.
            kept.unused.forget();
        }
    }
}

/// Forgets a store. False if it is not empty, or if it is not known whether that was done.
async fn forget(state: &State, store: &StoreId, unused: Duration) -> bool {
    match state.connect.forget(store, WITHIN).await {
        Ok(_) => {
            tracing::info!(%store, ?unused, "forgot the store: no process had it open, and it was empty");
            true
        }
        Err(error) if error.kind() == ErrorKind::Conflict => {
            tracing::debug!(%store, %error, "the store stays");
            false
        }
        Err(error) => {
            tracing::warn!(%store, %error, "the store could not be forgotten; trying again later");
            false
        }
    }
}
