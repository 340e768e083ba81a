//! Where gets were served from.
//!
//! The engine does not tell. A get from this process's buffer is known to be local; for any other one, the tier is known
//! if a probe has just seen the object, and with `count_sources` is looked up behind the reader's back if not: in batches, by
//! a worker, and only as long as the list of open questions is short. What was not looked up is counted as such.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdfast_core::ObjectKey;
use holdfast_engine::Presence;
use parking_lot::Mutex;

/// The most objects whose tier is still to be looked up.
const MOST_OPEN: usize = 4096;

/// Objects that gets have loaded, by where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    /// In this process's buffer.
    pub local: u64,
    /// In DRAM of a holder.
    pub dram: u64,
    /// On SSD only.
    pub ssd: u64,
    /// Not known: gone before it was looked up, or not looked up.
    pub unknown: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Sources {
    local: AtomicU64,
    dram: AtomicU64,
    ssd: AtomicU64,
    unknown: AtomicU64,
    open: Mutex<VecDeque<ObjectKey>>,
    any_open: AtomicBool,
}

impl Sources {
    pub(crate) fn local(&self, objects: usize) {
        self.local.fetch_add(objects as u64, Ordering::Relaxed);
    }

    /// An object was loaded that was seen like this.
    pub(crate) fn seen(&self, presence: Option<Presence>) {
        let counter = match presence {
            Some(Presence::Present { dram: 1.., .. }) => &self.dram,
            Some(Presence::Present { ssd: 1.., .. }) => &self.ssd,
            _ => &self.unknown,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Objects were loaded, and it is not known from where.
    pub(crate) fn ask(&self, keys: Vec<ObjectKey>) {
        let mut open = self.open.lock();
        for key in keys {
            if open.len() < MOST_OPEN {
                open.push_back(key);
            } else {
                self.unknown.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.any_open.store(!open.is_empty(), Ordering::Release);
    }

    /// Whether a worker has something to look up.
    pub(crate) fn any_open(&self) -> bool {
        self.any_open.load(Ordering::Acquire)
    }

    /// The next objects to look up.
    pub(crate) fn take(&self, most: usize) -> Vec<ObjectKey> {
        let mut open = self.open.lock();
        let count = open.len().min(most);
        self.any_open.store(open.len() > count, Ordering::Release);
        open.drain(..count).collect()
    }

    pub(crate) fn counts(&self) -> SourceCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SourceCounts {
            local: read(&self.local),
            dram: read(&self.dram),
            ssd: read(&self.ssd),
            // Not those that are still to be looked up: a counter does not fall.
            unknown: read(&self.unknown),
        }
    }
}
