//! The custody of a sample, as pure code.
//!
//! A sample is precious: it was expensive to make, it is used once (or once per epoch), and it must be gone the moment
//! no group needs it. This crate decides what may happen to it. It does no I/O and knows no clock: an index (crate
//! `tensorhold-index`) stores what is decided here and passes in what it read. The same code runs in production, in the
//! property tests and in the model checker.
//!
//! # States
//! A sample id has at most one of each of the first two, and any number of the third. Each is a Rust type, so a
//! transition that makes no sense does not compile.
//!
//! ```text
//!             reserve              commit                          ack by all groups · retire · superseded · lost
//! (nothing) ──────────▶ Reserved ─────────▶ Live ─────────────────────────────────────────────▶ Retired ──freed──▶ (nothing)
//!                          │                 │ ▲                                                 ▲   │ ▲
//!                          │ abort, expire   │ └ lease · read · renew · ack · nack · release     │   └─┘ release · expire ·
//!                          └─────────────────┼───────────────────────────────────────────────────┘       free failed
//!                                            └ within Live, for each group: Waiting ⇄ Leased ─▶ Acked
//!                                                         (expire, nack: one attempt more) ─▶ Dead
//! ```
//!
//! * [`Reserved`]: bytes are reserved, the producer is writing. No consumer and no reader can see it.
//! * [`Live`]: committed. Each group of consumers takes it, uses it and acknowledges it; readers may read it.
//! * [`Retired`]: no new reader gets in. When the last reader's lease has ended, its objects may be removed.
//!
//! # Dead letters
//! A sample that a group could not use within its attempts leaves a [`DeadLetter`]: its retired record stays, with the
//! groups' states, until an operator puts it back into circulation (requeue) or drops it. Its objects stay too, for a
//! while, if the index is set up so ([`Retired::kept`]).
//!
//! ```text
//!  Live ──out of attempts──▶ Retired, with its objects ──time is over, or too many──▶ to be freed ──freed──▶ Retired, the record only
//!   ▲                          │      │                                                   ▲                     │
//!   └────────requeue───────────┘      └──────────────────────drop─────────────────────────┘                     └──drop──▶ (nothing)
//! ```
//!
//! # Fencing
//! Every lease has a [`Token`]: the index's revision at which it was granted. A caller that presents another token than
//! the one in the record is [`tensorhold_core::ErrorKind::Fenced`] and changes nothing. Revisions only grow, so a token
//! is never given out twice.
//!
//! # Time
//! Deadlines are [`Tick`]s of a clock that all users of the index share. A process advances it by one only if it has,
//! by its own monotonic clock, watched the present tick for a whole tick's length. So it never runs fast, whatever any
//! host's wall clock says, and if no process advances it nothing expires. [`WallTime`]s are written into records for
//! people to read, and decide nothing.
//!
//! # What must hold
//! See [`invariants`]: LC1 … LC9, each with the predicates that state it for a state or for a step. `tests/model` puts
//! this code into a world of crashes, pauses, late requests and sweepers that get in each other's way, and checks the
//! predicates in every reachable state: `cargo run --release -p tensorhold-custody --example custody_model`. Quota has a
//! world of its own, `tests/quota_model`: `--example quota_model`.

pub mod id;
pub mod invariants;
pub mod lease;
pub mod live;
pub mod quota;
pub mod reserved;
pub mod retired;
pub mod sweep;

pub use id::{GroupName, SessionId, Stamp, Tick, Token, Version, WallTime};
pub use lease::Lease;
pub use live::{Acknowledged, GroupState, Live, Progress, Publication};
pub use reserved::{Reserved, ReservedAs};
pub use retired::{DeadLetter, Reason, Retired};
pub use sweep::{Sweep, Verdict};

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
