//! The budget of a store: what it is used for, and setting it.
//!
//! What is told is what `tensorhold budget` tells with `--json`, under the same names. A change is refused, logged and noted as
//! those of [`super::dead`] are.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State as Given;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Result, Retry};
use tensorhold_features::{BudgetUse, FeatureStore};
use tokio::time::Instant;

use super::Served;
use super::answer::Refused;
use super::api::{Answer, may_change, opened, to_its_end};
use super::given::{self, By, Named, Told};
use super::people::{People, Person};

/// The largest budget.
pub(super) const MOST_BUDGET: u64 = given::MOST_EXACT;

/// The path of this module, in [`super::openapi`].
pub(super) fn routes() -> Router<Served> {
    Router::new().route("/v1/stores/{store}/budget", get(budget).put(set_budget))
}

/// What a budget is used for.
#[derive(Serialize)]
pub(super) struct BudgetLine {
    budget_bytes: Option<u64>,
    free_bytes: Option<u64>,
    used_bytes: Option<u64>,
    waiting: Vec<WaitingLine>,
}

/// A process that waits for quota.
#[derive(Serialize)]
struct WaitingLine {
    producer: Person,
    wanted_bytes: u64,
}

async fn budget_of(store: &FeatureStore, within: Duration) -> Result<BudgetLine> {
    let begun = Instant::now();
    let used: Option<BudgetUse> = store.budget_use(within).await?;
    let waiting = used.as_ref().map_or(&[][..], |used| &used.waiting);
    let people = match waiting.is_empty() {
        true => People::default(),
        false => People::read(store, within.saturating_sub(begun.elapsed())).await?,
    };
    let waiting = waiting.iter().map(|(session, wanted)| WaitingLine {
        producer: people.person(*session),
        wanted_bytes: *wanted,
    });
    Ok(BudgetLine {
        waiting: waiting.collect(),
        budget_bytes: used.as_ref().map(|used| used.bytes),
        free_bytes: used.as_ref().map(|used| used.free),
        used_bytes: used.as_ref().map(|used| used.bytes.saturating_sub(used.free)),
    })
}

async fn budget(Given(served): Given<Served>, name: Named) -> Answer<BudgetLine> {
    let store = opened(&served, &name.store).await?;
    Ok(Json(budget_of(&store, served.for_calls()).await?))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewBudget {
    budget_bytes: serde_json::Number,
}

/// A budget that can be: a whole number, also if it is written as `1.0` or `1e9`, which is the same number in JSON.
fn whole(number: &serde_json::Number) -> Option<u64> {
    #[expect(clippy::cast_precision_loss, reason = "it is the largest number that is exact")]
    let most = MOST_BUDGET as f64;
    let exact = |number: &f64| number.fract() == 0.0 && (1.0..=most).contains(number);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is whole, positive and not too large"
    )]
    let of_float = || number.as_f64().filter(exact).map(|number| number as u64);
    let bytes = number.as_u64().or_else(of_float)?;
    (1..=MOST_BUDGET).contains(&bytes).then_some(bytes)
}

async fn set_budget(
    Given(served): Given<Served>,
    name: Named,
    by: By,
    Told(told): Told<NewBudget>,
) -> Answer<BudgetLine> {
    let bytes = whole(&told.budget_bytes).ok_or_else(|| {
        let why = format!("`budget_bytes` is a whole number between 1 and {MOST_BUDGET}");
        Refused::new(StatusCode::BAD_REQUEST, why, "give such a number")
    })?;
    let store = opened(&served, &name.store).await?;
    may_change(&served)?;
    let (within, begun) = (served.for_calls(), Instant::now());
    let setting = {
        let (served, store) = (served.clone(), store.clone());
        async move {
            let set = store.set_budget(bytes, within).await;
            let (id, why) = (&store.config().store, by.why());
            let what = match &set {
                Ok(()) => format!("set the budget to {bytes} bytes"),
                Err(error) => {
                    tracing::warn!(store = %id, token = by.0, bytes, %error, why, "the budget could not be set");
                    return set;
                }
            };
            tracing::info!(store = %id, token = by.0, bytes, why, "{what}");
            served.state.note(id, |report| report.acted(what, why));
            set
        }
    };
    let set = to_its_end(Arc::clone(&served.turns), setting).await?;
    set.map_err(|error| match is_held(&error) {
        true => Refused::new(
            StatusCode::CONFLICT,
            error.to_string(),
            "free samples, and set it again: nothing has changed",
        ),
        false => error.into(),
    })?;
    Ok(Json(budget_of(&store, within.saturating_sub(begun.elapsed())).await?))
}

/// Whether a budget was refused because samples hold more. A full index refuses with the same kind, and it is not known
/// then whether the change was made.
fn is_held(error: &Error) -> bool {
    error.kind() == ErrorKind::Capacity && error.retry() != Retry::Ambiguous
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_a_whole_number() {
        let read = |text: &str| serde_json::from_str(text).ok().as_ref().and_then(whole);
        assert_eq!(
            (read("1"), read("1.0"), read("1e9")),
            (Some(1), Some(1), Some(1_000_000_000))
        );
        assert_eq!(read("9007199254740991"), Some(MOST_BUDGET));
        for text in [
            "0",
            "-1",
            "0.5",
            "1.5",
            "-0.0",
            "9007199254740992",
            "9007199254740992.0",
            "1e300",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
