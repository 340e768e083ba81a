//! The thread that sends spans: <https://opentelemetry.io/docs/specs/otlp/#otlphttp>, as JSON.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use serde::Serialize;
use tensorhold_core::{Clock, Deadline, Error, Result};

use crate::Span;

/// How long spans are gathered.
const GATHER: Duration = Duration::from_secs(1);
/// The most spans of one request.
const AT_ONCE: usize = 512;
/// How long a request may take.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);

pub(crate) struct Exporter {
    endpoint: String,
    http: ureq::Agent,
    clock: Arc<dyn Clock>,
    lost: Arc<AtomicU64>,
    told: bool,
    /// Dropped with the thread.
    _done: Sender<()>,
}

impl Exporter {
    pub(crate) fn new(endpoint: String, clock: Arc<dyn Clock>, lost: Arc<AtomicU64>, done: Sender<()>) -> Self {
        let http = ureq::Agent::config_builder()
            // Names of samples are for the collector that was named, not for a proxy of the environment.
            .proxy(None)
            .timeout_global(Some(REQUEST_WITHIN))
            .build()
            .new_agent();
        Self {
            endpoint,
            http,
            clock,
            lost,
            told: false,
            _done: done,
        }
    }

    /// Sends until no sender is left and nothing is queued.
    pub(crate) fn run(mut self, spans: &Receiver<Span>) {
        while let Ok(first) = spans.recv() {
            let mut batch = vec![first];
            let deadline = Deadline::after(&*self.clock, GATHER);
            while batch.len() < AT_ONCE {
                match spans.recv_timeout(deadline.remaining(&*self.clock)) {
                    Ok(span) => batch.push(span),
                    Err(_) => break,
                }
            }
            self.send(&batch);
        }
    }

    fn post(&self, batch: &[Span]) -> Result<()> {
        const OPERATION: &str = "trace.send";
        let body = serde_json::to_string(&request(batch))
            .map_err(|error| Error::internal(OPERATION, "spans could not be written").caused_by(error))?;
        let request = self
            .http
            .post(&self.endpoint)
            .header("Content-Type", "application/json");
        let sent = request
            .send(body)
            .map_err(|error| Error::unavailable(OPERATION, "the collector did not take them").with("why", error))?;
        drop(sent);
        Ok(())
    }

    fn send(&mut self, batch: &[Span]) {
        if let Err(error) = self.post(batch) {
            self.lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
            if !std::mem::replace(&mut self.told, true) {
                let endpoint = &self.endpoint;
                tracing::warn!(%error, endpoint, "spans were not sent; further failures are only counted");
            }
        }
    }
}

/// The body of a request.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct Resource {
    attributes: [Attribute<'static>; 3],
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: Vec<ToldSpan<'a>>,
}

#[derive(Serialize)]
struct Scope {
    name: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToldSpan<'a> {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    name: &'static str,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    attributes: [Attribute<'a>; 3],
    status: Status,
}

#[derive(Serialize)]
struct Status {
    code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'static str>,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'static str,
    value: AttributeValue<'a>,
}

/// Whole numbers are text in OTLP's JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum AttributeValue<'a> {
    StringValue(&'a str),
    IntValue(String),
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The span is of work inside a program, not of a request between two.
const INTERNAL: u8 = 1;
const STATUS_OK: u8 = 1;
const STATUS_ERROR: u8 = 2;

fn text<'a>(key: &'static str, value: &'a str) -> Attribute<'a> {
    let value = AttributeValue::StringValue(value);
    Attribute { key, value }
}

fn number(key: &'static str, value: u64) -> Attribute<'static> {
    let value = AttributeValue::IntValue(value.to_string());
    Attribute { key, value }
}

fn request(batch: &[Span]) -> Request<'_> {
    Request {
        resource_spans: [ResourceSpans {
            resource: Resource {
                attributes: [
                    text("service.name", "tensorhold"),
                    text("service.version", VERSION),
                    number("process.pid", u64::from(std::process::id())),
                ],
            },
            scope_spans: [ScopeSpans {
                scope: Scope {
                    name: "tensorhold",
                    version: VERSION,
                },
                spans: batch.iter().map(told).collect(),
            }],
        }],
    }
}

fn told(span: &Span) -> ToldSpan<'_> {
    let id = |id: u64| format!("{id:016x}");
    ToldSpan {
        trace_id: span.trace.to_string(),
        span_id: id(span.id),
        parent_span_id: span.parent.map(id),
        name: span.name,
        kind: INTERNAL,
        start_time_unix_nano: span.started.as_nanos().to_string(),
        end_time_unix_nano: span.ended.as_nanos().to_string(),
        attributes: [
            text("tensorhold.store", &span.store),
            text("tensorhold.sample", &span.sample),
            number("tensorhold.generation", span.generation),
        ],
        status: Status {
            code: span.error.map_or(STATUS_OK, |_| STATUS_ERROR),
            message: span.error.map(tensorhold_core::ErrorKind::as_str),
        },
    }
}
