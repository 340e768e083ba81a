//! Engines that break the contract, each in one way.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Error, ObjectKey, Result, Retry};
use tensorhold_engine::testing::{Backend, Harness, MemoryBackend, Setup};
use tensorhold_engine::{
    Capabilities, Engine, GetOutcome, Holder, HostMemory, Listing, Pin, Presence, PromoteOutcome, PutOptions,
    PutOutcome, Region, Registrations, RelocateOutcome, RemoveOutcome, Span, Transfer, Usage,
};

use crate::flaw::Flaw::{self, *};

#[derive(Debug)]
struct Flawed {
    inner: Arc<dyn Engine>,
    flaw: Flaw,
    clock: Arc<dyn Clock>,
    kept: Mutex<Vec<Region>>,
    read: Mutex<Vec<ObjectKey>>,
}

impl Flawed {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn time(&self, within: Duration) -> Duration {
        if self.is(IgnoresNoTime) && within.is_zero() {
            return Duration::from_secs(5);
        }
        within
    }

    fn key(&self, key: &ObjectKey) -> ObjectKey {
        let text = key.as_str();
        let text = match self.flaw {
            PlusIsSpace => text.replace('+', " "),
            FoldsCase => text.to_lowercase(),
            CutsLongKeys => text.chars().take(1024).collect(),
            _ => return key.clone(),
        };
        ObjectKey::new(text).unwrap_or_else(|_| key.clone())
    }

    fn keys(&self, keys: &[ObjectKey]) -> Vec<ObjectKey> {
        keys.iter().map(|key| self.key(key)).collect()
    }

    fn transfers(&self, batch: &[Transfer]) -> Vec<Transfer> {
        batch
            .iter()
            .map(|transfer| Transfer::scattered(self.key(&transfer.key), transfer.parts.clone()))
            .collect()
    }

    /// The outcomes of a call, backwards if this is the flaw.
    fn turned<T>(&self, flaw: Flaw, mut outcomes: Vec<T>) -> Vec<T> {
        if self.is(flaw) {
            outcomes.reverse();
        }
        outcomes
    }
}

impl Engine for Flawed {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        let region = self.inner.register(memory, self.time(within))?;
        if self.is(KeepsMemory) {
            self.kept.lock().push(region.clone());
        }
        Ok(region)
    }

    fn registrations(&self) -> Registrations {
        self.inner.registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        let mut batch = self.transfers(batch);
        let mut options = options.clone();
        let within = self.time(within);
        match self.flaw {
            Overwrites => {
                let keys: Vec<_> = batch.iter().map(|transfer| transfer.key.clone()).collect();
                if keys.len() <= self.capabilities().max_batch {
                    self.inner.remove(&keys, within)?;
                }
            }
            PinsNothing => options.pin = Pin::Evictable,
            PinsEverything => options.pin = Pin::Hard,
            OneCopyOnly => options.replicas = 1,
            TakesAKeyTwice => {
                let asked = batch.len();
                let mut seen = std::collections::HashSet::new();
                batch.retain(|transfer| seen.insert(transfer.key.clone()));
                let mut outcomes = self.inner.put(&batch, &options, within)?;
                outcomes.resize(asked, PutOutcome::Stored);
                return Ok(outcomes);
            }
            SkipsPartless => batch.retain(|transfer| !transfer.parts.is_empty()),
            RefusesTooLate => {
                for transfer in &batch[..batch.len() / 2] {
                    self.inner.put(std::slice::from_ref(transfer), &options, within)?;
                }
            }
            LateEffect if within < Duration::from_millis(1) => {
                self.inner.put(&batch, &options, Duration::from_secs(5))?;
                let error = Error::unavailable("flawed", "out of time");
                return Err(error.with_retry(Retry::Safe));
            }
            _ => {}
        }
        let outcomes = self.turned(PutBackwards, self.inner.put(&batch, &options, within)?);
        Ok(outcomes
            .into_iter()
            .map(|outcome| match outcome {
                PutOutcome::Full if self.is(FullIsStored) => PutOutcome::Stored,
                PutOutcome::Full if self.is(FullIsFailure) => {
                    PutOutcome::Failed(Error::unavailable("flawed", "no room"))
                }
                PutOutcome::Failed(_) if self.is(WaitsTooLong) => {
                    self.clock.sleep(within * 3);
                    outcome
                }
                PutOutcome::Failed(error) if self.is(DeadIsInvalid) => {
                    PutOutcome::Failed(Error::invalid("flawed", error.to_string()))
                }
                outcome => outcome,
            })
            .collect())
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let mut batch = self.transfers(batch);
        if self.is(PartsByAddress) {
            for transfer in &mut batch {
                transfer.parts.sort_by_key(Span::address);
            }
        }
        if self.is(RemoveHonoursLeases) {
            self.read
                .lock()
                .extend(batch.iter().map(|transfer| transfer.key.clone()));
        }
        if self.is(TakesAKeyTwice) {
            // Like the real engine: one buffer is filled, both are reported as loaded.
            let asked = batch.len();
            let mut seen = std::collections::HashSet::new();
            batch.retain(|transfer| seen.insert(transfer.key.clone()));
            let mut outcomes = self.inner.get(&batch, within)?;
            outcomes.resize(asked, GetOutcome::Loaded);
            return Ok(outcomes);
        }
        let mut outcomes = self.inner.get(&batch, self.time(within))?;
        for (outcome, transfer) in outcomes.iter_mut().zip(&batch) {
            match (self.flaw, &*outcome) {
                (AnyLengthIsLoaded, GetOutcome::WrongLength { .. }) => *outcome = GetOutcome::Loaded,
                (TellsTheBuffersLength, GetOutcome::WrongLength { .. }) => {
                    *outcome = GetOutcome::WrongLength {
                        stored: transfer.bytes(),
                    };
                }
                (OverrunsShortBuffers, GetOutcome::WrongLength { .. }) => {
                    // Safe code cannot leave its span, so it reaches the byte outside through the region.
                    transfer.parts[0].region().whole().write(0, &[0xFF])?;
                }
                (UnknownIsMiss, GetOutcome::Failed(_)) => *outcome = GetOutcome::Miss,
                _ => {}
            }
        }
        if self.is(LeavesMissesOut) && batch.len() > 1 {
            outcomes.retain(|outcome| !matches!(outcome, GetOutcome::Miss));
        }
        Ok(self.turned(GetBackwards, outcomes))
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        let keys = self.keys(keys);
        let within = self.time(within);
        if self.is(RemovesNothing) && !within.is_zero() {
            return Ok(vec![RemoveOutcome::Removed; keys.len()]);
        }
        if self.is(RemoveHonoursLeases) && keys.iter().any(|key| self.read.lock().contains(key)) {
            return Ok(vec![RemoveOutcome::Removed; keys.len()]);
        }
        if self.is(SplitsLargeBatches) && !keys.is_empty() {
            let mut outcomes = Vec::new();
            for chunk in keys.chunks(self.capabilities().max_batch) {
                outcomes.extend(self.inner.remove(chunk, within)?);
            }
            return Ok(outcomes);
        }
        Ok(self.turned(RemoveBackwards, self.inner.remove(&keys, within)?))
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        let keys = self.keys(keys);
        let within = self.time(within);
        if self.is(ProbeHasSideEffects) {
            self.inner.promote(&keys, within)?;
            // A get, of any length, grants the lease.
            if let Ok(region) = self.inner.register(HostMemory::allocate(1)?, within) {
                let reads: Vec<_> = keys
                    .iter()
                    .map(|key| Transfer::new(key.clone(), region.whole()))
                    .collect();
                self.inner.get(&reads, within)?;
            }
        }
        let mut seen = self.inner.probe(&keys, within)?;
        for presence in &mut seen {
            match (self.flaw, presence) {
                (ProbeRoundsUp, Presence::Present { bytes, .. }) => *bytes = bytes.next_multiple_of(4096),
                (UnfinishedIsAbsent, presence @ Presence::Unfinished) => *presence = Presence::Absent,
                _ => {}
            }
        }
        Ok(self.turned(ProbeBackwards, seen))
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        let mut listing = self.inner.list(prefix, after, limit, self.time(within))?;
        match self.flaw {
            ListHasSideEffects => {
                self.inner.promote(&listing.keys, within)?;
            }
            ListLeavesOutSsd => {
                let seen = self.inner.probe(&listing.keys, within)?;
                let mut seen = seen.into_iter();
                listing
                    .keys
                    .retain(|_| !matches!(seen.next(), Some(Presence::Present { dram: 0, .. })));
            }
            ListForgetsItsPlace => listing = self.inner.list(prefix, None, limit, self.time(within))?,
            ListIgnoresPrefixes => listing = self.inner.list("", after, limit, self.time(within))?,
            _ => {}
        }
        Ok(listing)
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        let keys = self.keys(keys);
        match self.flaw {
            EveryPromotionIsAsked => Ok(vec![PromoteOutcome::Asked; keys.len()]),
            PromotesNothing => {
                let seen = self.inner.probe(&keys, self.time(within))?;
                Ok(seen
                    .into_iter()
                    .map(|presence| match presence {
                        Presence::Present { dram: 0, .. } => PromoteOutcome::Asked,
                        Presence::Present { .. } => PromoteOutcome::InDram,
                        _ => PromoteOutcome::Absent,
                    })
                    .collect())
            }
            _ => Ok(self.turned(PromoteBackwards, self.inner.promote(&keys, self.time(within))?)),
        }
    }

    fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str, within: Duration) -> Result<Vec<RelocateOutcome>> {
        if self.is(MovesNothing) {
            let seen = self.inner.probe(keys, within)?;
            let asked = |presence| match presence {
                Presence::Absent => RelocateOutcome::Absent,
                _ => RelocateOutcome::Asked,
            };
            return Ok(seen.into_iter().map(asked).collect());
        }
        self.inner.relocate(keys, from, to, self.time(within))
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        if self.is(UsageIsZero) {
            return Ok(Usage::default());
        }
        self.inner.usage(self.time(within))
    }

    fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        let mut holders = self.inner.holders(self.time(within))?;
        if self.is(HoldersAreNamesOnly) {
            holders
                .iter_mut()
                .for_each(|holder| holder.memory = "memory".to_owned());
        }
        Ok(holders)
    }
}

/// Starts memory clusters whose clients have a flaw.
pub(crate) struct FlawedBackend(pub(crate) Flaw);

impl Backend for FlawedBackend {
    fn start(&self, setup: &Setup) -> Result<Box<dyn Harness>> {
        Ok(Box::new(FlawedHarness {
            inner: MemoryBackend.start(setup)?,
            flaw: self.0,
        }))
    }
}

struct FlawedHarness {
    inner: Box<dyn Harness>,
    flaw: Flaw,
}

impl Harness for FlawedHarness {
    fn connect(&self) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(Flawed {
            inner: self.inner.connect()?,
            flaw: self.flaw,
            clock: self.inner.clock(),
            kept: Mutex::default(),
            read: Mutex::default(),
        }))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn abandon_put(&self, key: &ObjectKey, bytes: u64) -> Result<()> {
        self.inner.abandon_put(key, bytes)
    }

    fn kill_holder(&self, holder: usize) -> Result<()> {
        self.inner.kill_holder(holder)
    }

    fn restart_holder(&self, holder: usize) -> Result<()> {
        self.inner.restart_holder(holder)
    }

    fn kill_master(&self) -> Result<()> {
        self.inner.kill_master()
    }

    fn restart_master(&self) -> Result<()> {
        self.inner.restart_master()
    }
}
