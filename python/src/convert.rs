//! Conversion of values between Python and the store.
//!
//! Python sees plain tuples, lists and dictionaries here; the package turns them into dataclasses.

use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use tensorhold_core::{Error, Generation, Result, SampleId, TensorSpec};
use tensorhold_custody::Progress;
use tensorhold_features::{
    AckOutcome, DescribedRef, Found, GroupName, Health, Identity, LiveSession, Publication, Quarantined, Reason,
    Record, SampleRecord, SampleRef, Swept,
};

use crate::errors::exception;

/// The longest timeout that a caller can give: a year is as good as for ever.
const LONGEST: f64 = 366.0 * 24.0 * 3600.0;

/// Converts Python's seconds.
pub(crate) fn seconds(time: f64) -> Result<Duration> {
    if time.is_nan() || time < 0.0 {
        return Err(Error::invalid(
            "python.timeout",
            "a timeout is a number of seconds, not less than zero",
        ));
    }
    Ok(Duration::from_secs_f64(time.min(LONGEST)))
}

/// Converts a sample and its generation from Python.
pub(crate) fn sample_ref(sample: &str, generation: u64) -> Result<SampleRef> {
    let generation =
        Generation::new(generation).ok_or_else(|| Error::invalid("python.ref", "generations start at 1"))?;
    let sample = SampleId::new(sample)?;
    Ok(SampleRef { sample, generation })
}

/// The groups that a sample is for, and its other delivery settings.
pub(crate) fn publication(groups: &[String], retain: bool, max_attempts: u32) -> Result<Publication> {
    let groups: Result<Vec<GroupName>> = groups.iter().map(GroupName::new).collect();
    Ok(Publication {
        groups: groups?,
        retain,
        max_attempts,
    })
}

/// A tensor's name, element type, shape and bytes.
#[derive(IntoPyObject)]
pub(crate) struct Spec(String, &'static str, Vec<u64>, u64);

impl Spec {
    pub(crate) fn of(spec: &TensorSpec) -> Self {
        Self(
            spec.name().to_string(),
            spec.dtype().name(),
            spec.shape().to_vec(),
            spec.bytes(),
        )
    }
}

/// One object for each result; an error becomes an exception in its place.
pub(crate) fn each<T>(
    py: Python<'_>,
    results: Vec<Result<T>>,
    late: bool,
    convert: impl Fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
) -> PyResult<Py<PyAny>> {
    let list = PyList::empty(py);
    for result in results {
        match result {
            Ok(value) => list.append(convert(py, value)?)?,
            Err(error) => list.append(exception(py, &error, late).into_value(py))?,
        }
    }
    Ok(list.into_any().unbind())
}

pub(crate) fn reference(py: Python<'_>, reference: &SampleRef) -> PyResult<Py<PyAny>> {
    (reference.sample.to_string(), reference.generation.get()).into_py_any(py)
}

/// A described reference: sample, generation, and the bytes of its description if they are short enough to travel.
pub(crate) fn described(py: Python<'_>, sample: &DescribedRef) -> PyResult<Py<PyAny>> {
    let carried = sample.carried().map(|bytes| PyBytes::new(py, &bytes).unbind());
    let SampleRef { sample, generation } = &sample.reference;
    (sample.to_string(), generation.get(), carried).into_py_any(py)
}

const fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Consumed => "consumed",
        Reason::Aborted => "aborted",
        Reason::Abandoned => "abandoned",
        Reason::Superseded => "superseded",
        Reason::DeadLetter => "dead-letter",
        Reason::Lost => "lost",
        Reason::Other => "other",
    }
}

/// Whether the sample retired, why, and whether its bytes are removed at once.
pub(crate) fn answered(py: Python<'_>, answer: AckOutcome) -> PyResult<Py<PyAny>> {
    match answer {
        AckOutcome::Live => (false, py.None(), false).into_py_any(py),
        AckOutcome::Retired { reason: why, free } => (true, reason(why), free).into_py_any(py),
    }
}

pub(crate) fn found(py: Python<'_>, found: Option<Found>) -> PyResult<Py<PyAny>> {
    let Some(found) = found else { return Ok(py.None()) };
    let dict = PyDict::new(py);
    dict.set_item("reference", described(py, &DescribedRef::from(&found))?)?;
    let specs: Vec<Spec> = found
        .description
        .tensors()
        .iter()
        .map(|tensor| Spec::of(&tensor.spec))
        .collect();
    dict.set_item("specs", specs)?;
    let groups = PyDict::new(py);
    for state in &found.record.groups {
        let progress = match state.progress {
            Progress::Waiting => "waiting",
            Progress::Leased(_) => "leased",
            Progress::Acked => "acked",
            Progress::Dead => "dead",
        };
        groups.set_item(state.group.as_str(), (progress, state.attempts))?;
    }
    dict.set_item("groups", groups)?;
    dict.set_item("readers", found.record.readers.len())?;
    dict.set_item("retain", found.record.retain)?;
    dict.set_item("max_attempts", found.record.max_attempts)?;
    dict.into_py_any(py)
}

pub(crate) fn swept(py: Python<'_>, swept: &Swept) -> PyResult<Py<PyAny>> {
    let dict = PyDict::new(py);
    dict.set_item("looked_at", swept.taken_back.looked_at)?;
    dict.set_item("abandoned", swept.taken_back.abandoned)?;
    dict.set_item("taken_back", swept.taken_back.taken_back)?;
    dict.set_item("retired", swept.taken_back.retired)?;
    dict.set_item("sessions_cleared", swept.taken_back.sessions_cleared)?;
    dict.set_item("more", swept.taken_back.more)?;
    dict.set_item("freed", swept.freed)?;
    dict.set_item("failed", swept.failed)?;
    dict.set_item("quarantined", swept.quarantined)?;
    dict.set_item("later", swept.later)?;
    dict.into_py_any(py)
}

/// Id, and what the process says of itself: host, process id, program, version, role, milliseconds since 1970.
pub(crate) fn live_session(py: Python<'_>, session: LiveSession) -> PyResult<Py<PyAny>> {
    let said = session.identity.map(|identity| {
        let Identity {
            host,
            pid,
            program,
            version,
            role,
            started_ms,
            steward: _,
            settings: _,
        } = identity;
        (host, pid, program, version, role, started_ms)
    });
    (session.id.0, said).into_py_any(py)
}

/// Sample, generation, bytes, whether they are kept, when it was retired and by which session, and each group's name,
/// attempts, and whether it is out of them.
pub(crate) type DeadLetterParts = (String, u64, u64, bool, u64, u64, Vec<(String, u32, bool)>);

pub(crate) fn dead_letter(found: SampleRecord) -> Option<DeadLetterParts> {
    let Record::Retired(record) = found.record else {
        return None;
    };
    let letter = record.letter.as_ref()?;
    let groups = letter.groups.iter();
    let groups = groups.map(|state| {
        let is_dead = state.progress == Progress::Dead;
        (state.group.to_string(), state.attempts, is_dead)
    });
    let retired = record.retired.unwrap_or_default();
    Some((
        found.sample.sample.to_string(),
        found.sample.generation.get(),
        record.bytes,
        record.keeps_its_objects(),
        retired.at.0,
        retired.by.0,
        groups.collect(),
    ))
}

/// Key, version, reason, length, and whether the record stays under its key.
pub(crate) fn quarantined(py: Python<'_>, record: Quarantined) -> PyResult<Py<PyAny>> {
    let Quarantined {
        key,
        version,
        why,
        bytes,
        in_place,
    } = record;
    (key, version.0, why, bytes, in_place).into_py_any(py)
}

pub(crate) fn health(py: Python<'_>, health: &Health) -> PyResult<Py<PyAny>> {
    let pool = PyDict::new(py);
    pool.set_item("budget", health.pool.budget)?;
    pool.set_item("taken", health.pool.taken)?;
    pool.set_item("lent", health.pool.lent)?;
    let registrations = PyDict::new(py);
    registrations.set_item("regions", health.registrations.regions)?;
    registrations.set_item("bytes", health.registrations.bytes)?;
    registrations.set_item("stuck", health.registrations.stuck)?;
    let dict = PyDict::new(py);
    dict.set_item("session", health.session.map(|session| session.0))?;
    dict.set_item("sessions_opened", health.sessions_opened)?;
    dict.set_item("index_epoch", &health.index.epoch)?;
    dict.set_item("index_cuts", health.index.cuts)?;
    dict.set_item("index_refuses", health.index.refuses.as_deref())?;
    dict.set_item("operations", health.operations)?;
    dict.set_item("calls", health.calls)?;
    dict.set_item("pool", pool)?;
    dict.set_item("pending_frees", health.pending_frees)?;
    dict.set_item("suspected", health.suspected)?;
    let passed_over = PyDict::new(py);
    passed_over.set_item("quarantined", health.passed_over.quarantined)?;
    passed_over.set_item("later", health.passed_over.later)?;
    dict.set_item("passed_over", passed_over)?;
    dict.set_item("registrations", registrations)?;
    dict.set_item("engine", usage(py, health)?)?;
    dict.set_item("free_budget", health.free_budget)?;
    dict.set_item("leases", health.leases)?;
    dict.set_item("oldest_lease", health.oldest_lease.map(|age| age.as_secs_f64()))?;
    dict.set_item("clock", clock(py, health)?)?;
    dict.set_item("counters", counters(py, health)?)?;
    dict.into_py_any(py)
}

fn usage(py: Python<'_>, health: &Health) -> PyResult<Py<PyAny>> {
    let Some(usage) = &health.usage else {
        return Ok(py.None());
    };
    let dict = PyDict::new(py);
    dict.set_item("dram_capacity", usage.dram_capacity)?;
    dict.set_item("dram_used", usage.dram_used)?;
    dict.set_item("ssd_capacity", usage.ssd_capacity)?;
    dict.set_item("ssd_used", usage.ssd_used)?;
    dict.set_item("objects", usage.objects)?;
    dict.into_py_any(py)
}

fn clock(py: Python<'_>, health: &Health) -> PyResult<Py<PyAny>> {
    let Some((tick, stood)) = health.clock else {
        return Ok(py.None());
    };
    let dict = PyDict::new(py);
    dict.set_item("tick", tick.0)?;
    dict.set_item("stood_still", stood.as_secs_f64())?;
    dict.into_py_any(py)
}

fn counters(py: Python<'_>, health: &Health) -> PyResult<Py<PyAny>> {
    let count = &health.counters;
    let dict = PyDict::new(py);
    let all = [
        ("puts", count.puts),
        ("bytes_put", count.bytes_put),
        ("failed_puts", count.failed_puts),
        ("waits_for_room", count.waits_for_room),
        ("taken", count.taken),
        ("empty_takes", count.empty_takes),
        ("gets", count.gets),
        ("bytes_got", count.bytes_got),
        ("corrupt", count.corrupt),
        ("fenced", count.fenced),
        ("unreadable", count.unreadable),
        ("lost", count.lost),
        ("acks", count.acks),
        ("nacks", count.nacks),
        ("freed", count.freed),
        ("failed_frees", count.failed_frees),
        ("left_to_sweeps", count.left_to_sweeps),
        ("sweeps", count.sweeps),
    ];
    for (name, value) in all {
        dict.set_item(name, value)?;
    }
    dict.into_py_any(py)
}
