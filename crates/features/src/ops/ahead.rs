//! Reservations made ahead, so that a put waits for the index once.
//!
//! A put may not move its first byte before the index knows which keys it is about to write. So it used to wait twice: for
//! its reservation, and for its commit. Now a worker keeps a few reservations ready, under names of their own, each with a
//! plan of [`OBJECTS_AHEAD`](crate::record::plan::OBJECTS_AHEAD) keys. A put takes one, moves its bytes at once, and the commit gives the reservation the
//! sample's name (`tensorhold_index::Becomes`).
//!
//! ```text
//!           the worker reserves       a put takes it           commit
//! (nothing) ───────────────────▶ kept ───────────────▶ in use ─────────▶ live, under its sample's name
//!                                 │                       │ failed, given up
//!                                 │ not needed, too old,  ▼
//!                                 │ or the store closes  undone, like any other reservation (module `put`)
//!                                 ▼
//!                               unreserved: nothing was written under it
//! ```
//!
//! # Invariants
//! - AH1: before the first byte of a put moves, a reservation with a plan that names every key is in the index. That is FS3;
//!   only the moment at which it is made is another.
//! - AH2: a reservation is taken by one put at most, and presented with the session that made it.
//! - AH3: what is kept is bounded ([`MOST_KEPT`]), and none is kept for long by a process that does not put: after
//!   [`IDLE_TICKS`] without a put all go back, and none is used that is older than [`OLD_TICKS`].
//!
//! # Failure cases
//! | what happens | what follows |
//! |---|---|
//! | the process dies | its session ends, and a sweep gives up what it kept and what was in use; the plans name all keys |
//! | the worker's reply is lost | the names of that attempt are never used; their reservations run out, or go with the session |
//! | the session is lost | what was kept under it is dropped; a sweep gives it up |
//! | the session ended, and this process does not know it yet | the commit is refused (`Fenced`), and the put fails; the next one opens another session |
//! | a reservation expired before its commit | the commit is refused (`Fenced`), and the put fails, as with any reservation |
//! | none is kept | the put makes its own reservation, as before |
//!
//! # Which puts make their own reservation
//! Those of a store with a budget, because their share of it is taken with the reservation; sealed ones, because the seal
//! covers sample and generation; samples of more than [`OBJECTS_AHEAD`](crate::record::plan::OBJECTS_AHEAD) objects; and a sample that an earlier put of this
//! process is still busy with.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Nonce, Result, Timestamp};
use tensorhold_index::{Reserve, SampleRef, Session};
use tokio::sync::{Notify, watch};

use crate::record::plan::Plan;
use crate::runtime::Runtime;

/// How many reservations are kept at first. Doubled when a put finds none.
const FIRST_KEPT: usize = 8;
/// The most that are kept. As many as fit into one transaction.
const MOST_KEPT: usize = 64;
/// After how many ticks without a put all of them are given back.
const IDLE_TICKS: u32 = 2;
/// The age, in ticks, from which one is not used any more. A small part of what a reservation lasts.
const OLD_TICKS: u32 = 10;

/// A reservation that was made ahead.
#[derive(Debug)]
pub(crate) struct ReservedAhead {
    pub(crate) session: Arc<Session>,
    pub(crate) reference: SampleRef,
    pub(crate) nonce: Nonce,
    made: Timestamp,
}

/// The reservations that this process keeps ready.
#[derive(Debug)]
pub(crate) struct Ahead {
    runtime: Arc<Runtime>,
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first.
    kept: VecDeque<ReservedAhead>,
    /// How many are to be kept; none unless puts follow each other.
    wanted: usize,
    last_put: Option<Timestamp>,
}

impl Ahead {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            state: Mutex::default(),
            wake: Notify::new(),
        }
    }

    fn idle(&self) -> Duration {
        self.runtime.index.tick_length() * IDLE_TICKS
    }

    fn old(&self) -> Duration {
        self.runtime.index.tick_length() * OLD_TICKS
    }

    /// Takes a reservation for each of `count` puts that begin now; none if there are not enough for all of them.
    pub(crate) fn take(&self, session: &Arc<Session>, count: usize) -> Vec<ReservedAhead> {
        let now = self.runtime.clock.now();
        let (idle, old) = (self.idle(), self.old());
        let mut state = self.state.lock();
        let follows = state.last_put.is_some_and(|last| now.since(last) < idle);
        state.last_put = Some(now);
        let usable = |kept: &ReservedAhead| Arc::ptr_eq(&kept.session, session) && now.since(kept.made) < old;
        // Those that are usable stand together: in front of them are older ones, behind them those of a later session.
        let first = state.kept.iter().position(usable).unwrap_or(state.kept.len());
        let there = state.kept.iter().skip(first).take_while(|kept| usable(kept)).count();
        let taken: Vec<ReservedAhead> = match there >= count {
            true => state.kept.drain(first..first + count).collect(),
            false => Vec::new(),
        };
        if taken.is_empty() && follows {
            state.wanted = (2 * state.wanted).max(2 * count).clamp(FIRST_KEPT, MOST_KEPT);
        }
        let low = state.kept.len() <= state.wanted / 2;
        drop(state);
        if low {
            self.wake.notify_one();
        }
        taken
    }

    /// Takes out what is not to be kept, and says how many more are to be reserved.
    fn review(&self, session: Option<&Arc<Session>>) -> (VecDeque<ReservedAhead>, usize) {
        let now = self.runtime.clock.now();
        let (idle, old) = (self.idle(), self.old());
        let mut state = self.state.lock();
        if state.last_put.is_none_or(|last| now.since(last) >= idle) {
            state.wanted = 0;
        }
        let (wanted, all) = (state.wanted, std::mem::take(&mut state.kept));
        let is_good = |kept: &ReservedAhead| {
            let current = session.is_some_and(|session| Arc::ptr_eq(session, &kept.session));
            wanted > 0 && current && now.since(kept.made) < old
        };
        let (kept, unneeded): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(is_good);
        let missing = match kept.len() <= wanted / 2 {
            true => wanted - kept.len(),
            false => 0,
        };
        state.kept = kept;
        (unneeded, missing)
    }

    /// Keeps as many reservations as are wanted, and gives back those that are not.
    async fn look_after(&self) {
        let session = self.runtime.sessions.known();
        let (unneeded, missing) = self.review(session.as_ref());
        self.give_back(unneeded).await;
        let Some(session) = session.filter(|session| missing > 0 && !session.needs_quota()) else {
            return;
        };
        match self.reserve(&session, missing).await {
            Ok(made) => self.state.lock().kept.extend(made),
            Err(error) => {
                self.runtime.sessions.refused(&session, &error);
                tracing::debug!(%error, "nothing could be reserved ahead; puts make their own reservations");
            }
        }
    }

    async fn reserve(&self, session: &Arc<Session>, count: usize) -> Result<Vec<ReservedAhead>> {
        let plan = Plan::ahead()?.to_text()?;
        let wish = |_| {
            Ok(Reserve {
                sample: session.name_ahead()?,
                nonce: Nonce::draw(&*self.runtime.rng),
                // A store without a budget counts no bytes before the commit.
                bytes: 0,
                plan: plan.clone(),
                claims: Vec::new(),
            })
        };
        let wishes: Vec<Reserve> = (0..count).map(wish).collect::<Result<_>>()?;
        let made = self.runtime.clock.now();
        let within = self.runtime.config.call_within;
        let reserved = self.runtime.index.reserve(session, &wishes, within).await;
        let of_wish = |(wish, generation): (Reserve, Result<_>)| {
            Ok(ReservedAhead {
                session: Arc::clone(session),
                reference: SampleRef {
                    sample: wish.sample,
                    generation: generation?,
                },
                nonce: wish.nonce,
                made,
            })
        };
        let (good, bad): (Vec<_>, Vec<_>) = wishes.into_iter().zip(reserved).map(of_wish).partition(Result::is_ok);
        match bad.into_iter().find_map(Result::err).filter(|_| good.is_empty()) {
            Some(error) => Err(error),
            None => Ok(good.into_iter().flatten().collect()),
        }
    }

    /// Gives up reservations under which nothing was written. If that fails, they run out, or go with their session.
    async fn give_back(&self, unneeded: VecDeque<ReservedAhead>) {
        let mut rest = unneeded.into_iter().filter(|kept| kept.session.is_alive()).peekable();
        while let Some(first) = rest.next() {
            let session = first.session;
            let mut samples = vec![first.reference];
            while let Some(next) = rest.next_if(|next| Arc::ptr_eq(&next.session, &session)) {
                samples.push(next.reference);
            }
            let within = self.runtime.config.call_within;
            for result in self.runtime.index.unreserve(&session, &samples, within).await {
                if let Err(error) = result {
                    tracing::debug!(%error, "a reservation made ahead was not given back; it runs out by its time");
                }
            }
        }
    }
}

/// Keeps reservations ready until it is told to stop; then gives back all of them.
pub(crate) async fn keep(ahead: Arc<Ahead>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        let is_empty = ahead.state.lock().kept.is_empty();
        let idle = async {
            match is_empty {
                true => std::future::pending().await,
                false => tokio::time::sleep(ahead.idle()).await,
            }
        };
        tokio::select! {
            _ = stop.changed() => {}
            () = ahead.wake.notified() => {}
            () = idle => {}
        }
        if !*stop.borrow() {
            ahead.look_after().await;
        }
    }
    let all = std::mem::take(&mut ahead.state.lock().kept);
    ahead.give_back(all).await;
}
