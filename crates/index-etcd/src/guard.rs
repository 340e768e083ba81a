//! The restore guard: the operator runs it when etcd was restored from a snapshot, or replaced.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Result};

use crate::config::EtcdConfig;
use crate::store::EtcdStore;

/// Declares the current content of etcd to be the index from now on: begins a new epoch. Returns its name.
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
pub async fn restore_guard(config: EtcdConfig, clock: Arc<dyn Clock>, within: Duration) -> Result<String> {
    let deadline = Deadline::after(clock.as_ref(), within);
    let txn_store = EtcdStore::open_before_epochs(config, clock, within).await?;
    let epoch = txn_store.declare(deadline).await?;
    tracing::warn!(epoch, "the restore guard has begun another epoch of the index");
    Ok(epoch)
}
