//! Where gets were served from.
//!
//! The engine does not tell. A get from this process's buffer is known to be local; for any other one, the tier is known
//! if a probe has just seen the object, and with `count_sources` is looked up behind the reader's back if not: in batches, by
//! a worker, and only as long as the list of open questions is short. What was not looked up is counted as such.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tensorhold_core::ObjectKey;
use tensorhold_engine::Presence;

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
    /// Bytes of the local ones.
    pub local_bytes: u64,
    /// Bytes of those in DRAM.
    pub dram_bytes: u64,
    /// Bytes of those on SSD only.
    pub ssd_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Sources {
    local: AtomicU64,
    dram: AtomicU64,
    ssd: AtomicU64,
    unknown: AtomicU64,
    local_bytes: AtomicU64,
    dram_bytes: AtomicU64,
    ssd_bytes: AtomicU64,
    open: Mutex<VecDeque<ObjectKey>>,
    any_open: AtomicBool,
}

impl Sources {
    pub(crate) fn local(&self, objects: usize, bytes: u64) {
        self.local.fetch_add(objects as u64, Ordering::Relaxed);
        self.local_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An object was loaded that was seen like this.
    pub(crate) fn seen(&self, presence: Option<Presence>) {
        let (objects, moved, bytes) = match presence {
            Some(Presence::Present { dram: 1.., bytes, .. }) => (&self.dram, &self.dram_bytes, bytes),
            Some(Presence::Present { ssd: 1.., bytes, .. }) => (&self.ssd, &self.ssd_bytes, bytes),
            _ => {
                self.unknown.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        objects.fetch_add(1, Ordering::Relaxed);
        moved.fetch_add(bytes, Ordering::Relaxed);
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
            local_bytes: read(&self.local_bytes),
            dram_bytes: read(&self.dram_bytes),
            ssd_bytes: read(&self.ssd_bytes),
        }
    }
}
