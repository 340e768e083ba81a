//! The restore guard: the operator runs it when etcd was restored from a snapshot, or replaced.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Result};
use tensorhold_index::placement::{CheckReport, check_clusters, is_home};

use crate::clusters::EtcdClusters;
use crate::config::EtcdConfig;
use crate::store::EtcdStore;

/// What the restore guard did.
#[derive(Debug)]
pub struct Restored {
    /// The name of the epoch that it began.
    pub epoch: String,
    /// What it found on the other clusters, if this etcd is the home of an index; or why it does not know.
    pub checked: Result<CheckReport>,
}

/// Declares the current content of etcd to be the index from now on: begins a new epoch. If this is the home of an index with
/// several clusters, asks the others for their stores and brings back their places
/// ([`check_clusters`](tensorhold_index::placement::check_clusters)); no new store begins before that has succeeded.
///
/// Run it once after every restore of etcd from a snapshot, and after etcd was replaced by another one, before any
/// process writes to the index. It fences every process that used the index before, whether that process has noticed
/// the restore or not. Each such process goes on by itself in the new epoch: its sessions, leases and reservations have
/// ended, and records that the snapshot does not have are gone. No token and no generation that was given out in the
/// lost history is ever given out again.
///
/// Running it twice, or without need, costs every process its sessions and nothing else.
///
/// # Errors
/// As [`EtcdStore::open`]; `Capacity` if etcd is full. If the answer is lost, the new epoch may have begun: run it again.
pub async fn restore_guard(config: EtcdConfig, clock: Arc<dyn Clock>, within: Duration) -> Result<Restored> {
    let deadline = Deadline::after(clock.as_ref(), within);
    let txn_store = EtcdStore::open_before_epochs(config.clone(), Arc::clone(&clock), within).await?;
    let epoch = txn_store.declare(deadline).await?;
    tracing::warn!(epoch, "the restore guard has begun another epoch of the index");
    let check = async {
        let left = deadline.remaining(&*clock);
        if !is_home(&txn_store, left).await? {
            return Ok(CheckReport::default());
        }
        let clusters = EtcdClusters::new(txn_store, config, Arc::clone(&clock));
        check_clusters(&clusters, &*clock, deadline.remaining(&*clock)).await
    };
    let checked = check.await;
    Ok(Restored { epoch, checked })
}
