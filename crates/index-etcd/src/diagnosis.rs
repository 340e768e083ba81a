//! What each node of an etcd says of itself, for an operator who asks what is wrong.
//!
//! Each node is asked by a connection of its own, without the pool: a pool would go to another node, and the question is
//! about this one. Nothing is written.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType};
use futures_util::future::join_all;
use tensorhold_core::{Clock, Error, Result};

use crate::config::EtcdConfig;
use crate::convert::Names;
use crate::dial;
use crate::outcome::judge;

const OPERATION: &str = "etcd.diagnose";
/// The key that says which layout the index has; [`tensorhold_index::schema`].
const SCHEMA: &str = "schema";

/// One node, and what it says.
#[derive(Clone, Debug)]
pub struct NodeReport {
    /// Its address.
    pub endpoint: String,
    /// What it says; the error if it does not.
    pub status: Result<NodeStatus>,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The release.
    pub version: String,
    /// The size of its database file in bytes.
    pub database_bytes: u64,
    /// How much of that is in use; the rest comes back by a defragmentation.
    pub used_bytes: u64,
    /// Whether it leads.
    pub leads: bool,
    /// Whether it knows a leader.
    pub has_leader: bool,
    /// Whether the quota is used up (NOSPACE), on any node.
    pub full: bool,
    /// Whether corrupt data was found, on any node.
    pub corrupt: bool,
    /// How long a read took that the leader has confirmed.
    pub read_took: Duration,
    /// What the index says of its layout; none if there is no index under this root.
    pub schema: Option<String>,
}

/// Asks every node that the settings name, side by side.
///
/// # Errors
/// `Invalid` for settings that cannot work. What is wrong with a node is in its report.
pub async fn diagnose(config: EtcdConfig, clock: Arc<dyn Clock>, within: Duration) -> Result<Vec<NodeReport>> {
    config.check()?;
    let config = Arc::new(config);
    let asked = config.endpoints.iter().map(|endpoint| {
        let (config, clock) = (Arc::clone(&config), Arc::clone(&clock));
        async move {
            let asked = tokio::time::timeout(within, ask(endpoint, &config, clock.as_ref())).await;
            let silent = || Err(Error::unavailable(OPERATION, "this node did not answer in time"));
            NodeReport {
                endpoint: endpoint.clone(),
                status: asked.unwrap_or_else(|_| silent()),
            }
        }
    });
    Ok(join_all(asked).await)
}

async fn ask(endpoint: &str, config: &Arc<EtcdConfig>, clock: &dyn Clock) -> Result<NodeStatus> {
    let wrong = |error| judge(OPERATION, endpoint, error).into_error();
    let client = dial::client(endpoint, config)
        .await
        .map_err(crate::outcome::Failure::into_error)?;
    let mut maintenance = client.maintenance_client();
    let status = maintenance.status().await.map_err(wrong)?;
    let alarms = maintenance
        .alarm(AlarmAction::Get, AlarmType::None, None)
        .await
        .map_err(wrong)?;
    let has = |which: AlarmType| alarms.alarms().iter().any(|alarm| alarm.alarm() == which);
    let begun = clock.now();
    let schema = client
        .kv_client()
        .get(Names::new(&config.root).full(SCHEMA), None)
        .await
        .map_err(wrong)?;
    let read_took = clock.now().since(begun);
    let bytes = |count: i64| u64::try_from(count).unwrap_or(0);
    let text = |entry: &etcd_client::KeyValue| String::from_utf8_lossy(entry.value()).into_owned();
    Ok(NodeStatus {
        version: status.version().to_owned(),
        database_bytes: bytes(status.db_size()),
        used_bytes: bytes(status.raft_used_db_size()),
        leads: status.leader() != 0
            && status
                .header()
                .is_some_and(|header| header.member_id() == status.leader()),
        has_leader: status.leader() != 0,
        full: has(AlarmType::Nospace),
        corrupt: has(AlarmType::Corrupt),
        read_took,
        schema: schema.kvs().first().map(text),
    })
}
