//! The map of an index's clusters, and which of them a new store begins on.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Clock, Deadline, Digest, Error, ErrorKind, Partition, Result, Retry, Rng, StoreId};
use tensorhold_custody::Version;

use super::locate::ask;
use super::{Away, Clusters, Here, MoveId, Why, decoded, encoded};
use crate::record::layout::Layout;
use crate::record::schema;
use crate::store::{Condition, MovableStore, Read, Transaction, TxnOutcome, TxnStore, Write};

const OPERATION: &str = "index.place";
/// The key of the map at home, relative to the index's root.
pub const MAP_KEY: &str = "clusters";
/// The longest name of a cluster.
const LONGEST_NAME: usize = 40;

/// The name of a cluster: small letters, digits and hyphens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterName(String);

impl ClusterName {
    /// The cluster that every process is told about.
    pub fn home() -> Self {
        Self("home".to_owned())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ClusterName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_usual = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
        if text.is_empty() || text.len() > LONGEST_NAME || !text.chars().all(is_usual) {
            let message = "the name of a cluster is up to 40 small letters, digits and hyphens";
            return Err(Error::invalid(OPERATION, message).with("name", text.escape_debug()));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for ClusterName {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ClusterName> for String {
    fn from(name: ClusterName) -> Self {
        name.0
    }
}

/// How to reach a cluster. Everything else (login, certificates, root) is as at home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterAddress {
    /// The addresses of its nodes.
    pub endpoints: Vec<String>,
    /// Whether new stores may begin on it.
    #[serde(default = "yes")]
    pub open: bool,
}

fn yes() -> bool {
    true
}

/// The clusters of an index besides its home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Whether new stores may begin at home.
    #[serde(default = "yes")]
    pub home: bool,
    /// The other clusters.
    #[serde(default)]
    pub clusters: BTreeMap<ClusterName, ClusterAddress>,
}

impl Default for ClusterMap {
    fn default() -> Self {
        Self {
            home: true,
            clusters: BTreeMap::new(),
        }
    }
}

impl ClusterMap {
    /// The cluster for a new store: of all that are open, the one whose hash with the store's name is the largest
    /// (rendezvous hashing). A cluster that is added takes over its share of new stores, and changes no other choice but those
    /// of partitions.
    /// The home, if none is open.
    ///
    /// The partitions of a store go round the clusters, in the order of those hashes for the whole store: their number on one
    /// cluster differs by one at most from that on another if the map was the same for all of them, which hashes of their own
    /// would not see to.
    pub fn choose(&self, store: &StoreId) -> ClusterName {
        let home = self.home.then(ClusterName::home);
        let others = self.clusters.iter().filter(|(_, address)| address.open);
        let mut open: Vec<ClusterName> = home.into_iter().chain(others.map(|(name, _)| name.clone())).collect();
        let partition = Partition::named(store);
        let (whole, number) = partition.as_ref().map_or((store, 0), |one| (one.whole(), one.number()));
        open.sort_by_cached_key(|cluster| Reverse(Digest::of(format!("{cluster}\n{whole}").as_bytes())));
        let turn = usize::try_from(number).unwrap_or_default() % open.len().max(1);
        open.into_iter().nth(turn).unwrap_or_else(ClusterName::home)
    }
}

/// The map of an index, as its home has it; none if the index has no other cluster.
///
/// # Errors
/// Those of the transactional store; `Corrupt` if the map cannot be read.
pub async fn read_map(home: &dyn TxnStore, within: Duration) -> Result<Option<ClusterMap>> {
    Ok(read_versioned(home, within).await?.map(|(map, _)| map))
}

async fn read_versioned(home: &dyn TxnStore, within: Duration) -> Result<Option<(ClusterMap, Version)>> {
    let snapshot = home.read(&[Read::Key(MAP_KEY.to_owned())], within).await?;
    let entry = snapshot.entries.into_iter().flatten().next();
    entry
        .map(|entry| Ok((decoded(OPERATION, &entry)?, entry.version)))
        .transpose()
}

/// Changes the map. With the first one, the index's schema is raised, so that releases that know nothing of maps refuse
/// it. Returns the map as it is now.
///
/// # Errors
/// Those of the transactional store, and of `change`.
pub async fn write_map(
    home: &dyn TxnStore,
    clock: &dyn Clock,
    within: Duration,
    change: impl Fn(&mut ClusterMap) -> Result<()> + Send + Sync,
) -> Result<ClusterMap> {
    let deadline = Deadline::after(clock, within);
    loop {
        let found = read_versioned(home, deadline.remaining(clock)).await?;
        let unchanged = match &found {
            Some((_, version)) => Condition::Unchanged(MAP_KEY.to_owned(), *version),
            None => Condition::Absent(MAP_KEY.to_owned()),
        };
        let before = found.map(|(map, _)| map);
        let mut map = before.clone().unwrap_or_default();
        change(&mut map)?;
        if before.as_ref() == Some(&map) {
            return Ok(map);
        }
        let writes = vec![
            Write::put(MAP_KEY, encoded(OPERATION, &map)?),
            Write::put(schema::KEY, schema::WITH_CLUSTERS.to_string()),
        ];
        let transaction = Transaction {
            conditions: vec![unchanged],
            writes,
        };
        match home.transact(&transaction, deadline.remaining(clock)).await {
            Ok(TxnOutcome::Committed(_)) => return Ok(map),
            // Another change was faster, or this one's reply was lost: the next round reads which.
            Ok(TxnOutcome::Rejected) => {}
            Err(error) if error.retry() == Retry::Ambiguous && !deadline.passed(clock) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Prepares an etcd to be a cluster of an index: releases that know nothing of clusters refuse it from now on.
///
/// # Errors
/// Those of the transactional store.
pub async fn prepare(cluster: &dyn TxnStore, within: Duration) -> Result<()> {
    let transaction = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::put(schema::KEY, schema::WITH_CLUSTERS.to_string())],
    };
    cluster.transact(&transaction, within).await.map(drop)
}

/// Makes sure that a store has a place: a new one gets the cluster that the map chooses. Afterwards it is found by
/// following it from home.
///
/// # Errors
/// Those of the clusters.
pub async fn place(
    clusters: &dyn Clusters,
    map: &ClusterMap,
    store: &StoreId,
    clock: &dyn Clock,
    rng: &dyn Rng,
    within: Duration,
) -> Result<()> {
    let deadline = Deadline::after(clock, within);
    let layout = Layout::new(store);
    let home = clusters
        .connect(&ClusterName::home(), deadline.remaining(clock))
        .await?;
    let chosen = map.choose(store);
    loop {
        let any = Read::Range {
            keys: layout.all(),
            limit: 1,
            keys_only: true,
        };
        let snapshot = home.read(&[any], deadline.remaining(clock)).await?;
        let is_new = snapshot.entries.into_iter().flatten().next().is_none();
        if !is_new || chosen == ClusterName::home() {
            return Ok(());
        }
        let cluster = clusters.connect(&chosen, deadline.remaining(clock)).await?;
        let by = begin(&*cluster, &layout, &chosen, clock, rng, deadline).await?;
        let away = Away {
            by,
            why: Why::Moved,
            to: chosen.clone(),
        };
        let transaction = Transaction {
            conditions: vec![Condition::NoneIn(layout.all())],
            writes: vec![Write::put(layout.away(&MoveId::first().0), encoded(OPERATION, &away)?)],
        };
        match home.transact(&transaction, deadline.remaining(clock)).await {
            Ok(_) => {}
            Err(error) if error.retry() == Retry::Ambiguous && !deadline.passed(clock) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Lets a new store begin on a cluster. Two processes that do so at the same time agree on how it began.
async fn begin(
    cluster: &dyn MovableStore,
    layout: &Layout,
    name: &ClusterName,
    clock: &dyn Clock,
    rng: &dyn Rng,
    deadline: Deadline,
) -> Result<MoveId> {
    loop {
        let said = ask(cluster, layout, deadline.remaining(clock)).await?;
        match (said.away(layout, &said.stay()), said.here) {
            (None, Some(here)) => return Ok(here.by),
            (None, None) => {}
            (Some((away, _)), _) => {
                let message = "this cluster says that the store is elsewhere, and the home knows no store of this name: \
                               was the home restored to an earlier state?";
                return Err(Error::new(ErrorKind::Conflict, OPERATION, message)
                    .with("cluster", name)
                    .with("elsewhere", away.to));
            }
        }
        let here = Here {
            by: MoveId::new(rng),
            offset: 0,
            boundary: 0,
        };
        let transaction = Transaction {
            conditions: vec![Condition::Absent(layout.here())],
            writes: vec![Write::put(layout.here(), encoded(OPERATION, &here)?)],
        };
        match cluster.transact(&transaction, deadline.remaining(clock)).await {
            Ok(_) => {}
            Err(error) if error.retry() == Retry::Ambiguous && !deadline.passed(clock) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(names: &[&str]) -> ClusterMap {
        let address = ClusterAddress {
            endpoints: Vec::new(),
            open: true,
        };
        ClusterMap {
            home: false,
            clusters: names
                .iter()
                .map(|name| (name.parse().expect("a name"), address.clone()))
                .collect(),
        }
    }

    #[test]
    fn stores_are_spread_evenly_and_a_new_cluster_takes_only_its_share() {
        let (four, five) = (map(&["a", "b", "c", "d"]), map(&["a", "b", "c", "d", "e"]));
        let mut counts: BTreeMap<ClusterName, usize> = BTreeMap::new();
        let mut others = 0;
        for number in 0..4000 {
            let store = StoreId::new(format!("store {number}")).expect("a name");
            let (before, now) = (four.choose(&store), five.choose(&store));
            *counts.entry(now.clone()).or_default() += 1;
            others += usize::from(before != now && now.as_str() != "e");
        }
        assert_eq!(others, 0, "no choice changes between the clusters that were there");
        assert!(
            counts.len() == 5 && counts.values().all(|count| (700..900).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn the_partitions_of_a_store_go_round_the_clusters() {
        let clusters = map(&["a", "b", "c"]);
        for whole in ["train", "eagle/draft", "run.7"] {
            let mut counts: BTreeMap<ClusterName, usize> = BTreeMap::new();
            let whole = StoreId::new(whole).expect("a name");
            for partition in Partition::all(&whole, 6).expect("partitions") {
                let chosen = clusters.choose(&partition.store().expect("a name"));
                *counts.entry(chosen).or_default() += 1;
            }
            assert_eq!(counts.into_values().collect::<Vec<_>>(), [2, 2, 2], "{whole}");
        }
    }

    #[test]
    fn a_choice_is_the_same_in_every_release() {
        let chosen = ["run-1", "run-2", "run-3", "eagle/draft"].map(|store| {
            let store = StoreId::new(store).expect("a name");
            map(&["a", "b", "c"]).choose(&store).to_string()
        });
        assert_eq!(chosen, ["a", "a", "c", "a"]);
    }

    #[test]
    fn a_cluster_that_is_closed_gets_no_new_store() {
        let mut all = map(&["a", "b"]);
        all.clusters.values_mut().for_each(|address| address.open = false);
        let store = StoreId::new("s").expect("a name");
        assert_eq!(all.choose(&store), ClusterName::home());
        for name in ["", "A", "a b", "a/b", &"x".repeat(41)] {
            name.parse::<ClusterName>().expect_err("no name of a cluster");
        }
    }
}
