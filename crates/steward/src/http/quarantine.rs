//! The records of a store that no release can read.
//!
//! What is told is what `holdfast quarantine ls` tells with `--json`, under the same names.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Given};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use holdfast_features::Quarantined;
use serde::Serialize;
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

/// A place in the quarantine: the version and the key of the last record.
fn place_of(one: &Quarantined) -> String {
    format!("{}/{}", one.version.0, one.key)
}

fn parse_place(text: &str) -> Result<Quarantined, Refused> {
    let parsed = || {
        let (version, key) = text.split_once('/')?;
        let digits = version.len() <= 19 && version.bytes().all(|byte| byte.is_ascii_digit());
        let version = version.parse().ok().filter(|_| digits)?;
        Some(Quarantined {
            key: key.to_owned(),
            version: holdfast_custody::Version(version),
            why: String::new(),
            bytes: 0,
            in_place: false,
        })
    };
    parsed().ok_or_else(|| {
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
    let after = after.as_deref().map(parse_place).transpose()?;
    let store = opened(&served, &name.store)?;
    let (within, begun) = (served.for_calls(), Instant::now());
    let found = store.quarantined(after.as_ref(), limit, within).await?;
    // A part may be shorter than was asked for, and only an empty one is the end: look whether there is more.
    let next = match found.last() {
        None => None,
        Some(last) => {
            let left = within.saturating_sub(begun.elapsed());
            let more = store.quarantined(Some(last), 1, left).await?;
            Some(place_of(last)).filter(|_| !more.is_empty())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_quarantine_is_read_back_and_nonsense_is_refused() {
        let one = Quarantined {
            key: "/holdfast/s/f/a%2Fb".to_owned(),
            version: holdfast_custody::Version(u64::MAX / 2),
            why: String::new(),
            bytes: 0,
            in_place: false,
        };
        assert_eq!(parse_place(&place_of(&one)).ok(), Some(one));
        for text in ["", "/", "7", "+7/key", "-1/key", "99999999999999999999/key", "x/key"] {
            assert!(parse_place(text).is_err(), "{text:?}");
        }
    }
}
