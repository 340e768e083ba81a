//! The handlers.

use axum::extract::{Path, Query, State as Given};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use holdfast_features::FeatureStore;
use serde::{Deserialize, Serialize};

use super::answer::Refused;
use super::{Served, openapi};
use crate::Audited;
use crate::metrics;
use crate::report::{EtcdReport, SessionReport, StoreReport};

type Answer<T> = Result<Json<T>, Refused>;

/// The most sessions or records in one answer.
const MOST_IN_PAGE: usize = 1000;

/// All paths, each in [`openapi`].
pub(super) fn routes() -> Router<Served> {
    let no_such = || async { Refused::new(StatusCode::NOT_FOUND, "there is no such path", "see /v1/openapi.json") };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .route("/v1/openapi.json", get(|| async { Json(openapi::document()) }))
        .route("/v1/stores", get(stores))
        .route("/v1/stores/{store}", get(store))
        .route("/v1/stores/{store}/sessions", get(sessions))
        .route("/v1/stores/{store}/quarantine", get(quarantine))
        .route("/v1/stores/{store}/sweep", post(sweep))
        .route("/v1/stores/{store}/audit", post(audit))
        .route("/v1/etcd", get(etcd))
        .fallback(no_such)
        .method_not_allowed_fallback(|| async {
            Refused::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "not with this method",
                "see /v1/openapi.json",
            )
        })
}

fn opened(served: &Served, store: &str) -> Result<FeatureStore, Refused> {
    if served.state.report_of(store).is_none() {
        return Err(Refused::no_store());
    }
    let not_open = || {
        Refused::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the store is not open yet",
            "/readyz says what cannot be reached",
        )
    };
    served.state.store(store).ok_or_else(not_open)
}

/// Everybody learns whether it is ready. Names and errors are for holders of a token for all stores.
async fn readyz(Given(served): Given<Served>, method: Method, headers: HeaderMap) -> (StatusCode, String) {
    let report = served.state.report();
    let all = report.stores.len();
    let closed: Vec<_> = report.stores.iter().filter(|(_, store)| !store.open).collect();
    let is_whole = served.state.is_whole();
    if closed.is_empty() && is_whole {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let mut text = format!("{} of {all} stores are open\n", all - closed.len());
    if !is_whole {
        text.push_str("a part of this steward has ended by a defect\n");
    }
    if super::admitted(&served, &headers, &method, "/readyz").is_ok() {
        for (name, store) in closed {
            let trouble = store.trouble.as_deref().unwrap_or("not open yet");
            text.push_str(&format!("{name}: {trouble}\n"));
        }
    }
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

async fn metrics_text(Given(served): Given<Served>) -> impl IntoResponse {
    // What the steward says of its stores, and what every process says of itself.
    let mut text = metrics::text(&served.state.report());
    text.push_str(&holdfast_metrics::registry().text());
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
}

#[derive(Serialize)]
struct Stores {
    read_only: bool,
    stores: Vec<StoreLine>,
}

#[derive(Serialize)]
struct StoreLine {
    store: String,
    open: bool,
    on_duty: bool,
    users: Option<u64>,
}

async fn stores(Given(served): Given<Served>) -> Json<Stores> {
    let report = served.state.report();
    let line = |(store, report): (String, StoreReport)| StoreLine {
        store,
        open: report.open,
        on_duty: report.on_duty,
        users: report.users,
    };
    Json(Stores {
        read_only: report.read_only,
        stores: report.stores.into_iter().map(line).collect(),
    })
}

async fn store(Given(served): Given<Served>, Path(store): Path<String>) -> Answer<StoreReport> {
    served.state.report_of(&store).map(Json).ok_or_else(Refused::no_store)
}

/// Which part of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    after: Option<String>,
    limit: Option<usize>,
}

impl Page {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(MOST_IN_PAGE).clamp(1, MOST_IN_PAGE)
    }
}

#[derive(Serialize)]
struct Sessions {
    sessions: Vec<SessionReport>,
    /// Give this as `after` for the next part; none at the end.
    next: Option<String>,
}

async fn sessions(
    Given(served): Given<Served>,
    Path(store): Path<String>,
    page: Result<Query<Page>, axum::extract::rejection::QueryRejection>,
) -> Answer<Sessions> {
    let page = page.map_err(wrong_query)?.0;
    let all = opened(&served, &store)?.sessions(served.options.within).await?;
    let mut all: Vec<SessionReport> = all.iter().map(SessionReport::from).collect();
    all.sort_by(|one, two| one.session.cmp(&two.session));
    all.retain(|session| page.after.as_ref().is_none_or(|after| session.session > *after));
    let is_more = all.len() > page.limit();
    all.truncate(page.limit());
    let next = all.last().filter(|_| is_more).map(|last| last.session.clone());
    Ok(Json(Sessions { sessions: all, next }))
}

fn wrong_query(error: axum::extract::rejection::QueryRejection) -> Refused {
    Refused::new(StatusCode::BAD_REQUEST, error.body_text(), "see /v1/openapi.json")
}

#[derive(Serialize)]
struct QuarantinedLine {
    key: String,
    version: u64,
    why: String,
    bytes: u64,
    in_place: bool,
}

async fn quarantine(Given(served): Given<Served>, Path(store): Path<String>) -> Answer<Vec<QuarantinedLine>> {
    let store = opened(&served, &store)?;
    let all = store.quarantined(None, MOST_IN_PAGE, served.options.within).await?;
    let line = |one: holdfast_features::Quarantined| QuarantinedLine {
        key: one.key,
        version: one.version.0,
        why: one.why,
        bytes: one.bytes,
        in_place: one.in_place,
    };
    Ok(Json(all.into_iter().map(line).collect()))
}

#[derive(Serialize)]
struct Swept {
    leases: usize,
    reservations: usize,
    retired: usize,
    sessions: usize,
    freed: usize,
    failed: usize,
    quarantined: usize,
}

fn may_change(served: &Served) -> Result<(), Refused> {
    if served.state.options.read_only {
        let why = "this steward changes nothing (read_only)";
        return Err(Refused::new(StatusCode::CONFLICT, why, "ask one that does"));
    }
    Ok(())
}

async fn sweep(Given(served): Given<Served>, Path(name): Path<String>) -> Answer<Swept> {
    let store = opened(&served, &name)?;
    may_change(&served)?;
    let swept = store.sweep(served.options.within).await?;
    tracing::info!(store = %store.config().store, ?swept, "swept: it was asked for over HTTP");
    served.state.note(&store.config().store, |report| {
        report.acted("swept", "it was asked for over HTTP");
    });
    Ok(Json(Swept {
        leases: swept.taken_back.taken_back,
        reservations: swept.taken_back.abandoned,
        retired: swept.taken_back.retired,
        sessions: swept.taken_back.sessions_cleared,
        freed: swept.freed,
        failed: swept.failed,
        quarantined: swept.quarantined,
    }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    #[serde(default)]
    repair: bool,
}

async fn audit(
    Given(served): Given<Served>,
    Path(name): Path<String>,
    query: Result<Query<AuditQuery>, axum::extract::rejection::QueryRejection>,
) -> Answer<Audited> {
    let repair = query.map_err(wrong_query)?.0.repair;
    let store = opened(&served, &name)?;
    if repair {
        may_change(&served)?;
    }
    let found = served
        .state
        .connect
        .audit(&store, !repair, served.options.within)
        .await?;
    tracing::info!(store = %store.config().store, repair, ?found, "audited: it was asked for over HTTP");
    Ok(Json(found))
}

async fn etcd(Given(served): Given<Served>) -> Json<Vec<EtcdReport>> {
    Json(served.state.report().etcd)
}
