//! Finding a store, and beginning one that is not there yet.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry, Rng, StoreId};
use tensorhold_custody::Version;

use super::map::{ClusterName, MapView, Role};
use super::{Clusters, Id, Mark, Place, decoded, encoded};
use crate::record::layout::{Layout, after};
use crate::store::{Condition, Entry, Read, Transaction, TxnOutcome, TxnStore, Write};

pub(super) const OPERATION: &str = "index.place";
/// How often everything is read again, at most: each time another process has changed something in between.
const MOST_ROUNDS: usize = 32;

/// Whether a store that is not there yet may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewStore {
    /// It begins on the cluster that the map chooses.
    Begins,
    /// It is left alone, for a caller that only looks: `NotFound`.
    IsLeft,
}

/// What it takes to find a store.
#[derive(Clone, Debug)]
pub(super) struct Locator {
    pub(super) clusters: Arc<dyn Clusters>,
    pub(super) store: StoreId,
    pub(super) layout: Layout,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) rng: Arc<dyn Rng>,
}

/// A store that was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) txn_store: Arc<dyn TxnStore>,
    /// The condition that this is still where it is.
    pub(super) is_here: Condition,
}

/// What the home says, at one moment.
struct HomeView {
    view: MapView,
    place: Option<(Place, Version)>,
}

impl Locator {
    fn left(&self, deadline: Deadline) -> Duration {
        deadline.remaining(&*self.clock)
    }

    pub(super) fn error(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, OPERATION, message).with("store", self.layout.root())
    }

    /// Finds the store. See the invariants of [`super`].
    pub(super) async fn locate(&self, new: NewStore, deadline: Deadline) -> Result<Found> {
        let home = self.clusters.home();
        for _ in 0..MOST_ROUNDS {
            let seen = self.look(&*home, deadline).await?;
            let Some((place, version)) = seen.place else {
                if new == NewStore::IsLeft {
                    return Err(self.error(ErrorKind::NotFound, "there is no store of this name"));
                }
                self.begin(&*home, &seen.view, deadline).await?;
                continue;
            };
            if let Some(also) = &place.also {
                let message = "two clusters have a store of this name: delete the keys of one of them, and run `tensorhold \
                               clusters check`";
                let error = self.error(ErrorKind::Corrupt, message).with("also", also);
                return Err(error.with("cluster", &place.cluster));
            }
            if place.cluster == ClusterName::home() {
                let is_here = Condition::Unchanged(self.layout.place(), version);
                let txn_store = home;
                return Ok(Found {
                    place,
                    txn_store,
                    is_here,
                });
            }
            let txn_store = self.connect(&seen.view, &place.cluster, deadline).await?;
            let Some(version) = self.mark(&*txn_store, &place, deadline).await? else {
                continue;
            };
            // PC4: the home may have been restored, and the cluster checked, before the mark was there.
            let again = self.look(&*home, deadline).await?;
            if again.place.is_some_and(|(again, _)| again == place) {
                let is_here = Condition::Unchanged(self.layout.here(), version);
                return Ok(Found {
                    place,
                    txn_store,
                    is_here,
                });
            }
        }
        let message = "where this store is changes all the time: are several checks or changes of clusters running?";
        Err(self.error(ErrorKind::Unavailable, message))
    }

    /// `Ok` if the store is at `place` now, as the home and the store's cluster say.
    pub(super) async fn confirm(&self, place: &Place, txn_store: &dyn TxnStore, deadline: Deadline) -> Result<()> {
        let home = self.clusters.home();
        let seen = self.look(&*home, deadline).await?;
        let is_same = seen.place.is_some_and(|(seen, _)| seen == *place);
        if is_same && self.marked(place, txn_store, self.left(deadline)).await?.is_some() {
            return Ok(());
        }
        let message = "the records of where this store is do not say that it is here: open it again; if that is refused, run \
                       `tensorhold clusters check`";
        Err(self.error(ErrorKind::Conflict, message).with("cluster", &place.cluster))
    }

    /// The condition that the store is there, if it is. At home its `place` is its mark.
    pub(super) async fn marked(
        &self,
        place: &Place,
        txn_store: &dyn TxnStore,
        within: Duration,
    ) -> Result<Option<Condition>> {
        let key = match place.cluster == ClusterName::home() {
            true => self.layout.place(),
            false => self.layout.here(),
        };
        let snapshot = txn_store.read(&[Read::Key(key.clone())], within).await?;
        let Some(entry) = snapshot.entries.into_iter().flatten().next() else {
            return Ok(None);
        };
        let mark: Mark = decoded(OPERATION, &entry)?;
        Ok((mark.id == place.id).then_some(Condition::Unchanged(key, entry.version)))
    }

    async fn look(&self, home: &dyn TxnStore, deadline: Deadline) -> Result<HomeView> {
        let [map, epoch] = MapView::reads();
        let reads = [map, epoch, Read::Key(self.layout.place())];
        let snapshot = home.read(&reads, self.left(deadline)).await?;
        let mut entries = snapshot.entries.into_iter().map(|entries| entries.into_iter().next());
        let mut next = || entries.next().flatten();
        let view = MapView::of(next(), next())?;
        let place = next().map(|entry| Ok::<_, Error>((decoded(OPERATION, &entry)?, entry.version)));
        Ok(HomeView {
            view,
            place: place.transpose()?,
        })
    }

    /// Writes the place of a store that has none. Afterwards the home says where it is, whoever has written that.
    async fn begin(&self, home: &dyn TxnStore, view: &MapView, deadline: Deadline) -> Result<()> {
        if !view.is_verified() {
            let message = "the home of this index was restored, and it is not known yet which stores are on its other clusters: \
                           no new store begins before `tensorhold clusters check` has succeeded";
            // An operator must do something: whoever opens a session does not try until its deadline.
            return Err(self.error(ErrorKind::Unavailable, message).with_retry(Retry::Never));
        }
        let keys = self.layout.all();
        if let Some(key) = first_in(home, &keys, self.left(deadline)).await? {
            // Unless it began just now.
            if self.look(home, deadline).await?.place.is_some() {
                return Ok(());
            }
            return Err(self.unmarked(&ClusterName::home(), key));
        }
        let place = Place {
            cluster: view.map.choose(&self.store),
            id: Id::new(&*self.rng),
            also: None,
        };
        let transaction = Transaction {
            conditions: [Condition::NoneIn(keys)].into_iter().chain(view.unchanged()).collect(),
            writes: vec![Write::put(self.layout.place(), encoded(OPERATION, &place)?)],
        };
        self.send(home, &transaction, deadline).await
    }

    async fn connect(&self, view: &MapView, cluster: &ClusterName, deadline: Deadline) -> Result<Arc<dyn TxnStore>> {
        let address = view.map.clusters.get(cluster).ok_or_else(|| {
            let message =
                "the index has lost the cluster that this store is on: add it again with `tensorhold clusters add`";
            self.error(ErrorKind::Unavailable, message)
                .with_retry(Retry::Never)
                .with("cluster", cluster)
        })?;
        let txn_store = self.clusters.connect(&address.endpoints, self.left(deadline)).await?;
        is_member(&*txn_store, cluster, &address.id, self.left(deadline)).await?;
        Ok(txn_store)
    }

    /// The version of the store's mark on its cluster. None if it was written now.
    async fn mark(&self, there: &dyn TxnStore, place: &Place, deadline: Deadline) -> Result<Option<Version>> {
        let here = self.layout.here();
        let snapshot = there.read(&[Read::Key(here.clone())], self.left(deadline)).await?;
        let found = snapshot.entries.into_iter().flatten().next();
        let conditions = match &found {
            Some(entry) => {
                let mark: Mark = decoded(OPERATION, entry)?;
                if mark.id == place.id {
                    return Ok(Some(entry.version));
                }
                // It may be that of a process that died before the store had anything else.
                let others = self.layout.all_but_the_mark();
                for keys in &others {
                    if let Some(key) = first_in(there, keys, self.left(deadline)).await? {
                        return Err(self.unmarked(&place.cluster, key));
                    }
                }
                let [before, behind] = others.map(Condition::NoneIn);
                vec![Condition::Unchanged(here.clone(), entry.version), before, behind]
            }
            None => {
                let keys = self.layout.all();
                match first_in(there, &keys, self.left(deadline)).await? {
                    Some(key) if key != here => return Err(self.unmarked(&place.cluster, key)),
                    Some(_) => return Ok(None),
                    None => vec![Condition::NoneIn(keys)],
                }
            }
        };
        let mark = Mark { id: place.id.clone() };
        let transaction = Transaction {
            conditions,
            writes: vec![Write::put(here, encoded(OPERATION, &mark)?)],
        };
        self.send(there, &transaction, deadline).await?;
        Ok(None)
    }

    fn unmarked(&self, cluster: &ClusterName, key: String) -> Error {
        let message = "this cluster has records under the store's name that are not this store's: they are of another index, or \
                       of a store whose place was lost. Nothing is read or changed: run `tensorhold clusters check`, or use \
                       another name";
        self.error(ErrorKind::Corrupt, message)
            .with("cluster", cluster)
            .with("key", key)
    }

    /// Sends a transaction whose outcome the next reading shows.
    async fn send(&self, txn_store: &dyn TxnStore, transaction: &Transaction, deadline: Deadline) -> Result<()> {
        match txn_store.transact(transaction, self.left(deadline)).await {
            Ok(TxnOutcome::Committed(_) | TxnOutcome::Rejected) => Ok(()),
            Err(error) if error.retry() == Retry::Ambiguous && !deadline.passed(&*self.clock) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// `Ok` if this is that cluster of the index, as it says itself.
pub(super) async fn is_member(
    txn_store: &dyn TxnStore,
    cluster: &ClusterName,
    id: &Id,
    within: Duration,
) -> Result<()> {
    let role = role(txn_store, within).await?.0;
    match role {
        Some(Role::Member(member)) if member.member == *cluster && member.id == *id => Ok(()),
        _ => {
            let message = "another etcd than that cluster answers at its addresses: if it was restored or replaced, add it again \
                           with `tensorhold clusters add --again`";
            Err(Error::new(ErrorKind::Conflict, OPERATION, message).with("cluster", cluster))
        }
    }
}

/// What a cluster says of itself, and the version of that.
pub(super) async fn role(txn_store: &dyn TxnStore, within: Duration) -> Result<(Option<Role>, Option<Version>)> {
    let [map, _] = MapView::reads();
    let entry: Option<Entry> = txn_store
        .read(&[map], within)
        .await?
        .entries
        .into_iter()
        .flatten()
        .next();
    Ok((Role::of(entry.as_ref())?, entry.map(|entry| entry.version)))
}

/// The first key of a range.
pub(super) async fn first_in(
    txn_store: &dyn TxnStore,
    keys: &std::ops::Range<String>,
    within: Duration,
) -> Result<Option<String>> {
    let read = Read::Range {
        keys: keys.clone(),
        limit: 1,
        keys_only: true,
    };
    let snapshot = txn_store.read(&[read], within).await?;
    Ok(snapshot.entries.into_iter().flatten().next().map(|entry| entry.key))
}

impl Layout {
    /// The keys of the store before its mark, and behind it.
    pub(super) fn all_but_the_mark(&self) -> [std::ops::Range<String>; 2] {
        let (all, here) = (self.all(), self.here());
        [all.start..here.clone(), after(&here)..all.end]
    }
}
