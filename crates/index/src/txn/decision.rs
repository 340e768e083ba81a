//! What was decided for one item of a batch, and how many such decisions fit into a transaction.

use std::sync::Arc;

use tensorhold_custody::{SessionId, Tick, Version};

use crate::record::grants::{Grant, GrantLine, OpenGrantList};
use crate::record::types::LeaseGrant;
use crate::store::{Condition, Write};

/// What is to be done for one item.
pub(crate) struct Decision<T> {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) writes: Vec<Write>,
    /// What the session holds from then on.
    pub(crate) gives: Option<Grant>,
    /// What it holds no longer: the line of the grant list that names it.
    pub(crate) ends: Option<GrantLine>,
    /// Whether the session is likely to change the record of the last write next.
    pub(crate) remember: bool,
    pub(crate) outcome: Outcome<T>,
}

/// What is known once a decision has been applied.
pub(crate) struct Done {
    /// The version at which it was applied.
    pub(crate) version: Version,
    /// The line of the grant list, if something was granted.
    pub(crate) grant: Option<GrantLine>,
}

/// The caller's result, except for what is known only once the decision has been applied, and a function that fills
/// that in.
pub(crate) struct Outcome<T> {
    outcome: T,
    settle: fn(&mut T, Done),
}

impl<T> Outcome<T> {
    pub(crate) fn settled(mut self, done: Done) -> T {
        (self.settle)(&mut self.outcome, done);
        self.outcome
    }
}

impl<T> Decision<T> {
    /// A change that grants and ends nothing, and whose result is known beforehand.
    pub(crate) fn new(conditions: Vec<Condition>, writes: Vec<Write>, outcome: T) -> Self {
        Self {
            conditions,
            writes,
            gives: None,
            ends: None,
            remember: false,
            outcome: Outcome {
                outcome,
                settle: |_, _| (),
            },
        }
    }

    /// Changes nothing.
    pub(crate) fn nothing(outcome: T) -> Self {
        Self::new(Vec::new(), Vec::new(), outcome)
    }

    /// Sets the function that completes the result once the decision has been applied.
    pub(crate) fn settling(mut self, settle: fn(&mut T, Done)) -> Self {
        self.outcome.settle = settle;
        self
    }

    pub(crate) fn giving(mut self, given: Grant) -> Self {
        self.gives = Some(given);
        self
    }

    pub(crate) fn ending(mut self, grant: Option<GrantLine>) -> Self {
        self.ends = grant;
        self
    }

    /// Marks the record of the last write as one that the session is likely to change next.
    pub(crate) fn remembering(mut self) -> Self {
        self.remember = true;
        self
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.conditions.is_empty() && self.writes.is_empty()
    }

    /// How many bytes of a transaction it takes.
    pub(crate) fn bytes(&self) -> usize {
        let conditions = self.conditions.iter().map(Condition::bytes);
        conditions.chain(self.writes.iter().map(Write::bytes)).sum()
    }

    /// How many operations of a transaction it takes, grant lists aside.
    pub(crate) fn operations(&self) -> usize {
        self.conditions.len().max(self.writes.len())
    }
}

/// What a transaction still has room for.
pub(crate) struct TxnBudget {
    operations: usize,
    bytes: usize,
    /// The grant lists that it writes, and those that it may delete, each once.
    given: Vec<(SessionId, Tick)>,
    ended: Vec<Arc<OpenGrantList>>,
}

impl TxnBudget {
    pub(crate) fn new(operations: usize, bytes: usize) -> Self {
        Self {
            operations,
            bytes,
            given: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Takes the room that a decision needs. False if there is not enough.
    pub(crate) fn take<T>(&mut self, decision: &Decision<T>) -> bool {
        let given = decision.gives.as_ref().map(|given| (given.to, given.until));
        let given = given.filter(|given| !self.given.contains(given));
        let ended = decision.ends.as_ref().map(|line| &line.grant);
        let ended = ended.filter(|grant| !self.ended.iter().any(|known| Arc::ptr_eq(known, grant)));
        let new_notes = usize::from(given.is_some()) + usize::from(ended.is_some());
        let (operations, bytes) = (decision.operations() + new_notes, decision.bytes());
        if operations > self.operations || bytes > self.bytes {
            return false;
        }
        self.operations -= operations;
        self.bytes -= bytes;
        self.given.extend(given);
        self.ended.extend(ended.cloned());
        true
    }
}

/// For [`Decision::settling`]: the outcome is the version of the write.
pub(crate) fn set_version(version: &mut Version, done: Done) {
    *version = done.version;
}

impl LeaseGrant {
    /// Fills in what is known only once the lease has been written.
    pub(crate) fn settle(&mut self, done: Done) {
        self.seen.record.settle(done.version);
        self.seen.version = done.version;
        self.grant = done.grant;
    }
}
