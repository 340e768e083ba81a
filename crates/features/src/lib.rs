//! The feature store: samples of tensors, in custody from the put until no consumer needs them.
//!
//! [`FeatureStore`] joins an engine, which moves and keeps bytes (crate `tensorhold-engine`), and an index, which records
//! which session holds which sample (crate `tensorhold-index`). A producer puts a sample. Each group of consumers takes
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
//! - FS4: objects are removed only when no reader is left and no commit can follow (FR1 in `reclaim::queue`). They stay
//!   recorded as "to be removed" until every one of them is seen to be gone.
//! - FS5: memory is not reused while the engine may touch it, whatever the caller has been told ([`tensorhold_engine::guarded`]).
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
//!   goes on writing, and is killed before it notices that it was fenced leaves objects that no record names. An audit,
//!   which compares the engine's list with the index, finds and removes those (module `audit`).
//!
//! # Example
//! ```
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use tensorhold_core::{DType, SystemClock, SystemRng, TensorSpec};
//! # use tensorhold_engine::{MemoryCluster, MemoryConfig};
//! # use tensorhold_index::store::memory::MemoryStore;
//! # use tensorhold_index::{IndexConfig, TxnIndex};
//! use tensorhold_features::{FeatureConfig, FeatureStore, GroupName, Publication, PutItem, TensorIn, Wanted};
//!
//! # #[tokio::main]
//! # async fn main() -> tensorhold_core::Result<()> {
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
//! The rooms, from the top. Each calls only those below it:
//!
//! | room | its job |
//! |---|---|
//! | `partitions` | a store that is larger than one cluster, as several stores |
//! | `ops` | the operations: put, get, take, answer, retire, adopt; each in a module with its states |
//! | `audit` | comparing what the engine has with what the index knows |
//! | `store` | the open store: its parts, opening and closing, leases in the hands of callers |
//! | `io` | moving bytes: batches, checksums, seals |
//! | `reclaim` | freeing samples, sweeping, finding lost samples, and the workers that do it |
//! | `memory` | memory that tensors lie in: the pool, registration, claims |
//! | `record` | the description of a sample, the plan of its objects, their owners and limits |
//! | `runtime` | peers, settings, the session, threads, tasks, counters |
//! | [`seal`] | encryption and authentication of tensor bytes |

mod audit;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod io;
mod memory;
mod ops;
mod partitions;
mod reclaim;
mod record;
mod runtime;
pub mod seal;
mod store;

pub use audit::MOST_EXAMPLES;
pub use audit::losses::{LossAudit, LossReport};
pub use audit::orphans::{OrphanAudit, OrphanExample, OrphanReason, OrphanReport};
pub use audit::told::LossScope;
pub use memory::device::{Device, DeviceBytes, DeviceCopy, Direction};
pub use memory::pool::{BufferPool, PoolUse};
pub use memory::tensors::{Destination, Source, TensorIn, TensorOut, Wanted};
pub use ops::adopt::{AdoptedTensor, Announced, Announcement};
pub use ops::put::{PutItem, PutTurn, Stored};
pub use ops::residency::Tier;
pub use ops::unleased::LiveRef;
pub use ops::writer::Writer;
pub use partitions::Partitions;
pub use reclaim::duty::Sweeping;
pub use reclaim::worker::Swept;
pub use record::described::DescribedRef;
pub use record::description::{DescribedTensor, Description};
pub use record::encoding::Encoding;
pub use record::objects::object_keys;
#[cfg(feature = "testing")]
pub use runtime::blocking::Lags;
pub use runtime::config::{FeatureConfig, Residency};
pub use runtime::counters::Counters;
pub use store::FeatureStore;
pub use store::health::Health;
pub use store::lease::{Found, Lease};

pub use tensorhold_custody::{GroupName, Publication, Reason, Token};
pub use tensorhold_index::{
    AckOutcome, BudgetUse, HolderSeen, HoldersSeen, Identity, Leader, Leaders, ListPlace, LiveSession, LostSample,
    MissingHolder, Office, PassedOver, Quarantined, Record, RecordList, RecordQuery, SampleRecord, SampleRef, Stage,
    SweepReport,
};

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
