//! Which of several transactional stores (clusters) a store is on, following it when it is moved, and moving it.
//!
//! An index may have more stores than one etcd cluster can carry. So it may have several clusters: one is its *home*,
//! which every process is told about, and which holds the map of the others ([`ClusterMap`]). A store is on exactly one
//! cluster. Which one is decided when it is first opened, by rendezvous hashing over the map ([`place`]), and written down
//! at home. From then on nothing but the store's own cluster is asked: the home is read when a store is opened, and no
//! more.
//!
//! # States
//! A store's time on a cluster is a *stay*, named by the move that brought it there; the first one is `first`. These keys
//! under the store's root say where it is; each cluster that it is on, or was on, has its own:
//!
//! | key | value | what it says |
//! |---|---|---|
//! | `m/here` | `Here` | the last stay here, and how versions are read in it (`placement::versions`) |
//! | `m/away/{stay}` | `Away` | in this stay, the store cannot be written here, and why |
//! | `m/froze` | the move | changes with every freeze |
//! | `m/mover` | the move | a mover is at work (vanishes with its session) |
//!
//! A process asks about the stay that it knows: a store that has left and come back is in another one.
//!
//! ```text
//!                    the mover            freezes             commits
//!   source   (none) ───────────▶ (none) ─────────▶ freezing ─────────▶ moved ─ ─ ─ ▶ (its keys are deleted)
//!                                             ▲        │ the mover dies or gives up
//!                                             └────────┘
//!   target   (none or moved) ──▶ arriving ──── copies ────────────────▶ arriving ──▶ (none)
//!                                                                        any process that saw `moved` finishes it
//! ```
//!
//! # Invariants
//! - PL1. At every moment at most one cluster applies transactions of a store: each of them requires that there is no
//!   `m/away` of its stay. The commit of a move is one transaction, at the source.
//! - PL2. A read is valid if the cluster says at the same moment that the store is there, frozen or not.
//! - PL3. A key's version is the same before and after a move, and versions given out later are larger. So nothing above
//!   this room knows of moves: slots, tokens, generations, grant lists and conditions stay as they are.
//! - PL4. Sessions keep their ids and their keys. The mover makes them known at the target before it commits, and each
//!   process goes on keeping its own alive there.
//!
//! # What if
//! - *the mover dies*: before the commit, `freezing` vanishes with its session and the source goes on; what it has copied
//!   stays under `arriving`, where nobody reads it, and the next move to that cluster deletes it. After the commit, the
//!   first process that follows removes `arriving`; a second run of the move does the rest.
//! - *the reply to the commit is lost*: `m/away` of the stay at the source says how it ended.
//! - *a transaction was sent before the freeze and arrives after it*: it is refused by PL1, at the source, for ever. If
//!   its reply was lost, its slot tells the truth at the target, because versions and values of slots are copied.
//! - *a session is being opened*: it has no key yet by which the mover would take it along, so it is left behind, and ends
//!   when its process follows. [`crate::TxnIndex`] then opens another one.
//! - *a process sleeps through it*: its session has ended at the target, like that of any process that sleeps for longer
//!   than its time to live.
//! - *a process does not follow* (an earlier release, or one that opened the store before there was a map): the mover
//!   refuses to begin while such a process has a session. Releases that know nothing of maps refuse the index as a whole:
//!   its schema is raised with the first map.
//! - *a cluster was restored* to a state before a move: its operator runs the restore guard there, as always; a store
//!   that has gone on elsewhere stays there if the home still says so. A restored home may say that a store is where it
//!   no longer is: that cluster says where it went.

mod follow;
mod locate;
mod map;
mod mover;
mod session;
mod versions;
mod watch;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Result};

use crate::store::{Entry, MovableStore};

pub use self::follow::FollowingStore;
pub use self::map::{ClusterAddress, ClusterMap, ClusterName, MAP_KEY, place, prepare, read_map, write_map};
pub use self::mover::{Move, MoveReport, MoveStep, move_store};

/// Connects to clusters by their names.
#[async_trait]
pub trait Clusters: Send + Sync + Debug {
    /// The cluster of this name. A second call returns the same connection.
    async fn connect(&self, cluster: &ClusterName, within: Duration) -> Result<Arc<dyn MovableStore>>;

    /// The clusters that there are, the home first.
    async fn names(&self, within: Duration) -> Result<Vec<ClusterName>>;
}

/// The value under `m/here`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Here {
    /// The stay: the move that brought the store here, or the placement that began it here.
    by: MoveId,
    /// What is added to this cluster's versions.
    offset: u64,
    /// The largest version that may have been given out before the store came here.
    boundary: u64,
}

/// The value under `m/away/{stay}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Away {
    /// The move that says so: the stay that follows this one or, if it is arriving, this one.
    by: MoveId,
    why: Why,
    /// Where the store is to be looked for: the target of the move or, if it is arriving, the source.
    to: ClusterName,
}

/// Why a store cannot be written on a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Why {
    /// A mover copies the last of it; it is still there.
    Freezing,
    /// It has left.
    Moved,
    /// It is being copied here.
    Arriving,
}

/// One move, or the placement of a new store; random.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct MoveId(String);

impl MoveId {
    /// The stay of a store that no move and no placement has brought to where it is.
    fn first() -> Self {
        Self("first".to_owned())
    }

    fn new(rng: &dyn tensorhold_core::Rng) -> Self {
        Self(format!("{:016x}", rng.next_u64()))
    }
}

/// Decodes a record of this room. One that cannot be decoded says nothing of where the store is, so nothing is done.
fn decoded<T: for<'de> Deserialize<'de>>(operation: &'static str, entry: &Entry) -> Result<T> {
    serde_json::from_slice(&entry.value).map_err(|error| {
        let message = "the record of where this store is cannot be read: it was written by a newer Tensorhold, or is damaged; \
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
