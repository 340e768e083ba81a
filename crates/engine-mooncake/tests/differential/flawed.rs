//! A memory engine that is wrong on purpose, to see that it is found out.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ObjectKey, Result};
use tensorhold_engine::{
    Capabilities, Engine, GetOutcome, HostMemory, Listing, MemoryEngine, Presence, PromoteOutcome, PutOptions,
    PutOutcome, Region, Registrations, RemoveOutcome, Transfer, Usage,
};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A put on a key that has an object writes the new one.
    Overwrites,
    /// A read with the wrong length is loaded.
    LoadsOtherLengths,
    /// The last byte of what is loaded is wrong.
    TurnsAByte,
    /// A read writes one byte too many.
    Overruns,
    /// What is not there is removed.
    RemovesNothing,
    /// Unfinished puts are absent.
    ForgetsTheDead,
    /// A key may stand twice in a put.
    TakesTwins,
    /// A call without time is made all the same.
    IgnoresTime,
    /// Two bytes of every three are counted.
    Undercounts,
}

impl Flaw {
    pub const ALL: [Self; 9] = [
        Self::Overwrites,
        Self::LoadsOtherLengths,
        Self::TurnsAByte,
        Self::Overruns,
        Self::RemovesNothing,
        Self::ForgetsTheDead,
        Self::TakesTwins,
        Self::IgnoresTime,
        Self::Undercounts,
    ];
}

/// See [`Flaw`].
#[derive(Debug)]
pub struct FlawedEngine {
    below: Arc<MemoryEngine>,
    flaw: Flaw,
}

impl FlawedEngine {
    pub fn new(below: Arc<MemoryEngine>, flaw: Flaw) -> Self {
        Self { below, flaw }
    }

    fn time(&self, within: Duration) -> Duration {
        match self.flaw {
            Flaw::IgnoresTime => within.max(Duration::from_secs(1)),
            _ => within,
        }
    }
}

/// Changes the byte at `at` of the region that a buffer lies in.
fn turn(part: &tensorhold_engine::Span, at: usize) -> Result<()> {
    let at = part.address() - part.region().address() + at;
    let byte = part.region().span(at..at + 1)?;
    byte.write(0, &[!byte.to_vec()[0]])
}

impl Engine for FlawedEngine {
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
        let within = self.time(within);
        match self.flaw {
            Flaw::Overwrites => {
                let keys: Vec<_> = batch.iter().map(|transfer| transfer.key.clone()).collect();
                self.below.remove(&keys, within)?;
                self.below.put(batch, options, within)
            }
            Flaw::TakesTwins => {
                let mut once = batch.to_vec();
                once.sort_by(|a, b| a.key.cmp(&b.key));
                once.dedup_by(|a, b| a.key == b.key);
                if once.len() == batch.len() {
                    return self.below.put(batch, options, within);
                }
                self.below.put(&once, options, within)?;
                Ok(vec![PutOutcome::Stored; batch.len()])
            }
            _ => self.below.put(batch, options, within),
        }
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let mut outcomes = self.below.get(batch, self.time(within))?;
        for (outcome, transfer) in outcomes.iter_mut().zip(batch) {
            let last = transfer.parts.last().expect("parts");
            match (self.flaw, &outcome) {
                (Flaw::LoadsOtherLengths, GetOutcome::WrongLength { .. }) => *outcome = GetOutcome::Loaded,
                (Flaw::TurnsAByte, GetOutcome::Loaded) => turn(last, last.len() - 1)?,
                (Flaw::Overruns, GetOutcome::Loaded) => turn(last, last.len())?,
                _ => {}
            }
        }
        Ok(outcomes)
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        let mut outcomes = self.below.remove(keys, self.time(within))?;
        for outcome in &mut outcomes {
            if self.flaw == Flaw::RemovesNothing && matches!(outcome, RemoveOutcome::Absent) {
                *outcome = RemoveOutcome::Removed;
            }
        }
        Ok(outcomes)
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        let mut found = self.below.probe(keys, self.time(within))?;
        for presence in &mut found {
            if self.flaw == Flaw::ForgetsTheDead && *presence == Presence::Unfinished {
                *presence = Presence::Absent;
            }
        }
        Ok(found)
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        self.below.list(prefix, after, limit, self.time(within))
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        self.below.promote(keys, self.time(within))
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        let mut usage = self.below.usage(self.time(within))?;
        if self.flaw == Flaw::Undercounts {
            usage.dram_used -= usage.dram_used / 3;
        }
        Ok(usage)
    }
}
