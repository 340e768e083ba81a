//! The etcd clusters of an index: [`open_store`] opens a store on the one that it is on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Clock, Error, Result, Rng, StoreId};
use tensorhold_index::placement::{Clusters, NewStore, PlacedStore};
use tensorhold_index::store::TxnStore;

use crate::config::EtcdConfig;
use crate::store::EtcdStore;

const OPERATION: &str = "index.connect";

/// The etcd clusters of an index. All are reached as the home is, but for their addresses.
#[derive(Debug)]
pub struct EtcdClusters {
    home: EtcdStore,
    config: EtcdConfig,
    clock: Arc<dyn Clock>,
    /// Those that were connected to, by their addresses. Which cluster they are is asked each time.
    others: tokio::sync::Mutex<BTreeMap<Vec<String>, EtcdStore>>,
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
}

#[async_trait]
impl Clusters for EtcdClusters {
    fn home(&self) -> Arc<dyn TxnStore> {
        Arc::new(self.home.clone())
    }

    async fn connect(&self, endpoints: &[String], within: Duration) -> Result<Arc<dyn TxnStore>> {
        if let Some(found) = self.others.lock().await.get(endpoints) {
            return Ok(Arc::new(found.clone()));
        }
        // Nobody waits for another one's connection: a cluster that does not answer would hold up all of them.
        let config = EtcdConfig {
            endpoints: endpoints.to_vec(),
            ..self.config.clone()
        };
        let opened = EtcdStore::open(config, Arc::clone(&self.clock), within).await?;
        if opened.history().epoch == self.home.history().epoch {
            let message = "these are addresses of the home itself: a cluster is another etcd";
            return Err(Error::invalid(OPERATION, message).with("endpoints", endpoints.join(" ")));
        }
        let mut others = self.others.lock().await;
        let kept = others.entry(endpoints.to_vec()).or_insert(opened);
        Ok(Arc::new(kept.clone()))
    }
}

/// The transactional store for one store, on the cluster that it is on.
///
/// # Errors
/// As [`EtcdStore::open`] and [`PlacedStore::open`].
pub async fn open_store(
    clusters: Arc<EtcdClusters>,
    store: &StoreId,
    new: NewStore,
    rng: Arc<dyn Rng>,
    within: Duration,
) -> Result<Arc<dyn TxnStore>> {
    let clock = Arc::clone(&clusters.clock);
    Ok(Arc::new(
        PlacedStore::open(clusters, store, new, clock, rng, within).await?,
    ))
}
