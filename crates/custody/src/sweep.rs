//! What a sweep does with a record.
//!
//! Any process may sweep at any time, several at once, and each may die half-way: a sweep only takes decisions that
//! follow from what it read, and writes them on condition that nothing has changed since.

use crate::id::{SessionId, Tick};
use crate::live::Live;
use crate::reserved::Reserved;
use crate::retired::{Reason, Retired};

/// What a sweep knows when it looks at a record.
#[derive(Clone, Copy)]
pub struct Sweep<'a> {
    /// The shared clock.
    pub tick: Tick,
    /// How many ticks after its end a lease still counts, for transfers in flight.
    pub grace: u64,
    /// Whether a session has ended. It must have ended before the record was read: in the other order, a lease that was
    /// taken in between would be missed.
    pub gone: &'a dyn Fn(SessionId) -> bool,
}

impl std::fmt::Debug for Sweep<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sweep(tick {}, grace {})", self.tick, self.grace)
    }
}

impl Sweep<'_> {
    pub(crate) fn is_gone(&self, session: SessionId) -> bool {
        (self.gone)(session)
    }
}

/// What is to be done with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<Next> {
    /// Nothing is due.
    Leave,
    /// The record becomes this.
    Become(Next),
}

impl Reserved {
    /// A reservation ends with its producer's session, or when its time is over. What was written is to be removed.
    pub fn sweep(&self, sweep: &Sweep<'_>) -> Verdict<Retired> {
        if sweep.is_gone(self.session) || sweep.tick > self.until.after(sweep.grace) {
            return Verdict::Become(self.clone().abort(Reason::Abandoned));
        }
        Verdict::Leave
    }
}

impl Live {
    /// Takes back leases that are over; each of a group's leases has cost the group one attempt. A group that is out of
    /// attempts is dead, and a sample that no group needs any more is retired.
    pub fn sweep(&self, sweep: &Sweep<'_>) -> Verdict<crate::live::Acknowledged> {
        let mut next = self.clone();
        if next.take_back(|lease| lease.is_over(sweep)) == 0 {
            return Verdict::Leave;
        }
        Verdict::Become(next.retire_if_done())
    }
}

impl Retired {
    /// Removes readers' leases that are over. When none is left, [`Retired::may_be_freed`] holds.
    pub fn sweep(&self, sweep: &Sweep<'_>) -> Verdict<Retired> {
        let mut next = self.clone();
        next.readers.retain(|lease| !lease.is_over(sweep));
        if next.readers.len() == self.readers.len() {
            Verdict::Leave
        } else {
            Verdict::Become(next)
        }
    }
}
