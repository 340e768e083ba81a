//! What a store looks like from outside, for the people who operate it: counts, leases, and what the engine says of itself.
//! Nothing is changed by it.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::Result;
use tensorhold_custody::Tick;
use tensorhold_engine::{Holder, Usage};
use tensorhold_index::{Backlog, Counts, HoldersSeen, LeaseList};

use crate::store::FeatureStore;

impl FeatureStore {
    /// How many records the store has, by stage, and how many sessions. An index over etcd has etcd count them.
    pub async fn counts(&self, within: Duration) -> Result<Counts> {
        self.inner().runtime.index.counts(within).await
    }

    /// What waits for the groups, and since when: see [`tensorhold_index::Index::backlog`].
    pub async fn backlog(&self, most: usize, within: Duration) -> Result<Vec<Backlog>> {
        self.inner().runtime.index.backlog(most, within).await
    }

    /// The leases that any process holds now, the oldest first: see [`tensorhold_index::Index::leases`].
    pub async fn leases(&self, limit: usize, within: Duration) -> Result<LeaseList> {
        self.inner().runtime.index.leases(limit, within).await
    }

    /// Capacity and use of the engine, over all stores.
    pub async fn engine_usage(&self, within: Duration) -> Result<Usage> {
        let inner = self.inner();
        let engine = Arc::clone(&inner.runtime.engine);
        let call = move |within| engine.usage(within);
        let blocking = &inner.runtime.blocking;
        blocking.run("features.usage", inner.deadline(within), call).await
    }

    /// The engine's holders, with their memory.
    pub async fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        let inner = self.inner();
        let engine = Arc::clone(&inner.runtime.engine);
        let call = move |within| engine.holders(within);
        let blocking = &inner.runtime.blocking;
        blocking.run("features.holders", inner.deadline(within), call).await
    }

    /// The engine's holders as the process saw them last that looks at them: those that are missing, and how many samples may
    /// be lost with them.
    pub async fn holders_seen(&self, within: Duration) -> Result<HoldersSeen> {
        self.inner().runtime.index.holders_seen(within).await
    }

    /// The store's shared clock as this process last saw it, and the length of its ticks; none if it has not seen it yet.
    pub fn shared_clock(&self) -> Option<(Tick, Duration)> {
        let index = &self.inner().runtime.index;
        index.seen_clock().map(|(tick, _)| (tick, index.tick_length()))
    }
}
