//! The input of a planner (events) and its output (plans).

use super::key::PageKey;
use super::operation::{Completion, DevicePage, Operation, OperationId};
use super::request::{Ending, Ticket};

/// An event. The same events in the same order give the same plans on every rank (KV21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanEvent {
    /// An operation has ended: one completion from each rank, in the order of the ranks.
    Completed(Vec<Completion>),
    /// The model has computed the whole prompt.
    PrefillDone(Ticket),
    /// The model is about to write this many more tokens: make room. Refused with `Capacity` if there is none; retract
    /// another request and ask again.
    Reserve(Ticket, u32),
    /// The model has written these tokens into the room that was reserved.
    Appended(Ticket, Vec<u32>),
    /// The request is done. The pages that it computed are kept.
    Finish(Ticket),
    /// Give up the device pages, keep the computed pages in the cache. Not while the model runs on them.
    Retract(Ticket),
    /// Resume a retracted request.
    Resume(Ticket),
    /// Abort the request, in any state. Not while the model runs on its pages.
    Abort(Ticket),
    /// Forget all cached pages. Requests in flight go on with the pages that they hold and share none of them.
    Clear,
    /// The weights have changed: like [`PlanEvent::Clear`], and from now on keys start from this root.
    NewWeights(PageKey),
}

/// The result of an event that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The event was applied.
    Done,
    /// A completion of an operation that is not in flight: late, or a duplicate. Nothing has changed (KV3).
    Ignored,
}

/// Permission to run a request: all its pages below `cached` hold the content that their keys name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Which request.
    pub ticket: Ticket,
    /// How many pages from the start need not be computed.
    pub cached: u32,
    /// The absolute index of the first of `pages`: 0, or where the pages of an earlier grant end.
    pub first: u32,
    /// Its device pages, in order.
    pub pages: Vec<DevicePage>,
}

/// What the caller does next, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Operations, in the order in which every rank submits them.
    pub operations: Vec<Operation>,
    /// Operations whose result no request waits for any more. Their completion is still due.
    pub cancel: Vec<OperationId>,
    /// Requests that are over.
    pub ended: Vec<(Ticket, Ending)>,
    /// Requests that have given up their device pages. One that was resumed at once may also be among the grants.
    pub retracted: Vec<Ticket>,
    /// Requests that may run, or that have more room.
    pub grants: Vec<Grant>,
}
