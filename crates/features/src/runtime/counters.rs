//! What a store counts in this process.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Samples taken for a group, or leased for reading.
    taken,
    /// Takes that waited until their deadline and got no sample.
    empty_takes,
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
