//! Records that a session has just written and is likely to change next: a reservation before its commit, a retired
//! record before its objects are removed.
//!
//! Remembering them saves a read and nothing more: every change requires that the record still has the remembered
//! version, and if it has not, the record is read. Keys are identified by their digests, which no two share by chance.
//! The oldest are forgotten first.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use tensorhold_core::Digest;
use tensorhold_custody::Version;

use crate::record::grants::GrantLine;

/// The most records remembered. More than one process has in flight at a time, and few enough for their bytes not to
/// matter.
const MOST: usize = 8192;

/// A record as it was written, without its description, and the line of the grant list that names it.
#[derive(Clone, Debug)]
pub(crate) struct CachedRecord {
    pub(crate) value: Vec<u8>,
    pub(crate) version: Version,
    pub(crate) grant: Option<GrantLine>,
}

#[derive(Debug, Default)]
pub(crate) struct RecordCache(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<Digest, CachedRecord>,
    /// In the order in which they were put; some have been taken since.
    order: VecDeque<Digest>,
}

impl RecordCache {
    pub(crate) fn put(&self, key: Digest, record: CachedRecord) {
        let mut inner = self.0.lock();
        inner.records.insert(key, record);
        inner.order.push_back(key);
        while inner.order.len() > MOST {
            if let Some(oldest) = inner.order.pop_front() {
                inner.records.remove(&oldest);
            }
        }
    }

    /// Returns what was remembered under a key, and forgets it.
    pub(crate) fn take(&self, key: &str) -> Option<CachedRecord> {
        self.0.lock().records.remove(&Digest::of(key.as_bytes()))
    }
}
