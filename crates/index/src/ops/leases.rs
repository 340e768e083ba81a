//! Which leases are held now, for the people who operate a store.
//!
//! Leases are found by the grant lists ([`crate::record::grants`]), of which there are as many as transactions that granted
//! something, however many records the store has. Their keys say until when they are granted: of more than one call
//! opens, those are opened that end first. A grant list may name leases that are over, so what counts is what the samples'
//! records say. Nothing is changed.

use std::collections::BTreeSet;

use tensorhold_core::{Deadline, Result};
use tensorhold_custody::{Lease, Progress, WallTime};

use crate::index::TxnIndex;
use crate::ops::records::record_of;
use crate::ops::walk::{PAGE, PAGES};
use crate::record::grants::GrantList;
use crate::record::layout::after;
use crate::record::types::{HeldLease, LeaseList, Record, SampleRecord, Stage};
use crate::store::Entry;
use crate::txn::pages::MOST_BYTES;

/// Grant lists that one call opens.
const MOST_LISTS: usize = 512;
/// Samples whose records one call reads.
const MOST_SAMPLES: usize = 1024;

impl TxnIndex {
    pub(crate) async fn do_leases(&self, limit: usize, deadline: Deadline) -> Result<LeaseList> {
        let layout = self.core.layout();
        let (mut lists, mut complete) = self.grant_lists(deadline).await?;
        complete &= lists.len() <= MOST_LISTS;
        // What follows the session in a key is the tick.
        let root = layout.all_held().start.len();
        let until = |key: &String| {
            key.get(root..)
                .and_then(|rest| rest.split_once('/'))
                .map(|(_, rest)| rest.to_owned())
        };
        lists.sort_by_cached_key(until);
        lists.truncate(MOST_LISTS);
        let (entries, looked_at) = self.core.read_values(&lists, MOST_BYTES, deadline).await?;
        complete &= looked_at == lists.len();
        let named = self.core.sort_out(entries, GrantList::read, deadline).await?;
        complete &= named.later == 0;
        // Reservations are no leases.
        let named = named.good.into_iter().flatten();
        let mut held = BTreeSet::new();
        // In the order of the lists: those that end first.
        for one in named.filter_map(|one| Some((one.sample, one.generation?))) {
            if held.len() == MOST_SAMPLES && !held.contains(&one) {
                complete = false;
                break;
            }
            held.insert(one);
        }
        let live: BTreeSet<String> = held.iter().map(|(sample, _)| layout.live(sample)).collect();
        let retired = held
            .iter()
            .map(|(sample, generation)| layout.retired_with_readers(sample, *generation));
        let mut leases = Vec::new();
        for (stage, keys) in [
            (Stage::Live, live.into_iter().collect::<Vec<_>>()),
            (Stage::Retired, retired.collect()),
        ] {
            let (entries, looked_at) = self.core.read_values(&keys, MOST_BYTES, deadline).await?;
            complete &= looked_at == keys.len();
            let read = |entry: &Entry| record_of(stage, entry);
            let records = self.core.sort_out(entries, read, deadline).await?;
            complete &= records.later == 0;
            leases.extend(records.good.iter().flat_map(leases_of));
        }
        let age = |held: &HeldLease| {
            let since = Some(held.lease.since).filter(|since| !since.is_unknown());
            (since.unwrap_or(WallTime(u64::MAX)), held.lease.until)
        };
        leases.sort_by_key(age);
        leases.truncate(limit);
        Ok(LeaseList { leases, complete })
    }

    /// The keys of grant lists, and whether these are all.
    async fn grant_lists(&self, deadline: Deadline) -> Result<(Vec<String>, bool)> {
        let mut range = self.core.layout().all_held();
        let mut lists = Vec::new();
        for _ in 0..PAGES {
            let page = self.core.read_keys([range.clone()], PAGE, deadline).await?;
            let page = page.into_iter().next().unwrap_or_default();
            let last = page.last().filter(|_| page.len() == PAGE).cloned();
            lists.extend(page);
            match last {
                Some(last) => range.start = after(&last),
                None => return Ok((lists, true)),
            }
        }
        Ok((lists, false))
    }
}

fn leases_of(found: &SampleRecord) -> Vec<HeldLease> {
    let held = |group, attempts, lease: &Lease| HeldLease {
        sample: found.sample.clone(),
        bytes: found.record.bytes(),
        group,
        attempts,
        lease: *lease,
    };
    match &found.record {
        Record::Reserved(_) => Vec::new(),
        Record::Live(live) => {
            let of_groups = live.groups.iter().filter_map(|state| match &state.progress {
                Progress::Leased(lease) => Some(held(Some(state.group.clone()), state.attempts, lease)),
                Progress::Waiting | Progress::Acked | Progress::Dead => None,
            });
            of_groups
                .chain(live.readers.iter().map(|lease| held(None, 0, lease)))
                .collect()
        }
        Record::Retired(retired) => retired.readers.iter().map(|lease| held(None, 0, lease)).collect(),
    }
}
