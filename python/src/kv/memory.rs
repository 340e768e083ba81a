//! The memory of Python objects that pages may lie in.
//!
//! A page's parts are named by address, as tensors give them. Only memory that was registered before is touched: an
//! address outside of it is an error, not a crash. Whatever owns the memory is kept alive until nobody needs it any more.
//!
//! Invariants:
//! - KM1: registered ranges do not overlap. A range inside a registered one is known already.
//! - KM2: a range that was unregistered stays alive until the last call that uses it is over, and the engine has let go.

#![expect(unsafe_code, reason = "the FFI edge: memory of Python objects, named by its address")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Error, ErrorKind, Result};
use holdfast_engine::{Engine, EngineId, HostMemory, Region, Registrar, Span};
use parking_lot::RwLock;
use pyo3::prelude::*;

const OPERATION: &str = "kv.memory";
/// Memory is worth telling the engine about if it holds this many parts of pages that go past the frames.
const POOL_PARTS: usize = 64;

/// Keeps a Python object, and with it its memory.
struct Owner(Option<Py<PyAny>>);

impl Drop for Owner {
    fn drop(&mut self) {
        let mut owner = self.0.take();
        // At the end of the interpreter it cannot be dropped any more, and need not.
        if Python::try_attach(|_| drop(owner.take())).is_none() {
            std::mem::forget(owner);
        }
    }
}

/// For memory that no engine gets to see: all its pages pass through frames.
#[derive(Debug)]
struct Unseen(EngineId);

impl Registrar for Unseen {
    fn engine(&self) -> EngineId {
        self.0
    }

    fn unregister(&self, memory: HostMemory) {
        drop(memory);
    }
}

/// What is registered, by its first address.
#[derive(Debug)]
pub(super) struct Ranges {
    regions: RwLock<BTreeMap<usize, Region>>,
    unseen: Arc<Unseen>,
    /// The engine gets to know memory of at least this many bytes.
    seen_from: usize,
}

impl Ranges {
    /// Without frames the engine gets to know all memory. With them it needs none; puts that go past the frames
    /// (`direct_put_bytes`) need large pools, and for less, such as the memory of one page, it is not worth the call.
    pub(super) fn new(framed: bool, direct_put_bytes: Option<usize>) -> Self {
        let pool = |bytes: usize| bytes.saturating_mul(POOL_PARTS).max(1);
        Self {
            regions: RwLock::default(),
            unseen: Arc::new(Unseen(EngineId::unique())),
            seen_from: if framed {
                direct_put_bytes.map_or(usize::MAX, pool)
            } else {
                0
            },
        }
    }

    /// Takes in memory that stays valid as long as `owner` lives. Whether it was new.
    pub(super) fn add(
        &self,
        engine: &dyn Engine,
        address: usize,
        len: usize,
        owner: Py<PyAny>,
        within: Duration,
    ) -> Result<bool> {
        if self.find(address, len).is_some() {
            return Ok(false);
        }
        self.check_free(address, len)?;
        let base = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the caller of Python's `register` says that the memory is valid while the owner lives; it is only ever
        // copied in and out of.
        let memory = |owner: &Arc<Owner>| unsafe { HostMemory::lent(base, len, Arc::clone(owner)) };
        let owner = Arc::new(Owner(Some(owner)));
        let unseen = || -> Result<Region> { Ok(Region::new(memory(&owner)?, Arc::<Unseen>::clone(&self.unseen))) };
        let region = if len < self.seen_from {
            unseen()?
        } else {
            match engine.register(memory(&owner)?, within) {
                Ok(region) => region,
                Err(error) if self.seen_from > 0 => {
                    tracing::warn!(%error, "the engine does not take this memory; its pages pass through frames");
                    unseen()?
                }
                Err(error) => return Err(error),
            }
        };
        let mut regions = self.regions.write();
        // Somebody may have been faster.
        if overlaps(&regions, address, len) {
            drop(regions);
            return Err(overlap(address, len));
        }
        regions.insert(address, region);
        Ok(true)
    }

    fn check_free(&self, address: usize, len: usize) -> Result<()> {
        if overlaps(&self.regions.read(), address, len) {
            return Err(overlap(address, len));
        }
        Ok(())
    }

    /// Forgets the range that begins there. Whether there was one.
    pub(super) fn remove(&self, address: usize) -> bool {
        // Dropped after the lock: what it owns may take the interpreter's.
        let region = self.regions.write().remove(&address);
        region.is_some()
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        let regions = std::mem::take(&mut *self.regions.write());
        drop(regions);
    }

    pub(super) fn find(&self, address: usize, len: usize) -> Option<Region> {
        let end = address.checked_add(len)?;
        let regions = self.regions.read();
        let (_, region) = regions.range(..=address).next_back()?;
        (end <= region.address() + region.len()).then(|| region.clone())
    }

    /// The memory of each part, in order.
    pub(super) fn spans(&self, addresses: &[usize], sizes: &[usize]) -> Result<Vec<Span>> {
        let regions = self.regions.read();
        let one = |(&address, &len): (&usize, &usize)| {
            let found = regions.range(..=address).next_back();
            let (base, region) = found.ok_or_else(|| unknown(address, len))?;
            let from = address - base;
            let end = from.checked_add(len).filter(|end| *end <= region.len());
            region.span(from..end.ok_or_else(|| unknown(address, len))?)
        };
        addresses.iter().zip(sizes).map(one).collect()
    }
}

fn overlaps(regions: &BTreeMap<usize, Region>, address: usize, len: usize) -> bool {
    let before = regions.range(..address.saturating_add(len)).next_back();
    before.is_some_and(|(base, region)| base + region.len() > address)
}

fn overlap(address: usize, len: usize) -> Error {
    Error::new(
        ErrorKind::Conflict,
        OPERATION,
        "this memory overlaps memory that is registered; register the whole of it, once",
    )
    .with("address", format!("{address:#x}"))
    .with("bytes", len)
}

fn unknown(address: usize, len: usize) -> Error {
    Error::invalid(
        OPERATION,
        "a part of a page lies outside of all registered memory; register the pool first",
    )
    .with("address", format!("{address:#x}"))
    .with("bytes", len)
}
