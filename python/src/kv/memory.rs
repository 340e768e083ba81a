//! The memory of Python objects that pages may lie in.
//!
//! The parts of a page are given by address, as tensors report it. Only memory that was registered before is touched:
//! an address outside of it is an error, not a crash. The owner of the memory is kept alive until no call needs it any
//! more.
//!
//! Invariants:
//! - KM1: registered ranges do not overlap. A range inside a registered one is known already.
//! - KM2: an unregistered range stays alive until the last call that uses it is over, and the engine has released it.

#![expect(unsafe_code, reason = "the FFI edge: memory of Python objects, named by its address")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use pyo3::prelude::*;
use tensorhold_core::{Error, ErrorKind, Result};
use tensorhold_engine::{Engine, EngineId, HostMemory, Region, Registrar, Span};

use crate::owner::Owner;

const OPERATION: &str = "kv.memory";
/// The engine is told about memory only if it holds at least this many page parts that bypass the frames.
const POOL_PARTS: usize = 64;

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

/// The registered ranges, by their first address.
#[derive(Debug)]
pub(super) struct Ranges {
    regions: RwLock<BTreeMap<usize, Region>>,
    unseen: Arc<Unseen>,
    /// The engine is told about memory of at least this many bytes.
    seen_from: usize,
}

impl Ranges {
    /// Without frames the engine is told about all memory. With frames it needs none, except that puts that bypass the
    /// frames (`direct_put_bytes`) need large pools; for less, such as the memory of one page, it is not worth the
    /// call.
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

    /// Registers memory that stays valid as long as `owner` lives. Returns whether it was new.
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
        // SAFETY: the caller of Python's `register` guarantees that the memory is valid while the owner lives; it is
        // only ever copied in and out of.
        let memory = |owner: &Arc<Owner>| unsafe { HostMemory::lent(base, len, Arc::clone(owner)) };
        let owner = Arc::new(Owner::new(owner));
        let unseen = || -> Result<Region> { Ok(Region::new(memory(&owner)?, Arc::<Unseen>::clone(&self.unseen))) };
        let region = if len < self.seen_from {
            unseen()?
        } else {
            match engine.register(memory(&owner)?, within) {
                Ok(region) => region,
                Err(error) if self.seen_from > 0 => {
                    tracing::warn!(%error, "the engine refused to register this memory; its pages pass through frames");
                    unseen()?
                }
                Err(error) => return Err(error),
            }
        };
        let mut regions = self.regions.write();
        // Another thread may have been faster.
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

    /// Forgets the range that begins there. Returns whether there was one.
    pub(super) fn remove(&self, address: usize) -> bool {
        // Dropped after the lock is released: dropping its owner may need the interpreter's lock.
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
        "this memory overlaps memory that is already registered; register the whole range once",
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
