//! The index over any [`TxnStore`]: its parts, sessions and the shared clock. The intents are in [`crate::intents`] and
//! [`crate::sweep`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use holdfast_core::{Clock, Deadline, ErrorKind, Result, Retry, Rng, StoreId, Timestamp};
use holdfast_custody::{GroupName, Tick, Version};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::quarantine::PassedOver;
use crate::quota::{Hints, LocalQueue};
use crate::record::decode;
use crate::session::{Session, SlotClient, is_full};
use crate::shards::ReadyList;
use crate::store::{Condition, Entry, Read, Transaction, TxnOutcome, TxnStore, Write};

/// The settings of a store's index. All processes that use a store must use the same settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IndexConfig {
    /// How long a process may be silent before its session ends. Default: 10 s.
    pub session_ttl: Duration,
    /// The length of one tick of the shared clock. Default: 1 s.
    pub tick: Duration,
    /// How many ticks after its end a lease still counts, for transfers in flight. Default: 2.
    pub grace_ticks: u64,
    /// How many ticks a reservation lasts. Default: 600.
    pub reserve_ticks: u64,
    /// How many ticks the record of a lost sample is kept, so that its objects are removed again if a process that held
    /// them and was away has brought them back. Default: 60.
    pub lost_ticks: u64,
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self {
            session_ttl: Duration::from_secs(10),
            tick: Duration::from_secs(1),
            grace_ticks: 2,
            reserve_ticks: 600,
            lost_ticks: 60,
        }
    }
}

/// The index of one store, over any transactional store.
#[derive(Debug)]
pub struct TxnIndex {
    slots: SlotClient,
    rng: Arc<dyn Rng>,
    config: IndexConfig,
    seen: Mutex<SeenClock>,
    /// The shard at which the next read of this process begins.
    next_shard: AtomicU64,
    ready: Mutex<HashMap<GroupName, Arc<ReadyList>>>,
    hints: Hints,
    local_queue: Arc<LocalQueue>,
    passed_over: PassedOver,
    /// The grant list at which the last sweep of this process ended, if there was more.
    pub(crate) swept_to: Mutex<Option<String>>,
    /// The record of a lost sample at which the last sweep of this process ended, if there was more.
    pub(crate) kept_to: Mutex<Option<String>>,
}

/// The shared clock as this process last saw it.
///
/// Of two observations the later one counts: the one at the larger version of the store, not of the clock. In a store
/// that was restored to an earlier state the clock is older than the one seen before, or absent.
#[derive(Debug, Default)]
struct SeenClock {
    tick: Tick,
    version: Option<Version>,
    /// When this process first saw this tick, by its own clock.
    since: Option<Timestamp>,
    /// The version of the store at which the clock was last seen.
    at: Version,
}

impl TxnIndex {
    /// The index of `store` in `txn_store`.
    pub fn new(
        txn_store: Arc<dyn TxnStore>,
        store: &StoreId,
        config: IndexConfig,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Self {
        let slots = SlotClient::new(txn_store, Layout::new(store), clock);
        // Processes begin at different shards.
        let shard = rng.below(crate::layout::SHARDS);
        Self {
            slots,
            rng,
            config,
            seen: Mutex::default(),
            next_shard: AtomicU64::new(shard),
            ready: Mutex::default(),
            hints: Hints::default(),
            local_queue: Arc::default(),
            passed_over: PassedOver::default(),
            swept_to: Mutex::default(),
            kept_to: Mutex::default(),
        }
    }

    /// The settings.
    pub fn config(&self) -> &IndexConfig {
        &self.config
    }

    pub(crate) fn txn_store(&self) -> &dyn TxnStore {
        &*self.slots.txn_store
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.slots.layout
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.slots.clock
    }

    pub(crate) fn rng(&self) -> &dyn Rng {
        &*self.rng
    }

    pub(crate) fn hints(&self) -> &Hints {
        &self.hints
    }

    pub(crate) fn local_queue(&self) -> &Arc<LocalQueue> {
        &self.local_queue
    }

    pub(crate) fn passed_over(&self) -> &PassedOver {
        &self.passed_over
    }

    pub(crate) fn slots(&self) -> &SlotClient {
        &self.slots
    }

    /// The shard at which a read begins. Reads of one process go round, so that they do not meet.
    pub(crate) fn next_shard(&self) -> u64 {
        self.next_shard.fetch_add(1, Ordering::Relaxed) % crate::layout::SHARDS
    }

    pub(crate) fn ready_list(&self, group: &GroupName) -> Arc<ReadyList> {
        Arc::clone(self.ready.lock().entry(group.clone()).or_default())
    }

    pub(crate) fn deadline(&self, within: Duration) -> Deadline {
        Deadline::after(self.clock(), within)
    }

    pub(crate) async fn open(&self, within: Duration) -> Result<Session> {
        const OPERATION: &str = "index.open_session";
        let deadline = self.deadline(within);
        let session = self.txn_store().open_session(self.config.session_ttl, within).await?;
        let id = session.id();
        let (alive, existed) = (self.layout().alive(id), self.layout().existed(id));
        // The proof that the session existed outlives it, so that a sweep clears up after it. Writing it twice is
        // harmless.
        let transaction = Transaction {
            conditions: Vec::new(),
            writes: vec![
                Write::Put {
                    key: alive,
                    value: Vec::new(),
                    session: Some(id),
                },
                Write::put(existed, Vec::new()),
            ],
        };
        loop {
            match self
                .txn_store()
                .transact(&transaction, deadline.remaining(self.clock()))
                .await
            {
                Ok(_) => {
                    let read = [Read::Key(self.layout().budget())];
                    let snapshot = self.txn_store().read(&read, deadline.remaining(self.clock())).await?;
                    let budget = snapshot.entries.iter().flatten().next().map(decode).transpose()?;
                    return Ok(Session::new(session, budget));
                }
                Err(error) if error.kind() == ErrorKind::Unavailable && !deadline.passed(self.clock()) => {
                    tracing::debug!(OPERATION, %error, "trying again");
                }
                // Even if it was applied: no process keeps the session alive, so it ends by its time to live, and a
                // sweep clears up after it.
                Err(error) if is_full(&error) => return Err(error.with_retry(Retry::Safe)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Records what was read of the shared clock when the store was at version `at`.
    pub(crate) fn note_tick(&self, entry: Option<&Entry>, at: Version) -> Result<()> {
        let tick = entry.map(decode).transpose()?;
        let version = entry.map(|entry| entry.version);
        let mut seen = self.seen.lock();
        if at < seen.at {
            return Ok(());
        }
        seen.at = at;
        if seen.version != version {
            *seen = SeenClock {
                tick: tick.unwrap_or_default(),
                version,
                since: version.map(|_| self.clock().now()),
                at,
            };
        }
        Ok(())
    }

    /// The shared clock, as last seen; creates it if there is none.
    pub(crate) async fn known_tick(&self, deadline: Deadline) -> Result<Tick> {
        Ok(self.known_clock(deadline).await?.0)
    }

    /// The shared clock, as last seen, and the version at which it was set; creates it if there is none.
    pub(crate) async fn known_clock(&self, deadline: Deadline) -> Result<(Tick, Version)> {
        loop {
            {
                let seen = self.seen.lock();
                if let Some(version) = seen.version {
                    return Ok((seen.tick, version));
                }
            }
            let key = self.layout().clock();
            let snapshot = self
                .txn_store()
                .read(&[Read::Key(key.clone())], deadline.remaining(self.clock()))
                .await?;
            let entry = snapshot.entries.into_iter().flatten().next();
            self.note_tick(entry.as_ref(), snapshot.version)?;
            if entry.is_some() {
                continue;
            }
            self.write_tick(Condition::Absent(key), Tick(1), deadline).await?;
        }
    }

    /// Advances the shared clock if it has stood at the present tick for a whole tick's length by our own clock.
    /// Returns the tick.
    pub(crate) async fn advance(&self, deadline: Deadline) -> Result<Tick> {
        let key = self.layout().clock();
        let snapshot = self
            .txn_store()
            .read(&[Read::Key(key.clone())], deadline.remaining(self.clock()))
            .await?;
        self.note_tick(snapshot.entries.iter().flatten().next(), snapshot.version)?;
        self.known_clock(deadline).await?;
        let due = {
            let seen = self.seen.lock();
            let stood = seen
                .since
                .map(|since| self.clock().now().since(since))
                .unwrap_or_default();
            seen.version
                .filter(|_| stood >= self.config.tick)
                .map(|version| (Condition::Unchanged(key, version), seen.tick.after(1)))
        };
        if let Some((unchanged, next)) = due {
            self.write_tick(unchanged, next, deadline).await?;
        }
        self.known_tick(deadline).await
    }

    /// Writes the shared clock. It does not matter if another process was faster: both have waited for a whole tick.
    async fn write_tick(&self, condition: Condition, tick: Tick, deadline: Deadline) -> Result<()> {
        let key = self.layout().clock();
        let value = tick.0.to_string().into_bytes();
        let transaction = Transaction {
            conditions: vec![condition],
            writes: vec![Write::put(key.clone(), value.clone())],
        };
        let answer = self
            .txn_store()
            .transact(&transaction, deadline.remaining(self.clock()))
            .await;
        match answer {
            Ok(TxnOutcome::Committed(version)) => self.note_tick(Some(&Entry { key, value, version }), version),
            Err(error) if error.retry() != Retry::Ambiguous => Err(error),
            // Another process did, or the outcome is ambiguous: read it.
            other => {
                let before = self.seen.lock().version;
                let snapshot = self
                    .txn_store()
                    .read(&[Read::Key(key)], deadline.remaining(self.clock()))
                    .await?;
                self.note_tick(snapshot.entries.iter().flatten().next(), snapshot.version)?;
                match other {
                    // A full store has answered: a write that is not visible now will never be applied.
                    Err(error) if is_full(&error) && self.seen.lock().version == before => {
                        Err(error.with_retry(Retry::Safe))
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}
