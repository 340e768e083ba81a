//! An engine that tells what was asked of it, and fails when it is told to.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Error, ObjectKey, Result, Timestamp};

use crate::{
    Capabilities, Engine, GetOutcome, Holder, HostMemory, Listing, Presence, PromoteOutcome, PutOptions, PutOutcome,
    Region, Registrations, RelocateOutcome, RemoveOutcome, Transfer, Usage,
};

/// Passes every call on, and remembers when reads, promotions and probes came.
#[derive(Debug)]
pub struct Observed<E: ?Sized> {
    clock: Arc<dyn Clock>,
    fail: AtomicUsize,
    calls: Mutex<Calls>,
    reads: Mutex<VecDeque<Act>>,
    probes: Mutex<VecDeque<Act>>,
    below: Arc<E>,
}

/// What a test does in the middle of a call.
struct Act(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Act")
    }
}

/// The calls so far, each with its time and how many objects it named.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// Of [`Engine::get`].
    pub gets: Vec<(Timestamp, usize)>,
    /// Of [`Engine::promote`].
    pub promotes: Vec<(Timestamp, usize)>,
    /// Of [`Engine::probe`].
    pub probes: Vec<(Timestamp, usize)>,
}

impl<E: ?Sized> Observed<E> {
    /// Observes this engine.
    pub fn new(below: Arc<E>, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            fail: AtomicUsize::new(0),
            calls: Mutex::default(),
            reads: Mutex::default(),
            probes: Mutex::default(),
            below,
        }
    }

    /// The next `count` reads and promotions fail.
    pub fn fail_next(&self, count: usize) {
        self.fail.store(count, Ordering::SeqCst);
    }

    /// In the next read that nothing is done in yet, when its bytes have come and before it returns, this is done.
    pub fn during_next_get(&self, act: impl FnOnce() + Send + 'static) {
        self.reads.lock().push_back(Act(Box::new(act)));
    }

    /// In the next probe that nothing is done in yet, before it is asked, this is done.
    pub fn during_next_probe(&self, act: impl FnOnce() + Send + 'static) {
        self.probes.lock().push_back(Act(Box::new(act)));
    }

    fn act(acts: &Mutex<VecDeque<Act>>) {
        let next = acts.lock().pop_front();
        if let Some(Act(act)) = next {
            act();
        }
    }

    /// What was called so far.
    pub fn calls(&self) -> Calls {
        self.calls.lock().clone()
    }

    fn saw(&self, which: fn(&mut Calls) -> &mut Vec<(Timestamp, usize)>, objects: usize) {
        let now = self.clock.now();
        which(&mut self.calls.lock()).push((now, objects));
    }

    fn check(&self, operation: &'static str) -> Result<()> {
        let left = |left: usize| left.checked_sub(1);
        match self.fail.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
            Ok(_) => Err(Error::unavailable(operation, "a test has told the engine to fail")),
            Err(_) => Ok(()),
        }
    }
}

impl<E: Engine + ?Sized> Engine for Observed<E> {
    fn capabilities(&self) -> Capabilities {
        self.below.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        self.below.register(memory, within)
    }

    fn registrations(&self) -> Registrations {
        self.below.registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        self.below.put(batch, options, within)
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        self.saw(|calls| &mut calls.gets, batch.len());
        self.check("engine.get")?;
        let outcomes = self.below.get(batch, within);
        Self::act(&self.reads);
        outcomes
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        self.below.remove(keys, within)
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        self.saw(|calls| &mut calls.probes, keys.len());
        Self::act(&self.probes);
        self.below.probe(keys, within)
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        self.below.list(prefix, after, limit, within)
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        self.saw(|calls| &mut calls.promotes, keys.len());
        self.check("engine.promote")?;
        self.below.promote(keys, within)
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        self.below.usage(within)
    }

    fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        self.below.holders(within)
    }

    fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str, within: Duration) -> Result<Vec<RelocateOutcome>> {
        self.below.relocate(keys, from, to, within)
    }
}
