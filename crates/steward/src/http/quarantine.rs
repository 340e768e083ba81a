//! The records of a store that no release can read.
//!
//! What is told is what `tensorhold quarantine ls` tells with `--json`, under the same names.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Given};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use tensorhold_features::Quarantined;
use tokio::time::Instant;

use super::Served;
use super::answer::Refused;
use super::api::{Answer, opened, wrong_query};
use super::given::{self, Named, Page};

/// The path of this module, in [`super::openapi`].
pub(super) fn routes() -> Router<Served> {
    Router::new().route("/v1/stores/{store}/quarantine", get(quarantine))
}

#[derive(Serialize)]
struct QuarantinedLine {
    key: String,
    version: u64,
    why: String,
    bytes: u64,
    in_place: bool,
}

#[derive(Serialize)]
pub(super) struct Quarantine {
    items: Vec<QuarantinedLine>,
    next: Option<String>,
}

fn place(text: &str) -> Result<Quarantined, Refused> {
    Quarantined::at_place(text).ok_or_else(|| {
        let why = "the query's `after` is no place in the quarantine";
        Refused::new(
            StatusCode::BAD_REQUEST,
            why,
            "give the `next` of the part before, unchanged",
        )
    })
}

async fn quarantine(
    Given(served): Given<Served>,
    name: Named,
    page: Result<Query<Page>, QueryRejection>,
) -> Answer<Quarantine> {
    let page = page.map_err(wrong_query)?.0;
    let (limit, after) = (given::limit(page.limit)?, given::after(page.after)?);
    let after = after.as_deref().map(place).transpose()?;
    let store = opened(&served, &name.store).await?;
    let (within, begun) = (served.for_calls(), Instant::now());
    let found = store.quarantined(after.as_ref(), limit, within).await?;
    // A part may be shorter than was asked for, and only an empty one is the end: look whether there is more.
    let next = match found.last() {
        None => None,
        Some(last) => {
            let left = within.saturating_sub(begun.elapsed());
            let more = store.quarantined(Some(last), 1, left).await?;
            Some(last.place()).filter(|_| !more.is_empty())
        }
    };
    let line = |one: Quarantined| QuarantinedLine {
        key: one.key,
        version: one.version.0,
        why: one.why,
        bytes: one.bytes,
        in_place: one.in_place,
    };
    Ok(Json(Quarantine {
        items: found.into_iter().map(line).collect(),
        next,
    }))
}
