//! Real clusters for tests: a real `mooncake_master`, real holders and real etcd nodes, on loopback.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use tensorhold_testkit::Cluster;
//!
//! let cluster = Cluster::builder().holders(2).etcd_nodes(3).start()?;
//! let endpoints = cluster.endpoints(); // what a client needs to know
//! cluster.holder(0).kill()?; //           SIGKILL, and it is gone when this returns
//! cluster.master(0).stop()?; //           SIGSTOP: alive, but answers nothing
//! cluster.master(0).resume()?;
//! cluster.holder(0).restart()?; //        same data, same ports, ready when this returns
//! # Ok(()) }
//! ```
//!
//! # What it guarantees
//!
//! * **Ready means ready.** `start` and `restart` return when the process answers, not when it was started. Each wait
//!   has a deadline and ends with an error that shows the log.
//! * **No process is left behind.** Dropping a cluster kills and reaps its processes. If the test process can no longer
//!   drop it (SIGKILL, abort), the kernel kills the children: see the module `spawner` for how.
//! * **Tests run side by side.** Each cluster has its own ports, held by file locks that other processes respect
//!   (module `ports`), and its own folder.
//! * **A failed test shows why.** When a test panics or a start fails, the tail of each process's log goes to
//!   standard error. With `TENSORHOLD_KEEP=1` in the environment the folder with the full logs stays.
//!   A test that *returns* an error does not panic: print [`Cluster::logs`] there, or use `expect`.
//!
//! There is one intended exception: [`DetachedCluster`] outlives the process that started it, until
//! [`DetachedCluster::down`]. `cargo xtask cluster up` is its front end.
//!
//! # Parts
//!
//! | module | its job |
//! |---|---|
//! | `cluster`, `builder` | the composition: which processes, with which flags, in which order |
//! | `etcd`, `disaster` | etcd alone, and its disasters: full, restored, replaced |
//! | `node` | one process that can be killed, stopped, resumed, restarted |
//! | `process`, `spawner` | a child that cannot outlive us |
//! | `site`, `ports`, `scratch` | where a cluster lives: folder, ports, launched processes |
//! | `figures`, `paired` | a master's counters; quantiles; ratios of sides that take turns |
//! | `install`, `http`, `sockets`, `wait` | where the binaries are; a GET; listeners; waiting with a deadline |

mod builder;
mod cluster;
mod detached;
mod disaster;
mod etcd;
mod figures;
mod holder;
mod http;
mod install;
mod master;
mod node;
mod paired;
mod ports;
mod process;
mod scratch;
mod site;
mod sockets;
mod spawner;
mod wait;

pub use builder::ClusterBuilder;
pub use cluster::{Cluster, Endpoints};
pub use detached::{DetachedCluster, RecordedProcess};
pub use disaster::Revisions;
pub use etcd::EtcdCluster;
pub use figures::{cpu_us, master_figure, own_cpu_us, quantile};
pub use install::Install;
pub use node::Node;
pub use paired::Paired;
pub use process::{Process, ProcessSpec};
pub use tensorhold_local::ProcessIdentity;
pub use wait::poll;

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
