//! Taking samples: for a group, by name or the next ones, or for reading only.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Error, Result, SampleId};
use tensorhold_custody::GroupName;
use tensorhold_index::{LeaseGrant, SampleRef, Session, Terms, Unreadable};

use crate::record::description::{Description, is_unreadable};
use crate::runtime::tasks::Caller;
use crate::store::lease::{Found, Lease};
use crate::store::unreadable::Readable;
use crate::store::{FeatureStore, Inner};

/// How long after its deadline a caller still waits for a lease that is being taken: the lease is of more use to this
/// caller than to the next. After that the caller counts as gone.
const ANSWERED_LATE: Duration = Duration::from_secs(1);

fn not_told(operation: &'static str) -> Error {
    let message = "the index did not say within the deadline whether the samples were taken; if they were, they go back \
                   without costing an attempt";
    Error::unavailable(operation, message)
}

impl Inner {
    /// The current session; another one only if the store is not closing.
    async fn session_of_take(
        &self,
        operation: &'static str,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<Arc<Session>> {
        caller.store_is_open(operation)?;
        self.runtime.sessions.current(operation, deadline).await
    }

    /// Takes samples in the current session; once more in another session if that one turns out to have ended.
    async fn take(
        &self,
        group: Option<&GroupName>,
        samples: &[SampleRef],
        caller: &Caller,
        deadline: Deadline,
    ) -> Vec<Result<Lease>> {
        const OPERATION: &str = "features.lease";
        let started = self.runtime.step_begins();
        let ticks = self.runtime.config.lease_ticks;
        let readable = Readable::new(self);
        let terms = Terms {
            cancelled: caller.token(),
            usable: &|sample, description| readable.check(sample, description),
            // A read lease costs no attempt, and expires by itself.
            settle: group.map_or(Duration::ZERO, |_| self.runtime.config.call_within),
            waits: true,
        };
        for last in [false, true] {
            let session = match self.session_of_take(OPERATION, caller, deadline).await {
                Ok(session) => session,
                Err(error) => return vec![Err(error); samples.len()],
            };
            let left = self.runtime.left(deadline);
            let held = self
                .runtime
                .index
                .take(&session, group, samples, ticks, terms, left)
                .await;
            let ended = |result: &Result<LeaseGrant>| {
                let refused = result
                    .as_ref()
                    .err()
                    .map(|error| self.runtime.sessions.refused(&session, error));
                refused.unwrap_or(false)
            };
            if !last && !held.is_empty() && held.iter().all(ended) {
                continue;
            }
            let taken = held
                .into_iter()
                .map(|held| Lease::new(held?, &readable, &session, self));
            let taken: Vec<Result<Lease>> = taken.collect();
            // No caller could answer for them any more. Dropped, they go back as if they had never been taken.
            if let Err(closed) = caller.store_is_open(OPERATION) {
                return vec![Err(closed); samples.len()];
            }
            for lease in taken.iter().flatten() {
                lease.step_ended(&self.runtime, "take", started, None);
            }
            return taken;
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

    /// Looks samples up: for each what was found, none if it is not live, an error if a later release has put it.
    pub(crate) async fn find(&self, samples: &[SampleId], deadline: Deadline) -> Result<Vec<Result<Option<Found>>>> {
        let mut all = Vec::with_capacity(samples.len());
        for view in self.runtime.index.look(samples, self.runtime.left(deadline)).await? {
            let Some(view) = view else {
                all.push(Ok(None));
                continue;
            };
            all.push(match Description::from_bytes(&view.description) {
                Ok(description) => Ok(Some(Found {
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
                    self.reclaim.quarantine(&[unreadable], deadline).await;
                    Ok(None)
                }
                Err(error) => Err(error),
            });
        }
        Ok(all)
    }

    async fn take_next(
        &self,
        group: &GroupName,
        count: usize,
        waits: bool,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<Vec<Lease>> {
        const OPERATION: &str = "features.lease_next";
        let started = self.runtime.step_begins();
        let readable = Readable::new(self);
        let terms = Terms {
            cancelled: caller.token(),
            usable: &|sample, description| readable.check(sample, description),
            settle: self.runtime.config.call_within,
            waits,
        };
        let mut again = true;
        loop {
            let session = self.session_of_take(OPERATION, caller, deadline).await?;
            let (ticks, left) = (self.runtime.config.lease_ticks, self.runtime.left(deadline));
            let held = tokio::select! {
                biased;
                held = self.runtime.index.take_next(&session, group, count, ticks, terms, left) => held,
                never = self.look_while_unfed(group), if waits => match never {},
            };
            let held = match held {
                Err(error) if again && self.runtime.sessions.refused(&session, &error) => {
                    again = false;
                    continue;
                }
                held => held?,
            };
            if !held.is_empty() {
                self.unfed.is_fed(group);
            }
            let mut leases = Vec::with_capacity(held.len());
            let mut refused = caller.store_is_open(OPERATION).err();
            let is_closing = refused.is_some();
            let mut unreadable = Vec::new();
            for held in held {
                let sample = held.sample.clone();
                match Lease::new(held, &readable, &session, self) {
                    Ok(lease) => {
                        lease.step_ended(&self.runtime, "take", started, None);
                        leases.push(lease);
                    }
                    Err(error) if is_unreadable(&error) => unreadable.push(Unreadable {
                        sample,
                        why: error.to_string(),
                    }),
                    Err(error) => refused = Some(error),
                }
            }
            let moved = match unreadable.is_empty() {
                true => 0,
                false => self.reclaim.quarantine(&unreadable, deadline).await,
            };
            // Samples that were taken beside an unreadable one must not be forgotten. In a store that closes no caller could
            // answer for them any more: dropped, they go back as if they had never been taken.
            return match refused {
                Some(error) if leases.is_empty() || is_closing => Err(error),
                // No consumer can use a sample in quarantine: there may be other samples.
                None if leases.is_empty() && moved > 0 && !deadline.passed(&*self.runtime.clock) => continue,
                _ => {
                    self.runtime.count.empty_takes.add(u64::from(leases.is_empty()));
                    Ok(leases)
                }
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
    /// even later goes back, and costs the group no attempt. `Unavailable` at once if the store is closed meanwhile.
    pub async fn lease_next(&self, group: &GroupName, count: usize, within: Duration) -> Result<Vec<Lease>> {
        self.next(group, count, true, within).await
    }

    /// As [`FeatureStore::lease_next`], without waiting: takes the samples that are ready now, or none.
    pub async fn lease_ready(&self, group: &GroupName, count: usize, within: Duration) -> Result<Vec<Lease>> {
        self.next(group, count, false, within).await
    }

    async fn next(&self, group: &GroupName, count: usize, waits: bool, within: Duration) -> Result<Vec<Lease>> {
        const OPERATION: &str = "features.lease_next";
        let group = group.clone();
        let taking = self.run_for(OPERATION, |inner, caller| async move {
            let deadline = inner.deadline(within);
            inner.take_next(&group, count, waits, &caller, deadline).await
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
        inner.find(samples, inner.deadline(within)).await?.into_iter().collect()
    }
}
