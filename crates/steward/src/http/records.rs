//! What a store has, record by record.
//!
//! What is told is what `tensorhold ls` and `why` tell with `--json`, under the same names.
//!
//! # What if…
//! - *…a name cannot be one?* Nothing has it: a sample in a path is 404.
//! - *…few of many records match a query?* A request looks at no more than [`MOST_LOOKED_AT`] records, and takes no more
//!   than half of its time. The answer may be short, or empty; `next` says where to go on.

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Given};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tensorhold_core::{Result, SampleId};
use tensorhold_custody::{GroupState, Lease, Progress, Reason, Stamp, WallTime};
use tensorhold_features::{FeatureStore, ListPlace, Record, RecordQuery, SampleRecord};
use tokio::time::Instant;

use super::Served;
use super::answer::Refused;
use super::api::{Answer, opened, wrong_query};
use super::given::{self, Named, stage_name};
use super::people::{People, Person, id};
use crate::report::now_ms;

/// How many records are looked at in one call to the index if only some of them match.
const LOOK_AT: usize = 1000;
/// How many records one request looks at.
const MOST_LOOKED_AT: usize = 20_000;

/// The paths of this module, each in [`super::openapi`].
pub(super) fn routes() -> Router<Served> {
    Router::new()
        .route("/v1/stores/{store}/records", get(list))
        .route("/v1/stores/{store}/records/{sample}", get(one))
}

/// When something was done, and by which session.
#[derive(Serialize)]
struct Done {
    at_ms: Option<u64>,
    by: String,
}

/// A time, or nothing if it is not known.
fn ms(time: WallTime) -> Option<u64> {
    (!time.is_unknown()).then_some(time.0)
}

fn done(stamp: Stamp) -> Done {
    Done {
        at_ms: ms(stamp.at),
        by: id(stamp.by),
    }
}

#[derive(Serialize)]
struct HeldLine {
    held_by: Person,
    since_ms: Option<u64>,
    until_tick: u64,
}

fn held(lease: &Lease, people: &People) -> HeldLine {
    HeldLine {
        held_by: people.person(lease.session),
        since_ms: ms(lease.since),
        until_tick: lease.until.0,
    }
}

#[derive(Serialize)]
struct GroupLine {
    group: String,
    progress: &'static str,
    attempts: u32,
    lease: Option<HeldLine>,
    done: Option<Done>,
}

fn group(state: &GroupState, people: &People) -> GroupLine {
    let (progress, lease) = match &state.progress {
        Progress::Waiting => ("waiting", None),
        Progress::Leased(lease) => ("leased", Some(held(lease, people))),
        Progress::Acked => ("acked", None),
        Progress::Dead => ("dead", None),
    };
    GroupLine {
        group: state.group.as_str().to_owned(),
        progress,
        attempts: state.attempts,
        lease,
        done: state.done.map(done),
    }
}

/// Why samples are retired, in one word each.
pub(super) fn reason_name(reason: Reason) -> &'static str {
    match reason {
        Reason::Consumed => "consumed",
        Reason::Aborted => "aborted",
        Reason::Abandoned => "abandoned",
        Reason::Superseded => "superseded",
        Reason::DeadLetter => "dead_letter",
        Reason::Lost => "lost",
        Reason::Other => "other",
    }
}

/// One generation of a sample.
#[derive(Serialize)]
struct RecordLine {
    sample: String,
    generation: u64,
    state: &'static str,
    bytes: u64,
    since_ms: Option<u64>,
    producer: Person,
    reserved_ms: Option<u64>,
    reserved_until_tick: Option<u64>,
    committed_ms: Option<u64>,
    retired: Option<Done>,
    reason: Option<&'static str>,
    freed: Option<Done>,
    failed_frees: u32,
    kept_until_tick: Option<u64>,
    retain: Option<bool>,
    max_attempts: Option<u32>,
    groups: Vec<GroupLine>,
    readers: Vec<HeldLine>,
}

fn line(found: &SampleRecord, people: &People) -> RecordLine {
    let record = &found.record;
    let mut line = RecordLine {
        sample: found.sample.sample.as_str().to_owned(),
        generation: found.sample.generation.get(),
        state: stage_name(found.stage),
        bytes: record.bytes(),
        since_ms: ms(record.since()),
        producer: people.person(record.producer()),
        reserved_ms: None,
        reserved_until_tick: None,
        committed_ms: None,
        retired: None,
        reason: None,
        freed: None,
        failed_frees: 0,
        kept_until_tick: None,
        retain: None,
        max_attempts: None,
        groups: Vec::new(),
        readers: Vec::new(),
    };
    let groups = |states: &[GroupState]| states.iter().map(|state| group(state, people)).collect();
    let readers = |leases: &[Lease]| leases.iter().map(|lease| held(lease, people)).collect();
    match record {
        Record::Reserved(record) => {
            line.reserved_ms = ms(record.reserved_at);
            line.reserved_until_tick = Some(record.until.0);
        }
        Record::Live(record) => {
            (line.reserved_ms, line.committed_ms) = (ms(record.reserved_at), ms(record.committed_at));
            (line.retain, line.max_attempts) = (Some(record.retain), Some(record.max_attempts));
            (line.groups, line.readers) = (groups(&record.groups), readers(&record.readers));
        }
        Record::Retired(record) => {
            (line.reserved_ms, line.committed_ms) = (ms(record.reserved_at), ms(record.committed_at));
            (line.retired, line.freed) = (record.retired.map(done), record.freed.map(done));
            line.reason = Some(reason_name(record.reason));
            line.failed_frees = record.failed_frees;
            line.kept_until_tick = record.kept.map(|tick| tick.0);
            line.readers = readers(&record.readers);
            if let Some(letter) = &record.letter {
                line.max_attempts = Some(letter.max_attempts);
                line.groups = groups(&letter.groups);
            }
        }
    }
    line
}

#[derive(Serialize)]
pub(super) struct Records {
    items: Vec<RecordLine>,
    /// Give this as `after` for the next part; none at the end.
    next: Option<String>,
    /// How many records were looked at.
    looked_at: usize,
    /// Records of a later release, which are not shown.
    later: usize,
}

/// Reads until there are enough, or until the list, the time or the patience is over.
pub(super) async fn read(
    store: &FeatureStore,
    query: &RecordQuery,
    after: Option<String>,
    limit: usize,
    within: Duration,
) -> Result<Records> {
    let begun = Instant::now();
    let left = || within.saturating_sub(begun.elapsed());
    let is_narrow = query.group.is_some() || query.session.is_some() || query.before.is_some();
    let (mut place, mut found) = (after.map(ListPlace::from_text), Vec::new());
    let (mut looked_at, mut later) = (0, 0);
    let mut look_at = if is_narrow { LOOK_AT } else { limit };
    loop {
        let room = limit - found.len();
        let mut part = store.records(query, place.as_ref(), look_at.max(room), left()).await?;
        while part.records.len() > room {
            // A place lies behind what was looked at, so a smaller part is read, until there is room for what it has.
            look_at = (look_at / 2).max(room);
            part = store.records(query, place.as_ref(), look_at, left()).await?;
        }
        found.extend(part.records);
        looked_at += part.looked_at;
        later += part.later;
        place = part.next;
        let is_over = looked_at >= MOST_LOOKED_AT || begun.elapsed() > within / 2;
        if place.is_none() || found.len() >= limit || is_over {
            break;
        }
    }
    let people = match found.is_empty() {
        true => People::default(),
        false => People::read(store, left()).await?,
    };
    Ok(Records {
        items: found.iter().map(|record| line(record, &people)).collect(),
        next: place.map(|place| place.as_text().to_owned()),
        looked_at,
        later,
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    state: Option<String>,
    group: Option<String>,
    session: Option<String>,
    older_than: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list(
    Given(served): Given<Served>,
    name: Named,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Answer<Records> {
    let wanted = wanted.map_err(wrong_query)?.0;
    let before = |age: Duration| {
        let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        WallTime(now_ms().saturating_sub(age))
    };
    let query = RecordQuery {
        stage: wanted.state.as_deref().map(given::stage).transpose()?,
        group: wanted.group.as_deref().map(given::group).transpose()?,
        session: wanted.session.as_deref().map(given::session).transpose()?,
        before: wanted.older_than.as_deref().map(given::age).transpose()?.map(before),
    };
    let (limit, after) = (given::limit(wanted.limit)?, given::after(wanted.after)?);
    let store = opened(&served, &name.store).await?;
    Ok(Json(read(&store, &query, after, limit, served.for_calls()).await?))
}

#[derive(Serialize)]
pub(super) struct Generations {
    items: Vec<RecordLine>,
}

async fn one(Given(served): Given<Served>, name: Named) -> Answer<Generations> {
    let store = opened(&served, &name.store).await?;
    let none = |why: String| Refused::new(StatusCode::NOT_FOUND, why, "GET /v1/stores/{store}/records lists them");
    let sample =
        SampleId::new(&name.sample).map_err(|error| none(format!("there is no such sample: {}", error.message())))?;
    let within = served.for_calls();
    let begun = Instant::now();
    let found = store.records_of(&sample, within).await?;
    if found.is_empty() {
        return Err(none(
            "the index has no record of this sample; what was freed is forgotten".to_owned(),
        ));
    }
    let people = People::read(&store, within.saturating_sub(begun.elapsed())).await?;
    Ok(Json(Generations {
        items: found.iter().map(|record| line(record, &people)).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use tensorhold_custody::SessionId;

    use super::*;

    #[test]
    fn a_time_that_is_not_known_is_null() {
        assert_eq!((ms(WallTime(0)), ms(WallTime(7))), (None, Some(7)));
        let told = done(Stamp {
            at: WallTime(0),
            by: SessionId(255),
        });
        assert_eq!((told.at_ms, told.by.as_str()), (None, "00000000000000ff"));
    }
}
