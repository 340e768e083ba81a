//! Passes events of the compiled module (`tracing`) to Python's `logging`.
//!
//! ```text
//! any thread, with or without the interpreter's lock        one thread of Python's (tensorhold/_events.py)
//! tracing::warn!(…) ─▶ wanted? ─▶ queue, bounded ──────────▶ next_events() ─▶ logging.getLogger("tensorhold.…").handle
//!                        │ no        │ full
//!                        ▼           ▼
//!                     nothing     counted, and reported with the next events
//! ```
//! - EV1: a thread that reports an event never waits, and never touches Python: it holds the queue's lock for one push.
//!   So an event can be reported with the interpreter's lock held, without it, and while Python is ending.
//! - EV2: the queue's lock is never held while waiting for the interpreter's lock.
//! - EV3: only Tensorhold's own events pass. Events of libraries below are dropped: an HTTP/2 library reports headers,
//!   and with them passwords.
//! - EV4: each process has its own queue. At a fork another thread may hold the lock of the parent's queue, so a child
//!   does not touch that queue; the parent reports the events in it.
//! - EV5: memory is bounded: at most [`MOST`] events, of at most [`LONGEST`] bytes for each text.
//!
//! The levels of Python's loggers decide which events are wanted; the Python side reads them whenever it fetches
//! events.

#![expect(
    unsafe_code,
    reason = "a pointer to the queue, exchanged without a lock; each block says why it holds"
)]

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::convert::seconds;
use crate::errors::OrRaise as _;

/// The most events that wait in the queue.
const MOST: usize = 1024;
/// The most bytes of a text that are kept.
const LONGEST: usize = 4096;
/// Python's WARNING, the default level of its root logger.
const USUAL_LEVEL: u32 = 30;

static WANTED: AtomicU32 = AtomicU32::new(USUAL_LEVEL);
static QUEUE: AtomicPtr<Queue> = AtomicPtr::new(ptr::null_mut());

/// Level, logger, message, fields, seconds since 1970, thread, file, line.
type Told = (
    u32,
    String,
    String,
    Vec<(&'static str, String)>,
    f64,
    String,
    &'static str,
    u32,
);

#[derive(Default)]
struct Waiting {
    events: VecDeque<Told>,
    dropped: u64,
    woken: bool,
}

struct Queue {
    pid: u32,
    waiting: Mutex<Waiting>,
    some: Condvar,
}

/// The queue of this process; made when it is first needed, and never freed.
fn queue() -> &'static Queue {
    let pid = process::id();
    loop {
        let seen = QUEUE.load(Ordering::Acquire);
        // SAFETY: the target of QUEUE is never freed (EV4: a child does not touch it), so it is valid for ever.
        if let Some(queue) = unsafe { seen.as_ref() }
            && queue.pid == pid
        {
            return queue;
        }
        let made = Box::into_raw(Box::new(Queue {
            pid,
            waiting: Mutex::default(),
            some: Condvar::new(),
        }));
        if QUEUE
            .compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: no other thread has seen `made`, which came from a Box just now.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

/// Collects events of this module from now on. Called once in the life of the module.
pub(crate) fn collect() {
    if tracing::subscriber::set_global_default(Collector).is_err() {
        tracing::debug!("events are collected already");
    }
}

struct Collector;

/// Whether an event is Tensorhold's own (EV3): the crates are called `tensorhold_…`, and this one `_tensorhold`.
fn is_ours(target: &str) -> bool {
    target.starts_with("tensorhold") || target.starts_with("_tensorhold")
}

const fn python_level(level: Level) -> u32 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        _ => 5,
    }
}

/// `tensorhold_index_etcd::session` is `tensorhold.index_etcd.session`. A logger is named after the part that tells something,
/// not after the room that its file is in: `tensorhold_features::runtime::sessions` is `tensorhold.features.sessions`.
fn logger_of(target: &str) -> String {
    let rest = match target.strip_prefix("_tensorhold") {
        Some(rest) => format!("python{rest}"),
        None => target
            .trim_start_matches("tensorhold")
            .trim_start_matches('_')
            .to_owned(),
    };
    let name = match rest.split_once("::") {
        Some((of @ ("features" | "index"), path)) => {
            let part = path.rsplit("::").next().unwrap_or(path);
            format!("{of}.{part}")
        }
        _ => rest.replace("::", "."),
    };
    match name.is_empty() {
        true => "tensorhold".to_owned(),
        false => format!("tensorhold.{name}"),
    }
}

impl Subscriber for Collector {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match metadata.is_event() && is_ours(metadata.target()) {
            true => Interest::sometimes(), // the wanted level may change
            false => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && is_ours(metadata.target())
            && python_level(*metadata.level()) >= WANTED.load(Ordering::Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut parts = Parts::default();
        event.record(&mut parts);
        #[expect(clippy::disallowed_methods, reason = "a record's time is the wall clock's")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let told = (
            python_level(*metadata.level()),
            logger_of(metadata.target()),
            parts.message,
            parts.fields,
            since.as_secs_f64(),
            std::thread::current().name().unwrap_or("a thread").to_owned(),
            metadata.file().unwrap_or("(unknown)"),
            metadata.line().unwrap_or(0),
        );
        let queue = queue();
        let mut waiting = queue.waiting.lock();
        if waiting.events.len() < MOST {
            waiting.events.push_back(told);
        } else {
            waiting.dropped += 1;
        }
        drop(waiting);
        queue.some.notify_all();
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1) // spans are not collected
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Parts {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = Short::default();
        // Writing ends with an error once the text is long enough; the text written so far is kept.
        let cut = write!(text, "{value:?}").is_err();
        let text = if cut { text.0 + "…" } else { text.0 };
        match field.name() {
            "message" => self.message = text,
            name => self.fields.push((name, text)),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// A text that stops growing (EV5).
#[derive(Default)]
struct Short(String);

impl fmt::Write for Short {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = LONGEST - self.0.len();
        if more.len() <= room {
            self.0.push_str(more);
            return Ok(());
        }
        self.0.push_str(&more[..more.floor_char_boundary(room)]);
        Err(fmt::Error)
    }
}

/// The waiting events, and how many were dropped because the queue was full. Waits for the first event, or for
/// `wake_events`.
#[pyfunction]
pub(crate) fn next_events(py: Python<'_>, timeout: f64) -> PyResult<(Vec<Told>, u64)> {
    let within: Duration = seconds(timeout).or_raise(py)?;
    Ok(py.detach(|| {
        let queue = queue();
        let mut waiting = queue.waiting.lock();
        if waiting.events.is_empty() && !waiting.woken {
            queue.some.wait_for(&mut waiting, within);
        }
        waiting.woken = false;
        let dropped = std::mem::take(&mut waiting.dropped);
        (std::mem::take(&mut waiting.events).into(), dropped)
    }))
}

/// Ends the current wait for events, or the next one.
#[pyfunction]
pub(crate) fn wake_events(py: Python<'_>) {
    py.detach(|| {
        let queue = queue();
        queue.waiting.lock().woken = true;
        queue.some.notify_all();
    });
}

/// Selects the events to collect: those of this Python level and above.
#[pyfunction]
pub(crate) fn want_events(level: u32) {
    WANTED.store(level, Ordering::Relaxed);
}
