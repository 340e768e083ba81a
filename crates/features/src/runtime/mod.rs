//! What every part of an open store needs: its peers, its settings, its session, its threads, its tasks and its
//! counters. Nothing here knows what a sample is made of.

pub(crate) mod blocking;
pub(crate) mod config;
pub(crate) mod counters;
pub(crate) mod inflight_puts;
pub(crate) mod sessions;
mod steps;
pub(crate) mod tasks;

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Result, Rng, Timestamp};
use tensorhold_engine::{Engine, metered};
use tensorhold_index::Index;
use tensorhold_metrics::{Outcome, StoreMetrics, registry};
use tensorhold_prefetch::PrefetchEngine;
use tensorhold_trace::Tracer;
use tokio::runtime::Handle;

use self::blocking::{BlockingCalls, Threads};
use self::config::FeatureConfig;
use self::counters::Counting;
use self::sessions::Sessions;
use self::tasks::Tasks;

/// Shared by all rooms above.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) engine: Arc<dyn Engine>,
    /// The same engine, by its own type.
    pub(crate) prefetch: Arc<PrefetchEngine>,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) config: FeatureConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) sessions: Sessions,
    pub(crate) blocking: BlockingCalls,
    /// For calls that wait for a device: a busy one must not take the slots of engine calls.
    pub(crate) for_device: BlockingCalls,
    /// Where both are made, and the other calls that block.
    pub(crate) threads: Threads,
    pub(crate) tasks: Tasks,
    pub(crate) count: Counting,
    /// Latencies; none if metrics are off.
    pub(crate) metrics: Option<Arc<StoreMetrics>>,
    /// Traces; none unless the environment asks for them.
    pub(crate) tracer: Option<Tracer>,
}

impl Runtime {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        index: Arc<dyn Index>,
        config: FeatureConfig,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        handle: Handle,
        threads: Threads,
    ) -> Result<Self> {
        let engine = metered(engine, config.store.as_str(), &clock);
        let prefetch = PrefetchEngine::new(engine, config.prefetch.clone(), Arc::clone(&clock))?;
        let prefetch = Arc::new(prefetch);
        Ok(Self {
            sessions: Sessions::new(Arc::clone(&index), Arc::clone(&clock)),
            blocking: BlockingCalls::new(config.max_in_flight, Arc::clone(&clock), threads.clone()),
            for_device: BlockingCalls::new(config.max_in_flight, Arc::clone(&clock), threads.clone()),
            threads,
            tasks: Tasks::new(handle),
            count: Counting::default(),
            tracer: Tracer::from_environment(&clock)?,
            metrics: registry().store(config.store.as_str()),
            engine: Arc::clone(&prefetch) as Arc<dyn Engine>,
            prefetch,
            index,
            config,
            clock,
            rng,
        })
    }

    /// Runs an operation that a caller began at `started`, and observes how long it took and how it ended.
    pub(crate) async fn timed<T>(
        self: Arc<Self>,
        operation: &'static str,
        started: Timestamp,
        act: impl Future<Output = T>,
        outcome: impl FnOnce(&T) -> Outcome,
    ) -> T {
        let result = act.await;
        if let Some(metrics) = &self.metrics {
            let name = operation.strip_prefix("features.").unwrap_or(operation);
            let took = self.clock.now().since(started);
            metrics.operations.ended_by_name(name, outcome(&result), took);
        }
        result
    }

    pub(crate) fn deadline(&self, within: Duration) -> Deadline {
        Deadline::after(&*self.clock, within)
    }

    /// The deadline of a call that no caller waits for.
    pub(crate) fn own_deadline(&self) -> Deadline {
        self.deadline(self.config.call_within)
    }

    pub(crate) fn left(&self, deadline: Deadline) -> Duration {
        deadline.remaining(&*self.clock)
    }

    /// The shortest time that a lease lasts.
    pub(crate) fn lease_time(&self) -> Duration {
        let ticks = u32::try_from(self.config.lease_ticks).unwrap_or(u32::MAX);
        self.index.tick_length().saturating_mul(ticks)
    }

    /// How many objects one call to the engine may name.
    pub(crate) fn max_batch(&self) -> usize {
        self.engine.capabilities().max_batch.max(1)
    }
}
