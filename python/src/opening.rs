//! Opening and closing a store: from settings to an engine, an index, and the store over both.
//!
//! ```text
//! settings ─▶ does the master listen? ─▶ etcd ─▶ budget ─▶ engine ─▶ store
//! ```
//! The master is probed first, by a plain connection: the engine's own attempt at a dead master takes a minute and a
//! half, and holds the interpreter's lock all that time.
//!
//! A store that is never closed is closed in the background when its last handle is dropped. If that is impossible too,
//! its session ends by its time to live, and a sweep cleans up after it.

use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Rng, SystemClock, SystemRng};
use tensorhold_engine::Engine;
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_features::seal::Keyring;
use tensorhold_features::{FeatureConfig, FeatureStore};
use tensorhold_index::placement::NewStore;
use tensorhold_index::{Identity, Index, IndexConfig, TxnIndex};
use tensorhold_index_etcd::{EtcdClusters, EtcdConfig, EtcdStore, open_store, restore_guard};

use crate::loan_table::{EngineReaper, LoanTable};
use crate::process;

const OPERATION: &str = "python.open";
/// How long closing may take for a store that the caller never closed.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// All settings, as the Python side writes them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    engine: MooncakeConfig,
    etcd: EtcdConfig,
    index: IndexConfig,
    features: FeatureConfig,
    budget: Option<u64>,
    #[serde(default)]
    program: String,
    #[serde(default)]
    role: String,
}

impl Settings {
    /// Parses settings. Keys and literal secrets are passed separately, because the text may be shown.
    pub(crate) fn read(text: &str, keyring: Option<Keyring>, secrets: Vec<(String, String)>) -> Result<Self> {
        let mut settings: Self = read_json(OPERATION, text)?;
        for (name, secret) in secrets {
            settings.etcd.set_secret(&name, secret)?;
        }
        settings.features.keyring = keyring;
        settings.etcd.check()?;
        settings.engine.validate()?;
        settings.features.validate()?;
        Ok(settings)
    }
}

/// Parses settings. If that fails, the error repeats no value: it may be a secret in the wrong place.
pub(crate) fn read_json<T: DeserializeOwned>(operation: &'static str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        let message = "a setting is unknown or has an invalid value";
        Error::invalid(operation, message).with("why", without_values(&error.to_string()))
    })
}

/// A message of serde without the value that it is about: `invalid type: string "…", expected …`.
fn without_values(message: &str) -> String {
    // The value ends at the last such text: the value itself may contain it, too.
    let value = |kind: &str| {
        message
            .starts_with(kind)
            .then(|| message.rfind(", expected "))
            .flatten()
    };
    for kind in ["invalid type: ", "invalid value: "] {
        if let Some(end) = value(kind) {
            return format!("{}{}", kind.trim_end_matches(": "), &message[end..]);
        }
    }
    message.to_owned()
}

/// The parts of an open store. The store goes before the reaper: the engine's last reference must not be dropped on a thread of
/// the runtime's, which it would block.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) store: FeatureStore,
    pub(crate) reaper: Arc<EngineReaper>,
    pub(crate) loans: Arc<LoanTable>,
    /// The budget in force, if one was requested.
    pub(crate) budget: Option<u64>,
}

/// For closures and futures, which capture a single field of a type without it: an operation that names only the store must hold
/// the reaper, too.
impl Drop for Parts {
    fn drop(&mut self) {}
}

/// A store, open until it is closed.
pub(crate) struct Opened(Mutex<Option<Parts>>);

impl Opened {
    pub(crate) fn parts(&self) -> Result<Parts> {
        self.0.lock().clone().ok_or_else(|| {
            Error::unavailable("python.store", "this store is closed; open another")
                .with_retry(tensorhold_core::Retry::Never)
        })
    }

    /// Closes the store, then releases the engine. Does nothing the second time.
    pub(crate) async fn close(&self, within: Duration) -> Result<()> {
        let parts = self.0.lock().take();
        match parts {
            Some(parts) => close(parts, within).await,
            None => Ok(()),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(parts) = self.0.get_mut().take()
            && let Ok(runtime) = process::runtime()
        {
            runtime.spawn(async move {
                if let Err(error) = close(parts, CLOSE_WITHIN).await {
                    tracing::warn!(%error, "a store that was left open did not close cleanly");
                }
            });
        }
    }
}

async fn close(parts: Parts, within: Duration) -> Result<()> {
    let closed = parts.store.close(within).await;
    // The engine waits for its calls when it is dropped, so that must not happen on a thread that others need. A caller
    // that brought its own client may close it as soon as this returns, so nothing may call into it any more: unless
    // tensors in memory of the pool are left, in which case the engine goes with the last of them.
    let mut gone = parts.reaper.gone();
    let is_last = Arc::strong_count(&parts.reaper) == 1;
    let ended = async move {
        let dropped = tokio::task::spawn_blocking(move || drop(parts)).await;
        if dropped.is_ok() && is_last {
            // It cannot fail before it is true: the engine's drop holds the sender.
            drop(gone.wait_for(|gone| *gone).await);
        }
    };
    if tokio::time::timeout(CLOSE_WITHIN, ended).await.is_err() {
        tracing::warn!("the engine's client is still closing, in the background");
    }
    closed
}

/// Opens a store. `client` is an engine's client that the caller has set up, if there is one.
pub(crate) async fn open(settings: Settings, client: Option<Py<PyAny>>, within: Duration) -> Result<Opened> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let deadline = Deadline::after(&*clock, within);
    let left = || deadline.remaining(&*clock);
    let Settings {
        mut engine,
        etcd,
        index,
        features,
        budget,
        program,
        role,
    } = settings;
    if client.is_none() {
        master_listens(OPERATION, &engine.master, left()).await?;
    }
    let home = EtcdStore::open(etcd.clone(), Arc::clone(&clock), left()).await?;
    let rng: Arc<dyn Rng> = Arc::new(SystemRng);
    let clusters = Arc::new(EtcdClusters::new(home, etcd, Arc::clone(&clock)));
    let txn_store = open_store(clusters, &features.store, NewStore::Begins, Arc::clone(&rng), left()).await?;
    let index = TxnIndex::new(txn_store, &features.store, index, Arc::clone(&clock), Arc::clone(&rng)).with_identity(
        Identity {
            program,
            ..Identity::of_this_process(&role)
        },
    );
    let mut in_force = budget;
    if let Some(bytes) = budget {
        let budget = index.ensure_budget(bytes, left()).await?;
        if budget != bytes {
            tracing::warn!(
                asked_for = bytes,
                budget,
                "this store has another budget already, which stays in force"
            );
        }
        in_force = Some(budget);
    }
    process::claim_engine()?;
    let admin = engine.admin.join(", ");
    engine.connect_within = left();
    let connected = tokio::task::spawn_blocking(move || match client {
        Some(client) => MooncakeEngine::adopt(client, engine),
        None => MooncakeEngine::connect(engine),
    });
    let engine: Arc<dyn Engine> = Arc::new(connected.await.map_err(|failure| {
        Error::internal(OPERATION, "the task that connects the engine panicked or was cancelled").caused_by(failure)
    })??);
    let reaper = Arc::new(EngineReaper::new(Arc::clone(&engine)));
    admin_answers(&engine, &admin, left()).await?;
    let opening = FeatureStore::open(engine, Arc::new(index), features, Arc::clone(&clock), rng);
    let store = tokio::time::timeout(left(), opening)
        .await
        .map_err(|_| Error::unavailable(OPERATION, "the store did not open within the timeout"))??;
    let parts = Parts {
        store,
        reaper,
        loans: Arc::default(),
        budget: in_force,
    };
    Ok(Opened(Mutex::new(Some(parts))))
}

/// Declares the current content of etcd to be the index from now on. Returns the name of the epoch that begins with it.
pub(crate) async fn guard(settings: Settings, within: Duration) -> Result<String> {
    let restored = restore_guard(settings.etcd, Arc::new(SystemClock::new()), within).await?;
    const NEXT: &str = "run `tensorhold clusters check` before new stores begin";
    match restored.checked {
        Ok(report) => {
            for (cluster, error) in &report.silent {
                tracing::warn!(%cluster, %error, "a cluster of the index could not be asked for its stores: {NEXT}");
            }
            for (store, cluster) in &report.twice {
                tracing::error!(%store, %cluster, "this cluster has a store of this name that the home does not know");
            }
        }
        Err(error) => tracing::warn!(%error, "the clusters of the index could not be checked: {NEXT}"),
    }
    Ok(restored.epoch)
}

/// Checks that a master answers at an admin address. Without one, a store opens and the first call that needs it fails:
/// adopting what a serving engine wrote, hours later.
async fn admin_answers(engine: &Arc<dyn Engine>, admin: &str, within: Duration) -> Result<()> {
    let engine = Arc::clone(engine);
    let asked = tokio::task::spawn_blocking(move || engine.usage(within)).await;
    let asked = asked.map_err(|failure| {
        Error::internal(OPERATION, "the task that asks the master panicked or was cancelled").caused_by(failure)
    })?;
    match asked {
        Err(error) if error.kind() == ErrorKind::Unavailable => Err(Error::unavailable(
            OPERATION,
            "no master answers at its admin address; name its HTTP port (the master's flag --metrics_port) in the setting \
             admin, or in TENSORHOLD_ADMIN",
        )
        .with("admin", admin)
        .caused_by(error)),
        // Whatever else is wrong there is for the call that needs it.
        _ => Ok(()),
    }
}

/// Checks that a process listens at the master's address.
pub(crate) async fn master_listens(operation: &'static str, master: &str, within: Duration) -> Result<()> {
    let unavailable = |why: &'static str| Error::unavailable(operation, why).with("master", master);
    let addresses: Vec<String> = match master.strip_prefix("etcd://") {
        Some(nodes) => nodes.split(';').map(str::to_owned).collect(),
        None => vec![master.to_owned()],
    };
    let connecting = tokio::task::spawn_blocking(move || any_listens(&addresses, within));
    match tokio::time::timeout(within, connecting).await {
        Ok(Ok(true)) => Ok(()),
        Ok(_) => Err(unavailable(
            "the master does not listen there; is it running, and is the address right?",
        )),
        Err(_) => Err(unavailable(
            "the master did not answer within the timeout; is the address right?",
        )),
    }
}

fn any_listens(addresses: &[String], within: Duration) -> bool {
    let found = addresses.iter().filter_map(|address| address.to_socket_addrs().ok());
    found
        .flatten()
        .any(|address| TcpStream::connect_timeout(&address, within.max(Duration::from_millis(1))).is_ok())
}

#[cfg(test)]
mod tests {
    use super::without_values;

    #[test]
    fn no_value_of_a_setting_is_repeated() {
        for (message, told) in [
            (
                r#"invalid type: string "hunter2, expected x", expected struct TlsConfig at line 1 column 9"#,
                "invalid type, expected struct TlsConfig at line 1 column 9",
            ),
            ("invalid value: integer `7`, expected u8", "invalid value, expected u8"),
            (
                "unknown field `passwrod`, expected `password`",
                "unknown field `passwrod`, expected `password`",
            ),
        ] {
            assert_eq!(without_values(message), told);
        }
    }
}
