//! Traces: what happened to a sample, step by step, in whichever process, sent to an OTLP collector. Off unless
//! `TENSORHOLD_OTLP_ENDPOINT` names one, such as `http://127.0.0.1:4318`.
//!
//! One trace is one incarnation of a sample, from its put until its objects are removed. The id of the trace is derived from
//! store, sample, generation and nonce ([`TraceId::of`]), so every process that touches the sample knows it, and no context
//! has to travel with the sample. The span of the put has an id that is derived too; all others are its children.
//!
//! ```text
//!  span ──▶ queue (bounded) ──▶ thread: gathers for a second, or until it has many ──▶ POST {endpoint}/v1/traces (JSON)
//!    └ full: dropped, counted                 └ no answer, or no 2xx: dropped, counted; told in the log once
//! ```
//!
//! - Nothing waits for the collector: a span is queued or dropped.
//! - The thread belongs to the [`Tracer`], starts with its first span and ends when the tracer is closed or dropped, after it
//!   has sent what was queued. Every request has a deadline.
//! - Spans carry the names of stores and samples: send them only to whom you would show those.
//! - Times are those of the injected clock, moved by the difference to the wall clock when the tracer was made: spans of
//!   several hosts line up as well as their clocks do.
//! - The process dies: spans of its last second are lost. A span is sent once; one whose answer was lost is not sent again.

mod export;
mod ids;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{
    Clock, Error, ErrorKind, Generation, Nonce, Result, Rng, SampleId, StoreId, SystemRng, Timestamp,
};

pub use ids::TraceId;

const SETTING: &str = "TENSORHOLD_OTLP_ENDPOINT";
/// The most spans that wait. Further ones are dropped.
const QUEUE: usize = 4096;

/// A sample's incarnation.
#[derive(Clone, Copy, Debug)]
pub struct Incarnation<'a> {
    /// The store.
    pub store: &'a StoreId,
    /// The sample.
    pub sample: &'a SampleId,
    /// Which incarnation.
    pub generation: Generation,
    /// The random part of its keys; none if another writer chose them.
    pub nonce: Option<Nonce>,
}

/// A step in the life of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What was done.
    pub name: &'static str,
    /// Whether this is where the trace begins.
    pub is_first: bool,
    /// When it began.
    pub started: Timestamp,
    /// What went wrong, if anything.
    pub error: Option<ErrorKind>,
}

/// A span on its way.
#[derive(Debug)]
struct Span {
    trace: TraceId,
    id: u64,
    parent: Option<u64>,
    store: String,
    sample: String,
    generation: u64,
    name: &'static str,
    /// Since 1970.
    started: Duration,
    ended: Duration,
    error: Option<ErrorKind>,
}

/// Sends spans. Dropping it sends what is queued, in the background.
#[derive(Debug)]
pub struct Tracer {
    endpoint: String,
    clock: Arc<dyn Clock>,
    /// The wall clock, minus the injected one.
    offset: Duration,
    state: Mutex<State>,
    lost: Arc<AtomicU64>,
    told: AtomicBool,
}

#[derive(Debug)]
enum State {
    Idle,
    Sends(SyncSender<Span>, Receiver<()>),
    Closed,
}

impl Tracer {
    /// The tracer that the environment asks for, if it does.
    pub fn from_environment(clock: &Arc<dyn Clock>) -> Result<Option<Self>> {
        match std::env::var(SETTING) {
            Ok(endpoint) if !endpoint.is_empty() => Self::new(&endpoint, clock).map(Some),
            _ => Ok(None),
        }
    }

    /// A tracer that sends to this collector.
    ///
    /// # Errors
    /// `Invalid` if that is no `http://` address.
    pub fn new(endpoint: &str, clock: &Arc<dyn Clock>) -> Result<Self> {
        if !endpoint.starts_with("http://") {
            let message = "traces are sent by plain HTTP: give an address such as http://127.0.0.1:4318";
            return Err(Error::invalid("trace.open", message).with("setting", SETTING));
        }
        let wall = Duration::from_millis(clock.wall_ms());
        Ok(Self {
            endpoint: format!("{}/v1/traces", endpoint.trim_end_matches('/')),
            offset: wall.saturating_sub(clock.now().since(Timestamp::ORIGIN)),
            clock: Arc::clone(clock),
            state: Mutex::new(State::Idle),
            lost: Arc::default(),
            told: AtomicBool::new(false),
        })
    }

    /// The time now, for [`Step::started`].
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A step that has just ended.
    pub fn ended(&self, of: &Incarnation<'_>, step: &Step) {
        let trace = TraceId::of(of);
        let at = |time: Timestamp| self.offset.saturating_add(time.since(Timestamp::ORIGIN));
        let span = Span {
            id: if step.is_first {
                trace.root()
            } else {
                SystemRng.next_u64().max(1)
            },
            parent: (!step.is_first).then(|| trace.root()),
            store: of.store.as_str().to_owned(),
            sample: of.sample.as_str().to_owned(),
            generation: of.generation.get(),
            name: step.name,
            started: at(step.started),
            ended: at(self.clock.now()),
            error: step.error,
            trace,
        };
        self.send(span);
    }

    fn send(&self, span: Span) {
        let mut state = self.state.lock();
        if matches!(*state, State::Idle) {
            match self.start() {
                Ok(started) => *state = started,
                Err(error) => {
                    drop(state);
                    return self.drop_one(&error);
                }
            }
        }
        let sent = match &*state {
            State::Sends(queue, _) => queue.try_send(span).is_ok(),
            State::Idle | State::Closed => false,
        };
        drop(state);
        if !sent {
            self.drop_one(&"the queue is full, or the store is closed");
        }
    }

    fn drop_one(&self, why: &dyn std::fmt::Display) {
        self.lost.fetch_add(1, Ordering::Relaxed);
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(%why, "a span was dropped; further ones are only counted");
        }
    }

    fn start(&self) -> Result<State, std::io::Error> {
        let (queue, spans) = mpsc::sync_channel(QUEUE);
        let (done, ended) = mpsc::channel();
        let exporter = export::Exporter::new(
            self.endpoint.clone(),
            Arc::clone(&self.clock),
            Arc::clone(&self.lost),
            done,
        );
        std::thread::Builder::new()
            .name("tensorhold-traces".to_owned())
            .spawn(move || exporter.run(&spans))?;
        Ok(State::Sends(queue, ended))
    }

    /// How many spans were dropped, or not taken by the collector.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Takes no more spans, and waits until those that are queued are sent. Returns whether they were, in time. It blocks.
    pub fn close(&self, within: Duration) -> bool {
        let before = std::mem::replace(&mut *self.state.lock(), State::Closed);
        let State::Sends(queue, ended) = before else {
            return true;
        };
        drop(queue);
        // Nothing is ever sent: the thread's end closes the channel.
        matches!(ended.recv_timeout(within), Err(RecvTimeoutError::Disconnected))
    }
}
