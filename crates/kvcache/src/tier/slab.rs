//! Footers of pages in flight: registered memory of the store's own, in reusable slots.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Error, ErrorKind, Result};
use tensorhold_engine::{Engine, EngineExt, EngineId, Region, Span};

use super::footer::FOOTER_BYTES;

/// Registered slots of [`FOOTER_BYTES`] each. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct FooterSlab(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    region: Region,
    free: Mutex<Vec<usize>>,
}

impl FooterSlab {
    pub(super) fn new(engine: &(impl Engine + ?Sized), slots: usize, within: Duration) -> Result<Self> {
        let region = engine.allocate(slots.max(1) * FOOTER_BYTES, within)?;
        // The lowest slot is on top.
        let free = Mutex::new((0..slots.max(1)).rev().collect());
        Ok(Self(Arc::new(Shared { region, free })))
    }

    /// Takes `count` slots. `Capacity` if fewer are free: calls that the engine has not let go of keep theirs.
    pub(super) fn take(&self, count: usize) -> Result<Slots> {
        let mut free = self.0.free.lock();
        let Some(rest) = free.len().checked_sub(count) else {
            return Err(Error::new(
                ErrorKind::Capacity,
                "kv.footers",
                "too many pages are in flight; wait for some of them, or raise footer_slots",
            )
            .with("free", free.len())
            .with("wanted", count));
        };
        let taken = free.split_off(rest);
        drop(free);
        Ok(Slots {
            slab: self.clone(),
            taken,
        })
    }

    /// The engine that its memory is registered with.
    pub(super) fn engine(&self) -> EngineId {
        self.0.region.engine()
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.0.free.lock().len()
    }

    fn span(&self, slot: usize) -> Result<Span> {
        self.0.region.span(slot * FOOTER_BYTES..(slot + 1) * FOOTER_BYTES)
    }
}

/// Slots that are taken; dropping them frees them.
#[derive(Debug)]
pub(super) struct Slots {
    slab: FooterSlab,
    taken: Vec<usize>,
}

impl Slots {
    /// The memory of each slot.
    pub(super) fn spans(&self) -> Result<Vec<Span>> {
        self.taken.iter().map(|slot| self.slab.span(*slot)).collect()
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.slab.0.free.lock().append(&mut self.taken);
    }
}
