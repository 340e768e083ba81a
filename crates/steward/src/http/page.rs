//! The page, and what it asks for: the overview, a stream of events with it, and the history of a store.
//!
//! The page is three files in the program: no build step, nothing from elsewhere. They hold no data, so everybody gets them;
//! the page then asks for a token if one is needed. What they may do is bounded by their policy ([`POLICY`]): no script or
//! style but theirs, no connection but to the steward.
//!
//! # A stream
//! ```text
//!  hello (the time here) ─▶ overview ─▶ wait for a change, one second at least ─▶ overview ─▶ … ─▶ end after `within`
//!                                         └─ nothing for 5 s: a comment ─┘
//! ```
//! - ST1: a stream makes an event when its reader has taken the one before, and then the latest one. Nothing is queued for
//!   a reader that is slow. One that does not read at all is cut off with its connection.
//! - ST2: a stream ends after the time that a request may take. So it fits into the bounds of a connection, and a token that
//!   has expired meanwhile is noticed when its reader comes back.
//! - ST3: there are at most half as many streams as connections: others find a place.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State as Given};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream::unfold;
use serde::Deserialize;
use tensorhold_core::Result;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::answer::Refused;
use super::given::{self, Named};
use super::{Served, audience};
use crate::overview::{Audience, Viewer};
use crate::report::now_ms;
use crate::view::history::HistoryReport;

/// What the page's files are served as.
const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("../page/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("../page/page.js"),
    ),
    ("/icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
];
/// What a browser lets the page do.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The shortest time between two events of a stream.
const PAUSE: Duration = Duration::from_secs(1);
/// A stream says that it is there when it had nothing to say for so long.
const QUIET: Duration = Duration::from_secs(5);

/// Whether a path is one of the page's files.
pub(super) fn is_file(path: &str) -> bool {
    FILES.iter().any(|(file, ..)| *file == path)
}

/// Whether a path answers with what the token may see, whichever stores these are.
pub(super) fn is_for_any_store(path: &str) -> bool {
    matches!(path, "/v1/overview" | "/v1/events")
}

/// The paths, each in [`super::openapi`].
pub(super) fn routes() -> Router<Served> {
    let mut router = Router::new()
        .route("/v1/overview", get(overview))
        .route("/v1/events", get(events))
        .route("/v1/stores/{store}/history", get(history));
    for (path, kind, text) in FILES {
        router = router.route(path, get(|| async { file(kind, text) }));
    }
    router
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // A new release has a new page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text).into_response()
}

fn data(kind: &'static str, body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, body).into_response()
}

async fn overview(Given(served): Given<Served>, headers: HeaderMap) -> Result<Response, Refused> {
    let frame = served.state.frame(&audience(&served, &headers)?)?;
    Ok(data("application/json", Body::from(frame.json.clone())))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct After {
    after: Option<u64>,
}

async fn history(
    Given(served): Given<Served>,
    name: Named,
    query: Result<Query<After>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<HistoryReport>, Refused> {
    let after = given::time(query.map_err(super::api::wrong_query)?.0.after)?;
    if served.state.report_of(&name.store).is_none() {
        return Err(Refused::no_store());
    }
    Ok(Json(served.state.page.history(&name.store, after)))
}

async fn events(Given(served): Given<Served>, headers: HeaderMap) -> Result<Response, Refused> {
    let audience = audience(&served, &headers)?;
    let Ok(place) = std::sync::Arc::clone(&served.streams).try_acquire_owned() else {
        let why = "too many watch already";
        return Err(Refused::new(
            StatusCode::SERVICE_UNAVAILABLE,
            why,
            "ask /v1/overview now and then",
        ));
    };
    let stream = Stream {
        audience,
        changes: served.state.page.changes(),
        viewer: Viewer::new(std::sync::Arc::clone(&served.state)),
        said_hello: false,
        sent: None,
        next_at: Instant::now(),
        until: Instant::now() + served.options.within,
        _place: place,
    };
    let body = unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<Bytes, Infallible>(event), stream))
    });
    let mut response = data("text/event-stream", Body::from_stream(body));
    // For proxies that would wait for more.
    let no = HeaderValue::from_static("no");
    response.headers_mut().insert("x-accel-buffering", no);
    Ok(response)
}

/// See the module.
struct Stream {
    audience: Audience,
    changes: watch::Receiver<u64>,
    viewer: Viewer,
    said_hello: bool,
    /// The overview that was sent last.
    sent: Option<u64>,
    /// No event before this.
    next_at: Instant,
    until: Instant,
    _place: OwnedSemaphorePermit,
}

impl Stream {
    /// The next event; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        if !self.said_hello {
            self.said_hello = true;
            return Some(format!("retry: 1000\nevent: hello\ndata: {{\"now_ms\":{}}}\n\n", now_ms()).into());
        }
        let quiet = Instant::now() + QUIET;
        loop {
            sleep_until(self.next_at.min(self.until)).await;
            if Instant::now() >= self.until {
                return None;
            }
            self.changes.borrow_and_update();
            let frame = match self.viewer.state().frame(&self.audience) {
                Ok(frame) => frame,
                Err(error) => {
                    tracing::error!(%error, "a stream ends");
                    return None;
                }
            };
            self.next_at = Instant::now() + PAUSE;
            if self.sent != Some(frame.id) {
                self.sent = Some(frame.id);
                return Some(frame.event.clone());
            }
            match timeout_at(quiet.min(self.until), self.changes.changed()).await {
                Ok(Ok(())) => {}
                // The steward is gone.
                Ok(Err(_)) => return None,
                Err(_) if Instant::now() < self.until => return Some(Bytes::from_static(b": still here\n\n")),
                Err(_) => return None,
            }
        }
    }
}
