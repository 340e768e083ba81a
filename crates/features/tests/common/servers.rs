//! Stores on a real master, a separate holder process and a real etcd.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, ObjectKey, SystemClock, SystemRng};
use tensorhold_engine::{Engine, Presence};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_features::seal::Keyring;
use tensorhold_features::{FeatureConfig, FeatureStore, Stored};
use tensorhold_index::{IndexConfig, TxnIndex};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
use tensorhold_testkit::{Cluster, Endpoints};
use tokio::task::block_in_place;

use super::{WITHIN, objects_of};

pub const MIB: usize = 1 << 20;

pub const TICK: Duration = Duration::from_millis(200);
/// Several chunks, less than a chunk, nothing.
pub const LENS: [usize; 4] = [9 * MIB + 7, 3 * MIB, 1000, 0];

pub fn start() -> Cluster {
    let builder = Cluster::builder().p2p_metadata(true).segment_mib(256).etcd_nodes(1);
    block_in_place(|| builder.start()).expect("a cluster")
}

pub fn connect(endpoints: &Endpoints) -> Arc<dyn Engine> {
    let mut environment: BTreeMap<_, _> = endpoints.client_env.iter().cloned().collect();
    environment.insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
    let config = MooncakeConfig {
        master: endpoints.master.clone(),
        metadata: endpoints.metadata.clone(),
        admin: endpoints.admin.clone(),
        environment,
        ..MooncakeConfig::default()
    };
    Arc::new(block_in_place(|| MooncakeEngine::connect(config)).expect("a client"))
}

pub fn config() -> FeatureConfig {
    FeatureConfig {
        chunk_bytes: 4 << 20,
        sweep_every: None,
        lease_ticks: 300,
        pool_bytes: 128 << 20,
        loss_grace: Duration::from_secs(12),
        ..FeatureConfig::new("real".parse().expect("a name"))
    }
}

pub async fn open_on(endpoints: &Endpoints, engine: Arc<dyn Engine>) -> FeatureStore {
    open_with(endpoints, engine, None).await
}

pub async fn open_with(endpoints: &Endpoints, engine: Arc<dyn Engine>, keyring: Option<Keyring>) -> FeatureStore {
    open_as(endpoints, engine, FeatureConfig { keyring, ..config() }).await
}

pub async fn open_as(endpoints: &Endpoints, engine: Arc<dyn Engine>, config: FeatureConfig) -> FeatureStore {
    open_for(endpoints, engine, config, Duration::from_secs(3)).await
}

/// [`open_as`], with a session that lives this long without a sign of life.
pub async fn open_for(
    endpoints: &Endpoints,
    engine: Arc<dyn Engine>,
    config: FeatureConfig,
    session_ttl: Duration,
) -> FeatureStore {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let txn_store = EtcdStore::open(EtcdConfig::new(endpoints.etcd.clone()), Arc::clone(&clock), WITHIN)
        .await
        .expect("etcd");
    let settings = IndexConfig {
        session_ttl,
        tick: TICK,
        lost_ticks: 20,
        ..IndexConfig::default()
    };
    let (store, rng) = (config.store.clone(), Arc::new(SystemRng));
    let index = TxnIndex::new(
        Arc::new(txn_store),
        &store,
        settings,
        Arc::clone(&clock),
        Arc::clone(&rng) as _,
    );
    FeatureStore::open(engine, Arc::new(index), config, clock, rng)
        .await
        .expect("a store")
}

/// A process of its own, as far as engine and index can tell.
pub async fn open(endpoints: &Endpoints) -> FeatureStore {
    open_on(endpoints, connect(endpoints)).await
}

pub fn keys_of(stored: &Stored) -> Vec<ObjectKey> {
    let chunk = stored.description.chunk_bytes();
    let sealed = stored.description.encoding().seal().is_some();
    for tensor in stored.description.tensors() {
        let (bytes, digests) = (tensor.spec.bytes(), tensor.digests.len() as u64);
        let expected = if sealed { 0 } else { bytes.div_ceil(chunk) };
        assert_eq!(
            digests, expected,
            "a checksum for each chunk, and none in a sealed store"
        );
    }
    objects_of(&config().store, stored)
}

pub fn present(engine: &dyn Engine, keys: &[ObjectKey]) -> usize {
    let found = block_in_place(|| engine.probe(keys, WITHIN)).expect("a probe");
    found
        .iter()
        .filter(|presence| matches!(presence, Presence::Present { .. }))
        .count()
}
