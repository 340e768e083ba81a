//! The real servers, and how a process becomes a member of the store on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tensorhold_core::{Clock, DType, SampleId, SystemClock, SystemRng, TensorName, TensorSpec};
use tensorhold_engine::Engine;
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_features::{FeatureConfig, FeatureStore, GroupName, Publication, PutItem, Stored, TensorIn};
use tensorhold_index::store::{Read, TxnStore, prefix};
use tensorhold_index::{Index, IndexConfig, TxnIndex};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
use tensorhold_testkit::Endpoints;

use crate::hooked_engine::HookedEngine;
use crate::hooked_index::HookedIndex;
use crate::hooks::Hooks;
use crate::pattern;

pub(crate) const MIB: usize = 1 << 20;
/// Enough for any one call on a machine that does other things too.
pub(crate) const WITHIN: Duration = Duration::from_secs(60);
/// The name of every proof's store; each proof has servers of its own.
pub(crate) const STORE: &str = "proof";

/// What every process of a proof must agree on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) endpoints: Endpoints,
    pub(crate) store: FeatureConfig,
    pub(crate) index: IndexConfig,
}

impl Settings {
    /// The defaults of a store on these servers.
    pub(crate) fn new(endpoints: Endpoints) -> Result<Self> {
        Ok(Self {
            endpoints,
            store: FeatureConfig::new(STORE.parse()?),
            index: IndexConfig::default(),
        })
    }

    /// Other times than the defaults: a tick, and how many of them a session and a lease last.
    pub(crate) fn with_times(mut self, tick: Duration, session: u32, lease: u32) -> Self {
        self.index.tick = tick;
        self.index.session_ttl = tick * session;
        self.store.lease_ticks = u64::from(lease);
        self
    }

    /// A client of the engine.
    pub(crate) fn engine(&self) -> Result<Arc<dyn Engine>> {
        let endpoints = &self.endpoints;
        let mut environment: BTreeMap<_, _> = endpoints.client_env.iter().cloned().collect();
        environment.insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
        Ok(Arc::new(MooncakeEngine::connect(MooncakeConfig {
            master: endpoints.master.clone(),
            metadata: endpoints.metadata.clone(),
            admin: endpoints.admin.clone(),
            environment,
            ..MooncakeConfig::default()
        })?))
    }

    /// A client of etcd.
    pub(crate) async fn txn_store(&self) -> Result<Arc<EtcdStore>> {
        let config = EtcdConfig::new(self.endpoints.etcd.clone());
        Ok(Arc::new(
            EtcdStore::open(config, Arc::new(SystemClock::new()), WITHIN).await?,
        ))
    }

    /// The index over it.
    pub(crate) async fn index(&self) -> Result<Arc<dyn Index>> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (txn_store, rng) = (self.txn_store().await?, Arc::new(SystemRng));
        Ok(Arc::new(TxnIndex::new(
            txn_store,
            &self.store.store,
            self.index.clone(),
            clock,
            rng,
        )))
    }

    /// Becomes a member of the store, with hooks or without.
    pub(crate) async fn join(&self, engine: Arc<dyn Engine>, hooks: Option<&Arc<Hooks>>) -> Result<FeatureStore> {
        let index = self.index().await?;
        let (engine, index): (Arc<dyn Engine>, Arc<dyn Index>) = match hooks {
            Some(hooks) => (
                Arc::new(HookedEngine {
                    inner: engine,
                    hooks: Arc::clone(hooks),
                }),
                Arc::new(HookedIndex {
                    inner: index,
                    hooks: Arc::clone(hooks),
                }),
            ),
            None => (engine, index),
        };
        let clock = Arc::new(SystemClock::new());
        Ok(FeatureStore::open(engine, index, self.store.clone(), clock, Arc::new(SystemRng)).await?)
    }

    /// Every key of the store in the index, without its root, and its value.
    pub(crate) async fn entries(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let root = format!("{STORE}/");
        let everything = Read::Range {
            keys: prefix(root.clone()),
            limit: 100_000,
            keys_only: false,
        };
        let snapshot = self.txn_store().await?.read(&[everything], WITHIN).await?;
        let entries = snapshot.entries.into_iter().flatten();
        Ok(entries
            .map(|entry| (entry.key.trim_start_matches(&root).to_owned(), entry.value))
            .collect())
    }
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    built.context("no runtime")
}

/// The one group of consumers.
pub(crate) fn trainers() -> Result<GroupName> {
    Ok(GroupName::new("trainers")?)
}

/// For the one group; as many attempts as it takes.
pub(crate) fn publication() -> Result<Publication> {
    Ok(Publication {
        groups: vec![trainers()?],
        retain: false,
        max_attempts: 1000,
    })
}

/// Puts a sample whose tensors `t0`, `t1` and so on have these lengths and the bytes of a seed.
pub(crate) async fn put(store: &FeatureStore, sample: &SampleId, lens: &[usize], seed: u64) -> Result<Stored> {
    let mut tensors = Vec::new();
    for (n, len) in lens.iter().enumerate() {
        let spec = TensorSpec::new(TensorName::new(format!("t{n}"))?, DType::Uint8, [*len as u64])?;
        let memory = store.pool().buffer(*len, WITHIN).await?;
        tokio::task::block_in_place(|| pattern::fill(&memory, seed.wrapping_add(n as u64)))?;
        tensors.push(TensorIn::new(spec, memory));
    }
    let item = PutItem {
        sample: sample.clone(),
        tensors,
        publication: publication()?,
    };
    Ok(store.put(item, WITHIN).await?)
}

/// Whether tensors hold exactly the bytes that [`put`] gave them.
pub(crate) fn right(tensors: &[tensorhold_features::TensorOut], seed: u64) -> Result<bool> {
    tokio::task::block_in_place(|| {
        for (n, tensor) in tensors.iter().enumerate() {
            let [part] = tensor.parts.as_slice() else {
                return Ok(false);
            };
            if tensor.spec.bytes() != part.len() as u64 || !pattern::holds(part, seed.wrapping_add(n as u64))? {
                return Ok(false);
            }
        }
        Ok(!tensors.is_empty())
    })
}
