//! Moving bytes between memory and the engine: batches, threads, deadlines, checks, seals.

mod checksum;
pub(crate) mod read;
pub(crate) mod sealed;
pub(crate) mod staged;
pub(crate) mod write;
pub(crate) mod write_sealed;

use std::sync::Arc;

use holdfast_core::TensorSpec;

use self::sealed::Seals;
use crate::memory::Stages;
use crate::reclaim::queue::ReclaimQueue;
use crate::runtime::Runtime;

/// Reads and writes objects.
#[derive(Debug)]
pub(crate) struct Io {
    runtime: Arc<Runtime>,
    /// Told when the engine is full: there may be samples to be freed.
    queue: Arc<ReclaimQueue>,
    pub(crate) stages: Stages,
    /// The keys of a sealed store, and the state that sealing needs.
    pub(crate) seals: Option<Seals>,
}

impl Io {
    pub(crate) fn new(runtime: Arc<Runtime>, queue: Arc<ReclaimQueue>, seals: Option<Seals>) -> Self {
        Self {
            stages: Stages::new(&runtime),
            runtime,
            queue,
            seals,
        }
    }

    /// How many bytes of a tensor are in one object.
    pub(crate) fn object_bytes(&self) -> u64 {
        let sealed = self.seals.as_ref().map(Seals::object_bytes);
        sealed.unwrap_or(self.runtime.config.chunk_bytes)
    }

    /// The stored size of a tensor: the bytes of all its objects.
    pub(crate) fn stored_bytes(&self, spec: &TensorSpec) -> u64 {
        let sealed = self.seals.as_ref().map(|seals| seals.stored_bytes(spec));
        sealed.unwrap_or(spec.bytes())
    }
}

/// Divides objects into calls of at most `most` bytes: large ones by themselves, small ones together.
fn split<T>(objects: Vec<T>, max_batch: usize, most: u64, bytes_of: impl Fn(&T) -> u64) -> Vec<Vec<T>> {
    let mut units: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for object in objects {
        let more = bytes_of(&object);
        match units.last_mut() {
            Some(unit) if unit.len() < max_batch && bytes + more <= most => {
                bytes += more;
                unit.push(object);
            }
            _ => {
                bytes = more;
                units.push(vec![object]);
            }
        }
    }
    units
}
