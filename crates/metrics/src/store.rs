//! The cells of one store: its operations, its engine, its index.

use tensorhold_core::Error;

use crate::cells::{Calls, Counter, Counts, Histogram, LATENCY};
use crate::family;
use crate::outcome::Outcome;
use crate::readings::Readings;

/// The operations of the feature store that are timed.
pub const OPERATIONS: &[&str] = &[
    "put",
    "get",
    "lease_next",
    "lease",
    "read",
    "ack",
    "nack",
    "release",
    "use_up",
    "renew",
    "abort",
    "reopen",
    "announce",
    "adopt",
    "discard",
    "sweep",
    "set_budget",
    "end",
];

/// The calls to an engine that are timed.
pub const ENGINE_CALLS: &[&str] = &["put", "get", "remove", "probe", "promote", "usage", "register", "list"];

/// A call to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum EngineCall {
    Put,
    Get,
    Remove,
    Probe,
    Promote,
    Usage,
    Register,
    List,
}

/// What becomes of one object of a call to an engine. The last are the kinds of errors.
pub const OBJECT_OUTCOMES: &[&str] = &[
    "stored",
    "full",
    "loaded",
    "miss",
    "unfinished",
    "wrong_length",
    "removed",
    "absent",
    "present",
    "in_dram",
    "asked",
    "unavailable",
    "failed",
];

/// The calls to the index's store that are timed.
pub const INDEX_CALLS: &[&str] = &["read", "transact", "open_session", "watch"];

/// A call to the index's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is what its name says")]
pub enum IndexCall {
    Read,
    Transact,
    OpenSession,
    Watch,
}

/// What is read of the index's store at once.
pub const READS: &[&str] = &["key", "range"];

/// What a read of the index is for.
pub const CAUSES: &[&str] = &["other", "sweep", "collect"];

/// The cells of one store.
#[derive(Debug)]
pub struct StoreMetrics {
    name: String,
    /// Operations of the feature store, by [`OPERATIONS`].
    pub operations: Calls,
    /// From retired to freed.
    pub reclaim: Histogram,
    /// Calls to the engine.
    pub engine: EngineMetrics,
    /// Calls to the index's store.
    pub index: IndexMetrics,
}

/// Calls to an engine.
#[derive(Debug)]
pub struct EngineMetrics {
    calls: Calls,
    objects: Counts,
    /// Bytes that were put.
    pub bytes_out: Counter,
    /// Bytes that were got.
    pub bytes_in: Counter,
}

/// Calls to the index's store.
#[derive(Debug)]
pub struct IndexMetrics {
    calls: Calls,
    reads: Counts,
    /// Transactions whose answer was lost.
    pub ambiguous: Counter,
}

impl StoreMetrics {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            operations: Calls::new(OPERATIONS),
            reclaim: Histogram::new(&LATENCY),
            engine: EngineMetrics {
                calls: Calls::new(ENGINE_CALLS),
                objects: Counts::new(ENGINE_CALLS, OBJECT_OUTCOMES),
                bytes_out: Counter::new(),
                bytes_in: Counter::new(),
            },
            index: IndexMetrics {
                calls: Calls::new(INDEX_CALLS),
                reads: Counts::new(READS, CAUSES),
                ambiguous: Counter::new(),
            },
        }
    }

    /// The value of the label `store`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn read(&self, readings: &mut Readings) {
        let store = self.name.as_str();
        for (name, outcome, took) in self.operations.each() {
            readings.histogram(&family::OPERATION, &[store, name, outcome.name()], took);
        }
        readings.histogram(&family::RECLAIM, &[store], &self.reclaim);
        for (name, outcome, took) in self.engine.calls.each() {
            readings.histogram(&family::ENGINE_CALL, &[store, name, outcome.name()], took);
        }
        for (call, outcome, count) in self.engine.objects.each() {
            readings.counter(&family::ENGINE_OBJECTS, &[store, call, outcome], count);
        }
        readings.counter(&family::ENGINE_BYTES, &[store, "out"], self.engine.bytes_out.get());
        readings.counter(&family::ENGINE_BYTES, &[store, "in"], self.engine.bytes_in.get());
        for (name, outcome, took) in self.index.calls.each() {
            readings.histogram(&family::INDEX_CALL, &[store, name, outcome.name()], took);
        }
        for (kind, cause, count) in self.index.reads.each() {
            readings.counter(&family::INDEX_READS, &[store, kind, cause], count);
        }
        readings.counter(&family::INDEX_AMBIGUOUS, &[store], self.index.ambiguous.get());
    }
}

impl EngineMetrics {
    /// A call ended.
    pub fn ended(&self, call: EngineCall, outcome: Outcome, took: std::time::Duration) {
        self.calls.ended(call as usize, outcome, took);
    }

    /// What became of the objects of a call, each by its name in [`OBJECT_OUTCOMES`].
    pub fn objects(&self, call: EngineCall, outcomes: impl Iterator<Item = &'static str>) {
        // A batch mostly ends one way: equal ones in a row are counted at once.
        let mut run: Option<(&'static str, u64)> = None;
        for outcome in outcomes {
            match &mut run {
                Some((name, count)) if *name == outcome => *count += 1,
                _ => self.count(call, run.replace((outcome, 1))),
            }
        }
        self.count(call, run);
    }

    fn count(&self, call: EngineCall, run: Option<(&'static str, u64)>) {
        let Some((name, count)) = run else { return };
        if let Some(at) = OBJECT_OUTCOMES.iter().position(|known| *known == name) {
            self.objects.add(call as usize, at, count);
        }
    }

    /// The name of an object's failure in [`OBJECT_OUTCOMES`].
    pub fn failure(error: &Error) -> &'static str {
        match error.kind() {
            tensorhold_core::ErrorKind::Unavailable => "unavailable",
            _ => "failed",
        }
    }
}

impl IndexMetrics {
    /// A call ended.
    pub fn ended(&self, call: IndexCall, outcome: Outcome, took: std::time::Duration) {
        self.calls.ended(call as usize, outcome, took);
    }

    /// Reads of keys or ranges, for a cause: positions in [`READS`] and [`CAUSES`].
    pub fn reads(&self, kind: usize, cause: usize, count: u64) {
        self.reads.add(kind, cause, count);
    }
}
