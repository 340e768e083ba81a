//! Leasing the next samples of a group, and waiting for some without polling.
//!
//! The consumers of one process share their reads of the ready list: one of them reads as many entries as all will take
//! in a moment, and the others take from what it found. Processes read different shards, so that they try different
//! samples. An entry that was read is only a guess: another consumer may have leased the sample meanwhile, and then the
//! lease attempt fails.
//!
//! A sample that this process cannot use (its terms refuse it) is skipped from then on. It stays in the list for other
//! processes. Reads continue behind such samples, however many there are.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, Generation, Result, Retry};
use holdfast_custody::{GroupName, Live, Version};

use parking_lot::Mutex;

use crate::index::TxnIndex;
use crate::layout::{Layout, SHARDS, after, waits_for};
use crate::record::{decode_versioned, unreadable};
use crate::session::Session;
use crate::shards::{Reached, ReadyEntry, ReadyList, Saw, Shard, ShardScan};
use crate::store::{Entry, Read, Snapshot};
use crate::sweep::is_about_one_record;
use crate::types::{LeaseGrant, SampleRef, Terms, Versioned};

/// An error this close to the deadline counts as caused by the deadline. More than zero because clocks and timers
/// round.
const CUT_SHORT: Duration = Duration::from_millis(10);

/// How many times a caller that needs more samples than were found reads some shards, before it reads all of them.
const LOOKS_INTO_SOME: usize = 2;

/// The result of one attempt to read the ready list and lease from it.
enum Next {
    Taken(Vec<LeaseGrant>),
    /// Another consumer was faster, or new samples have come: try again.
    Again,
    /// The deadline passed and no sample came.
    Nothing,
}

/// Samples that are ready for a group.
enum Ready {
    Some(Reached),
    /// There were none, at this version.
    None(Version),
}

impl TxnIndex {
    /// Leases up to `count` samples. Waits for the first one until the deadline; an empty result means that none came.
    pub(crate) async fn do_lease_next(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        terms: Terms<'_>,
        deadline: Deadline,
    ) -> Result<Vec<LeaseGrant>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut looked = false;
        loop {
            match self
                .look_and_take(session, group, count, ticks, terms, &mut looked, deadline)
                .await
            {
                Ok(Next::Taken(held)) => return Ok(held),
                Ok(Next::Nothing) => return Ok(Vec::new()),
                Ok(Next::Again) if deadline.passed(self.clock()) => return Ok(Vec::new()),
                Ok(Next::Again) => {}
                // The last attempt was cut short by the deadline; the one before it found nothing to lease.
                Err(error)
                    if looked
                        && (error.kind(), error.retry()) == (ErrorKind::Unavailable, Retry::Safe)
                        && deadline.remaining(self.clock()) < CUT_SHORT =>
                {
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Leases samples that are ready; if there are none, waits for some. Sets `looked` once the list has been read.
    ///
    /// When the caller has left, reads and waits end at once. The lease attempt does not: no caller would know of the
    /// leases that it was granted.
    #[expect(clippy::too_many_arguments, reason = "one step of a wait")]
    async fn look_and_take(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        terms: Terms<'_>,
        looked: &mut bool,
        deadline: Deadline,
    ) -> Result<Next> {
        let ready = tokio::select! {
            biased;
            () = terms.cancelled.cancelled() => return Ok(Next::Nothing),
            ready = self.ready(session, group, count, deadline) => ready?,
        };
        let first = !std::mem::replace(looked, true);
        let ready = match ready {
            Ready::Some(ready) => ready,
            Ready::None(version) => {
                let came = tokio::select! {
                    biased;
                    () = terms.cancelled.cancelled() => false,
                    came = self.wait_for_ready(session, group, version, deadline) => came?,
                };
                return Ok(if came { Next::Again } else { Next::Nothing });
            }
        };
        // Too close to the deadline to lease: the outcome might stay ambiguous. A call that was this short from the
        // start may try.
        if !first && deadline.remaining(self.clock()) < CUT_SHORT {
            return Ok(Next::Nothing);
        }
        let mut held = Vec::with_capacity(ready.len());
        let mut failed = None;
        let (list, now) = (self.ready_list(group), self.clock().now());
        let mut strays = Vec::new();
        let refused = Mutex::new(Vec::new());
        let usable = |sample: &SampleRef, description: &[u8]| {
            let usable = (terms.usable)(sample, description);
            if usable.is_err() {
                refused.lock().push(sample.clone());
            }
            usable
        };
        let terms = Terms {
            usable: &usable,
            ..terms
        };
        // The copies in the ready list allow a first attempt without reading the records.
        let results = self
            .do_lease(session, &ready, Some(group), ticks, terms, deadline)
            .await;
        for (found, result) in ready.iter().zip(results) {
            let error = match result {
                Ok(lease) => {
                    held.push(lease);
                    continue;
                }
                Err(error) => error,
            };
            let is_gone = match error.kind() {
                ErrorKind::Conflict | ErrorKind::NotFound => true,
                ErrorKind::Fenced => session.is_alive() && error.fact("session").is_none(),
                _ => false,
            };
            if is_gone {
                // Another consumer was faster, or the sample was retired in between. If that happens twice, the entry
                // may be a stray.
                if list.doubt(&found.sample) {
                    strays.push(found.sample.clone());
                }
            } else if is_about_one_record(&error) || refused.lock().contains(&found.sample) {
                // Written by a later release, refused by the terms, or unusable in itself: take other samples
                // meanwhile.
                tracing::debug!(%error, sample = %found.sample.sample, "a sample is passed over");
                list.pass_over(&found.sample, now);
            } else {
                failed = Some(error);
            }
        }
        drop(ready);
        if !strays.is_empty()
            && let Err(error) = self.set_strays_aside(group, &strays, deadline).await
        {
            tracing::debug!(%error, "stray entries of a ready list could not be set aside; they stay for now");
        }
        // Leases that were granted beside an error must be returned, or no caller would know of them.
        match failed {
            _ if !held.is_empty() => Ok(Next::Taken(held)),
            Some(error) => Err(error),
            None => Ok(Next::Again),
        }
    }

    /// Some samples that are ready for the group, or the version at which there were none.
    async fn ready(&self, session: &Session, group: &GroupName, count: usize, deadline: Deadline) -> Result<Ready> {
        let list = self.ready_list(group);
        if let Some(found) = list.take(count, self.clock().now(), true) {
            return Ok(Ready::Some(found));
        }
        let left = deadline.remaining(self.clock());
        let Ok(Ok(_looking)) = tokio::time::timeout(left, list.looking.acquire()).await else {
            let message = "other callers of this process were reading the ready list until the deadline; try again";
            return Err(Error::unavailable("index.lease_next", message));
        };
        for _ in 0..LOOKS_INTO_SOME {
            // Another caller may have read the list meanwhile.
            if let Some(found) = list.take(count, self.clock().now(), true) {
                return Ok(Ready::Some(found));
            }
            let look = list.next(count, self.next_shard(), self.clock().now());
            if look.shards.is_empty() {
                break;
            }
            self.scan_shards(group, look, &list, deadline).await?;
        }
        if let Some(found) = list.take(count, self.clock().now(), true) {
            return Ok(Ready::Some(found));
        }
        // New samples are most likely behind those that were seen.
        let shards = list.further();
        if shards.iter().any(|shard| shard.after.is_some()) {
            let of_each = of_each_shard(count);
            self.scan_shards(group, ShardScan { shards, of_each }, &list, deadline)
                .await?;
            if let Some(found) = list.take(count, self.clock().now(), false) {
                return Ok(Ready::Some(found));
            }
        }
        self.scan_all_shards(session, group, count, &list, deadline).await
    }

    /// Reads some shards. Within a shard the oldest samples come first.
    async fn scan_shards(
        &self,
        group: &GroupName,
        ShardScan { shards, of_each }: ShardScan,
        list: &ReadyList,
        deadline: Deadline,
    ) -> Result<()> {
        let begun = self.clock().now();
        let reads: Vec<Read> = shards.iter().map(|shard| self.shard(group, shard, of_each)).collect();
        let snapshot = self.read_shards(&reads, deadline).await?;
        let found = self.found_in(group, &snapshot, list, deadline).await?;
        let (seen, wanted) = (found.len(), of_each * shards.len());
        let saw = shards.into_iter().zip(saw(&snapshot, of_each)).collect();
        list.leave(found, self.clock().now());
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
        let begun = self.clock().now();
        let from_the_start = |number| Shard { number, after: None };
        let shards: Vec<Shard> = (0..SHARDS).map(from_the_start).collect();
        let mut reads: Vec<Read> = shards.iter().map(|shard| self.shard(group, shard, each)).collect();
        // A caller that finds nothing learns here that its session has ended. One that finds samples learns it when it
        // leases them.
        reads.push(Read::Key(self.layout().alive(session.id())));
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
        // Other processes whose shards were empty see the same few samples: each starts at a random one.
        let from = usize::try_from(self.rng().below(found.len().max(1) as u64)).unwrap_or(0);
        found.rotate_left(from);
        list.leave(found.iter().cloned(), self.clock().now());
        Ok(match list.take(count, self.clock().now(), false) {
            Some(taken) => Ready::Some(taken),
            None if found.is_empty() => Ready::None(snapshot.version),
            None => {
                // Other consumers of this process are leasing all of these. Their attempts may fail, and then no watch
                // event would tell.
                found.truncate(count);
                Ready::Some(list.reach(found))
            }
        })
    }

    /// Reads shards. If the reply would be too large (entries may hold whole records), reads only their first entries.
    async fn read_shards(&self, reads: &[Read], deadline: Deadline) -> Result<Snapshot> {
        let left = || deadline.remaining(self.clock());
        let mut reads = reads.to_vec();
        loop {
            match self.txn_store().read(&reads, left()).await {
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
            match parse(self.layout(), group, entry) {
                Ok(ready) => found.push(ready),
                Err(_) => bad.push(entry.clone()),
            }
        }
        if !bad.is_empty() {
            let read = |entry: &Entry| parse(self.layout(), group, entry);
            found.extend(self.sort_out(bad, read, deadline).await?.good);
        }
        list.without_passed_over(&mut found, self.clock().now());
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
        let end = self.layout().ready(group).end;
        let mut from: Vec<String> = snapshot.entries.iter().filter_map(full).collect();
        while !from.is_empty() && !deadline.passed(self.clock()) {
            let ranges = from.drain(..).map(|start| Read::Range {
                keys: self
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
    async fn set_strays_aside(&self, group: &GroupName, samples: &[SampleRef], deadline: Deadline) -> Result<()> {
        for SampleRef { sample, generation } in samples {
            let reads = [
                Read::Key(self.layout().ready_entry(sample, *generation, group)),
                Read::Key(self.layout().live(sample)),
            ];
            let snapshot = self.txn_store().read(&reads, deadline.remaining(self.clock())).await?;
            let mut entries = snapshot.entries.into_iter().map(|entries| entries.into_iter().next());
            let (Some(Some(stray)), live) = (entries.next(), entries.next().flatten()) else {
                continue;
            };
            let live: Option<Versioned<Live>> = match live.as_ref().map(decode_versioned).transpose() {
                Ok(live) => live,
                // Only a process that can decode the record can tell.
                Err(_) => continue,
            };
            let is_called_for =
                |live: Versioned<Live>| live.record.generation == *generation && waits_for(&live.record, group);
            if !live.is_some_and(is_called_for) {
                let why = "no live sample of this generation waits for this group";
                self.set_aside(&stray, why, Vec::new(), deadline).await?;
            }
        }
        Ok(())
    }

    fn shard(&self, group: &GroupName, shard: &Shard, limit: usize) -> Read {
        let mut keys = self.layout().ready_shard(group, shard.number);
        if let Some(seen) = &shard.after {
            keys.start = after(&seen.key);
        }
        Read::Range {
            keys,
            limit,
            keys_only: false,
        }
    }

    /// Waits until a sample becomes ready for the group after `version`. False if the deadline came first.
    async fn wait_for_ready(
        &self,
        session: &Session,
        group: &GroupName,
        version: Version,
        deadline: Deadline,
    ) -> Result<bool> {
        let left = deadline.remaining(self.clock());
        if left.is_zero() {
            return Ok(false);
        }
        let mut watch = match self.txn_store().watch(self.layout().ready(group), version, left).await {
            Ok(watch) => watch,
            // The store no longer keeps changes since that version: read the list again.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
        };
        let put = async {
            loop {
                match watch.next().await {
                    Ok(changes) if changes.iter().any(|change| change.value.is_some()) => return true,
                    Ok(_) => {}
                    // Changes may have been missed: read the list again.
                    Err(_) => return true,
                }
            }
        };
        tokio::select! {
            came = tokio::time::timeout(left.max(Duration::from_millis(1)), put) => Ok(came.unwrap_or(false)),
            () = session.ended() => Err(session.fenced("index.lease_next")),
        }
    }
}

/// Decodes an entry of the ready list.
pub(crate) fn parse(layout: &Layout, group: &GroupName, entry: &Entry) -> Result<ReadyEntry> {
    let key = &entry.key;
    let order = key
        .rsplit('/')
        .nth(1)
        .and_then(|order| u64::from_str_radix(order, 16).ok());
    let parsed = order.and_then(Generation::new).zip(Layout::ready_sample(key));
    // Under any other key the entry would neither be found again nor deleted.
    let parsed = parsed.filter(|(generation, sample)| layout.ready_entry(sample, *generation, group) == *key);
    let (generation, sample) =
        parsed.ok_or_else(|| unreadable(key, "this key does not name a sample that waits for a group"))?;
    let copied: Option<Versioned<Live>> = (!entry.value.is_empty()).then(|| decode_versioned(entry)).transpose()?;
    if copied
        .as_ref()
        .is_some_and(|copied| copied.record.generation != generation)
    {
        return Err(unreadable(key, "this is a copy of another sample's record"));
    }
    Ok(ReadyEntry {
        sample: SampleRef { sample, generation },
        copied,
    })
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
