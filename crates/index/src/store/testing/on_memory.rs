//! The suite on [`MemoryStore`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Error, ManualClock, Result};
use tensorhold_custody::{SessionId, Version};

use super::{Backend, Harness};
use crate::store::TxnStore;
use crate::store::memory::{MemoryStore, Saved};

/// Starts memory stores in simulated time.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBackend;

struct OnMemory {
    clock: Arc<ManualClock>,
    txn_store: MemoryStore,
    saved: Mutex<Option<Saved>>,
}

#[async_trait]
impl Backend for MemoryBackend {
    async fn start(&self) -> Result<Box<dyn Harness>> {
        let clock = Arc::new(ManualClock::new());
        let txn_store = MemoryStore::new(Arc::<ManualClock>::clone(&clock));
        Ok(Box::new(OnMemory {
            clock,
            txn_store,
            saved: Mutex::default(),
        }))
    }
}

#[async_trait]
impl Harness for OnMemory {
    async fn connect(&self) -> Result<Arc<dyn TxnStore>> {
        Ok(Arc::new(self.txn_store.client()))
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.txn_store.settle();
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        self.txn_store.expire(session);
        Ok(())
    }

    async fn compact(&self, version: Version) -> Result<bool> {
        self.txn_store.compact(version);
        Ok(true)
    }

    async fn save(&self) -> Result<()> {
        *self.saved.lock() = Some(self.txn_store.save());
        Ok(())
    }

    async fn put_back(&self) -> Result<()> {
        let saved = self.saved.lock().clone();
        let nothing = || Error::invalid("testing.put_back", "nothing was saved");
        self.txn_store.put_back(&saved.ok_or_else(nothing)?);
        Ok(())
    }

    async fn declare(&self) -> Result<()> {
        self.txn_store.declare();
        Ok(())
    }

    fn slack(&self) -> Duration {
        Duration::ZERO
    }
}
