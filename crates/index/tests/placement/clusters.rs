//! Several clusters in memory, and a store that is moved between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Clock, Error, ErrorKind, ManualClock, Result, StoreId, SystemRng};
use tensorhold_custody::SessionId;
use tensorhold_index::placement::{ClusterName, Clusters, FollowingStore, Move, MoveReport, move_store};
use tensorhold_index::store::MovableStore;
use tensorhold_index::store::memory::MemoryStore;

pub(crate) const CALL: Duration = Duration::from_secs(60);

/// The home and two other clusters, in simulated time.
#[derive(Debug)]
pub(crate) struct MemoryClusters {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) stores: BTreeMap<ClusterName, MemoryStore>,
    /// How many connections were asked for.
    pub(crate) connected: AtomicUsize,
}

pub(crate) fn name(text: &str) -> ClusterName {
    text.parse().expect("the name of a cluster")
}

impl MemoryClusters {
    pub(crate) fn new() -> Arc<Self> {
        let clock = Arc::new(ManualClock::new());
        let store = |number: u64| {
            let store = MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>);
            store.with_sessions_after(SessionId(number << 32))
        };
        let stores = ["home", "b", "c"].into_iter().zip(0..);
        Arc::new(Self {
            stores: stores.map(|(text, number)| (name(text), store(number))).collect(),
            clock,
            connected: AtomicUsize::new(0),
        })
    }

    pub(crate) fn store(&self, cluster: &str) -> &MemoryStore {
        &self.stores[&name(cluster)]
    }

    pub(crate) async fn open(self: &Arc<Self>, store: &StoreId) -> Result<FollowingStore> {
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        FollowingStore::open(
            store,
            &ClusterName::home(),
            Arc::clone(self) as Arc<dyn Clusters>,
            clock,
            CALL,
        )
        .await
    }

    /// Moves a store. What was there is deleted at once: memory has nobody who would still read it.
    pub(crate) async fn move_to(&self, store: &StoreId, to: &str) -> Result<MoveReport> {
        let asked = Move {
            store: store.clone(),
            to: name(to),
            longest_linger: Duration::ZERO,
        };
        move_store(self, &asked, &*self.clock, &SystemRng, CALL, &mut |_| {}).await
    }
}

#[async_trait]
impl Clusters for MemoryClusters {
    async fn connect(&self, cluster: &ClusterName, _within: Duration) -> Result<Arc<dyn MovableStore>> {
        self.connected.fetch_add(1, Ordering::Relaxed);
        let store = self.stores.get(cluster);
        let store = store.ok_or_else(|| Error::new(ErrorKind::NotFound, "test.connect", "no such cluster"))?;
        Ok(Arc::new(store.clone()))
    }

    async fn names(&self, _within: Duration) -> Result<Vec<ClusterName>> {
        Ok(self.stores.keys().cloned().collect())
    }
}
