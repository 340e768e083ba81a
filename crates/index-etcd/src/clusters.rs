//! The etcd clusters of an index: [`open_store`] finds the one that a store is on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Rng, StoreId};
use tensorhold_index::placement::{ClusterMap, ClusterName, Clusters, FollowingStore, place, read_map};
use tensorhold_index::store::{MovableStore, TxnStore};
use tensorhold_index::{forget, has_keys, in_use, schema};

use crate::config::EtcdConfig;
use crate::store::EtcdStore;

/// The etcd clusters of an index, by their names. All are reached as the home is, but for their addresses.
#[derive(Debug)]
pub struct EtcdClusters {
    home: EtcdStore,
    config: EtcdConfig,
    clock: Arc<dyn Clock>,
    /// Those that were connected to; one caller at a time connects.
    others: tokio::sync::Mutex<BTreeMap<ClusterName, EtcdStore>>,
}

impl EtcdClusters {
    /// The clusters of the index whose home this is. `config` is how the home is reached.
    pub fn new(home: EtcdStore, config: EtcdConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            home,
            config,
            clock,
            others: tokio::sync::Mutex::default(),
        }
    }

    /// Connects to an etcd that is, or is to be, a cluster of this index. `Invalid` if it is the home: what is moved from
    /// an etcd to itself would be lost.
    pub async fn try_address(&self, endpoints: &[String], within: Duration) -> Result<EtcdStore> {
        let config = EtcdConfig {
            endpoints: endpoints.to_vec(),
            ..self.config.clone()
        };
        let opened = EtcdStore::open(config, Arc::clone(&self.clock), within).await?;
        if opened.history().epoch == self.home.history().epoch {
            let message = "these are addresses of the home itself: a cluster is another etcd";
            return Err(Error::invalid("index.connect", message).with("endpoints", endpoints.join(" ")));
        }
        Ok(opened)
    }

    /// The map, if the index has several clusters. An index whose schema knows no maps is not asked for one: a tenant
    /// may not read it there.
    pub async fn map(&self, within: Duration) -> Result<Option<ClusterMap>> {
        if self.home.schema() < schema::WITH_CLUSTERS {
            return Ok(None);
        }
        read_map(&self.home, within).await
    }

    /// Those of the stores that are in use, or have something to look after, on any cluster: see
    /// [`tensorhold_index::in_use`].
    pub async fn in_use(&self, stores: &[StoreId], within: Duration) -> Result<Vec<StoreId>> {
        let deadline = Deadline::after(&*self.clock, within);
        let mut found = BTreeSet::new();
        for cluster in self.all(deadline).await? {
            let left = deadline.remaining(&*self.clock);
            found.extend(in_use(&cluster, stores, &*self.clock, left).await?);
        }
        Ok(found.into_iter().collect())
    }

    /// Deletes what the index has of a store: see [`tensorhold_index::forget`]. `Unsupported` for one that is not at home.
    pub async fn forget(&self, store: &StoreId, within: Duration) -> Result<bool> {
        let deadline = Deadline::after(&*self.clock, within);
        for cluster in self.all(deadline).await?.into_iter().skip(1) {
            let left = deadline.remaining(&*self.clock);
            if has_keys(&cluster, store, left).await? {
                let message = "the store is, or was, on another cluster than the home of the index: such a store stays";
                return Err(Error::new(ErrorKind::Unsupported, "index.forget", message).with("store", store));
            }
        }
        forget(&self.home, store, &*self.clock, deadline.remaining(&*self.clock)).await
    }

    /// All clusters, the home first.
    async fn all(&self, deadline: Deadline) -> Result<Vec<EtcdStore>> {
        let mut all = vec![self.home.clone()];
        let map = self.map(deadline.remaining(&*self.clock)).await?.unwrap_or_default();
        for cluster in map.clusters.keys() {
            all.push(self.connected(cluster, deadline.remaining(&*self.clock)).await?);
        }
        Ok(all)
    }

    /// The cluster of this name, which is not the home.
    async fn connected(&self, cluster: &ClusterName, within: Duration) -> Result<EtcdStore> {
        const OPERATION: &str = "index.connect";
        let deadline = Deadline::after(&*self.clock, within);
        let late = |_| Error::unavailable(OPERATION, "another call connects to this cluster, and takes too long");
        let mut others = tokio::time::timeout(within, self.others.lock()).await.map_err(late)?;
        if let Some(found) = others.get(cluster) {
            return Ok(found.clone());
        }
        let map = read_map(&self.home, deadline.remaining(&*self.clock))
            .await?
            .unwrap_or_default();
        let address = map.clusters.get(cluster).ok_or_else(|| {
            let message = "the map of this index has no cluster of this name: add it with `tensorhold clusters add`";
            Error::new(ErrorKind::NotFound, OPERATION, message).with("cluster", cluster)
        })?;
        let left = deadline.remaining(&*self.clock);
        let opened = self.try_address(&address.endpoints, left).await?;
        others.insert(cluster.clone(), opened.clone());
        Ok(opened)
    }
}

#[async_trait]
impl Clusters for EtcdClusters {
    async fn connect(&self, cluster: &ClusterName, within: Duration) -> Result<Arc<dyn MovableStore>> {
        if *cluster == ClusterName::home() {
            return Ok(Arc::new(self.home.clone()));
        }
        Ok(Arc::new(self.connected(cluster, within).await?))
    }

    async fn names(&self, within: Duration) -> Result<Vec<ClusterName>> {
        let map = read_map(&self.home, within).await?.unwrap_or_default();
        Ok([ClusterName::home()]
            .into_iter()
            .chain(map.clusters.into_keys())
            .collect())
    }
}

/// Whether a store that is not there yet may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewStore {
    /// It begins on the cluster that the map chooses.
    Begins,
    /// It is left alone: for those who only look.
    IsLeft,
}

/// The transactional store for one store: etcd itself if the index has one cluster, and otherwise the cluster that the
/// store is on, followed wherever it is moved.
///
/// # Errors
/// As [`EtcdStore::open`]; and what the clusters say of the store may not be readable (`Corrupt`).
pub async fn open_store(
    clusters: Arc<EtcdClusters>,
    store: &StoreId,
    new: NewStore,
    rng: &dyn Rng,
    within: Duration,
) -> Result<Arc<dyn TxnStore>> {
    let clock = Arc::clone(&clusters.clock);
    let deadline = Deadline::after(&*clock, within);
    let Some(map) = clusters.map(within).await? else {
        return Ok(Arc::new(clusters.home.clone()));
    };
    if new == NewStore::Begins {
        let left = deadline.remaining(&*clock);
        place(&*clusters, &map, store, &*clock, rng, left).await?;
    }
    let left = deadline.remaining(&*clock);
    let home = ClusterName::home();
    Ok(Arc::new(
        FollowingStore::open(store, &home, clusters, clock, left).await?,
    ))
}
