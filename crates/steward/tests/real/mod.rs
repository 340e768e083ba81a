//! How the tests reach a real cluster: its engine, and an index on its etcd.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of this")]
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Clock, DType, Result, StoreId, SystemClock, SystemRng, TensorSpec};
use tensorhold_engine::{Engine, HostMemory};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_features::{GroupName, Identity, Publication, PutItem, TensorIn};
use tensorhold_index::{Index, IndexConfig, TxnIndex};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
use tensorhold_steward::Connect;
use tensorhold_testkit::Endpoints;
use tokio::task::block_in_place;

const WITHIN: Duration = Duration::from_secs(60);

/// What a process must know to reach the cluster.
#[derive(Clone, Serialize, Deserialize)]
pub struct Reach {
    pub master: String,
    pub metadata: String,
    pub admin: Vec<String>,
    pub etcd: Vec<String>,
    pub environment: BTreeMap<String, String>,
}

impl Reach {
    pub fn of(endpoints: &Endpoints) -> Self {
        let mut environment: BTreeMap<_, _> = endpoints.client_env.iter().cloned().collect();
        environment.insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
        Self {
            master: endpoints.master.clone(),
            metadata: endpoints.metadata.clone(),
            admin: endpoints.admin.clone(),
            etcd: endpoints.etcd.clone(),
            environment,
        }
    }

    pub fn connect_engine(&self) -> Arc<dyn Engine> {
        let config = MooncakeConfig {
            master: self.master.clone(),
            metadata: self.metadata.clone(),
            admin: self.admin.clone(),
            environment: self.environment.clone(),
            ..MooncakeConfig::default()
        };
        Arc::new(block_in_place(|| MooncakeEngine::connect(config)).expect("a client"))
    }

    pub async fn connect_etcd(&self) -> Arc<EtcdStore> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let etcd = EtcdStore::open(EtcdConfig::new(self.etcd.clone()), clock, WITHIN).await;
        Arc::new(etcd.expect("etcd"))
    }

    pub async fn connect_index(&self, store: &StoreId, identity: Identity) -> Arc<dyn Index> {
        self.connect_index_with(store, identity, IndexConfig::default()).await
    }

    pub async fn connect_index_with(
        &self,
        store: &StoreId,
        identity: Identity,
        settings: IndexConfig,
    ) -> Arc<dyn Index> {
        let (etcd, clock) = (self.connect_etcd().await, Arc::new(SystemClock::new()));
        Arc::new(TxnIndex::new(etcd, store, settings, clock, Arc::new(SystemRng)).with_identity(identity))
    }
}

#[async_trait]
impl Connect for Reach {
    async fn engine(&self, _: &StoreId) -> Result<Arc<dyn Engine>> {
        Ok(self.connect_engine())
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        Ok(self.connect_index(store, identity).await)
    }
}

/// A sample of 4 KiB for the group `trainers`.
pub fn item(sample: &str, fill: u8, max_attempts: u32) -> PutItem {
    let mut bytes = vec![fill; 4096].into_boxed_slice();
    let (base, len) = (bytes.as_mut_ptr(), bytes.len());
    #[allow(unsafe_code, reason = "lending memory is a promise")]
    // SAFETY: the box is the owner, it does not move its bytes, and no other code has it.
    let memory = unsafe { HostMemory::lent(base, len, bytes) }.expect("not empty");
    let spec = TensorSpec::new("t".parse().expect("a name"), DType::Uint8, [4096]).expect("a spec");
    PutItem {
        sample: sample.parse().expect("a name"),
        tensors: vec![TensorIn::new(spec, memory)],
        publication: Publication {
            groups: vec![GroupName::new("trainers").expect("a name")],
            retain: false,
            max_attempts,
        },
    }
}
