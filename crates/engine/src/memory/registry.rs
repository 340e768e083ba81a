//! The memory that a client has registered.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tensorhold_core::{Error, Result};

use crate::region::{EngineId, HostMemory, Region, Registrar};
use crate::types::Registrations;

/// Keeps account of regions. No server knows of them, so unregistering one never fails.
#[derive(Debug)]
pub(super) struct Registry {
    engine: EngineId,
    /// Length by address.
    regions: Mutex<BTreeMap<usize, usize>>,
}

impl Registry {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            engine: EngineId::unique(),
            regions: Mutex::new(BTreeMap::new()),
        })
    }

    pub(super) fn id(&self) -> EngineId {
        self.engine
    }

    pub(super) fn register(self: &Arc<Self>, memory: HostMemory) -> Result<Region> {
        let (start, end) = (memory.address(), memory.address() + memory.len());
        {
            let mut regions = self.regions.lock();
            // Regions do not overlap, so only the last one that begins before our end can reach into ours.
            if let Some((address, len)) = regions.range(..end).next_back()
                && address + len > start
            {
                return Err(Error::invalid(
                    "engine.register",
                    "the memory overlaps a region that is registered already; use that one, or drop it first",
                )
                .with("memory", format!("{memory:?}"))
                .with("registered", format!("{len} bytes at {address:#x}")));
            }
            regions.insert(start, memory.len());
        }
        Ok(Region::new(memory, self.clone()))
    }

    pub(super) fn registrations(&self) -> Registrations {
        let regions = self.regions.lock();
        Registrations {
            regions: regions.len(),
            bytes: regions.values().map(|len| *len as u64).sum(),
            stuck: 0,
        }
    }
}

impl Registrar for Registry {
    fn engine(&self) -> EngineId {
        self.engine
    }

    fn unregister(&self, memory: HostMemory) {
        self.regions.lock().remove(&memory.address());
        drop(memory);
    }
}
