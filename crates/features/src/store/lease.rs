//! Leases as their holders see them, and what becomes of those that no caller answers for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Error, Result, Timestamp};
use tensorhold_custody::{GroupName, Live, Token};
use tensorhold_index::{LeaseGrant, SampleRef, Session};

use super::Inner;
use super::unreadable::Readable;
use crate::reclaim::queue::ReclaimQueue;
use crate::record::described::DescribedRef;
use crate::record::description::Description;
use crate::runtime::Runtime;

/// A sample that this process has taken, for a group or for reading only. A clone is the same lease.
///
/// While it holds, the sample's objects are not removed. Answer for it with [`ack`](crate::FeatureStore::ack),
/// [`nack`](crate::FeatureStore::nack) or [`release`](crate::FeatureStore::release). If the last clone is dropped
/// without an answer, the lease is released in the background: a group's sample then waits for another attempt, as after
/// a nack. A lease that its holder has not even looked at (asked for its sample, token or tensors, or used it) goes back
/// as if it had never been taken, and costs the group no attempt. The same holds for a lease whose caller left before it
/// was granted, and for one that its holder has not looked at when the store is closed.
#[derive(Clone)]
pub struct Lease(Arc<Taken>);

struct Taken {
    /// Its number among the leases of this process.
    number: u64,
    held: Mutex<LeaseGrant>,
    description: Arc<Description>,
    session: Arc<Session>,
    /// Whether its holder has looked at it. Until then no caller knows what was taken.
    seen: AtomicBool,
    answered: AtomicBool,
    unseen: Arc<UnseenLeases>,
    all: Arc<HeldLeases>,
    frees: Arc<ReclaimQueue>,
}

impl Taken {
    /// Marks it as seen. Returns whether it was not before.
    fn see(&self) -> bool {
        let first = !self.seen.load(Ordering::Acquire) && !self.seen.swap(true, Ordering::AcqRel);
        if first {
            self.unseen.leases.lock().remove(&self.number);
        }
        first
    }

    /// Marks it as answered. Returns whether it was before.
    fn answer(&self) -> bool {
        let before = self.answered.swap(true, Ordering::AcqRel);
        if !before {
            self.all.0.lock().remove(&self.number);
        }
        before
    }

    fn release(&self, unserved: bool) {
        if !self.answer() && self.session.is_alive() {
            let mut held = self.held.lock().clone();
            held.unserved |= unserved;
            self.frees.release(Arc::clone(&self.session), held);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let unseen = self.see();
        self.release(unseen);
    }
}

/// The leases of this process that their holders have not looked at, by number.
///
/// A session that ends costs each group whose lease it held an attempt. A closing store can only tell here which leases
/// no caller knows of: a result may be on its way to its caller, or lie in a task that nothing has let go of yet.
#[derive(Debug, Default)]
pub(crate) struct UnseenLeases {
    leases: Mutex<BTreeMap<u64, Weak<Taken>>>,
    /// How many leases this process has had.
    count: AtomicU64,
}

impl UnseenLeases {
    fn add(&self, lease: &Arc<Taken>) {
        self.leases.lock().insert(lease.number, Arc::downgrade(lease));
    }

    /// Returns all of them, as if they had never been taken.
    pub(crate) fn give_back(&self) {
        let all = std::mem::take(&mut *self.leases.lock());
        for lease in all.into_values().filter_map(|lease| lease.upgrade()) {
            if lease.see() {
                lease.release(true);
            }
        }
    }
}

/// The leases of this process that are not answered for, by number, and when each was taken.
#[derive(Debug, Default)]
pub(crate) struct HeldLeases(Mutex<BTreeMap<u64, Timestamp>>);

impl HeldLeases {
    /// How many there are, and the age of the oldest.
    pub(crate) fn told(&self, now: Timestamp) -> (usize, Option<Duration>) {
        let held = self.0.lock();
        let oldest = held.values().min().map(|taken| now.since(*taken));
        (held.len(), oldest)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.0.held.lock();
        let SampleRef { sample, generation } = &held.sample;
        write!(f, "Lease({sample}, generation {generation}, token {})", held.token)
    }
}

impl Lease {
    pub(crate) fn new(
        mut held: LeaseGrant,
        readable: &Readable<'_>,
        session: &Arc<Session>,
        inner: &Inner,
    ) -> Result<Self> {
        let description = readable.take(&held.sample, &std::mem::take(&mut held.description));
        let session = Arc::clone(session);
        match description {
            Ok(description) => {
                let taken = Arc::new(Taken {
                    number: inner.unseen.count.fetch_add(1, Ordering::Relaxed),
                    description,
                    held: Mutex::new(held),
                    session,
                    seen: AtomicBool::new(false),
                    answered: AtomicBool::new(false),
                    unseen: Arc::clone(&inner.unseen),
                    all: Arc::clone(&inner.held),
                    frees: Arc::clone(&inner.reclaim.queue),
                });
                inner.unseen.add(&taken);
                let now = inner.runtime.clock.now();
                inner.held.0.lock().insert(taken.number, now);
                inner.runtime.count.taken.one();
                Ok(Self(taken))
            }
            // No release can read it: it is moved into quarantine, or refused.
            Err(error) => {
                held.unserved = true;
                inner.reclaim.queue.release(session, held);
                Err(error)
            }
        }
    }

    /// The caller has looked at the sample. What tells a caller something about it calls this; see [`LeaseGrant::unserved`].
    pub(crate) fn look(&self) {
        self.0.see();
    }

    /// The sample's incarnation.
    pub fn reference(&self) -> SampleRef {
        self.look();
        self.0.held.lock().sample.clone()
    }

    /// The group that it was taken for; none for a plain read. No look at the sample: the caller named the group.
    pub fn group(&self) -> Option<GroupName> {
        self.0.held.lock().group.clone()
    }

    /// The fencing token.
    pub fn token(&self) -> Token {
        self.look();
        self.0.held.lock().token
    }

    /// The sample's description: its tensors and their specs.
    pub fn description(&self) -> &Arc<Description> {
        self.look();
        &self.0.description
    }

    /// Whether it was acknowledged, handed back or released here.
    pub fn is_answered(&self) -> bool {
        self.0.answered.load(Ordering::Acquire)
    }

    pub(crate) fn held(&self) -> LeaseGrant {
        self.look();
        self.grant()
    }

    /// What was granted. No look at the sample.
    pub(crate) fn grant(&self) -> LeaseGrant {
        self.0.held.lock().clone()
    }

    /// The sample's description, for the store itself. No look at the sample.
    pub(crate) fn unseen_description(&self) -> &Arc<Description> {
        &self.0.description
    }

    /// The sample and its description, for the store itself. No look at the sample.
    pub(crate) fn described(&self) -> DescribedRef {
        DescribedRef {
            reference: self.0.held.lock().sample.clone(),
            description: Some(Arc::clone(&self.0.description)),
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0.session
    }

    /// A step of its sample that began then has ended, for traces. No look at the sample.
    pub(crate) fn step_ended(
        &self,
        runtime: &Runtime,
        name: &'static str,
        started: Option<Timestamp>,
        error: Option<&Error>,
    ) {
        if started.is_some() {
            let sample = self.0.held.lock().sample.clone();
            runtime.step_ended(name, started, &sample, self.0.description.nonce, error);
        }
    }

    /// Records whether the engine failed to serve the latest get.
    pub(crate) fn set_unserved(&self, unserved: bool) {
        self.0.held.lock().unserved = unserved;
    }

    /// Stores the state after a renewal. Whether the engine served the lease is known only here, and may have changed
    /// meanwhile.
    pub(crate) fn set_held(&self, mut held: LeaseGrant) {
        let mut now = self.0.held.lock();
        held.unserved = now.unserved;
        *now = held;
    }

    pub(crate) fn set_answered(&self) {
        self.0.answer();
    }
}

/// A live sample, as it was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its incarnation.
    pub reference: SampleRef,
    /// Its description.
    pub description: Arc<Description>,
    /// The progress of its groups, its readers, and its size.
    pub record: Live,
}
