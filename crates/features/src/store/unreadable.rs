//! Samples whose description this process cannot read, because a later release has put them.
//!
//! They are not taken. They stay as they are, with all their attempts, for a consumer that can read them. Each is
//! reported once: a line in the log, and a counter.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tensorhold_core::Result;
use tensorhold_index::SampleRef;

use crate::record::description::{Description, is_unreadable};
use crate::store::Inner;

/// How many reported samples are remembered, to bound memory. If there are more, some are reported again.
const MOST: usize = 1 << 16;

/// The samples that were reported.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(Mutex<HashSet<SampleRef>>);

impl Unreadable {
    /// Whether the sample was not reported yet.
    fn is_new(&self, sample: &SampleRef) -> bool {
        let mut known = self.0.lock();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(sample.clone())
    }
}

/// Descriptions that were parsed before their samples were taken, so that each is parsed once.
pub(crate) struct Readable<'a> {
    inner: &'a Inner,
    read: Mutex<HashMap<SampleRef, Arc<Description>>>,
}

impl<'a> Readable<'a> {
    pub(crate) fn new(inner: &'a Inner) -> Self {
        Self {
            inner,
            read: Mutex::default(),
        }
    }

    /// Whether a sample may be taken: an error if a later release has put it.
    pub(crate) fn check(&self, sample: &SampleRef, description: &[u8]) -> Result<()> {
        if self.read.lock().contains_key(sample) {
            return Ok(());
        }
        match Description::from_bytes(description) {
            Ok(description) => {
                self.read.lock().insert(sample.clone(), Arc::new(description));
                Ok(())
            }
            // No release can read it: it is taken, and moved into quarantine.
            Err(error) if is_unreadable(&error) => Ok(()),
            Err(error) => {
                let SampleRef { sample: id, generation } = sample;
                if self.inner.unreadable.is_new(sample) {
                    self.inner.runtime.count.unreadable.one();
                    tracing::warn!(%error, sample = %id, %generation, "a sample cannot be read here; it is left to others");
                }
                Err(error.with("sample", id).with("generation", generation))
            }
        }
    }

    /// The description of a sample that was taken.
    pub(crate) fn take(&self, sample: &SampleRef, description: &[u8]) -> Result<Arc<Description>> {
        let read = self.read.lock().remove(sample);
        read.map_or_else(|| Description::from_bytes(description).map(Arc::new), Ok)
    }
}
