//! Compaction: etcd forgets what its keys were before a revision. For the people who operate it.
//!
//! etcd keeps every revision until it is compacted, by itself (`--auto-compaction-mode`, off unless it is asked for) or by a
//! client. Until then its file grows, and every list costs what was deleted from it.
//!
//! # What Tensorhold needs of the history
//! Nothing is read at a past revision. A watch that lost its node resumes at the revision after the last one that it knows
//! of: at most two `watch_probe` and one `watch_patience` ago, 40 s with the usual settings. One that comes too late ends
//! with `NotFound`, and whoever watches reads again. So a minute of history suffices, and less costs reads.
//!
//! # What if
//! - *another one compacts, too?* etcd refuses a revision that it has forgotten already; that counts as done.
//! - *etcd was restored or replaced?* A revision that is yet to come is refused (`Invalid`); [`Head::cluster`] and a
//!   revision that went back show the rest.
//! - *etcd asks for a login?* Releases of etcd differ in whether a user without the role `root` may compact. One that may
//!   not is told `Denied`, and so is one that may not read all keys and asks for [`has_other_keys`].

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, Txn, TxnOpResponse};
use tensorhold_core::{Error, ErrorKind, Result};

use crate::config::EtcdConfig;
use crate::convert::{Names, strange};
use crate::dial::{Link, dial};
use crate::epoch;
use crate::outcome::{Failure, judge};

const OPERATION: &str = "etcd.compact";

/// Where etcd's history stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The id of the etcd cluster.
    pub cluster: u64,
    /// Its latest revision.
    pub revision: u64,
}

/// What a compaction has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// etcd has forgotten what was before the revision.
    Now,
    /// It had done so before.
    Already,
}

/// Where etcd's history stands.
pub async fn head(config: &EtcdConfig, within: Duration) -> Result<Head> {
    let key = Names::new(&config.root).full(epoch::KEY);
    let request = |mut link: Link| {
        let key = key.clone();
        async move { link.kv.get(key, Some(GetOptions::new().with_count_only())).await }
    };
    let answer = on_a_node(config, within, request).await?;
    let header = answer.header().ok_or_else(|| strange("an answer without a header"))?;
    let revision = u64::try_from(header.revision()).map_err(|_| strange("a revision below zero"))?;
    Ok(Head {
        cluster: header.cluster_id(),
        revision,
    })
}

/// Whether etcd has keys outside of the root of this index: another program uses it, or another index.
pub async fn has_other_keys(config: &EtcdConfig, within: Duration) -> Result<bool> {
    let both = Txn::new().and_then(Names::new(&config.root).count_others());
    let request = |mut link: Link| {
        let both = both.clone();
        async move { link.kv.txn(both).await }
    };
    let answers = on_a_node(config, within, request).await?.op_responses();
    let counts = answers.iter().map(|answer| match answer {
        TxnOpResponse::Get(read) => Ok(read.count()),
        _ => Err(strange("an answer of the wrong kind to a count")),
    });
    let counts = counts.collect::<Result<Vec<_>>>()?;
    Ok(counts.into_iter().any(|count| count > 0))
}

/// Has etcd forget what its keys were before a revision. What they are at that revision stays.
pub async fn compact(config: &EtcdConfig, revision: u64, within: Duration) -> Result<Compacted> {
    let revision = i64::try_from(revision)
        .map_err(|_| Error::invalid(OPERATION, "etcd has no such revision").with("revision", revision))?;
    // Pages are freed in the background: nobody waits for that.
    let request = |mut link: Link| async move { link.kv.compact(revision, None).await };
    match on_a_node(config, within, request).await {
        Ok(_) => Ok(Compacted::Now),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Compacted::Already),
        Err(error) => Err(error.with("revision", revision)),
    }
}

/// Sends a request to one node after the other, until one answers. It may be carried out twice.
async fn on_a_node<T, A>(config: &EtcdConfig, within: Duration, request: impl Fn(Link) -> A) -> Result<T>
where
    A: Future<Output = Result<T, etcd_client::Error>>,
{
    let config = Arc::new(config.clone());
    let nodes = u32::try_from(config.endpoints.len()).unwrap_or(u32::MAX);
    let each = within / nodes.max(1);
    let mut last = Error::invalid(OPERATION, "the settings name no endpoint");
    for endpoint in &config.endpoints {
        let tried = tokio::time::timeout(each, async {
            let link = dial(0, endpoint, &config).await?;
            request(link).await.map_err(|error| judge(OPERATION, endpoint, error))
        });
        last = match tried.await {
            Ok(Ok(answer)) => return Ok(answer),
            // Another node would say the same.
            Ok(Err(Failure::Refused(error) | Failure::Full(error))) => return Err(error),
            Ok(Err(failure)) => failure.into_error(),
            Err(_late) => Error::unavailable(OPERATION, "etcd did not answer in time").with("endpoint", endpoint),
        };
    }
    Err(last)
}
