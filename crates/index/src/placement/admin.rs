//! What an operator does with clusters: adding, closing, removing and checking them, and listing where stores are.
//!
//! Only [`add_cluster`] and [`check_clusters`] ask another cluster than the home, and [`remove_cluster`] when it has removed
//! one, to tell it. So a cluster that does not answer keeps nobody from closing or removing it, or another one.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry, Rng, StoreId};
use tensorhold_custody::Version;

use super::locate::{first_in, is_member, role};
use super::map::{ClusterAddress, ClusterMap, ClusterName, MAP_KEY, MapView, Member, Role, change_map};
use super::{Clusters, Id, Mark, Place, decoded, encoded};
use crate::ops::stores::stores;
use crate::record::layout::Layout;
use crate::store::{Condition, Read, Transaction, TxnOutcome, TxnStore, Write};

const OPERATION: &str = "index.clusters";
/// How many stores are listed at once, and their records read: both fit into one call.
const PART: usize = 100;
/// How long a check waits for one cluster, at most.
const ONE_CLUSTER: Duration = Duration::from_secs(10);

/// Whether this is the home of an index, and none of its other clusters.
///
/// # Errors
/// Those of the transactional store; `Corrupt` if what it says of itself cannot be read.
pub async fn is_home(txn_store: &dyn TxnStore, within: Duration) -> Result<bool> {
    Ok(!matches!(role(txn_store, within).await?.0, Some(Role::Member(_))))
}

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlace {
    /// The store.
    pub store: StoreId,
    /// Its cluster. None if the home has records of it and no place: it cannot be opened.
    pub cluster: Option<ClusterName>,
    /// Another cluster that has a store of this name: it cannot be opened.
    pub also: Option<ClusterName>,
}

/// What a check found and did.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Stores whose place was missing at home, and was brought back.
    pub brought_back: Vec<(StoreId, ClusterName)>,
    /// Stores of which this cluster has records that are not those of the store that the home knows.
    pub twice: Vec<(StoreId, ClusterName)>,
    /// Clusters that could not be asked, and why. No new store begins before they were.
    pub silent: Vec<(ClusterName, Error)>,
}

/// The stores of an index and the cluster of each, as the home says.
///
/// # Errors
/// Those of the transactional store; `Corrupt` if a record cannot be read.
pub async fn store_places(home: &dyn TxnStore, clock: &dyn Clock, within: Duration) -> Result<Vec<StorePlace>> {
    let deadline = Deadline::after(clock, within);
    let found = records::<Place>(home, Layout::place, clock, deadline).await?;
    let shown = found.into_iter().map(|(store, place)| {
        let (cluster, also) = place.map_or((None, None), |(place, _)| (Some(place.cluster), place.also));
        StorePlace { store, cluster, also }
    });
    Ok(shown.collect())
}

/// The stores that a cluster has keys of, each with its record under a key, if it has that.
async fn records<T: DeserializeOwned>(
    txn_store: &dyn TxnStore,
    key: impl Fn(&Layout) -> String,
    clock: &dyn Clock,
    deadline: Deadline,
) -> Result<Vec<(StoreId, Option<(T, Version)>)>> {
    let mut all: Vec<(StoreId, Option<(T, Version)>)> = Vec::new();
    loop {
        let from = all.last().map(|(store, _)| store);
        let part = stores(txn_store, from, PART, clock, deadline.remaining(clock)).await?;
        let reads: Vec<Read> = part.iter().map(|store| Read::Key(key(&Layout::new(store)))).collect();
        let is_last = part.len() < PART;
        if !reads.is_empty() {
            let snapshot = txn_store.read(&reads, deadline.remaining(clock)).await?;
            for (store, entries) in part.into_iter().zip(snapshot.entries) {
                let entry = entries.into_iter().next();
                let record = entry.map(|entry| Ok::<_, Error>((decoded(OPERATION, &entry)?, entry.version)));
                all.push((store, record.transpose()?));
            }
        }
        if is_last {
            return Ok(all);
        }
    }
}

/// Makes another etcd a cluster of the index, or gives one that is there other addresses. `again`: the home does not know any
/// more that it is one, or it does not know it itself, because one of them was restored or replaced.
///
/// # Errors
/// `Conflict` if the etcd and the home do not agree on whether it is that cluster; `Invalid` if it is a home, has stores of
/// another index or is to be called `home`; those of either etcd.
pub async fn add_cluster(
    clusters: &dyn Clusters,
    name: &ClusterName,
    endpoints: &[String],
    again: bool,
    clock: &dyn Clock,
    rng: &dyn Rng,
    within: Duration,
) -> Result<CheckReport> {
    let deadline = Deadline::after(clock, within);
    if *name == ClusterName::home() {
        return Err(Error::invalid(
            OPERATION,
            "the home is the etcd that every process is told about",
        ));
    }
    let home = clusters.home();
    let view = MapView::read(&*home, deadline.remaining(clock)).await?;
    let known = view.map.clusters.get(name).map(|address| &address.id);
    let there = clusters.connect(endpoints, deadline.remaining(clock)).await?;
    let disagree = |message: &str| {
        let error = Error::new(ErrorKind::Conflict, OPERATION, message);
        Err(error.with("cluster", name).with("endpoints", endpoints.join(" ")))
    };
    let proposed = Member {
        member: name.clone(),
        id: Id::new(rng),
    };
    let id = loop {
        match role(&*there, deadline.remaining(clock)).await?.0 {
            Some(Role::Home(_)) => {
                return Err(Error::invalid(OPERATION, "this etcd is the home of an index")
                    .with("endpoints", endpoints.join(" ")));
            }
            Some(Role::Member(member)) if member == proposed || known == Some(&member.id) => break member.id,
            Some(Role::Member(member)) if again && member.member == *name => break member.id,
            Some(Role::Member(_)) => {
                return disagree(
                    "this etcd says that it is a cluster of an index, and not this one of this index. If it was, before the home was \
                     restored: add it with the name that it had, and `--again`",
                );
            }
            None if known.is_some() && !again => {
                return disagree(
                    "the index has a cluster of this name, and this etcd does not say that it is that. If it was restored or \
                     replaced, so that what it had is lost: add it with `--again`",
                );
            }
            None => join(&*there, &proposed, again, clock, deadline).await?,
        }
    };
    let report = reconcile(&*home, name, &*there, clock, deadline).await?;
    change_map(&*home, clock, deadline, async |view: &MapView| {
        let mut map = view.map.clone();
        let open = map.clusters.get(name).is_none_or(|there| there.open);
        let address = ClusterAddress {
            endpoints: endpoints.to_vec(),
            open,
            id: id.clone(),
        };
        map.clusters.insert(name.clone(), address);
        Ok(map)
    })
    .await?;
    Ok(report)
}

/// Writes on an etcd that it is a cluster of an index. A home is refused, and unless it was one before, an etcd with stores.
async fn join(there: &dyn TxnStore, member: &Member, again: bool, clock: &dyn Clock, deadline: Deadline) -> Result<()> {
    let transaction = Transaction {
        conditions: vec![Condition::Absent(MAP_KEY.to_owned())],
        writes: vec![Write::put(MAP_KEY, encoded(OPERATION, member)?)],
    };
    match there.transact(&transaction, deadline.remaining(clock)).await {
        Ok(_) => {}
        Err(error) if error.retry() == Retry::Ambiguous && !deadline.passed(clock) => return Ok(()),
        Err(error) => return Err(error),
    }
    // After it was written: from now on no store begins on it as on a home.
    let found = records::<Place>(there, Layout::place, clock, deadline).await?;
    let Some((store, _)) = found.iter().find(|(_, place)| place.is_some() || !again) else {
        return Ok(());
    };
    leave(there, &member.id, deadline.remaining(clock)).await?;
    let message = "this etcd has stores already, of an index of its own: take another etcd, or another root";
    Err(Error::invalid(OPERATION, message).with("store", store))
}

/// Deletes from an etcd that it is a cluster of an index, if it is the one of this id.
async fn leave(there: &dyn TxnStore, id: &Id, within: Duration) -> Result<()> {
    let (role, version) = role(there, within).await?;
    let (Some(Role::Member(member)), Some(version)) = (role, version) else {
        return Ok(());
    };
    if member.id == *id {
        let transaction = Transaction {
            conditions: vec![Condition::Unchanged(MAP_KEY.to_owned(), version)],
            writes: vec![Write::Delete(MAP_KEY.to_owned())],
        };
        there.transact(&transaction, within).await?;
    }
    Ok(())
}

/// Lets new stores begin on a cluster, or no longer.
///
/// # Errors
/// `NotFound` if there is no such cluster; those of the home.
pub async fn close_cluster(
    home: &dyn TxnStore,
    name: &ClusterName,
    open: bool,
    clock: &dyn Clock,
    within: Duration,
) -> Result<()> {
    let deadline = Deadline::after(clock, within);
    change_map(home, clock, deadline, async |view: &MapView| {
        let mut map = view.map.clone();
        match map.clusters.get_mut(name) {
            Some(address) => address.open = open,
            None if *name == ClusterName::home() => map.home = open,
            None => return Err(missing(name)),
        }
        Ok(map)
    })
    .await
}

fn missing(name: &ClusterName) -> Error {
    Error::new(ErrorKind::NotFound, OPERATION, "the index has no cluster of this name").with("cluster", name)
}

/// Removes a cluster that is closed and that no store is on. Returns whether it was told: if it does not answer, it goes on
/// saying that it is a cluster of this index.
///
/// # Errors
/// `Conflict` if it is open, or a store is on it, or may be; `NotFound` if there is none; those of the home.
pub async fn remove_cluster(
    clusters: &dyn Clusters,
    name: &ClusterName,
    clock: &dyn Clock,
    within: Duration,
) -> Result<bool> {
    let deadline = Deadline::after(clock, within);
    let home = clusters.home();
    let mut removed = None;
    change_map(&*home, clock, deadline, async |view: &MapView| {
        let refuse = |message: &str| Error::new(ErrorKind::Conflict, OPERATION, message).with("cluster", name);
        let mut map = view.map.clone();
        let Some(address) = map.clusters.remove(name) else {
            // Unless it was this call, whose reply was lost.
            return removed.is_some().then_some(map).ok_or_else(|| missing(name));
        };
        if address.open {
            return Err(refuse("new stores may begin on this cluster: close it first"));
        }
        if !view.is_verified() {
            return Err(refuse(
                "the home was restored, and it is not known yet which stores are on this cluster: run `tensorhold clusters check`",
            ));
        }
        // A store that began on it did so before it was closed, so before this map was read.
        let places = records::<Place>(&*home, Layout::place, clock, deadline).await?;
        let is_on = |place: &Place| place.cluster == *name || place.also.as_ref() == Some(name);
        let on: Vec<&StoreId> = places
            .iter()
            .filter(|(_, place)| place.as_ref().is_some_and(|(place, _)| is_on(place)))
            .map(|(store, _)| store)
            .collect();
        if let Some(first) = on.first() {
            let error = refuse("stores are on this cluster; a store stays where it began");
            return Err(error.with("stores", on.len()).with("one_of_them", first));
        }
        removed = Some(address);
        Ok(map)
    })
    .await?;
    let Some(address) = removed else { return Ok(true) };
    let tell = async {
        let left = deadline.remaining(clock).min(ONE_CLUSTER);
        let there = clusters.connect(&address.endpoints, left).await?;
        leave(&*there, &address.id, left).await
    };
    let told = tell.await;
    if let Err(error) = &told {
        tracing::info!(cluster = %name, %error, "a cluster that was removed was not told");
    }
    Ok(told.is_ok())
}

/// After the home was restored: asks every other cluster for its stores and brings back their places. If all have answered, new
/// stores may begin. Harmless at any other time.
///
/// # Errors
/// Those of the home; `Conflict` if clusters were changed meanwhile.
pub async fn check_clusters(clusters: &dyn Clusters, clock: &dyn Clock, within: Duration) -> Result<CheckReport> {
    let deadline = Deadline::after(clock, within);
    let home = clusters.home();
    let view = MapView::read(&*home, deadline.remaining(clock)).await?;
    let mut report = CheckReport::default();
    for (name, address) in &view.map.clusters {
        // The home is asked afterwards, and must have time left.
        let until = Deadline::after(clock, ONE_CLUSTER.min(deadline.remaining(clock) / 2));
        let asked = async {
            let there = clusters.connect(&address.endpoints, until.remaining(clock)).await?;
            is_member(&*there, name, &address.id, until.remaining(clock)).await?;
            reconcile(&*home, name, &*there, clock, until).await
        };
        match asked.await {
            Ok(found) => {
                report.brought_back.extend(found.brought_back);
                report.twice.extend(found.twice);
            }
            Err(error) => report.silent.push((name.clone(), error)),
        }
    }
    if report.silent.is_empty() && !view.is_verified() {
        verify(&*home, &view, clock, deadline).await?;
    }
    Ok(report)
}

/// Writes that the map is verified, on condition that neither it nor the epoch has changed since before the check.
async fn verify(home: &dyn TxnStore, view: &MapView, clock: &dyn Clock, deadline: Deadline) -> Result<()> {
    let verified: ClusterMap = view.verified();
    let transaction = Transaction {
        conditions: view.unchanged().into(),
        writes: vec![Write::put(MAP_KEY, encoded(OPERATION, &verified)?)],
    };
    let sent = home.transact(&transaction, deadline.remaining(clock)).await;
    match sent {
        Ok(TxnOutcome::Committed(_)) => return Ok(()),
        Ok(TxnOutcome::Rejected) => {}
        Err(error) if error.retry() == Retry::Ambiguous && !deadline.passed(clock) => {}
        Err(error) => return Err(error),
    }
    if MapView::read(home, deadline.remaining(clock)).await?.is_verified() {
        return Ok(());
    }
    let message = "clusters were changed, or the home was restored once more, during the check: run it again";
    Err(Error::new(ErrorKind::Conflict, OPERATION, message))
}

/// Compares what a cluster says of its stores with what the home says, and brings back places that the home has lost.
async fn reconcile(
    home: &dyn TxnStore,
    name: &ClusterName,
    there: &dyn TxnStore,
    clock: &dyn Clock,
    deadline: Deadline,
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let marks = records::<Mark>(there, Layout::here, clock, deadline).await?;
    for (store, mark) in &marks {
        let layout = Layout::new(store);
        let own = Place {
            cluster: name.clone(),
            id: mark.as_ref().map(|(mark, _)| mark.id.clone()).unwrap_or_default(),
            also: None,
        };
        if mark.is_some() && bring_back(home, &layout, &own, clock, deadline).await? {
            report.brought_back.push((store.clone(), name.clone()));
            continue;
        }
        let [before, behind] = layout.all_but_the_mark();
        let at_home = place_of(home, &layout, clock, deadline).await?;
        let is_that = |place: &Place| mark.is_some() && place.cluster == own.cluster && place.id == own.id;
        let is_it = at_home.as_ref().is_some_and(|(place, _)| is_that(place));
        let has_keys = first_in(there, &before, deadline.remaining(clock)).await?.is_some()
            || first_in(there, &behind, deadline.remaining(clock)).await?.is_some();
        // A mark alone is of a process that died before the first session, under a place that is gone.
        let is_twice = !is_it && has_keys;
        if is_twice {
            report.twice.push((store.clone(), name.clone()));
        }
        settle(home, &layout, at_home, is_twice.then_some(name), name, clock, deadline).await?;
    }
    // Those that were there twice, and whose keys the operator has deleted here.
    for (store, place) in records::<Place>(home, Layout::place, clock, deadline).await? {
        let was_twice = place.as_ref().is_some_and(|(place, _)| place.also.is_some());
        if was_twice && !marks.iter().any(|(there, _)| *there == store) {
            settle(home, &Layout::new(&store), place, None, name, clock, deadline).await?;
        }
    }
    Ok(report)
}

/// Writes a store's place if the home has no key of the store. False if it has.
async fn bring_back(
    home: &dyn TxnStore,
    layout: &Layout,
    place: &Place,
    clock: &dyn Clock,
    deadline: Deadline,
) -> Result<bool> {
    if place_of(home, layout, clock, deadline).await?.is_some() {
        return Ok(false);
    }
    let transaction = Transaction {
        conditions: vec![Condition::NoneIn(layout.all())],
        writes: vec![Write::put(layout.place(), encoded(OPERATION, place)?)],
    };
    let done = home.transact(&transaction, deadline.remaining(clock)).await?;
    Ok(matches!(done, TxnOutcome::Committed(_)))
}

async fn place_of(
    home: &dyn TxnStore,
    layout: &Layout,
    clock: &dyn Clock,
    deadline: Deadline,
) -> Result<Option<(Place, Version)>> {
    let read = [Read::Key(layout.place())];
    let snapshot = home.read(&read, deadline.remaining(clock)).await?;
    let entry = snapshot.entries.into_iter().flatten().next();
    entry
        .map(|entry| Ok((decoded(OPERATION, &entry)?, entry.version)))
        .transpose()
}

/// Writes into a place whether this cluster has a store of that name, too.
async fn settle(
    home: &dyn TxnStore,
    layout: &Layout,
    at_home: Option<(Place, Version)>,
    also: Option<&ClusterName>,
    asked: &ClusterName,
    clock: &dyn Clock,
    deadline: Deadline,
) -> Result<()> {
    let Some((place, version)) = at_home else { return Ok(()) };
    let is_about_another = place.also.as_ref().is_some_and(|also| also != asked);
    if place.also.as_ref() == also || is_about_another {
        return Ok(());
    }
    let place = Place {
        also: also.cloned(),
        ..place
    };
    let transaction = Transaction {
        conditions: vec![Condition::Unchanged(layout.place(), version)],
        writes: vec![Write::put(layout.place(), encoded(OPERATION, &place)?)],
    };
    // Rejected: another check, which finds the same.
    home.transact(&transaction, deadline.remaining(clock)).await.map(drop)
}
