//! Changes as transactions: batches of decisions, sessions and their slots, the shared clock, lists in parts, and records
//! that cannot be decoded.

pub(crate) mod batch;
mod clock;
pub(crate) mod decision;
mod pack;
pub(crate) mod pages;
pub(crate) mod quarantine;
pub(crate) mod record_cache;
pub(crate) mod session;
pub(crate) mod transitions;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Clock, Deadline, Result, Rng, StoreId};

use self::clock::SeenClock;
use self::quarantine::PassedOver;
use self::session::SlotClient;
use crate::record::identity::SaidSettings;
use crate::record::layout::Layout;
use crate::store::{Transaction, TxnOutcome, TxnStore};

/// The settings of a store's index. All processes that use a store must use the same settings. A steward follows theirs
/// where its own would hold for them: `tick`, `grace_ticks` and `dead_most`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IndexConfig {
    /// How long a process may be silent before its session ends. Default: 10 s.
    #[serde(with = "tensorhold_core::duration")]
    pub session_ttl: Duration,
    /// The length of one tick of the shared clock. Default: 1 s.
    #[serde(with = "tensorhold_core::duration")]
    pub tick: Duration,
    /// How many ticks after its end a lease still counts, for transfers in flight. Default: 2.
    pub grace_ticks: u64,
    /// How many ticks a reservation lasts. Default: 600.
    pub reserve_ticks: u64,
    /// How many ticks the record of a lost sample is kept, so that its objects are removed again if a process that held
    /// them and was away has brought them back. Default: 60.
    pub lost_ticks: u64,
    /// How many ticks the objects of a dead letter are kept, so that it can be put back into circulation. Default: 0, they
    /// are removed at once. The producer's setting counts: it is written into the record. The record of a dead letter stays
    /// until it is dropped.
    pub dead_ticks: u64,
    /// The most dead letters of a store whose objects are kept; above that, those that would go first go now. The setting of
    /// the process that sweeps counts. Default: 1000.
    pub dead_most: usize,
}

impl Default for IndexConfig {
    fn default() -> Self {
        Self {
            session_ttl: Duration::from_secs(10),
            tick: Duration::from_secs(1),
            grace_ticks: 2,
            reserve_ticks: 600,
            lost_ticks: 60,
            dead_ticks: 0,
            dead_most: 1000,
        }
    }
}

/// What every operation needs: the transactional store, and what this process knows of it.
#[derive(Debug)]
pub(crate) struct TxnCore {
    slots: SlotClient,
    rng: Arc<dyn Rng>,
    config: IndexConfig,
    seen: Mutex<SeenClock>,
    /// What sweeps follow in place of this process's own settings; nothing but in a steward.
    followed: Mutex<SaidSettings>,
    passed_over: PassedOver,
}

impl TxnCore {
    pub(crate) fn new(
        txn_store: Arc<dyn TxnStore>,
        store: &StoreId,
        config: IndexConfig,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Self {
        Self {
            slots: SlotClient::new(txn_store, Layout::new(store), clock),
            rng,
            config,
            seen: Mutex::default(),
            followed: Mutex::default(),
            passed_over: PassedOver::default(),
        }
    }

    pub(crate) fn config(&self) -> &IndexConfig {
        &self.config
    }

    /// Follows these settings from now on. Returns those before.
    pub(crate) fn follow(&self, settings: SaidSettings) -> SaidSettings {
        std::mem::replace(&mut *self.followed.lock(), settings)
    }

    /// The length of a tick by which sweeps move the shared clock.
    pub(crate) fn tick_length(&self) -> Duration {
        let followed = self.followed.lock().tick_ms;
        followed.map_or(self.config.tick, Duration::from_millis)
    }

    /// How many ticks after its end a lease still counts for sweeps.
    pub(crate) fn grace_ticks(&self) -> u64 {
        self.followed.lock().grace_ticks.unwrap_or(self.config.grace_ticks)
    }

    /// The most dead letters whose objects sweeps leave alone.
    pub(crate) fn dead_most(&self) -> usize {
        let followed = self.followed.lock().dead_most;
        followed.map_or(self.config.dead_most, |most| {
            usize::try_from(most).unwrap_or(usize::MAX)
        })
    }

    pub(crate) fn txn_store(&self) -> &dyn TxnStore {
        &*self.slots.txn_store
    }

    /// A transaction that may write the first key of the store, which no session vouches for: requires that the store is
    /// here. If it is rejected, where the store is was read again.
    pub(crate) async fn transact_here(&self, transaction: &Transaction, deadline: Deadline) -> Result<TxnOutcome> {
        let left = || deadline.remaining(self.clock());
        let Some(placed) = self.txn_store().placed() else {
            return self.txn_store().transact(transaction, left()).await;
        };
        let mut transaction = transaction.clone();
        transaction.conditions.push(placed.is_here());
        let outcome = self.txn_store().transact(&transaction, left()).await?;
        if outcome == TxnOutcome::Rejected {
            placed.find_again(left()).await?;
        }
        Ok(outcome)
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

    pub(crate) fn passed_over(&self) -> &PassedOver {
        &self.passed_over
    }

    pub(crate) fn slots(&self) -> &SlotClient {
        &self.slots
    }

    pub(crate) fn deadline(&self, within: Duration) -> Deadline {
        Deadline::after(self.clock(), within)
    }
}
