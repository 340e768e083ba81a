//! `clusters` and `move`: the etcd clusters of an index, and which of them a store is on.

use std::collections::BTreeMap;
use std::time::Duration;

use tensorhold_core::{Error, ErrorKind, StoreId, SystemRng};
use tensorhold_index::placement::{
    ClusterAddress, ClusterMap, ClusterName, Clusters as _, FollowingStore, Move, MoveStep, move_store, prepare,
    write_map,
};

use super::Context;
use crate::args::ClustersChange;
use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, draw, number, object, table};
use crate::reach::Reach;
use crate::text::shown;

pub(crate) async fn run(
    reach: &Reach,
    change: Option<ClustersChange>,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    match change {
        None => progress.wait("asking etcd", list(reach, context)).await,
        Some(ClustersChange::Add { name, endpoints }) => {
            progress.wait("adding the cluster", add(reach, name, endpoints)).await
        }
        Some(ClustersChange::Open { name }) => progress.wait("asking etcd", open(reach, name, true)).await,
        Some(ClustersChange::Close { name }) => progress.wait("asking etcd", open(reach, name, false)).await,
    }
}

fn named(text: &str) -> Result<ClusterName, Failure> {
    text.parse()
        .map_err(|error| Failure::of(format!("{} is no name of a cluster", shown(text)), &error))
}

async fn list(reach: &Reach, context: &Context<'_>) -> Result<Answer, Failure> {
    let map = reach.clusters.map(reach.left()).await;
    let several = map.map_err(|error| reach.failure(&error))?;
    let map = several.clone().unwrap_or_default();
    let mut on: BTreeMap<ClusterName, Vec<StoreId>> = BTreeMap::new();
    on.insert(ClusterName::home(), Vec::new());
    on.extend(map.clusters.keys().map(|name| (name.clone(), Vec::new())));
    for store in reach.stores().await? {
        let cluster = match several {
            Some(_) => located(reach, &store).await?,
            None => ClusterName::home(),
        };
        on.entry(cluster).or_default().push(store);
    }
    let mut rows = table(context.output, &["cluster", "stores", "new stores", "addresses"]);
    let mut values = Vec::new();
    for (name, stores) in on {
        let address = map.clusters.get(&name);
        let endpoints = address.map_or(&reach.settings.etcd.endpoints, |address| &address.endpoints);
        let is_open = address.map_or(map.home, |address| address.open);
        let new = if is_open { "yes" } else { "no" };
        rows.add_row([
            name.as_str().into(),
            number(stores.len()),
            new.into(),
            shown(&endpoints.join(" ")).into(),
        ]);
        let stores: Vec<&str> = stores.iter().map(StoreId::as_str).collect();
        values.push(object!("cluster": name.as_str(), "endpoints": endpoints, "open": is_open, "stores": stores));
    }
    let mut text = draw(&rows);
    if several.is_none() {
        text.push_str("\nThis index has one cluster: `tensorhold clusters add` adds another.\n");
    }
    Ok(Answer::new(object!("clusters": values), text))
}

/// The cluster that a store is on.
async fn located(reach: &Reach, store: &StoreId) -> Result<ClusterName, Failure> {
    let home = ClusterName::home();
    let clusters = reach.clusters.clone();
    let found = FollowingStore::open(store, &home, clusters, reach.clock.clone(), reach.left()).await;
    Ok(found.map_err(|error| reach.failure(&error))?.cluster())
}

async fn add(reach: &Reach, name: String, endpoints: Vec<String>) -> Result<Answer, Failure> {
    let name = named(&name)?;
    let not_added = |error: &Error| Failure::of(format!("cluster {name} was not added"), error);
    if name == ClusterName::home() {
        let error = Error::invalid(
            "command.clusters",
            "the home is the etcd that you have named with --etcd",
        );
        return Err(not_added(&error));
    }
    // It must answer, and be another etcd than those that are there.
    let cluster = reach.clusters.try_address(&endpoints, reach.left()).await;
    let cluster = cluster.map_err(|error| not_added(&error))?;
    let prepared = prepare(&cluster, reach.left()).await;
    prepared.map_err(|error| not_added(&error))?;
    let added = write_map(&reach.etcd, &*reach.clock, reach.left(), |map: &mut ClusterMap| {
        let open = map.clusters.get(&name).is_none_or(|there| there.open);
        let address = ClusterAddress {
            endpoints: endpoints.clone(),
            open,
        };
        map.clusters.insert(name.clone(), address);
        Ok(())
    });
    added.await.map_err(|error| not_added(&error))?;
    let text = format!(
        "cluster {name} is part of the index now; new stores may begin on it, and `tensorhold move {name} --store STORE` moves \
         one there\nProcesses that have a store open since before the index had several clusters must open it again before it \
         can be moved. Releases that know nothing of clusters can no longer use this index.\n"
    );
    Ok(Answer::new(
        object!("cluster": name.as_str(), "endpoints": endpoints),
        text,
    ))
}

async fn open(reach: &Reach, name: String, open: bool) -> Result<Answer, Failure> {
    let name = named(&name)?;
    let written = write_map(&reach.etcd, &*reach.clock, reach.left(), |map: &mut ClusterMap| {
        if name == ClusterName::home() {
            map.home = open;
            return Ok(());
        }
        let missing = || {
            Error::new(
                ErrorKind::NotFound,
                "command.clusters",
                "the index has no cluster of this name",
            )
        };
        map.clusters.get_mut(&name).ok_or_else(missing)?.open = open;
        Ok(())
    });
    written
        .await
        .map_err(|error| Failure::of(format!("cluster {name} is as it was"), &error))?;
    let text = if open { "may begin" } else { "no longer begin" };
    let text = format!("new stores {text} on cluster {name}; those that are there stay\n");
    Ok(Answer::new(object!("cluster": name.as_str(), "open": open), text))
}

/// `move`: brings a store to another cluster while it is in use.
pub(crate) async fn move_to(
    reach: &Reach,
    to: &str,
    within: Duration,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let asked = Move {
        store: progress.wait("asking etcd", reach.store()).await?,
        to: named(to)?,
        longest_linger: Duration::MAX,
    };
    let name = shown(asked.store.as_str());
    // A name that is not in the map is told before anything is locked.
    let there = reach.clusters.connect(&asked.to, reach.left()).await;
    there.map_err(|error| Failure::of(format!("store {name} was not moved"), &error))?;
    let mut told = |step: MoveStep| {
        progress.show(&match step {
            MoveStep::Copied(keys) => format!("copying: {keys} keys"),
            MoveStep::Applied(changes) => format!("applying what changed meanwhile: {changes}"),
            MoveStep::Frozen => "the store is frozen".to_owned(),
            MoveStep::Committed => format!("the store is at {to}; waiting until every process has noticed"),
            MoveStep::Deleted(keys) => format!("deleting what it left behind: {keys} keys"),
        });
    };
    let moved = move_store(&*reach.clusters, &asked, &*reach.clock, &SystemRng, within, &mut told).await;
    let report =
        moved.map_err(|error| Failure::of(format!("store {name} was not moved, or not cleared up"), &error))?;
    let frozen_ms = u64::try_from(report.frozen.as_millis()).unwrap_or(u64::MAX);
    let text = if report.from == report.to {
        format!("store {name} is on cluster {to} already\n")
    } else {
        format!(
            "store {name} is on cluster {to} now, no longer on {}: {} keys copied, {} changes applied, {} sessions went along; \
             it could not be written for {frozen_ms} ms\n",
            report.from, report.copied, report.applied, report.sessions
        )
    };
    let value = object!("store": asked.store.as_str(), "from": report.from.as_str(), "to": report.to.as_str(), "copied": report.copied, "applied": report.applied, "sessions": report.sessions, "frozen_ms": frozen_ms,);
    Ok(Answer::new(value, text))
}
