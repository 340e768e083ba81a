//! What a store has, for the people who operate it: records in pages, all generations of one sample, counts, and what the
//! budget is used for. Nothing is changed by it, except that a record which cannot be decoded goes into quarantine, as
//! everywhere.
//!
//! A page looks at no more records than it was asked for, and returns those that match. Of a million records the first
//! page costs as much as of ten (to etcd, a walk over the keys of the range in its memory).

use tensorhold_core::{Deadline, Generation, Result, SampleId};
use tensorhold_custody::{Live, Reserved, Retired, SessionId};

use crate::index::TxnIndex;
use crate::record::codec::{decode, decode_versioned, unreadable};
use crate::record::layout::{Layout, after};
use crate::record::types::{
    BudgetUse, Counts, ListPlace, Record, RecordList, RecordQuery, SampleRecord, SampleRef, Stage, Versioned,
};
use crate::store::{Entry, Read};
use crate::txn::pages::MOST_BYTES;

/// Keys in one read of a list that is read to its end.
const PAGE: usize = 1000;
/// How many lost samples are looked through for one sample. Their keys begin with a tick, not with their names.
const MOST_LOST: usize = 10_000;
/// How many generations of one sample are shown of each stage.
const MOST_GENERATIONS: usize = 64;

impl TxnIndex {
    pub(crate) async fn do_records(
        &self,
        query: &RecordQuery,
        from: Option<&ListPlace>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<RecordList> {
        let (mut list, limit) = (RecordList::default(), limit.max(1));
        let layout = self.core.layout();
        let wanted = |stage: &Stage| query.stage.is_none_or(|only| only == *stage);
        // The lists in the order of their keys, so that a place says which of them it is in.
        let mut stages: Vec<_> = Stage::ALL.into_iter().filter(wanted).collect();
        stages.sort_by_key(|stage| layout.all_of(*stage).start);
        for stage in stages {
            let mut range = layout.listed(stage);
            if let Some(ListPlace(last)) = from {
                if *last >= range.end {
                    continue;
                }
                range.start = range.start.max(after(last));
            }
            let left = limit - list.looked_at;
            let keys = self.core.read_keys([range], left, deadline).await?;
            let keys = keys.into_iter().next().unwrap_or_default();
            let (entries, looked_at) = self.core.read_run(&keys, MOST_BYTES, deadline).await?;
            let read = |entry: &Entry| record_of(stage, entry);
            let sorted = self.core.sort_out(entries, read, deadline).await?;
            list.looked_at += looked_at;
            list.later += sorted.later;
            list.records
                .extend(sorted.good.into_iter().filter(|found| matches(query, &found.record)));
            let is_all = looked_at == keys.len() && keys.len() < left;
            if let Some(last) = looked_at.checked_sub(1).filter(|_| !is_all) {
                list.next = Some(ListPlace(keys[last].clone()));
                return Ok(list);
            }
            if list.looked_at >= limit {
                list.next = Some(ListPlace(layout.all_of(stage).end));
                return Ok(list);
            }
        }
        Ok(list)
    }

    pub(crate) async fn do_records_of(&self, sample: &SampleId, deadline: Deadline) -> Result<Vec<SampleRecord>> {
        let layout = self.core.layout();
        let generations = |stage| Read::Range {
            keys: layout.all_of_sample(stage, sample),
            limit: MOST_GENERATIONS,
            keys_only: false,
        };
        let named = [Stage::Retired, Stage::ToFree, Stage::Dead];
        let mut reads = vec![Read::Key(layout.pending(sample)), Read::Key(layout.live(sample))];
        reads.extend(named.map(generations));
        let left = deadline.remaining(self.core.clock());
        let snapshot = self.core.txn_store().read(&reads, left).await?;
        let stages = [Stage::Reserved, Stage::Live].into_iter().chain(named);
        let mut found = Vec::new();
        for (stage, entries) in stages.zip(snapshot.entries) {
            let read = |entry: &Entry| record_of(stage, entry);
            found.extend(self.core.sort_out(entries, read, deadline).await?.good);
        }
        let lost = self
            .core
            .read_keys([layout.all_of(Stage::Lost)], MOST_LOST, deadline)
            .await?;
        let mut lost: Vec<String> = lost.into_iter().flatten().collect();
        lost.retain(|key| Layout::parse_retired(key).is_some_and(|(name, _)| name == *sample));
        lost.truncate(MOST_GENERATIONS);
        let (entries, _) = self.core.read_values(&lost, MOST_BYTES, deadline).await?;
        let read = |entry: &Entry| record_of(Stage::Lost, entry);
        found.extend(self.core.sort_out(entries, read, deadline).await?.good);
        found.sort_by_key(|record| record.sample.generation);
        Ok(found)
    }

    pub(crate) async fn do_counts(&self, deadline: Deadline) -> Result<Counts> {
        let layout = self.core.layout();
        let mut ranges: Vec<_> = Stage::ALL.into_iter().map(|stage| layout.listed(stage)).collect();
        ranges.extend([layout.all_alive(), layout.all_existed(), layout.shared_queue()]);
        let left = deadline.remaining(self.core.clock());
        let counted = self.core.txn_store().count(&ranges, left).await?;
        let at = |at: usize| counted.get(at).copied().unwrap_or_default();
        let (sessions, existed) = (at(6), at(7));
        Ok(Counts {
            records: std::array::from_fn(at),
            sessions,
            ended_sessions: existed.saturating_sub(sessions),
            waiting: at(8),
        })
    }

    pub(crate) async fn do_budget_use(&self, deadline: Deadline) -> Result<Option<BudgetUse>> {
        let layout = self.core.layout();
        let reads = [
            Read::Key(layout.budget()),
            Read::Oldest {
                keys: layout.shared_queue(),
                limit: PAGE,
            },
        ];
        let left = deadline.remaining(self.core.clock());
        let snapshot = self.core.txn_store().read(&reads, left).await?;
        let entries = |at: usize| snapshot.entries.get(at).map(Vec::as_slice).unwrap_or_default();
        let Some(budget) = entries(0).first() else {
            return Ok(None);
        };
        let waiting = entries(1).iter().filter_map(|entry| crate::quota::wants(layout, entry));
        let mut found = BudgetUse {
            bytes: decode(budget)?,
            free: 0,
            waiting: waiting.collect(),
        };
        let mut range = layout.deposits();
        loop {
            let keys = self.core.read_keys([range.clone()], PAGE, deadline).await?;
            let keys = keys.into_iter().next().unwrap_or_default();
            let (deposits, looked_at) = self.core.read_run(&keys, MOST_BYTES, deadline).await?;
            // A deposit that cannot be decoded is no free byte, and a sweep moves it aside.
            let free = deposits.iter().filter_map(|entry| decode::<u64>(entry).ok());
            found.free = free.fold(found.free, u64::saturating_add);
            match looked_at.checked_sub(1).map(|last| &keys[last]) {
                Some(last) if looked_at < keys.len() || keys.len() == PAGE => range.start = after(last),
                _ => return Ok(Some(found)),
            }
        }
    }
}

fn matches(query: &RecordQuery, record: &Record) -> bool {
    let in_group = query.group.as_ref().is_none_or(|group| {
        let groups = match record {
            Record::Reserved(_) => &[],
            Record::Live(live) => live.groups.as_slice(),
            Record::Retired(retired) => retired.letter.as_ref().map_or(&[][..], |letter| &letter.groups),
        };
        groups.iter().any(|state| state.group == *group)
    });
    let of_session = query.session.is_none_or(|session| is_of(record, session));
    let old = query.before.is_none_or(|before| record.since() < before);
    in_group && of_session && old
}

fn is_of(record: &Record, session: SessionId) -> bool {
    record.producer() == session || record.leases().iter().any(|lease| lease.session == session)
}

/// The record of an entry that is in the list of a stage.
pub(crate) fn record_of(stage: Stage, entry: &Entry) -> Result<SampleRecord> {
    let named = |sample: Option<SampleId>| sample.ok_or_else(|| unreadable(&entry.key, "its key names no sample"));
    let found = |sample, generation, record, version, description| SampleRecord {
        sample: SampleRef { sample, generation },
        stage,
        record,
        version,
        description,
    };
    match stage {
        Stage::Reserved => {
            let read: Versioned<Reserved> = decode_versioned(entry)?;
            let generation = read.record.generation.or_else(|| Generation::new(read.version.0));
            let generation = generation.ok_or_else(|| unreadable(&entry.key, "it has no generation"))?;
            let sample = named(Layout::sample_of(&entry.key))?;
            let record = Record::Reserved(read.record);
            Ok(found(sample, generation, record, read.version, None))
        }
        Stage::Live => {
            let read: Versioned<Live> = decode_versioned(entry)?;
            let (sample, generation) = (named(Layout::sample_of(&entry.key))?, read.record.generation);
            let record = Record::Live(read.record);
            Ok(found(sample, generation, record, read.version, read.description))
        }
        Stage::Retired | Stage::ToFree | Stage::Lost | Stage::Dead => {
            let read: Versioned<Retired> = decode_versioned(entry)?;
            let parsed = Layout::parse_retired(&entry.key);
            let (sample, generation) = parsed.ok_or_else(|| unreadable(&entry.key, "its key names no sample"))?;
            let record = Record::Retired(read.record);
            Ok(found(sample, generation, record, read.version, read.description))
        }
    }
}
