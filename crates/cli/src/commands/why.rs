//! `why`: everything that is known of one sample. Where its bytes are, who holds it until when, why it was not freed, and
//! what happened to it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tensorhold_core::{ObjectKey, SampleId, SampleKey, StoreId};
use tensorhold_custody::{Progress as GroupProgress, Retired, Stamp, WallTime};
use tensorhold_index::{Index as _, Record, SampleRecord, Stage, TxnIndex, is_named_ahead};

use super::Context;
use super::people::People;
use super::record::{SharedClock, generation, groups, keys, reason_name, stage_name, value};
use crate::admin::{self, Presence};
use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, object, to_value};
use crate::reach::Reach;
use crate::text::{age, ago, bytes, count, shown};

/// The most objects of one generation that are asked for.
const MOST_OBJECTS: usize = 1000;

pub(crate) async fn run(
    reach: &Reach,
    what: &str,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let (store, index, records) = find(reach, what, progress).await?;
    let people = progress.wait("reading sessions", People::read(reach, &index)).await?;
    answer(reach, &store, &index, &records, &people, context, progress).await
}

/// The records of the sample that a person means: by its name, by the key of an object of ours, or by the key of an
/// object that another writer named.
async fn find(
    reach: &Reach,
    what: &str,
    progress: &mut Progress<'_>,
) -> Result<(StoreId, TxnIndex, Vec<SampleRecord>), Failure> {
    let key = ObjectKey::new(what).ok();
    // The key of a chunk has one more part.
    let whole = what.rsplit_once('/').and_then(|(whole, _)| ObjectKey::new(whole).ok());
    let ours = key.iter().chain(&whole).find_map(|key| SampleKey::parse(key).ok());
    let mut of = reach.clone();
    if let Some(ours) = &ours {
        of.settings.store = Some(ours.store.clone());
    }
    let store = progress.wait("asking etcd", of.store()).await?;
    let index = reach.index(&store).await?;
    let named = ours
        .as_ref()
        .map(|ours| ours.sample.clone())
        .or_else(|| what.parse::<SampleId>().ok());
    if let Some(sample) = &named {
        let records = progress
            .wait("reading records", index.records_of(sample, reach.left()))
            .await;
        let mut records = records.map_err(|error| reach.failure(&error))?;
        if let Some(ours) = &ours {
            records.retain(|record| record.sample.generation == ours.generation);
        }
        if !records.is_empty() {
            return Ok((store, index, records));
        }
    }
    let has_owner = |ours: &SampleKey| is_named_ahead(&ours.sample);
    if let Some(key) = key.filter(|_| ours.as_ref().is_none_or(has_owner)) {
        let owners = progress
            .wait("looking for the owner", index.owners(&[key], reach.left()))
            .await;
        let owners = owners.map_err(|error| reach.failure(&error))?;
        if let Some(owner) = owners.into_iter().flatten().next() {
            let records = index.records_of(&owner.sample, reach.left()).await;
            let mut records = records.map_err(|error| reach.failure(&error))?;
            records.retain(|record| record.sample.generation == owner.generation);
            if !records.is_empty() {
                return Ok((store, index, records));
            }
        }
    }
    Err(unknown(reach, &store, what, progress).await)
}

/// Nothing is recorded under this name; the engine may still have an object of this key.
async fn unknown(reach: &Reach, store: &StoreId, what: &str, progress: &mut Progress<'_>) -> Failure {
    let (admin, within, keys) = (reach.settings.admin.clone(), reach.left() / 2, vec![what.to_owned()]);
    let is_key = ObjectKey::new(what).is_ok() && what.contains('/');
    let asking = tokio::task::spawn_blocking(move || admin::probe(&admin, &keys, within));
    let seen = match is_key {
        true => progress
            .wait("asking the master", asking)
            .await
            .ok()
            .and_then(Result::ok),
        false => None,
    };
    let there = matches!(seen.as_deref(), Some([Presence::Present { .. } | Presence::Unfinished]));
    let (what, name) = (shown(what), shown(store.as_str()));
    if there {
        return Failure::not_found(
            format!("no record of store {name} owns the object {what}"),
            "the engine has it: it is another program's, or was left by a writer that died",
            "if it has the form of a key of this store, an audit finds and removes it; other programs' objects are theirs",
        );
    }
    Failure::not_found(
        format!("store {name} has no sample {what}"),
        "it was never put, or it was used up and freed: then nothing is recorded of it any more",
        "`tensorhold ls` shows what is there; the name must be whole, and the store the right one (--store)",
    )
}

/// Where the objects of one generation are.
struct Objects {
    total: usize,
    found: Result<Vec<(String, Presence)>, String>,
}

/// Everything about these generations.
pub(crate) async fn answer(
    reach: &Reach,
    store: &StoreId,
    index: &TxnIndex,
    records: &[SampleRecord],
    people: &People,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    // There are records, so the store has a clock: this writes nothing.
    let now = progress.wait("reading the clock", index.tick(reach.left())).await;
    let clock = SharedClock {
        now: now.map_err(|error| reach.failure(&error))?,
        tick: reach.settings.index.tick,
    };
    let mut parts = Vec::new();
    let mut items = Vec::new();
    for record in records {
        let objects = objects(reach, store, record, progress).await;
        let reasons = reasons(record, people, clock);
        let history = history(record, people);
        items.push(item(record, people, &objects, &reasons, &history));
        parts.push(text(record, people, &objects, &reasons, &history, context));
    }
    let name = records.first().map_or("", |record| record.sample.sample.as_str());
    let value = object!("store": store.as_str(), "sample": name, "items": items, "next": Value::Null);
    Ok(Answer::new(value, parts.join("\n")))
}

async fn objects(reach: &Reach, store: &StoreId, record: &SampleRecord, progress: &mut Progress<'_>) -> Objects {
    let keys = match keys(store, record) {
        Ok(keys) => keys,
        Err(error) => {
            return Objects {
                total: 0,
                found: Err(error.message().to_owned()),
            };
        }
    };
    let total = keys.len();
    let asked: Vec<String> = keys.into_iter().take(MOST_OBJECTS).collect();
    let (admin, within) = (reach.settings.admin.clone(), reach.left() / 2);
    let asking = tokio::task::spawn_blocking(move || {
        let found = admin::probe(&admin, &asked, within)?;
        Ok(asked.into_iter().zip(found).collect())
    });
    let found = progress.wait("asking the master", asking).await;
    Objects {
        total,
        found: found.unwrap_or_else(|failure| Err(failure.to_string())),
    }
}

/// Why it is still there, and what would change that.
fn reasons(record: &SampleRecord, people: &People, clock: SharedClock) -> Vec<String> {
    match (&record.record, record.stage) {
        (Record::Reserved(reserved), _) => vec![match people.is_alive(reserved.session) {
            true => format!(
                "it is being written by {}, which may commit it {}",
                people.text(reserved.session),
                clock.until(reserved.until)
            ),
            false => "its producer has ended before it committed it: the next sweep gives it up".to_owned(),
        }],
        (Record::Live(live), _) => {
            let mut reasons: Vec<String> = live
                .groups
                .iter()
                .map(|state| {
                    let name = shown(state.group.as_str());
                    match &state.progress {
                        GroupProgress::Waiting => {
                            let left = live.max_attempts.saturating_sub(state.attempts);
                            format!(
                                "group {name} waits for it: nobody has it now ({})",
                                count(left.into(), "attempt is left", "attempts are left")
                            )
                        }
                        GroupProgress::Leased(lease) => format!(
                            "group {name} has it: {}, {} (attempt {} of {})",
                            people.text(lease.session),
                            clock.until(lease.until),
                            state.attempts,
                            live.max_attempts
                        ),
                        GroupProgress::Acked => format!("group {name} is done with it"),
                        GroupProgress::Dead => format!("group {name} is out of attempts"),
                    }
                })
                .collect();
            if live.groups.is_empty() {
                reasons.push(
                    "it was published for no group: it stays until a process or an operator retires it (`tensorhold rm`)"
                        .to_owned(),
                );
            } else if live.retain {
                reasons.push(
                    "its producer wants it kept for the next epoch: it stays until a process or an operator retires it"
                        .to_owned(),
                );
            } else {
                reasons.push("it is freed when every group is done".to_owned());
            }
            reasons.extend(live.readers.iter().map(|lease| {
                format!(
                    "it is read by {}, {}",
                    people.text(lease.session),
                    clock.until(lease.until)
                )
            }));
            reasons
        }
        (Record::Retired(retired), stage) => retired_reasons(retired, stage, people, clock),
    }
}

fn retired_reasons(retired: &Retired, stage: Stage, people: &People, clock: SharedClock) -> Vec<String> {
    let why = match retired.reason {
        tensorhold_custody::Reason::Consumed => "every group has used it",
        tensorhold_custody::Reason::Aborted => "it was taken back",
        tensorhold_custody::Reason::Abandoned => "its producer never committed it",
        tensorhold_custody::Reason::Superseded => "a later generation of it was committed",
        tensorhold_custody::Reason::DeadLetter => "a group ran out of attempts",
        tensorhold_custody::Reason::Lost => "the engine does not have its bytes any more",
        tensorhold_custody::Reason::Other => "for a reason that only a later release knows",
    };
    let mut reasons = vec![format!("it is out of circulation: {why}")];
    reasons.extend(retired.readers.iter().map(|lease| {
        format!(
            "its bytes are still read by {}, {}",
            people.text(lease.session),
            clock.until(lease.until)
        )
    }));
    match stage {
        Stage::ToFree => {
            reasons.push("its bytes are to be removed: any process's sweep does it, or `tensorhold sweep`".to_owned());
            if retired.failed_frees > 0 {
                let times = count(retired.failed_frees.into(), "time", "times");
                reasons.push(format!(
                    "removing them has failed {times}; it is tried again: is a holder or the master away?"
                ));
            }
        }
        Stage::Lost => {
            if let Some(kept) = retired.kept {
                let until = clock.until(kept);
                reasons.push(format!(
                    "its record is kept {until}, so that bytes that come back are removed"
                ));
            }
        }
        Stage::Dead => reasons.push(match retired.keeps_its_objects() {
            true => {
                let until = retired.kept.map(|kept| clock.until(kept)).unwrap_or_default();
                format!(
                    "its bytes are kept {until}: `tensorhold dead requeue` gives it back, `tensorhold dead drop` frees it"
                )
            }
            false => "its bytes are gone: put it again, and `tensorhold dead drop` forgets the record".to_owned(),
        }),
        _ => {}
    }
    reasons
}

/// What happened, when, and who did it; in the order of time as far as it is known.
fn history(record: &SampleRecord, people: &People) -> Vec<(WallTime, String)> {
    let mut events = Vec::new();
    let mut event = |at: WallTime, what: String| events.push((at, what));
    let producer = people.text(record.record.producer());
    let by = |stamp: &Stamp| people.text(stamp.by);
    match &record.record {
        Record::Reserved(reserved) => event(reserved.reserved_at, format!("reserved by {producer}")),
        Record::Live(live) => {
            event(live.reserved_at, format!("reserved by {producer}"));
            event(live.committed_at, "committed".to_owned());
            for lease in &live.readers {
                event(lease.since, format!("read by {}", people.text(lease.session)));
            }
        }
        Record::Retired(retired) => {
            event(retired.reserved_at, format!("reserved by {producer}"));
            if !retired.committed_at.is_unknown() {
                event(retired.committed_at, "committed".to_owned());
            }
        }
    }
    for state in groups(&record.record) {
        let name = shown(state.group.as_str());
        if let GroupProgress::Leased(lease) = &state.progress {
            event(
                lease.since,
                format!("taken for {name} by {}", people.text(lease.session)),
            );
        }
        if let Some(stamp) = &state.done {
            let what = match state.progress {
                GroupProgress::Dead => "ran out of attempts",
                _ => "was done",
            };
            event(stamp.at, format!("{name} {what}, by {}", by(stamp)));
        }
    }
    if let Record::Retired(retired) = &record.record {
        if let Some(stamp) = &retired.retired {
            let reason = reason_name(retired.reason).replace('_', " ");
            event(stamp.at, format!("retired ({reason}) by {}", by(stamp)));
        }
        if let Some(stamp) = &retired.freed {
            event(stamp.at, format!("its bytes were removed by {}", by(stamp)));
        }
    }
    // Those of which the time is not known come first, in the order in which they must have happened.
    events.sort_by_key(|(at, _)| *at);
    events
}

fn item(
    record: &SampleRecord,
    people: &People,
    objects: &Objects,
    reasons: &[String],
    history: &[(WallTime, String)],
) -> Value {
    let mut value = value(record, people);
    let found = match &objects.found {
        Ok(found) => found
            .iter()
            .map(|(key, presence)| match presence {
                Presence::Present { dram, ssd, bytes } => {
                    object!("key": key, "presence": "present", "dram_copies": dram.len(), "ssd_copies": ssd.len(),
                        "dram_on": dram, "ssd_on": ssd, "bytes": bytes)
                }
                Presence::Unfinished => object!("key": key, "presence": "unfinished"),
                Presence::Absent => object!("key": key, "presence": "absent"),
                Presence::Unknown(why) => object!("key": key, "presence": "unknown", "why": why),
            })
            .collect(),
        Err(_) => Vec::new(),
    };
    if let Value::Object(fields) = &mut value {
        let why = objects.found.as_ref().err();
        fields.insert(
            "objects".to_owned(),
            object!("total": objects.total, "items": found, "next": Value::Null, "why": why),
        );
        fields.insert("reasons".to_owned(), to_value(&reasons));
        let events: Vec<Value> = history
            .iter()
            .map(|(at, what)| object!("at_ms": (!at.is_unknown()).then_some(at.0), "what": what))
            .collect();
        fields.insert("history".to_owned(), to_value(&events));
    }
    value
}

fn text(
    record: &SampleRecord,
    people: &People,
    objects: &Objects,
    reasons: &[String],
    history: &[(WallTime, String)],
    context: &Context<'_>,
) -> String {
    let since = match context.now_ms.checked_sub(record.record.since().0) {
        Some(since) if !record.record.since().is_unknown() => format!(" for {}", age(Duration::from_millis(since))),
        _ => String::new(),
    };
    let mut lines = vec![
        format!(
            "{} {}: {}, {}{since}",
            shown(record.sample.sample.as_str()),
            generation(record.sample.generation),
            bytes(record.record.bytes()),
            stage_name(record.stage),
        ),
        format!("  produced by  {}", people.text(record.record.producer())),
        format!("  bytes        {}", where_they_are(objects)),
    ];
    let labels = std::iter::once("why").chain(std::iter::repeat(""));
    lines.extend(
        labels
            .zip(reasons)
            .map(|(label, reason)| format!("  {label:<11}  {reason}")),
    );
    let labels = std::iter::once("history").chain(std::iter::repeat(""));
    let told = history
        .iter()
        .map(|(at, what)| format!("{:>14}  {what}", ago(at.0, context.now_ms)));
    lines.extend(labels.zip(told).map(|(label, line)| format!("  {label:<11}  {line}")));
    lines.join("\n") + "\n"
}

fn where_they_are(objects: &Objects) -> String {
    let found = match &objects.found {
        Ok(found) => found,
        Err(why) => return format!("unknown: {}", shown(why)),
    };
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    // How many objects are in each state, and how many of them on each holder.
    let mut states: BTreeMap<&str, (usize, BTreeMap<&str, usize>)> = BTreeMap::new();
    for (_, presence) in found {
        let (state, on): (_, &[String]) = match presence {
            Presence::Present { dram, .. } if !dram.is_empty() => ("in DRAM", dram),
            Presence::Present { ssd, .. } => ("on SSD only", ssd),
            Presence::Unfinished => ("not written to the end", &[]),
            Presence::Absent => ("not in the engine", &[]),
            Presence::Unknown(_) => ("unknown", &[]),
        };
        let (count, holders) = states.entry(state).or_default();
        *count += 1;
        for holder in on {
            *holders.entry(holder).or_default() += 1;
        }
    }
    let part = |(state, (count, holders)): (&str, (usize, BTreeMap<&str, usize>))| {
        let on: Vec<String> = holders
            .iter()
            .map(|(holder, objects)| match *objects == count {
                true => shown(holder),
                false => format!("{objects} on {}", shown(holder)),
            })
            .collect();
        match on.is_empty() {
            true => format!("{count} {state}"),
            false => format!("{count} {state} ({})", on.join(", ")),
        }
    };
    let parts: Vec<String> = states.into_iter().map(part).collect();
    let more = match objects.total - found.len() {
        0 => String::new(),
        more => format!(", {more} not asked for"),
    };
    match objects.total {
        0 => "it has no objects".to_owned(),
        total => format!(
            "{}: {}{more}",
            count(number(total), "object", "objects"),
            parts.join(", ")
        ),
    }
}
