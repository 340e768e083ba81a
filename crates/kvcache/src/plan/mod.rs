//! Decides which pages move where, without I/O: page keys, a radix index, page pools, request states and the planner.
//!
//! ```text
//!            prefetch                load-back
//!      L3 ─────────────▶ host ─────────────────▶ device
//!      L3 ◀───────────── host ◀───────────────── device
//!             backup                 write-back
//! ```
//! A caller submits requests and reports events. After each round it asks for a [`Plan`] and carries it out; every rank
//! carries out the same plan. [`crate::tier`] does that for L3; the serving engine does the device copies.
//!
//! | module | content |
//! |---|---|
//! | [`key`] | page keys: framed, chained, rooted in a namespace |
//! | [`operation`] | the operations of a plan, and how their end is reported |
//! | [`event`] | the events that a planner receives, and its plans |
//! | [`request`] | the states of a request, as types |
//! | [`planner`] | the planner |
//! | [`invariants`] | the invariants, by name |
//!
//! ```
//! use tensorhold_kvcache::plan::{Completion, Namespace, PlanEvent, Planner, PlannerConfig, Rank, RequestId, Work};
//!
//! let namespace = Namespace {
//!     model: "llama-3-70b".into(),
//!     weights: "2026-05".into(),
//!     dtype: "bf16".into(),
//!     layout: "mha".into(),
//!     group: "full".into(),
//!     page_tokens: 2,
//!     tp: Rank::ONLY,
//!     pp: Rank::ONLY,
//!     cp: Rank::ONLY,
//! };
//! let mut planner = Planner::new(PlannerConfig::new(namespace.root(), 2, 64, 64))?;
//! let mut keys = namespace.keys();
//! keys.extend(&(0..13).collect::<Vec<u32>>());
//! let ticket = planner.submit(RequestId(1), keys)?;
//!
//! // Six pages that no layer has: L3 is asked, and has them all.
//! let plan = planner.step(1);
//! let query = &plan.operations[0];
//! assert_eq!(query.work.pages(), 6);
//! let all = |operation| vec![Completion { operation, completed: 6, failure: None }];
//! planner.on_event(PlanEvent::Completed(all(query.id)))?;
//! let plan = planner.step(2);
//! assert!(matches!(plan.operations[0].work, Work::Prefetch(_)));
//! planner.on_event(PlanEvent::Completed(all(plan.operations[0].id)))?;
//!
//! // Now they are in host memory, and are loaded back before the model runs.
//! let plan = planner.step(3);
//! assert!(matches!(plan.operations[0].work, Work::LoadBack(_)));
//! planner.on_event(PlanEvent::Completed(all(plan.operations[0].id)))?;
//! let plan = planner.step(4);
//! assert_eq!((plan.grants[0].ticket, plan.grants[0].cached), (ticket, 6));
//! # Ok::<(), tensorhold_core::Error>(())
//! ```

pub mod event;
#[cfg(feature = "testing")]
pub mod flaw;
#[cfg(not(feature = "testing"))]
#[expect(unreachable_pub, reason = "it is public with the feature `testing`")]
mod flaw;
mod index;
pub mod invariants;
pub mod key;
pub mod operation;
pub mod planner;
mod pool;
pub mod request;

pub use event::{Applied, Grant, Plan, PlanEvent};
pub use index::Match;
pub use key::{Namespace, PageKey, PageKeys, Rank};
pub use operation::{
    Completion, CopyAt, DevicePage, Failure, HostPage, HostPageAt, KeyAt, Operation, OperationId, Work,
};
pub use planner::{Counters, Planner, PlannerConfig};
pub use request::{Ending, RequestId, State, Ticket};
