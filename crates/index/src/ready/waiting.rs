//! The takes of a process that wait for samples of a group, and the one watch that they share.
//!
//! ```text
//!               a take has read the whole list, and found nothing
//! not watched ────────────────────────────────────────────────────▶ watched ◀─┐ samples come: they go to takes that wait,
//!      ▲                                                               │  └───┘ or stay for those that come
//!      │ the watch fails: all that wait look again                     │
//!      │ no take came or waited for LINGER                             │
//!      └ more than MOST_FOUND came, and no take waits ─────────────────┘
//! ```
//!
//! The watch tells what is put into the list and what is taken out, so nothing has to be read meanwhile. A sample goes to
//! the takes that have waited longest, each gets as many as it wants, and the others wait on. The watch is a task. The list
//! owns it, and its drop ends it.
//!
//! # What must hold while the list is watched
//! - RW1: every sample in the list that this process can take is *found*, or is *being leased* (see `shards`), or its change
//!   is on its way. The watch begins where a read of the whole list found nothing, and nothing that is found goes stale: what
//!   other processes take is told, too.
//! - RW2: if samples are found, no take waits.
//! - RW3: a sample that was handed to a take, and was neither leased nor gone (its caller has left, or the index did not
//!   answer), is found again, and so goes to the next one. Likewise one that was put again while it was being leased: the
//!   refusal may be older.
//!
//! So no take waits beside a sample that it could have. What RW1 leaves out is looked for again by a take that comes
//! [`PASSED_BY`] after the last read of the whole list: samples that this process had to pass over, and entries that no
//! record calls for.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tensorhold_core::{Error, ErrorKind, Generation, SampleId, Timestamp};
use tensorhold_custody::{GroupName, Version};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::shards::{Known, PASSED_BY, ReadyEntry, ReadyList};
use super::{parse, place};
use crate::record::layout::Layout;
use crate::record::types::SampleRef;
use crate::store::{Change, Entry};
use crate::txn::TxnCore;

/// For how long a list is watched, at least, although no take comes or waits: a consumer that uses one sample after the
/// other comes back.
const LINGER: Duration = Duration::from_secs(1);

/// How many samples may be found while no take waits. With more, reads are cheaper than a watch.
const MOST_FOUND: usize = 256;

/// What a take that waits is told.
#[derive(Debug)]
pub(crate) enum Woken {
    /// Samples that it may try to lease.
    Take(Reached),
    /// To look again: changes may have been missed.
    Look,
    /// The list cannot be watched.
    Failed(Error),
}

/// The takes that wait, and the watch.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// In the order in which they came.
    waiting: VecDeque<Waiter>,
    watch: Option<WatchTask>,
    /// How many takes came while the list was watched.
    came: u64,
    /// Samples that were put while they were being leased, and when.
    put_again: HashMap<SampleRef, (ReadyEntry, Version)>,
    /// When the last read of the whole list began.
    read_at: Option<Timestamp>,
}

/// The task that watches a list. Its drop ends it.
#[derive(Debug)]
pub(super) struct WatchTask(pub(super) JoinHandle<()>);

impl Drop for WatchTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    count: usize,
    tell: oneshot::Sender<Woken>,
}

impl Waits {
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }
}

/// What became of a sample that a take was to lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// It was leased, at this version.
    Leased(Version),
    /// It cannot be leased, or not by this process.
    Gone,
    /// That is not known.
    Unclear,
}

/// Samples that a consumer is leasing. The other consumers of this process leave them alone until this is dropped.
#[derive(Debug)]
pub(crate) struct Reached {
    list: Arc<ReadyList>,
    found: Vec<ReadyEntry>,
    since: Timestamp,
    /// What became of them, in order; nothing yet if it is empty.
    tried: Vec<Tried>,
    /// Whether another consumer of this process is leasing them, too, and answers for them.
    borrowed: bool,
}

impl Reached {
    /// The attempt to lease them has ended.
    pub(crate) fn settle(mut self, tried: Vec<Tried>) {
        self.tried = tried;
    }
}

impl Deref for Reached {
    type Target = [ReadyEntry];

    fn deref(&self) -> &[ReadyEntry] {
        &self.found
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        // Nothing to give back; in `hand_out` the list is locked.
        if self.found.is_empty() || self.borrowed {
            return;
        }
        let mut known = self.list.known.lock();
        let tried = std::mem::take(&mut self.tried).into_iter();
        let tried = tried.chain(std::iter::repeat(Tried::Unclear));
        for (entry, tried) in self.found.drain(..).zip(tried) {
            known.known.remove(&entry.sample);
            let again = known.waits.put_again.remove(&entry.sample);
            let back = match tried {
                Tried::Leased(version) => again.filter(|(_, put)| *put > version).map(|(entry, _)| entry),
                Tried::Gone => again.map(|(entry, _)| entry),
                Tried::Unclear => Some(again.map_or(entry, |(entry, _)| entry)),
            };
            if let Some(entry) = back.filter(|_| known.waits.is_watched()) {
                known.add(entry, self.since);
            }
        }
        self.list.hand_out(&mut known, self.since);
    }
}

/// A take that waits. Its drop ends the wait; what it was handed and did not look at goes to the next one.
#[derive(Debug)]
pub(crate) struct WaitingTake {
    list: Arc<ReadyList>,
    number: u64,
    told: oneshot::Receiver<Woken>,
}

impl WaitingTake {
    /// Pends until it is told something.
    pub(crate) async fn told(&mut self) -> Woken {
        // The sender is dropped with the list alone, which this holds.
        (&mut self.told).await.unwrap_or(Woken::Look)
    }
}

impl Drop for WaitingTake {
    fn drop(&mut self) {
        let waiting = &mut self.list.known.lock().waits.waiting;
        waiting.retain(|waiter| waiter.number != self.number);
    }
}

/// How a wait begins: with an answer, or with waiting.
#[derive(Debug)]
pub(crate) enum Begun {
    Told(Woken),
    Waits(WaitingTake),
}

/// What a change says of the list.
#[derive(Debug)]
enum Shown {
    Put(Box<ReadyEntry>, Version),
    Deleted(SampleId, Generation),
    Unreadable,
}

impl Shown {
    fn of(layout: &Layout, group: &GroupName, change: Change) -> Self {
        let Change { key, value, version } = change;
        let Some(value) = value else {
            return place(layout, group, &key).map_or(Self::Unreadable, |(order, sample)| Self::Deleted(sample, order));
        };
        let entry = Entry { key, value, version };
        parse(layout, group, &entry).map_or(Self::Unreadable, |found| Self::Put(Box::new(found), version))
    }
}

impl Known {
    /// Adds a sample, unless it is known.
    pub(super) fn add(&mut self, found: ReadyEntry, now: Timestamp) {
        if self.known.insert(found.sample.clone()) {
            self.found.push_back((found, now));
        }
    }

    fn show(&mut self, shown: Shown, now: Timestamp) {
        match shown {
            Shown::Put(entry, _) if self.is_passed_over(&entry.sample, now) => {}
            Shown::Put(entry, version) => {
                let same = |(found, _): &&mut (ReadyEntry, _)| found.sample == entry.sample;
                if let Some((found, _)) = self.found.iter_mut().find(same) {
                    // Its copy of the record is newer.
                    *found = *entry;
                } else if self.known.contains(&entry.sample) {
                    self.waits.put_again.insert(entry.sample.clone(), (*entry, version));
                } else {
                    self.add(*entry, now);
                }
            }
            Shown::Deleted(sample, order) => {
                let is_other = |entry: &ReadyEntry| entry.sample.sample != sample || entry.order != order;
                let known = &mut self.known;
                self.found.retain(|(found, _)| {
                    let stays = is_other(found);
                    if !stays {
                        known.remove(&found.sample);
                    }
                    stays
                });
                self.waits.put_again.retain(|_, (entry, _)| is_other(entry));
            }
            // A take that reads the list sets it aside.
            Shown::Unreadable => {
                while let Some(waiter) = self.waits.waiting.pop_front() {
                    if waiter.tell.send(Woken::Look).is_ok() {
                        break;
                    }
                }
            }
        }
    }
}

impl ReadyList {
    /// Up to `count` samples that were found.
    pub(super) fn reached(self: &Arc<Self>, known: &mut Known, count: usize, now: Timestamp) -> Reached {
        let taken = count.min(known.found.len());
        Reached {
            list: Arc::clone(self),
            found: known.found.drain(..taken).map(|(found, _)| found).collect(),
            since: now,
            tried: Vec::new(),
            borrowed: false,
        }
    }

    /// Hands these out although another consumer of this process is leasing them: there is nothing else to try.
    pub(crate) fn reach(self: &Arc<Self>, found: Vec<ReadyEntry>, now: Timestamp) -> Reached {
        Reached {
            list: Arc::clone(self),
            found,
            since: now,
            tried: Vec::new(),
            borrowed: true,
        }
    }

    /// Hands what is found to the takes that wait (RW2).
    fn hand_out(self: &Arc<Self>, known: &mut Known, now: Timestamp) {
        while !known.found.is_empty()
            && let Some(waiter) = known.waits.waiting.pop_front()
        {
            let reached = self.reached(known, waiter.count, now);
            if let Err(Woken::Take(mut unseen)) = waiter.tell.send(Woken::Take(reached)) {
                unseen
                    .found
                    .drain(..)
                    .rev()
                    .for_each(|found| known.found.push_front((found, now)));
            }
        }
    }

    /// Hands what reads have found, and the readers have left, to the takes that wait.
    pub(super) fn hand_out_rest(self: &Arc<Self>, now: Timestamp) {
        self.hand_out(&mut self.known.lock(), now);
    }

    /// A read of the whole list began then, and has ended.
    pub(super) fn was_read(&self, begun: Timestamp) {
        self.known.lock().waits.read_at = Some(begun);
    }

    /// If the list is watched: up to `count` samples that were found, or none. Otherwise, or if it is time to read the whole
    /// list again, nothing.
    pub(super) fn take_watched(self: &Arc<Self>, count: usize, now: Timestamp) -> Option<Option<Reached>> {
        let known = &mut *self.known.lock();
        let waits = &mut known.waits;
        waits.came += 1;
        let recent = waits.read_at.is_some_and(|read| now.since(read) <= PASSED_BY);
        (waits.is_watched() && recent).then(|| match known.found.is_empty() {
            true => None,
            false => Some(self.reached(known, count, now)),
        })
    }

    /// Begins to wait for up to `count` samples. If the list is not watched, `watch` begins to.
    pub(super) fn wait(
        self: &Arc<Self>,
        count: usize,
        now: Timestamp,
        watch: Option<impl FnOnce() -> WatchTask>,
    ) -> Begun {
        let known = &mut *self.known.lock();
        known.forget_stale(now);
        if !known.found.is_empty() {
            return Begun::Told(Woken::Take(self.reached(known, count, now)));
        }
        if !known.waits.is_watched() {
            let Some(watch) = watch else {
                return Begun::Told(Woken::Look);
            };
            known.waits.put_again.clear();
            known.waits.watch = Some(watch());
        }
        known.waits.came += 1;
        let (number, (tell, told)) = (known.waits.came, oneshot::channel());
        known.waits.waiting.push_back(Waiter { number, count, tell });
        Begun::Waits(WaitingTake {
            list: Arc::clone(self),
            number,
            told,
        })
    }

    /// Takes note of changes of the list. Returns whether it is worth watching on.
    fn changed(self: &Arc<Self>, shown: Vec<Shown>, now: Timestamp) -> bool {
        let known = &mut *self.known.lock();
        shown.into_iter().for_each(|shown| known.show(shown, now));
        self.hand_out(known, now);
        known.found.len() <= MOST_FOUND
    }

    /// Whether a take waits, or came since `came` had this value, which is brought up to date.
    fn is_wanted(&self, came: &mut u64) -> bool {
        let waits = &self.known.lock().waits;
        let before = std::mem::replace(came, waits.came);
        *came != before || !waits.waiting.is_empty()
    }

    /// The watch has ended.
    fn watch_ended(&self, error: Option<Error>) {
        let mut known = self.known.lock();
        let watch = known.waits.watch.take();
        known.waits.put_again.clear();
        let waiting = std::mem::take(&mut known.waits.waiting);
        drop(known);
        for waiter in waiting {
            let woken = error.clone().map_or(Woken::Look, Woken::Failed);
            // A take that has left is not told.
            drop(waiter.tell.send(woken));
        }
        // Called by the task itself, at its end.
        drop(watch);
    }
}

/// Tells a list that it is not watched any more, whatever ended the task.
struct WatchEnds {
    list: Weak<ReadyList>,
    error: Option<Error>,
}

impl Drop for WatchEnds {
    fn drop(&mut self) {
        if let Some(list) = self.list.upgrade() {
            list.watch_ended(self.error.take());
        }
    }
}

/// Watches a list from a version on, until it is not worth it any more, or fails.
pub(super) async fn watch(
    core: Arc<TxnCore>,
    group: GroupName,
    list: Weak<ReadyList>,
    after: Version,
    within: Duration,
) {
    let mut ends = WatchEnds { list, error: None };
    ends.error = follow(&core, &group, &ends.list, after, within).await.err();
}

/// An error if no take can wait: otherwise those that do look again.
async fn follow(
    core: &TxnCore,
    group: &GroupName,
    list: &Weak<ReadyList>,
    after: Version,
    within: Duration,
) -> Result<(), Error> {
    let keys = core.layout().ready(group);
    let mut watch = match core.txn_store().watch(keys, after, within).await {
        Ok(watch) => watch,
        // The store no longer keeps changes since that version, or does not answer: a read of the list will tell.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut looks = tokio::time::interval(LINGER);
    let mut came = 0;
    loop {
        let mut next = std::pin::pin!(watch.next());
        let changes = loop {
            tokio::select! {
                changes = &mut next => break changes,
                _ = looks.tick() => {
                    if !list.upgrade().is_some_and(|list| list.is_wanted(&mut came)) {
                        return Ok(());
                    }
                }
            }
        };
        // If it fails, changes may have been missed.
        let (Ok(changes), Some(list)) = (changes, list.upgrade()) else {
            return Ok(());
        };
        let shown = changes
            .into_iter()
            .map(|change| Shown::of(core.layout(), group, change));
        if !list.changed(shown.collect(), core.clock().now()) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests;
