//! The contract suite of `Index` on a real etcd of one node per case.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Clock, Error, Result, StoreId, SystemClock};
use tensorhold_index::store::TxnStore;
use tensorhold_index::testing::{Backend, Harness};
use tensorhold_index::{IndexConfig, Session};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore, restore_guard};
use tensorhold_testkit::{EtcdCluster, Revisions};

/// How long a start may take on a machine that compiles beside it.
const START: Duration = Duration::from_secs(30);

struct EtcdBackend;

struct OnEtcd {
    cluster: EtcdCluster,
    store: StoreId,
    clock: SystemClock,
    saved: Mutex<Option<PathBuf>>,
}

fn strange(error: impl std::fmt::Display) -> Error {
    Error::unavailable("index.testing", format!("{error:#}"))
}

#[async_trait]
impl Backend for EtcdBackend {
    async fn start(&self) -> Result<Box<dyn Harness>> {
        let cluster = tokio::task::spawn_blocking(|| EtcdCluster::start(1))
            .await
            .map_err(strange)?
            .map_err(strange)?;
        Ok(Box::new(OnEtcd {
            cluster,
            store: StoreId::new("contract/etcd")?,
            clock: SystemClock::new(),
            saved: Mutex::default(),
        }))
    }

    fn parallel(&self) -> bool {
        false
    }
}

#[async_trait]
impl Harness for OnEtcd {
    fn store(&self) -> &StoreId {
        &self.store
    }

    // A session that a starved machine does not end, and ticks that a case can wait for.
    fn settings(&self) -> IndexConfig {
        IndexConfig {
            session_ttl: Duration::from_secs(6),
            tick: Duration::from_millis(100),
            grace_ticks: 2,
            reserve_ticks: 20,
            lost_ticks: 4,
            ..IndexConfig::default()
        }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn kill_session(&self, session: &Session) -> Result<()> {
        let lease = i64::try_from(session.id().0).map_err(strange)?;
        let operator = etcd_client::Client::connect(self.cluster.endpoints(), None)
            .await
            .map_err(strange)?;
        operator.lease_client().revoke(lease).await.map_err(strange)?;
        Ok(())
    }

    async fn save(&self) -> Result<()> {
        let saved = tokio::task::block_in_place(|| self.cluster.snapshot()).map_err(strange)?;
        *self.saved.lock() = Some(saved);
        Ok(())
    }

    async fn put_back(&self) -> Result<()> {
        let saved = self.saved.lock().clone().ok_or_else(|| strange("nothing was saved"))?;
        tokio::task::block_in_place(|| self.cluster.restore(&saved, Revisions::Repeat)).map_err(strange)
    }

    async fn declare(&self) -> Result<()> {
        let config = EtcdConfig::new(self.cluster.endpoints());
        restore_guard(config, Arc::new(SystemClock::new()), Duration::from_secs(30)).await?;
        Ok(())
    }

    async fn txn_store(&self) -> Result<Arc<dyn TxnStore>> {
        let config = EtcdConfig::new(self.cluster.endpoints());
        Ok(Arc::new(EtcdStore::open(config, self.clock(), START).await?))
    }
}

fn main() {
    tensorhold_index::testing::main(EtcdBackend);
}
