//! What was decided for one item of a batch, and how many of those a transaction takes.

use std::sync::Arc;

use holdfast_core::SampleId;
use holdfast_custody::{SessionId, Tick, Version};

use crate::kv::{Condition, Write};
use crate::notes::{Given, OpenNote};

/// What is to be done for one item.
pub(crate) struct Decision<T> {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) writes: Vec<Write>,
    /// What the session holds from then on.
    pub(crate) gives: Option<Given>,
    /// What it holds no longer, and the note that says so.
    pub(crate) ends: Option<(Arc<OpenNote>, SampleId)>,
    /// The key of a record that this session is likely to change next.
    pub(crate) remember: Option<String>,
    /// What the caller gets.
    pub(crate) done: Box<dyn FnOnce(Done) -> T + Send>,
}

/// What is known once a decision has been carried out.
pub(crate) struct Done {
    /// When.
    pub(crate) version: Version,
    /// The note of what was given, if something was.
    pub(crate) note: Option<Arc<OpenNote>>,
}

impl<T> Decision<T> {
    /// A change that gives and ends nothing.
    pub(crate) fn new(
        conditions: Vec<Condition>,
        writes: Vec<Write>,
        done: impl FnOnce(Done) -> T + Send + 'static,
    ) -> Self {
        Self {
            conditions,
            writes,
            gives: None,
            ends: None,
            remember: None,
            done: Box::new(done),
        }
    }

    /// Nothing is to be changed.
    pub(crate) fn nothing(done: impl FnOnce() -> T + Send + 'static) -> Self {
        Self::new(Vec::new(), Vec::new(), |_| done())
    }

    pub(crate) fn giving(mut self, given: Given) -> Self {
        self.gives = Some(given);
        self
    }

    pub(crate) fn ending(mut self, note: Option<Arc<OpenNote>>, sample: &SampleId) -> Self {
        self.ends = note.map(|note| (note, sample.clone()));
        self
    }

    pub(crate) fn remembering(mut self, key: String) -> Self {
        self.remember = Some(key);
        self
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.conditions.is_empty() && self.writes.is_empty()
    }

    /// How many bytes it takes of a transaction.
    pub(crate) fn bytes(&self) -> usize {
        let conditions = self.conditions.iter().map(Condition::bytes);
        conditions.chain(self.writes.iter().map(Write::bytes)).sum()
    }

    /// How many operations of a transaction it takes, notes aside.
    pub(crate) fn operations(&self) -> usize {
        self.conditions.len().max(self.writes.len())
    }
}

/// What a transaction can still take.
pub(crate) struct Room {
    operations: usize,
    bytes: usize,
    /// Notes that it writes, and those that it may strike out, each once.
    given: Vec<(SessionId, Tick)>,
    ended: Vec<Arc<OpenNote>>,
}

impl Room {
    pub(crate) fn new(operations: usize, bytes: usize) -> Self {
        Self {
            operations,
            bytes,
            given: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Whether there was room for it, which it takes.
    pub(crate) fn take<T>(&mut self, decision: &Decision<T>) -> bool {
        let given = decision.gives.as_ref().map(|given| (given.to, given.until));
        let given = given.filter(|given| !self.given.contains(given));
        let ended = decision.ends.as_ref().map(|(note, _)| note);
        let ended = ended.filter(|note| !self.ended.iter().any(|known| Arc::ptr_eq(known, note)));
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
