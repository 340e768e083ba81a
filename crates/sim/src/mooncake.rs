//! A process's client of the engine, with a network in between. The calls are made on the process's only thread, at one
//! moment each; the store's seam lets them begin and answer late.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Error, ObjectKey, Result, Retry, Rng};
use tensorhold_engine::{
    Capabilities, Engine, GetOutcome, Holder, HostMemory, Listing, MemoryEngine, Presence, PromoteOutcome, PutOptions,
    PutOutcome, Region, Registrations, RelocateOutcome, RemoveOutcome, Transfer, Usage,
};
use tensorhold_features::Lags;

use crate::faults::Fault;
use crate::world::{Link, Outside};

const AT_ONCE: Duration = Duration::from_secs(3600);
/// A get that is answered now may have begun so long ago.
const LONGEST_READ: Duration = Duration::from_millis(100);

/// A client of the engine.
#[derive(Debug)]
pub(crate) struct Mooncake {
    inner: Arc<MemoryEngine>,
    outside: Arc<Outside>,
    link: Arc<Link>,
}

/// How long calls take.
#[derive(Debug)]
pub(crate) struct CallLags(pub(crate) Arc<Outside>);

impl Lags for CallLags {
    fn next(&self) -> (Duration, Duration) {
        let late = |within: u64| Duration::from_millis(self.0.rng.below(within));
        let usual = (late(2), late(2));
        if !self.0.hits(Fault::CallLate) {
            return usual;
        }
        match self.0.rng.below(3) {
            0 => (late(1500), usual.1),
            1 => (usual.0, late(1500)),
            // It hangs for longer than any deadline.
            _ => (usual.0, late(8000)),
        }
    }
}

fn out_of_time(operation: &'static str) -> Error {
    Error::unavailable(operation, "out of time (simulated)")
}

fn unclear(operation: &'static str) -> Error {
    out_of_time(operation).with_retry(Retry::Ambiguous)
}

fn refuses(operation: &'static str) -> Error {
    Error::unavailable(operation, "a holder does not answer (simulated)").with("reason", "holder")
}

impl Mooncake {
    pub(crate) fn new(outside: &Arc<Outside>, link: &Arc<Link>) -> Self {
        Self {
            inner: outside.cluster.connect(),
            outside: Arc::clone(outside),
            link: Arc::clone(link),
        }
    }

    fn is_lost(&self, within: Duration, fault: Fault) -> bool {
        within.is_zero() || self.link.is_cut() || self.outside.hits(fault)
    }

    fn ask<T>(&self, operation: &'static str, within: Duration, act: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.is_lost(within, Fault::ProbeLost) {
            return Err(out_of_time(operation));
        }
        act()
    }

    /// Puts at this moment, and remembers the bytes.
    fn store(&self, batch: &[Transfer], options: &PutOptions) -> Result<Vec<PutOutcome>> {
        let done = self.inner.put(batch, options, AT_ONCE)?;
        for (transfer, outcome) in batch.iter().zip(&done) {
            if matches!(outcome, PutOutcome::Stored) {
                let bytes = transfer.parts.iter().flat_map(|part| part.to_vec()).collect();
                self.outside.bytes.lock().insert(transfer.key.clone(), bytes);
                self.outside.judge.lock().stored(self.link.name, &transfer.key);
            }
        }
        Ok(done)
    }

    /// Bytes arrive as they were put, except for some.
    fn tear(&self, transfer: &Transfer, from: usize, length: usize) -> Result<()> {
        let mut at = 0;
        for part in &transfer.parts {
            let torn = from.max(at)..(from + length).min(at + part.len());
            if !torn.is_empty() {
                let noise: Vec<u8> = torn
                    .clone()
                    .map(|_| self.outside.rng.next_u64().to_le_bytes()[0])
                    .collect();
                part.write(torn.start - at, &noise)?;
            }
            at += part.len();
        }
        Ok(())
    }

    /// An object that was removed while it was read: a part of the old bytes, or all of them, and noise.
    fn torn(&self, transfer: &Transfer) -> Result<Option<GetOutcome>> {
        let old = self.outside.bytes.lock().get(&transfer.key).cloned();
        let Some(old) = old.filter(|old| old.len() as u64 == transfer.bytes()) else {
            return Ok(None);
        };
        // What is lost with its holder is not read at all.
        let removed = self.outside.removed.lock().get(&transfer.key).copied();
        if removed.is_none_or(|at| self.outside.now() > at + LONGEST_READ) {
            return Ok(None);
        }
        if !self.outside.hits(Fault::GetTorn) {
            return Ok(None);
        }
        let mut at = 0;
        for part in &transfer.parts {
            part.write(0, &old[at..at + part.len()])?;
            at += part.len();
        }
        let from = self.outside.pick(old.len() + 1);
        self.tear(transfer, from, old.len() - from)?;
        Ok(Some(GetOutcome::Loaded))
    }
}

impl Engine for Mooncake {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        self.inner.register(memory, within)
    }

    fn registrations(&self) -> Registrations {
        self.inner.registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        const OPERATION: &str = "engine.put";
        let outside = &self.outside;
        outside
            .judge
            .lock()
            .put_asked(batch.iter().map(|transfer| &transfer.key));
        if self.is_lost(within, Fault::PutLost) {
            return Err(unclear(OPERATION));
        }
        outside.event(self.link.name, "put", batch.len() as u64);
        if outside.hits(Fault::PutLate) {
            let some = batch[..outside.pick(batch.len() + 1)].to_vec();
            let late = Duration::from_millis(outside.rng.below(12_000));
            let me = Self {
                inner: Arc::clone(&self.inner),
                outside: Arc::clone(outside),
                link: Arc::clone(&self.link),
            };
            let options = options.clone();
            drop(outside.handle.spawn(async move {
                tokio::time::sleep(late).await;
                // The memory that the bytes come from is gone with its process.
                if !me.link.is_dead() {
                    me.outside.event(me.link.name, "late put", some.len() as u64);
                    drop(me.store(&some, &options));
                }
            }));
            return Err(unclear(OPERATION));
        }
        let failed = |_: &Transfer| {
            if outside.hits(Fault::PutFailed) {
                Some(PutOutcome::Failed(refuses(OPERATION)))
            } else if outside.hits(Fault::PutFull) {
                Some(PutOutcome::Full)
            } else {
                None
            }
        };
        let mut done: Vec<Option<PutOutcome>> = batch.iter().map(failed).collect();
        let rest = batch.iter().zip(&done).filter(|(_, done)| done.is_none());
        let rest: Vec<Transfer> = rest.map(|(transfer, _)| transfer.clone()).collect();
        let mut stored = self.store(&rest, options)?.into_iter();
        for outcome in &mut done {
            if outcome.is_none() {
                *outcome = stored.next();
            }
        }
        if outside.hits(Fault::PutUnheard) {
            return Err(unclear(OPERATION));
        }
        Ok(done.into_iter().flatten().collect())
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        const OPERATION: &str = "engine.get";
        let outside = &self.outside;
        if self.is_lost(within, Fault::GetLost) {
            return Err(out_of_time(OPERATION));
        }
        outside.event(self.link.name, "get", batch.len() as u64);
        if outside.hits(Fault::GetLate) {
            let (inner, link, batch) = (Arc::clone(&self.inner), Arc::clone(&self.link), batch.to_vec());
            let late = Duration::from_millis(outside.rng.below(8000));
            drop(outside.handle.spawn(async move {
                tokio::time::sleep(late).await;
                if !link.is_dead() {
                    drop(inner.get(&batch, AT_ONCE));
                }
            }));
            return Err(out_of_time(OPERATION));
        }
        let mut done = self.inner.get(batch, AT_ONCE)?;
        for (transfer, outcome) in batch.iter().zip(&mut done) {
            match outcome {
                GetOutcome::Loaded if outside.hits(Fault::GetFailed) => {
                    *outcome = GetOutcome::Failed(refuses(OPERATION));
                }
                GetOutcome::Loaded if outside.judge.lock().sums && outside.hits(Fault::GetFlipped) => {
                    let length = usize::try_from(transfer.bytes()).unwrap_or(0);
                    self.tear(transfer, outside.pick(length), 1)?;
                }
                GetOutcome::Miss => {
                    if let Some(torn) = self.torn(transfer)? {
                        *outcome = torn;
                    }
                }
                _ => {}
            }
        }
        Ok(done)
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        const OPERATION: &str = "engine.remove";
        let outside = &self.outside;
        if self.is_lost(within, Fault::RemoveLost) {
            return Err(unclear(OPERATION));
        }
        outside.event(self.link.name, "remove", keys.len() as u64);
        outside.judge.lock().removed(outside, self.link.name, keys);
        let some = if outside.hits(Fault::RemovePartly) {
            outside.pick(keys.len() + 1)
        } else {
            keys.len()
        };
        let mut done = self.inner.remove(&keys[..some], AT_ONCE)?;
        let gone = keys
            .iter()
            .zip(&done)
            .filter(|(_, done)| matches!(done, RemoveOutcome::Removed));
        outside
            .removed
            .lock()
            .extend(gone.map(|(key, _)| (key.clone(), outside.now())));
        done.extend(keys[some..].iter().map(|_| RemoveOutcome::Failed(unclear(OPERATION))));
        if outside.hits(Fault::RemoveUnheard) {
            return Err(unclear(OPERATION));
        }
        Ok(done)
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        self.ask("engine.probe", within, || self.inner.probe(keys, AT_ONCE))
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        self.ask("engine.list", within, || self.inner.list(prefix, after, limit, AT_ONCE))
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        self.ask("engine.promote", within, || self.inner.promote(keys, AT_ONCE))
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        self.ask("engine.usage", within, || self.inner.usage(AT_ONCE))
    }

    fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        self.ask("engine.holders", within, || self.inner.holders(AT_ONCE))
    }

    fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str, within: Duration) -> Result<Vec<RelocateOutcome>> {
        self.ask("engine.relocate", within, || {
            self.inner.relocate(keys, from, to, AT_ONCE)
        })
    }
}
