//! How full etcd is. What fills it is compacted by etcd itself (`--auto-compaction-mode`) or by [`crate::compact`].

use std::sync::Arc;
use std::time::Duration;

use tensorhold_index_etcd::{Storage, defragment, storage};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::options::EtcdOptions;
use crate::report::EtcdReport;
use crate::state::State;

const WITHIN: Duration = Duration::from_secs(10);
/// How long one node may take to defragment: etcd needs about 10 s for 1 GiB.
const DEFRAGMENT: Duration = Duration::from_secs(120);
/// A node is not defragmented more often than this.
const REST: Duration = Duration::from_secs(3600);

/// Looks at etcd's storage until it is told to stop.
pub(crate) async fn watch(state: Arc<State>, options: EtcdOptions, stop: CancellationToken) {
    let mut looks = interval_at(Instant::now(), state.options.look_every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_defragmented: Option<Instant> = None;
    let mut first_store = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let nodes = storage(&options.reach, WITHIN).await;
        let mut reports = Vec::with_capacity(nodes.len());
        let mut known = Vec::new();
        for (endpoint, node) in options.reach.endpoints.iter().zip(nodes) {
            match node {
                Ok(storage) => {
                    warn(&options, &storage);
                    known.push(storage.clone());
                    reports.push(EtcdReport::of(storage, options.quota));
                }
                Err(error) => {
                    tracing::warn!(%endpoint, %error, "an etcd node does not say how full it is");
                    reports.push(EtcdReport {
                        endpoint: endpoint.clone(),
                        trouble: Some(error.to_string()),
                        ..EtcdReport::default()
                    });
                }
            }
        }
        state.note_etcd(reports);
        let rested = last_defragmented.is_none_or(|last| last.elapsed() >= REST);
        let may_act = may_act(&state, &mut first_store);
        let may = options.defragment && rested && may_act && known.len() == options.reach.endpoints.len();
        if let Some(node) = to_defragment(&options, &known).filter(|_| may) {
            last_defragmented = Some(Instant::now());
            tokio::select! {
                () = stop.cancelled() => return,
                () = make_smaller(&options, node) => {}
            }
        }
    }
}

/// Whether this steward is the one that acts on etcd: the one in office for the first store that is open, by name, also at
/// the look before. Every steward has opened it by then. While all are idle, etcd's file does not grow.
fn may_act(state: &State, before: &mut Option<String>) -> bool {
    let report = state.report();
    let first = report.stores.iter().find(|(_, store)| store.open);
    let name = first.map(|(name, _)| name.clone());
    let is_same = name.is_some() && name == *before;
    *before = name;
    is_same && !report.read_only && first.is_some_and(|(_, first)| first.on_duty)
}

#[expect(clippy::cast_precision_loss, reason = "a part of the whole")]
fn is_large(options: &EtcdOptions, node: &Storage) -> bool {
    node.bytes as f64 >= options.warn_full * node.quota.unwrap_or(options.quota) as f64
}

fn warn(options: &EtcdOptions, node: &Storage) {
    let (endpoint, bytes, used) = (&node.endpoint, node.bytes, node.used);
    if node.full {
        tracing::error!(%endpoint, bytes, used, "etcd is full and refuses writes: make room, then clear its alarm");
    } else if is_large(options, node) {
        tracing::warn!(%endpoint, bytes, used, quota = node.quota.unwrap_or(options.quota),
            "etcd's file comes near its quota: is it compacted? defragment it, or raise the quota");
    }
    if node.corrupt {
        tracing::error!(%endpoint, "etcd has found damaged data");
    }
}

/// The node to defragment: one whose file is large and hardly used, the leader only if no other one is.
fn to_defragment<'a>(options: &EtcdOptions, nodes: &'a [Storage]) -> Option<&'a Storage> {
    let wanted = |node: &&Storage| is_large(options, node) && node.used < node.bytes / 2;
    nodes.iter().filter(wanted).min_by_key(|node| node.leads)
}

async fn make_smaller(options: &EtcdOptions, node: &Storage) {
    let endpoint = &node.endpoint;
    tracing::info!(%endpoint, bytes = node.bytes, used = node.used, "defragmenting: its file is large and hardly used");
    match defragment(&options.reach, endpoint, DEFRAGMENT).await {
        Ok(()) => tracing::info!(%endpoint, "defragmented"),
        Err(error) => tracing::warn!(%endpoint, %error, "an etcd node could not be defragmented"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_defragmented_last_and_a_full_node_not_at_all() {
        let options: EtcdOptions =
            serde_json::from_str(r#"{"reach":{"endpoints":["http://a"]},"quota":100}"#).expect("settings");
        let node = |bytes, used, leads| Storage {
            bytes,
            used,
            leads,
            ..Storage::default()
        };
        let nodes = [
            node(90, 10, true),
            node(90, 20, false),
            node(95, 90, false),
            node(20, 1, false),
        ];
        assert_eq!(to_defragment(&options, &nodes), Some(&nodes[1]));
        assert_eq!(to_defragment(&options, &nodes[..1]), Some(&nodes[0]));
        assert_eq!(to_defragment(&options, &nodes[2..]), None);
    }
}
