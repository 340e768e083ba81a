//! The suite's own back end: the index over a transactional store in memory, with a clock that moves when a case says
//! so.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Clock, Error, ManualClock, Result, StoreId};

use super::{Backend, Harness};
use crate::store::TxnStore;
use crate::store::memory::{MemoryStore, Saved};
use crate::{IndexConfig, Session};

/// An index in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryBackend;

/// One index in memory.
#[derive(Debug)]
pub struct MemoryHarness {
    store: StoreId,
    clock: Arc<ManualClock>,
    txn_store: MemoryStore,
    saved: Mutex<Option<Saved>>,
}

impl MemoryHarness {
    /// An empty one.
    pub fn new() -> Result<Self> {
        let clock = Arc::new(ManualClock::new());
        Ok(Self {
            store: StoreId::new("contract/memory")?,
            txn_store: MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>),
            clock,
            saved: Mutex::default(),
        })
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    async fn start(&self) -> Result<Box<dyn Harness>> {
        Ok(Box::new(MemoryHarness::new()?))
    }
}

#[async_trait]
impl Harness for MemoryHarness {
    fn store(&self) -> &StoreId {
        &self.store
    }

    fn settings(&self) -> IndexConfig {
        IndexConfig {
            reserve_ticks: 20,
            lost_ticks: 4,
            ..IndexConfig::default()
        }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        self.txn_store.settle();
        tokio::task::yield_now().await;
    }

    async fn kill_session(&self, session: &Session) -> Result<()> {
        if !self.txn_store.expire(session.id()) {
            return Err(Error::invalid("testing.kill_session", "there is no such session"));
        }
        Ok(())
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

    async fn txn_store(&self) -> Result<Arc<dyn TxnStore>> {
        Ok(Arc::new(self.txn_store.client()))
    }
}
