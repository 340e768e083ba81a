//! A [`TxnStore`] in memory: for tests, and for simulations that must be deterministic.
//!
//! [`MemoryStore`] keeps the contract of [`TxnStore`] to the letter, including what is easy to forget: session keys that vanish
//! when the clock says so, histories that end, replies that are lost. Time is the [`Clock`] that it was given. Events
//! that are due happen at the beginning of the next call, in the order in which they fell due, so with a
//! [`tensorhold_core::ManualClock`] the same calls always have the same results.
//!
//! ```text
//!              open               kept(false), drop of the session         the time to live passes
//!   (nothing) ─────▶ kept ───────────────────────────────────────▶ dying ──────────────────────────▶ ended
//!                     ▲ └───────────────── close, expire ────────────│───────────────────────────────▶ ▲
//!                     └───────────────── kept(true) ─────────────────┘
//! ```
//!
//! Invariants:
//! - a version is given to exactly one transaction (or one session's end) that changed something;
//! - no key belongs to a session that has ended;
//! - the history holds every change after `compacted`, in order.
//!
//! # Misbehaving on demand
//! Every handle has its own [`faults`](MemoryStore::faults), so that one of several clients can be cut off. A clone shares
//! them; [`MemoryStore::client`] makes a handle with faults of its own.
//!
//! ```
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use tensorhold_core::{ManualClock, Retry};
//! use tensorhold_index::store::memory::{Fate, MemoryStore};
//! use tensorhold_index::store::{Transaction, TxnStore, Write};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let txn_store = MemoryStore::new(Arc::new(ManualClock::new()));
//! txn_store.faults().lose_reply(Fate::Applied);
//! let put = Transaction { writes: vec![Write::put("a", "1")], ..Transaction::default() };
//! let lost = txn_store.transact(&put, Duration::from_secs(1)).await.unwrap_err();
//! assert_eq!(lost.retry(), Retry::Ambiguous);
//! assert_eq!(txn_store.dump().len(), 1, "it was applied all the same");
//! # }
//! ```

mod faults;
mod session;
mod state;
mod watch;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Clock, Error, ErrorKind, Result, Retry};
use tensorhold_custody::{SessionId, Version};

use self::session::MemorySession;
use self::state::State;
use self::watch::MemoryWatch;
use super::{Entry, History, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, check};

pub use self::faults::{Fate, Faults};
pub use self::state::Saved;

/// The limits of a store on etcd, so that nothing passes here and fails there.
const LIMITS: Limits = Limits {
    operations: 127,
    bytes: 1_400_000,
};
/// How often a waiter checks whether the clock has moved: a clock sends no notification.
const LOOK: Duration = Duration::from_millis(5);

/// A transactional store in memory. A clone is the same client of the same store.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    faults: Arc<Faults>,
}

/// The store, shared by all its clients.
#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// The store's version, for sessions and watches that wait for a change.
    changed: tokio::sync::watch::Sender<Version>,
}

impl Shared {
    /// Runs `act` atomically: after everything that is due, and before any waiter is notified.
    fn at_once<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        state.settle(self.clock.now());
        let outcome = act(&mut state);
        let version = state.version();
        drop(state);
        self.changed
            .send_if_modified(|last| std::mem::replace(last, version) != version);
        outcome
    }
}

impl MemoryStore {
    /// An empty store whose sessions live by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let shared = Shared {
            clock,
            state: Mutex::new(State::default()),
            changed: tokio::sync::watch::Sender::new(Version(0)),
        };
        Self {
            shared: Arc::new(shared),
            faults: Arc::default(),
        }
    }

    /// Another client of the same store, without this one's faults.
    pub fn client(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            faults: Arc::default(),
        }
    }

    /// The faults of this client.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Runs what is due by the clock now, instead of at the next call.
    pub fn settle(&self) {
        self.shared.at_once(|_| ());
    }

    /// Ends a session now, as an operator would, or a store that no longer hears its keeper. Returns whether there was
    /// such a session.
    pub fn expire(&self, session: SessionId) -> bool {
        self.shared.at_once(|state| state.end(session))
    }

    /// Stops a session's keeper, or starts it again. Without a keeper, the session ends when its time to live has
    /// passed. Returns whether there is such a session.
    pub fn kept(&self, session: SessionId, kept: bool) -> bool {
        let now = self.shared.clock.now();
        self.shared.at_once(|state| state.keep(session, kept, now))
    }

    /// The sessions that have not ended.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.shared.at_once(|state| state.sessions())
    }

    /// Forgets the history up to `version`: a watch from before it can no longer begin.
    pub fn compact(&self, version: Version) {
        self.shared.at_once(|state| state.compact(version));
    }

    /// Applies the transactions whose fate was [`Fate::Later`], in the order in which they were sent. Returns how many
    /// were applied.
    pub fn land(&self) -> usize {
        let late = self.faults.take_late();
        let applied = late.iter().filter(|transaction| {
            let outcome = self.shared.at_once(|state| state.transact(transaction));
            matches!(outcome, Ok(TxnOutcome::Committed(_)))
        });
        applied.count()
    }

    /// A copy of the store as it is now, to be restored later.
    pub fn save(&self) -> Saved {
        self.shared.at_once(|state| state.save())
    }

    /// Restores a copy of the store, as restoring a snapshot does: what was written since is gone, all sessions have
    /// ended, and every client is fenced until [`MemoryStore::declare`].
    pub fn put_back(&self, saved: &Saved) {
        self.shared.at_once(|state| state.put_back(saved));
    }

    /// Declares, as the operator would, that this is the store from now on.
    pub fn declare(&self) {
        self.shared.at_once(State::declare);
    }

    /// All entries of the store, in key order.
    pub fn dump(&self) -> Vec<Entry> {
        self.shared.at_once(|state| state.dump())
    }

    /// The beginning of every call: it takes the time that was asked for, or fails without an effect.
    async fn enter(&self, operation: &'static str, within: Duration) -> Result<()> {
        let delay = self.faults.delay();
        if delay >= within {
            tokio::time::sleep(within).await;
            return Err(Error::unavailable(
                operation,
                "the deadline passed before the request was sent",
            ));
        }
        if delay.is_zero() {
            // A real store would let other tasks run here; a test of interleavings needs the same.
            tokio::task::yield_now().await;
        } else {
            tokio::time::sleep(delay).await;
        }
        if self.faults.is_out() {
            return Err(Error::unavailable(
                operation,
                "the store does not answer (injected outage)",
            ));
        }
        match self.shared.state.lock().refuses() {
            Some(why) => Err(Error::new(ErrorKind::Fenced, operation, why)),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl TxnStore for MemoryStore {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn history(&self) -> History {
        self.shared.at_once(|state| state.told_history())
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        check::reads(reads, LIMITS)?;
        self.enter("kv.read", within).await?;
        Ok(self.shared.at_once(|state| state.read(reads)))
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        Ok(self.transact_and_read(transaction, &[], within).await?.0)
    }

    async fn transact_and_read(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        within: Duration,
    ) -> Result<(TxnOutcome, Option<Snapshot>)> {
        check::transaction_and_reads(transaction, reads, LIMITS)?;
        self.enter("kv.transact", within).await?;
        let lost = || {
            Error::unavailable("kv.transact", "the reply was lost (this fault was injected)")
                .with_retry(Retry::Ambiguous)
        };
        let apply = || {
            self.shared.at_once(|state| {
                let applied = state.transact(transaction)?;
                Ok((applied, Some(state.read(reads))))
            })
        };
        match self.faults.next_fate() {
            None => apply(),
            Some(Fate::Applied) => {
                // The outcome, good or bad, is what the lost reply would have said.
                self.shared.at_once(|state| state.transact(transaction)).ok();
                Err(lost())
            }
            Some(Fate::ToldAfter(delay)) => {
                let outcome = apply();
                tokio::time::sleep(delay.min(within)).await;
                if delay < within { outcome } else { Err(lost()) }
            }
            Some(Fate::NotApplied) => Err(lost()),
            Some(Fate::Full { applied }) => {
                if applied {
                    self.shared.at_once(|state| state.transact(transaction)).ok();
                }
                Err(Fate::full("kv.transact"))
            }
            Some(Fate::Later) => {
                self.faults.add_late(transaction.clone());
                Err(lost())
            }
        }
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        if time_to_live.is_zero() {
            return Err(Error::invalid("kv.open_session", "a session needs a time to live"));
        }
        self.enter("kv.open_session", within).await?;
        let id = self.shared.at_once(|state| state.open(time_to_live));
        Ok(Box::new(MemorySession::new(id, self.clone())))
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        if keys.start >= keys.end {
            return Err(Error::invalid("kv.watch", "the range is empty").with("keys", format!("{keys:?}")));
        }
        self.enter("kv.watch", within).await?;
        let changed = self.shared.changed.subscribe();
        Ok(Box::new(MemoryWatch::new(
            Arc::clone(&self.shared),
            keys,
            after,
            changed,
        )))
    }
}

#[cfg(test)]
mod tests;
