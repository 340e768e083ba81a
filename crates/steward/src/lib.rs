//! The steward: a service beside the cluster that looks after stores.
//!
//! Nothing breaks without one: then two of the processes that use a store sweep it. A steward takes that off them, so
//! that a store with a thousand sessions costs the index no more than one with ten, and it sees what no process of a run
//! has the time to see.
//!
//! ```text
//!              election per store (an office in the index)
//!  steward A ─────▶ on duty for s1, standing by for s2 ─┐      sweeps, frees what is retired, audits
//!  steward B ─────▶ on duty for s2, standing by for s1 ─┴──▶   looks at sessions, budgets, etcd's storage
//!                                                              tells: log, /metrics, /v1, report
//! ```
//!
//! | module | its job |
//! |---|---|
//! | [`options`] | the settings |
//! | `discover` | the stores of the index that have no settings of their own |
//! | `tend` | one store: open it, sweep while elected, look, audit, end it when it is unused |
//! | `idle` | leaves stores alone that nobody uses, and forgets the empty ones |
//! | `view` | what the page shows of a store, and what it held over time |
//! | `overview` | the page's figures, made once for all who watch |
//! | `etcd` | how full etcd is |
//! | `certificates` | when certificates end |
//! | [`attention`] | what an operator should see to |
//! | [`recent`] | how fast figures change |
//! | `compact` | has etcd forget what nobody reads any more |
//! | [`report`] | what was seen and done last |
//! | `metrics` | the same as Prometheus text |
//! | [`http`] | the HTTP interface |
//!
//! # What if…
//! - *…the steward on duty dies or hangs?* Its session ends, and with it its office. Another steward, or the store's own
//!   processes, go on: the time to live of a session (10 s), and a second, later.
//! - *…a removal was under way?* The index lists a sample until it was told that the sample is freed. Removing twice is
//!   harmless.
//! - *…etcd or the engine cannot be reached?* Each store is tried again after growing pauses. `/readyz` says so.
//! - *…a part of it ends by a defect?* `/readyz` answers 503, and [`run`] closes the rest and returns the error.
//! - *…it is told to change nothing (`read_only`)?* It takes no office, so the store's processes sweep. It still opens a
//!   session in each store.

pub mod attention;
pub mod http;
pub mod options;
pub mod recent;
pub mod report;

mod certificates;
mod compact;
mod discover;
mod etcd;
mod idle;
mod metrics;
mod overview;
mod state;
mod tend;
mod view;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Error, ErrorKind, Result, StoreId};
use tensorhold_engine::Engine;
use tensorhold_features::{FeatureStore, Identity, LossAudit, OrphanAudit};
use tensorhold_index::Index;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use certificates::CertificateReport;
pub use options::{Compact, EtcdOptions, HttpOptions, Options, OtherStores, StoreOptions, TlsFiles};
pub use report::Report;

use crate::state::State;

/// How the steward reaches engines and indexes.
#[async_trait]
pub trait Connect: Send + Sync {
    /// The engine of a store.
    async fn engine(&self, store: &StoreId) -> Result<Arc<dyn Engine>>;

    /// The index of a store. Its sessions are to have this identity: others see by it that this is a steward.
    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>>;

    /// The stores of the index, for [`Options::others`]. None by default.
    async fn stores(&self, _within: Duration) -> Result<Vec<StoreId>> {
        Ok(Vec::new())
    }

    /// Those of these stores that are in use, or have something to look after: see [`tensorhold_index::in_use`]. The others
    /// are left alone. All of them by default.
    async fn in_use(&self, stores: &[StoreId], _within: Duration) -> Result<Vec<StoreId>> {
        Ok(stores.to_vec())
    }

    /// Deletes what the index has of a store: see [`tensorhold_index::forget`]. Not by default.
    async fn forget(&self, _store: &StoreId, _within: Duration) -> Result<bool> {
        let message = "this steward cannot forget stores";
        Err(Error::new(ErrorKind::Unsupported, "steward.forget", message))
    }

    /// Compares the objects of a store with its records, both ways, and repairs what differs unless it is to change
    /// nothing: removes orphans, and has samples declared lost whose objects stay missing for the loss grace.
    async fn audit(&self, store: &FeatureStore, read_only: bool, within: Duration) -> Result<Audited> {
        let until = Instant::now() + within;
        let orphans = OrphanAudit {
            read_only,
            ..OrphanAudit::default()
        };
        let orphans = store.audit_orphans(orphans, within).await?;
        let losses = LossAudit {
            read_only,
            ..LossAudit::default()
        };
        let losses = store.audit_losses(losses, until - Instant::now()).await?;
        Ok(Audited {
            orphans: orphans.orphans,
            removed: orphans.removed,
            lost: losses.missing,
            samples: losses.samples,
            refused: orphans.refused,
            complete: orphans.complete && losses.complete,
        })
    }
}

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Audited {
    /// Objects that no record owns.
    pub orphans: u64,
    /// Those of them that were removed.
    pub removed: u64,
    /// Live samples whose objects are gone.
    pub lost: u64,
    /// Live samples that were looked at.
    pub samples: u64,
    /// Why orphans are left alone, and what to do.
    pub refused: Option<String>,
    /// Whether everything was looked at.
    pub complete: bool,
}

/// What stewards say of themselves in the stores that they look after.
pub fn identity() -> Identity {
    Identity {
        steward: true,
        ..Identity::of_this_process("steward")
    }
}

/// A steward that runs. Dropping it stops it where it is, as if its process had died.
#[derive(Debug)]
pub struct Steward {
    state: Arc<State>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    address: Option<SocketAddr>,
}

impl Steward {
    /// Starts one. Fails only for settings that cannot work, and if the address to listen on is taken: whatever cannot be
    /// reached is tried again.
    pub async fn start(options: Options, connect: Arc<dyn Connect>) -> Result<Self> {
        options.validate()?;
        let stop = CancellationToken::new();
        let state = Arc::new(State::new(options, connect));
        let mut tasks = JoinSet::new();
        let mut address = None;
        let watched = |store: Option<StoreId>| Watched {
            state: Arc::clone(&state),
            store,
            stop: stop.clone(),
            is_over: false,
        };
        tasks.spawn(watched(None).run(certificates::watch(Arc::clone(&state), stop.clone())));
        tasks.spawn(watched(None).run(idle::rounds(Arc::clone(&state), stop.clone())));
        if let Some(http) = &state.options.http {
            let server = http::Server::bind(http, Arc::clone(&state)).await?;
            address = Some(server.address());
            tasks.spawn(watched(None).run(server.serve(stop.clone())));
        }
        if let Some(others) = &state.options.others {
            let discover = discover::discover(Arc::clone(&state), others.clone(), stop.clone());
            tasks.spawn(watched(None).run(discover));
        }
        for store in &state.options.stores {
            let tend = tend::tend(Arc::clone(&state), store.clone(), tend::Origin::Named, stop.clone());
            let watched = watched(Some(store.store.clone()));
            tasks.spawn(async {
                watched.tend(tend).await;
            });
        }
        if let Some(etcd) = &state.options.etcd {
            let watch = etcd::watch(Arc::clone(&state), etcd.clone(), stop.clone());
            tasks.spawn(watched(None).run(watch));
            if etcd.never_compacts(state.options.read_only).is_none() {
                let compact = compact::compact_in_time(Arc::clone(&state), etcd.clone(), stop.clone());
                tasks.spawn(watched(None).run(compact));
            }
        }
        Ok(Self {
            state,
            stop,
            tasks,
            address,
        })
    }

    /// Where its HTTP interface listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What it has seen and done.
    pub fn report(&self) -> Report {
        self.state.report()
    }

    /// Waits until one of its tasks has ended, which none does before it is told to, and says why.
    pub async fn broken(&mut self) -> Error {
        let error = Error::internal(
            "steward",
            "a task of the steward has ended by a defect; its log says more",
        );
        match self.tasks.join_next().await {
            Some(Err(failure)) => error.caused_by(failure),
            _ => error,
        }
    }

    /// Stops it: leaves its offices and closes its stores. Others go on at once.
    pub async fn stop(mut self, within: Duration) -> Result<()> {
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(within, all).await.is_err() {
            let message = "not all stores were closed in time; their sessions end by themselves";
            return Err(Error::new(ErrorKind::Timeout, "steward.stop", message));
        }
        Ok(())
    }
}

/// How long a steward takes to stop.
const STOP: Duration = Duration::from_secs(20);

/// A task of the steward. However it ends, it is known.
struct Watched {
    state: Arc<State>,
    /// What it looks after.
    store: Option<StoreId>,
    stop: CancellationToken,
    /// Whether there is nothing left to look after.
    is_over: bool,
}

impl Watched {
    async fn run(self, task: impl Future<Output = ()>) {
        task.await;
    }

    /// As [`Watched::run`], for the task of a store.
    async fn tend(mut self, task: impl Future<Output = tend::Left>) -> tend::Left {
        let left = task.await;
        self.is_over = left == tend::Left::Forgotten;
        left
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.is_over && !self.stop.is_cancelled() {
            self.state.task_ended(self.store.as_ref());
        }
    }
}

/// Runs a steward until it is told to stop, or until a part of it has ended by a defect: then it closes the rest and
/// returns the error, so that whatever started it starts it again.
pub async fn run(options: Options, connect: Arc<dyn Connect>, stop: CancellationToken) -> Result<()> {
    let mut steward = Steward::start(options, connect).await?;
    let error = tokio::select! {
        () = stop.cancelled() => return steward.stop(STOP).await,
        error = steward.broken() => error,
    };
    tracing::error!(%error, "stopping");
    if let Err(late) = steward.stop(STOP).await {
        tracing::warn!(error = %late, "it did not stop in time");
    }
    Err(error)
}

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
