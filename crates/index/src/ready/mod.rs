//! The samples that are ready for a group: finding some, and waiting for more without polling.
//!
//! The consumers of one process share their reads of the ready list: one of them reads as many entries as all will take
//! in a moment, and the others take from what it found. Processes read different shards, so that they try different
//! samples. An entry that was read is only a guess: another consumer may have leased the sample meanwhile, and then the
//! lease attempt fails. Those that find nothing share a watch (module `waiting`).
//!
//! A sample that this process cannot use (its terms refuse it) is skipped from then on. It stays in the list for other
//! processes. Reads continue behind such samples, however many there are.

pub(crate) mod shards;
pub(crate) mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Deadline, Error, ErrorKind, Generation, Result, SampleId};
use tensorhold_custody::{GroupName, Live, Version};

use self::shards::{ReadyEntry, ReadyList, Saw, Shard, ShardScan};
use self::waiting::{Begun, Reached, WatchTask, Woken};
use crate::record::ahead::ReadyValue;
use crate::record::codec::{decode_versioned, unreadable};
use crate::record::layout::{Layout, SHARDS, after, waits_for};
use crate::record::types::{SampleRef, Versioned};
use crate::store::{Entry, Read, Snapshot};
use crate::txn::TxnCore;
use crate::txn::session::Session;

/// How many times a caller that needs more samples than were found reads some shards, before it reads all of them.
const LOOKS_INTO_SOME: usize = 2;

/// Samples that are ready for a group.
pub(crate) enum Ready {
    Some(Reached),
    /// There were none: at this version, or (no version) as far as the watch tells.
    None(Option<Version>),
}

/// The ready lists of a store's groups, as far as this process has read them.
#[derive(Debug)]
pub(crate) struct ReadyLists {
    core: Arc<TxnCore>,
    /// The shard at which the next read of this process begins.
    next_shard: AtomicU64,
    lists: Mutex<HashMap<GroupName, Arc<ReadyList>>>,
}

impl ReadyLists {
    pub(crate) fn new(core: Arc<TxnCore>) -> Self {
        // Processes begin at different shards.
        let next_shard = AtomicU64::new(core.rng().below(SHARDS));
        Self {
            core,
            next_shard,
            lists: Mutex::default(),
        }
    }

    /// The shard at which a read begins. Reads of one process go round, so that they do not meet.
    fn next_shard(&self) -> u64 {
        self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS
    }

    pub(crate) fn list(&self, group: &GroupName) -> Arc<ReadyList> {
        Arc::clone(self.lists.lock().entry(group.clone()).or_default())
    }

    /// Some samples that are ready for the group, or the version at which there were none.
    pub(crate) async fn find(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        deadline: Deadline,
    ) -> Result<Ready> {
        let list = self.list(group);
        if let Some(found) = list.take_watched(count, self.core.clock().now()) {
            return Ok(found.map_or(Ready::None(None), Ready::Some));
        }
        let _rest = HandOutRest(&list, &self.core);
        if let Some(found) = list.take(count, self.core.clock().now(), true) {
            return Ok(Ready::Some(found));
        }
        let left = deadline.remaining(self.core.clock());
        let Ok(Ok(_looking)) = tokio::time::timeout(left, list.looking.acquire()).await else {
            let message = "other callers of this process were reading the ready list until the deadline; try again";
            return Err(Error::unavailable("index.lease_next", message));
        };
        for _ in 0..LOOKS_INTO_SOME {
            // Another caller may have read the list meanwhile.
            if let Some(found) = list.take(count, self.core.clock().now(), true) {
                return Ok(Ready::Some(found));
            }
            let look = list.next(count, self.next_shard(), self.core.clock().now());
            if look.shards.is_empty() {
                break;
            }
            self.scan_shards(group, look, &list, deadline).await?;
        }
        if let Some(found) = list.take(count, self.core.clock().now(), true) {
            return Ok(Ready::Some(found));
        }
        // New samples are most likely behind those that were seen.
        let shards = list.further();
        if shards.iter().any(|shard| shard.after.is_some()) {
            let of_each = of_each_shard(count);
            self.scan_shards(group, ShardScan { shards, of_each }, &list, deadline)
                .await?;
            if let Some(found) = list.take(count, self.core.clock().now(), false) {
                return Ok(Ready::Some(found));
            }
        }
        self.scan_all_shards(session, group, count, &list, deadline).await
    }

    /// Some samples that are ready for the group, left where they are: what the next takes of this process begin with, if
    /// each takes `at_once`. A take reads on from shard to shard, and each of them as far as it needs. Where shards have
    /// fewer samples than that, this is a guess.
    pub(crate) async fn peek(
        &self,
        group: &GroupName,
        count: usize,
        at_once: usize,
        deadline: Deadline,
    ) -> Result<Vec<SampleRef>> {
        let list = self.list(group);
        let mut samples = list.seen(self.core.clock().now());
        let all = usize::try_from(SHARDS).unwrap_or(usize::MAX);
        let first = self.next_shard.load(Ordering::Relaxed);
        let (mut from, mut looks) = (0, 0);
        while samples.len() < count && from < all {
            // A take looks into some shards, too. If these have not enough, the samples are spread thin, and the rest is
            // read at once.
            let (some, of_each) = if looks < LOOKS_INTO_SOME {
                let missing = (count - samples.len()).div_ceil(at_once.max(1));
                (missing.min(all - from), at_once.max(1))
            } else {
                (all - from, count.div_ceil(all))
            };
            let shards = (from..from + some).map(|turn| Shard {
                number: first.wrapping_add(turn as u64) % SHARDS,
                after: None,
            });
            let reads: Vec<Read> = shards.map(|shard| self.shard(group, &shard, of_each)).collect();
            let snapshot = self.read_shards(&reads, deadline).await?;
            let found = self.found_in(group, &snapshot, &list, deadline).await?;
            let new = found.into_iter().map(|entry| entry.sample);
            let new: Vec<SampleRef> = new.filter(|sample| !samples.contains(sample)).collect();
            samples.extend(new);
            from += some;
            looks += 1;
        }
        samples.truncate(count);
        Ok(samples)
    }

    /// Reads some shards. Within a shard the oldest samples come first.
    async fn scan_shards(
        &self,
        group: &GroupName,
        ShardScan { shards, of_each }: ShardScan,
        list: &ReadyList,
        deadline: Deadline,
    ) -> Result<()> {
        let begun = self.core.clock().now();
        let reads: Vec<Read> = shards.iter().map(|shard| self.shard(group, shard, of_each)).collect();
        let snapshot = self.read_shards(&reads, deadline).await?;
        let found = self.found_in(group, &snapshot, list, deadline).await?;
        let (seen, wanted) = (found.len(), of_each * shards.len());
        let saw = shards.into_iter().zip(saw(&snapshot, of_each)).collect();
        list.leave(found, self.core.clock().now());
        list.saw(saw, (seen, wanted), begun);
        Ok(())
    }

    async fn scan_all_shards(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        list: &Arc<ReadyList>,
        deadline: Deadline,
    ) -> Result<Ready> {
        let each = of_each_shard(count);
        let begun = self.core.clock().now();
        let from_the_start = |number| Shard { number, after: None };
        let shards: Vec<Shard> = (0..SHARDS).map(from_the_start).collect();
        let mut reads: Vec<Read> = shards.iter().map(|shard| self.shard(group, shard, each)).collect();
        // A caller that finds nothing learns here that its session has ended. One that finds samples learns it when it
        // leases them.
        reads.push(Read::Key(self.core.layout().alive(session.id())));
        let mut snapshot = self.read_shards(&reads, deadline).await?;
        if snapshot.entries.pop().is_none_or(|alive| alive.is_empty()) {
            return Err(session.fenced("index.lease_next"));
        }
        let mut found = self.found_in(group, &snapshot, list, deadline).await?;
        if found.is_empty() {
            found = self.look_behind(group, &snapshot, each, list, deadline).await?;
        }
        let (seen, wanted) = (found.len(), each * shards.len());
        let saw = shards.into_iter().zip(saw(&snapshot, each)).collect();
        list.saw(saw, (seen, wanted), begun);
        list.was_read(begun);
        // Other processes whose shards were empty see the same few samples: each starts at a random one.
        let from = usize::try_from(self.core.rng().below(found.len().max(1) as u64)).unwrap_or(0);
        found.rotate_left(from);
        list.leave(found.iter().cloned(), self.core.clock().now());
        Ok(match list.take(count, self.core.clock().now(), false) {
            Some(taken) => Ready::Some(taken),
            None if found.is_empty() => Ready::None(Some(snapshot.version)),
            None => {
                // Other consumers of this process are leasing all of these. Their attempts may fail, and then no watch
                // event would tell.
                found.truncate(count);
                Ready::Some(list.reach(found, self.core.clock().now()))
            }
        })
    }

    /// Reads shards. If the reply would be too large (entries may hold whole records), reads only their first entries.
    async fn read_shards(&self, reads: &[Read], deadline: Deadline) -> Result<Snapshot> {
        let left = || deadline.remaining(self.core.clock());
        let mut reads = reads.to_vec();
        loop {
            match self.core.txn_store().read(&reads, left()).await {
                Err(error) if error.kind() == ErrorKind::Capacity && fewer(&mut reads) => {}
                answer => return answer,
            }
        }
    }

    /// The samples in shards that were read. Entries that cannot be decoded go into quarantine; those of a later
    /// release are skipped.
    async fn found_in(
        &self,
        group: &GroupName,
        snapshot: &Snapshot,
        list: &ReadyList,
        deadline: Deadline,
    ) -> Result<Vec<ReadyEntry>> {
        let mut found = Vec::new();
        let mut bad = Vec::new();
        for entry in snapshot.entries.iter().flatten() {
            match parse(self.core.layout(), group, entry) {
                Ok(ready) => found.push(ready),
                Err(_) => bad.push(entry.clone()),
            }
        }
        if !bad.is_empty() {
            let read = |entry: &Entry| parse(self.core.layout(), group, entry);
            found.extend(self.core.sort_out(bad, read, deadline).await?.good);
        }
        list.without_passed_over(&mut found, self.core.clock().now());
        Ok(found)
    }

    /// Reads on, in shards of which no sample that was seen can be taken.
    async fn look_behind(
        &self,
        group: &GroupName,
        snapshot: &Snapshot,
        each: usize,
        list: &ReadyList,
        deadline: Deadline,
    ) -> Result<Vec<ReadyEntry>> {
        let full = |entries: &Vec<Entry>| {
            entries
                .last()
                .filter(|_| entries.len() >= each)
                .map(|last| after(&last.key))
        };
        let end = self.core.layout().ready(group).end;
        let mut from: Vec<String> = snapshot.entries.iter().filter_map(full).collect();
        while !from.is_empty() && !deadline.passed(self.core.clock()) {
            let ranges = from.drain(..).map(|start| Read::Range {
                keys: self
                    .core
                    .layout()
                    .rest_of_shard(&start)
                    .unwrap_or_else(|| start.clone()..end.clone()),
                limit: each,
                keys_only: false,
            });
            let reads: Vec<Read> = ranges.collect();
            let snapshot = self.read_shards(&reads, deadline).await?;
            let found = self.found_in(group, &snapshot, list, deadline).await?;
            if !found.is_empty() {
                return Ok(found);
            }
            from = snapshot.entries.iter().filter_map(full).collect();
        }
        Ok(Vec::new())
    }

    /// Quarantines ready entries that no live record calls for, out of samples that twice could not be leased. An entry
    /// that the process that leases or retires the sample does not correct is a stray, and consumers would try it for
    /// ever.
    pub(crate) async fn set_strays_aside(
        &self,
        group: &GroupName,
        strays: &[ReadyEntry],
        deadline: Deadline,
    ) -> Result<()> {
        for stray in strays {
            let SampleRef { sample, generation } = &stray.sample;
            let reads = [
                Read::Key(self.core.layout().ready_entry(sample, stray.order, group)),
                Read::Key(self.core.layout().live(sample)),
            ];
            let snapshot = self
                .core
                .txn_store()
                .read(&reads, deadline.remaining(self.core.clock()))
                .await?;
            let mut entries = snapshot.entries.into_iter().map(|entries| entries.into_iter().next());
            let (Some(Some(stray)), live) = (entries.next(), entries.next().flatten()) else {
                continue;
            };
            // Samples that were reserved ahead by one write have one place in the list: another generation's entry may be
            // there now, which nobody doubts.
            if parse(self.core.layout(), group, &stray).map_or(true, |now| now.sample.generation != *generation) {
                continue;
            }
            let live: Option<Versioned<Live>> = match live.as_ref().map(decode_versioned).transpose() {
                Ok(live) => live,
                // Only a process that can decode the record can tell.
                Err(_) => continue,
            };
            let is_called_for =
                |live: Versioned<Live>| live.record.generation == *generation && waits_for(&live.record, group);
            if !live.is_some_and(is_called_for) {
                let why = "no live sample of this generation waits for this group";
                self.core.set_aside(&stray, why, Vec::new(), deadline).await?;
            }
        }
        Ok(())
    }

    fn shard(&self, group: &GroupName, shard: &Shard, limit: usize) -> Read {
        let mut keys = self.core.layout().ready_shard(group, shard.number);
        if let Some(seen) = &shard.after {
            keys.start = after(&seen.key);
        }
        Read::Range {
            keys,
            limit,
            keys_only: false,
        }
    }

    /// Waits for up to `count` samples that become ready for the group after a version at which there were none, or (no
    /// version) from now on. [`Woken::Look`] if they have to be looked for. None if the deadline came first.
    pub(crate) async fn wait(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        version: Option<Version>,
        deadline: Deadline,
    ) -> Result<Option<Woken>> {
        let left = deadline.remaining(self.core.clock());
        if left.is_zero() {
            return Ok(None);
        }
        let list = self.list(group);
        let watch = version.map(|version| {
            let (core, group, list) = (Arc::clone(&self.core), group.clone(), Arc::downgrade(&list));
            move || WatchTask(tokio::spawn(waiting::watch(core, group, list, version, left)))
        });
        let mut waiting = match list.wait(count, self.core.clock().now(), watch) {
            Begun::Told(woken) => return Ok(Some(woken)),
            Begun::Waits(waiting) => waiting,
        };
        tokio::select! {
            woken = tokio::time::timeout(left.max(Duration::from_millis(1)), waiting.told()) => match woken {
                Ok(Woken::Failed(error)) => Err(error),
                woken => Ok(woken.ok()),
            },
            () = session.ended() => Err(session.fenced("index.lease_next")),
        }
    }
}

/// Samples that a read has found and its caller has left go to the takes that wait, also if that caller leaves.
struct HandOutRest<'a>(&'a Arc<ReadyList>, &'a TxnCore);

impl Drop for HandOutRest<'_> {
    fn drop(&mut self) {
        self.0.hand_out_rest(self.1.clock().now());
    }
}

/// Decodes an entry of the ready list.
pub(crate) fn parse(layout: &Layout, group: &GroupName, entry: &Entry) -> Result<ReadyEntry> {
    let key = &entry.key;
    let (order, sample) = place(layout, group, key)?;
    let (generation, copied) = match ReadyValue::generation(entry, order) {
        Some(generation) => (generation, None),
        None => {
            let copied: Versioned<Live> = decode_versioned(entry)?;
            if copied.record.order() != order {
                return Err(unreadable(key, "this is a copy of another sample's record"));
            }
            (copied.record.generation, Some(copied))
        }
    };
    Ok(ReadyEntry {
        sample: SampleRef { sample, generation },
        order,
        copied,
    })
}

/// The position and the sample that a key of the ready list names.
pub(crate) fn place(layout: &Layout, group: &GroupName, key: &str) -> Result<(Generation, SampleId)> {
    let order = key
        .rsplit('/')
        .nth(1)
        .and_then(|order| u64::from_str_radix(order, 16).ok());
    let parsed = order.and_then(Generation::new).zip(Layout::sample_of(key));
    // Under any other key the entry would neither be found again nor deleted.
    let parsed = parsed.filter(|(order, sample)| layout.ready_entry(sample, *order, group) == *key);
    parsed.ok_or_else(|| unreadable(key, "this key does not name a sample that waits for a group"))
}

/// How many entries to read of each shard when all shards are read. Samples are spread evenly over the shards, or are
/// so few that all of them may lie in one.
fn of_each_shard(count: usize) -> usize {
    count.div_ceil(4).max(count.min(16))
}

/// What a read showed of each shard, given the limit of entries per shard.
fn saw(snapshot: &Snapshot, limit: usize) -> impl Iterator<Item = Saw> {
    snapshot.entries.iter().map(move |entries| match entries.last() {
        Some(last) if entries.len() >= limit => Saw::UpTo(last.key.clone()),
        last => Saw::All(last.map(|last| last.key.clone())),
    })
}

/// Halves the limit of each range. False if no limit can be halved any further.
fn fewer(reads: &mut [Read]) -> bool {
    let mut halved = false;
    for read in reads {
        if let Read::Range { limit, .. } = read
            && *limit > 1
        {
            *limit = limit.div_ceil(2);
            halved = true;
        }
    }
    halved
}

#[cfg(test)]
mod tests;
