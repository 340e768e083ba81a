//! Carries plans out over the engine.
//!
//! Two layers, each useful by itself:
//!
//! - [`PageStore`]: content-addressed pages over an [`Engine`](tensorhold_engine::Engine). A page is one object: its
//!   parts, wherever they lie in registered memory, and a footer of 64 bytes with its length and its checksum, bound to
//!   its key (`footer`). Nothing is copied, unless the store is set up to pass pages through frames (`staging`). Calls
//!   are batched, blocking, and bounded by a deadline.
//! - [`Tier`]: carries out the operations of a planner on threads of its own, and never blocks the caller that submits
//!   them.
//!
//! # What a faulty store can do
//!
//! The store may be slow, return wrong answers, be half dead or gone. That costs recompute; it never yields a wrong
//! page or a stuck request.
//!
//! | the store | result |
//! |---|---|
//! | says that a page is there, and then it is not | `Miss`; presence is a hint (KV17) |
//! | has a shorter or longer object under the key | `WrongLength`, never loaded (KV16); the object is removed |
//! | has other bytes, or another page's | `Corrupt`; the object is removed, so that the page can be put again |
//! | ignores a put on a key that has an object | success: equal keys mean equal pages; a wrong page is handled as above |
//! | is full | `Full` after a few tries; the engine evicts meanwhile |
//! | does not answer | `Failed` at the deadline; the memory is in quarantine until the engine lets go of it |
//! | loses a reply, a holder, its master | `Failed`; a put that failed never counts as persisted (KV23) |
//!
//! Sealed pages (`seal`) protect against a store that lies on purpose (a planted page, a forged checksum): with a
//! tier's key, an object that is not authentic under its name is `Corrupt`, and names reveal nothing.
//!
//! A wrong page is removed by force. Another process may read it at that moment, and get a torn page; its checksum
//! refuses it. Two processes may find the same wrong page, and the second may remove the page that the first has put
//! again: that costs one more page to recompute.
//!
//! # The life of an operation
//!
//! ```text
//!            submit                a thread takes it        it returns               the engine has let go
//! (planner) ───────▶ Queued ───────────────▶ Running ─────────────────▶ Landing ─────────────────────────▶ Done
//!     │                │                        │                          │                        (one Completion)
//!     │ full, closing  │ deadline, cancel       │ deadline ─▶ advice TimedOut: go on without it         ▲
//!     ▼                │                        │ cancel   ─▶ no further part of it is begun            │
//!  Refused             └────────────────────────┴── never begun: at once ───────────────────────────────┘
//! (its Completion)
//! ```
//!
//! - Every accepted operation gets exactly one terminal [`TierEvent::Done`] (KV3); a refused one gets it as the answer to
//!   its submission. Duplicates and unknown ids change nothing.
//! - `Done` comes only when nothing touches the operation's pages any more (KV2, KV5): after the thread is back *and*
//!   every engine call that ran out of time has released its memory (`inflight`). Until then the pages belong to the
//!   operation, even if its request was told to go on.
//! - At the deadline the waiting request is told to go on ([`TierEvent::TimedOut`], KV19), even if the engine's call never
//!   returns. [`Tier::poll`] and [`Tier::wait`] check the deadlines themselves, so a thread that hangs cannot delay
//!   them.
//! - A cancel has two phases: the request, and `Done`.
//! - If the process dies, nothing is left to do: pages are expendable, and a half-written object is not readable.
//!
//! # Ranks
//!
//! Every rank has its own tier and its own shard of each page. The planner's host brings the ranks' completions together,
//! one from each for every operation, also if it failed there (KV22); the smallest count is published (KV15, by
//! [`Completion::agree`](crate::plan::Completion::agree)).

mod copier;
mod engine_call;
mod executor;
mod exposed;
mod footer;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod inflight;
mod page;
mod pipeline;
mod quarantine;
mod run;
mod seal;
mod slab;
mod staging;
mod stats;
mod store;
mod table;

pub use copier::{Copied, DeviceCopier, MemoryCopier};
pub use executor::{LaneConfig, Tier, TierConfig};
pub use footer::{FOOTER_BYTES, PageDefect};
pub use host::{HostMemoryMap, PartLayout};
pub use inflight::Settling;
pub use page::{CallOptions, GetReport, Hint, Page, PageGot, PagePut, PutReport, Stop, StoreConfig};
pub use seal::{PageSeal, TIER_KEY_BYTES};
pub use stats::StoreStats;
pub use store::PageStore;
pub use table::{Cancelled, Submitted, TierEvent, TierStats};
