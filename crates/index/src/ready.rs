//! Taking the next samples of a group, and waiting for some without polling.
//!
//! Those of one process look at the list for each other: one reads as much as they will take in a moment, the others take
//! from what it found. Processes look into different lanes, so that they reach for different samples. What
//! they find is a guess: somebody else may have taken it meanwhile, and then the taking tells.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, Generation, Result, Retry};
use holdfast_custody::{GroupName, Version};

use crate::index::KvIndex;
use crate::kv::{Entry, Read, Snapshot};
use crate::lanes::{Found, Lane, Look, Reached, ReadyList, Saw};
use crate::layout::{LANES, Layout};
use crate::record::decode_versioned;
use crate::session::Session;
use crate::types::{Held, SampleRef};

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
        deadline: Deadline,
    ) -> Result<Vec<Held>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let mut looked = false;
        loop {
            match self
                .look_and_take(session, group, count, ticks, &mut looked, deadline)
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
    async fn look_and_take(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        looked: &mut bool,
        deadline: Deadline,
    ) -> Result<Next> {
        let ready = self.ready(session, group, count, deadline).await?;
        let first = !std::mem::replace(looked, true);
        let ready = match ready {
            Ready::Some(ready) => ready,
            Ready::None(version) => {
                let came = self.wait_for_ready(session, group, version, deadline).await?;
                return Ok(if came { Next::Again } else { Next::Nothing });
            }
        };
        // Too late to take something: it would not be known whether it was. Who was in a hurry from the start may try.
        if !first && deadline.remaining(self.clock()) < CUT_SHORT {
            return Ok(Next::Nothing);
        }
        let mut held = Vec::with_capacity(ready.len());
        let mut failed = None;
        // What was copied to the ready list is good for a first try without a look.
        for result in self.do_lease(session, &ready, Some(group), ticks, deadline).await {
            match result {
                Ok(lease) => held.push(lease),
                // Somebody else was faster, or the sample went away in between.
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {}
                Err(error)
                    if error.kind() == ErrorKind::Fenced && session.is_alive() && error.fact("session").is_none() => {}
                Err(error) => failed = Some(error),
            }
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
        let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
        let found: Vec<Found> = snapshot.entries.iter().flatten().map(parse).collect::<Result<_>>()?;
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
        let mut snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
        if snapshot.entries.pop().is_none_or(|alive| alive.is_empty()) {
            return Err(session.fenced("index.lease_next"));
        }
        let mut found: Vec<Found> = snapshot.entries.iter().flatten().map(parse).collect::<Result<_>>()?;
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

    fn lane(&self, group: &GroupName, lane: &Lane, limit: usize) -> Read {
        let mut keys = self.layout().ready_lane(group, lane.number);
        if let Some(seen) = &lane.after {
            // The first key after that one.
            keys.start = format!("{}\0", seen.key);
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

/// What an entry of the ready list tells.
fn parse(entry: &Entry) -> Result<Found> {
    let key = &entry.key;
    let order = key
        .rsplit('/')
        .nth(1)
        .and_then(|order| u64::from_str_radix(order, 16).ok());
    let parsed = order.and_then(Generation::new).zip(Layout::ready_sample(key));
    let (generation, sample) = parsed
        .ok_or_else(|| Error::internal("index.ready", "an entry of the ready list cannot be read").with("key", key))?;
    let copied = (!entry.value.is_empty()).then(|| decode_versioned(entry)).transpose()?;
    Ok(Found {
        sample: SampleRef { sample, generation },
        copied,
    })
}
