//! Page keys and the planner: plain data in and out; no I/O and no blocking.

use std::borrow::Cow;

use parking_lot::Mutex;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use tensorhold_kvcache::plan::{self, Applied, Ending, PlanEvent, PlannerConfig, RequestId, Ticket};

use super::plain::{PlainCompletion, PlainNamespace, TellOperation, key, tell_operation};
use crate::errors::OrRaise;

/// The key that every chain of a namespace starts from.
#[pyfunction]
pub(crate) fn namespace_root(py: Python<'_>, namespace: PlainNamespace) -> PyResult<Cow<'static, [u8]>> {
    let root = namespace.read().or_raise(py)?.root();
    Ok(Cow::Owned(root.as_bytes().to_vec()))
}

/// The name under which a rank stores its shard of a page.
#[pyfunction]
pub(crate) fn object_name(py: Python<'_>, namespace: PlainNamespace, page: &[u8]) -> PyResult<String> {
    let namespace = namespace.read().or_raise(py)?;
    let name = key(page).and_then(|page| namespace.object_name(&page)).or_raise(py)?;
    Ok(name.as_str().to_owned())
}

/// The chain of keys of one prompt.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct PageKeys(Mutex<plan::PageKeys>);

#[pymethods]
impl PageKeys {
    #[new]
    #[pyo3(signature = (namespace, salt=None))]
    fn new(py: Python<'_>, namespace: PlainNamespace, salt: Option<Vec<u8>>) -> PyResult<Self> {
        let keys = namespace.read().or_raise(py)?.keys();
        let keys = match salt {
            Some(salt) => keys.with_salt(&salt).or_raise(py)?,
            None => keys,
        };
        Ok(Self(Mutex::new(keys)))
    }

    /// Takes in the next tokens.
    fn extend(&self, py: Python<'_>, tokens: Vec<u32>) {
        py.detach(|| self.0.lock().extend(&tokens));
    }

    /// Adds bytes to the key of the page that the next token falls into.
    fn note(&self, bytes: &[u8]) {
        self.0.lock().note(bytes);
    }

    /// The keys of the full pages.
    fn keys(&self) -> Vec<Cow<'static, [u8]>> {
        let keys = self.0.lock();
        keys.as_slice()
            .iter()
            .map(|key| Cow::Owned(key.as_bytes().to_vec()))
            .collect()
    }

    /// The number of tokens taken in.
    #[getter]
    fn tokens(&self) -> u64 {
        self.0.lock().tokens()
    }
}

/// A request, and the number of this submission among all submissions.
type PlainTicket = (u64, u64);

const fn ticket((request, turn): PlainTicket) -> Ticket {
    Ticket {
        request: RequestId(request),
        turn,
    }
}

const fn tell_ticket(ticket: Ticket) -> PlainTicket {
    (ticket.request.0, ticket.turn)
}

/// Ticket, cached pages, index of the first page, device pages.
type TellGrant = (PlainTicket, u32, u32, Vec<u32>);
/// Operations, cancels, ended requests, retracted requests, grants.
type TellPlan = (
    Vec<TellOperation>,
    Vec<u64>,
    Vec<(PlainTicket, &'static str)>,
    Vec<PlainTicket>,
    Vec<TellGrant>,
);

/// Turns events into plans.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct Planner(Mutex<plan::Planner>);

impl Planner {
    fn apply(&self, py: Python<'_>, event: PlanEvent) -> PyResult<bool> {
        let applied = py.detach(|| self.0.lock().on_event(event));
        Ok(matches!(applied.or_raise(py)?, Applied::Done))
    }
}

#[pymethods]
impl Planner {
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "the settings, one by one; the package names them"
    )]
    fn new(
        py: Python<'_>,
        root: &[u8],
        page_tokens: u32,
        host_pages: u32,
        device_pages: u32,
        prefetch_threshold: u32,
        query_ticks: u64,
        prefetch_ticks: u64,
        recheck_pages: u32,
        ranks: u32,
    ) -> PyResult<Self> {
        let config = PlannerConfig {
            prefetch_threshold,
            query_ticks,
            prefetch_ticks,
            recheck_pages,
            ranks,
            ..PlannerConfig::new(key(root).or_raise(py)?, page_tokens, host_pages, device_pages)
        };
        Ok(Self(Mutex::new(plan::Planner::new(config).or_raise(py)?)))
    }

    fn submit(&self, py: Python<'_>, request: u64, keys: &PageKeys) -> PyResult<PlainTicket> {
        let keys = keys.0.lock().clone();
        let submitted = py.detach(|| self.0.lock().submit(RequestId(request), keys));
        Ok(tell_ticket(submitted.or_raise(py)?))
    }

    fn completed(&self, py: Python<'_>, ranks: Vec<PlainCompletion>) -> PyResult<bool> {
        let ranks: tensorhold_core::Result<Vec<_>> = ranks.into_iter().map(PlainCompletion::read).collect();
        self.apply(py, PlanEvent::Completed(ranks.or_raise(py)?))
    }

    fn prefill_done(&self, py: Python<'_>, of: PlainTicket) -> PyResult<bool> {
        self.apply(py, PlanEvent::PrefillDone(ticket(of)))
    }

    fn reserve(&self, py: Python<'_>, of: PlainTicket, tokens: u32) -> PyResult<bool> {
        self.apply(py, PlanEvent::Reserve(ticket(of), tokens))
    }

    fn appended(&self, py: Python<'_>, of: PlainTicket, tokens: Vec<u32>) -> PyResult<bool> {
        self.apply(py, PlanEvent::Appended(ticket(of), tokens))
    }

    fn finish(&self, py: Python<'_>, of: PlainTicket) -> PyResult<bool> {
        self.apply(py, PlanEvent::Finish(ticket(of)))
    }

    fn retract(&self, py: Python<'_>, of: PlainTicket) -> PyResult<bool> {
        self.apply(py, PlanEvent::Retract(ticket(of)))
    }

    fn resume(&self, py: Python<'_>, of: PlainTicket) -> PyResult<bool> {
        self.apply(py, PlanEvent::Resume(ticket(of)))
    }

    fn abort(&self, py: Python<'_>, of: PlainTicket) -> PyResult<bool> {
        self.apply(py, PlanEvent::Abort(ticket(of)))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<bool> {
        self.apply(py, PlanEvent::Clear)
    }

    fn new_weights(&self, py: Python<'_>, root: &[u8]) -> PyResult<bool> {
        self.apply(py, PlanEvent::NewWeights(key(root).or_raise(py)?))
    }

    /// The plan at `tick`.
    fn step(&self, py: Python<'_>, tick: u64) -> TellPlan {
        let plan = py.detach(|| self.0.lock().step(tick));
        let ending = |ending: Ending| match ending {
            Ending::Finished => "finished",
            Ending::Aborted => "aborted",
        };
        let ended = plan.ended.iter().map(|(of, how)| (tell_ticket(*of), ending(*how)));
        let grants = plan.grants.iter().map(|grant| {
            let pages = grant.pages.iter().map(|page| page.0).collect();
            (tell_ticket(grant.ticket), grant.cached, grant.first, pages)
        });
        (
            plan.operations.iter().map(tell_operation).collect(),
            plan.cancel.iter().map(|id| id.0).collect(),
            ended.collect(),
            plan.retracted.iter().map(|of| tell_ticket(*of)).collect(),
            grants.collect(),
        )
    }

    /// The number of pages of a prompt that are in host memory and in device memory.
    fn find(&self, py: Python<'_>, keys: &PageKeys) -> (u32, u32) {
        let found = py.detach(|| self.0.lock().find(&keys.0.lock()));
        (found.host, found.device)
    }

    #[getter]
    fn pending(&self) -> bool {
        self.0.lock().pending()
    }

    /// The state of a request, if it has not ended.
    fn state(&self, of: PlainTicket) -> Option<String> {
        self.0.lock().state(ticket(of)).map(|state| format!("{state:?}"))
    }

    /// Free, owned and indexed pages of the host pool and of the device pool.
    fn pools(&self) -> ((u32, u32, u32), (u32, u32, u32)) {
        let planner = self.0.lock();
        (planner.host_pages(), planner.device_pages())
    }

    fn counters(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let count = self.0.lock().counters().clone();
        let all = [
            ("issued", count.issued),
            ("acknowledged", count.acknowledged),
            ("ignored", count.ignored),
            ("refused", count.refused),
            ("published", count.published),
            ("queries", count.queries),
            ("prefetches", count.prefetches),
            ("declined", count.declined),
            ("no_room", count.no_room),
            ("orphaned", count.orphaned),
            ("deadlines", count.deadlines),
            ("load_backs_cut", count.load_backs_cut),
            ("not_written_back", count.not_written_back),
            ("backups_cut", count.backups_cut),
        ];
        all.into_py_dict(py)?.into_py_any(py)
    }
}
