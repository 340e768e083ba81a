//! Which objects are on their way to memory: one state per object, and no I/O.
//!
//! ```text
//!            trigger              next                     finish
//! (nothing) ────────▶ Triggered ───────▶ InFlight ───────▶ Absent, Failed; Resident by promotion ── remembered ─▶ (nothing)
//!     │                  │                  │
//!     │ queue full,      │                  └────────────▶ Resident in the buffer, Refused, Expired ─▶ (nothing)
//!     │ cooling down     ├─ out of time ──▶ Expired ──▶ (nothing)
//!     ▼                  ├─ cancelled, or read without it ──▶ Cancelled ──▶ (nothing)
//!   Refused              └─ pressure ──▶ Refused ──▶ (nothing)
//! ```
//!
//! A *ticket* is what a caller waits for: it collects the outcomes of the objects that it asked for, and is complete when
//! all of them have ended. Several tickets may wait for one object.
//!
//! Invariants; `check` tests those that a state shows by itself:
//! - PF1: every object that a ticket names gets exactly one outcome in it, whatever fails. So outcomes add up.
//! - PF2: an object has at most one attempt at a time: while it is triggered or in flight, further triggers join it.
//! - PF3: time erases only what has ended. A read in flight ends by its result, however long that takes; a promotion ends
//!   by what a look sees, or when its time is up.
//! - PF4: at most `queue` objects are triggered and not begun, at most as many promotions are in flight, and at most as many
//!   ended ones are remembered.
//! - PF5: an object that a request waits for is begun before every guess; among equals, the older one first.
//! - PF6: nothing is begun during a cool-down.
//! - PF7: what was read into the buffer stays there for [`keep`](crate::PrefetchConfig::keep), unless it is read, written or
//!   removed; what was promoted, for one read lease of the engine.
//! - PF8: progress of promotions is looked up for all objects at once, at most once per
//!   [`look_every`](crate::PrefetchConfig::look_every).
//!
//! A cancel has two phases: objects that were not begun end at once, those in flight when their transfer does.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tensorhold_core::{ObjectKey, Timestamp};

#[cfg(any(test, feature = "testing"))]
mod check;
mod outcome;

use crate::flaw::Flaw;
pub use outcome::{Outcome, OutcomeCounts};

/// Who wants an object. The first goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// A request waits for it.
    Wanted,
    /// It may be needed soon.
    Guess,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct AttemptId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TicketId(u64);

/// One object that a caller asks for.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    pub(crate) key: ObjectKey,
    /// Its length, if the caller knows that it is on SSD.
    pub(crate) bytes: Option<u64>,
    /// How it has ended already.
    pub(crate) ended: Option<Outcome>,
}

/// An attempt that was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) id: AttemptId,
    pub(crate) key: ObjectKey,
    pub(crate) bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) queue: usize,
    /// How long an object may wait before it is begun.
    pub(crate) begin_within: Duration,
    /// How long an outcome is remembered.
    pub(crate) remember: Duration,
    pub(crate) cool_down: Duration,
    pub(crate) look_every: Duration,
    /// Whether it is remembered that an object is resident. Not where a buffer knows that better.
    pub(crate) remember_resident: bool,
}

#[derive(Debug)]
enum State {
    Triggered {
        priority: Priority,
        since: Timestamp,
    },
    InFlight {
        since: Timestamp,
        /// For a promotion: when it counts as expired.
        promoted_by: Option<Timestamp>,
    },
    Ended(Outcome),
}

#[derive(Debug)]
struct Entry {
    attempt: AttemptId,
    bytes: Option<u64>,
    state: State,
    /// Who waits for it: a ticket, and the object's place in it.
    tickets: Vec<(TicketId, usize)>,
    /// The object was written or removed before the attempt ended.
    stale: bool,
    /// Its reader did not wait for the attempt.
    taken: bool,
}

#[derive(Debug)]
struct Ticket {
    outcomes: Vec<Option<Outcome>>,
    left: usize,
}

/// What changed since it was last asked: who has to be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) tickets_complete: bool,
    pub(crate) work: bool,
}

#[derive(Debug)]
pub(crate) struct Throttle {
    limits: Limits,
    entries: HashMap<ObjectKey, Entry>,
    /// What is triggered, in the order in which it is begun.
    queue: BTreeSet<(Priority, AttemptId)>,
    /// What is triggered or in flight.
    keys: HashMap<AttemptId, ObjectKey>,
    /// Promotions in flight.
    promoting: BTreeSet<AttemptId>,
    next_look: Timestamp,
    /// What has ended, the oldest first, with the time at which it is forgotten.
    ended: VecDeque<(Timestamp, AttemptId, ObjectKey)>,
    tickets: HashMap<TicketId, Ticket>,
    cool_until: Option<Timestamp>,
    next: u64,
    news: News,
    counts: OutcomeCounts,
    closed: bool,
    /// There is something to do besides.
    nudged: bool,
    flaw: Option<Flaw>,
}

impl Throttle {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::new(),
            queue: BTreeSet::new(),
            keys: HashMap::new(),
            promoting: BTreeSet::new(),
            next_look: Timestamp::ORIGIN,
            ended: VecDeque::new(),
            tickets: HashMap::new(),
            cool_until: None,
            next: 0,
            news: News::default(),
            counts: OutcomeCounts::default(),
            closed: false,
            nudged: false,
            flaw: None,
        }
    }

    #[cfg(feature = "testing")]
    pub(crate) fn set_flaw(&mut self, flaw: Flaw) {
        self.flaw = Some(flaw);
    }

    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    pub(crate) fn counts(&self) -> OutcomeCounts {
        self.counts
    }

    pub(crate) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Whether a ticket has become complete: its waiters have to be woken.
    pub(crate) fn take_completed(&mut self) -> bool {
        std::mem::take(&mut self.news.tickets_complete)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether an object is triggered or in flight.
    pub(crate) fn any_pending(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Wakes a worker.
    pub(crate) fn nudge(&mut self) {
        self.news.work = true;
        self.nudged = true;
    }

    /// Whether something waits that may be begun now.
    pub(crate) fn has_work(&mut self, now: Timestamp) -> bool {
        std::mem::take(&mut self.nudged)
            || !self.queue.is_empty() && !self.is_cooling(now) && self.promotions_left() > 0
    }

    /// How many promotions may be begun besides those in flight.
    fn promotions_left(&self) -> usize {
        self.limits.queue.saturating_sub(self.promoting.len())
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Asks for objects. Never blocks and never fails: what cannot be done ends in the ticket.
    pub(crate) fn trigger(&mut self, wants: Vec<Want>, priority: Priority, now: Timestamp) -> TicketId {
        self.sweep(now);
        let id = TicketId(self.fresh());
        let mut ticket = Ticket {
            outcomes: Vec::with_capacity(wants.len()),
            left: 0,
        };
        for (at, want) in wants.into_iter().enumerate() {
            self.counts.asked += 1;
            let outcome = match want.ended {
                Some(outcome) => Some(outcome),
                None => self.ask(want.key, want.bytes, priority, now, (id, at)),
            };
            match &outcome {
                Some(outcome) => self.counts.add(outcome),
                None => ticket.left += 1,
            }
            ticket.outcomes.push(outcome);
        }
        self.tickets.insert(id, ticket);
        id
    }

    /// The outcome, or `None` if the ticket has joined an attempt.
    fn ask(
        &mut self,
        key: ObjectKey,
        bytes: Option<u64>,
        priority: Priority,
        now: Timestamp,
        waits: (TicketId, usize),
    ) -> Option<Outcome> {
        if self.closed {
            return Some(Outcome::Cancelled);
        }
        let found_since = |entry: &Entry| bytes.is_some() && matches!(entry.state, State::Ended(Outcome::Absent));
        if self.entries.get(&key).is_some_and(found_since) {
            self.entries.remove(&key);
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            match &mut entry.state {
                State::Ended(outcome) => return Some(outcome.clone()),
                // Its last reader did not wait for it; this one does.
                State::InFlight { .. } => entry.taken = false,
                State::Triggered { priority: was, .. } => {
                    entry.bytes = entry.bytes.or(bytes);
                    if priority < *was {
                        self.queue.remove(&(*was, entry.attempt));
                        self.queue.insert((priority, entry.attempt));
                        *was = priority;
                    }
                }
            }
            entry.tickets.push(waits);
            return None;
        }
        if self.is_cooling(now) {
            return Some(Outcome::Refused);
        }
        if self.queue.len() >= self.limits.queue {
            // A request that waits takes the place of the youngest guess.
            let youngest = self.queue.last().copied().filter(|(was, _)| priority < *was);
            let Some((_, guess)) = youngest else {
                return Some(Outcome::Refused);
            };
            self.end(guess, Outcome::Refused, now);
        }
        let attempt = AttemptId(self.fresh());
        self.queue.insert((priority, attempt));
        self.keys.insert(attempt, key.clone());
        self.entries.insert(
            key,
            Entry {
                attempt,
                bytes,
                state: State::Triggered { priority, since: now },
                tickets: vec![waits],
                stale: false,
                taken: false,
            },
        );
        self.news.work = true;
        None
    }

    /// A ticket for those of these objects that are pending, which now go before every guess. `None` if none is.
    pub(crate) fn join<'a>(&mut self, keys: impl Iterator<Item = &'a ObjectKey>, now: Timestamp) -> Option<TicketId> {
        self.sweep(now);
        let pending: Vec<Want> = keys
            .filter(|key| {
                let entry = self.entries.get(*key);
                entry.is_some_and(|entry| !matches!(entry.state, State::Ended(_)))
            })
            .map(|key| Want {
                key: key.clone(),
                bytes: None,
                ended: None,
            })
            .collect();
        if pending.is_empty() {
            return None;
        }
        Some(self.trigger(pending, Priority::Wanted, now))
    }

    fn is_cooling(&self, now: Timestamp) -> bool {
        self.cool_until.is_some_and(|until| now < until)
    }

    /// Memory is short: nothing is begun for a while, and what waits is refused.
    pub(crate) fn press(&mut self, now: Timestamp) {
        self.cool_until = Some(now.after(self.limits.cool_down));
        while let Some((_, attempt)) = self.queue.first().copied() {
            self.end(attempt, Outcome::Refused, now);
        }
    }

    /// Begins the next attempts: at most `most` of them, and at most `bytes` in all, but at least one.
    pub(crate) fn next(&mut self, most: usize, bytes: u64, now: Timestamp) -> Vec<Attempt> {
        self.sweep(now);
        let most = most.min(self.promotions_left());
        let mut begun: Vec<Attempt> = Vec::new();
        let mut sum = 0_u64;
        if self.is_cooling(now) {
            return begun;
        }
        while let Some((priority, id)) = self.queue.first().copied()
            && begun.len() < most
        {
            let Some(entry) = self.keys.get(&id).and_then(|key| self.entries.get_mut(key)) else {
                // PF2 rules this out.
                self.queue.remove(&(priority, id));
                continue;
            };
            sum = sum.saturating_add(entry.bytes.unwrap_or(0));
            if !begun.is_empty() && sum > bytes {
                break;
            }
            entry.state = State::InFlight {
                since: now,
                promoted_by: None,
            };
            let key = self.keys[&id].clone();
            begun.push(Attempt {
                id,
                key,
                bytes: entry.bytes,
            });
            self.queue.remove(&(priority, id));
            self.counts.begun += 1;
        }
        begun
    }

    /// The engine has been asked to promote this attempt's object; [`Throttle::due_look`] names it from now on.
    pub(crate) fn promoting(&mut self, id: AttemptId, until: Timestamp, now: Timestamp) {
        if self.closed {
            self.end(id, Outcome::Cancelled, now);
            return;
        }
        let entry = self.keys.get(&id).and_then(|key| self.entries.get_mut(key));
        if let Some(State::InFlight { promoted_by, .. }) = entry.map(|entry| &mut entry.state) {
            *promoted_by = Some(until);
            if self.promoting.is_empty() {
                self.next_look = now.after(self.limits.look_every);
            }
            self.promoting.insert(id);
            self.news.work = true;
        }
    }

    /// The promotions whose objects have to be looked for now: all of them, or none. Those out of time have ended.
    pub(crate) fn due_look(&mut self, now: Timestamp) -> Vec<Attempt> {
        if self.promoting.is_empty() || (now < self.next_look && !self.has(Flaw::LookForEach)) {
            return Vec::new();
        }
        self.next_look = now.after(self.limits.look_every);
        let mut looked_for = Vec::new();
        for id in self.promoting.clone() {
            let Some((key, entry)) = self.keys.get(&id).and_then(|key| Some((key, self.entries.get(key)?))) else {
                continue;
            };
            match entry.state {
                State::InFlight {
                    promoted_by: Some(until),
                    ..
                } if until <= now => self.end(id, Outcome::Expired, now),
                _ => looked_for.push(Attempt {
                    id,
                    key: key.clone(),
                    bytes: entry.bytes,
                }),
            }
        }
        looked_for
    }

    /// When something has to be done without being asked: the next look, if a promotion is in flight.
    pub(crate) fn next_look(&self) -> Option<Timestamp> {
        (!self.promoting.is_empty()).then_some(self.next_look)
    }

    /// Ends an attempt. An id that is unknown, or has ended, changes nothing. Returns whether the result is of use: not if
    /// the object was removed or written meanwhile.
    pub(crate) fn finish(&mut self, id: AttemptId, outcome: Outcome, now: Timestamp) -> bool {
        if self.has(Flaw::FailedStaysTriggered) && matches!(outcome, Outcome::Failed(_)) {
            return false;
        }
        let entry = self.keys.get(&id).and_then(|key| self.entries.get(key));
        let stale = entry.is_none_or(|entry| entry.stale);
        let of_use = !stale && entry.is_some_and(|entry| !entry.taken);
        let outcome = match outcome {
            Outcome::Resident if stale => Outcome::Absent,
            outcome => outcome,
        };
        self.end(id, outcome, now);
        of_use
    }

    fn end(&mut self, id: AttemptId, outcome: Outcome, now: Timestamp) {
        let Some(key) = self.keys.remove(&id) else { return };
        self.promoting.remove(&id);
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if let State::Triggered { priority, .. } = entry.state {
            self.queue.remove(&(priority, id));
        }
        for (ticket, at) in std::mem::take(&mut entry.tickets) {
            self.settle(ticket, at, &outcome);
        }
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        // What was refused or came too late may be tried again as soon as there is room.
        let remembered = match outcome {
            Outcome::Absent | Outcome::Failed(_) => true,
            Outcome::Resident => self.limits.remember_resident,
            Outcome::Refused | Outcome::Expired | Outcome::Cancelled => false,
        };
        if entry.stale || entry.taken || !remembered {
            self.entries.remove(&key);
            return;
        }
        entry.state = State::Ended(outcome);
        if self.ended.len() >= self.limits.queue
            && let Some((_, id, key)) = self.ended.pop_front()
        {
            self.erase(id, &key);
        }
        self.ended.push_back((now.after(self.limits.remember), id, key));
    }

    fn erase(&mut self, id: AttemptId, key: &ObjectKey) {
        let same = |entry: &Entry| entry.attempt == id && matches!(entry.state, State::Ended(_));
        if self.entries.get(key).is_some_and(same) {
            self.entries.remove(key);
        }
    }

    /// When the next object is out of time that was not begun.
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        let oldest = [Priority::Wanted, Priority::Guess].map(|priority| self.oldest(priority));
        let since = oldest.into_iter().flatten().map(|(_, since)| since).min();
        since.map(|since| since.after(self.limits.begin_within))
    }

    /// What waits longest to be begun at this priority, and since when: ids grow with time, so it is the first.
    fn oldest(&self, priority: Priority) -> Option<(AttemptId, Timestamp)> {
        let all = (priority, AttemptId(0))..=(priority, AttemptId(u64::MAX));
        let (_, id) = self.queue.range(all).next().copied()?;
        let entry = self.entries.get(self.keys.get(&id)?)?;
        match entry.state {
            State::Triggered { since, .. } => Some((id, since)),
            _ => None,
        }
    }

    /// Forgets what ended long ago, and ends what was not begun in time.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        while let Some((until, ..)) = self.ended.front()
            && *until <= now
            && let Some((_, id, key)) = self.ended.pop_front()
        {
            self.erase(id, &key);
        }
        for priority in [Priority::Wanted, Priority::Guess] {
            while let Some((id, since)) = self.oldest(priority)
                && since.after(self.limits.begin_within) <= now
            {
                self.end(id, Outcome::Expired, now);
            }
        }
        if self.has(Flaw::TimeErasesInFlight) {
            let remember = self.limits.remember;
            self.entries.retain(
                |_, entry| !matches!(entry.state, State::InFlight { since, .. } if since.after(remember) <= now),
            );
        }
    }

    /// The object was written or removed: how an earlier attempt ended says nothing any more, and what is on its way must
    /// not be used.
    pub(crate) fn changed(&mut self, key: &ObjectKey) {
        match self.entries.get_mut(key) {
            Some(entry) if !matches!(entry.state, State::Ended(_)) => entry.stale = true,
            Some(_) => {
                self.entries.remove(key);
            }
            None => {}
        }
    }

    /// A reader has read the object by itself: what is on its way comes too late, and would only take up room.
    pub(crate) fn taken(&mut self, key: &ObjectKey, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        match entry.state {
            State::Triggered { .. } => {
                let attempt = entry.attempt;
                self.end(attempt, Outcome::Cancelled, now);
            }
            State::InFlight { .. } => entry.taken = true,
            State::Ended(_) => {}
        }
    }

    /// The outcomes of a ticket so far, and whether it is complete. `None` if there is no such ticket.
    pub(crate) fn ticket(&self, id: TicketId) -> Option<(&[Option<Outcome>], bool)> {
        let ticket = self.tickets.get(&id)?;
        Some((&ticket.outcomes, ticket.left == 0))
    }

    /// The waiter of this ticket has left; its objects stay on their way.
    pub(crate) fn leave(&mut self, id: TicketId) {
        self.tickets.remove(&id);
    }

    /// Withdraws a ticket's wish for what was not begun. What no other ticket wishes for ends; a waiter that has left still
    /// wishes for it.
    pub(crate) fn cancel(&mut self, id: TicketId, now: Timestamp) {
        for attempt in self.queue.iter().map(|(_, attempt)| *attempt).collect::<Vec<_>>() {
            let Some(entry) = self.keys.get(&attempt).and_then(|key| self.entries.get_mut(key)) else {
                continue;
            };
            let (mine, others): (Vec<_>, Vec<_>) = entry.tickets.iter().copied().partition(|(ticket, _)| *ticket == id);
            if mine.is_empty() {
                continue;
            }
            if others.is_empty() {
                self.end(attempt, Outcome::Cancelled, now);
                continue;
            }
            entry.tickets = others;
            for (ticket, at) in mine {
                self.settle(ticket, at, &Outcome::Cancelled);
            }
        }
    }

    /// One object of a ticket has ended.
    fn settle(&mut self, ticket: TicketId, at: usize, outcome: &Outcome) {
        self.counts.add(outcome);
        if let Some(ticket) = self.tickets.get_mut(&ticket)
            && let Some(place @ None) = ticket.outcomes.get_mut(at)
        {
            *place = Some(outcome.clone());
            ticket.left -= 1;
            self.news.tickets_complete |= ticket.left == 0;
        }
    }

    /// No attempt is begun any more; those in flight end by their results.
    pub(crate) fn close(&mut self, now: Timestamp) {
        self.closed = true;
        while let Some((_, attempt)) = self.queue.first().copied() {
            self.end(attempt, Outcome::Cancelled, now);
        }
        for attempt in self.promoting.clone() {
            self.end(attempt, Outcome::Cancelled, now);
        }
        self.news = News {
            tickets_complete: true,
            work: true,
        };
    }
}
