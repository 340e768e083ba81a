//! Freeing: a sample that is retired and has no reader left is removed from the engine at once, by the process that
//! caused it.
//!
//! ```text
//!                  ┌ a put that failed, and whose memory the engine has let go of
//!                  ▼                                                   all objects gone            the index knows
//!              To abort ──the reservation is given up, or is gone──▶ To remove ────────▶ To tell ────────────────▶ forgotten
//!                  │ ▲                                                 ▲   │ ▲              │ ▲
//!                  └─┘ the index does not answer: later                │   └─┘ one stays:   └─┘ it does not answer: later
//!     ack, nack, retire ───────────────────────────────────────────────┘      recorded,
//!                                                                             tried again after growing pauses;
//!                                                                             after some tries left to sweeps
//! ```
//!
//! Workers do it, for many samples in one call. Each has deadlines of its own, so that none waits for the peer of
//! another: an engine that hangs holds up removals and nothing else.
//!
//! | worker | talks to | does |
//! |---|---|---|
//! | remover | the engine | removes objects |
//! | teller | the index | reports freed samples, releases leases, gives up reservations |
//! | collector | both | removes the samples that the index lists, whichever process retired them: after a put or a release, and after each sweep |
//! | sweeper | the index | while it is on duty ([`crate::reclaim::duty`]): advances the shared clock, takes back expired leases, reservations and sessions, wakes the collector |
//!
//! No caller waits for them except [`crate::FeatureStore::drain`] and `close`. Unfinished work is not lost: the index
//! lists a sample until it is told that the sample is freed. The collector walks that list in parts and continues where
//! it stopped ([`crate::reclaim::collect`]).
//!
//! Invariants:
//! - FR1: objects are removed only when the index has said that the generation is retired and without readers, or that
//!   its reservation is given up, or when its commit was refused for good. Never while a commit may still be applied.
//! - FR2: `freed` is reported only after every object of the generation was seen removed or absent.
//! - FR3: removing twice and reporting `freed` twice are harmless, so any number of processes may do the same work.
//! - FR4: the queues here are bounded; a job that finds no place is found again by a collect. Reservations to be given
//!   up always find a place, since no list shows them until their time has run out. There are never more of them than
//!   reservations that this process has made, and each is retried for as long as its session lives.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Nonce, ObjectKey, Result, SampleKey, Timestamp};
use tensorhold_custody::SessionId;
use tensorhold_index::{LeaseGrant, SampleRef, Session};
use tokio::sync::Notify;

use crate::runtime::inflight_puts::Begun;

/// The pause after the first failed attempt. It doubles after each further failure, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// After so many failed attempts a sample is left to sweeps.
pub(crate) const MOST_TRIES: u32 = 10;
/// How long requests to collect are gathered, so that many puts and releases cost one collect.
pub(crate) const GATHER: Duration = Duration::from_millis(10);

/// The pause after so many failed attempts.
fn pause_after(tries: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << tries.min(16)).min(LONGEST_PAUSE)
}

/// A sample whose objects are to be removed.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) sample: SampleRef,
    pub(crate) keys: Vec<ObjectKey>,
    /// The session whose reservation is to be given up first.
    pub(crate) abort: Option<Arc<Session>>,
    /// The put that made the reservation. A later put of the sample waits until the reservation is given up.
    pub(crate) put: Option<Arc<Begun>>,
}

impl Job {
    /// The random part of the sample's keys; none if another writer chose them.
    pub(crate) fn nonce(&self) -> Option<Nonce> {
        SampleKey::of_object(self.keys.first()?).map(|key| key.nonce)
    }
}

#[derive(Clone, Debug)]
struct Pending {
    job: Job,
    /// Whether its objects are gone, so that only the index has to be told.
    removed: bool,
    tries: u32,
    due: Timestamp,
    /// Since when its objects may be removed.
    since: Timestamp,
    why: Option<Error>,
}

impl Pending {
    fn is_due(&self, now: Timestamp) -> bool {
        self.due <= now && !self.is_left_to_sweeps()
    }

    /// Whether it was tried often enough to leave it to sweeps: the index lists it. The index does not list a
    /// reservation.
    fn is_left_to_sweeps(&self) -> bool {
        self.tries >= MOST_TRIES && self.job.abort.is_none()
    }

    /// Whether it is the remover's turn; otherwise it is the teller's.
    fn is_to_remove(&self) -> bool {
        self.job.abort.is_none() && !self.removed
    }
}

/// A lease that no caller holds any more.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) session: Arc<Session>,
    /// If the lease was never served, the take is undone; otherwise its attempt counts.
    pub(crate) held: LeaseGrant,
    tries: u32,
    due: Timestamp,
}

/// What the teller is to report to the index.
#[derive(Debug, Default)]
pub(crate) struct ToTell {
    /// Leases that no caller holds any more.
    pub(crate) releases: Vec<Release>,
    /// Samples whose reservation is to be given up.
    pub(crate) reservations: Vec<Job>,
    /// Samples whose objects are gone.
    pub(crate) removed: Vec<SampleRef>,
    /// Samples of which an object could not be removed.
    pub(crate) stayed: Vec<SampleRef>,
}

/// Everything that this process has to free.
#[derive(Debug)]
pub(crate) struct ReclaimQueue {
    clock: Arc<dyn Clock>,
    most: usize,
    state: Mutex<State>,
    collect: AtomicBool,
    /// Wakes the remover.
    pub(crate) wake_remover: Notify,
    /// Wakes the teller.
    pub(crate) wake_teller: Notify,
    /// Wakes the collector, which asks the index for more.
    pub(crate) wake_collector: Notify,
    /// Wakes callers of `drain` when something was done.
    done: Notify,
}

#[derive(Debug, Default)]
struct State {
    pending: BTreeMap<SampleRef, Pending>,
    /// Samples that wait for the engine to let go of their memory.
    held_by_engine: usize,
    releases: Vec<Release>,
    stayed: Vec<SampleRef>,
    /// How many workers (remover, teller, collector) are busy.
    working: usize,
}

impl ReclaimQueue {
    pub(crate) fn new(clock: Arc<dyn Clock>, most: usize) -> Self {
        Self {
            clock,
            most,
            state: Mutex::default(),
            collect: AtomicBool::new(false),
            wake_remover: Notify::new(),
            wake_teller: Notify::new(),
            wake_collector: Notify::new(),
            done: Notify::new(),
        }
    }

    /// Accepts a job. False if there is no place; then a collect will find it.
    pub(crate) fn push(&self, job: Job) -> bool {
        let mut state = self.state.lock();
        let place = job.abort.is_some() || state.pending.len() < self.most;
        if place {
            let now = self.clock.now();
            let pending = Pending {
                due: now,
                since: now,
                removed: false,
                tries: 0,
                why: None,
                job,
            };
            state.pending.entry(pending.job.sample.clone()).or_insert(pending);
        }
        drop(state);
        self.wake();
        if !place {
            self.collect_soon();
        }
        place
    }

    /// Accepts a lease that no caller holds any more. False if there is no place; then the lease expires by itself.
    pub(crate) fn release(&self, session: Arc<Session>, held: LeaseGrant) -> bool {
        self.push_release(Release {
            session,
            held,
            tries: 0,
            due: self.clock.now(),
        })
    }

    /// The index did not answer: the release is retried after a pause, while the session lives.
    pub(crate) fn release_again(&self, mut release: Release) -> bool {
        release.due = self.clock.now().after(pause_after(release.tries));
        release.tries = release.tries.saturating_add(1);
        let again = release.tries < MOST_TRIES || release.held.unserved;
        again && release.session.is_alive() && self.push_release(release)
    }

    /// A take that is to be undone always finds a place, since its expiry would cost the group an attempt. There are
    /// never more of them than leases that were granted to this process.
    fn push_release(&self, release: Release) -> bool {
        let mut state = self.state.lock();
        let place = state.releases.len() < self.most || release.held.unserved;
        if place {
            state.releases.push(release);
        }
        drop(state);
        self.wake_teller.notify_one();
        place
    }

    /// Something may have been retired without this process being told what: collect soon.
    pub(crate) fn collect_soon(&self) {
        if !self.collect.swap(true, Ordering::AcqRel) {
            self.wake_collector.notify_one();
        }
    }

    /// Whether to collect. Clears the request.
    pub(crate) fn take_collect(&self) -> bool {
        self.collect.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn wants_collect(&self) -> bool {
        self.collect.load(Ordering::Acquire)
    }

    /// Counts one sample more, or less, whose failed put waits for the engine to let go of its memory.
    pub(crate) fn engine_holds(&self, more: bool) {
        let mut state = self.state.lock();
        state.held_by_engine = if more {
            state.held_by_engine + 1
        } else {
            state.held_by_engine.saturating_sub(1)
        };
        drop(state);
        self.done.notify_waiters();
    }

    fn wake(&self) {
        self.wake_remover.notify_one();
        self.wake_teller.notify_one();
    }

    /// The collector begins. Until [`ReclaimQueue::finished`], it counts as busy.
    pub(crate) fn begin(&self) {
        self.state.lock().working += 1;
    }

    /// Jobs whose objects are to be removed now. Until [`ReclaimQueue::finished`], the remover counts as busy.
    pub(crate) fn to_remove(&self) -> Vec<Job> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.working += 1;
        let due = state.pending.values().filter(|pending| pending.is_due(now));
        let due = due.filter(|pending| pending.is_to_remove());
        due.map(|pending| pending.job.clone()).collect()
    }

    /// What the index is to be told now. Until [`ReclaimQueue::finished`], the teller counts as busy.
    pub(crate) fn to_tell(&self) -> ToTell {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.working += 1;
        let mut tell = ToTell {
            releases: state.releases.extract_if(.., |release| release.due <= now).collect(),
            stayed: std::mem::take(&mut state.stayed),
            ..ToTell::default()
        };
        let due = state.pending.values().filter(|pending| pending.is_due(now));
        for pending in due.filter(|pending| !pending.is_to_remove()) {
            if pending.removed {
                tell.removed.push(pending.job.sample.clone());
            } else {
                tell.reservations.push(pending.job.clone());
            }
        }
        tell
    }

    /// A worker has finished what it was given.
    pub(crate) fn finished(&self) {
        let mut state = self.state.lock();
        state.working = state.working.saturating_sub(1);
        drop(state);
        self.done.notify_waiters();
    }

    /// How long until the next removal is due; none if there is none.
    pub(crate) fn until_removal(&self) -> Option<Duration> {
        self.until(&self.state.lock(), true)
    }

    /// How long until the index is to be told something; none if there is nothing to tell.
    pub(crate) fn until_telling(&self) -> Option<Duration> {
        let state = self.state.lock();
        if !state.stayed.is_empty() {
            return Some(Duration::ZERO);
        }
        let releases = state.releases.iter().map(|release| release.due).min();
        let releases = releases.map(|due| due.since(self.clock.now()));
        releases.into_iter().chain(self.until(&state, false)).min()
    }

    fn until(&self, state: &State, to_remove: bool) -> Option<Duration> {
        let pending = state.pending.values().filter(|pending| !pending.is_left_to_sweeps());
        let pending = pending.filter(|pending| pending.is_to_remove() == to_remove);
        let due = pending.map(|pending| pending.due).min()?;
        Some(due.since(self.clock.now()))
    }

    /// A sample is freed. Returns how long that took since it was pushed; none if it was not.
    pub(crate) fn succeeded(&self, sample: &SampleRef) -> Option<Duration> {
        let pending = self.state.lock().pending.remove(sample)?;
        Some(self.clock.now().since(pending.since))
    }

    /// The reservation of a sample is given up; only its objects are left to remove.
    pub(crate) fn aborted(&self, sample: &SampleRef) {
        let mut state = self.state.lock();
        let is_more_than_wait = state.pending.len() > self.most;
        let now = self.clock.now();
        if let Some(pending) = state.pending.get_mut(sample) {
            (pending.job.abort, pending.job.put, pending.tries) = (None, None, 0);
            pending.since = now;
        }
        // The index lists it from now on.
        if is_more_than_wait {
            state.pending.remove(sample);
        }
        drop(state);
        if is_more_than_wait {
            self.collect_soon();
        }
        self.wake_remover.notify_one();
    }

    /// The objects of a sample are gone; only the index has to be told.
    pub(crate) fn removed(&self, sample: &SampleRef) {
        if let Some(pending) = self.state.lock().pending.get_mut(sample) {
            (pending.removed, pending.tries) = (true, 0);
        }
        self.wake_teller.notify_one();
    }

    /// An object of a sample could not be removed: that is recorded, and the removal is retried after a pause.
    pub(crate) fn stayed(&self, sample: &SampleRef, why: Error) {
        self.failed(sample, why);
        self.state.lock().stayed.push(sample.clone());
        self.wake_teller.notify_one();
    }

    /// An attempt failed: it is repeated after a pause.
    pub(crate) fn failed(&self, sample: &SampleRef, why: Error) {
        let now = self.clock.now();
        if let Some(pending) = self.state.lock().pending.get_mut(sample) {
            pending.due = now.after(pause_after(pending.tries));
            pending.tries += 1;
            pending.why = Some(why);
        }
    }

    /// Whether this process has left samples to sweeps.
    pub(crate) fn has_left_to_sweeps(&self) -> bool {
        let state = self.state.lock();
        state.pending.values().any(Pending::is_left_to_sweeps)
    }

    /// Samples that were tried often enough and are left to sweeps.
    pub(crate) fn left_to_sweeps(&self) -> HashSet<SampleRef> {
        let state = self.state.lock();
        let left = state.pending.iter().filter(|(_, pending)| pending.is_left_to_sweeps());
        left.map(|(sample, _)| sample.clone()).collect()
    }

    /// These were left to sweeps and are no longer listed: other processes have freed them.
    pub(crate) fn forget(&self, unlisted: &HashSet<SampleRef>) {
        let mut state = self.state.lock();
        state
            .pending
            .retain(|sample, pending| !pending.is_left_to_sweeps() || !unlisted.contains(sample));
        drop(state);
        self.done.notify_waiters();
    }

    /// How many samples are still to be freed here.
    pub(crate) fn pending(&self) -> usize {
        let state = self.state.lock();
        state.pending.len() + state.held_by_engine
    }

    fn is_done(&self) -> bool {
        let state = self.state.lock();
        state.pending.is_empty()
            && state.held_by_engine == 0
            && state.releases.is_empty()
            && state.stayed.is_empty()
            && state.working == 0
            && !self.wants_collect()
    }

    /// Waits until every sample that was retired here is freed.
    pub(crate) async fn drain(&self, deadline: Deadline) -> Result<()> {
        let now = self.clock.now();
        for pending in self.state.lock().pending.values_mut() {
            (pending.due, pending.tries) = (now, pending.tries.min(MOST_TRIES - 1));
        }
        self.wake();
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            if self.is_done() {
                return Ok(());
            }
            let left = deadline.remaining(&*self.clock);
            if left.is_zero() || tokio::time::timeout(left, done).await.is_err() {
                return if self.is_done() { Ok(()) } else { Err(self.left()) };
            }
        }
    }

    fn left(&self) -> Error {
        let state = self.state.lock();
        let mut error = Error::new(
            ErrorKind::Timeout,
            "features.drain",
            "not every sample that was retired here is freed yet; the rest is recorded, and sweeps keep trying",
        )
        .with("left", state.pending.len())
        .with("held_by_engine", state.held_by_engine)
        .with("releases", state.releases.len());
        if let Some(pending) = state.pending.values().next() {
            error = error
                .with("sample", &pending.job.sample.sample)
                .with("generation", pending.job.sample.generation)
                .with("tries", pending.tries);
            if let Some(why) = &pending.why {
                error = error.caused_by(why.clone());
            }
        }
        error
    }
}

/// Jobs or releases, grouped by the session in whose name they are done.
pub(crate) fn by_session<T>(
    items: impl IntoIterator<Item = (Arc<Session>, T)>,
) -> BTreeMap<SessionId, (Arc<Session>, Vec<T>)> {
    let mut sorted: BTreeMap<SessionId, (Arc<Session>, Vec<T>)> = BTreeMap::new();
    for (session, item) in items {
        let entry = sorted.entry(session.id()).or_insert_with(|| (session, Vec::new()));
        entry.1.push(item);
    }
    sorted
}
