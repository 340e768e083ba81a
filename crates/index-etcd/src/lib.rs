//! etcd under the index: [`EtcdKv`] is a [`Kv`](holdfast_index::kv::Kv) on a real etcd.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use holdfast_core::{Result, SystemClock};
//! use holdfast_index_etcd::{EtcdConfig, EtcdKv};
//!
//! # async fn example() -> Result<()> {
//! let mut config = EtcdConfig::new(["http://10.0.0.1:2379", "http://10.0.0.2:2379", "http://10.0.0.3:2379"]);
//! config.root = "holdfast".to_owned();
//! let kv = EtcdKv::open(config, Arc::new(SystemClock::new()), Duration::from_secs(10)).await?;
//! # Ok(()) }
//! ```
//!
//! # The story
//! `etcd-client` makes calls; recovery is ours. Its own balancing goes on picking a dead node, its watches do not resume
//! and its keep-alives do not move, so each endpoint gets a connection of its own here, and one `Pool` decides which is
//! used:
//!
//! ```text
//!            a try fails: refused, silent, no leader              a try fails there too
//!   node A ───────────────────────────────────────────▶ node B ──────────────────────────▶ node C ──▶ …
//!   (everybody's calls go to the current one; who fails at it moves it on, once, and tries again within its deadline)
//! ```
//!
//! Certificates and passwords are read when a connection is made, so what is rotated in files and variables is used from the
//! next connection on, and one that etcd no longer accepts leads to a new connection. A process that was let in before is
//! patient while the two sides of a rotation do not fit: it tries again until its caller's deadline.
//!
//! What may be tried again is decided in one place (`outcome`), by what the failure proves:
//!
//! | a try ended with | reads, watches, sessions | a transaction |
//! |---|---|---|
//! | no connection, or etcd said that it took nothing in | next node | next node |
//! | silence, a broken connection, "request timed out" | next node | **`Ambiguous`**, to the caller, at once |
//! | "database space exceeded" (NOSPACE) | to the caller, `Capacity` | **`Ambiguous`**, `Capacity`: done or not, a read tells |
//! | refusal (too large, no such session, not allowed) | to the caller | to the caller |
//!
//! # Invariants
//! - A transaction is sent a second time only if it is certain that the first was not and never will be applied.
//! - A session says that it is alive only while etcd cannot have ended it for want of a keep-alive: it counts from the
//!   moment at which the last successful one was *sent*, on our monotonic clock.
//! - A watch goes on from the version after the last that it told, or ends with an error. It never skips.
//! - A version is given out once, also over a restore: see `epoch`. An etcd that went back, or was replaced, is noticed
//!   (`history`) and refused until its operator has run the [`restore_guard`].
//! - Every wait is bounded by its caller's deadline, or by a setting of [`EtcdConfig`].
//! - Every task has an owner: a session's keeper ends with the session, the carrier of transactions with the last clone of
//!   its store; watches have no task.
//!
//! # What it needs of etcd
//! 3.5.8 or later (before, the progress that a watch is told could run ahead of its changes), a clock that is monotonic
//! and runs about as fast as ours, automatic compaction and a quota that suit the load.
//!
//! | module | its job |
//! |---|---|
//! | [`config`], [`secret`] | the settings, and passwords and keys in them |
//! | `pool`, `dial` | connections, and which one is used |
//! | `outcome` | what a failure proves |
//! | `history`, `epoch`, `guard` | whether it is still the etcd that we know; which history a version belongs to |
//! | `together`, `group` | which transactions are sent as one request |
//! | `convert` | our transactions in etcd's words, and back |
//! | `kv`, `session`, `watch` | the store, its sessions, its watches |

pub mod config;
mod convert;
mod dial;
mod epoch;
mod group;
mod guard;
mod history;
mod kv;
mod outcome;
mod pool;
pub mod secret;
mod session;
mod together;
mod watch;

pub use config::{EtcdConfig, TlsConfig};
pub use guard::restore_guard;
pub use kv::EtcdKv;
pub use secret::{Pem, Secret};
