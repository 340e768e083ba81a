//! How full etcd is, and making room: for the people who operate it.
//!
//! Each node has a file of its own, which a quota bounds. Compaction ([`crate::compact`]) frees pages inside the file;
//! only defragmentation makes the file smaller, and the node serves nothing meanwhile. A node whose file has reached the
//! quota raises an alarm, and etcd refuses writes until an operator has made room and cleared the alarm.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType};
use tensorhold_core::{Error, ErrorKind, Result};

use crate::config::EtcdConfig;
use crate::dial::{Link, dial};
use crate::outcome::{Failure, judge};

const OPERATION: &str = "etcd.storage";

/// How full one node is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Storage {
    /// The node's address.
    pub endpoint: String,
    /// Its release.
    pub version: String,
    /// The size of its file in bytes.
    pub bytes: u64,
    /// How much of that is used. The rest is free inside the file.
    pub used: u64,
    /// The quota, if the node says (3.6 and later do).
    pub quota: Option<u64>,
    /// Whether it leads.
    pub leads: bool,
    /// Whether etcd refuses writes because some node is full.
    pub full: bool,
    /// Whether etcd has found damaged data.
    pub corrupt: bool,
}

async fn link(endpoint: &str, config: &Arc<EtcdConfig>, within: Duration) -> Result<Link> {
    let dialled = tokio::time::timeout(within, dial(0, endpoint, config)).await;
    dialled.map_err(|_| late(endpoint))?.map_err(Failure::into_error)
}

fn late(endpoint: &str) -> Error {
    Error::unavailable(OPERATION, "etcd did not answer in time").with("endpoint", endpoint)
}

async fn answer<T>(
    endpoint: &str,
    within: Duration,
    call: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T> {
    let answered = tokio::time::timeout(within, call).await.map_err(|_| late(endpoint))?;
    answered.map_err(|error| judge(OPERATION, endpoint, error).into_error())
}

async fn storage_of(endpoint: &str, config: &Arc<EtcdConfig>, within: Duration) -> Result<Storage> {
    let size = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    let mut node = link(endpoint, config, within).await?.maintenance;
    let status = answer(endpoint, within, node.status()).await?;
    let alarms = answer(endpoint, within, node.alarm(AlarmAction::Get, AlarmType::None, None)).await;
    let alarms = match alarms {
        Ok(alarms) => alarms.alarms().iter().map(|alarm| alarm.alarm()).collect(),
        // Only etcd's root user may ask. Writes are refused as `Capacity` then, which everybody sees.
        Err(error) if error.kind() == ErrorKind::Denied => Vec::new(),
        Err(error) => return Err(error),
    };
    let own = status.header().map(etcd_client::ResponseHeader::member_id);
    Ok(Storage {
        endpoint: endpoint.to_owned(),
        version: status.version().to_owned(),
        bytes: size(status.db_size()),
        used: size(status.raft_used_db_size()),
        quota: Some(size(status.db_size_quota())).filter(|quota| *quota > 0),
        leads: own == Some(status.leader()),
        full: alarms.contains(&AlarmType::Nospace),
        corrupt: alarms.contains(&AlarmType::Corrupt),
    })
}

/// How full each node is, in the order of the settings. An error for a node that does not say.
pub async fn storage(config: &EtcdConfig, within: Duration) -> Vec<Result<Storage>> {
    let config = Arc::new(config.clone());
    let nodes = config
        .endpoints
        .iter()
        .map(|endpoint| storage_of(endpoint, &config, within));
    futures_util::future::join_all(nodes).await
}

/// Makes the file of one node smaller. It serves nothing meanwhile: one node at a time, and the leader last.
pub async fn defragment(config: &EtcdConfig, endpoint: &str, within: Duration) -> Result<()> {
    let mut node = link(endpoint, &Arc::new(config.clone()), within).await?.maintenance;
    answer(endpoint, within, node.defragment()).await?;
    Ok(())
}
