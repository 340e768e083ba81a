//! A record of a sample, for people and for programs.

use std::time::Duration;

use serde_json::Value;
use tensorhold_core::{Generation, StoreId};
use tensorhold_custody::{GroupState, Lease, Progress, Reason, Stamp, Tick, WallTime};
use tensorhold_features::object_keys;
use tensorhold_index::{Record, SampleRecord, Stage};

use super::people::{People, id};
use crate::output::object;
use crate::text::{age, shown};

/// The shared clock of a store, for the ends of leases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedClock {
    pub(crate) now: Tick,
    pub(crate) tick: Duration,
}

impl SharedClock {
    /// When a tick ends, in words. The clock moves only while a process sweeps.
    pub(crate) fn until(&self, tick: Tick) -> String {
        match tick.0.checked_sub(self.now.0) {
            Some(left) => {
                let left = u32::try_from(left.saturating_add(1)).unwrap_or(u32::MAX);
                format!("for {} more", age(self.tick.saturating_mul(left)))
            }
            None => "past its end".to_owned(),
        }
    }
}

/// The name of a stage, in JSON.
pub(crate) fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::ToFree => "to_free",
        stage => stage.name(),
    }
}

/// Why a sample was retired, in one word.
pub(crate) fn reason_name(reason: Reason) -> &'static str {
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

fn progress_name(progress: &Progress) -> &'static str {
    match progress {
        Progress::Waiting => "waiting",
        Progress::Leased(_) => "leased",
        Progress::Acked => "acked",
        Progress::Dead => "dead",
    }
}

/// A time, or nothing if it is not known.
fn ms(time: WallTime) -> Option<u64> {
    (!time.is_unknown()).then_some(time.0)
}

fn stamp(stamp: Option<Stamp>) -> Value {
    match stamp {
        Some(stamp) => object!("at_ms": ms(stamp.at), "by": id(stamp.by)),
        None => Value::Null,
    }
}

fn lease(lease: &Lease, people: &People) -> Value {
    object!("held_by": people.value(lease.session), "since_ms": ms(lease.since), "until_tick": lease.until.0)
}

fn group(state: &GroupState, people: &People) -> Value {
    let held = match &state.progress {
        Progress::Leased(held) => lease(held, people),
        _ => Value::Null,
    };
    object!("group": state.group.as_str(), "progress": progress_name(&state.progress), "attempts": state.attempts,
        "lease": held, "done": stamp(state.done),)
}

/// The groups of a record.
pub(crate) fn groups(record: &Record) -> &[GroupState] {
    match record {
        Record::Reserved(_) => &[],
        Record::Live(live) => &live.groups,
        Record::Retired(retired) => retired.letter.as_ref().map_or(&[][..], |letter| &letter.groups),
    }
}

/// The keys of the objects that a record's sample has, or may have been given.
pub(crate) fn keys(store: &StoreId, found: &SampleRecord) -> tensorhold_core::Result<Vec<String>> {
    let (nonce, plan) = match &found.record {
        Record::Reserved(record) => (record.nonce, record.plan.as_str()),
        Record::Live(record) => (record.nonce, ""),
        Record::Retired(record) => (record.nonce, record.plan.as_str()),
    };
    let keys = object_keys(store, &found.sample, nonce, found.description.as_deref(), plan)?;
    Ok(keys.iter().map(ToString::to_string).collect())
}

/// A record for programs: the schema of docs/command.md.
pub(crate) fn value(found: &SampleRecord, people: &People) -> Value {
    let record = &found.record;
    let reserved;
    let (mut committed, mut retired, mut freed) = (None, Value::Null, Value::Null);
    let (mut reason, mut readers, mut failed_frees, mut retain, mut max_attempts) = (None, Vec::new(), 0, None, None);
    let (mut until_tick, mut kept_until_tick) = (None, None);
    match record {
        Record::Reserved(record) => {
            reserved = ms(record.reserved_at);
            until_tick = Some(record.until.0);
        }
        Record::Live(record) => {
            (reserved, committed) = (ms(record.reserved_at), ms(record.committed_at));
            readers = record.readers.iter().map(|one| lease(one, people)).collect();
            (retain, max_attempts) = (Some(record.retain), Some(record.max_attempts));
        }
        Record::Retired(record) => {
            (reserved, committed) = (ms(record.reserved_at), ms(record.committed_at));
            (retired, freed) = (stamp(record.retired), stamp(record.freed));
            reason = Some(reason_name(record.reason));
            readers = record.readers.iter().map(|one| lease(one, people)).collect();
            failed_frees = record.failed_frees;
            kept_until_tick = record.kept.map(|tick| tick.0);
            max_attempts = record.letter.as_ref().map(|letter| letter.max_attempts);
        }
    }
    object!("sample": found.sample.sample.as_str(),
        "generation": found.sample.generation.get(),
        "state": stage_name(found.stage),
        "bytes": record.bytes(),
        "since_ms": ms(record.since()),
        "producer": people.value(record.producer()),
        "reserved_ms": reserved,
        "reserved_until_tick": until_tick,
        "committed_ms": committed,
        "retired": retired,
        "reason": reason,
        "freed": freed,
        "failed_frees": failed_frees,
        "kept_until_tick": kept_until_tick,
        "retain": retain,
        "max_attempts": max_attempts,
        "groups": groups(record).iter().map(|state| group(state, people)).collect::<Vec<_>>(),
        "readers": readers,)
}

/// What is going on with a record, in a few words: one cell of a table.
pub(crate) fn summary(found: &SampleRecord, people: &People) -> String {
    match &found.record {
        Record::Reserved(record) => match people.is_alive(record.session) {
            true => "is being written".to_owned(),
            false => "its producer has ended".to_owned(),
        },
        Record::Live(live) if live.groups.is_empty() => "for no group".to_owned(),
        Record::Live(live) => {
            let parts: Vec<String> = live
                .groups
                .iter()
                .map(|state| group_summary(state, live.max_attempts))
                .collect();
            let readers = match live.readers.len() {
                0 => String::new(),
                count => format!("; {count} reading"),
            };
            parts.join(", ") + &readers
        }
        Record::Retired(record) => {
            let mut text = reason_name(record.reason).replace('_', " ");
            if !record.readers.is_empty() {
                text.push_str(&format!("; {} reading", record.readers.len()));
            }
            if record.failed_frees > 0 {
                text.push_str(&format!("; removal failed {} times", record.failed_frees));
            }
            if found.stage == Stage::Dead {
                let objects = if record.keeps_its_objects() {
                    "; its bytes are kept"
                } else {
                    "; its bytes are gone"
                };
                text.push_str(objects);
            }
            text
        }
    }
}

fn group_summary(state: &GroupState, max_attempts: u32) -> String {
    let name = shown(state.group.as_str());
    let attempts = match state.attempts {
        0 | 1 => String::new(),
        many => format!(" (attempt {many} of {max_attempts})"),
    };
    match state.progress {
        Progress::Waiting if state.attempts > 0 => {
            format!(
                "{name} waits again ({} of {max_attempts} attempts used)",
                state.attempts
            )
        }
        Progress::Waiting => format!("{name} waits"),
        Progress::Leased(_) => format!("{name} has it{attempts}"),
        Progress::Acked => format!("{name} is done"),
        Progress::Dead => format!("{name} is out of attempts"),
    }
}

/// A sample and its generation, as it is shown.
pub(crate) fn generation(generation: Generation) -> String {
    format!("g{}", generation.get())
}
