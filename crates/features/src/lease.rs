//! Taking samples: leases, and what becomes of those that no caller answers for.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_core::{Deadline, Error, Result, SampleId};
use holdfast_custody::{GroupName, Live, Token};
use holdfast_index::{LeaseGrant, SampleRef, Session, Terms, Unreadable};
use parking_lot::Mutex;

use crate::description::{Description, is_unreadable};
use crate::free::ReclaimQueue;
use crate::store::{FeatureStore, Inner};
use crate::tasks::Caller;
use crate::unreadable::Readable;

/// How long after its deadline a caller still waits for a lease that is being taken: the lease is of more use to this
/// caller than to the next. After that the caller counts as gone.
const ANSWERED_LATE: Duration = Duration::from_secs(1);

fn not_told(operation: &'static str) -> Error {
    let message = "the index did not say within the deadline whether the samples were taken; if they were, they go back \
                   without costing an attempt";
    Error::unavailable(operation, message)
}

/// A sample that this process has taken, for a group or for reading only. A clone is the same lease.
///
/// While it holds, the sample's objects are not removed. Answer for it with [`FeatureStore::ack`],
/// [`FeatureStore::nack`] or [`FeatureStore::release`]. If the last clone is dropped without an answer, the lease is
/// released in the background: a group's sample then waits for another attempt, as after a nack. A lease that its
/// holder has not even looked at (asked for its sample, token or tensors, or used it) goes back as if it had never been
/// taken, and costs the group no attempt. The same holds for a lease whose caller left before it was granted, and for
/// one that its holder has not looked at when the store is closed.
#[derive(Clone)]
pub struct Lease(Arc<Taken>);

struct Taken {
    held: Mutex<LeaseGrant>,
    description: Arc<Description>,
    session: Arc<Session>,
    /// Whether its holder has looked at it. Until then no caller knows what was taken.
    seen: AtomicBool,
    answered: AtomicBool,
    unseen: Arc<UnseenLeases>,
    frees: Arc<ReclaimQueue>,
}

impl Taken {
    /// Marks it as seen. Returns whether it was not before.
    fn see(&self) -> bool {
        let first = !self.seen.load(Ordering::Acquire) && !self.seen.swap(true, Ordering::AcqRel);
        if first {
            self.unseen.0.lock().remove(&std::ptr::from_ref(self).addr());
        }
        first
    }

    fn release(&self, unserved: bool) {
        if !self.answered.swap(true, Ordering::AcqRel) && self.session.is_alive() {
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

/// The leases of this process that their holders have not looked at, by address.
///
/// A session that ends costs each group whose lease it held an attempt. A closing store can only tell here which leases
/// no caller knows of: a result may be on its way to its caller, or lie in a task that nothing has let go of yet.
#[derive(Debug, Default)]
pub(crate) struct UnseenLeases(Mutex<HashMap<usize, Weak<Taken>>>);

impl UnseenLeases {
    fn add(&self, lease: &Arc<Taken>) {
        self.0.lock().insert(Arc::as_ptr(lease).addr(), Arc::downgrade(lease));
    }

    /// Returns all of them, as if they had never been taken.
    pub(crate) fn give_back(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        for lease in all.into_values().filter_map(|lease| lease.upgrade()) {
            if lease.see() {
                lease.release(true);
            }
        }
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
    fn new(mut held: LeaseGrant, readable: &Readable<'_>, session: &Arc<Session>, inner: &Inner) -> Result<Self> {
        let description = readable.take(&held.sample, &std::mem::take(&mut held.description));
        let session = Arc::clone(session);
        match description {
            Ok(description) => {
                let taken = Arc::new(Taken {
                    description,
                    held: Mutex::new(held),
                    session,
                    seen: AtomicBool::new(false),
                    answered: AtomicBool::new(false),
                    unseen: Arc::clone(&inner.unseen),
                    frees: Arc::clone(&inner.reclaim),
                });
                inner.unseen.add(&taken);
                Ok(Self(taken))
            }
            // No release can read it: it is moved into quarantine, or refused.
            Err(error) => {
                held.unserved = true;
                inner.reclaim.release(session, held);
                Err(error)
            }
        }
    }

    fn look(&self) {
        self.0.see();
    }

    /// The sample's incarnation.
    pub fn reference(&self) -> SampleRef {
        self.look();
        self.0.held.lock().sample.clone()
    }

    /// The group that it was taken for; none for a plain read.
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
        self.0.held.lock().clone()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.0.session
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
        self.0.answered.store(true, Ordering::Release);
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

impl Inner {
    /// Takes samples in the current session; once more in another session if that one turns out to have ended.
    async fn take(
        &self,
        group: Option<&GroupName>,
        samples: &[SampleRef],
        caller: &Caller,
        deadline: Deadline,
    ) -> Vec<Result<Lease>> {
        const OPERATION: &str = "features.lease";
        let ticks = self.config.lease_ticks;
        let readable = Readable::new(self);
        let terms = Terms {
            cancelled: caller.token(),
            usable: &|sample, description| readable.check(sample, description),
            // A read lease costs no attempt, and expires by itself.
            settle: group.map_or(Duration::ZERO, |_| self.config.call_within),
        };
        for last in [false, true] {
            let session = match self.sessions.current(OPERATION, deadline).await {
                Ok(session) => session,
                Err(error) => return vec![Err(error); samples.len()],
            };
            let left = deadline.remaining(&*self.clock);
            let held = self.index.take(&session, group, samples, ticks, terms, left).await;
            let ended = |result: &Result<LeaseGrant>| {
                let refused = result
                    .as_ref()
                    .err()
                    .map(|error| self.sessions.refused(&session, error));
                refused.unwrap_or(false)
            };
            if !last && !held.is_empty() && held.iter().all(ended) {
                continue;
            }
            return held
                .into_iter()
                .map(|held| Lease::new(held?, &readable, &session, self))
                .collect();
        }
        Vec::new()
    }

    /// Takes one sample for reading.
    pub(crate) async fn take_one(&self, sample: &SampleRef, caller: &Caller, deadline: Deadline) -> Result<Lease> {
        let none = || Err(Error::internal("features.read", "a sample got no result (a bug)"));
        let samples = std::slice::from_ref(sample);
        let mut leases = self.take(None, samples, caller, deadline).await;
        leases.pop().unwrap_or_else(none)
    }

    async fn take_next(
        &self,
        group: &GroupName,
        count: usize,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<Vec<Lease>> {
        const OPERATION: &str = "features.lease_next";
        let readable = Readable::new(self);
        let terms = Terms {
            cancelled: caller.token(),
            usable: &|sample, description| readable.check(sample, description),
            settle: self.config.call_within,
        };
        let mut again = true;
        loop {
            let session = self.sessions.current(OPERATION, deadline).await?;
            let (ticks, left) = (self.config.lease_ticks, deadline.remaining(&*self.clock));
            let held = self.index.take_next(&session, group, count, ticks, terms, left).await;
            let held = match held {
                Err(error) if again && self.sessions.refused(&session, &error) => {
                    again = false;
                    continue;
                }
                held => held?,
            };
            let mut leases = Vec::with_capacity(held.len());
            let mut refused = None;
            let mut unreadable = Vec::new();
            for held in held {
                let sample = held.sample.clone();
                match Lease::new(held, &readable, &session, self) {
                    Ok(lease) => leases.push(lease),
                    Err(error) if is_unreadable(&error) => unreadable.push(Unreadable {
                        sample,
                        why: error.to_string(),
                    }),
                    Err(error) => refused = Some(error),
                }
            }
            let moved = match unreadable.is_empty() {
                true => 0,
                false => self.quarantine(&unreadable, deadline).await,
            };
            // Samples that were taken beside an unreadable one must not be forgotten.
            return match refused {
                Some(error) if leases.is_empty() => Err(error),
                // No consumer can use a sample in quarantine: there may be other samples.
                None if leases.is_empty() && moved > 0 && !deadline.passed(&*self.clock) => continue,
                _ => Ok(leases),
            };
        }
    }
}

impl FeatureStore {
    /// Takes these samples for a group: each goes to one process of the group at a time. `Unsupported`: a later release
    /// has put it, and it is left as it was. The call waits up to a second past its deadline for an answer of the
    /// index. A lease that is granted even later goes back, and costs the group no attempt.
    pub async fn lease(&self, group: &GroupName, samples: &[SampleRef], within: Duration) -> Vec<Result<Lease>> {
        const OPERATION: &str = "features.lease";
        let (group, samples, count) = (group.clone(), samples.to_vec(), samples.len());
        let taking = self.run_batch_for(OPERATION, count, |inner, caller| async move {
            let deadline = inner.deadline(within);
            inner.take(Some(&group), &samples, &caller, deadline).await
        });
        let answer = tokio::time::timeout(within.saturating_add(ANSWERED_LATE), taking).await;
        answer.unwrap_or_else(|_| vec![Err(not_told(OPERATION)); count])
    }

    /// Takes the next samples of a group, up to `count`. Waits for the first one; an empty result at the deadline is
    /// not an error. Samples that a later release has put and this one cannot read are passed over, for other
    /// processes. The call waits up to a second past its deadline for an answer of the index. A lease that is granted
    /// even later goes back, and costs the group no attempt.
    pub async fn lease_next(&self, group: &GroupName, count: usize, within: Duration) -> Result<Vec<Lease>> {
        const OPERATION: &str = "features.lease_next";
        let group = group.clone();
        let taking = self.run_for(OPERATION, |inner, caller| async move {
            inner.take_next(&group, count, &caller, inner.deadline(within)).await
        });
        let answer = tokio::time::timeout(within.saturating_add(ANSWERED_LATE), taking).await;
        answer.unwrap_or_else(|_| Err(not_told(OPERATION)))
    }

    /// Takes samples for reading only, beside any number of other readers. Let go of them with
    /// [`FeatureStore::release`].
    pub async fn lease_shared(&self, samples: &[SampleRef], within: Duration) -> Vec<Result<Lease>> {
        let samples = samples.to_vec();
        self.run_batch_for("features.read", samples.len(), |inner, caller| async move {
            inner.take(None, &samples, &caller, inner.deadline(within)).await
        })
        .await
    }

    /// Looks samples up without taking them; none for a sample that is not live.
    pub async fn find(&self, samples: &[SampleId], within: Duration) -> Result<Vec<Option<Found>>> {
        let inner = self.inner();
        let deadline = inner.deadline(within);
        let mut all = Vec::with_capacity(samples.len());
        for view in inner.index.look(samples, within).await? {
            let Some(view) = view else {
                all.push(None);
                continue;
            };
            match Description::from_bytes(&view.description) {
                Ok(description) => all.push(Some(Found {
                    reference: view.sample,
                    description: Arc::new(description),
                    record: view.record.record,
                })),
                // A sample in quarantine is not live; the others are looked up all the same.
                Err(error) if is_unreadable(&error) => {
                    let unreadable = Unreadable {
                        sample: view.sample,
                        why: error.to_string(),
                    };
                    inner.quarantine(&[unreadable], deadline).await;
                    all.push(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}
