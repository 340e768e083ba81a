//! The page store, as a Python object. Its calls block, within their timeout and without the interpreter's lock; a
//! caller that must not block uses a tier.
//!
//! # When memory is free again
//! Without frames the engine moves pages from and to where they lie. After a get that timed out it may still write to
//! the memory of pages that were not loaded: until [`Settling`] reports that it is settled, that memory must not be
//! used. With frames the engine never writes to that memory: a get that has returned touches nothing. After a late put
//! that bypasses the frames (`direct_put_bytes`) the engine may still read; if the bytes have changed by then, readers
//! refuse the page by its checksum.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use tensorhold_core::{Error, ObjectKey, Result, Retry, SystemClock};
use tensorhold_engine::RemoveOutcome;
use tensorhold_kvcache::tier::{self, CallOptions, Hint, Page, PageGot, PagePut};
use tensorhold_prefetch::{Outcome, PrefetchStats, Priority};

use super::opening::{Opened, Settings, open};
use crate::convert::seconds;
use crate::errors::{OrRaise, exception};
use crate::keys::Secret;
use crate::operation::Operation;
use crate::process::ProcessBound;

const CLOSED: &str = "this page store is closed; open another";

/// An open page store.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct Pages(ProcessBound<Mutex<Option<Arc<Opened>>>>);

/// Starts to open a page store; the operation's result is a `Pages`.
#[pyfunction]
#[pyo3(signature = (settings, client, timeout, key=None))]
pub(crate) fn open_pages(
    py: Python<'_>,
    settings: &str,
    client: Option<Py<PyAny>>,
    timeout: f64,
    key: Option<Secret>,
) -> PyResult<Operation> {
    let seal = key.map(Secret::page_seal).transpose().or_raise(py)?;
    let settings = Settings::read(settings, seal).or_raise(py)?;
    let within = seconds(timeout).or_raise(py)?;
    let work = async move { open(settings, client, within).await };
    let deliver = |py: Python<'_>, opened: Opened, _late| {
        Pages(ProcessBound::new(Mutex::new(Some(Arc::new(opened))))).into_py_any(py)
    };
    Operation::begin(within, work, deliver).or_raise(py)
}

/// Whether the engine has released the memory of one call.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct Settling(ProcessBound<tier::Settling>);

#[pymethods]
impl Settling {
    /// Whether it is settled now.
    #[getter]
    fn settled(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.get("call").or_raise(py)?.is_settled())
    }

    /// Waits until it is settled. Returns whether it is.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let within = seconds(timeout).or_raise(py)?;
        let settling = self.0.get("call").or_raise(py)?;
        Ok(py.detach(|| settling.wait(&SystemClock::new(), within)))
    }
}

/// A prefetch that was begun.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct Prefetch(ProcessBound<tensorhold_prefetch::Prefetch>);

impl Prefetch {
    pub(crate) fn new(prefetch: tensorhold_prefetch::Prefetch) -> Self {
        Self(ProcessBound::new(prefetch))
    }
}

#[pymethods]
impl Prefetch {
    /// The name of each object's outcome; `None` for what is on its way.
    fn outcomes(&self, py: Python<'_>) -> PyResult<Vec<Option<&'static str>>> {
        Ok(outcome_names(&self.0.get("prefetch").or_raise(py)?.outcomes()))
    }

    /// Waits until every object has ended. Returns the outcomes so far.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<Option<&'static str>>> {
        let within = seconds(timeout).or_raise(py)?;
        let prefetch = self.0.get("prefetch").or_raise(py)?;
        Ok(outcome_names(&py.detach(|| prefetch.wait(within))))
    }

    /// Gives up what was not begun.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get("prefetch").or_raise(py)?.cancel();
        Ok(())
    }
}

fn outcome_names(outcomes: &[Option<Outcome>]) -> Vec<Option<&'static str>> {
    outcomes
        .iter()
        .map(|outcome| outcome.as_ref().map(Outcome::name))
        .collect()
}

/// For each key the length of its page and whether it is in DRAM, or `None`.
type Hints = Vec<Option<(u64, bool)>>;

fn plain(hints: Vec<Hint>) -> Hints {
    let one = |hint| match hint {
        Hint::Absent => None,
        Hint::Present { bytes, in_dram } => Some((bytes, in_dram)),
    };
    hints.into_iter().map(one).collect()
}

/// An outcome for each page, errors by the position of their page, and when the memory is free.
type Report = (Vec<&'static str>, Vec<(usize, Py<PyAny>)>, Settling);

/// Pages to move: their names, and the addresses and sizes of their parts. All pages have the same number of parts.
#[derive(FromPyObject)]
pub(crate) struct Wanted(Vec<String>, Vec<usize>, Vec<usize>);

fn names(keys: &[String]) -> Result<Vec<ObjectKey>> {
    keys.iter().map(ObjectKey::new).collect()
}

impl Wanted {
    fn pages(self, opened: &Opened) -> Result<Vec<Page>> {
        let Self(keys, addresses, sizes) = self;
        let each = addresses.len().checked_div(keys.len()).unwrap_or(0);
        if addresses.len() != sizes.len() || each * keys.len() != addresses.len() || (each == 0 && !keys.is_empty()) {
            return Err(Error::invalid(
                "kv.pages",
                "give an address and a size for each part, and the same number of parts for every page",
            )
            .with("keys", keys.len())
            .with("addresses", addresses.len())
            .with("sizes", sizes.len()));
        }
        let most = opened.store.config().call_bytes;
        let mut spans = opened.ranges.spans(&addresses, &sizes)?.into_iter();
        let one = |key: &String| {
            let page = Page::new(ObjectKey::new(key)?, spans.by_ref().take(each).collect());
            // A page must not bypass the frames silently: then the engine would get the caller's memory after all.
            if opened.framed() && page.bytes() > most {
                return Err(Error::invalid(
                    "kv.pages",
                    "a page is larger than a frame; raise call_bytes (frame_bytes) to at least its size",
                )
                .with("page", page.bytes())
                .with("frame", most));
            }
            Ok(page)
        };
        keys.iter().map(one).collect()
    }
}

impl Pages {
    pub(super) fn opened(&self) -> Result<Arc<Opened>> {
        self.0
            .get("page store")?
            .lock()
            .clone()
            .ok_or_else(|| Error::unavailable("kv.pages", CLOSED).with_retry(Retry::Never))
    }

    fn begin(&self, py: Python<'_>, timeout: f64) -> PyResult<(Arc<Opened>, Duration)> {
        Ok((self.opened().or_raise(py)?, seconds(timeout).or_raise(py)?))
    }
}

fn report<T>(
    py: Python<'_>,
    pages: &[T],
    settling: &tier::Settling,
    tell: impl Fn(&T) -> (&'static str, Option<&Error>),
) -> Report {
    let mut outcomes = Vec::with_capacity(pages.len());
    let mut errors = Vec::new();
    for (at, page) in pages.iter().enumerate() {
        let (outcome, error) = tell(page);
        outcomes.push(outcome);
        if let Some(error) = error {
            errors.push((at, exception(py, error, false).into_value(py).into_any()));
        }
    }
    (outcomes, errors, Settling(ProcessBound::new(settling.clone())))
}

#[pymethods]
impl Pages {
    /// Registers this memory, which is valid while `owner` lives, for pages. Returns whether it was new.
    fn register(
        &self,
        py: Python<'_>,
        address: usize,
        nbytes: usize,
        owner: Py<PyAny>,
        timeout: f64,
    ) -> PyResult<bool> {
        let (opened, within) = self.begin(py, timeout)?;
        let added = py.detach(|| {
            opened
                .ranges
                .add(&**opened.store.engine(), address, nbytes, owner, within)
        });
        added.or_raise(py)
    }

    /// Forgets the memory that was registered with this address. Returns whether there was any.
    fn unregister(&self, py: Python<'_>, address: usize) -> PyResult<bool> {
        let opened = self.opened().or_raise(py)?;
        Ok(py.detach(|| opened.ranges.remove(address)))
    }

    /// For each key the length of its page and whether it is in DRAM, or `None`.
    fn exists(&self, py: Python<'_>, keys: Vec<String>, timeout: f64) -> PyResult<Hints> {
        let (opened, within) = self.begin(py, timeout)?;
        let keys = names(&keys).or_raise(py)?;
        let hints = py.detach(|| opened.store.exists(&keys, within)).or_raise(py)?;
        Ok(plain(hints))
    }

    /// What `exists` tells, and a prefetch of the pages that are on SSD only.
    fn exists_and_prefetch(&self, py: Python<'_>, keys: Vec<String>, timeout: f64) -> PyResult<(Hints, Prefetch)> {
        let (opened, within) = self.begin(py, timeout)?;
        let keys = names(&keys).or_raise(py)?;
        let answer = py.detach(|| opened.store.exists_and_prefetch(&keys, Priority::Guess, within));
        let (hints, prefetch) = answer.or_raise(py)?;
        Ok((plain(hints), Prefetch::new(prefetch)))
    }

    /// Begins to prefetch pages; `wanted` if a request waits for them. Does not block.
    fn prefetch(&self, py: Python<'_>, keys: Vec<String>, wanted: bool) -> PyResult<Prefetch> {
        let opened = self.opened().or_raise(py)?;
        let keys = names(&keys).or_raise(py)?;
        let priority = if wanted { Priority::Wanted } else { Priority::Guess };
        let prefetch = py.detach(|| opened.store.prefetch(&keys, priority)).or_raise(py)?;
        Ok(Prefetch::new(prefetch))
    }

    /// The number of pages from the start that exist without a gap; with `nbytes`, pages of that length. With
    /// `prefetch`, those of them that are on SSD only are prefetched.
    #[pyo3(signature = (keys, nbytes, prefetch, timeout))]
    fn prefix_hits(
        &self,
        py: Python<'_>,
        keys: Vec<String>,
        nbytes: Option<u64>,
        prefetch: bool,
        timeout: f64,
    ) -> PyResult<usize> {
        let (opened, within) = self.begin(py, timeout)?;
        let keys = names(&keys).or_raise(py)?;
        let prefetch = prefetch.then_some(Priority::Guess);
        py.detach(|| opened.store.prefix_hits(&keys, nbytes, prefetch, within))
            .or_raise(py)
    }

    /// Stores pages.
    fn put(&self, py: Python<'_>, pages: Wanted, timeout: f64) -> PyResult<Report> {
        let (opened, within) = self.begin(py, timeout)?;
        let done = py.detach(|| {
            let pages = pages.pages(&opened)?;
            Ok(opened.store.put(&pages, &CallOptions::within(within)))
        });
        let done = done.or_raise(py)?;
        Ok(report(py, &done.pages, &done.settling, |page| match page {
            PagePut::Stored => ("stored", None),
            PagePut::Full => ("full", None),
            PagePut::Failed(error) => ("failed", Some(error)),
            PagePut::Skipped => ("skipped", None),
        }))
    }

    /// Loads pages into their memory. With `prefix_only`, pages behind the first that is not loaded may be skipped.
    fn get(&self, py: Python<'_>, pages: Wanted, prefix_only: bool, timeout: f64) -> PyResult<Report> {
        let (opened, within) = self.begin(py, timeout)?;
        let done = py.detach(|| {
            let pages = pages.pages(&opened)?;
            let options = CallOptions {
                prefix_only,
                ..CallOptions::within(within)
            };
            Ok(opened.store.get(&pages, &options))
        });
        let done = done.or_raise(py)?;
        Ok(report(py, &done.pages, &done.settling, |page| match page {
            PageGot::Loaded => ("loaded", None),
            PageGot::Miss => ("miss", None),
            PageGot::WrongLength { .. } => ("wrong-length", None),
            PageGot::Corrupt(_) => ("corrupt", None),
            PageGot::Failed(error) => ("failed", Some(error)),
            PageGot::Skipped => ("skipped", None),
        }))
    }

    /// Removes pages by force. Returns for each whether it is gone.
    fn remove(&self, py: Python<'_>, keys: Vec<String>, timeout: f64) -> PyResult<Vec<bool>> {
        let (opened, within) = self.begin(py, timeout)?;
        let keys = names(&keys).or_raise(py)?;
        let removed = py.detach(|| {
            let engine = opened.store.engine();
            let most = engine.capabilities().max_batch.max(1);
            let keys = opened.store.object_names(&keys)?;
            let each = keys.chunks(most).map(|batch| engine.remove(batch, within));
            each.collect::<Result<Vec<_>>>()
        });
        let gone = |outcome| matches!(outcome, RemoveOutcome::Removed | RemoveOutcome::Absent);
        Ok(removed.or_raise(py)?.into_iter().flatten().map(gone).collect())
    }

    /// The store's counters.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stats = self.opened().or_raise(py)?.store.stats();
        let all = [
            ("pages_stored", stats.pages_stored),
            ("bytes_stored", stats.bytes_stored),
            ("puts_full", stats.puts_full),
            ("puts_failed", stats.puts_failed),
            ("pages_loaded", stats.pages_loaded),
            ("bytes_loaded", stats.bytes_loaded),
            ("gets_missed", stats.gets_missed),
            ("gets_wrong_length", stats.gets_wrong_length),
            ("gets_corrupt", stats.gets_corrupt),
            ("gets_failed", stats.gets_failed),
            ("bad_pages_removed", stats.bad_pages_removed),
            ("bad_pages_waiting", stats.bad_pages_waiting),
            ("keys_probed", stats.keys_probed),
            ("keys_present", stats.keys_present),
        ];
        all.into_py_dict(py)?.into_py_any(py)
    }

    /// The counters of the prefetcher.
    fn prefetch_stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let opened = self.opened().or_raise(py)?;
        prefetch_counters(&opened.store.prefetch_stats())
            .into_py_dict(py)?
            .into_py_any(py)
    }

    /// Starts to close the store: releases memory and engine. Does nothing the second time.
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<Operation> {
        let within = seconds(timeout).or_raise(py)?;
        let opened = self.0.get("page store").or_raise(py)?.lock().take();
        let work = async move {
            let gone = tokio::task::spawn_blocking(move || {
                if let Some(opened) = opened {
                    opened.store.end_prefetches();
                    opened.ranges.clear();
                    drop(opened);
                }
            });
            let late = || Error::unavailable("kv.close", "the engine's client is still closing, in the background");
            let ended = tokio::time::timeout(within, gone).await.map_err(|_| late())?;
            ended.map_err(|failure| {
                Error::internal("kv.close", "the closing task panicked or was cancelled").caused_by(failure)
            })
        };
        Operation::begin(within, work, |py: Python<'_>, (), _late| Ok(py.None())).or_raise(py)
    }
}

/// The counters of a prefetcher, by name.
pub(crate) fn prefetch_counters(stats: &PrefetchStats) -> [(&'static str, u64); 16] {
    let (outcomes, sources) = (stats.outcomes, stats.sources);
    [
        ("asked", outcomes.asked),
        ("begun", outcomes.begun),
        ("resident", outcomes.resident),
        ("absent", outcomes.absent),
        ("refused", outcomes.refused),
        ("expired", outcomes.expired),
        ("cancelled", outcomes.cancelled),
        ("failed", outcomes.failed),
        ("gets_local", sources.local),
        ("gets_dram", sources.dram),
        ("gets_ssd", sources.ssd),
        ("gets_unknown", sources.unknown),
        ("probe_requests", stats.probes.requests),
        ("probe_keys", stats.probes.keys),
        ("buffered", stats.buffered as u64),
        ("buffer_bytes", stats.buffer_bytes as u64),
    ]
}
