//! What a session has just written and is likely to change next: a reservation before its commit, a retired record before
//! its objects are gone.
//!
//! It is a guess that saves a look and nothing more: every change requires that the record has the version that is
//! remembered, and if it has not, it is read. The oldest are forgotten first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use holdfast_custody::Version;
use parking_lot::Mutex;

use crate::kv::Entry;
use crate::notes::OpenNote;

/// More than one process has under way at a time; less than what is worth counting in bytes.
const MOST: usize = 8192;

/// A record as it was written, and the note of who holds it.
#[derive(Clone, Debug)]
pub(crate) struct Remembered {
    pub(crate) entry: Entry,
    pub(crate) note: Option<Arc<OpenNote>>,
}

#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<String, Remembered>,
    /// In the order in which they came; some are gone by now.
    order: VecDeque<String>,
}

impl Memory {
    pub(crate) fn put(&self, key: String, value: Vec<u8>, version: Version, note: Option<Arc<OpenNote>>) {
        let mut inner = self.0.lock();
        let entry = Entry {
            key: key.clone(),
            value,
            version,
        };
        inner.records.insert(key.clone(), Remembered { entry, note });
        inner.order.push_back(key);
        while inner.order.len() > MOST {
            if let Some(oldest) = inner.order.pop_front() {
                inner.records.remove(&oldest);
            }
        }
    }

    /// What was remembered under a key; forgets it.
    pub(crate) fn take(&self, key: &str) -> Option<Remembered> {
        self.0.lock().records.remove(key)
    }
}
