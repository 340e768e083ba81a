//! The states of a request, as types.
//!
//! ```text
//!             ┌────────────── no prefetch: too few hits, no room, no answer in time ─────────────┐
//! submit ─▶ Submitted ─hits─▶ Prefetching ─done, or deadline─▶ PrefetchDone ─device pages─▶ Prefilling ─▶ PrefillDone ─▶ Decoding
//!               ▲                                                                              │               │            │
//!               │                                                                              └──── retract ──┴─────┬──────┤ finish
//!            resume                                                                                                  ▼      ▼
//!               └──────────────────── Retracted ◀──────────── written back ──────────────────────────────────── Retracting Draining
//!                                                                                                                           │
//!  any state ─abort─▶ Aborting (until the operation on its pages is acknowledged) ─▶ Finished ◀─written back─ WritingBack ◀─┘
//! ```
//! A transition consumes the state that it starts from. An event that does not fit the state is refused and changes
//! nothing. `Finished` is not kept: the request is forgotten, and its id may be used again. A [`Ticket`] is never used
//! again, so a late event finds no request.

use super::index::Pin;
use super::key::PageKeys;
use super::operation::{DevicePage, OperationId};
use super::pool::OwnedPages;

/// A request, as the caller names it. Unique among the requests that are not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One submission of a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The request.
    pub request: RequestId,
    /// The number of the submission, counted over all requests.
    pub turn: u64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ending {
    /// It was finished.
    Finished,
    /// It was aborted.
    Aborted,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) ticket: Ticket,
    pub(crate) keys: PageKeys,
    pub(crate) phase: Phase,
}

/// The device pages of a running request.
#[derive(Debug)]
pub(crate) struct Run {
    /// Pins the pages that are in the index.
    pub(crate) held: Pin,
    /// The request's own pages, from this absolute index on.
    pub(crate) first_own: u32,
    pub(crate) own: OwnedPages<DevicePage>,
    /// Own pages that the index did not take: another page has their key, or the request shares nothing. The model
    /// still reads them, so they stay until it is done.
    pub(crate) spare: OwnedPages<DevicePage>,
    /// Whether its keys belong to the weights that it runs with. If not, none of its pages are shared.
    pub(crate) cacheable: bool,
}

impl Run {
    /// The number of pages that its device pages have room for.
    pub(crate) fn room(&self) -> u32 {
        self.first_own + super::pool::count(self.own.len())
    }
}

/// What a submitted request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// An answer from L3, until this tick.
    ForL3 { query: OperationId, until: u64 },
    /// The next step: L3 has the pages `first..end`.
    Answered { first: u32, end: u32 },
    /// Device pages.
    ForDevice,
}

#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) waits: Waits,
}

#[derive(Debug)]
pub(crate) struct Prefetching {
    pub(crate) operation: OperationId,
    pub(crate) until: u64,
}

#[derive(Debug)]
pub(crate) struct PrefetchDone;

#[derive(Debug)]
pub(crate) struct Prefilling {
    pub(crate) run: Run,
    /// Its load-back. The model must not run before it is acknowledged (KV18).
    pub(crate) loading: Option<OperationId>,
}

#[derive(Debug)]
pub(crate) struct PrefillDone {
    pub(crate) run: Run,
}

#[derive(Debug)]
pub(crate) struct Decoding {
    pub(crate) run: Run,
}

/// All its pages are in the index; it waits for the next step to write them back.
#[derive(Debug)]
pub(crate) struct Draining {
    pub(crate) held: Pin,
}

#[derive(Debug)]
pub(crate) struct WritingBack {
    pub(crate) operation: OperationId,
}

#[derive(Debug)]
pub(crate) enum Retracting {
    /// The load-back must be acknowledged first.
    Loading { run: Run, operation: OperationId },
    /// Like [`Draining`].
    Draining(Draining),
    /// Like [`WritingBack`].
    WritingBack(WritingBack),
}

#[derive(Debug)]
pub(crate) struct Retracted;

/// Waits for the one operation in flight on its pages.
#[derive(Debug)]
pub(crate) struct Aborting {
    pub(crate) operation: OperationId,
    /// The device pages, if that operation fills them.
    pub(crate) run: Option<Run>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Submitted(Submitted),
    Prefetching(Prefetching),
    PrefetchDone(PrefetchDone),
    Prefilling(Prefilling),
    PrefillDone(PrefillDone),
    Decoding(Decoding),
    Draining(Draining),
    WritingBack(WritingBack),
    Retracting(Retracting),
    Retracted(Retracted),
    Aborting(Aborting),
    Finished,
}

/// The state of a request, for messages, logs and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are those of the diagram")]
pub enum State {
    Submitted,
    Prefetching,
    PrefetchDone,
    Prefilling,
    PrefillDone,
    Decoding,
    Draining,
    WritingBack,
    Retracting,
    Retracted,
    Aborting,
    Finished,
}

impl Phase {
    pub(crate) fn state(&self) -> State {
        match self {
            Self::Submitted(_) => State::Submitted,
            Self::Prefetching(_) => State::Prefetching,
            Self::PrefetchDone(_) => State::PrefetchDone,
            Self::Prefilling(_) => State::Prefilling,
            Self::PrefillDone(_) => State::PrefillDone,
            Self::Decoding(_) => State::Decoding,
            Self::Draining(_) => State::Draining,
            Self::WritingBack(_) => State::WritingBack,
            Self::Retracting(_) => State::Retracting,
            Self::Retracted(_) => State::Retracted,
            Self::Aborting(_) => State::Aborting,
            Self::Finished => State::Finished,
        }
    }

    /// The operation that it waits for.
    pub(crate) fn operation(&self) -> Option<OperationId> {
        match self {
            Self::Submitted(Submitted {
                waits: Waits::ForL3 { query, .. },
            }) => Some(*query),
            Self::Prefetching(state) => Some(state.operation),
            Self::Prefilling(state) => state.loading,
            Self::WritingBack(state) => Some(state.operation),
            Self::Retracting(Retracting::Loading { operation, .. }) => Some(*operation),
            Self::Retracting(Retracting::WritingBack(state)) => Some(state.operation),
            Self::Aborting(state) => Some(state.operation),
            _ => None,
        }
    }

    /// Its device pages and the pin on those that it shares.
    pub(crate) fn run(&self) -> Option<&Run> {
        match self {
            Self::Prefilling(state) => Some(&state.run),
            Self::PrefillDone(state) => Some(&state.run),
            Self::Decoding(state) => Some(&state.run),
            Self::Retracting(Retracting::Loading { run, .. }) => Some(run),
            Self::Aborting(state) => state.run.as_ref(),
            _ => None,
        }
    }
}

impl Submitted {
    pub(crate) fn prefetch(self, operation: OperationId, until: u64) -> Prefetching {
        Prefetching { operation, until }
    }

    pub(crate) fn prefill(self, run: Run, loading: Option<OperationId>) -> Prefilling {
        Prefilling { run, loading }
    }
}

impl Prefetching {
    pub(crate) fn done(self) -> PrefetchDone {
        PrefetchDone
    }
}

impl PrefetchDone {
    pub(crate) fn prefill(self, run: Run, loading: Option<OperationId>) -> Prefilling {
        Prefilling { run, loading }
    }
}

impl Prefilling {
    pub(crate) fn loaded(self) -> Prefilling {
        Prefilling {
            run: self.run,
            loading: None,
        }
    }

    pub(crate) fn done(self) -> PrefillDone {
        PrefillDone { run: self.run }
    }
}

impl PrefillDone {
    pub(crate) fn decode(self) -> Decoding {
        Decoding { run: self.run }
    }
}
