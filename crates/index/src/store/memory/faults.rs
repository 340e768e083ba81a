//! The faults that can be injected for one client of a [`MemoryStore`](super::MemoryStore).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Error, ErrorKind, Retry};

use crate::store::Transaction;

/// What becomes of a transaction whose reply is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was applied (or refused): only the reply was lost.
    Applied,
    /// It never arrived.
    NotApplied,
    /// It is still in flight: [`MemoryStore::land`](super::MemoryStore::land) applies it, if its conditions hold then.
    Later,
    /// It is applied (or refused) at once, and the reply comes this much later: too late for a caller with less time.
    ToldAfter(Duration),
    /// The store answers that it is full, whether or not it applied the transaction.
    Full {
        /// Whether it applied it.
        applied: bool,
    },
}

impl Fate {
    /// The error of a full store.
    pub(crate) fn full(operation: &'static str) -> Error {
        let message = "the store is full (injected fault)";
        Error::new(ErrorKind::Capacity, operation, message).with_retry(Retry::Ambiguous)
    }
}

/// The faults of one client. All are off at first; each is used up by the calls that it applies to.
#[derive(Debug, Default)]
pub struct Faults(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    fates: VecDeque<Option<Fate>>,
    late: Vec<Transaction>,
    outage: usize,
    delay: Duration,
}

impl Faults {
    /// The next transaction that has no fate yet loses its reply.
    pub fn lose_reply(&self, fate: Fate) {
        self.0.lock().fates.push_back(Some(fate));
    }

    /// The next transaction that has no fate yet succeeds, so that a later one can be hit.
    pub fn spare(&self) {
        self.0.lock().fates.push_back(None);
    }

    /// The next `calls` calls of any kind fail without effect. Zero ends an outage.
    pub fn outage(&self, calls: usize) {
        self.0.lock().outage = calls;
    }

    /// Every call takes this long, in the runtime's time. Zero at first.
    pub fn slow(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    pub(super) fn delay(&self) -> Duration {
        self.0.lock().delay
    }

    pub(super) fn is_out(&self) -> bool {
        let mut inner = self.0.lock();
        let out = inner.outage > 0;
        inner.outage = inner.outage.saturating_sub(1);
        out
    }

    pub(super) fn next_fate(&self) -> Option<Fate> {
        self.0.lock().fates.pop_front().flatten()
    }

    pub(super) fn add_late(&self, transaction: Transaction) {
        self.0.lock().late.push(transaction);
    }

    pub(super) fn take_late(&self) -> Vec<Transaction> {
        std::mem::take(&mut self.0.lock().late)
    }
}
