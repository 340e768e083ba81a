//! What a session has just written and is likely to change next: a reservation before its commit, a retired record before
//! its objects are gone.
//!
//! It is a guess that saves a look and nothing more: every change requires that the record has the version that is
//! remembered, and if it has not, it is read. Keys are known by their digests, which no two share by chance. The oldest are
//! forgotten first.

use std::collections::{HashMap, VecDeque};

use holdfast_core::Digest;
use holdfast_custody::Version;
use parking_lot::Mutex;

use crate::notes::Line;

/// More than one process has under way at a time; less than what is worth counting in bytes.
const MOST: usize = 8192;

/// A record as it was written, without what rides behind it, and where it is noted who holds it.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    pub(crate) value: Vec<u8>,
    pub(crate) version: Version,
    pub(crate) note: Option<Line>,
}

#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<Digest, Remembered>,
    /// In the order in which they came; some are gone by now.
    order: VecDeque<Digest>,
}

impl Memory {
    pub(crate) fn put(&self, key: Digest, record: Remembered) {
        let mut inner = self.0.lock();
        inner.records.insert(key, record);
        inner.order.push_back(key);
        while inner.order.len() > MOST {
            if let Some(oldest) = inner.order.pop_front() {
                inner.records.remove(&oldest);
            }
        }
    }

    /// What was remembered under a key; forgets it.
    pub(crate) fn take(&self, key: &str) -> Option<Remembered> {
        self.0.lock().records.remove(&Digest::of(key.as_bytes()))
    }
}
