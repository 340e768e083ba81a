//! The tier, as a Python object: operations in, events out; only `wait` and `close` block.
//!
//! It carries out transfers to and from L3: queries, prefetches and backups. The code that owns the device copies
//! between host and device, so load-backs and write-backs are refused here.

use std::sync::Arc;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use tensorhold_core::{Error, ErrorKind};
use tensorhold_engine_mooncake::interpreter;
use tensorhold_kvcache::plan::{CopyAt, OperationId, Work};
use tensorhold_kvcache::tier::{
    self, Cancelled, Copied, DeviceCopier, HostMemoryMap, LaneConfig, PartLayout, Submitted, TierConfig, TierEvent,
};

use super::opening::Opened;
use super::pages::Pages;
use super::plain::{PlainNamespace, PlainOperation, TellCompletion, tell_completion};
use crate::convert::seconds;
use crate::errors::OrRaise;
use crate::process::ProcessBound;

const OPERATION: &str = "kv.tier";

/// Takes the place of a device.
#[derive(Debug)]
struct NoDevice;

fn no_device() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        OPERATION,
        "this tier has no device: the caller must carry out load-backs and write-backs and report them to the planner",
    )
}

fn not_copied() -> Copied {
    Copied {
        pages: 0,
        error: Some(no_device()),
    }
}

impl DeviceCopier for NoDevice {
    fn load_back(&self, _: &[CopyAt], _: Duration) -> Copied {
        not_copied()
    }

    fn write_back(&self, _: &[CopyAt], _: Duration) -> Copied {
        not_copied()
    }
}

/// The tier is dropped before the store that it uses.
struct Started {
    tier: tier::Tier,
    _opened: Arc<Opened>,
}

/// Carries out a planner's operations.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct Tier(ProcessBound<Detached>);

/// Dropping a tier waits for its threads, and these may need the interpreter's lock: so the lock is released first.
struct Detached(Option<Started>);

impl Drop for Detached {
    fn drop(&mut self) {
        let started = self.0.take();
        interpreter::attach(|py| py.detach(|| drop(started)));
    }
}

/// The address of the part in page 0, the stride from one page to the next, and the size in bytes.
type PlainPart = (usize, usize, usize);

#[pymethods]
impl Tier {
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "the settings, one by one; the package names them"
    )]
    fn new(
        py: Python<'_>,
        pages: &Pages,
        namespace: PlainNamespace,
        host_pages: u32,
        parts: Vec<PlainPart>,
        prefetch_threads: usize,
        backup_threads: usize,
        most: usize,
    ) -> PyResult<Self> {
        let opened = pages.opened().or_raise(py)?;
        let names = namespace.read().or_raise(py)?;
        let part = |(address, stride, len): PlainPart| {
            let unknown = || {
                Error::invalid(
                    OPERATION,
                    "a part of the host pool is not registered memory; register it first",
                )
                .with("address", format!("{address:#x}"))
            };
            let region = opened.ranges.find(address, len).ok_or_else(unknown)?;
            Ok(PartLayout {
                offset: address - region.address(),
                region,
                stride,
                len,
            })
        };
        let parts: tensorhold_core::Result<Vec<PartLayout>> = parts.into_iter().map(part).collect();
        let host = HostMemoryMap::new(host_pages, parts.or_raise(py)?).or_raise(py)?;
        let lane = |threads| LaneConfig { threads, most };
        let config = TierConfig {
            query: lane(1),
            prefetch: lane(prefetch_threads),
            backup: lane(backup_threads),
            copy: lane(1),
            ..TierConfig::default()
        };
        let store = Arc::clone(&opened.store);
        let started = py.detach(|| tier::Tier::start(store, names, host, Arc::new(NoDevice), config));
        Ok(Self(ProcessBound::new(Detached(Some(Started {
            tier: started.or_raise(py)?,
            _opened: opened,
        })))))
    }

    /// Submits an operation. Returns `accepted`, `already-open`, or `refused` with its completion.
    fn submit(
        &self,
        py: Python<'_>,
        operation: PlainOperation,
        timeout: f64,
    ) -> PyResult<(&'static str, Option<TellCompletion>)> {
        let operation = operation.read().or_raise(py)?;
        if matches!(operation.work, Work::LoadBack(_) | Work::WriteBack(_)) {
            return Err(no_device()).or_raise(py);
        }
        let within = seconds(timeout).or_raise(py)?;
        let tier = self.tier(py)?;
        Ok(match py.detach(|| tier.submit(operation, within)) {
            Submitted::Accepted => ("accepted", None),
            Submitted::AlreadyOpen => ("already-open", None),
            Submitted::Refused(completion) => ("refused", Some(tell_completion(&completion))),
        })
    }

    /// Asks to end an operation early.
    fn cancel(&self, py: Python<'_>, operation: u64) -> PyResult<&'static str> {
        let tier = self.tier(py)?;
        Ok(match py.detach(|| tier.cancel(OperationId(operation))) {
            Cancelled::NotBegun => "not-begun",
            Cancelled::Cancelling => "cancelling",
            Cancelled::Nothing => "nothing",
        })
    }

    /// The events since the last call: each a completion, or the id of an operation whose time is over.
    fn poll(&self, py: Python<'_>) -> PyResult<Vec<(Option<TellCompletion>, Option<u64>)>> {
        let tier = self.tier(py)?;
        Ok(tell_events(&py.detach(|| tier.poll())))
    }

    /// Like `poll`, but waits until there is an event.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<(Option<TellCompletion>, Option<u64>)>> {
        let within = seconds(timeout).or_raise(py)?;
        let tier = self.tier(py)?;
        Ok(tell_events(&py.detach(|| tier.wait(within))))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stats = self.tier(py)?.stats();
        let now = [("open", stats.open), ("quarantined", stats.quarantined)];
        let all: Vec<_> = stats.by_outcome().into_iter().chain(now).collect();
        all.into_py_dict(py)?.into_py_any(py)
    }

    /// Accepts nothing more and waits for its threads. Returns how many are still in a call that does not return.
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<usize> {
        let within = seconds(timeout).or_raise(py)?;
        let tier = self.tier(py)?;
        Ok(py.detach(|| tier.close(within)))
    }
}

impl Tier {
    fn tier(&self, py: Python<'_>) -> PyResult<&tier::Tier> {
        let started = self.0.get("tier").or_raise(py)?;
        let gone = || Error::internal(OPERATION, "this tier is being dropped");
        Ok(&started.0.as_ref().ok_or_else(gone).or_raise(py)?.tier)
    }
}

fn tell_events(events: &[TierEvent]) -> Vec<(Option<TellCompletion>, Option<u64>)> {
    let one = |event: &TierEvent| match event {
        TierEvent::Done(completion) => (Some(tell_completion(completion)), None),
        TierEvent::TimedOut(id) => (None, Some(id.0)),
    };
    events.iter().map(one).collect()
}
