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

/// For memory that no engine gets to see: pages pass through frames.
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
    /// With frames, the engine does not get to know the memory.
    unseen: Option<Arc<Unseen>>,
}

impl Ranges {
    pub(super) fn new(framed: bool) -> Self {
        Self {
            regions: RwLock::default(),
            unseen: framed.then(|| Arc::new(Unseen(EngineId::unique()))),
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
        let memory = unsafe { HostMemory::lent(base, len, Owner(Some(owner))) }?;
        let region = match &self.unseen {
            Some(unseen) => Region::new(memory, Arc::<Unseen>::clone(unseen)),
            None => engine.register(memory, within)?,
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
