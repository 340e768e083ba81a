//! The contract suite of `TxnStore` on a real etcd of one node per case.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Client, CompactionOptions};
use parking_lot::Mutex;
use tensorhold_core::{Error, Result, SystemClock};
use tensorhold_custody::{SessionId, Version};
use tensorhold_index::store::TxnStore;
use tensorhold_index::store::testing::{Backend, Harness};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore, restore_guard};
use tensorhold_testkit::{EtcdCluster, Revisions};

struct EtcdBackend;

struct OnEtcd {
    cluster: EtcdCluster,
    saved: Mutex<Option<PathBuf>>,
}

fn strange(error: impl std::fmt::Display) -> Error {
    Error::unavailable("kv.testing", format!("{error:#}"))
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
            saved: Mutex::default(),
        }))
    }

    fn parallel(&self) -> bool {
        false
    }
}

impl OnEtcd {
    async fn operator(&self) -> Result<Client> {
        Client::connect(self.cluster.endpoints(), None).await.map_err(strange)
    }
}

#[async_trait]
impl Harness for OnEtcd {
    async fn connect(&self) -> Result<Arc<dyn TxnStore>> {
        let config = EtcdConfig::new(self.cluster.endpoints());
        Ok(Arc::new(
            EtcdStore::open(config, Arc::new(SystemClock::new()), Duration::from_secs(30)).await?,
        ))
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn end_session(&self, session: SessionId) -> Result<()> {
        let lease = i64::try_from(session.0).map_err(strange)?;
        self.operator()
            .await?
            .lease_client()
            .revoke(lease)
            .await
            .map_err(strange)?;
        Ok(())
    }

    async fn compact(&self, version: Version) -> Result<bool> {
        let revision = i64::try_from(version.0).map_err(strange)?;
        let physical = CompactionOptions::new().with_physical();
        self.operator()
            .await?
            .compact(revision, Some(physical))
            .await
            .map_err(strange)?;
        Ok(true)
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
}

fn main() {
    tensorhold_index::store::testing::main(EtcdBackend);
}
