//! The etcd clusters of an index: [`open_store`] finds the one that a store is on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Rng, StoreId};
use tensorhold_index::placement::{ClusterMap, ClusterName, Clusters, FollowingStore, place, read_map};
use tensorhold_index::schema;
use tensorhold_index::store::{MovableStore, TxnStore};

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
}

#[async_trait]
impl Clusters for EtcdClusters {
    async fn connect(&self, cluster: &ClusterName, within: Duration) -> Result<Arc<dyn MovableStore>> {
        const OPERATION: &str = "index.connect";
        if *cluster == ClusterName::home() {
            return Ok(Arc::new(self.home.clone()));
        }
        let deadline = Deadline::after(&*self.clock, within);
        let late = |_| Error::unavailable(OPERATION, "another call connects to this cluster, and takes too long");
        let mut others = tokio::time::timeout(within, self.others.lock()).await.map_err(late)?;
        if let Some(found) = others.get(cluster) {
            return Ok(Arc::new(found.clone()));
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
        Ok(Arc::new(opened))
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
