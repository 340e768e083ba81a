//! Prefetch on exist: what lies on SSD only is on its way to memory when its reader asks for it.
//!
//! [`PrefetchEngine`] is an [`Engine`](tensorhold_engine::Engine) over another one. Both planes use it the same way: they
//! put and get through it as through any engine, and ask it where objects are.
//!
//! ```text
//! exists(keys, prefetch) ─▶ prober ─▶ answers at once; what is on SSD only ─▶ throttle ─▶ workers ─▶ engine
//! get(keys) ─▶ buffer ─▶ copied from there                                                  │
//!                │ not there: may wait for what is on its way                               │
//!                └─▶ engine                                    buffer ◀── read ahead ───────┘
//! ```
//!
//! - `prober`: probes of many callers in few requests, without side effects.
//! - [`throttle`]: one state per object, the invariants PF1 to PF8, and no I/O. `shared` is its lock.
//! - `workers`, `promotion`: what the workers do, by each route. `serve`: gets.
//! - `buffer`: what was read ahead, in registered memory of this process, bounded.
//! - `sources`: which tier served the gets.
//!
//! # What if…
//! - *…the process dies?* Nothing is left behind but a read lease of the engine.
//! - *…the reader leaves?* The object stays in the buffer for `keep`, then gives way.
//! - *…the object is removed or written meanwhile?* Through this engine: its copy is dropped, also one that is still on its
//!   way. By another process: a key of Tensorhold's own stands for one content (a sample's is never written again, a page's
//!   follows from its content), so the copy is the object as it was, and it is dropped when a probe finds the object absent;
//!   a copy that was torn by the removal is found by its checksum, like any torn read, and the next get asks the engine.
//! - *…another program chose the key?* It may write the key again, with other bytes, once the sample that adopted the object
//!   is freed. No copy of such an object is kept: it is not read ahead ([`Outcome::Refused`]). The engine may promote it.
//! - *…a holder dies, or a read hangs?* The attempt ends with its deadline, and so does everybody who waits for it. Its
//!   memory comes back when the engine lets go of it.
//! - *…memory is short?* What does not fit is refused, and nothing is begun for a while. A get that finds nothing in the
//!   buffer goes to the engine, as without a prefetch.

mod buffer;
mod config;
mod engine;
#[cfg(feature = "testing")]
pub mod flaw;
#[cfg(not(feature = "testing"))]
#[expect(unreachable_pub, reason = "it is public with the feature `testing`")]
mod flaw;
mod handle;
mod prober;
mod promotion;
mod serve;
mod shared;
mod sources;
pub mod throttle;
mod workers;

pub use config::{PrefetchConfig, Route};
pub use engine::{PrefetchEngine, PrefetchStats};
pub use handle::{Prefetch, Progress};
pub use prober::ProbeCounts;
pub use sources::SourceCounts;
pub use throttle::{Outcome, OutcomeCounts, Priority};

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
