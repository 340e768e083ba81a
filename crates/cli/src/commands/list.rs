//! `ls`, and `dead ls`: records in pages.

use std::time::Duration;

use serde_json::Value;
use tensorhold_core::StoreId;
use tensorhold_custody::{GroupName, WallTime};
use tensorhold_index::{Index as _, ListPlace, RecordList, RecordQuery, SampleRecord, Stage, TxnIndex};

use super::Context;
use super::holders::{self, Copies};
use super::people::{self, People};
use super::record::{generation, stage_name, summary, value};
use crate::args::Ls;
use crate::failure::Failure;
use crate::io::Progress;
use crate::output::{Answer, draw, number, object, table};
use crate::reach::Reach;
use crate::text::{ago, bytes, count, shown};

/// How many records are looked at in one call if only some of them match.
const LOOK_AT: usize = 1000;
/// With less time than this left, what was found is shown, and where the list goes on.
const NEARLY_OVER: Duration = Duration::from_secs(2);

/// What a person wants to see.
#[derive(Debug)]
pub(crate) struct Wanted {
    query: RecordQuery,
    /// Only samples with a copy on this holder.
    holder: Option<String>,
    limit: usize,
    after: Option<ListPlace>,
    /// The command that shows the next page.
    next: &'static str,
}

impl Wanted {
    pub(crate) fn of(options: Ls, now_ms: u64) -> Result<Self, Failure> {
        let stage = options.state.map(|state| parse_stage(&state)).transpose()?;
        let group = options.group.map(GroupName::new).transpose();
        let group = group.map_err(|error| Failure::of("this is no name of a group", &error))?;
        let session = options.session.map(|text| people::parse_id(&text)).transpose()?;
        let before = options.older_than.map(|age| {
            let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
            WallTime(now_ms.saturating_sub(age))
        });
        Ok(Self {
            query: RecordQuery {
                stage,
                group,
                session,
                before,
            },
            holder: options.holder,
            limit: usize::try_from(options.limit).unwrap_or(LOOK_AT),
            after: options.after.map(ListPlace::from_text),
            next: "tensorhold ls",
        })
    }

    pub(crate) fn dead(limit: u32, after: Option<String>) -> Self {
        Self {
            query: RecordQuery {
                stage: Some(Stage::Dead),
                ..RecordQuery::default()
            },
            holder: None,
            limit: usize::try_from(limit).unwrap_or(LOOK_AT),
            after: after.map(ListPlace::from_text),
            next: "tensorhold dead ls",
        }
    }

    /// Whether records are skipped because they do not match.
    fn is_narrow(&self) -> bool {
        self.holder.is_some()
            || self.query.group.is_some()
            || self.query.session.is_some()
            || self.query.before.is_some()
    }
}

/// The states by which samples can be listed.
pub(crate) const STATES: [&str; 6] = ["reserved", "live", "retired", "to_free", "lost", "dead"];

fn parse_stage(text: &str) -> Result<Stage, Failure> {
    let found = Stage::ALL
        .into_iter()
        .find(|stage| text == stage_name(*stage) || text == stage.name());
    found.ok_or_else(|| {
        let what = format!("there is no state {:?}", shown(text));
        Failure::usage(
            what,
            format!("the states are {}", STATES.join(", ")),
            "name one of these",
        )
    })
}

/// What was found of a list.
struct Found {
    records: Vec<SampleRecord>,
    next: Option<ListPlace>,
    looked_at: usize,
    later: usize,
}

pub(crate) async fn run(
    reach: &Reach,
    wanted: Wanted,
    context: &Context<'_>,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let store = progress.wait("asking etcd", reach.store()).await?;
    let index = reach.index(&store).await?;
    let holder = match &wanted.holder {
        Some(holder) => Some(holders::find(reach, holder, progress).await?.segment_name),
        None => None,
    };
    let list = List {
        reach,
        store: &store,
        index: &index,
        wanted: &wanted,
        holder,
    };
    let found = list.read(progress).await?;
    let people = progress.wait("reading sessions", People::read(reach, &index)).await?;
    let mut rows = table(context.output, &["sample", "generation", "state", "bytes", "since", ""]);
    for one in &found.records {
        rows.add_row([
            shown(one.sample.sample.as_str()).into(),
            generation(one.sample.generation).into(),
            stage_name(one.stage).into(),
            number(bytes(one.record.bytes())),
            ago(one.record.since().0, context.now_ms).into(),
            summary(one, &people).into(),
        ]);
    }
    let listed = count(
        u64::try_from(found.records.len()).unwrap_or(u64::MAX),
        "sample",
        "samples",
    );
    let mut text = match found.records.is_empty() {
        true => String::new(),
        false => format!("{}\n", draw(&rows)),
    };
    let looked = if wanted.is_narrow() {
        format!(" ({} looked at)", found.looked_at)
    } else {
        String::new()
    };
    text.push_str(&format!("{listed} of store {}{looked}\n", shown(store.as_str())));
    if found.later > 0 {
        text.push_str(&format!("{} records of a later release are not shown\n", found.later));
    }
    if let Some(next) = &found.next {
        text.push_str(&format!(
            "there is more: {} … --after '{}'\n",
            wanted.next,
            shown(next.as_text())
        ));
    }
    let items: Vec<Value> = found.records.iter().map(|one| value(one, &people)).collect();
    let value = object!("store": store.as_str(), "items": items, "next": found.next.as_ref().map(ListPlace::as_text),
        "looked_at": found.looked_at, "later": found.later,);
    Ok(Answer::new(value, text))
}

/// A list that is read.
struct List<'a> {
    reach: &'a Reach,
    store: &'a StoreId,
    index: &'a TxnIndex,
    wanted: &'a Wanted,
    /// The whole name of the holder that is wanted.
    holder: Option<String>,
}

impl List<'_> {
    /// Reads until there are enough, or the list or the time is over.
    async fn read(&self, progress: &mut Progress<'_>) -> Result<Found, Failure> {
        let wanted = self.wanted;
        let mut found = Found {
            records: Vec::new(),
            next: wanted.after.clone(),
            looked_at: 0,
            later: 0,
        };
        let mut look_at = if wanted.is_narrow() { LOOK_AT } else { wanted.limit };
        loop {
            let left = wanted.limit - found.records.len();
            let part = self.part(&found, look_at.max(left), progress).await?;
            if part.records.len() > left {
                // A place lies behind what was looked at, so the part is read again, with no more than there is room for.
                look_at = left;
                found.take(self.part(&found, left, progress).await?);
            } else {
                found.take(part);
            }
            let is_late = self.reach.left() < NEARLY_OVER;
            if found.next.is_none() || found.records.len() >= wanted.limit || is_late {
                return Ok(found);
            }
        }
    }

    /// What matches among the next `limit` records.
    async fn part(&self, found: &Found, limit: usize, progress: &mut Progress<'_>) -> Result<RecordList, Failure> {
        let what = format!("reading records, {} so far", found.looked_at);
        let left = self.reach.left();
        let reading = self.index.records(&self.wanted.query, found.next.as_ref(), limit, left);
        let part = progress.wait(&what, reading).await;
        let mut part = part.map_err(|error| self.reach.failure(&error))?;
        if let Some(holder) = &self.holder {
            let seen = progress
                .wait(&what, holders::copies(self.reach, self.store, part.records))
                .await?;
            let is_there = |one: &Copies| one.objects.iter().any(|object| object.is_on(holder));
            part.records = seen.into_iter().filter(is_there).map(|one| one.record).collect();
        }
        Ok(part)
    }
}

impl Found {
    fn take(&mut self, part: RecordList) {
        self.records.extend(part.records);
        self.next = part.next;
        self.looked_at += part.looked_at;
        self.later += part.later;
    }
}
