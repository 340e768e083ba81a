//! The handlers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State as Given};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tensorhold_core::Error;
use tensorhold_features::FeatureStore;
use tokio::sync::Semaphore;

use super::answer::Refused;
use super::given::{self, By, Named, Page};
use super::{Served, budget, dead, openapi, page, quarantine, records};
use crate::Audited;
use crate::metrics;
use crate::report::{EtcdReport, SessionReport, StoreReport};
use crate::state::Auditing;

pub(super) type Answer<T> = Result<Json<T>, Refused>;

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
        .route("/v1/stores/{store}/sweep", post(sweep))
        .route("/v1/stores/{store}/audit", post(audit))
        .route("/v1/etcd", get(etcd))
        .merge(page::routes())
        .merge(records::routes())
        .merge(dead::routes())
        .merge(budget::routes())
        .merge(quarantine::routes())
        .fallback(no_such)
        .method_not_allowed_fallback(|| async {
            Refused::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "not with this method",
                "see /v1/openapi.json",
            )
        })
}

/// How long a request waits for a store that was idle.
const OPENS_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn opened(served: &Served, store: &str) -> Result<FeatureStore, Refused> {
    if served.state.report_of(store).is_none() {
        return Err(Refused::no_store());
    }
    let open = served.state.store(store, OPENS_WITHIN).await;
    open.ok_or_else(|| {
        Refused::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the store is not open yet",
            "/readyz says what cannot be reached",
        )
    })
}

/// Everybody learns whether it is ready. Names and errors are for holders of a token for all stores.
///
/// A store that was found in the index and cannot be opened does not make it unready, once it was tried: any process that may
/// write to the index can begin one, and the other stores are looked after all the same.
async fn readyz(Given(served): Given<Served>, method: Method, headers: HeaderMap) -> (StatusCode, String) {
    let report = served.state.report();
    let all = report.stores.len();
    let closed: Vec<_> = report
        .stores
        .iter()
        .filter(|(_, store)| !store.open && !store.idle)
        .collect();
    let is_whole = served.state.is_whole();
    let is_named = |name: &str| {
        served
            .state
            .options
            .stores
            .iter()
            .any(|store| store.store.as_str() == name)
    };
    let holds_up = |(name, store): &(&String, &StoreReport)| is_named(name) || store.trouble.is_none();
    let is_ready = is_whole && report.trouble.is_none() && !closed.iter().any(holds_up);
    let status = match is_ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    if is_ready && closed.is_empty() {
        return (status, "ok\n".to_owned());
    }
    let mut text = format!("{} of {all} stores are open or idle\n", all - closed.len());
    if !is_whole {
        text.push_str("a part of this steward has ended by a defect\n");
    }
    if report.trouble.is_some() {
        text.push_str("the stores of the index cannot be listed\n");
    }
    if super::admitted(&served, &headers, &method, "/readyz").is_ok() {
        text.extend(report.trouble.map(|trouble| trouble + "\n"));
        for (name, store) in closed {
            let trouble = store.trouble.as_deref().unwrap_or("not open yet");
            text.push_str(&format!("{name}: {trouble}\n"));
        }
    }
    (status, text)
}

async fn metrics_text(Given(served): Given<Served>) -> impl IntoResponse {
    // What the steward says of its stores, and what every process says of itself.
    let mut text = metrics::text(&served.state.report());
    text.push_str(&tensorhold_metrics::registry().text());
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
    idle: bool,
    on_duty: bool,
    users: Option<u64>,
}

async fn stores(Given(served): Given<Served>) -> Json<Stores> {
    let report = served.state.report();
    let line = |(store, report): (String, StoreReport)| StoreLine {
        store,
        open: report.open,
        idle: report.idle,
        on_duty: report.on_duty,
        users: report.users,
    };
    Json(Stores {
        read_only: report.read_only,
        stores: report.stores.into_iter().map(line).collect(),
    })
}

async fn store(Given(served): Given<Served>, name: Named) -> Answer<StoreReport> {
    served
        .state
        .report_of(&name.store)
        .map(Json)
        .ok_or_else(Refused::no_store)
}

#[derive(Serialize)]
struct Sessions {
    sessions: Vec<SessionReport>,
    /// Give this as `after` for the next part; none at the end.
    next: Option<String>,
}

async fn sessions(
    Given(served): Given<Served>,
    name: Named,
    page: Result<Query<Page>, axum::extract::rejection::QueryRejection>,
) -> Answer<Sessions> {
    let page = page.map_err(wrong_query)?.0;
    let (limit, after) = (given::limit(page.limit)?, given::after(page.after)?);
    let opened = opened(&served, &name.store).await?;
    let all = match served.state.page.sessions(&name.store) {
        Some(all) => all,
        None => {
            let listed = opened.sessions(served.for_calls()).await?;
            let mut all: Vec<SessionReport> = listed.iter().map(SessionReport::from).collect();
            all.sort_by(|one, two| one.session.cmp(&two.session));
            Arc::new(all)
        }
    };
    let is_after = |session: &&SessionReport| after.as_ref().is_none_or(|after| session.session > *after);
    let mut rest = all.iter().filter(is_after).cloned();
    let sessions: Vec<SessionReport> = rest.by_ref().take(limit).collect();
    let next = rest
        .next()
        .and_then(|_| sessions.last())
        .map(|last| last.session.clone());
    Ok(Json(Sessions { sessions, next }))
}

pub(super) fn wrong_query(error: axum::extract::rejection::QueryRejection) -> Refused {
    Refused::new(StatusCode::BAD_REQUEST, error.body_text(), "see /v1/openapi.json")
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

pub(super) fn may_change(served: &Served) -> Result<(), Refused> {
    if served.state.options.read_only {
        let why = "this steward changes nothing (read_only)";
        return Err(Refused::new(StatusCode::CONFLICT, why, "ask one that does"));
    }
    Ok(())
}

/// Does something in a task of its own. A client that leaves, or the end of a request's time, would otherwise leave
/// something behind that was done and not told of. The work has a deadline of its own, and counts as a request until then.
pub(super) async fn to_its_end<T: Send + 'static>(
    turns: Arc<Semaphore>,
    work: impl Future<Output = tensorhold_core::Result<T>> + Send + 'static,
) -> Result<tensorhold_core::Result<T>, Refused> {
    let turn = turns.try_acquire_owned().map_err(|_| Refused::busy())?;
    let work = async move {
        let _turn = turn;
        work.await
    };
    tokio::spawn(work).await.map_err(|error| {
        let error = Error::internal("steward.http", "what was asked for has ended by a defect").caused_by(error);
        Refused::from(error)
    })
}

async fn sweep(Given(served): Given<Served>, name: Named, by: By) -> Answer<Swept> {
    let store = opened(&served, &name.store).await?;
    may_change(&served)?;
    let turns = Arc::clone(&served.turns);
    let sweep = async move {
        let swept = store.sweep(served.for_calls()).await?;
        let why = by.why();
        tracing::info!(store = %store.config().store, token = by.0, why, ?swept, "swept");
        served
            .state
            .note(&store.config().store, |report| report.acted("swept", why));
        Ok(swept)
    };
    let swept = to_its_end(turns, sweep).await??;
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
    name: Named,
    by: By,
    query: Result<Query<AuditQuery>, axum::extract::rejection::QueryRejection>,
) -> Answer<Audited> {
    let repair = query.map_err(wrong_query)?.0.repair;
    let store = opened(&served, &name.store).await?;
    if repair {
        may_change(&served)?;
    }
    let auditing = Auditing::begin(&served.state, &store.config().store).ok_or_else(|| {
        let why = "this steward is auditing the store already";
        Refused::new(
            StatusCode::CONFLICT,
            why,
            "wait until that has ended; it is in the store's report",
        )
    })?;
    let turns = Arc::clone(&served.turns);
    let audit = async move {
        let (state, within) = (&served.state, served.for_calls());
        // Only what the steward does by itself is counted: an audit over HTTP has less time, and need not be complete.
        let found = state.connect.audit(&store, !repair, within).await;
        drop(auditing);
        let found = found?;
        let why = by.why();
        tracing::info!(store = %store.config().store, token = by.0, why, repair, ?found, "audited");
        state.note(&store.config().store, |report| {
            let what = format!(
                "audited {} samples: {} orphans, {} removed, {} lost",
                found.samples, found.orphans, found.removed, found.lost
            );
            report.acted(what, why);
        });
        Ok(found)
    };
    Ok(Json(to_its_end(turns, audit).await??))
}

async fn etcd(Given(served): Given<Served>) -> Json<Vec<EtcdReport>> {
    Json(served.state.report().etcd)
}
