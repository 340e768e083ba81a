//! What can happen in the world. Every action makes sense in every state, so that any sequence can be cut anywhere.

use tensorhold_kvcache::plan::{Applied, Completion, OperationId, PlanEvent, State, Ticket, Work};

use crate::cases::{Case, note, note_times};
use crate::world::{Choice, PAGE, World};

/// Something that happens: what, and bits to decide the rest by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Action {
    pub(crate) what: u8,
    pub(crate) bits: u32,
}

impl World {
    pub(crate) fn act(&mut self, action: Action) {
        let mut choice = Choice(action.bits);
        match action.what {
            0..=13 => self.act_submit(&mut choice),
            14..=44 => self.act_complete(&mut choice),
            45..=61 => drop(self.step(u64::from(choice.below(2)))),
            62..=83 => self.act_advance(&mut choice),
            84..=87 => self.act_retract(&mut choice),
            88..=91 => self.act_abort(&mut choice),
            92..=94 => self.act_noise(&mut choice),
            95..=96 => self.act_forget(&mut choice),
            97 => drop(self.step(u64::from(2 + choice.below(5)))),
            98 => self.act_clear(&mut choice),
            _ => self.act_flush(&mut choice),
        }
    }

    /// Prompts of few families, with few places to branch: they share prefixes, and come again.
    fn act_submit(&mut self, choice: &mut Choice) {
        let family = choice.below(2);
        let length = 1 + choice.below(8 * PAGE + 1);
        let branch = PAGE * choice.below(6);
        let other = choice.below(3);
        let tokens: Vec<u32> = (0..length)
            .map(|at| if at < branch { family } else { 10 + family + 2 * other })
            .collect();
        let id = u64::from(choice.below(5));
        self.submit(id, &tokens);
    }

    pub(crate) fn act_complete(&mut self, choice: &mut Choice) {
        let Some(id) = self.choose_flight(choice) else { return };
        let pages = self.flights[&id].operation.work.pages();
        let ranks = self.memory.len();
        let fate = choice.below(16);
        let cut = choice.below(pages + 1);
        for rank in 0..ranks {
            let (limit, lies) = match fate {
                0 => (Some(cut), false),
                1 => (Some(0), false),
                2 if rank == 0 => (Some(cut), false),
                3 if rank + 1 == ranks => (Some(0), false),
                4 => (None, true),
                5 if rank > 0 => {
                    note(Case::OneRankSlow);
                    return;
                }
                _ => (None, false),
            };
            self.perform(id, rank, limit, lies);
        }
        self.deliver(id);
    }

    fn choose_flight(&self, choice: &mut Choice) -> Option<OperationId> {
        let count = u32::try_from(self.flights.len()).unwrap();
        let at = if choice.one_in(3) { choice.below(count) } else { 0 };
        self.flights.keys().nth(at as usize).copied()
    }

    fn choose_live(&self, choice: &mut Choice) -> Option<(u64, Ticket, State)> {
        let count = u32::try_from(self.live.len()).unwrap();
        let live = self.live.values().nth(choice.below(count) as usize)?;
        Some((live.ticket.turn, live.ticket, self.state(live.ticket)?))
    }

    /// A request does what comes next for it.
    fn act_advance(&mut self, choice: &mut Choice) {
        let Some((turn, ticket, state)) = self.choose_live(choice) else {
            return;
        };
        match state {
            State::Prefilling if self.is_running(turn) => {
                self.compute(turn);
                self.tell(&PlanEvent::PrefillDone(ticket)).unwrap();
            }
            State::PrefillDone | State::Decoding => {
                if choice.one_in(2) {
                    self.compute(turn);
                    self.tell(&PlanEvent::Finish(ticket)).unwrap();
                } else {
                    let tokens: Vec<u32> = (0..1 + choice.below(3)).map(|_| 30 + choice.below(2)).collect();
                    self.append(turn, &tokens);
                }
            }
            State::Retracted => {
                note_times(
                    Case::Retracted,
                    u64::from(self.tell(&PlanEvent::Resume(ticket)).is_ok()),
                );
            }
            _ => {}
        }
    }

    fn act_retract(&mut self, choice: &mut Choice) {
        let Some((_, ticket, state)) = self.choose_live(choice) else {
            return;
        };
        let lawful = matches!(state, State::Prefilling | State::PrefillDone | State::Decoding);
        assert_eq!(self.tell(&PlanEvent::Retract(ticket)).is_ok(), lawful);
    }

    fn act_abort(&mut self, choice: &mut Choice) {
        let Some((_, ticket, state)) = self.choose_live(choice) else {
            return;
        };
        let waits = self.planner().waits_for(ticket);
        let work = waits
            .and_then(|id| self.flights.get(&id))
            .map(|flight| &flight.operation.work);
        let case = match (state, work) {
            (State::Submitted, Some(_)) => Case::AbortSubmittedQuerying,
            (State::Submitted, None) => Case::AbortSubmittedWaiting,
            (State::Prefetching, _) => Case::AbortPrefetching,
            (State::PrefetchDone, _) => Case::AbortPrefetchDone,
            (State::Prefilling, Some(_)) => Case::AbortPrefillingLoading,
            (State::Prefilling, None) => Case::AbortPrefillingRunning,
            (State::PrefillDone, _) => Case::AbortPrefillDone,
            (State::Decoding, _) => Case::AbortDecoding,
            (State::Draining, _) => Case::AbortDraining,
            (State::WritingBack, _) => Case::AbortWritingBack,
            (State::Retracting, Some(Work::LoadBack(_))) => Case::AbortRetractingLoading,
            (State::Retracting, Some(_)) => Case::AbortRetractingWriting,
            (State::Retracting, None) => Case::AbortRetractingDraining,
            (State::Retracted, _) => Case::AbortRetracted,
            (State::Aborting | State::Finished, _) => Case::AbortTwice,
        };
        note(case);
        let backing = |work: &Work| matches!(work, Work::Backup(_));
        if self.flights.values().any(|flight| backing(&flight.operation.work)) {
            note(Case::AbortBackupInFlight);
        }
        if let Some(Work::Prefetch(pages)) = work {
            let last = pages.last().map(|at| at.key);
            let same = |work: &Work| matches!(work, Work::Prefetch(pages) if pages.last().map(|at| at.key) == last);
            let together = self
                .flights
                .values()
                .filter(|flight| same(&flight.operation.work))
                .count();
            note_times(Case::SameSuffixOneAborts, u64::from(together > 1));
        }
        let lawful = case != Case::AbortTwice;
        assert_eq!(self.tell(&PlanEvent::Abort(ticket)).is_ok(), lawful);
    }

    /// Events that should change nothing: duplicates, unknown ids, events that do not fit.
    fn act_noise(&mut self, choice: &mut Choice) {
        let careful = choice.one_in(4);
        let before = careful.then(|| self.picture());
        match choice.below(3) {
            0 => {
                let count = u32::try_from(self.delivered.len()).unwrap();
                let Some(again) = self.delivered.get(choice.below(count) as usize).cloned() else {
                    return;
                };
                note(Case::DuplicateCompletion);
                assert_eq!(self.tell(&PlanEvent::Completed(again)).unwrap(), Applied::Ignored);
            }
            1 => {
                note(Case::UnknownCompletion);
                let stranger = Completion {
                    operation: OperationId(1 << 40),
                    completed: choice.below(9),
                    failure: None,
                };
                let ranks = vec![stranger; self.memory.len()];
                assert_eq!(self.tell(&PlanEvent::Completed(ranks)).unwrap(), Applied::Ignored);
            }
            _ => {
                let count = u32::try_from(self.past.len()).unwrap();
                let Some(past) = self.past.get(choice.below(count) as usize).copied() else {
                    return;
                };
                let again = self.live.values().any(|live| live.ticket.request == past.request);
                note_times(Case::LateEventReusedId, u64::from(again));
                note(Case::Unlawful);
                let event = match choice.below(6) {
                    0 => PlanEvent::Abort(past),
                    1 => PlanEvent::Finish(past),
                    2 => PlanEvent::PrefillDone(past),
                    3 => PlanEvent::Appended(past, vec![1]),
                    4 => PlanEvent::Retract(past),
                    _ => PlanEvent::Resume(past),
                };
                assert!(self.tell(&event).is_err(), "{event:?} was taken");
            }
        }
        if let Some(before) = before {
            assert_eq!(
                before,
                self.picture(),
                "KV3: what should change nothing has changed something"
            );
        }
    }

    fn picture(&self) -> String {
        let mut all = String::new();
        for live in self.live.values() {
            all.push_str(&format!("{:?} {:?};", live.ticket, self.state(live.ticket)));
        }
        let planner = self.planner();
        all + &format!(
            "{:?} {:?} {:?}",
            planner.host_pages(),
            planner.device_pages(),
            planner.splits_and_evictions()
        )
    }

    /// The store forgets a page: on all ranks, or on one.
    fn act_forget(&mut self, choice: &mut Choice) {
        let mut keys: Vec<_> = self.memory[0].l3.keys().copied().collect();
        keys.sort();
        let count = u32::try_from(keys.len()).unwrap();
        let Some(key) = keys.get(choice.below(count) as usize) else {
            return;
        };
        let only = choice.below(6) as usize;
        let ranks = self.memory.len();
        for (rank, memory) in self.memory.iter_mut().enumerate() {
            if only >= ranks || rank == only {
                memory.l3.remove(key);
            }
        }
    }

    fn act_clear(&mut self, choice: &mut Choice) {
        if !choice.one_in(3) {
            return;
        }
        let busy = u64::from(!self.flights.is_empty());
        if choice.one_in(2) {
            note_times(Case::ClearInFlight, busy);
            self.tell(&PlanEvent::Clear).unwrap();
        } else {
            note_times(Case::WeightsInFlight, busy);
            self.new_root(u8::try_from(choice.below(2)).unwrap());
        }
    }

    /// A long prompt comes and goes, so that unpinned pages are evicted; or the same prompt comes twice at once.
    fn act_flush(&mut self, choice: &mut Choice) {
        let token = if choice.one_in(2) { 50 } else { 12 };
        let tokens: Vec<u32> = (0..7 * PAGE + 1).map(|_| token).collect();
        self.submit(8, &tokens);
        if token == 12 {
            self.submit(9, &tokens);
        }
    }

    /// Everything comes to an end: no request is stuck, nothing is left behind.
    pub(crate) fn settle(&mut self) {
        for round in 0..200 {
            if !self.planner().pending() && self.flights.is_empty() {
                break;
            }
            let ids: Vec<_> = self.flights.keys().copied().collect();
            for id in ids {
                for rank in 0..self.memory.len() {
                    self.perform(id, rank, None, false);
                }
                self.deliver(id);
            }
            let turns: Vec<_> = self.live.keys().copied().collect();
            for turn in turns {
                let Some(ticket) = self.live.get(&turn).map(|live| live.ticket) else {
                    continue;
                };
                match self.state(ticket) {
                    Some(State::Prefilling) if self.is_running(turn) => {
                        self.compute(turn);
                        self.tell(&PlanEvent::PrefillDone(ticket)).unwrap();
                    }
                    Some(State::PrefillDone | State::Decoding) => {
                        self.compute(turn);
                        self.tell(&PlanEvent::Finish(ticket)).unwrap();
                    }
                    Some(State::Retracted) => {
                        let event = if round % 2 == 0 {
                            PlanEvent::Resume(ticket)
                        } else {
                            PlanEvent::Abort(ticket)
                        };
                        self.tell(&event).ok();
                    }
                    _ => {}
                }
            }
            self.step(1);
        }
        assert!(
            self.live.is_empty(),
            "KV19: stuck: {:?}",
            self.live
                .values()
                .map(|live| (live.ticket, self.state(live.ticket)))
                .collect::<Vec<_>>()
        );
        assert!(
            !self.planner().pending(),
            "KV24: nothing is under way, but work is pending"
        );
        assert_eq!(
            (self.planner().host_pages().1, self.planner().device_pages().1),
            (0, 0),
            "KV4"
        );
        self.note_counters();
    }
}
