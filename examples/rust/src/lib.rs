//! What the producer and the consumer share: opening a store, and the sample that goes from the one to the other.
#![allow(clippy::print_stderr, reason = "an example talks")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tensorhold_core::{Clock, DType, Error, ErrorKind, Rng, SystemClock, SystemRng, TensorSpec};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_features::{FeatureConfig, FeatureStore, GroupName};
use tensorhold_index::placement::NewStore;
use tensorhold_index::{Identity, IndexConfig, TxnIndex};
use tensorhold_index_etcd::{EtcdClusters, EtcdConfig, EtcdStore, open_store};

/// The store that both programs use.
pub const STORE: &str = "rust-example";
/// How many samples go from the producer to the consumer.
pub const SAMPLES: u16 = 8;
/// The deadline of every call.
pub const WITHIN: Duration = Duration::from_secs(10);

/// The group whose consumers share the samples.
pub fn trainers() -> Result<GroupName> {
    Ok(GroupName::new("trainers")?)
}

/// The one tensor of every sample.
pub fn hidden() -> Result<TensorSpec> {
    Ok(TensorSpec::new("hidden".parse()?, DType::Float32, [4, 1024])?)
}

/// Opens the store where the environment says that the cluster is: what `eval "$(tensorhold env)"` has set, or this host.
pub async fn open(role: &str) -> Result<FeatureStore> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let rng: Arc<dyn Rng> = Arc::new(SystemRng);
    let config = FeatureConfig::new(STORE.parse()?);

    // The index says who has which sample. All processes of a store use the same settings.
    let etcd = EtcdConfig::new(addresses("TENSORHOLD_ETCD").unwrap_or(vec!["http://127.0.0.1:2379".to_owned()]));
    let home = EtcdStore::open(etcd.clone(), Arc::clone(&clock), WITHIN).await?;
    let clusters = Arc::new(EtcdClusters::new(home, etcd, Arc::clone(&clock)));
    let txn_store = open_store(clusters, &config.store, NewStore::Begins, Arc::clone(&rng), WITHIN).await?;
    let settings = IndexConfig::default();
    let index = TxnIndex::new(txn_store, &config.store, settings, Arc::clone(&clock), Arc::clone(&rng))
        .with_identity(Identity::of_this_process(role));

    // The engine moves the bytes. Connecting blocks, so it has a thread of its own.
    let mut cluster = MooncakeConfig::default();
    cluster.master = std::env::var("TENSORHOLD_MASTER").unwrap_or(cluster.master);
    cluster.metadata = std::env::var("TENSORHOLD_METADATA").unwrap_or(cluster.metadata);
    cluster.admin = addresses("TENSORHOLD_ADMIN").unwrap_or(cluster.admin);
    cluster
        .environment
        .insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
    let engine = tokio::task::spawn_blocking(|| MooncakeEngine::connect(cluster)).await??;

    Ok(FeatureStore::open(Arc::new(engine), Arc::new(index), config, clock, rng).await?)
}

/// The addresses in a variable, separated by commas.
fn addresses(variable: &str) -> Option<Vec<String>> {
    let text = std::env::var(variable).ok()?;
    Some(text.split(',').map(|address| address.trim().to_owned()).collect())
}

/// How a program ends: without a cluster, it says how to start one.
pub fn ended(result: Result<()>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{error:#}");
    if error.downcast_ref::<Error>().map(Error::kind) == Some(ErrorKind::Unavailable) {
        eprintln!("No cluster answers. Start one on this machine, and tell this shell where it is:\n");
        eprintln!("    tensorhold up\n    eval \"$(tensorhold env)\"");
    }
    ExitCode::FAILURE
}
