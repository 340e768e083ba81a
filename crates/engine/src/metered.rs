//! An engine that counts and times the calls to the one below it.
//!
//! It changes nothing of what a call does or returns. It stands directly above the back end, so that calls of a prefetcher
//! above it count too.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, ObjectKey, Result, Timestamp};
use tensorhold_metrics::{EngineCall, EngineMetrics, Outcome, StoreMetrics, registry};

use crate::Engine;
use crate::region::{HostMemory, Region};
use crate::types::{
    Capabilities, GetOutcome, Holder, Listing, Presence, PromoteOutcome, PutOptions, PutOutcome, Registrations,
    RelocateOutcome, RemoveOutcome, Transfer, Usage,
};

/// See the module.
#[derive(Debug)]
struct MeteredEngine {
    engine: Arc<dyn Engine>,
    metrics: Arc<StoreMetrics>,
    clock: Arc<dyn Clock>,
}

/// The engine, with its calls counted for this store; the same engine if metrics are off.
pub fn metered(engine: Arc<dyn Engine>, store: &str, clock: &Arc<dyn Clock>) -> Arc<dyn Engine> {
    match registry().store(store) {
        Some(metrics) => Arc::new(MeteredEngine {
            engine,
            metrics,
            clock: Arc::clone(clock),
        }),
        None => engine,
    }
}

impl MeteredEngine {
    /// Ends a call, and counts the objects of one that returned outcomes.
    fn ended<T>(
        &self,
        call: EngineCall,
        started: Timestamp,
        result: &Result<Vec<T>>,
        name: impl Fn(&T) -> &'static str,
    ) {
        let metrics = &self.metrics.engine;
        metrics.ended(call, Outcome::of(result), self.clock.now().since(started));
        if let Ok(outcomes) = result {
            metrics.objects(call, outcomes.iter().map(name));
        }
    }
}

/// The bytes of the objects that have moved.
fn moved<T>(batch: &[Transfer], result: &Result<Vec<T>>, has_moved: impl Fn(&T) -> bool) -> u64 {
    let Ok(outcomes) = result else { return 0 };
    let both = batch.iter().zip(outcomes);
    both.filter(|(_, outcome)| has_moved(outcome))
        .map(|(transfer, _)| transfer.bytes())
        .sum()
}

impl Engine for MeteredEngine {
    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        let started = self.clock.now();
        let result = self.engine.register(memory, within);
        let took = self.clock.now().since(started);
        self.metrics
            .engine
            .ended(EngineCall::Register, Outcome::of(&result), took);
        result
    }

    fn registrations(&self) -> Registrations {
        self.engine.registrations()
    }

    fn put(&self, batch: &[Transfer], options: &PutOptions, within: Duration) -> Result<Vec<PutOutcome>> {
        let started = self.clock.now();
        let result = self.engine.put(batch, options, within);
        self.ended(EngineCall::Put, started, &result, |outcome| match outcome {
            PutOutcome::Stored => "stored",
            PutOutcome::Full => "full",
            PutOutcome::Failed(error) => EngineMetrics::failure(error),
        });
        let bytes = moved(batch, &result, |outcome| matches!(outcome, PutOutcome::Stored));
        self.metrics.engine.bytes_out.add(bytes);
        result
    }

    fn get(&self, batch: &[Transfer], within: Duration) -> Result<Vec<GetOutcome>> {
        let started = self.clock.now();
        let result = self.engine.get(batch, within);
        self.ended(EngineCall::Get, started, &result, |outcome| match outcome {
            GetOutcome::Loaded => "loaded",
            GetOutcome::Miss => "miss",
            GetOutcome::Unfinished => "unfinished",
            GetOutcome::WrongLength { .. } => "wrong_length",
            GetOutcome::Failed(error) => EngineMetrics::failure(error),
        });
        let bytes = moved(batch, &result, |outcome| matches!(outcome, GetOutcome::Loaded));
        self.metrics.engine.bytes_in.add(bytes);
        result
    }

    fn remove(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<RemoveOutcome>> {
        let started = self.clock.now();
        let result = self.engine.remove(keys, within);
        self.ended(EngineCall::Remove, started, &result, |outcome| match outcome {
            RemoveOutcome::Removed => "removed",
            RemoveOutcome::Absent => "absent",
            RemoveOutcome::Unfinished => "unfinished",
            RemoveOutcome::Failed(error) => EngineMetrics::failure(error),
        });
        result
    }

    fn probe(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Presence>> {
        let started = self.clock.now();
        let result = self.engine.probe(keys, within);
        self.ended(EngineCall::Probe, started, &result, |outcome| match outcome {
            Presence::Absent => "absent",
            Presence::Unfinished => "unfinished",
            Presence::Present { .. } => "present",
        });
        result
    }

    fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize, within: Duration) -> Result<Listing> {
        let started = self.clock.now();
        let result = self.engine.list(prefix, after, limit, within);
        let took = self.clock.now().since(started);
        self.metrics.engine.ended(EngineCall::List, Outcome::of(&result), took);
        result
    }

    fn promote(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<PromoteOutcome>> {
        let started = self.clock.now();
        let result = self.engine.promote(keys, within);
        self.ended(EngineCall::Promote, started, &result, |outcome| match outcome {
            PromoteOutcome::InDram => "in_dram",
            PromoteOutcome::Asked => "asked",
            PromoteOutcome::Absent => "absent",
            PromoteOutcome::Failed(error) => EngineMetrics::failure(error),
        });
        result
    }

    fn usage(&self, within: Duration) -> Result<Usage> {
        let started = self.clock.now();
        let result = self.engine.usage(within);
        let took = self.clock.now().since(started);
        self.metrics.engine.ended(EngineCall::Usage, Outcome::of(&result), took);
        result
    }

    /// Not counted: people ask, and no work of a run does.
    fn holders(&self, within: Duration) -> Result<Vec<Holder>> {
        self.engine.holders(within)
    }

    fn relocate(&self, keys: &[ObjectKey], from: &str, to: &str, within: Duration) -> Result<Vec<RelocateOutcome>> {
        self.engine.relocate(keys, from, to, within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineExt, MemoryCluster, MemoryConfig};
    use tensorhold_core::ManualClock;

    #[test]
    fn calls_objects_and_bytes_are_counted() {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
        let engine = MemoryCluster::new(MemoryConfig::default(), Arc::clone(&clock)).connect();
        let engine = metered(engine, "metered", &clock);
        let second = Duration::from_secs(1);
        let region = engine.allocate(64, second).expect("memory");
        let key = |name: &str| ObjectKey::new(name).expect("a key");
        let span = region.span(0..64).expect("a span");
        engine
            .put_one(&key("metered/a"), &span, &PutOptions::default(), second)
            .expect("put");
        let batch = ["metered/a", "metered/b"].map(|name| Transfer::new(key(name), span.clone()));
        engine.get(&batch, second).expect("get");
        engine.get(&batch, Duration::ZERO).expect_err("no time");
        engine.remove_one(&key("metered/a"), second).expect("remove");
        let text = registry().text();
        for line in [
            r#"tensorhold_engine_call_seconds_count{store="metered",call="put",outcome="ok"} 1"#,
            r#"tensorhold_engine_call_seconds_count{store="metered",call="get",outcome="ok"} 1"#,
            r#"tensorhold_engine_call_seconds_count{store="metered",call="get",outcome="unavailable"} 1"#,
            r#"tensorhold_engine_objects_total{store="metered",call="get",outcome="loaded"} 1"#,
            r#"tensorhold_engine_objects_total{store="metered",call="get",outcome="miss"} 1"#,
            r#"tensorhold_engine_objects_total{store="metered",call="remove",outcome="removed"} 1"#,
            r#"tensorhold_engine_bytes_total{store="metered",direction="out"} 64"#,
            r#"tensorhold_engine_bytes_total{store="metered",direction="in"} 64"#,
        ] {
            assert!(text.lines().any(|told| told == line), "{line}\n{text}");
        }
    }
}
