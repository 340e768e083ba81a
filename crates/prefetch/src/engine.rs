//! The engine that reads ahead: its calls, and the life of its workers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, ObjectKey, Result};
use tensorhold_engine::batch::check_time;
use tensorhold_engine::{
    Capabilities, Engine, GetOutcome, Holder, HostMemory, Listing, Presence, PromoteOutcome, PutOptions, PutOutcome,
    Region, Registrations, RelocateOutcome, RemoveOutcome, Transfer, Usage,
};
use tensorhold_metrics::{Readings, family};

use crate::buffer::Buffer;
use crate::config::{PrefetchConfig, Route};
#[cfg(feature = "testing")]
use crate::flaw::Flaw;
use crate::handle::Prefetch;
use crate::prober::{ProbeCounts, Prober};
use crate::shared::Shared;
use crate::sources::{SourceCounts, Sources};
use crate::throttle::{Limits, Outcome, OutcomeCounts, Priority, Want};
use crate::workers::Work;

/// An engine that reads ahead what lies on SSD. See the documentation of the crate.
pub struct PrefetchEngine {
    work: Arc<Work>,
    /// Its threads, once there are any.
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for PrefetchEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefetchEngine")
            .field("engine", &self.work.engine)
            .field("config", &self.work.config)
            .finish_non_exhaustive()
    }
}

/// The counters of a prefetcher since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchStats {
    /// How prefetches ended.
    pub outcomes: OutcomeCounts,
    /// Where gets were served from.
    pub sources: SourceCounts,
    /// Requests of probes, and keys in them.
    pub probes: ProbeCounts,
    /// Objects that were read ahead and not read yet.
    pub buffered: usize,
    /// Bytes of the buffer in use.
    pub buffer_bytes: usize,
}

impl PrefetchStats {
    /// Tells them to a scrape, for this store.
    #[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
    pub fn tell(&self, store: &str, readings: &mut Readings) {
        let (outcomes, sources) = (&self.outcomes, &self.sources);
        for (family, count) in [
            (&family::PREFETCH_ASKED, outcomes.asked),
            (&family::PREFETCH_BEGUN, outcomes.begun),
            (&family::PROBE_REQUESTS, self.probes.requests),
            (&family::PROBE_KEYS, self.probes.keys),
        ] {
            readings.counter(family, &[store], count);
        }
        for (outcome, count) in [
            ("resident", outcomes.resident),
            ("absent", outcomes.absent),
            ("refused", outcomes.refused),
            ("expired", outcomes.expired),
            ("cancelled", outcomes.cancelled),
            ("failed", outcomes.failed),
        ] {
            readings.counter(&family::PREFETCH_ENDED, &[store, outcome], count);
        }
        for (tier, count) in [
            ("local", sources.local),
            ("dram", sources.dram),
            ("ssd", sources.ssd),
            ("unknown", sources.unknown),
        ] {
            readings.counter(&family::LOADED, &[store, tier], count);
        }
        for (tier, bytes) in [
            ("local", sources.local_bytes),
            ("dram", sources.dram_bytes),
            ("ssd", sources.ssd_bytes),
        ] {
            readings.counter(&family::LOADED_BYTES, &[store, tier], bytes);
        }
        readings.gauge(&family::PREFETCH_BUFFERED, &[store], self.buffered as f64);
        readings.gauge(&family::PREFETCH_BUFFER, &[store], self.buffer_bytes as f64);
    }
}

impl PrefetchEngine {
    /// Reads ahead over this engine. Starts no thread and registers no memory before the first prefetch.
    pub fn new(engine: Arc<dyn Engine>, config: PrefetchConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.validate()?;
        let limits = Limits {
            queue: config.queue,
            begin_within: config.begin_within,
            remember: config.remember,
            cool_down: config.cool_down,
            look_every: config.look_every,
            remember_resident: config.route == Route::Promote,
        };
        Ok(Self {
            work: Arc::new(Work {
                shared: Arc::new(Shared::new(limits)),
                buffer: Buffer::new(config.buffer_bytes),
                prober: Prober::new(Arc::clone(&engine), Arc::clone(&clock), config.cache_for),
                sources: Sources::default(),
                used: AtomicBool::new(false),
                usage: Mutex::new(None),
                engine,
                config,
                clock,
            }),
            workers: Mutex::new(Vec::new()),
        })
    }

    /// Whether anything was ever asked for.
    pub fn was_used(&self) -> bool {
        self.work.used.load(Ordering::Acquire)
    }

    /// The counters so far.
    pub fn stats(&self) -> PrefetchStats {
        PrefetchStats {
            outcomes: self.work.shared.with(|throttle| throttle.counts()),
            sources: self.work.sources.counts(),
            probes: self.work.prober.counts(),
            buffered: self.work.buffer.len(),
            buffer_bytes: self.work.buffer.used(),
        }
    }

    /// Where objects are: no lease, no promotion, no change of the order of eviction. Concurrent calls share requests.
    /// Presence is a hint; use [`Engine::probe`] where an answer may not be older than the question.
    pub fn exists(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        check_time("prefetch.exists", within)?;
        let found = self.work.prober.probe(keys, within)?;
        if self.was_used() {
            // Whoever removed it may have been another process.
            let absent = keys.iter().zip(&found).filter(|(_, found)| **found == Presence::Absent);
            absent.for_each(|(key, _)| self.work.buffer.remove(key));
        }
        Ok(found)
    }

    /// Whether an object has been read ahead into this process's memory.
    pub fn is_local(&self, key: &ObjectKey) -> bool {
        self.work.buffer.has(key)
    }

    /// [`PrefetchEngine::exists`], and what is on SSD only is on its way to memory when it returns.
    pub fn exists_and_prefetch(
        &self,
        keys: &[ObjectKey],
        priority: Priority,
        within: Duration,
    ) -> Result<(Vec<Presence>, Prefetch)> {
        let found = self.exists(keys, within)?;
        let prefetch = self.prefetch_found(keys, &found, priority);
        Ok((found, prefetch))
    }

    /// Prefetches objects that a probe has just found like this. Never blocks.
    pub fn prefetch_found(&self, keys: &[ObjectKey], found: &[Presence], priority: Priority) -> Prefetch {
        let wants = keys.iter().zip(found).map(|(key, presence)| {
            let (bytes, ended) = match presence {
                Presence::Present { dram: 0, bytes, .. } => {
                    (Some(*bytes), self.work.buffer.has(key).then_some(Outcome::Resident))
                }
                Presence::Present { .. } => (None, Some(Outcome::Resident)),
                Presence::Absent | Presence::Unfinished => (None, Some(Outcome::Absent)),
            };
            Want {
                key: key.clone(),
                bytes,
                ended,
            }
        });
        self.trigger(wants.collect(), priority)
    }

    /// Prefetches objects. Never blocks: a worker finds out where they are.
    pub fn prefetch(&self, keys: &[ObjectKey], priority: Priority) -> Prefetch {
        let wants = keys.iter().map(|key| Want {
            key: key.clone(),
            bytes: None,
            ended: self.work.buffer.has(key).then_some(Outcome::Resident),
        });
        self.trigger(wants.collect(), priority)
    }

    fn trigger(&self, wants: Vec<Want>, priority: Priority) -> Prefetch {
        let now = self.work.clock.now();
        let (ticket, pending) = self.work.shared.with(|throttle| {
            let ticket = throttle.trigger(wants, priority, now);
            let pending = throttle.any_pending();
            if pending {
                // Before a worker can begin: a removal must see that there may be a copy.
                self.work.used.store(true, Ordering::Release);
            }
            (ticket, pending)
        });
        if pending {
            self.start_workers();
        }
        Prefetch {
            shared: Arc::clone(&self.work.shared),
            clock: Arc::clone(&self.work.clock),
            ticket,
        }
    }

    fn start_workers(&self) {
        let mut workers = self.workers.lock();
        #[cfg(feature = "testing")]
        if self.work.config.workers == usize::MAX {
            return; // a test takes the steps by hand
        }
        // One that panicked is replaced.
        workers.retain(|worker| !worker.is_finished());
        while workers.len() < self.work.config.workers && !self.work.shared.with(|throttle| throttle.is_closed()) {
            let work = Arc::clone(&self.work);
            let name = format!("tensorhold-prefetch-{}", workers.len());
            match std::thread::Builder::new().name(name).spawn(move || work.run()) {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    // Without any thread, what waits expires at the next sweep; gets go to the engine.
                    tracing::warn!(%error, "a thread that reads ahead could not be started");
                    return;
                }
            }
        }
    }

    /// Ends all prefetches and joins the threads; reads in flight are waited for, within their own deadlines. Gets,
    /// puts and the like go on to work.
    pub fn close(&self) {
        let now = self.work.clock.now();
        self.work.shared.with(|throttle| throttle.close(now));
        let workers = std::mem::take(&mut *self.workers.lock());
        for worker in workers {
            if worker.join().is_err() {
                tracing::error!("a thread that reads ahead panicked; its objects have failed");
            }
        }
        self.work.buffer.close();
    }

    /// One step of a worker, by hand.
    #[cfg(feature = "testing")]
    pub fn step(&self) -> bool {
        self.work.step()
    }

    /// Makes it faulty.
    #[cfg(feature = "testing")]
    pub fn set_flaw(&self, flaw: Flaw) {
        self.work.shared.with(|throttle| throttle.set_flaw(flaw));
    }

    /// What is wrong with its state; `None` if every invariant holds.
    #[cfg(feature = "testing")]
    pub fn check(&self) -> Option<String> {
        self.work.shared.with(|throttle| throttle.check())
    }
}

impl Drop for PrefetchEngine {
    /// Does not wait: a worker in the middle of a read lets go of the engine when it is back.
    fn drop(&mut self) {
        let now = self.work.clock.now();
        self.work.shared.with(|throttle| throttle.close(now));
        self.work.buffer.close();
    }
}

impl Engine for PrefetchEngine {
    fn capabilities(&self) -> Capabilities {
        self.work.engine.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        self.work.engine.register(memory, within)
    }

    fn registrations(&self) -> Registrations {
        self.work.engine.registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        let outcomes = self.work.engine.put(batch, options, within);
        self.forget(batch.iter().map(|transfer| &transfer.key));
        outcomes
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let outcomes = self.work.get(batch, within)?;
        if self.work.sources.any_open() {
            self.start_workers();
            self.work.shared.with(|throttle| throttle.nudge());
        }
        Ok(outcomes)
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        // Before, because nobody should read them any more; and after, because an attempt may have begun meanwhile.
        self.forget(keys.iter());
        let outcomes = self.work.engine.remove(keys, within);
        self.forget(keys.iter());
        outcomes
    }

    /// Straight to the engine: evidence must not be older than the question.
    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        self.work.engine.probe(keys, within)
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        self.work.engine.list(prefix, after, limit, within)
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        self.work.engine.promote(keys, within)
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        self.work.engine.usage(within)
    }

    fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        self.work.engine.holders(within)
    }

    fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str, within: Duration) -> Result<Vec<RelocateOutcome>> {
        self.work.engine.relocate(keys, from, to, within)
    }
}

impl PrefetchEngine {
    fn forget<'a>(&self, keys: impl Iterator<Item = &'a ObjectKey> + Clone) {
        self.work.prober.forget(keys.clone());
        if !self.was_used() {
            return;
        }
        self.work.shared.with(|throttle| {
            for key in keys.clone() {
                throttle.changed(key);
            }
        });
        for key in keys {
            self.work.buffer.remove(key);
        }
    }
}
