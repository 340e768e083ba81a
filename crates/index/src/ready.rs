//! Taking the next samples of a group, and waiting for some without polling.
//!
//! Those of one process look at the list for each other: one reads as much as they will take in a moment, the others take
//! from what it found. Processes look into different lanes, so that they reach for different samples. What
//! they find is a guess: somebody else may have taken it meanwhile, and then the taking tells.
//!
//! A sample that this process cannot use (its terms refuse it) is passed over from then on: it stays in the list, for
//! others. Looks go on behind such samples, however many there are.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, Generation, Result, Retry};
use holdfast_custody::{GroupName, Live, Version};

use parking_lot::Mutex;

use crate::index::KvIndex;
use crate::kv::{Entry, Read, Snapshot};
use crate::lanes::{Found, Lane, Look, Reached, ReadyList, Saw};
use crate::layout::{LANES, Layout, after, waits_for};
use crate::record::{decode_versioned, unreadable};
use crate::session::Session;
use crate::sweep::is_about_one_record;
use crate::types::{Held, SampleRef, Terms, Versioned};

/// How close to its deadline a call that was cut short by it ends: clocks and timers round.
const CUT_SHORT: Duration = Duration::from_millis(10);

/// How often one who needs more than it has found looks into some lanes, before it looks into all of them.
const LOOKS_INTO_SOME: usize = 2;

/// What one look at the ready list came to.
enum Next {
    Taken(Vec<Held>),
    /// Somebody else was faster, or something new has come.
    Again,
    /// The deadline passed while nothing came.
    Nothing,
}

/// What waits for a group.
enum Ready {
    Some(Reached),
    /// Nothing did, at that moment.
    None(Version),
}

impl KvIndex {
    /// Takes up to `count` samples; waits for the first one until the deadline. None means that none came.
    pub(crate) async fn do_lease_next(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        terms: Terms<'_>,
        deadline: Deadline,
    ) -> Result<Vec<Held>> {
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
                // The last look was cut short by the deadline; the one before it found nothing to take.
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

    /// Takes what waits; waits if nothing does. Says if it has looked at least once.
    ///
    /// When the caller has left, looks and waits end at once. The taking does not: what it was given would be known to
    /// nobody.
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
        // Too late to take something: it would not be known whether it was. Who was in a hurry from the start may try.
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
        // What was copied to the ready list is good for a first try without a look.
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
                // Another consumer was faster, or the sample went away in between. If that is so again, it may be a stray.
                if list.doubt(&found.sample) {
                    strays.push(found.sample.clone());
                }
            } else if is_about_one_record(&error) || refused.lock().contains(&found.sample) {
                // Of a later release, or in the way of everything: others are taken meanwhile.
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
            tracing::debug!(%error, "strays in a ready list stay for now");
        }
        // What was taken beside an error must not be forgotten.
        match failed {
            _ if !held.is_empty() => Ok(Next::Taken(held)),
            Some(error) => Err(error),
            None => Ok(Next::Again),
        }
    }

    /// Some samples that wait for the group, and the moment at which there were none.
    async fn ready(&self, session: &Session, group: &GroupName, count: usize, deadline: Deadline) -> Result<Ready> {
        let list = self.ready_list(group);
        if let Some(found) = list.take(count, self.clock().now(), true) {
            return Ok(Ready::Some(found));
        }
        let left = deadline.remaining(self.clock());
        let Ok(Ok(_looking)) = tokio::time::timeout(left, list.looking.acquire()).await else {
            let message = "others of this process looked until the deadline";
            return Err(Error::unavailable("index.lease_next", message));
        };
        for _ in 0..LOOKS_INTO_SOME {
            // Somebody else may have looked meanwhile.
            if let Some(found) = list.take(count, self.clock().now(), true) {
                return Ok(Ready::Some(found));
            }
            let look = list.next(count, self.next_lane(), self.clock().now());
            if look.lanes.is_empty() {
                break;
            }
            self.look_into_lanes(group, look, &list, deadline).await?;
        }
        if let Some(found) = list.take(count, self.clock().now(), true) {
            return Ok(Ready::Some(found));
        }
        // What is new lies behind what was seen, most likely.
        let lanes = list.further();
        if lanes.iter().any(|lane| lane.after.is_some()) {
            let of_each = of_each_lane(count);
            self.look_into_lanes(group, Look { lanes, of_each }, &list, deadline)
                .await?;
            if let Some(found) = list.take(count, self.clock().now(), false) {
                return Ok(Ready::Some(found));
            }
        }
        self.look_into_all_lanes(session, group, count, &list, deadline).await
    }

    /// Looks into some lanes. Within a lane the oldest come first.
    async fn look_into_lanes(
        &self,
        group: &GroupName,
        Look { lanes, of_each }: Look,
        list: &ReadyList,
        deadline: Deadline,
    ) -> Result<()> {
        let begun = self.clock().now();
        let reads: Vec<Read> = lanes.iter().map(|lane| self.lane(group, lane, of_each)).collect();
        let snapshot = self.read_lanes(&reads, deadline).await?;
        let found = self.found_in(group, &snapshot, list, deadline).await?;
        let (seen, wanted) = (found.len(), of_each * lanes.len());
        let saw = lanes.into_iter().zip(saw(&snapshot, of_each)).collect();
        list.leave(found, self.clock().now());
        list.saw(saw, (seen, wanted), begun);
        Ok(())
    }

    async fn look_into_all_lanes(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        list: &Arc<ReadyList>,
        deadline: Deadline,
    ) -> Result<Ready> {
        let each = of_each_lane(count);
        let begun = self.clock().now();
        let from_the_start = |number| Lane { number, after: None };
        let lanes: Vec<Lane> = (0..LANES).map(from_the_start).collect();
        let mut reads: Vec<Read> = lanes.iter().map(|lane| self.lane(group, lane, each)).collect();
        // Who has nothing to take learns here that its session has ended; the others do when they take it.
        reads.push(Read::Key(self.layout().alive(session.id())));
        let mut snapshot = self.read_lanes(&reads, deadline).await?;
        if snapshot.entries.pop().is_none_or(|alive| alive.is_empty()) {
            return Err(session.fenced("index.lease_next"));
        }
        let mut found = self.found_in(group, &snapshot, list, deadline).await?;
        if found.is_empty() {
            found = self.look_behind(group, &snapshot, each, list, deadline).await?;
        }
        let (seen, wanted) = (found.len(), each * lanes.len());
        let saw = lanes.into_iter().zip(saw(&snapshot, each)).collect();
        list.saw(saw, (seen, wanted), begun);
        // Other processes whose lane was empty look at the same few: each begins somewhere else.
        let from = usize::try_from(self.rng().below(found.len().max(1) as u64)).unwrap_or(0);
        found.rotate_left(from);
        list.leave(found.iter().cloned(), self.clock().now());
        Ok(match list.take(count, self.clock().now(), false) {
            Some(taken) => Ready::Some(taken),
            None if found.is_empty() => Ready::None(snapshot.version),
            None => {
                // Others of this process reach for all of it. They may fail, and then nobody would tell.
                found.truncate(count);
                Ready::Some(list.reach(found))
            }
        })
    }

    /// Reads lanes. If the answer would be too large, as one of whole records may be, their first entries only.
    async fn read_lanes(&self, reads: &[Read], deadline: Deadline) -> Result<Snapshot> {
        let left = || deadline.remaining(self.clock());
        let mut reads = reads.to_vec();
        loop {
            match self.kv().read(&reads, left()).await {
                Err(error) if error.kind() == ErrorKind::Capacity && fewer(&mut reads) => {}
                answer => return answer,
            }
        }
    }

    /// The samples in lanes that were read. What cannot be read is set aside; what a later release wrote is passed over.
    async fn found_in(
        &self,
        group: &GroupName,
        snapshot: &Snapshot,
        list: &ReadyList,
        deadline: Deadline,
    ) -> Result<Vec<Found>> {
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

    /// Looks further into lanes of which nothing that was seen can be taken.
    async fn look_behind(
        &self,
        group: &GroupName,
        snapshot: &Snapshot,
        each: usize,
        list: &ReadyList,
        deadline: Deadline,
    ) -> Result<Vec<Found>> {
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
                    .rest_of_lane(&start)
                    .unwrap_or_else(|| start.clone()..end.clone()),
                limit: each,
                keys_only: false,
            });
            let reads: Vec<Read> = ranges.collect();
            let snapshot = self.read_lanes(&reads, deadline).await?;
            let found = self.found_in(group, &snapshot, list, deadline).await?;
            if !found.is_empty() {
                return Ok(found);
            }
            from = snapshot.entries.iter().filter_map(full).collect();
        }
        Ok(Vec::new())
    }

    /// Entries of the ready list that no live record calls for, out of those that were found so twice. What is not put
    /// right by the process that takes or retires the sample is a stray, and would be reached for for ever.
    async fn set_strays_aside(&self, group: &GroupName, samples: &[SampleRef], deadline: Deadline) -> Result<()> {
        for SampleRef { sample, generation } in samples {
            let reads = [
                Read::Key(self.layout().ready_entry(sample, *generation, group)),
                Read::Key(self.layout().live(sample)),
            ];
            let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            let mut entries = snapshot.entries.into_iter().map(|entries| entries.into_iter().next());
            let (Some(Some(stray)), live) = (entries.next(), entries.next().flatten()) else {
                continue;
            };
            let live: Option<Versioned<Live>> = match live.as_ref().map(decode_versioned).transpose() {
                Ok(live) => live,
                // Only a process that can read the record can tell.
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

    fn lane(&self, group: &GroupName, lane: &Lane, limit: usize) -> Read {
        let mut keys = self.layout().ready_lane(group, lane.number);
        if let Some(seen) = &lane.after {
            keys.start = after(&seen.key);
        }
        Read::Range {
            keys,
            limit,
            keys_only: false,
        }
    }

    /// Waits until something becomes ready for the group after `version`. False if the deadline came first.
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
        let mut watch = match self.kv().watch(self.layout().ready(group), version, left).await {
            Ok(watch) => watch,
            // That moment is forgotten already: look again.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(error),
        };
        let put = async {
            loop {
                match watch.next().await {
                    Ok(changes) if changes.iter().any(|change| change.value.is_some()) => return true,
                    Ok(_) => {}
                    // Something may have been missed: look again.
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

/// What an entry of the ready list tells.
pub(crate) fn parse(layout: &Layout, group: &GroupName, entry: &Entry) -> Result<Found> {
    let key = &entry.key;
    let order = key
        .rsplit('/')
        .nth(1)
        .and_then(|order| u64::from_str_radix(order, 16).ok());
    let parsed = order.and_then(Generation::new).zip(Layout::ready_sample(key));
    // Under another key it would not be found again, nor deleted.
    let parsed = parsed.filter(|(generation, sample)| layout.ready_entry(sample, *generation, group) == *key);
    let (generation, sample) =
        parsed.ok_or_else(|| unreadable(key, "this is no key of a sample that waits for a group"))?;
    let copied: Option<Versioned<Live>> = (!entry.value.is_empty()).then(|| decode_versioned(entry)).transpose()?;
    if copied
        .as_ref()
        .is_some_and(|copied| copied.record.generation != generation)
    {
        return Err(unreadable(key, "this is a copy of another sample's record"));
    }
    Ok(Found {
        sample: SampleRef { sample, generation },
        copied,
    })
}

/// How many to see of each lane when all are looked into: what there is is spread evenly, or is so little that all of it may
/// lie in one.
fn of_each_lane(count: usize) -> usize {
    count.div_ceil(4).max(count.min(16))
}

/// What was seen of each lane, if so many entries were asked for at most.
fn saw(snapshot: &Snapshot, limit: usize) -> impl Iterator<Item = Saw> {
    snapshot.entries.iter().map(move |entries| match entries.last() {
        Some(last) if entries.len() >= limit => Saw::UpTo(last.key.clone()),
        last => Saw::All(last.map(|last| last.key.clone())),
    })
}

/// Asks for half as much of each range. False if there is nothing left to halve.
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
