//! What waits for each group, and since when, for the people who operate a store.
//!
//! The ready lists tell it: etcd counts their entries, and the first entry of each shard is the oldest there. The record of
//! the oldest of all says when it was committed. Nothing is changed. What it costs etcd is a few walks over the keys of the
//! ready lists in its memory, as counting records does; what it reads does not grow with them.

use std::ops::Range;

use tensorhold_core::{Deadline, Generation, Result};
use tensorhold_custody::{GroupName, WallTime};

use crate::index::TxnIndex;
use crate::ops::look::view;
use crate::ready::place;
use crate::record::layout::{SHARDS, waits_for};
use crate::record::types::Backlog;
use crate::store::prefix;

/// How many of a group's oldest samples are read: consumers may take some of them meanwhile.
const OLDEST: usize = 4;

impl TxnIndex {
    pub(crate) async fn do_backlog(&self, most: usize, deadline: Deadline) -> Result<Vec<Backlog>> {
        let layout = self.core.layout();
        let all = layout.all_ready();
        let mut rest = all.clone();
        let mut groups: Vec<(GroupName, Range<String>)> = Vec::new();
        while groups.len() < most {
            let first = self.core.read_keys([rest.clone()], 1, deadline).await?;
            let Some(key) = first.into_iter().flatten().next() else {
                break;
            };
            let Some(name) = key.get(all.start.len()..).and_then(|rest| rest.split('/').next()) else {
                break;
            };
            rest.start = prefix(format!("{}{name}/", all.start)).end;
            // Under any other key no consumer looks.
            if let Ok(group) = GroupName::new(name) {
                let range = layout.ready(&group);
                groups.push((group, range));
            }
        }
        let ranges: Vec<_> = groups.iter().map(|(_, range)| range.clone()).collect();
        let left = deadline.remaining(self.core.clock());
        let counts = self.core.txn_store().count(&ranges, left).await?;
        let mut backlog = Vec::with_capacity(groups.len());
        for ((group, _), waiting) in groups.into_iter().zip(counts) {
            let oldest = self.oldest_of(&group, deadline).await?;
            backlog.push(Backlog { group, waiting, oldest });
        }
        Ok(backlog)
    }

    /// When the sample was committed that is first in a group's line; none if that is not known.
    async fn oldest_of(&self, group: &GroupName, deadline: Deadline) -> Result<Option<WallTime>> {
        let layout = self.core.layout();
        let shards = (0..SHARDS).map(|shard| layout.ready_shard(group, shard));
        let firsts = self.core.read_keys(shards, 1, deadline).await?;
        let mut firsts: Vec<(Generation, _)> = firsts
            .into_iter()
            .flatten()
            .filter_map(|key| place(layout, group, &key).ok())
            .collect();
        firsts.sort_unstable_by_key(|(order, _)| *order);
        firsts.truncate(OLDEST);
        let keys = firsts.iter().map(|(_, sample)| layout.live(sample));
        let found = self.core.read_all(keys, deadline).await?;
        for ((order, sample), entries) in firsts.into_iter().zip(found) {
            let read = self
                .core
                .sort_out(entries, |entry| view(&sample, entry), deadline)
                .await?;
            let record = read.good.into_iter().map(|live| live.record.record).next();
            let waits = record.filter(|live| live.order() == order && waits_for(live, group));
            if let Some(live) = waits {
                return Ok(Some(live.committed_at).filter(|at| !at.is_unknown()));
            }
        }
        Ok(None)
    }
}
