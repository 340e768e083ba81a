//! What the workers do: they find objects, read them into the buffer, and look up where gets were served from. The route by
//! promotion is in `promotion`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Error, KeySpace, ObjectKey, Result, Timestamp};
use tensorhold_engine::{Engine, GetOutcome, Presence, Transfer, Usage};

use crate::buffer::Buffer;
use crate::config::{PrefetchConfig, Route};
use crate::flaw::Flaw;
use crate::prober::Prober;
use crate::shared::Shared;
use crate::sources::Sources;
use crate::throttle::{Attempt, AttemptId, Outcome};

/// How long a worker that has nothing to do waits before it looks again. Only a bound: it is woken when there is work.
const IDLE: Duration = Duration::from_secs(60);

/// What callers and workers share.
pub(crate) struct Work {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) config: PrefetchConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) buffer: Buffer,
    pub(crate) prober: Prober,
    pub(crate) sources: Sources,
    /// Whether anything was ever asked for: before that, gets go straight to the engine.
    pub(crate) used: AtomicBool,
    pub(crate) usage: Mutex<Option<(Timestamp, Usage)>>,
}

/// Attempts that were begun. Whatever happens to their worker, each of them ends.
pub(crate) struct Begun<'a> {
    work: &'a Work,
    pub(crate) open: HashMap<AttemptId, Attempt>,
}

impl Begun<'_> {
    /// Ends an attempt.
    pub(crate) fn end(&mut self, id: AttemptId, outcome: Outcome) {
        self.open.remove(&id);
        let now = self.work.clock.now();
        self.work.shared.with(|throttle| throttle.finish(id, outcome, now));
    }

    /// Ends an attempt whose object has arrived, and keeps the object, if it is of use. Both under one lock: a waiter that is
    /// woken finds it, and a removal finds it in the buffer or still on its way.
    fn keep(&mut self, id: AttemptId, arrived: Transfer) {
        self.open.remove(&id);
        let now = self.work.clock.now();
        let Transfer { key, mut parts } = arrived;
        self.work.shared.with(|throttle| {
            if throttle.finish(id, Outcome::Resident, now)
                && let Some(span) = parts.pop()
            {
                self.work.buffer.insert(key, span, now);
            }
        });
    }

    pub(crate) fn end_all(&mut self, outcome: &Outcome) {
        for id in self.ids() {
            self.end(id, outcome.clone());
        }
    }

    pub(crate) fn ids(&self) -> Vec<AttemptId> {
        let mut ids: Vec<_> = self.open.keys().copied().collect();
        ids.sort_unstable();
        ids
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.end_all(&Outcome::Failed(Error::internal(
            "prefetch.read",
            "the thread that read ahead panicked; see the log",
        )));
    }
}

impl Work {
    pub(crate) fn run(&self) {
        while self.shared.wait_for_work(&*self.clock, IDLE) {
            while self.step() {}
        }
    }

    /// Does what there is to do. Returns false if there was nothing.
    pub(crate) fn step(&self) -> bool {
        let now = self.clock.now();
        let most = self.engine.capabilities().max_batch.max(1);
        let looked_for = self.shared.with(|throttle| throttle.due_look(now));
        let deadline = Deadline::after(&*self.clock, self.config.within);
        for some in looked_for.chunks(most) {
            self.look(some.to_vec(), deadline);
        }
        let objects = self.config.batch_objects.min(most);
        let attempts = self
            .shared
            .with(|throttle| throttle.next(objects, self.config.batch_bytes, now));
        if attempts.is_empty() {
            return self.look_up_sources(most);
        }
        let mut begun = Begun {
            work: self,
            open: attempts.into_iter().map(|attempt| (attempt.id, attempt)).collect(),
        };
        match self.config.route {
            Route::Buffer => self.read_ahead(&mut begun),
            Route::Promote => self.promote(&mut begun),
        }
        true
    }

    /// Finds out the length of objects whose place is not known; those that are not on SSD only end here.
    fn find(&self, begun: &mut Begun<'_>, deadline: Deadline) -> Result<()> {
        let unknown: Vec<Attempt> = begun.ids().iter().map(|id| begun.open[id].clone()).collect();
        let unknown: Vec<Attempt> = unknown.into_iter().filter(|attempt| attempt.bytes.is_none()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let keys: Vec<ObjectKey> = unknown.iter().map(|attempt| attempt.key.clone()).collect();
        let found = self.prober.probe(&keys, deadline.remaining(&*self.clock))?;
        for (attempt, presence) in unknown.into_iter().zip(found) {
            match presence {
                Presence::Present { dram: 0, bytes, .. } => {
                    if let Some(open) = begun.open.get_mut(&attempt.id) {
                        open.bytes = Some(bytes);
                    }
                }
                Presence::Present { .. } => begun.end(attempt.id, Outcome::Resident),
                Presence::Absent | Presence::Unfinished => begun.end(attempt.id, Outcome::Absent),
            }
        }
        Ok(())
    }

    fn read_ahead(&self, begun: &mut Begun<'_>) {
        let deadline = Deadline::after(&*self.clock, self.config.within);
        if let Err(error) = self.find(begun, deadline) {
            begun.end_all(&self.failure(error, deadline));
            return;
        }
        let (mut reading, mut bytes): (Vec<(AttemptId, Transfer)>, u64) = (Vec::new(), 0);
        for id in begun.ids() {
            let Attempt { key, bytes: len, .. } = begun.open[&id].clone();
            let len = len.unwrap_or(0);
            if KeySpace::of(&key) == KeySpace::Foreign {
                // Its writer may write it again, and no process would tell this one.
                begun.end(id, Outcome::Refused);
                continue;
            }
            if !self.buffer.fits(len) {
                begun.end(id, failed("it is empty, or larger than the buffer; raise buffer_bytes"));
                continue;
            }
            if bytes + len > self.config.batch_bytes && !reading.is_empty() {
                self.read(std::mem::take(&mut reading), begun, deadline);
                bytes = 0;
            }
            let keep = if self.has(Flaw::NoLease) {
                Duration::ZERO
            } else {
                self.config.keep
            };
            let left = deadline.remaining(&*self.clock);
            match self.buffer.reserve(&*self.engine, len, keep, self.clock.now(), left) {
                Ok(Some(span)) => {
                    reading.push((id, Transfer::new(key, span)));
                    bytes += len;
                }
                Ok(None) => {
                    begun.end(id, Outcome::Refused);
                    self.press();
                }
                Err(error) => {
                    // Without memory nothing can be read ahead; trying again at once would fail again.
                    drop(reading);
                    begun.end_all(&self.failure(error, deadline));
                    self.press();
                    return;
                }
            }
        }
        self.read(reading, begun, deadline);
    }

    pub(crate) fn press(&self) {
        let now = self.clock.now();
        self.shared.with(|throttle| throttle.press(now));
    }

    /// Reads objects into the buffer, in one call of the engine.
    fn read(&self, reading: Vec<(AttemptId, Transfer)>, begun: &mut Begun<'_>, deadline: Deadline) {
        if reading.is_empty() {
            return;
        }
        let batch: Vec<Transfer> = reading.iter().map(|(_, transfer)| transfer.clone()).collect();
        let outcomes = match self.engine.get(&batch, deadline.remaining(&*self.clock)) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                let outcome = self.failure(error, deadline);
                for (id, _) in reading {
                    begun.end(id, outcome.clone());
                }
                return;
            }
        };
        drop(batch);
        for ((id, transfer), outcome) in reading.into_iter().zip(outcomes) {
            let outcome = match outcome {
                GetOutcome::Loaded => Outcome::Resident,
                GetOutcome::Miss => Outcome::Absent,
                GetOutcome::Unfinished => failed("its put has not ended"),
                GetOutcome::WrongLength { .. } => failed("its length has changed"),
                GetOutcome::Failed(error) => self.failure(error, deadline),
            };
            match outcome {
                Outcome::Resident => begun.keep(id, transfer),
                outcome => begun.end(id, outcome),
            }
        }
    }

    pub(crate) fn failure(&self, error: Error, deadline: Deadline) -> Outcome {
        if deadline.passed(&*self.clock) {
            return Outcome::Expired;
        }
        tracing::debug!(%error, "an object could not be read ahead");
        Outcome::Failed(error)
    }

    /// Looks up which tier served the last gets. Returns false if there is nothing to look up.
    fn look_up_sources(&self, most: usize) -> bool {
        let keys = self.sources.take(most);
        if keys.is_empty() {
            return false;
        }
        match self.prober.probe(&keys, self.config.within) {
            Ok(found) => found.into_iter().for_each(|presence| self.sources.seen(Some(presence))),
            Err(_) => keys.iter().for_each(|_| self.sources.seen(None)),
        }
        true
    }

    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.shared.with(|throttle| throttle.has(flaw))
    }
}

fn failed(why: &str) -> Outcome {
    Outcome::Failed(Error::unavailable("prefetch.read", why))
}
