//! The map of an index's clusters, and which of them a new store begins on.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Clock, Deadline, Digest, Error, Partition, Result, Retry, StoreId};
use tensorhold_custody::Version;

use super::{Id, decoded, encoded};
use crate::store::{Condition, Entry, Read, Transaction, TxnOutcome, TxnStore, Write};

const OPERATION: &str = "index.clusters";
/// The key of the map at home, relative to the index's root; at another cluster, of what that says of itself.
pub const MAP_KEY: &str = "clusters";
/// The key of the epoch, relative to the index's root. A cluster that cannot be restored has none.
pub const EPOCH_KEY: &str = "epoch";
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
    pub open: bool,
    /// What the cluster says of itself: another etcd at its addresses says something else.
    pub id: Id,
}

/// The clusters of an index besides its home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Whether new stores may begin at home.
    pub home: bool,
    /// The other clusters.
    pub clusters: BTreeMap<ClusterName, ClusterAddress>,
    /// The epoch of the home in which every store of the other clusters had its place there.
    epoch: String,
}

impl Default for ClusterMap {
    fn default() -> Self {
        Self {
            home: true,
            clusters: BTreeMap::new(),
            epoch: String::new(),
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

/// What another cluster than the home says of itself, under [`MAP_KEY`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Member {
    pub(super) member: ClusterName,
    pub(super) id: Id,
}

/// What is under [`MAP_KEY`].
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Role {
    Member(Member),
    Home(ClusterMap),
}

impl Role {
    pub(super) fn of(entry: Option<&Entry>) -> Result<Option<Self>> {
        entry.map(|entry| decoded(OPERATION, entry)).transpose()
    }
}

/// The map as the home had it at one moment, and the home's epoch then.
#[derive(Clone, Debug)]
pub(super) struct MapView {
    pub(super) map: ClusterMap,
    version: Option<Version>,
    epoch: Option<Entry>,
}

impl MapView {
    /// What it is read from, in this order.
    pub(super) fn reads() -> [Read; 2] {
        [MAP_KEY, EPOCH_KEY].map(|key| Read::Key(key.to_owned()))
    }

    /// `Invalid` if this is no home.
    pub(super) fn of(map: Option<Entry>, epoch: Option<Entry>) -> Result<Self> {
        let version = map.as_ref().map(|entry| entry.version);
        let map = match Role::of(map.as_ref())? {
            None => ClusterMap::default(),
            Some(Role::Home(map)) => map,
            Some(Role::Member(member)) => {
                let message = "this etcd is one of an index's other clusters: name the addresses of the index's home";
                return Err(Error::invalid(OPERATION, message).with("cluster", member.member));
            }
        };
        Ok(Self { map, version, epoch })
    }

    pub(super) async fn read(home: &dyn TxnStore, within: Duration) -> Result<Self> {
        let snapshot = home.read(&Self::reads(), within).await?;
        let mut entries = snapshot.entries.into_iter().map(|entries| entries.into_iter().next());
        let mut next = || entries.next().flatten();
        Self::of(next(), next())
    }

    /// The conditions that neither has changed.
    pub(super) fn unchanged(&self) -> [Condition; 2] {
        let of = |key: &str, version| match version {
            Some(version) => Condition::Unchanged(key.to_owned(), version),
            None => Condition::Absent(key.to_owned()),
        };
        let epoch = self.epoch.as_ref().map(|entry| entry.version);
        [of(MAP_KEY, self.version), of(EPOCH_KEY, epoch)]
    }

    /// Whether every store has its place, so that a name without one is free. An index without a map has no other cluster.
    pub(super) fn is_verified(&self) -> bool {
        self.version.is_none() || self.map.epoch == self.epoch()
    }

    /// The same map, verified for the home's present epoch.
    pub(super) fn verified(&self) -> ClusterMap {
        ClusterMap {
            epoch: self.epoch(),
            ..self.map.clone()
        }
    }

    fn epoch(&self) -> String {
        let value = self.epoch.as_ref().map_or(&[][..], |entry| &entry.value);
        Digest::of(value).to_string()
    }
}

/// The map of an index, as its home has it; none if the index has no other cluster.
///
/// # Errors
/// Those of the transactional store; `Corrupt` if the map cannot be read, `Invalid` if this is no home.
pub async fn read_map(home: &dyn TxnStore, within: Duration) -> Result<Option<ClusterMap>> {
    let view = MapView::read(home, within).await?;
    Ok(view.version.map(|_| view.map))
}

/// Changes the map, on condition that it and the epoch are as `change` saw them. A change that changes nothing writes nothing.
pub(super) async fn change_map(
    home: &dyn TxnStore,
    clock: &dyn Clock,
    deadline: Deadline,
    mut change: impl AsyncFnMut(&MapView) -> Result<ClusterMap>,
) -> Result<()> {
    loop {
        let view = MapView::read(home, deadline.remaining(clock)).await?;
        let mut map = change(&view).await?;
        if view.version.is_none() {
            map.epoch = view.epoch();
        }
        if view.version.is_some() && map == view.map {
            return Ok(());
        }
        let transaction = Transaction {
            conditions: view.unchanged().into(),
            writes: vec![Write::put(MAP_KEY, encoded(OPERATION, &map)?)],
        };
        match home.transact(&transaction, deadline.remaining(clock)).await {
            Ok(TxnOutcome::Committed(_)) => return Ok(()),
            // Another change was faster, or this one's reply was lost: the next round reads which.
            Ok(TxnOutcome::Rejected) => {}
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
            id: Id::default(),
        };
        ClusterMap {
            home: false,
            clusters: names
                .iter()
                .map(|name| (name.parse().expect("a name"), address.clone()))
                .collect(),
            epoch: String::new(),
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
