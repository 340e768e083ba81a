//! Moves the store to another etcd and back, again and again, while it is under load.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tensorhold_core::{StoreId, SystemClock, SystemRng};
use tensorhold_index::placement::{ClusterAddress, ClusterName, Move, MoveReport, move_store, write_map};
use tensorhold_testkit::EtcdCluster;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::{STORE, WITHIN, open_clusters};

/// How long one move may take.
const MOVE_WITHIN: Duration = Duration::from_secs(600);

/// The other etcd, and the moves.
pub(crate) struct Moves {
    // The task ends with the runtime, whatever happens.
    task: JoinHandle<Result<Vec<MoveReport>>>,
    stop: Arc<Notify>,
}

/// Adds another etcd to the index whose home this is. The store begins at home.
pub(crate) fn add_cluster(home: &EtcdCluster, other: &EtcdCluster, runtime: &Runtime) -> Result<ClusterName> {
    let name: ClusterName = "other".parse()?;
    runtime.block_on(async {
        let (etcd, _) = open_clusters(&home.endpoints()).await?;
        let address = ClusterAddress {
            endpoints: other.endpoints(),
            open: false,
        };
        let clock = SystemClock::new();
        let added = write_map(&*etcd, &clock, WITHIN, |map| {
            map.clusters.insert(name.clone(), address.clone());
            Ok(())
        });
        added.await.context("cannot write the map of clusters")
    })?;
    Ok(name)
}

impl Moves {
    /// Moves the store every so often, beginning now.
    pub(crate) fn begin(home: &EtcdCluster, other: ClusterName, every: Duration, runtime: &Runtime) -> Self {
        let stop = Arc::new(Notify::new());
        let task = runtime.spawn(moves(home.endpoints(), other, every, Arc::clone(&stop)));
        Self { task, stop }
    }

    /// Ends them. A move that is under way is finished.
    pub(crate) fn end(self, runtime: &Runtime) -> Result<Vec<MoveReport>> {
        self.stop.notify_one();
        runtime.block_on(self.task)?
    }
}

async fn moves(
    endpoints: Vec<String>,
    other: ClusterName,
    every: Duration,
    stop: Arc<Notify>,
) -> Result<Vec<MoveReport>> {
    let (_, clusters) = open_clusters(&endpoints).await?;
    let clock = SystemClock::new();
    let mut reports = Vec::new();
    for to in [other, ClusterName::home()].into_iter().cycle() {
        tokio::select! {
            () = stop.notified() => break,
            () = tokio::time::sleep(every) => {}
        }
        let asked = Move {
            store: StoreId::new(STORE)?,
            to,
            longest_linger: Duration::MAX,
        };
        let report = move_store(&*clusters, &asked, &clock, &SystemRng, MOVE_WITHIN, &mut |_| {})
            .await
            .context("a move failed")?;
        eprintln!(
            "load: moved from {} to {}: {} keys, {} changes, {} sessions, frozen for {:.0} ms",
            report.from,
            report.to,
            report.copied,
            report.applied,
            report.sessions,
            report.frozen.as_secs_f64() * 1e3
        );
        reports.push(report);
    }
    Ok(reports)
}
