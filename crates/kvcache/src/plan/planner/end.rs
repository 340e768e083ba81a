//! Abort, resume, and clearing the cache.

use tensorhold_core::{Error, ErrorKind, Result};

use super::{After, Flaw, Holds, Planner, unlawful};
use crate::plan::event::Applied;
use crate::plan::key::PageKey;
use crate::plan::operation::OperationId;
use crate::plan::request::{Aborting, Ending, Phase, Request, Retracting, Run, Submitted, Ticket, Waits};

impl Planner {
    /// Aborts a request. The pages that an operation in flight fills or reads stay until it is acknowledged, and the
    /// request with them (KV5).
    pub(super) fn abort(&mut self, ticket: Ticket) -> Result<Applied> {
        self.with(ticket, |planner, request| {
            let (run, operation) = match std::mem::replace(&mut request.phase, Phase::Finished) {
                Phase::Submitted(state) => {
                    // A query touches no page: the request need not wait for it.
                    if let Waits::ForL3 { query, until } = state.waits {
                        planner.deadlines.remove(&(until, query));
                        planner.next.cancel.push(query);
                    }
                    (None, None)
                }
                Phase::Prefetching(state) => {
                    planner.deadlines.remove(&(state.until, state.operation));
                    planner.free_too_early(state.operation);
                    (None, Some(state.operation))
                }
                Phase::PrefetchDone(_) | Phase::Retracted(_) => (None, None),
                Phase::Prefilling(state) => (Some(state.run), state.loading),
                Phase::PrefillDone(state) => (Some(state.run), None),
                Phase::Decoding(state) => (Some(state.run), None),
                Phase::Draining(state) | Phase::Retracting(Retracting::Draining(state)) => {
                    planner.index.release(state.held);
                    (None, None)
                }
                Phase::Retracting(Retracting::Loading { run, operation }) => (Some(run), Some(operation)),
                Phase::WritingBack(state) | Phase::Retracting(Retracting::WritingBack(state)) => {
                    (None, Some(state.operation))
                }
                other @ (Phase::Aborting(_) | Phase::Finished) => {
                    request.phase = other;
                    return Err(unlawful("abort", request));
                }
            };
            Ok(planner.give_up(request, run, operation))
        })
    }

    fn give_up(&mut self, request: &mut Request, run: Option<Run>, operation: Option<OperationId>) -> After {
        if let Some(operation) = operation {
            self.next.cancel.push(operation);
            request.phase = Phase::Aborting(Aborting { operation, run });
            return After::Stays;
        }
        if let Some(run) = run {
            self.let_go(run);
        }
        After::Ends(Ending::Aborted)
    }

    /// The deliberate bug: frees pages that an operation in flight still uses.
    fn free_too_early(&mut self, operation: OperationId) {
        if !self.has(Flaw::AbortFreesAtOnce) {
            return;
        }
        if let Some(flight) = self.flights.get_mut(&operation)
            && let Holds::Prefetch { pages, .. } = &mut flight.holds
        {
            let pages = pages.split_front(usize::MAX);
            self.index.host.give_back(pages);
        }
    }

    pub(super) fn resume(&mut self, ticket: Ticket) -> Result<Applied> {
        self.with(ticket, |planner, request| {
            if !matches!(request.phase, Phase::Retracted(_)) {
                return Err(unlawful("resume", request));
            }
            if planner.pages_to_run(&request.keys) > planner.config.device_pages {
                let why = "this request has outgrown the device's pool of pages; abort it";
                return Err(Error::new(ErrorKind::Capacity, "kv.resume", why).with("request", ticket.request.0));
            }
            let waits = planner.look_up(ticket.turn, &request.keys);
            request.phase = Phase::Submitted(Submitted { waits });
            Ok(After::Stays)
        })
    }

    /// Forgets all cached pages, at once and for every request. Pinned pages are freed when they are released.
    pub(super) fn clear(&mut self, root: Option<PageKey>) -> Result<Applied> {
        self.index.clear();
        if let Some(root) = root {
            self.config.root = root;
        }
        Ok(Applied::Done)
    }
}
