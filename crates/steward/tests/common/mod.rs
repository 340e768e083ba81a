//! What the tests share: an engine in memory, an index in memory or on a real etcd.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of this")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::{Clock, Result, StoreId, SystemClock, SystemRng};
use holdfast_engine::{Engine, MemoryCluster, MemoryConfig};
use holdfast_features::{FeatureConfig, FeatureStore, Identity};
use holdfast_index::store::TxnStore;
use holdfast_index::store::memory::MemoryStore;
use holdfast_index::{Index, IndexConfig, TxnIndex};
use holdfast_steward::Connect;

/// Enough for anything on a machine that does other things too.
pub const WITHIN: Duration = Duration::from_secs(30);

/// Stores on an engine in memory.
pub struct World {
    pub clock: Arc<SystemClock>,
    pub cluster: Arc<MemoryCluster>,
    pub txn_store: Arc<dyn TxnStore>,
    pub settings: IndexConfig,
}

impl World {
    /// With the index in memory.
    pub fn in_memory() -> Arc<Self> {
        let clock = Arc::new(SystemClock::new());
        Self::over(Arc::new(MemoryStore::new(clock.clone())), clock)
    }

    pub fn over(txn_store: Arc<dyn TxnStore>, clock: Arc<SystemClock>) -> Arc<Self> {
        Arc::new(Self {
            cluster: MemoryCluster::new(MemoryConfig::default(), clock.clone()),
            clock,
            txn_store,
            settings: IndexConfig::default(),
        })
    }

    pub fn index_of(&self, store: &StoreId, txn_store: Arc<dyn TxnStore>) -> TxnIndex {
        let clock: Arc<dyn Clock> = self.clock.clone();
        TxnIndex::new(txn_store, store, self.settings.clone(), clock, Arc::new(SystemRng))
    }

    /// A process that uses a store.
    pub async fn open(&self, config: FeatureConfig) -> FeatureStore {
        let index = self.index_of(&config.store, Arc::clone(&self.txn_store));
        let opened = FeatureStore::open(
            self.cluster.connect(),
            Arc::new(index),
            config,
            self.clock.clone(),
            Arc::new(SystemRng),
        );
        opened.await.expect("a store")
    }
}

#[async_trait]
impl Connect for World {
    async fn engine(&self, _: &StoreId) -> Result<Arc<dyn Engine>> {
        Ok(self.cluster.connect())
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        let index = self.index_of(store, Arc::clone(&self.txn_store));
        Ok(Arc::new(index.with_identity(identity)))
    }
}

pub fn store(name: &str) -> StoreId {
    StoreId::new(name).expect("a name")
}

/// Waits until something is so.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let begun = clock.now();
    while !so() {
        assert!(clock.now().since(begun) < WITHIN, "it did not come to pass: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
