//! Where a store is: what the clusters say of it, and going from one to the next until one says that it has it.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result};
use tensorhold_custody::Version;

use super::map::ClusterName;
use super::versions::Versions;
use super::{Away, Clusters, Here, MoveId, Why, decoded};
use crate::record::layout::Layout;
use crate::store::{Condition, Entry, MovableStore, Read, Transaction, Write};

pub(super) const OPERATION: &str = "index.follow";
/// The most clusters that are gone through to find a store: after a few moves the home says directly where it is.
const MOST_HOPS: usize = 8;
/// The most stays of a store on one cluster that are looked at.
const MOST_STAYS: usize = 1000;

/// Where a store is, as this process knows it.
#[derive(Clone, Debug)]
pub(super) struct Residence {
    /// Counts the places that this process has followed the store to.
    pub(super) number: u64,
    pub(super) cluster: ClusterName,
    pub(super) store: Arc<dyn MovableStore>,
    pub(super) stay: MoveId,
    pub(super) versions: Versions,
}

/// What a cluster says of a store.
pub(super) struct Said {
    pub(super) here: Option<Here>,
    pub(super) here_version: Option<Version>,
    /// What it says of each stay.
    away: Vec<(Entry, Away)>,
    pub(super) froze: Option<Version>,
}

impl Said {
    /// The last stay there.
    pub(super) fn stay(&self) -> MoveId {
        self.here.as_ref().map_or_else(MoveId::first, |here| here.by.clone())
    }

    /// The condition that no other stay has begun there.
    pub(super) fn is_last_stay(&self, layout: &Layout) -> Condition {
        match self.here_version {
            Some(version) => Condition::Unchanged(layout.here(), version),
            None => Condition::Absent(layout.here()),
        }
    }

    /// What it says of a stay, if the store cannot be written in it, and the version of that.
    pub(super) fn away(&self, layout: &Layout, stay: &MoveId) -> Option<(Away, Version)> {
        let key = layout.away(&stay.0);
        let found = self.away.iter().find(|(entry, _)| entry.key == key)?;
        Some((found.1.clone(), found.0.version))
    }
}

/// Asks a cluster where a store is.
pub(super) async fn ask(store: &dyn MovableStore, layout: &Layout, within: Duration) -> Result<Said> {
    let away = Read::Range {
        keys: layout.all_away(),
        limit: MOST_STAYS,
        keys_only: false,
    };
    let reads = [Read::Key(layout.here()), Read::Key(layout.froze()), away];
    let snapshot = store.read(&reads, within).await?;
    let mut entries = snapshot.entries.into_iter();
    let mut first = || entries.next().and_then(|entries| entries.into_iter().next());
    let (here, froze) = (first(), first());
    let away = entries.flatten().map(|entry| {
        let away = decoded(OPERATION, &entry)?;
        Ok((entry, away))
    });
    Ok(Said {
        away: away.collect::<Result<_>>()?,
        here_version: here.as_ref().map(|entry| entry.version),
        here: here.map(|entry| decoded(OPERATION, &entry)).transpose()?,
        froze: froze.map(|entry| entry.version),
    })
}

/// Finds a store, beginning at this cluster. Finishes a move that has been committed and not finished.
pub(super) async fn locate(
    clusters: &dyn Clusters,
    layout: &Layout,
    first: &ClusterName,
    clock: &dyn Clock,
    deadline: Deadline,
) -> Result<(Residence, Option<Version>)> {
    let mut cluster = first.clone();
    let mut committed: Option<MoveId> = None;
    for _ in 0..MOST_HOPS {
        let store = clusters.connect(&cluster, deadline.remaining(clock)).await?;
        let said = ask(&*store, layout, deadline.remaining(clock)).await?;
        let stay = said.stay();
        let key = layout.away(&stay.0);
        match said.away(layout, &stay) {
            Some((away, version)) if away.why == Why::Arriving && committed.as_ref() == Some(&stay) => {
                let arrived = Transaction {
                    conditions: vec![Condition::Unchanged(key.clone(), version)],
                    writes: vec![Write::Delete(key)],
                };
                // Rejected: another process was faster. An error: whoever comes next tries again.
                store.transact(&arrived, deadline.remaining(clock)).await?;
            }
            Some((away, _)) if away.why != Why::Freezing => {
                committed = (away.why == Why::Moved).then_some(away.by);
                cluster = away.to;
            }
            _ if committed.is_some() && said.here.is_none() => {
                let message = "the store was moved to this cluster, which does not have it: was the cluster restored to an \
                               earlier state?";
                let error = Error::new(ErrorKind::Corrupt, OPERATION, message);
                return Err(error.with("store", layout.root()).with("cluster", &cluster));
            }
            _ => {
                let residence = Residence {
                    number: 0,
                    cluster,
                    store,
                    stay,
                    versions: Versions::of(said.here.as_ref()),
                };
                return Ok((residence, said.froze));
            }
        }
    }
    let message =
        "the clusters point at each other, and none says that it has the store: is it being moved back and forth?";
    Err(Error::unavailable(OPERATION, message).with("store", layout.root()))
}

/// Whether a store is elsewhere. A frozen one is still there.
pub(super) fn has_left(away: Option<&Entry>) -> Result<bool> {
    let away: Option<Away> = away.map(|entry| decoded(OPERATION, entry)).transpose()?;
    Ok(away.is_some_and(|away| away.why != Why::Freezing))
}
