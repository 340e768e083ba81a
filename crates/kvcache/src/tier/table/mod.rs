//! The open operations of a tier: their states, their deadlines and their pending events. No threads, no I/O; the
//! states are drawn in [`super`].
//!
//! Invariants, checked by a property test:
//! - KV3: every operation that was accepted gets exactly one [`TierEvent::Done`]; advice comes at most once, and before it.
//! - T1: an operation that was begun is done only after its worker has returned and its memory has landed (KV2, KV5).
//! - T2: a lane never has more open operations than its limit, including those whose end the caller has not fetched
//!   yet.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tensorhold_core::Timestamp;

use super::page::Stop;
use crate::plan::{Completion, Failure, Operation, OperationId, Work};

/// Operations of one kind share threads and a limit, so that one kind cannot hold up another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    Query,
    Prefetch,
    Backup,
    Copy,
}

impl Lane {
    pub(super) const ALL: [Self; 4] = [Self::Query, Self::Prefetch, Self::Backup, Self::Copy];

    pub(super) const fn of(work: &Work) -> Self {
        match work {
            Work::Query(_) => Self::Query,
            Work::Prefetch(_) => Self::Prefetch,
            Work::Backup(_) => Self::Backup,
            Work::LoadBack(_) | Work::WriteBack(_) => Self::Copy,
        }
    }
}

/// The result of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// The operation is open; its one terminal event comes by poll or wait.
    Accepted,
    /// Nothing was begun. This is the one terminal event of the operation: it does not come again.
    Refused(Completion),
    /// An operation with this id is open already; this submission changed nothing.
    AlreadyOpen,
}

/// The result of a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The operation was not begun; its terminal event can be fetched.
    NotBegun,
    /// The operation is in flight: no further part of it is begun, and its terminal event comes when its memory is
    /// free.
    Cancelling,
    /// There is nothing to cancel: the operation is not open, or has ended.
    Nothing,
}

/// An event of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierEvent {
    /// Advice: the operation's deadline has passed, and the request that waits for it should go on without it. Its
    /// pages are **still in use**: they belong to the operation until it is [`TierEvent::Done`].
    TimedOut(OperationId),
    /// The operation's one terminal event. Nothing touches its pages any more.
    Done(Completion),
}

/// Counters since the tier was started, and gauges of the present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is what its name says")]
pub struct TierStats {
    pub accepted: u64,
    pub refused: u64,
    pub done_whole: u64,
    pub done_in_part: u64,
    /// Prefetches that missed a page, though a query had reported it as present.
    pub missed: u64,
    pub corrupt: u64,
    pub timed_out: u64,
    pub cancelled: u64,
    /// How often a waiting request was told to go on while the operation was still in flight.
    pub advised: u64,
    /// Operations that are open now, including those whose end the caller has not fetched yet.
    pub open: u64,
    /// Those of them whose worker has returned while the engine still has their memory.
    pub quarantined: u64,
}

impl TierStats {
    /// The counters of operations, each with its name.
    pub fn by_outcome(&self) -> [(&'static str, u64); 9] {
        [
            ("accepted", self.accepted),
            ("refused", self.refused),
            ("done_whole", self.done_whole),
            ("done_in_part", self.done_in_part),
            ("missed", self.missed),
            ("corrupt", self.corrupt),
            ("timed_out", self.timed_out),
            ("cancelled", self.cancelled),
            ("advised", self.advised),
        ]
    }
}

/// The work of one worker thread.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: OperationId,
    pub(super) work: Work,
    pub(super) stop: Stop,
    pub(super) deadline: Timestamp,
}

#[derive(Debug)]
enum State {
    Queued(Work),
    Running,
    /// The worker has returned; the engine may still have the memory.
    Landing(Completion),
    /// Its end waits to be fetched.
    Ended,
}

#[derive(Debug)]
struct Open {
    lane: Lane,
    state: State,
    stop: Stop,
    deadline: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    most: [usize; Lane::ALL.len()],
    open_in: [usize; Lane::ALL.len()],
    queues: [VecDeque<OperationId>; Lane::ALL.len()],
    open: HashMap<OperationId, Open>,
    /// Deadlines of operations that have not ended and whose waiters have not been told.
    deadlines: BTreeSet<(Timestamp, OperationId)>,
    outbox: VecDeque<TierEvent>,
    closing: bool,
    stats: TierStats,
}

fn done(operation: OperationId, completed: u32, failure: Option<Failure>) -> Completion {
    Completion {
        operation,
        completed,
        failure,
    }
}

impl Table {
    pub(super) fn new(most: [usize; Lane::ALL.len()]) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    pub(super) fn submit(&mut self, operation: Operation, within: Duration, now: Timestamp) -> Submitted {
        let Operation { id, work } = operation;
        let lane = Lane::of(&work);
        let full = self.open_in[lane as usize] >= self.most[lane as usize];
        let Entry::Vacant(place) = self.open.entry(id) else {
            return Submitted::AlreadyOpen;
        };
        if full || self.closing {
            self.stats.refused += 1;
            return Submitted::Refused(done(id, 0, Some(Failure::Refused)));
        }
        let deadline = now.after(within);
        place.insert(Open {
            lane,
            state: State::Queued(work),
            stop: Stop::default(),
            deadline,
        });
        self.open_in[lane as usize] += 1;
        self.queues[lane as usize].push_back(id);
        self.deadlines.insert((deadline, id));
        self.stats.accepted += 1;
        Submitted::Accepted
    }

    /// The next operation of a lane; it is in flight from now on.
    pub(super) fn next(&mut self, lane: Lane, now: Timestamp) -> Option<Job> {
        loop {
            let id = self.queues[lane as usize].pop_front()?;
            // An operation that ended in the queue is skipped.
            let Some(open) = self.open.get_mut(&id) else { continue };
            if !matches!(open.state, State::Queued(_)) {
                continue;
            }
            if open.deadline <= now {
                self.end(done(id, 0, Some(Failure::TimedOut)));
                continue;
            }
            if let State::Queued(work) = std::mem::replace(&mut open.state, State::Running) {
                let (stop, deadline) = (open.stop.clone(), open.deadline);
                return Some(Job {
                    id,
                    work,
                    stop,
                    deadline,
                });
            }
        }
    }

    /// A worker has returned from an operation; the memory may not be free yet.
    pub(super) fn returned(&mut self, completion: Completion) {
        if let Some(open) = self.open.get_mut(&completion.operation)
            && matches!(open.state, State::Running)
        {
            open.state = State::Landing(completion);
        }
    }

    /// The memory of an operation that was returned is free.
    pub(super) fn landed(&mut self, id: OperationId) {
        if let Some(open) = self.open.get_mut(&id)
            && let State::Landing(completion) = &open.state
        {
            let completion = completion.clone();
            self.end(completion);
        }
    }

    pub(super) fn cancel(&mut self, id: OperationId) -> Cancelled {
        let Some(open) = self.open.get_mut(&id) else {
            return Cancelled::Nothing;
        };
        open.stop.stop();
        match open.state {
            State::Queued(_) => {
                self.end(done(id, 0, Some(Failure::Cancelled)));
                Cancelled::NotBegun
            }
            State::Running | State::Landing(_) => Cancelled::Cancelling,
            State::Ended => Cancelled::Nothing,
        }
    }

    /// Ends the operations that were not begun in time, and issues advice for those in flight whose deadline has
    /// passed.
    pub(super) fn expire(&mut self, now: Timestamp) {
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            match self.open.get(&id).map(|open| &open.state) {
                Some(State::Queued(_)) => self.end(done(id, 0, Some(Failure::TimedOut))),
                Some(State::Running | State::Landing(_)) => {
                    self.stats.advised += 1;
                    self.outbox.push_back(TierEvent::TimedOut(id));
                }
                Some(State::Ended) | None => {}
            }
        }
    }

    /// The next time at which [`Table::expire`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes all pending events. An operation whose end is among them is not open any more.
    pub(super) fn drain(&mut self) -> Vec<TierEvent> {
        let events: Vec<TierEvent> = self.outbox.drain(..).collect();
        for event in &events {
            if let TierEvent::Done(completion) = event
                && let Some(open) = self.open.remove(&completion.operation)
            {
                self.open_in[open.lane as usize] -= 1;
            }
        }
        events
    }

    pub(super) fn has_news(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Refuses new operations, ends those that were not begun and stops those in flight.
    pub(super) fn close(&mut self) {
        self.closing = true;
        let mut ids: Vec<OperationId> = self.open.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.cancel(id);
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    pub(super) fn stats(&self) -> TierStats {
        let landing = |open: &&Open| matches!(open.state, State::Landing(_));
        TierStats {
            open: self.open.len() as u64,
            quarantined: self.open.values().filter(landing).count() as u64,
            ..self.stats
        }
    }

    /// The one place where an operation ends.
    fn end(&mut self, completion: Completion) {
        let Some(open) = self.open.get_mut(&completion.operation) else {
            return;
        };
        open.state = State::Ended;
        self.deadlines.remove(&(open.deadline, completion.operation));
        match completion.failure {
            None => self.stats.done_whole += 1,
            Some(_) => self.stats.done_in_part += 1,
        }
        match completion.failure {
            Some(Failure::Miss) if open.lane == Lane::Prefetch => self.stats.missed += 1,
            Some(Failure::Corrupt) => self.stats.corrupt += 1,
            Some(Failure::TimedOut) => self.stats.timed_out += 1,
            Some(Failure::Cancelled) => self.stats.cancelled += 1,
            _ => {}
        }
        self.outbox.push_back(TierEvent::Done(completion));
    }
}

#[cfg(test)]
mod tests;
