//! What a store has, record by record, and what people change in it: dead letters, the budget.
//!
//! What is told is what `holdfast ls`, `why`, `dead` and `budget` tell with `--json`, under the same names.
//!
//! # Changes
//! Each is refused by a steward that is to change nothing (409), and by the guard for a token that may only look (403). What
//! was done is logged with its reason and the token's name, and noted in the store's report. A call that the client does not
//! wait for goes on: what was begun is done and logged all the same.
//!
//! # What if…
//! - *…a name cannot be one?* Nothing has it: a sample in a path is 404, one in a list is `not_found`.
//! - *…some of a list cannot be done?* Each sample has its own outcome. Only if none was done, because the index could not
//!   be reached, the answer is 503.
//! - *…few of many records match a query?* A request looks at no more than [`MOST_LOOKED_AT`] records, and takes no more
//!   than half of its time. The answer may be short, or empty; `next` says where to go on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as Given};
use axum::http::StatusCode;
use axum::routing::{get, post};
use holdfast_core::{Error, ErrorKind, Result, Retry, SampleId};
use holdfast_custody::{GroupState, Lease, Progress, Reason, SessionId, Stamp, WallTime};
use holdfast_features::{
    BudgetUse, FeatureStore, Identity, ListPlace, Quarantined, Record, RecordQuery, SampleRecord, SampleRef, Stage,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Served;
use super::answer::Refused;
use super::api::{Answer, may_change, opened, to_its_end, wrong_query};
use super::given::{self, By, Named, Told, stage_name};
use crate::report::now_ms;

/// How many records are looked at in one call to the index if only some of them match.
const LOOK_AT: usize = 1000;
/// How many records one request looks at.
const MOST_LOOKED_AT: usize = 20_000;
/// The most samples in one change.
pub(super) const MOST_SAMPLES: usize = 100;
/// The largest budget.
pub(super) const MOST_BUDGET: u64 = given::MOST_EXACT;

/// The paths of this module, each in [`super::openapi`].
pub(super) fn routes() -> Router<Served> {
    Router::new()
        .route("/v1/stores/{store}/records", get(list))
        .route("/v1/stores/{store}/records/{sample}", get(one))
        .route("/v1/stores/{store}/dead", get(dead))
        .route("/v1/stores/{store}/dead/requeue", post(requeue))
        .route("/v1/stores/{store}/dead/drop", post(drop_dead))
        .route("/v1/stores/{store}/budget", get(budget).put(set_budget))
        .route("/v1/stores/{store}/quarantine", get(quarantine))
}

/// The sessions that are alive.
struct People(HashMap<SessionId, Option<Identity>>);

impl People {
    async fn read(store: &FeatureStore, within: Duration) -> Result<Self> {
        let alive = store.sessions(within).await?;
        Ok(Self(
            alive
                .into_iter()
                .map(|session| (session.id, session.identity))
                .collect(),
        ))
    }

    fn person(&self, session: SessionId) -> Person {
        let who = self.0.get(&session).cloned().flatten();
        Person {
            session: id(session),
            alive: self.0.contains_key(&session),
            program: who.as_ref().map(|who| who.program.clone()),
            host: who.as_ref().map(|who| who.host.clone()),
            pid: who.as_ref().map(|who| who.pid),
            role: who.map(|who| who.role),
        }
    }
}

fn id(session: SessionId) -> String {
    format!("{:016x}", session.0)
}

/// A session, and what its process says of itself if it is alive.
#[derive(Serialize)]
struct Person {
    session: String,
    alive: bool,
    program: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    role: Option<String>,
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
async fn read(
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
        true => People(HashMap::new()),
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
    let store = opened(&served, &name.store)?;
    Ok(Json(read(&store, &query, after, limit, served.for_calls()).await?))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    limit: Option<u32>,
    after: Option<String>,
}

async fn dead(Given(served): Given<Served>, name: Named, page: Result<Query<Page>, QueryRejection>) -> Answer<Records> {
    let page = page.map_err(wrong_query)?.0;
    let (limit, after) = (given::limit(page.limit)?, given::after(page.after)?);
    let store = opened(&served, &name.store)?;
    let query = RecordQuery::of(Stage::Dead);
    Ok(Json(read(&store, &query, after, limit, served.for_calls()).await?))
}

#[derive(Serialize)]
pub(super) struct Generations {
    items: Vec<RecordLine>,
}

async fn one(Given(served): Given<Served>, name: Named) -> Answer<Generations> {
    let store = opened(&served, &name.store)?;
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
    let store = opened(&served, &name.store)?;
    may_change(&served)?;
    // Each once: the second time it would be none any more.
    let mut seen = std::collections::HashSet::new();
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
        true => People(HashMap::new()),
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
    let store = opened(&served, &name.store)?;
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
    let store = opened(&served, &name.store)?;
    may_change(&served)?;
    let (within, begun) = (served.for_calls(), Instant::now());
    let setting = {
        let (served, store) = (served.clone(), store.clone());
        async move {
            let set = store.set_budget(bytes, within).await;
            let (id, why) = (&store.config().store, by.why());
            let what = match &set {
                Ok(()) => format!("set the budget to {bytes} bytes"),
                Err(error) if is_held(error) => {
                    format!("shrank the budget towards {bytes} bytes, as far as samples let it")
                }
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
            "free samples, and set it again: it has shrunk as far as it could",
        ),
        false => error.into(),
    })?;
    Ok(Json(budget_of(&store, within.saturating_sub(begun.elapsed())).await?))
}

/// Whether a budget could not shrink because samples hold more. A full index refuses with the same kind, and it is not known
/// then whether the change was made.
fn is_held(error: &Error) -> bool {
    error.kind() == ErrorKind::Capacity && error.retry() != Retry::Ambiguous
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
