//! What a planner is told, and what it answers.

use super::key::PageKey;
use super::operation::{Completion, DevicePage, Operation, OperationId};
use super::request::{Ending, Ticket};

/// Something that happened. The same events in the same order give the same plans on every rank (KV21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An operation has ended: one completion from each rank, in the order of the ranks.
    Completed(Vec<Completion>),
    /// The model has computed the whole prompt.
    PrefillDone(Ticket),
    /// The model is about to write this many more tokens: make room. Refused with `Capacity` if there is none; retract
    /// somebody and ask again.
    Reserve(Ticket, u32),
    /// The model has written these tokens into the room that was reserved.
    Appended(Ticket, Vec<u32>),
    /// The request is done. What it computed is kept.
    Finish(Ticket),
    /// Give up the device pages, keep what was computed. Not while the model runs on them.
    Retract(Ticket),
    /// Take a retracted request up again.
    Resume(Ticket),
    /// Give the request up, in any state. Not while the model runs on its pages.
    Abort(Ticket),
    /// Forget all that is cached. Requests in flight go on with the pages that they hold and share nothing of them.
    Clear,
    /// The weights have changed: as [`Event::Clear`], and from now on keys start from this root.
    NewWeights(PageKey),
}

/// What became of an event that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It was taken in.
    Done,
    /// A completion of an operation that is not in flight: late, or a duplicate. Nothing has changed (KV3).
    Ignored,
}

/// A request may run: all its pages below `cached` hold what their keys say.
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

/// What to do next, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Operations, in the order in which every rank submits them.
    pub operations: Vec<Operation>,
    /// Operations whose result nobody waits for any more. Their completion is still due.
    pub cancel: Vec<OperationId>,
    /// Requests that are over.
    pub ended: Vec<(Ticket, Ending)>,
    /// Requests that have given up their device pages. One that was resumed at once may be among the grants, too.
    pub retracted: Vec<Ticket>,
    /// Requests that may run, or that have more room.
    pub grants: Vec<Grant>,
}
