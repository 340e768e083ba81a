//! The feature store: samples of tensors, in custody from the put until no consumer needs them.
//!
//! [`FeatureStore`] joins an engine, which moves and keeps bytes (crate `holdfast-engine`), and an index, which records
//! which session holds which sample (crate `holdfast-index`). A producer puts a sample. Each group of consumers takes
//! it, gets its tensors and acknowledges it. When the last group has acknowledged, its bytes are gone within
//! milliseconds. If a process dies in between, the next sweep of any process clears up after it.
//!
//! ```text
//! producer                        index                    engine                     consumer
//! put ──── reserve (bytes, plan) ──▶ Reserved
//!     ──── one batched put ────────────────────────────────▶ objects
//!     ──── commit (description) ───▶ Live ──────────────────────────── lease_next ──── Lease
//!                                                           objects ── get ──────────▶ tensors, checked
//!                                    Live ◀───────────────────────────  "still mine?"
//!                                    Retired ◀──────────────────────── ack
//!     worker of retiring process   ─── remove ─────────────▶ gone
//!                                  ─── freed ──▶ (nothing)
//! ```
//!
//! # What it promises
//! - FS1: a get returns exactly the committed bytes, or an error and no bytes. Lengths and checksums (or the
//!   seal) are those of the description; without checksums and seal, the lease held after the last byte had moved.
//! - FS2: a sample is visible as a whole or not at all. The description is written last, in one transaction with the
//!   record.
//! - FS3: no key is ever written twice. The plan is recorded before the first byte moves, so the sweeper that clears up
//!   after a dead writer knows every key that the writer may have written.
//! - FS4: objects are removed only when no reader is left and no commit can follow (FR1 in `free`). They stay recorded
//!   as "to be removed" until every one of them is seen to be gone.
//! - FS5: memory is not reused while the engine may touch it, whatever the caller has been told (module `guarded_span`).
//! - FS6: in a store that was opened with keys, all bytes that leave this process are sealed, and only bytes that were
//!   sealed for this place are accepted (module `sealed`).
//!
//! # What if…
//! - *…the producer dies half-way?* Its session ends. A sweep gives up its reservation and removes the objects that the
//!   plan names.
//! - *…the reply to a commit is lost?* Nothing is removed until it is known that the commit was not applied and never
//!   will be. If that cannot be found out in time, the error says so and a sweep settles it.
//! - *…an engine call outlives its deadline?* The sample stays reserved until the engine has let go of the memory. Only
//!   then are its objects removed, so none can appear afterwards.
//! - *…a consumer dies?* Its lease ends, and the sample goes to another consumer of its group.
//! - *…a caller leaves (cancelled, timed out, Ctrl-C)?* Waits end. A put that is not committed yet is undone; a
//!   committed one stands. A lease that did not reach its caller goes back as if it had never been taken. An
//!   announcement is given up.
//! - *…a later release has put a sample that this release cannot read?* It is not taken, and stays for consumers of
//!   that release.
//! - *…this process was cut off, and its session ended?* Everything it held is fenced. New operations open a new
//!   session.
//! - *…the engine does not have a sample's bytes?* A get says so (`Unavailable`). The sample is declared lost only when
//!   the bytes were missing at every look for `loss_grace`, because holders may register late (module `loss`).
//! - *…the same thing is done twice?* Removing, freeing and sweeping are idempotent. A second put of a sample is a new
//!   generation, which replaces the first when it commits.
//! - *…every process that knew of a late object died?* A process that is stopped for longer than its session lives,
//!   goes on writing, and is killed before it notices that it was fenced leaves objects that no record names. Only a
//!   comparison of the engine's list with the index finds those.
//!
//! # Example
//! ```
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use holdfast_core::{DType, SystemClock, SystemRng, TensorSpec};
//! # use holdfast_engine::{MemoryCluster, MemoryConfig};
//! # use holdfast_index::store::memory::MemoryStore;
//! # use holdfast_index::{IndexConfig, TxnIndex};
//! use holdfast_features::{FeatureConfig, FeatureStore, GroupName, Publication, PutItem, TensorIn, Wanted};
//!
//! # #[tokio::main]
//! # async fn main() -> holdfast_core::Result<()> {
//! # let clock = Arc::new(SystemClock::new());
//! # let engine = MemoryCluster::new(MemoryConfig::default(), clock.clone()).connect();
//! # let txn_store = Arc::new(MemoryStore::new(clock.clone()));
//! # let config = FeatureConfig::new("eagle".parse()?);
//! # let index = Arc::new(TxnIndex::new(txn_store, &config.store, IndexConfig::default(), clock.clone(), Arc::new(SystemRng)));
//! let second = Duration::from_secs(1);
//! let store = FeatureStore::open(engine, index, config, clock, Arc::new(SystemRng)).await?;
//!
//! // A producer: bytes in registered memory, for the group "trainers".
//! let spec = TensorSpec::new("hidden_state".parse()?, DType::Uint8, [6])?;
//! let memory = store.pool().buffer(6, second).await?;
//! memory.write(0, b"hidden")?;
//! let trainers = GroupName::new("trainers")?;
//! let publication = Publication { groups: vec![trainers.clone()], retain: false, max_attempts: 3 };
//! let item = PutItem { sample: "run/3".parse()?, tensors: vec![TensorIn::new(spec, memory)], publication };
//! store.put(item, second).await?;
//!
//! // A consumer: takes it, gets its tensors, says that it has used them.
//! let leases = store.lease_next(&trainers, 1, second).await?;
//! let tensors = store.get(&leases[0], Wanted::All, second).await?;
//! assert_eq!(tensors[0].to_vec(), b"hidden");
//! for answer in store.ack(&leases, second).await {
//!     answer?;
//! }
//! store.drain(second).await?; // the bytes are gone
//! store.close(second).await
//! # }
//! ```
//!
//! | module | its job |
//! |---|---|
//! | [`config`], `tensors`, [`description`], `plan`, `limits` | settings; tensors in and out; the description of a sample and its limits; which objects a sample consists of |
//! | `put`, `put_plan`, `inflight_puts`, `commit`, `get`, `unleased`, `lease`, `answer`, `adopt`, `abort` | the operations |
//! | `loss` | when a sample whose bytes are missing is declared lost |
//! | `transfer`, `fetch`, `get_plan`, `blocking`, `codec`, `checksum`, `spans` | moving bytes: batches, threads, deadlines, checks |
//! | [`pool`], `backing`, `guarded_span` | reused memory: where it comes from, and when it may be reused |
//! | `free`, `worker`, `collect`, `ownership` | freeing and sweeping, and the tasks that do it; which sample owns which object |
//! | [`seal`], `sealed`, `send_sealed` | encryption and authentication of tensor bytes; how a store with keys uses them |
//! | `sessions`, `tasks`, `check`, `unreadable` | membership; operations and their callers; checking whether fencing tokens hold; samples of later releases |

mod abort;
mod adopt;
mod answer;
mod backing;
mod blocking;
mod check;
mod checksum;
mod claims;
mod codec;
mod collect;
mod commit;
pub mod config;
pub mod description;
mod fetch;
mod free;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod get;
mod get_plan;
mod guarded_span;
mod health;
mod inflight_puts;
mod lease;
mod limits;
mod loss;
mod ownership;
mod plan;
pub mod pool;
mod put;
mod put_plan;
pub mod seal;
mod sealed;
mod send_sealed;
mod sessions;
mod spans;
mod store;
mod tasks;
mod tensors;
mod transfer;
mod unleased;
mod unreadable;
mod worker;

pub use adopt::{AdoptedTensor, Announced, Announcement};
pub use codec::Encoding;
pub use config::FeatureConfig;
pub use description::{DescribedTensor, Description};
pub use health::{Counters, Health};
pub use lease::{Found, Lease};
pub use pool::{BufferPool, PoolUse};
pub use put::{PutItem, PutTurn, Stored};
pub use store::FeatureStore;
pub use tensors::{Destination, Source, TensorIn, TensorOut, Wanted};
pub use unleased::LiveRef;
pub use worker::Swept;

pub use holdfast_custody::{GroupName, Publication, Reason, Token};
pub use holdfast_index::{AckOutcome, PassedOver, Quarantined, SampleRef, SweepReport};
