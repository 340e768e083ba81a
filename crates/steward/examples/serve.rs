//! A steward on a real cluster, for the test of the page in a browser (`python/tests/test_page.py`).
//!
//! Reads one line of JSON from its standard input: how the cluster is reached, and the steward's settings. Says in one line
//! where its HTTP interface listens, and stops when its standard input ends: so it never outlives the test.
#![allow(clippy::print_stdout, reason = "it says where it listens")]

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use serde::Deserialize;
use tensorhold_core::{Clock, Error, Result, StoreId, SystemClock, SystemRng};
use tensorhold_engine::Engine;
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_features::Identity;
use tensorhold_index::{Index, IndexConfig, TxnIndex};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
use tensorhold_steward::{Connect, Options, Steward};

const WITHIN: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Settings {
    reach: Reach,
    steward: Options,
}

/// How the cluster is reached.
#[derive(Deserialize)]
struct Reach {
    engine: MooncakeConfig,
    etcd: EtcdConfig,
}

#[async_trait]
impl Connect for Reach {
    async fn engine(&self, _: &StoreId) -> Result<Arc<dyn Engine>> {
        let config = self.engine.clone();
        let connected = tokio::task::spawn_blocking(move || MooncakeEngine::connect(config)).await;
        let failed = |failure| Error::internal("serve", "connecting ended by a defect").caused_by(failure);
        Ok(Arc::new(connected.map_err(failed)??))
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let etcd = EtcdStore::open(self.etcd.clone(), Arc::clone(&clock), WITHIN).await?;
        let index = TxnIndex::new(
            Arc::new(etcd),
            store,
            IndexConfig::default(),
            clock,
            Arc::new(SystemRng),
        );
        Ok(Arc::new(index.with_identity(identity)))
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let settings: Settings = serde_json::from_str(&line).context("the settings")?;
    let steward = Steward::start(settings.steward, Arc::new(settings.reach)).await?;
    let address = steward.address().context("the settings name no address to listen on")?;
    println!("{address}");
    let rest = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(rest).await??;
    Ok(steward.stop(WITHIN).await?)
}
