//! The etcd back end of the index: [`EtcdStore`] implements [`TxnStore`](tensorhold_index::store::TxnStore) on a real etcd.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use tensorhold_core::{Result, SystemClock};
//! use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
//!
//! # async fn example() -> Result<()> {
//! let mut config = EtcdConfig::new(["http://10.0.0.1:2379", "http://10.0.0.2:2379", "http://10.0.0.3:2379"]);
//! config.root = "tensorhold".to_owned();
//! let txn_store = EtcdStore::open(config, Arc::new(SystemClock::new()), Duration::from_secs(10)).await?;
//! # Ok(()) }
//! ```
//!
//! # The story
//! `etcd-client` makes calls; recovery is Tensorhold's own. The balancing of `etcd-client` keeps picking a dead node, its
//! watches do not resume and its keep-alives do not move to another node. So each endpoint gets its own connection
//! here, and one `Pool` decides which one is used:
//!
//! ```text
//!            a try fails: refused, silent, no leader              a try fails there too
//!   node A ───────────────────────────────────────────▶ node B ──────────────────────────▶ node C ──▶ …
//!   (all calls go to the current node; one that fails there moves the pool on, once, and retries within its deadline)
//! ```
//!
//! Certificates and passwords are read whenever a connection is made. So credentials rotated in files and variables are
//! used from the next connection on, and a connection whose credentials etcd no longer accepts is replaced by a new
//! one. A process that etcd has admitted before is patient while the two sides of a rotation do not fit: it retries
//! until its caller's deadline.
//!
//! One module (`outcome`) decides what may be retried, by what the failure proves:
//!
//! | a try ended with | reads, watches, sessions | a transaction |
//! |---|---|---|
//! | no connection, or etcd said that it did not accept the request | next node | next node |
//! | silence, a broken connection, "request timed out" | next node | **`Ambiguous`**, to the caller, at once |
//! | "database space exceeded" (NOSPACE) | to the caller, `Capacity` | **`Ambiguous`**, `Capacity`: read back |
//! | refusal (too large, no such session, not allowed) | to the caller | to the caller |
//!
//! # Invariants
//! - A transaction is sent a second time only if it is certain that the first one was not applied and never will be.
//! - A session reports that it is alive only while etcd cannot have ended it for want of a keep-alive: the time to live
//!   counts from the moment at which the last successful keep-alive was *sent*, on the local monotonic clock.
//! - A watch resumes from the version after the last one that it delivered, or ends with an error. It never skips a
//!   version.
//! - A version is given out once, even across a restore: see `epoch`. An etcd that went back to an earlier state, or
//!   was replaced, is detected (`history`) and refused until its operator has run the [`restore_guard`].
//! - Every wait is bounded by its caller's deadline, or by a setting of [`EtcdConfig`].
//! - Every task has an owner: a session's keeper ends with the session, the flushers of transactions and of reads end with the
//!   last clone of their store; watches have no task.
//!
//! # What it needs of etcd
//! 3.5.8 or later (in earlier releases the progress that a watch reports could run ahead of its changes), a clock that
//! is monotonic and runs about as fast as ours, a quota that suits the load, and compaction, by itself or by a steward.
//!
//! | module | its job |
//! |---|---|
//! | [`config`], [`secret`] | the settings, and the passwords and keys in them |
//! | `pool`, `dial` | connections, and which one is used |
//! | `outcome` | what a failure proves |
//! | `history`, `epoch`, `guard` | whether this is still the same etcd; which history a version belongs to |
//! | `sharing`, `group_read` | calls of one process that share requests; reads |
//! | `group_commit`, `conflicts` | group commit: which transactions are sent as one request |
//! | `diagnosis` | what each node says of itself, for an operator |
//! | `convert` | translates our transactions to etcd's API, and its answers back |
//! | `store`, `session`, `watch` | the transactional store, its sessions, its watches |
//! | `clusters` | the etcds of an index with several |
//! | `storage`, `compaction` | how full etcd is; has it forget its past |

mod clusters;
mod compaction;
pub mod config;
mod conflicts;
mod convert;
mod diagnosis;
mod dial;
mod epoch;
mod group_commit;
mod group_read;
mod guard;
mod history;
mod outcome;
mod pool;
pub mod secret;
mod session;
mod sharing;
mod storage;
mod store;
mod watch;

pub use clusters::{EtcdClusters, open_store};
pub use compaction::{Compacted, Head, compact, has_other_keys, head};
pub use config::{EtcdConfig, TlsConfig};
pub use diagnosis::{NodeReport, NodeStatus, diagnose};
pub use guard::{Restored, restore_guard};
pub use secret::{Pem, Secret};
pub use storage::{Storage, defragment, storage};
pub use store::EtcdStore;

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
