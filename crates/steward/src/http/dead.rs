//! The dead letters of a store: listed, put back into circulation, and dropped.
//!
//! What is told is what `tensorhold dead` tells with `--json`, under the same names.
//!
//! # Changes
//! Each is refused by a steward that is to change nothing (409), and by the guard for a token that may only look (403). What
//! was done is logged with its reason and the token's name, and noted in the store's report. A call that the client does not
//! wait for goes on: what was begun is done and logged all the same.
//!
//! # What if…
//! - *…a name cannot be one?* Nothing has it: its outcome is `not_found`.
//! - *…some of a list cannot be done?* Each sample has its own outcome. Only if none was done, because the index could not
//!   be reached, the answer is 503.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Given};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Result, SampleId};
use tensorhold_features::{FeatureStore, RecordQuery, SampleRef, Stage};
use tokio::time::Instant;

use super::Served;
use super::answer::Refused;
use super::api::{Answer, may_change, opened, to_its_end, wrong_query};
use super::given::{self, By, Named, Page, Told};
use super::records::{self, Records};

/// The most samples in one change.
pub(super) const MOST_SAMPLES: usize = 100;

/// The paths of this module, each in [`super::openapi`].
pub(super) fn routes() -> Router<Served> {
    Router::new()
        .route("/v1/stores/{store}/dead", get(dead))
        .route("/v1/stores/{store}/dead/requeue", post(requeue))
        .route("/v1/stores/{store}/dead/drop", post(drop_dead))
}

async fn dead(Given(served): Given<Served>, name: Named, page: Result<Query<Page>, QueryRejection>) -> Answer<Records> {
    let page = page.map_err(wrong_query)?.0;
    let (limit, after) = (given::limit(page.limit)?, given::after(page.after)?);
    let store = opened(&served, &name.store).await?;
    let query = RecordQuery::of(Stage::Dead);
    Ok(Json(
        records::read(&store, &query, after, limit, served.for_calls()).await?,
    ))
}

/// Which dead letters to change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Samples {
    samples: Vec<String>,
}

/// What became of one of them.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    sample: String,
    generation: Option<u64>,
    outcome: &'static str,
    why: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Outcomes {
    items: Vec<Outcome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Requeue,
    Drop,
}

impl Change {
    fn past(self) -> &'static str {
        match self {
            Self::Requeue => "requeued",
            Self::Drop => "dropped",
        }
    }
}

async fn requeue(Given(served): Given<Served>, name: Named, by: By, Told(told): Told<Samples>) -> Answer<Outcomes> {
    change(served, name, by, told, Change::Requeue).await
}

async fn drop_dead(Given(served): Given<Served>, name: Named, by: By, Told(told): Told<Samples>) -> Answer<Outcomes> {
    change(served, name, by, told, Change::Drop).await
}

async fn change(served: Served, name: Named, by: By, told: Samples, change: Change) -> Answer<Outcomes> {
    let mut samples = told.samples;
    if !(1..=MOST_SAMPLES).contains(&samples.len()) {
        let why = format!(
            "`samples` has between 1 and {MOST_SAMPLES} names, and not {}",
            samples.len()
        );
        return Err(Refused::new(StatusCode::BAD_REQUEST, why, "send them in parts"));
    }
    let store = opened(&served, &name.store).await?;
    may_change(&served)?;
    // Each once: the second time it would be none any more.
    let mut seen = HashSet::new();
    samples.retain(|sample| seen.insert(sample.clone()));
    let turns = Arc::clone(&served.turns);
    let changing = async move {
        let outcomes = carry_out(&store, samples, change, served.for_calls()).await;
        match &outcomes {
            Ok(outcomes) => tell(&served, &store, &by, change, outcomes),
            Err(error) => tracing::warn!(store = %store.config().store, token = by.0, %error, why = by.why(),
                "dead letters were to be {}; some may be", change.past()),
        }
        outcomes
    };
    let items = to_its_end(turns, changing).await??;
    Ok(Json(Outcomes { items }))
}

/// Logs and notes what was done.
fn tell(served: &Served, store: &FeatureStore, by: &By, change: Change, outcomes: &[Outcome]) {
    let (id, why) = (&store.config().store, by.why());
    for one in outcomes {
        tracing::info!(store = %id, token = by.0, sample = one.sample.escape_debug().to_string(),
            generation = one.generation, outcome = one.outcome, why, "a dead letter was to be {}", change.past());
    }
    let count = outcomes.iter().filter(|one| one.outcome == change.past()).count();
    served.state.note(id, |report| {
        let what = format!("{} {count} dead letters, of {} samples", change.past(), outcomes.len());
        report.acted(what, why);
    });
}

/// Every dead letter of these samples is given back, or forgotten.
async fn carry_out(
    store: &FeatureStore,
    samples: Vec<String>,
    change: Change,
    within: Duration,
) -> Result<Vec<Outcome>> {
    let begun = Instant::now();
    let left = || within.saturating_sub(begun.elapsed());
    let (mut letters, mut outcomes): (Vec<SampleRef>, Vec<Outcome>) = (Vec::new(), Vec::new());
    for name in samples {
        let none = |why: &str| Outcome {
            sample: name.clone(),
            generation: None,
            outcome: "not_found",
            why: Some(why.to_owned()),
        };
        let sample = match SampleId::new(&name) {
            Ok(sample) => sample,
            Err(error) => {
                outcomes.push(none(error.message()));
                continue;
            }
        };
        let records = store.records_of(&sample, left()).await?;
        let dead = records.into_iter().filter(|one| one.stage == Stage::Dead);
        let mut found: Vec<SampleRef> = dead.map(|one| one.sample).collect();
        if found.is_empty() {
            outcomes.push(none("no record of it has run out of attempts"));
        }
        if change == Change::Requeue {
            // Of several only the newest can come back: the others were replaced.
            found.drain(..found.len().saturating_sub(1));
        }
        letters.extend(found);
    }
    if letters.is_empty() {
        return Ok(outcomes);
    }
    let answers: Vec<Result<()>> = match change {
        Change::Requeue => {
            let answers = store.requeue(&letters, left()).await;
            answers.into_iter().map(|answer| answer.map(drop)).collect()
        }
        Change::Drop => store.drop_dead(&letters, left()).await,
    };
    if let Some(error) = all_failed(&answers) {
        return Err(error.clone());
    }
    for (letter, answer) in letters.iter().zip(answers) {
        outcomes.push(Outcome {
            sample: letter.sample.as_str().to_owned(),
            generation: Some(letter.generation.get()),
            outcome: match &answer {
                Ok(()) => change.past(),
                Err(error) if error.kind() == ErrorKind::NotFound => "not_found",
                Err(error) if is_refusal(error) => "refused",
                Err(_) => "failed",
            },
            why: answer.err().map(|error| error.message().to_owned()),
        });
    }
    Ok(outcomes)
}

/// Whether an error is about the letter, and not about the index.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::Unsupported
    )
}

/// The first error, if nothing was done and nothing was decided.
fn all_failed(answers: &[Result<()>]) -> Option<&Error> {
    let failed = |answer: &Result<()>| answer.as_ref().is_err_and(|error| !is_refusal(error));
    let all = answers.iter().all(failed);
    answers.first().filter(|_| all)?.as_ref().err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_index_could_not_do_fails_as_a_whole() {
        let away = || Err(Error::unavailable("test", "away"));
        let refused = || Err(Error::new(ErrorKind::Conflict, "test", "put again"));
        assert!(all_failed(&[away(), away()]).is_some());
        assert!(all_failed(&[away(), refused()]).is_none());
        assert!(all_failed(&[away(), Ok(())]).is_none());
        assert!(all_failed(&[]).is_none());
    }
}
