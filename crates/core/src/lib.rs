//! The vocabulary that every other crate of Tensorhold shares: ids, object keys, tensor specs, digests, the one [`Error`]
//! type, injected time and randomness, and named invariants.
//!
//! Nothing in here does I/O, starts a thread or knows about an async runtime, so the same code runs in production,
//! under a property test and inside a simulation.
//!
//! | module | what it holds |
//! |---|---|
//! | [`error`] | [`Error`]: a coarse kind, whether to try again, the operation, context pairs |
//! | [`id`] | [`StoreId`], [`SampleId`], [`TensorName`], [`Generation`], [`Nonce`] |
//! | [`key`] | [`ObjectKey`] (the key that an engine sees) and [`SampleKey`] (the parts of Tensorhold's own keys) |
//! | [`partition`] | [`Partition`]: the stores that a partitioned store consists of |
//! | [`tensor`] | [`DType`], [`TensorSpec`] |
//! | [`batch`] | [`BatchResults`]: one place for each item of a batch |
//! | [`digest`] | [`Digest`]: the checksum of committed bytes |
//! | [`time`] | [`Clock`], [`Deadline`], [`poll_until`] |
//! | [`rng`] | [`Rng`], seeded or from the system |
//! | `testing` | what the contract suites have in common, behind the feature of that name |
//! | [`invariant`] | named [`Invariant`]s and the [`Recorder`] that counts their violations |

pub mod batch;
pub mod digest;
pub mod duration;
pub mod error;
pub mod id;
pub mod invariant;
pub mod key;
pub mod partition;
pub mod rng;
pub mod tensor;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;

pub use batch::BatchResults;
pub use digest::Digest;
pub use error::{Error, ErrorKind, Result, Retry};
pub use id::{Generation, Nonce, SampleId, StoreId, TensorName};
pub use invariant::{Invariant, Recorder, Violation};
pub use key::{KeySpace, ObjectKey, SampleKey};
pub use partition::Partition;
pub use rng::{Rng, SeededRng, SystemRng};
pub use tensor::{DType, TensorSpec};
pub use time::{Clock, Deadline, ManualClock, SystemClock, Timestamp, poll_until};

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
