//! The counters of a page store.

use std::sync::atomic::{AtomicU64, Ordering};

use super::page::{PageGot, PagePut};

/// The counters of a page store since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is what its name says")]
pub struct StoreStats {
    pub pages_stored: u64,
    pub bytes_stored: u64,
    pub puts_full: u64,
    pub puts_failed: u64,
    pub pages_loaded: u64,
    pub bytes_loaded: u64,
    pub gets_missed: u64,
    /// Objects with another length than their page: the engine, or the process that wrote them, is at fault.
    pub gets_wrong_length: u64,
    /// Objects of the right length with wrong bytes, for the same reasons.
    pub gets_corrupt: u64,
    pub gets_failed: u64,
    /// Wrong pages that were removed from the engine.
    pub bad_pages_removed: u64,
    /// Wrong pages that could not be removed yet.
    pub bad_pages_waiting: u64,
    pub keys_probed: u64,
    pub keys_present: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pages_stored: AtomicU64,
    bytes_stored: AtomicU64,
    puts_full: AtomicU64,
    puts_failed: AtomicU64,
    pages_loaded: AtomicU64,
    bytes_loaded: AtomicU64,
    gets_missed: AtomicU64,
    gets_wrong_length: AtomicU64,
    gets_corrupt: AtomicU64,
    gets_failed: AtomicU64,
    bad_pages_removed: AtomicU64,
    keys_probed: AtomicU64,
    keys_present: AtomicU64,
}

fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn put(&self, outcome: &PagePut, bytes: u64) {
        match outcome {
            PagePut::Stored => {
                add(&self.pages_stored, 1);
                add(&self.bytes_stored, bytes);
            }
            PagePut::Full => add(&self.puts_full, 1),
            PagePut::Failed(_) => add(&self.puts_failed, 1),
            PagePut::Skipped => {}
        }
    }

    pub(super) fn got(&self, outcome: &PageGot, bytes: u64) {
        match outcome {
            PageGot::Loaded => {
                add(&self.pages_loaded, 1);
                add(&self.bytes_loaded, bytes);
            }
            PageGot::Miss => add(&self.gets_missed, 1),
            PageGot::WrongLength { .. } => add(&self.gets_wrong_length, 1),
            PageGot::Corrupt(_) => add(&self.gets_corrupt, 1),
            PageGot::Failed(_) => add(&self.gets_failed, 1),
            PageGot::Skipped => {}
        }
    }

    pub(super) fn removed(&self) {
        add(&self.bad_pages_removed, 1);
    }

    pub(super) fn probed(&self, keys: usize, present: usize) {
        add(&self.keys_probed, keys as u64);
        add(&self.keys_present, present as u64);
    }

    pub(super) fn snapshot(&self, bad_pages_waiting: usize) -> StoreStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreStats {
            pages_stored: read(&self.pages_stored),
            bytes_stored: read(&self.bytes_stored),
            puts_full: read(&self.puts_full),
            puts_failed: read(&self.puts_failed),
            pages_loaded: read(&self.pages_loaded),
            bytes_loaded: read(&self.bytes_loaded),
            gets_missed: read(&self.gets_missed),
            gets_wrong_length: read(&self.gets_wrong_length),
            gets_corrupt: read(&self.gets_corrupt),
            gets_failed: read(&self.gets_failed),
            bad_pages_removed: read(&self.bad_pages_removed),
            bad_pages_waiting: bad_pages_waiting as u64,
            keys_probed: read(&self.keys_probed),
            keys_present: read(&self.keys_present),
        }
    }
}
