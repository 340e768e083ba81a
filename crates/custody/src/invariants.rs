//! What must always hold, by name. The tests, the model and the running program use the same predicates.

use tensorhold_core::{Generation, Invariant};

use crate::id::Tick;
use crate::lease::Lease;
use crate::live::{GroupState, Live, Progress};
use crate::retired::{Reason, Retired};

/// At most one live generation is visible per sample, and it is the latest one committed.
pub const LC1: Invariant = Invariant::new("LC1", "at most one live generation is visible per sample");
/// A generation that was retired or freed is never readable again.
pub const LC2: Invariant = Invariant::new("LC2", "a freed generation is never readable again");
/// Objects are removed only when no reader's lease could still be valid.
pub const LC3: Invariant = Invariant::new("LC3", "no physical free while a reader's lease could still be valid");
/// A stale token changes nothing.
pub const LC4: Invariant = Invariant::new("LC4", "a stale token changes nothing");
/// The quota adds up.
pub const LC5: Invariant = Invariant::new("LC5", "deposits + paid bytes = budget, always");
/// Every reservation, lease and free ends after its owner's death.
pub const LC6: Invariant = Invariant::new(
    "LC6",
    "every reservation, lease and free ends in a bounded number of sweeps after its owner dies",
);
/// A commit that was acknowledged to a producer is delivered, or its loss is reported.
pub const LC7: Invariant = Invariant::new("LC7", "an acknowledged commit is never lost");
/// Retirement by consumption needs every group.
pub const LC8: Invariant = Invariant::new("LC8", "a sample is consumed only when every group has acknowledged it");
/// Attempts are counted exactly.
pub const LC9: Invariant = Invariant::new("LC9", "delivery count and dead letter are exact");

/// All of them.
pub const ALL: [Invariant; 9] = [LC1, LC2, LC3, LC4, LC5, LC6, LC7, LC8, LC9];

/// LC1, for the generations that the index calls live for one sample, in the order in which they were committed.
pub fn one_live_generation(live: &[Generation], latest_committed: Option<Generation>) -> bool {
    live.len() <= 1
        && live
            .first()
            .is_none_or(|generation| Some(*generation) == latest_committed)
}

/// LC2, for one sample's records: no retired generation is live.
pub fn retired_is_hidden<'a>(live: Option<&Live>, mut retired: impl Iterator<Item = &'a Retired>) -> bool {
    live.is_none_or(|live| retired.all(|record| record.generation != Some(live.generation)))
}

/// LC2, at the moment at which bytes are handed out under a lease that the record still has: the objects were `whole`,
/// that is, present from before the transfer began until now. `told` is whether the engine said that it has lost them,
/// in which case there are no bytes to hand out.
pub fn handed_out_is_whole(held: bool, whole: bool, told: bool) -> bool {
    !held || whole || told
}

/// LC3, at the moment of a physical free. The record is `None` if another sweep has already freed it.
pub fn free_is_safe(record: Option<&Retired>, leases_that_may_be_in_use: &[Lease], now: Tick) -> bool {
    record.is_none_or(Retired::may_be_freed) && !leases_that_may_be_in_use.iter().any(|lease| now <= lease.until)
}

/// LC4, for one step that presents a token or a generation: `held` is whether the record was the caller's before the
/// step, `changed` whether the step changed anything.
pub fn stale_changes_nothing(held: bool, changed: bool) -> bool {
    held || !changed
}

/// LC5: the deposits and the bytes that the records were paid with add up to the budget, each byte once.
pub fn budget_is_accounted_for(
    budget: u64,
    deposits: impl Iterator<Item = u64>,
    paid: impl Iterator<Item = u64>,
) -> bool {
    deposits.sum::<u64>() + paid.sum::<u64>() == budget
}

/// LC6, when every session has ended and the bounded number of sweeps has been made: what is left are committed samples
/// that no consumer has taken, with their objects and their quota, and nothing else.
pub fn nothing_lingers(
    unfinished: usize,
    live: &[&Live],
    (budget, deposits): (u64, u64),
    mut objects: impl Iterator<Item = Generation>,
) -> bool {
    let kept: u64 = live.iter().map(|record| record.bytes).sum();
    unfinished == 0
        && live.iter().all(|record| record.leases().next().is_none())
        && objects.all(|object| live.iter().any(|record| record.generation == object))
        && deposits + kept == budget
}

/// LC7, for a committed generation: it is live and its objects are there (or their loss is yet to be found), or it was
/// retired for a reason that a committed sample can have.
pub fn commit_is_kept(
    generation: Generation,
    live: Option<&Live>,
    objects_are_there_or_lost: bool,
    retired_for: Option<Reason>,
) -> bool {
    match retired_for {
        Some(reason) => reason != Reason::Abandoned,
        None => live.is_some_and(|record| record.generation == generation) && objects_are_there_or_lost,
    }
}

/// LC8, for a step from `before` to a retired record: all groups but one had acknowledged it, and that one had leased
/// it and acknowledges it now.
pub fn consumed_by_all(before: &Live, after: &Retired) -> bool {
    let mut others = before.groups.iter().filter(|state| state.progress != Progress::Acked);
    after.reason != Reason::Consumed
        || (others
            .next()
            .is_some_and(|state| matches!(state.progress, Progress::Leased(_)))
            && others.next().is_none())
}

/// LC9, for a live record: attempts are within bounds, and a group is dead exactly when they are used up.
pub fn attempts_are_exact(live: &Live) -> bool {
    live.groups.iter().all(|state| match state.progress {
        Progress::Waiting => state.attempts < live.max_attempts,
        Progress::Leased(_) | Progress::Acked => (1..=live.max_attempts).contains(&state.attempts),
        Progress::Dead => state.attempts == live.max_attempts,
    })
}

/// LC9, for a live record and the number of leases that were granted to each of its groups, and not undone, since it
/// was committed or reopened.
pub fn deliveries_are_counted(live: &Live, granted: impl Fn(&GroupState) -> u32) -> bool {
    live.groups.iter().all(|state| state.attempts == granted(state))
}

/// LC9, for a step from `before` to a retired record: it is a dead letter exactly if a group was out of attempts and no
/// group was still waiting.
pub fn dead_letter_is_exact(before: &Live, after: &Retired) -> bool {
    let used_up = |state: &GroupState| match state.progress {
        Progress::Dead => true,
        Progress::Leased(_) => state.attempts == before.max_attempts,
        _ => false,
    };
    let waits = |state: &GroupState| state.progress == Progress::Waiting;
    match after.reason {
        Reason::DeadLetter => before.groups.iter().any(used_up) && !before.groups.iter().any(waits),
        Reason::Consumed => !before.groups.iter().any(|state| state.progress == Progress::Dead),
        Reason::Aborted | Reason::Abandoned | Reason::Superseded | Reason::Lost | Reason::Other => true,
    }
}
