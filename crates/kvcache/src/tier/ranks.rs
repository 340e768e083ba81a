//! Agreement between ranks.
//!
//! Every rank moves its own shard of each page, and one may get fewer of them than another. The smallest count is
//! published ([`agree`], KV15). To find it the ranks meet in a collective, once for each operation. A collective hangs
//! if one rank does not join or if two ranks join for different operations. So:
//!
//! - [`JoinOrder`], one per rank: completions arrive in any order and are handed out in the order of *submission*,
//!   which is the same on every rank (KV21). An operation that failed, was refused or was cancelled on this rank joins
//!   all the same, with the pages that it has (KV22).
//! - [`RankBarrier`] is the collective itself for ranks within one process, and for tests. No rank waits in it: the
//!   last rank to join settles the operation, and each rank then takes the result. A rank that joins for another
//!   operation than the others gets an error at once, instead of hanging.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use holdfast_core::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::plan::{Completion, OperationId};

/// How many pages from the start every rank has; none if there are no ranks.
pub fn agree(completed: &[u32]) -> u32 {
    completed.iter().copied().min().unwrap_or(0)
}

/// Hands completions of one rank out in the order in which their operations were submitted.
#[derive(Debug, Default)]
pub struct JoinOrder {
    order: VecDeque<OperationId>,
    /// `None` while the operation is open.
    ended: HashMap<OperationId, Option<Completion>>,
}

impl JoinOrder {
    /// Records an operation that was submitted, whether it was accepted or not. A second record of the same operation
    /// changes nothing.
    pub fn submitted(&mut self, operation: OperationId) {
        if let Entry::Vacant(place) = self.ended.entry(operation) {
            place.insert(None);
            self.order.push_back(operation);
        }
    }

    /// Records how an operation ended on this rank. Returns whether that was new: a second completion, or one of an
    /// operation that was never submitted, changes nothing (KV3).
    pub fn ended(&mut self, completion: Completion) -> bool {
        match self.ended.get_mut(&completion.operation) {
            Some(open @ None) => {
                *open = Some(completion);
                true
            }
            _ => false,
        }
    }

    /// The next completion to join with: that of the oldest operation, if it has ended. Call this until it returns
    /// none.
    pub fn next_to_join(&mut self) -> Option<Completion> {
        let oldest = self.order.front()?;
        self.ended.get(oldest)?.as_ref()?;
        let oldest = self.order.pop_front()?;
        self.ended.remove(&oldest)?
    }

    /// How many operations this rank has not joined for yet.
    pub fn open(&self) -> usize {
        self.order.len()
    }
}

/// A collective among ranks of one process.
#[derive(Debug)]
pub struct RankBarrier {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many operations each rank has joined for.
    joined: Vec<u64>,
    /// The rounds that not all ranks have joined, and the number of the first.
    rounds: VecDeque<Vec<Option<Completion>>>,
    first: u64,
    /// The agreed results, for each rank to take.
    agreed: Vec<VecDeque<Completion>>,
}

impl RankBarrier {
    /// A collective of this many ranks, at least one.
    pub fn new(ranks: usize) -> Self {
        let ranks = ranks.max(1);
        let state = State {
            joined: vec![0; ranks],
            rounds: VecDeque::new(),
            first: 0,
            agreed: vec![VecDeque::new(); ranks],
        };
        Self {
            state: Mutex::new(state),
        }
    }

    /// Joins for the next operation. `Conflict` if another rank joined for another operation at this position: the
    /// ranks have diverged, and their pages must not be published.
    pub fn join(&self, rank: usize, completion: Completion) -> Result<()> {
        const OPERATION: &str = "kv.join";
        let mut state = self.state.lock();
        let ranks = state.joined.len();
        let Some(joined) = state.joined.get(rank).copied() else {
            return Err(Error::invalid(OPERATION, "there is no such rank").with("rank", rank));
        };
        let at = usize::try_from(joined - state.first).unwrap_or(usize::MAX);
        while state.rounds.len() <= at {
            state.rounds.push_back(vec![None; ranks]);
        }
        let round = &mut state.rounds[at];
        let others = round.iter().flatten().next();
        if let Some(other) = others.filter(|other| other.operation != completion.operation) {
            return Err(Error::new(
                ErrorKind::Conflict,
                OPERATION,
                "the ranks have diverged: they join for different operations; publish none of their pages",
            )
            .with("rank", rank)
            .with("operation", completion.operation)
            .with("others", other.operation));
        }
        round[rank] = Some(completion);
        state.joined[rank] += 1;
        while let Some(round) = state.rounds.front()
            && round.iter().all(Option::is_some)
        {
            let round: Vec<Completion> = state.rounds.pop_front().into_iter().flatten().flatten().collect();
            state.first += 1;
            if let Some(agreed) = Completion::agree(&round) {
                state
                    .agreed
                    .iter_mut()
                    .for_each(|queue| queue.push_back(agreed.clone()));
            }
        }
        Ok(())
    }

    /// The results that all ranks have agreed on since this rank last asked, in submit order.
    pub fn take(&self, rank: usize) -> Vec<Completion> {
        let mut state = self.state.lock();
        state
            .agreed
            .get_mut(rank)
            .map(std::mem::take)
            .into_iter()
            .flatten()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Failure;
    use proptest::prelude::*;

    fn ended(operation: u64, completed: u32) -> Completion {
        Completion {
            operation: OperationId(operation),
            completed,
            failure: (completed == 0).then_some(Failure::Failed),
        }
    }

    #[test]
    fn ranks_that_join_for_different_operations_are_told() {
        let barrier = RankBarrier::new(2);
        barrier.join(0, ended(1, 3)).expect("first");
        let error = barrier.join(1, ended(2, 3)).expect_err("another operation");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(barrier.take(0).is_empty());
        barrier.join(1, ended(1, 2)).expect("the same");
        assert_eq!(
            barrier.take(0),
            [Completion::agree(&[ended(1, 3), ended(1, 2)]).expect("two")]
        );
        assert!(barrier.join(2, ended(1, 1)).is_err(), "no such rank");
    }

    proptest! {
        /// Whatever the order of arrival on each rank, all ranks publish the same minima in the order of submission.
        #[test]
        fn kv15_kv22_all_ranks_get_the_same_minima_in_submit_order(
            counts in prop::collection::vec(prop::collection::vec(0_u32..9, 3), 1..12),
            order in prop::collection::vec((0_usize..3, 0_usize..12), 0..200),
        ) {
            let barrier = RankBarrier::new(3);
            let mut ranks: Vec<JoinOrder> = (0..3).map(|_| JoinOrder::default()).collect();
            for rank in &mut ranks {
                for operation in 0..counts.len() as u64 {
                    rank.submitted(OperationId(operation));
                }
            }
            let rest = (0..counts.len()).flat_map(|operation| (0..3).map(move |rank| (rank, operation)));
            for (rank, operation) in order.into_iter().chain(rest) {
                if operation >= counts.len() {
                    prop_assert!(!ranks[rank].ended(ended(operation as u64, 1)), "never submitted");
                    continue;
                }
                ranks[rank].ended(ended(operation as u64, counts[operation][rank]));
                while let Some(next) = ranks[rank].next_to_join() {
                    barrier.join(rank, next)?;
                }
            }
            for (rank, joined) in ranks.iter().enumerate() {
                prop_assert_eq!(joined.open(), 0);
                let agreed = barrier.take(rank);
                let minima: Vec<u32> = counts.iter().map(|counts| agree(counts)).collect();
                prop_assert_eq!(agreed.iter().map(|c| c.completed).collect::<Vec<_>>(), minima);
                let ids: Vec<u64> = agreed.iter().map(|c| c.operation.0).collect();
                prop_assert_eq!(ids, (0..counts.len() as u64).collect::<Vec<_>>());
            }
        }
    }
}
