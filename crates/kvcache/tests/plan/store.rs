//! How operations end: what each rank's store and memory make of them.

use std::collections::BTreeMap;

use tensorhold_kvcache::plan::{Applied, Completion, Failure, OperationId, PageKey, PlanEvent, Work};

use crate::cases::{Case, note, note_times};
use crate::world::{InFlight, Live, World};

impl World {
    /// One rank does its part of an operation, as far as the random bits let it: `limit` pages at most.
    pub(crate) fn perform(&mut self, id: OperationId, rank: usize, limit: Option<u32>, lies: bool) {
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if flight.ranks[rank].is_some() {
            return;
        }
        let memory = &mut self.memory[rank];
        let work = &flight.operation.work;
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        let mut missed = false;
        let completed = match work {
            Work::Query(keys) if lies => keys.len(),
            Work::Query(keys) => keys
                .iter()
                .take(limit)
                .take_while(|at| memory.l3.contains_key(&at.key))
                .count(),
            Work::Prefetch(pages) => {
                let there: Vec<bool> = pages.iter().map(|at| memory.l3.contains_key(&at.key)).collect();
                let completed = there.iter().take(limit).take_while(|there| **there).count();
                missed = there.get(completed) == Some(&false);
                if there.first() == Some(&false) && there.contains(&true) {
                    note(Case::HeadMissing);
                }
                for (place, at) in pages.iter().enumerate() {
                    // Pages after the first failure may have been written, too.
                    match memory.l3.get(&at.key) {
                        Some(content) if place != completed => memory.host.insert(at.host, *content),
                        _ => memory.host.remove(&at.host),
                    };
                }
                completed
            }
            Work::LoadBack(pages) => copy(
                pages.iter().map(|at| at.host),
                pages.iter().map(|at| at.device),
                limit,
                &memory.host,
                &mut memory.device,
            ),
            Work::WriteBack(pages) => copy(
                pages.iter().map(|at| at.device),
                pages.iter().map(|at| at.host),
                limit,
                &memory.device,
                &mut memory.host,
            ),
            Work::Backup(pages) => {
                let mut completed = 0;
                for at in pages.iter().take(limit) {
                    let content = memory.host.get(&at.host).copied();
                    assert_eq!(
                        content,
                        Some(at.key),
                        "L3 is given wrong bytes for page {} by {id}",
                        at.index
                    );
                    memory.l3.insert(at.key, at.key);
                    completed += 1;
                }
                completed
            }
        };
        if missed && matches!(work, Work::Prefetch(pages) if self.said.contains(&pages[completed].key)) {
            note(Case::ExistsThenMiss);
        }
        let completed = u32::try_from(completed).unwrap();
        let short = completed < work.pages();
        flight.ranks[rank] = Some(Completion {
            operation: id,
            completed,
            failure: short.then_some(if missed { Failure::Miss } else { Failure::Corrupt }),
        });
    }

    /// Every rank has done its part: tells the planners.
    pub(crate) fn deliver(&mut self, id: OperationId) {
        let ready = self
            .flights
            .get(&id)
            .is_some_and(|flight| flight.ranks.iter().all(Option::is_some));
        if !ready {
            return;
        }
        if self.flights.keys().next() != Some(&id) {
            note(Case::Reordered);
        }
        let Some(flight) = self.flights.remove(&id) else { return };
        let ranks: Vec<Completion> = flight.ranks.iter().flatten().cloned().collect();
        self.note_completion(&flight, &ranks);
        let least = ranks.iter().map(|rank| rank.completed).min().unwrap() as usize;
        match &flight.operation.work {
            Work::Query(keys) => self.said.extend(keys.iter().take(least).map(|at| at.key)),
            Work::Prefetch(pages) => {
                self.acknowledged.extend(pages.iter().take(least).map(|at| at.key));
            }
            Work::Backup(pages) => self.acknowledged.extend(pages.iter().take(least).map(|at| at.key)),
            Work::WriteBack(pages) => self.ever.extend(pages.iter().take(least).map(|at| at.key)),
            Work::LoadBack(_) => {}
        }
        self.delivered.push(ranks.clone());
        let answer = self.tell(&PlanEvent::Completed(ranks));
        assert_eq!(answer.unwrap(), Applied::Done, "KV3: the operation was in flight");
    }

    fn note_completion(&self, flight: &InFlight, ranks: &[Completion]) {
        let work = &flight.operation.work;
        let counts = || ranks.iter().map(|rank| rank.completed);
        let (least, most) = (counts().min().unwrap(), counts().max().unwrap());
        note_times(Case::CountsDiffer, u64::from(least < most));
        note_times(Case::OneRankFails, u64::from(least == 0 && most == work.pages()));
        let cut = least < work.pages();
        match work {
            Work::Prefetch(_) => {
                note_times(Case::ZeroGet, u64::from(most == 0));
                note_times(Case::PartialGet, u64::from(cut && least > 0));
                let short = ranks.iter().any(|rank| rank.failure == Some(Failure::Corrupt));
                note_times(Case::ShortGet, u64::from(short));
                let waits = flight
                    .ticket
                    .is_some_and(|ticket| self.planner().waits_for(ticket) == Some(flight.operation.id));
                note_times(Case::LateCompletion, u64::from(!waits));
            }
            Work::Backup(_) => note_times(Case::FailedBackup, u64::from(cut)),
            Work::WriteBack(_) => note_times(Case::CutWriteBack, u64::from(cut)),
            Work::LoadBack(_) => note_times(Case::CutLoadBack, u64::from(cut)),
            Work::Query(_) => {}
        }
        if let Some(was) = flight.ticket {
            let again = |live: &Live| live.ticket.request == was.request && live.ticket != was;
            note_times(Case::LateCompletionReusedId, u64::from(self.live.values().any(again)));
        }
    }
}

fn copy<A: Ord, B: Ord>(
    from: impl Iterator<Item = A>,
    to: impl Iterator<Item = B>,
    limit: usize,
    source: &BTreeMap<A, PageKey>,
    target: &mut BTreeMap<B, PageKey>,
) -> usize {
    let mut completed = 0;
    for (from, to) in from.zip(to).take(limit) {
        match source.get(&from) {
            Some(content) => target.insert(to, *content),
            None => target.remove(&to),
        };
        completed += 1;
    }
    completed
}
