//! An engine that injects faults by a seeded plan.
//!
//! [`FaultEngine`] wraps any engine and injects the faults of networks, holders and masters into its calls. Which
//! faults strike is a pure function of the plan's seed, the number of the call, its operation and the position of the
//! object in its batch. So the same seed and the same sequence of calls give the same faults on every machine, and a
//! run that found a bug can be repeated. Nothing else is random. Every fault that took effect is in an ordered log.
//!
//! # The faults
//!
//! | [`FaultKind`] | what happens | what the caller sees |
//! |---|---|---|
//! | `LostReply` | the call is done, its reply is not delivered | the call fails, `Unavailable` |
//! | `LostRequest` | nothing is done | the same: the caller cannot tell the two apart |
//! | `Delay` | the call begins later, up to the plan's longest delay | it takes longer; at the deadline it fails, and then nothing was done |
//! | `ShortRead` | a get's object seems shorter, and the rest of its buffers is not the object's | `WrongLength`, with a smaller length |
//! | `TornBytes` | some bytes of a get are altered | `Loaded`, against the contract: the caller must check |
//! | `PartialBatch` | some objects of a batch are not passed on, at least one is | those are `Failed`, `Unavailable` |
//! | `HolderLoss` | half of all keys, by their hash, are on a holder that died | below |
//! | `MasterLoss` | for some calls there is no master, and nothing is done | each object is `Failed`, `Unavailable`; probe and usage fail |
//!
//! A failure of a put or a remove says [`tensorhold_core::Retry::Ambiguous`]; one of a call that changes nothing says
//! [`tensorhold_core::Retry::Safe`].
//!
//! # The loss of a holder
//!
//! ```text
//! strike ──▶ Down: gets and puts of its keys are Failed (Unavailable); ──the plan's number of calls──▶ Gone: the keys
//!            probes and removes work as ever                                 named while it was down are removed from
//!                                                                            the wrapped engine, so each is a Miss
//! ```
//! Keys that no get or put named while the holder was down are not lost. The removal happens at the start of the first
//! call after the outage, and again at the next call if it failed. One holder is lost at a time.
//!
//! # Invariants
//!
//! - F1: with every rate at zero, and while paused, each call is passed on unchanged and its outcomes are unchanged.
//! - F2: calls that no engine would act on (no objects, no time, an invalid batch) are passed on unchanged and are not
//!   counted, so they do not shift the plan.
//! - F3: a fault is in the log if and only if it took effect.
//!
//! Registering memory is local to a process and is never struck. Calls made while paused are not counted either: after
//! [`FaultEngine::resume`] the plan goes on where it stopped. With calls from several threads the faults follow from
//! the order in which the calls arrive.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use tensorhold_core::{ManualClock, ObjectKey, Retry};
//! use tensorhold_engine::{EngineExt, FaultEngine, FaultPlan, MemoryCluster, MemoryConfig, PutOptions};
//!
//! let clock = Arc::new(ManualClock::new());
//! let cluster = MemoryCluster::new(MemoryConfig::default(), clock.clone());
//! let plan = FaultPlan::new(7).with_lost_reply(1000);
//! let engine = FaultEngine::new(cluster.connect(), plan, clock);
//!
//! let within = Duration::from_secs(1);
//! let region = engine.allocate(4, within)?;
//! let key = ObjectKey::new("a")?;
//! let lost = engine.put_one(&key, &region.whole(), &PutOptions::default(), within);
//! assert_eq!(lost.map(|_| ()).unwrap_err().retry(), Retry::Ambiguous);
//! assert_eq!(cluster.objects(), [key]);
//! assert_eq!(engine.faults()[0].to_string(), "call 0, put: the reply was lost");
//! # Ok::<(), tensorhold_core::Error>(())
//! ```

mod calls;
mod engine;
mod log;
mod memory;
mod outage;
mod plan;
#[cfg(test)]
mod tests;

pub use engine::FaultEngine;
pub use log::{Effect, InjectedFault, Operation};
pub use plan::{FaultKind, FaultPlan};
