//! How a store is doing in this process.

use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_custody::SessionId;
use holdfast_engine::{Registrations, Usage};
use holdfast_index::{History, PassedOver};

use crate::pool::PoolUse;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What this process has done since it opened the store.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counting {
            $(pub(crate) $name: Counter,)*
        }

        impl Counting {
            pub(crate) fn read(&self) -> Counters {
                Counters { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Samples put.
    puts,
    /// Bytes put.
    bytes_put,
    /// Puts that failed.
    failed_puts,
    /// Times that a put met a full engine and waited.
    waits_for_room,
    /// Samples got, whole or in part.
    gets,
    /// Bytes got.
    bytes_got,
    /// Gets that were refused because the bytes that arrived were not the committed ones.
    corrupt,
    /// Gets that were refused because the lease did not hold any more.
    fenced,
    /// Samples that could not be read here and were left to other processes: a later release has put them.
    unreadable,
    /// Samples found lost.
    lost,
    /// Samples acknowledged.
    acks,
    /// Samples handed back.
    nacks,
    /// Samples whose objects were removed.
    freed,
    /// Times that removing a sample's objects failed.
    failed_frees,
    /// Removals and releases that found their queue full and were left to a sweep.
    left_to_sweeps,
    /// Sweeps.
    sweeps,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }
}

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
    /// What was done so far.
    pub counters: Counters,
}
