//! `clusters`: the etcd clusters of an index, and which stores are on each.
//!
//! Only `add` and `check` ask another cluster than the home. `remove` tells the one that it has removed, if that answers.

use std::collections::BTreeMap;

use tensorhold_core::{Error, SystemRng};
use tensorhold_index::placement::{
    CheckReport, ClusterName, add_cluster, check_clusters, close_cluster, read_map, remove_cluster, store_places,
};

use super::Context;
use crate::args::ClustersChange;
use crate::failure::{Failure, WRONG};
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
        Some(ClustersChange::Add { name, endpoints, again }) => {
            progress
                .wait("adding the cluster", add(reach, name, endpoints, again))
                .await
        }
        Some(ClustersChange::Open { name }) => progress.wait("asking etcd", open(reach, name, true)).await,
        Some(ClustersChange::Close { name }) => progress.wait("asking etcd", open(reach, name, false)).await,
        Some(ClustersChange::Remove { name }) => progress.wait("asking etcd", remove(reach, name)).await,
        Some(ClustersChange::Check) => progress.wait("asking the clusters", check(reach)).await,
    }
}

fn named(text: &str) -> Result<ClusterName, Failure> {
    text.parse()
        .map_err(|error| Failure::of(format!("{} is no name of a cluster", shown(text)), &error))
}

async fn list(reach: &Reach, context: &Context<'_>) -> Result<Answer, Failure> {
    let map = read_map(&reach.etcd, reach.left()).await;
    let several = map.map_err(|error| reach.failure(&error))?;
    let map = several.clone().unwrap_or_default();
    let mut on: BTreeMap<ClusterName, Vec<String>> = BTreeMap::new();
    on.insert(ClusterName::home(), Vec::new());
    on.extend(map.clusters.keys().map(|name| (name.clone(), Vec::new())));
    let places = store_places(&reach.etcd, &*reach.clock, reach.left()).await;
    let mut notes = String::new();
    for place in places.map_err(|error| reach.failure(&error))? {
        let store = place.store.as_str();
        if let Some(also) = &place.also {
            notes.push_str(&format!(
                "\nstore {} cannot be opened: cluster {also} has one of that name, too",
                shown(store)
            ));
        }
        match place.cluster {
            Some(cluster) => on.entry(cluster).or_default().push(store.to_owned()),
            None => notes.push_str(&format!(
                "\nstore {} cannot be opened: there is no record of where it is",
                shown(store)
            )),
        }
    }
    let mut rows = table(context.output, &["cluster", "stores", "new stores", "addresses"]);
    let mut values = Vec::new();
    for (name, stores) in on {
        let address = map.clusters.get(&name);
        let is_home = name == ClusterName::home();
        let endpoints = match address {
            Some(address) => address.endpoints.clone(),
            None if is_home => reach.settings.etcd.endpoints.clone(),
            None => Vec::new(),
        };
        let is_open = address.map_or(is_home && map.home, |address| address.open);
        if address.is_none() && !is_home {
            notes.push_str(&format!(
                "\ncluster {name} is not known any more: `tensorhold clusters add {name} … --again`"
            ));
        }
        let new = if is_open { "yes" } else { "no" };
        rows.add_row([
            name.as_str().into(),
            number(stores.len()),
            new.into(),
            shown(&endpoints.join(" ")).into(),
        ]);
        values.push(object!("cluster": name.as_str(), "endpoints": endpoints, "open": is_open, "stores": stores));
    }
    let mut text = draw(&rows);
    if several.is_none() {
        text.push_str("\nThis index has one cluster: `tensorhold clusters add` adds another.\n");
    }
    if !notes.is_empty() {
        text.push_str(&notes);
        text.push('\n');
    }
    Ok(Answer::new(object!("clusters": values), text))
}

async fn add(reach: &Reach, name: String, endpoints: Vec<String>, again: bool) -> Result<Answer, Failure> {
    let name = named(&name)?;
    let (clusters, left) = (&*reach.clusters, reach.left());
    let added = add_cluster(clusters, &name, &endpoints, again, &*reach.clock, &SystemRng, left).await;
    let report = added.map_err(|error| Failure::of(format!("cluster {name} was not added"), &error))?;
    let mut text =
        format!("cluster {name} is part of the index now; new stores may begin on it, and stay where they began\n");
    text.push_str(&found(&report));
    let value = object!("cluster": name.as_str(), "endpoints": endpoints, "twice": stores(&report.twice));
    let answer = Answer::new(value, text);
    Ok(if report.twice.is_empty() {
        answer
    } else {
        answer.with_code(WRONG)
    })
}

async fn open(reach: &Reach, name: String, open: bool) -> Result<Answer, Failure> {
    let name = named(&name)?;
    let written = close_cluster(&reach.etcd, &name, open, &*reach.clock, reach.left()).await;
    written.map_err(|error| Failure::of(format!("cluster {name} is as it was"), &error))?;
    let text = if open { "may begin" } else { "no longer begin" };
    let text = format!("new stores {text} on cluster {name}; those that are there stay\n");
    Ok(Answer::new(object!("cluster": name.as_str(), "open": open), text))
}

async fn remove(reach: &Reach, name: String) -> Result<Answer, Failure> {
    let name = named(&name)?;
    let removed = remove_cluster(&*reach.clusters, &name, &*reach.clock, reach.left()).await;
    let told = removed.map_err(|error| Failure::of(format!("cluster {name} was not removed"), &error))?;
    let mut text = format!("cluster {name} is no part of the index any more\n");
    if !told {
        text.push_str(
            "It did not answer, so it still says that it is: to use it in another index, delete its key `clusters`.\n",
        );
    }
    Ok(Answer::new(object!("cluster": name.as_str(), "told": told), text))
}

async fn check(reach: &Reach) -> Result<Answer, Failure> {
    let checked = check_clusters(&*reach.clusters, &*reach.clock, reach.left()).await;
    let report = checked.map_err(|error: Error| Failure::of("the clusters were not checked", &error))?;
    Ok(checked_answer(&report))
}

/// What a check has found, as an answer.
pub(super) fn checked_answer(report: &CheckReport) -> Answer {
    let silent: Vec<&str> = report.silent.iter().map(|(name, _)| name.as_str()).collect();
    let value = object!("brought_back": stores(&report.brought_back), "twice": stores(&report.twice), "silent": silent);
    let is_well = report.twice.is_empty() && report.silent.is_empty();
    let text = match is_well {
        true => format!(
            "{}every cluster was asked for its stores; new stores may begin\n",
            found(report)
        ),
        false => found(report),
    };
    let answer = Answer::new(value, text);
    if is_well { answer } else { answer.with_code(WRONG) }
}

fn stores(of: &[(tensorhold_core::StoreId, ClusterName)]) -> Vec<&str> {
    of.iter().map(|(store, _)| store.as_str()).collect()
}

/// What a check has found, in words.
pub(super) fn found(report: &CheckReport) -> String {
    let mut text = String::new();
    let mut line = |line: String| text.extend([line.as_str(), "\n"]);
    for (store, cluster) in &report.brought_back {
        line(format!(
            "store {} is on cluster {cluster}; the home knows it again",
            shown(store.as_str())
        ));
    }
    for (store, cluster) in &report.twice {
        line(format!(
            "store {} is there twice: cluster {cluster} has records of it that are not those of the store that the home knows. It \
             cannot be opened before the keys of one of the two are deleted and `tensorhold clusters check` has run",
            shown(store.as_str())
        ));
    }
    for (cluster, error) in &report.silent {
        line(format!(
            "cluster {cluster} could not be asked: {}. Until it was, no new store may begin: `tensorhold clusters check`",
            shown(error.message())
        ));
    }
    text
}
