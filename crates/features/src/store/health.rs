//! How a store is doing in this process.

use std::time::Duration;

use tensorhold_custody::{SessionId, Tick};
use tensorhold_engine::{Registrations, Usage};
use tensorhold_index::{History, PassedOver};

use crate::memory::pool::PoolUse;
use crate::runtime::counters::Counters;

/// How a store is doing in this process.
#[derive(Clone, Debug)]
pub struct Health {
    /// The current session; none if it has ended and nothing new was done since.
    pub session: Option<SessionId>,
    /// How many sessions were opened; more than one means that this process was cut off.
    pub sessions_opened: u64,
    /// Whether the index was restored to an earlier state or replaced while this process ran, and what is to be done.
    pub index: History,
    /// Operations in flight.
    pub operations: usize,
    /// Engine calls and checksum computations in flight.
    pub calls: usize,
    /// The pool.
    pub pool: PoolUse,
    /// Samples whose objects are still to be removed by this process.
    pub pending_frees: usize,
    /// Samples that the engine does not have now and that may be lost.
    pub suspected: usize,
    /// Records that this process has met and could not read, because they are broken or of a later release.
    pub passed_over: PassedOver,
    /// Memory that is registered with the engine.
    pub registrations: Registrations,
    /// Capacity and use of the engine; none if it did not report them.
    pub usage: Option<Usage>,
    /// Bytes of the store's budget that no sample holds; none without a budget, or if the index did not say.
    pub free_budget: Option<u64>,
    /// Leases that this process holds and has not answered for.
    pub leases: usize,
    /// The age of the oldest of them.
    pub oldest_lease: Option<Duration>,
    /// The store's shared clock as this process last saw it, and for how long it has seen it stand there.
    pub clock: Option<(Tick, Duration)>,
    /// What was done so far.
    pub counters: Counters,
}
