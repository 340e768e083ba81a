//! Which of several clusters a store is on. That is decided once, when the store begins, and never changes.
//!
//! An index may have more stores than one etcd cluster can carry. So it may have several clusters: one is its *home*,
//! which every process is told about and which holds the map of the others ([`ClusterMap`]). A store is on exactly one
//! cluster. A cluster that is closed to new stores empties as runs end.
//!
//! # Records
//! | key | where | value | what it says |
//! |---|---|---|---|
//! | `clusters` | home | [`ClusterMap`] | the other clusters, which are open, and the epoch of the home in which all of them were asked |
//! | `clusters` | any other cluster | `Member` | this etcd is that cluster of an index, and no home |
//! | `{store}/place` | home | `Place` | the store's cluster, and the store's id |
//! | `{store}/here` | the store's cluster, unless it is home | `Mark` | the store of this id is here |
//!
//! ```text
//!   no place ──one transaction at home──▶ place, no mark ──one transaction there──▶ place and mark ──▶ sessions
//!             no key of the store,                         no key of the store
//!             the map unchanged,
//!             the home's epoch unchanged
//! ```
//!
//! # Invariants
//! - PC1. A `place` is written once, by a transaction that requires that the home has no key of the store, and that the map and
//!   the epoch are as they were when the cluster was chosen. Nothing but the operator's check changes it.
//! - PC2. Every opening of a store reads its `place` at home. No cached map and no cached schema decides anything.
//! - PC3. A mark is written only where no key of the store is. So a store never begins on the samples of another one.
//! - PC4. Whoever finds a mark reads `place` again before the first session. So when a session is opened on a cluster, its mark
//!   was there before a reading of the home's `place`; a later check of that cluster sees it.
//! - PC5. The transaction that makes a session known requires that the mark (at home: `place`) is unchanged. Everything that
//!   a session writes requires the session. The few transactions that may create a key without a session require the
//!   mark, too.
//! - PC6. What is removed because no record names it is removed only after `place` and the mark were read again.
//!
//! # A home that was restored
//! A restored home may lack the `place` of stores that began after its snapshot. A new store of such a name would be live twice.
//! So the map names the epoch of the home for which it is verified, and in any other epoch no store begins
//! ([`check_clusters`]). Stores whose `place` is there are opened as always.
//!
//! ```text
//!                  the restore guard                    the check: every cluster has answered
//!   verified ───────────────────────────▶ unverified ──────────────────────────────────────────▶ verified
//!   (new stores begin)                    (none begins)   writes each missing `place`, with the id of the mark
//! ```
//!
//! | the home says | the cluster says | what it is | what is done |
//! |---|---|---|---|
//! | no `place` | a mark | the home was restored to before the store began | the check writes `place` |
//! | this cluster, this id | no key of the store | the store began and was not opened, or the cluster was restored to before that | the next opening writes the mark |
//! | this cluster, another id | a mark and nothing else | a process died between a `place` that is gone and its first session | the next opening replaces the mark |
//! | this cluster, another id | a mark, and records | two stores of one name | refused (`Corrupt`); the check names it |
//! | another cluster | a mark | two stores of one name | the check names it and writes so into `place`; from then on it is refused (`Corrupt`) |
//! | any | keys without a mark | records of another index, or of a store whose mark was deleted | refused (`Corrupt`) |
//!
//! The operator settles a store that is there twice by deleting the keys of one of the two; the next check finds it settled.
//! The clusters that the check asks are those of the restored map. One that was added after the snapshot must be added again
//! before the guard runs ([`add_cluster`] brings back the places of its stores).
//!
//! # What if
//! - *a process dies between `place` and the mark*: the next opening writes the mark.
//! - *a reply is lost, or a transaction lands late*: everything is read again; what lands late meets a key of the store, another
//!   map or another epoch.
//! - *a cluster is closed while a store begins*: the map has changed, and the store chooses again.
//! - *a cluster is removed while a store begins on it*: it must be closed first, so whatever chose it is written before the
//!   stores are listed.
//! - *another etcd answers at a cluster's address*: it has no `Member` of that name and id, and is refused.
//! - *a process sleeps past its session*: the place is the same when it wakes. If the home was restored meanwhile, PC5 refuses
//!   its next session and it reads the place again; if that is another one, its store must be opened again.
//! - *a cluster does not answer*: its own stores cannot be used, and nothing else depends on it, but the check.
//!
//! # Removing a store
//! Of a store at home one transaction deletes all keys, `place` with them, if it has no session ([`crate::forget`]): by PC5 a
//! process that knows the old `place` opens no session any more, and begins the store anew.
//!
//! Nothing removes the place of a store on another cluster today. Whatever will must first make openings refuse it (a field of
//! `Place`), then delete the store's keys on its cluster, the mark last, and then `place`: in any other order a death in between
//! leaves a store that is nowhere, or one that a check brings back.

mod admin;
mod locate;
mod map;
mod placed;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Result, Rng};

use crate::store::{Entry, TxnStore};

pub use self::admin::{
    CheckReport, StorePlace, add_cluster, check_clusters, close_cluster, is_home, remove_cluster, store_places,
};
pub use self::locate::NewStore;
pub use self::map::{ClusterAddress, ClusterMap, ClusterName, EPOCH_KEY, MAP_KEY, read_map};
pub use self::placed::PlacedStore;

/// The clusters of an index, as a process reaches them.
#[async_trait]
pub trait Clusters: Send + Sync + Debug {
    /// The cluster that every process is told about.
    fn home(&self) -> Arc<dyn TxnStore>;

    /// Connects to another one. A second call for the same address may return the same connection.
    async fn connect(&self, endpoints: &[String], within: Duration) -> Result<Arc<dyn TxnStore>>;
}

/// The value under `{store}/place`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    cluster: ClusterName,
    id: Id,
    /// Another cluster that has a store of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    also: Option<ClusterName>,
}

/// The value under `{store}/here`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    id: Id,
}

/// A random name, of a store or a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Id(String);

impl Id {
    fn new(rng: &dyn Rng) -> Self {
        Self(format!("{:016x}{:016x}", rng.next_u64(), rng.next_u64()))
    }
}

/// Whether the store of this `place` is at home, and there only.
pub(crate) fn is_at_home(operation: &'static str, place: &Entry) -> Result<bool> {
    let place: Place = decoded(operation, place)?;
    Ok(place.cluster == ClusterName::home() && place.also.is_none())
}

/// Decodes a record of this room. One that cannot be decoded says nothing of where the store is, so nothing is done.
fn decoded<T: for<'de> Deserialize<'de>>(operation: &'static str, entry: &Entry) -> Result<T> {
    serde_json::from_slice(&entry.value).map_err(|error| {
        let message = "the record of where stores are cannot be read: it was written by a newer Tensorhold, or is damaged; \
                       nothing is read or changed";
        let value = String::from_utf8_lossy(&entry.value).escape_debug().to_string();
        Error::new(ErrorKind::Corrupt, operation, message)
            .with("key", &entry.key)
            .with("value", value.chars().take(200).collect::<String>())
            .caused_by(error)
    })
}

fn encoded<T: Serialize>(operation: &'static str, value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::internal(operation, "the record of a place cannot be encoded").caused_by(error))
}
