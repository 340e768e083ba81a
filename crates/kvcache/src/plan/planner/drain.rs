//! From the device to the host, and from there to L3: finish, retract, write-back and backup.

use std::ops::Range;

use tensorhold_core::Result;

use super::{After, Flaw, Holds, Planner, unlawful};
use crate::plan::event::Applied;
use crate::plan::index::Pin;
use crate::plan::index::node::Layer;
use crate::plan::key::PageKey;
use crate::plan::operation::{CopyAt, DevicePage, HostPage, HostPageAt, OperationId, Work};
use crate::plan::pool::OwnedPages;
use crate::plan::request::{Draining, Ending, Phase, Request, Retracted, Retracting, Ticket, WritingBack};

impl Planner {
    pub(super) fn finish(&mut self, ticket: Ticket) -> Result<Applied> {
        self.with(ticket, |planner, request| {
            let run = match std::mem::replace(&mut request.phase, Phase::Finished) {
                Phase::PrefillDone(state) => state.run,
                Phase::Decoding(state) => state.run,
                other => {
                    request.phase = other;
                    return Err(unlawful("finish", request));
                }
            };
            let Some(draining) = planner.settle(run, request.keys.as_slice()) else {
                return Ok(After::Ends(Ending::Finished));
            };
            planner.draining.push_back(ticket.turn);
            request.phase = Phase::Draining(draining);
            Ok(After::Stays)
        })
    }

    pub(super) fn retract(&mut self, ticket: Ticket) -> Result<Applied> {
        let retracted = self.with(ticket, |planner, request| {
            let run = match std::mem::replace(&mut request.phase, Phase::Finished) {
                Phase::Prefilling(state) => {
                    request.phase = match state.loading {
                        Some(operation) => Phase::Retracting(Retracting::Loading {
                            run: state.run,
                            operation,
                        }),
                        // How far the model has come is not known, so the pages that it computed cannot be kept.
                        None => {
                            planner.let_go(state.run);
                            planner.next.retracted.push(ticket);
                            Phase::Retracted(Retracted)
                        }
                    };
                    return Ok(After::Stays);
                }
                Phase::PrefillDone(state) => state.run,
                Phase::Decoding(state) => state.run,
                other => {
                    request.phase = other;
                    return Err(unlawful("retract", request));
                }
            };
            request.phase = match planner.settle(run, request.keys.as_slice()) {
                Some(draining) => {
                    planner.draining.push_back(ticket.turn);
                    Phase::Retracting(Retracting::Draining(draining))
                }
                None => {
                    planner.next.retracted.push(ticket);
                    Phase::Retracted(Retracted)
                }
            };
            Ok(After::Stays)
        });
        if retracted.is_ok() {
            self.withdraw_grants(ticket);
        }
        retracted
    }

    /// Schedules the write-back of the pages that the host does not have.
    pub(super) fn write_back(&mut self, turn: u64) {
        let Some(ticket) = self.requests.get(&turn).map(|request| request.ticket) else {
            return;
        };
        let moved = self.with(ticket, |planner, request| {
            match std::mem::replace(&mut request.phase, Phase::Finished) {
                Phase::Draining(Draining { held }) => {
                    let Some(operation) = planner.copy_out(turn, request.keys.as_slice(), held) else {
                        return Ok(After::Ends(Ending::Finished));
                    };
                    request.phase = Phase::WritingBack(WritingBack { operation });
                }
                Phase::Retracting(Retracting::Draining(Draining { held })) => {
                    request.phase = match planner.copy_out(turn, request.keys.as_slice(), held) {
                        Some(operation) => Phase::Retracting(Retracting::WritingBack(WritingBack { operation })),
                        None => {
                            planner.next.retracted.push(ticket);
                            Phase::Retracted(Retracted)
                        }
                    };
                }
                other => request.phase = other,
            }
            Ok(After::Stays)
        });
        debug_assert!(moved.is_ok(), "the request was there");
    }

    /// Writes back as much as there is room for, from the end of the host match. `None` if there is nothing to do.
    fn copy_out(&mut self, turn: u64, keys: &[PageKey], held: Pin) -> Option<OperationId> {
        if held.epoch != self.index.epoch() {
            self.index.release(held);
            return None;
        }
        let keys = &keys[..held.depth as usize];
        let start = self.index.find(keys).host;
        let Some(anchor) = self.index.pin(Layer::Host, keys, start) else {
            self.index.release(held);
            return None;
        };
        let pages = self.index.take_host_up_to(held.depth - start);
        if pages.len() == 0 {
            self.counters.not_written_back += u64::from(start < held.depth);
            self.index.host.give_back(pages);
            self.index.release(held);
            self.back_up(turn, anchor);
            return None;
        }
        let slots = self.index.slots(&held, start);
        let places = (start..).zip(slots.iter().zip(pages.as_slice()));
        let copies = places.map(|(index, (slot, host))| CopyAt {
            index,
            key: slot.key,
            host: *host,
            device: DevicePage(slot.page(Layer::Device)),
        });
        let work = Work::WriteBack(copies.collect());
        let source = held;
        Some(self.issue(turn, work, Holds::WriteBack { source, anchor, pages }))
    }

    /// Publishes the pages that every rank has written, frees the rest, and schedules the backup of the published ones.
    pub(super) fn written_back(
        &mut self,
        id: OperationId,
        turn: u64,
        work: &Work,
        completed: u32,
        (source, anchor): (Pin, Pin),
        pages: OwnedPages<HostPage>,
    ) {
        let keys: Vec<PageKey> = match work {
            Work::WriteBack(copies) => copies.iter().map(|copy| copy.key).collect(),
            _ => Vec::new(),
        };
        self.publish_host(&anchor, &keys, completed, pages);
        let written = self.index.pin_below(&anchor, &keys[..completed as usize]);
        self.index.release(anchor);
        self.index.release(source);
        self.back_up(turn, written);
        let Some(ticket) = self.requests.get(&turn).map(|request| request.ticket) else {
            return;
        };
        let moved = self.with(ticket, |planner, request| Ok(planner.after_write_back(id, request)));
        debug_assert!(moved.is_ok(), "the request was there");
    }

    fn after_write_back(&mut self, id: OperationId, request: &mut Request) -> After {
        if request.phase.operation() != Some(id) {
            return After::Stays;
        }
        match std::mem::replace(&mut request.phase, Phase::Finished) {
            Phase::WritingBack(_) => return After::Ends(Ending::Finished),
            Phase::Aborting(_) => return After::Ends(Ending::Aborted),
            Phase::Retracting(_) => {
                self.next.retracted.push(request.ticket);
                request.phase = Phase::Retracted(Retracted);
            }
            other => request.phase = other,
        }
        After::Stays
    }

    /// Backs up the pages that a host pin holds and L3 has not acknowledged, and some that it may have evicted since.
    /// The pin is kept until the backup is acknowledged.
    fn back_up(&mut self, turn: u64, source: Pin) {
        let mut wanted = Vec::new();
        if source.epoch == self.index.epoch() {
            let again = self.rechecked_part(turn, source.depth);
            self.index.each_slot(&source, 0, |index, slot| {
                if (!slot.in_l3() || again.contains(&index)) && !slot.on_its_way() {
                    slot.set_on_its_way(true);
                    let host = HostPage(slot.page(Layer::Host));
                    wanted.push(HostPageAt {
                        index,
                        key: slot.key,
                        host,
                    });
                }
            });
        }
        if wanted.is_empty() {
            self.index.release(source);
            return;
        }
        wanted.reverse();
        let mut source = Some(source);
        if self.has(Flaw::BackupNotPinned) {
            if let Some(source) = &source {
                self.index.each_slot(source, 0, |_, slot| slot.set_on_its_way(false));
            }
            source.take().into_iter().for_each(|source| self.index.release(source));
        }
        self.issue(turn, Work::Backup(wanted), Holds::Backup { source });
    }

    /// Which of a request's pages are backed up even though L3 has acknowledged them. A long request's pages have their
    /// turn one part at a time; the turn number picks the part, the same on every rank.
    fn rechecked_part(&mut self, turn: u64, depth: u32) -> Range<u32> {
        let most = self.config.recheck_pages;
        if most == 0 || self.rechecked == Some(self.now) {
            return 0..0;
        }
        self.rechecked = Some(self.now);
        let parts = u64::from(depth.div_ceil(most).max(1));
        // Multiplied, so that requests that take turns do not each get the same part again and again.
        let part = (turn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % parts;
        let start = u32::try_from(part).unwrap_or(0).saturating_mul(most);
        start..start.saturating_add(most)
    }

    /// Marks the pages that L3 has now. Pages that it failed to store are not marked (KV23). Either way the pages are
    /// released.
    pub(super) fn backed_up(&mut self, work: &Work, completed: u32, source: Option<Pin>) {
        let Work::Backup(pages) = work else { return };
        self.counters.backups_cut += u64::from(completed < work.pages());
        let completed = if self.has(Flaw::FailedBackupPersists) {
            pages.len()
        } else {
            completed as usize
        };
        let Some(source) = source else { return };
        let mut rest = pages.len();
        self.index.each_slot(&source, 0, |index, slot| {
            let Some(last) = rest.checked_sub(1).filter(|last| pages[*last].index == index) else {
                return;
            };
            rest = last;
            slot.set_on_its_way(false);
            slot.set_in_l3(last < completed);
        });
        self.index.release(source);
    }
}
