//! On the device: admission, load-back, prefill and decoding.

use tensorhold_core::{Error, ErrorKind, Result};

use super::{After, Holds, Planner, unlawful};
use crate::plan::event::{Applied, Grant};
use crate::plan::index::node::Layer;
use crate::plan::index::{Match, Pin};
use crate::plan::key::{PageKey, PageKeys};
use crate::plan::operation::{CopyAt, DevicePage, HostPage, OperationId, Work};
use crate::plan::pool::{OwnedPages, count};
use crate::plan::request::{Aborting, Draining, Ending, Phase, Retracted, Retracting, Run, Ticket};

impl Planner {
    /// Gives device pages to the first request in the queue, and loads back the pages that the host has. `false` if
    /// there are not enough pages: the request then stays first in the queue.
    pub(super) fn admit(&mut self, turn: u64) -> bool {
        let Some(mut request) = self.requests.remove(&turn) else {
            return true;
        };
        let wants = matches!(request.phase, Phase::Submitted(_) | Phase::PrefetchDone(_));
        let admitted = wants.then(|| self.start(turn, &request.keys)).flatten();
        let stays_first = wants && admitted.is_none();
        if let Some((run, loading)) = admitted {
            if loading.is_none() {
                self.grant(request.ticket, &run);
            }
            request.phase = match std::mem::replace(&mut request.phase, Phase::Finished) {
                Phase::Submitted(state) => Phase::Prefilling(state.prefill(run, loading)),
                Phase::PrefetchDone(state) => Phase::Prefilling(state.prefill(run, loading)),
                other => other,
            };
        }
        self.requests.insert(turn, request);
        !stays_first
    }

    fn start(&mut self, turn: u64, keys: &PageKeys) -> Option<(Run, Option<OperationId>)> {
        let cacheable = *keys.root() == self.config.root;
        let usable = &keys.as_slice()[..self.usable(keys)];
        let found = if cacheable {
            self.index.find(usable)
        } else {
            Match::default()
        };
        let needed = self.pages_to_run(keys) - found.device;
        // First the pins, then the room: the pages that were found must not be evicted to make room.
        let held = self.index.pin(Layer::Device, usable, found.device)?;
        let source = if found.host > found.device {
            self.index.pin(Layer::Host, usable, found.host)
        } else {
            None
        };
        let Some(own) = self.index.take_device(needed) else {
            self.index.release(held);
            source.into_iter().for_each(|source| self.index.release(source));
            return None;
        };
        let first_own = held.depth;
        let loading = source.map(|source| {
            let slots = self.index.slots(&source, first_own);
            let places = (first_own..).zip(slots.iter().zip(own.as_slice()));
            let copies = places.map(|(index, (slot, device))| CopyAt {
                index,
                key: slot.key,
                host: HostPage(slot.page(Layer::Host)),
                device: *device,
            });
            let work = Work::LoadBack(copies.collect());
            self.issue(turn, work, Holds::LoadBack { source })
        });
        let run = Run {
            held,
            first_own,
            own,
            spare: self.index.device.none(),
            cacheable,
        };
        Some((run, loading))
    }

    fn grant(&mut self, ticket: Ticket, run: &Run) {
        let shared = self.index.slots(&run.held, 0);
        let shared = shared.iter().map(|slot| DevicePage(slot.page(Layer::Device)));
        self.next.grants.push(Grant {
            ticket,
            cached: run.held.depth,
            first: 0,
            pages: shared.chain(run.own.as_slice().iter().copied()).collect(),
        });
    }

    /// A load-back has ended: shares the loaded pages, and lets the model compute the rest. A page that was not filled
    /// is above the grant's `cached`, so the model does not read it (KV18).
    pub(super) fn loaded(&mut self, id: OperationId, turn: u64, work: &Work, completed: u32, source: Pin) {
        self.counters.load_backs_cut += u64::from(completed < work.pages());
        self.index.release(source);
        let Some(ticket) = self.requests.get(&turn).map(|request| request.ticket) else {
            return;
        };
        let moved = self.with(ticket, |planner, request| {
            if request.phase.operation() != Some(id) {
                return Ok(After::Stays);
            }
            let keys = request.keys.as_slice();
            match std::mem::replace(&mut request.phase, Phase::Finished) {
                Phase::Prefilling(mut state) => {
                    planner.share_loaded(&mut state.run, keys, completed);
                    planner.grant(ticket, &state.run);
                    request.phase = Phase::Prefilling(state.loaded());
                }
                Phase::Retracting(Retracting::Loading { mut run, .. }) => {
                    planner.share_loaded(&mut run, keys, completed);
                    planner.let_go(run);
                    planner.next.retracted.push(ticket);
                    request.phase = Phase::Retracted(Retracted);
                }
                Phase::Aborting(Aborting { run: Some(mut run), .. }) => {
                    planner.share_loaded(&mut run, keys, completed);
                    planner.let_go(run);
                    return Ok(After::Ends(Ending::Aborted));
                }
                other => request.phase = other,
            }
            Ok(After::Stays)
        });
        debug_assert!(moved.is_ok(), "the request was there");
    }

    /// Publishes the pages that were loaded. No reader has them yet, so a duplicate of an indexed page is freed (KV14).
    fn share_loaded(&mut self, run: &mut Run, keys: &[PageKey], completed: u32) {
        if self.is_shared(run) {
            let losers = self.share(run, keys, run.first_own + completed);
            self.index.device.give_back(losers);
        }
    }

    /// Publishes the pages that were computed. The model goes on reading them, so a duplicate of an indexed page is
    /// kept until the request is done.
    fn share_computed(&mut self, run: &mut Run, keys: &[PageKey]) {
        let end = count(keys.len());
        let losers = if self.is_shared(run) {
            self.share(run, keys, end)
        } else {
            let computed = run.own.split_front(end.saturating_sub(run.first_own) as usize);
            run.first_own = run.first_own.max(end);
            computed
        };
        run.spare.append(losers);
    }

    /// Whether other requests may find the pages that this one computes.
    fn is_shared(&self, run: &Run) -> bool {
        run.cacheable && run.held.epoch == self.index.epoch()
    }

    /// Publishes the request's own pages up to the absolute index `end`, and moves the pin down to there.
    fn share(&mut self, run: &mut Run, keys: &[PageKey], end: u32) -> OwnedPages<DevicePage> {
        let new = &keys[run.first_own as usize..end.max(run.first_own) as usize];
        let filled = run.own.split_front(new.len());
        let losers = self.index.insert_device(&run.held, new, filled);
        let deeper = self.index.pin_below(&run.held, new);
        self.index.release(std::mem::replace(&mut run.held, deeper));
        run.first_own += count(new.len());
        losers
    }

    /// Releases everything that a run has.
    pub(super) fn let_go(&mut self, run: Run) {
        self.index.device.give_back(run.own);
        self.index.device.give_back(run.spare);
        self.index.release(run.held);
    }

    /// The model is done with a run: the computed pages are in the index, the rest is freed. Returns the pin on them,
    /// or nothing if they are not shared.
    pub(super) fn settle(&mut self, mut run: Run, keys: &[PageKey]) -> Option<Draining> {
        self.share_computed(&mut run, keys);
        if !self.is_shared(&run) {
            self.let_go(run);
            return None;
        }
        self.index.device.give_back(run.own);
        self.index.device.give_back(run.spare);
        Some(Draining { held: run.held })
    }

    pub(super) fn prefill_done(&mut self, ticket: Ticket) -> Result<Applied> {
        self.with(ticket, |planner, request| {
            match std::mem::replace(&mut request.phase, Phase::Finished) {
                Phase::Prefilling(mut state) if state.loading.is_none() => {
                    planner.share_computed(&mut state.run, request.keys.as_slice());
                    request.phase = Phase::PrefillDone(state.done());
                    Ok(After::Stays)
                }
                other => {
                    request.phase = other;
                    Err(unlawful("prefill done", request))
                }
            }
        })
    }

    pub(super) fn reserve(&mut self, ticket: Ticket, tokens: u32) -> Result<Applied> {
        self.with(ticket, |planner, request| {
            let run = match &mut request.phase {
                Phase::PrefillDone(state) => &mut state.run,
                Phase::Decoding(state) => &mut state.run,
                _ => return Err(unlawful("reserve", request)),
            };
            let all = request.keys.tokens() + u64::from(tokens);
            let wanted = all.div_ceil(u64::from(planner.config.page_tokens));
            let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
            let first = run.room();
            let Some(more) = planner.index.take_device(wanted.saturating_sub(first)) else {
                let why = "there are no free device pages for these tokens; retract a request, or finish one";
                return Err(Error::new(ErrorKind::Capacity, "kv.reserve", why)
                    .with("request", ticket.request.0)
                    .with("pages", wanted.saturating_sub(first)));
            };
            if more.len() > 0 {
                planner.next.grants.push(Grant {
                    ticket,
                    cached: run.held.depth,
                    first,
                    pages: more.as_slice().to_vec(),
                });
            }
            run.own.append(more);
            Ok(After::Stays)
        })
    }

    pub(super) fn appended(&mut self, ticket: Ticket, tokens: &[u32]) -> Result<Applied> {
        self.with(ticket, |planner, request| {
            let room = match &request.phase {
                Phase::PrefillDone(state) => state.run.room(),
                Phase::Decoding(state) => state.run.room(),
                _ => return Err(unlawful("appended", request)),
            };
            let room = u64::from(room) * u64::from(planner.config.page_tokens);
            if request.keys.tokens() + tokens.len() as u64 > room {
                return Err(unlawful("more tokens than reserved: send Reserve first", request));
            }
            request.keys.extend(tokens);
            request.phase = match std::mem::replace(&mut request.phase, Phase::Finished) {
                Phase::PrefillDone(state) => Phase::Decoding(state.decode()),
                other => other,
            };
            Ok(After::Stays)
        })
    }
}
