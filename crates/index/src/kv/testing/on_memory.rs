//! The suite on [`MemoryKv`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::{Error, ManualClock, Result};
use holdfast_custody::{SessionId, Version};
use parking_lot::Mutex;

use super::{Backend, Harness};
use crate::kv::Kv;
use crate::kv::memory::{MemoryKv, Saved};

/// Starts memory stores in simulated time.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBackend;

struct OnMemory {
    clock: Arc<ManualClock>,
    kv: MemoryKv,
    saved: Mutex<Option<Saved>>,
}

#[async_trait]
impl Backend for MemoryBackend {
    async fn start(&self) -> Result<Box<dyn Harness>> {
        let clock = Arc::new(ManualClock::new());
        let kv = MemoryKv::new(Arc::<ManualClock>::clone(&clock));
        Ok(Box::new(OnMemory {
            clock,
            kv,
            saved: Mutex::default(),
        }))
    }
}

#[async_trait]
impl Harness for OnMemory {
    async fn connect(&self) -> Result<Arc<dyn Kv>> {
        Ok(Arc::new(self.kv.client()))
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.kv.settle();
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        self.kv.expire(session);
        Ok(())
    }

    async fn compact(&self, version: Version) -> Result<bool> {
        self.kv.compact(version);
        Ok(true)
    }

    async fn save(&self) -> Result<()> {
        *self.saved.lock() = Some(self.kv.save());
        Ok(())
    }

    async fn put_back(&self) -> Result<()> {
        let saved = self.saved.lock().clone();
        let nothing = || Error::invalid("testing.put_back", "nothing was saved");
        self.kv.put_back(&saved.ok_or_else(nothing)?);
        Ok(())
    }

    async fn declare(&self) -> Result<()> {
        self.kv.declare();
        Ok(())
    }

    fn slack(&self) -> Duration {
        Duration::ZERO
    }
}
