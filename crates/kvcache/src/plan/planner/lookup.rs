//! From L3 to the host: the query, the decision, the prefetch, and the deadlines of both.

use super::{After, Flaw, Holds, Planner};
use crate::plan::index::Pin;
use crate::plan::index::node::Layer;
use crate::plan::key::{PageKey, PageKeys};
use crate::plan::operation::{HostPage, HostPageAt, KeyAt, OperationId, Work};
use crate::plan::pool::{OwnedPages, count};
use crate::plan::request::{Ending, Phase, Request, Submitted, Waits};

impl Planner {
    /// Asks L3 about the pages that neither host nor device has, if enough of them could be there. It also asks for
    /// prompts that were cached once and are gone from both layers: only residency matters, not whether a node exists.
    pub(super) fn look_up(&mut self, turn: u64, keys: &PageKeys) -> Waits {
        let usable = &keys.as_slice()[..self.usable(keys)];
        let found = self.index.find(usable);
        let most = count(usable.len()) - found.host.max(found.device);
        if *keys.root() != self.config.root || most <= self.config.prefetch_threshold {
            self.counters.not_asked += 1;
            self.line.push_back(turn);
            return Waits::ForDevice;
        }
        let wanted = (found.host..).zip(&usable[found.host as usize..]);
        let work = Work::Query(wanted.map(|(index, key)| KeyAt { index, key: *key }).collect());
        let query = self.issue(turn, work, Holds::Nothing);
        let until = self.now + self.config.query_ticks;
        self.deadlines.insert((until, query));
        self.asking.push(turn);
        self.counters.queries += 1;
        Waits::ForL3 { query, until }
    }

    /// The queries that came since the last step are handed out by this one, and their time begins. Ticks may have passed
    /// meanwhile, if the host had nothing to do.
    pub(super) fn begin_queries(&mut self) {
        for turn in std::mem::take(&mut self.asking) {
            let Some(request) = self.requests.get_mut(&turn) else {
                continue;
            };
            if let Phase::Submitted(state) = &mut request.phase
                && let Waits::ForL3 { query, until } = &mut state.waits
                && self.deadlines.remove(&(*until, *query))
            {
                *until = self.now + self.config.query_ticks;
                self.deadlines.insert((*until, *query));
            }
        }
    }

    /// L3 has answered. The range that it has is kept as absolute indices, and judged at the next step.
    pub(super) fn queried(&mut self, id: OperationId, turn: u64, work: &Work, hits: u32) {
        let Some(request) = self.requests.get_mut(&turn) else {
            return;
        };
        let Phase::Submitted(state) = &mut request.phase else {
            return;
        };
        let Waits::ForL3 { query, until } = state.waits else {
            return;
        };
        if query != id {
            return;
        }
        let first = match work {
            Work::Query(keys) => keys.first().map_or(0, |key| key.index),
            _ => 0,
        };
        state.waits = Waits::Answered {
            first,
            end: first + hits,
        };
        self.deadlines.remove(&(until, id));
        self.answered.push_back(turn);
    }

    /// Prefetches the pages that L3 reported, or lets the request go on without them. Either way the answer is
    /// discarded.
    pub(super) fn decide(&mut self, turn: u64) {
        let Some(mut request) = self.requests.remove(&turn) else {
            return;
        };
        match std::mem::replace(&mut request.phase, Phase::Finished) {
            Phase::Submitted(state) => {
                let begun = match state.waits {
                    Waits::Answered { first, end } => self.prefetch(&request, first, end),
                    _ => None,
                };
                request.phase = match begun {
                    Some((operation, until)) => Phase::Prefetching(state.prefetch(operation, until)),
                    None => {
                        self.line.push_back(turn);
                        Phase::Submitted(Submitted {
                            waits: Waits::ForDevice,
                        })
                    }
                };
            }
            other => request.phase = other,
        }
        self.requests.insert(turn, request);
    }

    /// Schedules the prefetch of `..end`, from where the host match ends now.
    fn prefetch(&mut self, request: &Request, first: u32, end: u32) -> Option<(OperationId, u64)> {
        let keys = request.keys.as_slice();
        if *request.keys.root() != self.config.root {
            return None;
        }
        let found = self.index.find(&keys[..self.usable(&request.keys)]);
        let start = found.host;
        self.counters.grew_before_schedule += u64::from(start > first);
        self.counters.shrank_before_schedule += u64::from(start < first);
        let gain = end.saturating_sub(found.host.max(found.device));
        if gain <= self.config.prefetch_threshold {
            self.counters.declined += 1;
            self.counters.at_threshold += u64::from(gain == self.config.prefetch_threshold && gain > 0);
            return None;
        }
        let mut anchor = self.index.pin(Layer::Host, keys, start)?;
        let Some(pages) = self.index.take_host(end - start) else {
            self.index.release(anchor);
            self.counters.no_room += 1;
            return None;
        };
        let shift = if self.has(Flaw::HashesOfAnotherMatch) {
            first
        } else {
            start
        };
        let place = (start..).zip(pages.as_slice());
        let wanted = place.filter_map(|(index, host)| {
            let key = *keys.get((index - start + shift) as usize)?;
            Some(HostPageAt {
                index,
                key,
                host: *host,
            })
        });
        let work = Work::Prefetch(wanted.collect());
        if self.has(Flaw::AnchorNotPinned) {
            let unpinned = Pin { ..anchor };
            self.index.release(std::mem::replace(&mut anchor, unpinned));
        }
        let id = self.issue(request.ticket.turn, work, Holds::Prefetch { anchor, pages });
        let until = self.now + self.config.prefetch_ticks;
        self.deadlines.insert((until, id));
        self.counters.prefetches += 1;
        Some((id, until))
    }

    /// Publishes the pages that every rank has, below the pin that the prefetch was scheduled with, and frees the rest.
    pub(super) fn prefetched(
        &mut self,
        id: OperationId,
        turn: u64,
        work: &Work,
        completed: u32,
        anchor: Pin,
        pages: OwnedPages<HostPage>,
    ) {
        let waits = self
            .requests
            .get(&turn)
            .is_some_and(|request| matches!(&request.phase, Phase::Prefetching(state) if state.operation == id));
        self.counters.orphaned += u64::from(!waits);
        let mut keys: Vec<PageKey> = match work {
            Work::Prefetch(pages) => pages.iter().map(|page| page.key).collect(),
            _ => Vec::new(),
        };
        let chain = self.requests.get(&turn).map(|request| request.keys.as_slice());
        let mut below = None;
        if let Some(chain) = chain {
            if self.has(Flaw::HashesOfAnotherMatch) {
                keys = chain[anchor.depth as usize..].to_vec();
            }
            if self.has(Flaw::SuffixUnderWrongPrefix) {
                keys = chain.to_vec();
                below = self.index.pin(Layer::Host, &keys, 0);
            }
        }
        let place = below.as_ref().unwrap_or(&anchor);
        let duplicates = self.publish_host(place, &keys, completed, pages);
        if place.epoch == self.index.epoch() {
            self.counters.grew_before_completion += u64::from(duplicates > 0);
            let known = self.index.pin_below(place, &keys[..completed as usize]);
            self.index
                .each_slot(&known, place.depth, |_, slot| slot.set_in_l3(true));
            self.index.release(known);
        } else {
            self.counters.cleared_before_completion += 1;
        }
        if let Some(root) = below {
            self.index.release(root);
        }
        if !self.has(Flaw::AnchorNotPinned) {
            self.index.release(anchor);
        }
        self.go_on(id, turn);
    }

    /// Publishes the first `completed` pages and frees the others. Returns how many were duplicates.
    pub(super) fn publish_host(
        &mut self,
        below: &Pin,
        keys: &[PageKey],
        completed: u32,
        mut pages: OwnedPages<HostPage>,
    ) -> usize {
        let filled = pages.split_front(completed as usize);
        self.index.host.give_back(pages);
        let all = filled.len();
        let losers = self.index.insert_host(below, keys, filled);
        let lost = losers.len();
        self.index.host.give_back(losers);
        self.counters.agreed += u64::from(completed);
        self.counters.published += (all - lost) as u64;
        self.counters.duplicates += lost as u64;
        lost
    }

    /// Ends the wait of the request for this operation, whatever the operation has fetched.
    fn go_on(&mut self, id: OperationId, turn: u64) {
        let Some(ticket) = self.requests.get(&turn).map(|request| request.ticket) else {
            return;
        };
        let moved = self.with(ticket, |planner, request| {
            if request.phase.operation() != Some(id) {
                return Ok(After::Stays);
            }
            match std::mem::replace(&mut request.phase, Phase::Finished) {
                Phase::Prefetching(state) => {
                    planner.deadlines.remove(&(state.until, id));
                    planner.line.push_back(turn);
                    request.phase = Phase::PrefetchDone(state.done());
                }
                Phase::Submitted(Submitted {
                    waits: Waits::ForL3 { .. },
                }) => {
                    planner.line.push_back(turn);
                    request.phase = Phase::Submitted(Submitted {
                        waits: Waits::ForDevice,
                    });
                }
                Phase::Aborting(state) if state.run.is_none() => return Ok(After::Ends(Ending::Aborted)),
                other => request.phase = other,
            }
            Ok(After::Stays)
        });
        debug_assert!(moved.is_ok(), "the request was there");
    }

    /// Ends the wait of the requests whose deadline has passed. Their operations stay in flight, with their pages.
    pub(super) fn expire(&mut self) {
        while let Some((until, id)) = self.deadlines.first().copied() {
            if until > self.now || self.has(Flaw::NoDeadline) {
                return;
            }
            self.deadlines.pop_first();
            let Some(turn) = self.flights.get(&id).map(|flight| flight.turn) else {
                continue;
            };
            self.counters.deadlines += 1;
            self.next.cancel.push(id);
            self.go_on(id, turn);
        }
    }
}
