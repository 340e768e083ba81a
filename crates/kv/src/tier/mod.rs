//! Carries plans out over the engine.
//!
//! Two layers, each of use by itself:
//!
//! - [`PageStore`]: content-addressed pages over an [`Engine`](holdfast_engine::Engine). A page is one object: its parts,
//!   wherever they lie in registered memory, and a footer of 64 bytes with its length and its checksum, bound to its
//!   key (`footer`). Nothing is copied, unless it is set up to pass pages through frames (`staging`). Calls are batched,
//!   blocking, and bounded by a deadline.
//! - [`Tier`]: carries out the operations of a planner on threads of its own, without ever blocking whoever submits them.
//!
//! # What a store may do to us
//!
//! It may be slow, lie, be half dead or gone. That costs recompute; it never gives a wrong page or a stuck request.
//!
//! | the store | what follows |
//! |---|---|
//! | says that a page is there, and then it is not | `Miss`; presence is a hint (KV17) |
//! | has a shorter or longer object under the key | `WrongLength`, never loaded (KV16); the object is removed |
//! | has other bytes, or another page's | `Corrupt`; the object is removed, so that the page can be put anew |
//! | ignores a put because its key has an object | success: equal keys mean equal pages; if it was a wrong one, as above |
//! | is full | `Full` after a few tries; the engine evicts meanwhile |
//! | does not answer | `Failed` at the deadline; the memory is in quarantine until the engine lets go of it |
//! | loses a reply, a holder, its master | `Failed`; a put that failed never counts as persisted (KV23) |
//!
//! Against a store that lies on purpose (a planted page, a forged checksum) there are sealed pages (`seal`): with a tier's
//! key, what is not authentic under its name is `Corrupt`, and names tell nothing.
//!
//! A page that is wrong is removed by force. Another process may read it at that moment, and get a torn page; its
//! checksum refuses it. Two processes may find the same wrong page, and the second remove what the first has put anew:
//! one more page to recompute.
//!
//! # The life of an operation
//!
//! ```text
//!            submit                a thread takes it        it returns               the engine has let go
//! (planner) ───────▶ Queued ───────────────▶ Running ─────────────────▶ Landing ─────────────────────────▶ Done
//!     │                │                        │                          │                        (one Completion)
//!     │ full, closing  │ deadline, cancel       │ deadline ─▶ advice TimedOut: go on without it         ▲
//!     ▼                │                        │ cancel   ─▶ nothing more of it is begun               │
//!  Refused             └────────────────────────┴── never begun: at once ───────────────────────────────┘
//! (its Completion)
//! ```
//!
//! - Every accepted operation gets exactly one terminal [`Event::Done`] (KV3), a refused one gets it as the answer to its
//!   submission. Duplicates and unknown ids change nothing.
//! - `Done` comes only when nothing touches the operation's pages any more (KV2, KV5): after the thread is back *and*
//!   every engine call that ran out of time has let go of its memory (`settle`). Until then the pages are the
//!   operation's, whatever anybody was told.
//! - At the deadline whoever waits is told to go on ([`Event::TimedOut`], KV19), even if the engine's call never
//!   returns. Deadlines are looked at by [`Tier::poll`] and [`Tier::wait`] themselves: no thread that hangs can be in
//!   their way.
//! - A cancel has two phases: the request, and `Done`.
//! - If the process dies, nothing is left to do: pages are expendable, and an object half written is not readable.
//!
//! # Ranks
//!
//! Every rank has its own tier and its own shard of each page. What is published is the smallest count ([`agree`],
//! KV15), and every rank joins for every operation, in submit order, also if it failed (`ranks`, KV22).

mod bad;
mod carry;
mod copier;
mod executor;
mod footer;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod page;
mod pipeline;
mod ranks;
mod run;
mod seal;
mod settle;
mod slab;
mod staging;
mod stats;
mod store;
mod table;

pub use copier::{Copied, DeviceCopier, MemoryCopier};
pub use executor::{LaneConfig, Tier, TierConfig};
pub use footer::{FOOTER_BYTES, Flaw};
pub use host::{HostMemoryMap, PartLayout};
pub use page::{CallOptions, GetReport, Hint, Page, PageGot, PagePut, PutReport, Stop, StoreConfig};
pub use ranks::{JoinOrder, RankBarrier, agree};
pub use seal::{PageSeal, TIER_KEY_BYTES};
pub use settle::Settling;
pub use stats::StoreStats;
pub use store::PageStore;
pub use table::{Cancelled, Event, Submitted, TierStats};
