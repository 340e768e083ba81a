//! Getting by described references: bytes move while the index is asked, not after it has answered.
//!
//! ```text
//! described    ┌▶ free memory of the pool ─▶ bytes move, and are compared with the description ─┐
//! references ──┤                                                                                ├─▶ judged
//!              └▶ one look at the index (or a read lease is taken) ─────────────────────────────┘
//!
//!   the index says                          the bytes             the get
//!   live, and described the same            all as described      tensors
//!   live, and described the same            anything else         goes on without the description that was carried
//!   live, and described otherwise           any                   goes on without it
//!   another generation, none, no answer     any                   the error
//! ```
//! *Goes on without it*: what has arrived is thrown away, and the sample is got as the index describes it (module
//! `unleased`), or under the lease that was taken (module `get`). So whatever is wrong is found and reported there, and a
//! described reference can only make a get faster.
//!
//! # What must hold
//! A described reference may be old, of a later release, or forged (module `described`). Therefore:
//! - EG1: nothing is handed out unless the index says, during the call, that exactly this generation is live and has the
//!   description that the bytes were compared with. The get counts as made at that moment, as an unleased get does.
//! - EG2: only bytes that a checksum or a seal vouches for are read early: without, an object that is removed or still
//!   written could not be told from a good one.
//! - EG3: only objects with keys of this store's own making are read early: of this sample and this generation, or of the
//!   reservation made ahead that the description names.
//! - EG4: early bytes go into memory of the pool, if some is free, and at most half of it: never into memory of the
//!   caller or of a device, and no other get waits for memory because of a forged reference.
//! - EG5: in a sealed store, memory that is not handed out is cleared, as after every failed get.
//!
//! What is wrong with early bytes counts as nothing: not as corrupt, not as lost.
//!
//! # Several samples
//! They share the look and the engine's calls. If something is wrong with the bytes of one, each goes on by itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tensorhold_core::{Deadline, Error, Result, SampleId};
use tokio::sync::mpsc;

use crate::io::read::{Incoming, Moving};
use crate::memory::tensors::{TensorOut, Wanted};
use crate::ops::get_plan::GetPlan;
use crate::ops::put::Stored;
use crate::ops::unleased::LiveRef;
use crate::record::described::DescribedRef;
use crate::runtime::tasks::Caller;
use crate::store::lease::{Found, Lease};
use crate::store::{FeatureStore, Inner};

const OPERATION: &str = "features.get";

impl From<&Stored> for DescribedRef {
    fn from(stored: &Stored) -> Self {
        Self {
            reference: stored.reference.clone(),
            description: Some(Arc::clone(&stored.description)),
        }
    }
}

impl From<&Found> for DescribedRef {
    fn from(found: &Found) -> Self {
        Self {
            reference: found.reference.clone(),
            description: Some(Arc::clone(&found.description)),
        }
    }
}

impl From<&Lease> for DescribedRef {
    fn from(lease: &Lease) -> Self {
        lease.look();
        lease.described()
    }
}

/// A sample and what is wanted of it.
type Item<'a> = (&'a DescribedRef, &'a Wanted);
/// What the index says of a sample, and its tensors if they came early.
type Answer<T> = Result<(T, Option<Vec<TensorOut>>)>;

impl Inner {
    /// Moves the bytes of samples while `ask` is under way, and drops `moving` when they have moved. Hands out those that
    /// the answer `confirms`.
    async fn get_early<T>(
        &self,
        items: &[Item<'_>],
        moving: Moving,
        ask: impl Future<Output = Vec<Result<T>>>,
        confirms: impl Fn(&DescribedRef, &T) -> bool,
        deadline: Deadline,
    ) -> Vec<Answer<T>> {
        let mut plans = Vec::with_capacity(items.len());
        let mut objects = Vec::new();
        for item in items {
            let planned = self.plan_item(*item, deadline).await;
            plans.push(planned.map(|(plan, some)| {
                objects.extend(some);
                plan
            }));
        }
        let (fetched, asked) = tokio::join!(self.io.fetch(objects, moving, deadline), ask);
        if let Err(trouble) = &fetched {
            tracing::debug!(?trouble, "bytes that were read early are thrown away");
        }
        let mut answers = Vec::with_capacity(items.len());
        for (((sample, _), plan), asked) in items.iter().zip(plans).zip(asked) {
            let confirmed = fetched.is_ok() && asked.as_ref().is_ok_and(|asked| confirms(sample, asked));
            let got = match plan {
                Some(plan) => {
                    let arrived = confirmed.then_some(()).ok_or_else(unconfirmed);
                    self.handed_out(plan, arrived).await.ok()
                }
                None => None,
            };
            answers.push(asked.map(|asked| (asked, got)));
        }
        answers
    }

    /// The plan of an early get and its objects; none if the sample is not got early.
    async fn plan_item<'a>(
        &'a self,
        (sample, wanted): Item<'a>,
        deadline: Deadline,
    ) -> Option<(GetPlan<'a>, Vec<Incoming>)> {
        let description = sample.description.as_ref()?;
        let plan = self.plan_early(&sample.reference, description, wanted, deadline).await;
        let planned = plan.and_then(|plan| match plan {
            Some(plan) => {
                let objects = plan.objects()?;
                Ok(Some((plan, objects)))
            }
            None => Ok(None),
        });
        planned.unwrap_or_else(|error| {
            tracing::debug!(%error, sample = %sample.reference.sample, "a description that was carried is of no use");
            None
        })
    }

    /// Gets samples without leases.
    async fn get_described(
        &self,
        items: Vec<(DescribedRef, Wanted)>,
        caller: &Caller,
        deadline: Deadline,
    ) -> Vec<Result<Vec<TensorOut>>> {
        let started = self.runtime.step_begins();
        let pairs: Vec<Item<'_>> = items.iter().map(|(sample, wanted)| (sample, wanted)).collect();
        let (moving, _moved) = mpsc::channel(1);
        let ask = self.find_live_all(&pairs, deadline);
        let same = |sample: &DescribedRef, live: &LiveRef| sample.description.as_ref() == Some(live.description());
        let mut answers = self.get_early(&pairs, moving, ask, same, deadline).await;
        self.get_found(&pairs, &mut answers, deadline).await;
        for ((sample, _), answer) in items.iter().zip(&answers) {
            if let Ok((live, Some(_))) = answer {
                let nonce = live.description().nonce;
                self.runtime.step_ended("get", started, &sample.reference, nonce, None);
            }
        }
        let each = items.into_iter().zip(answers).map(|((_, wanted), answer)| async move {
            match answer? {
                (_, Some(tensors)) => Ok(tensors),
                (live, None) => self.get_unleased(live, wanted, caller, deadline).await,
            }
        });
        join_all(each).await
    }

    /// Gets together what came without a description, now that the index has given them.
    async fn get_found(&self, items: &[Item<'_>], answers: &mut [Answer<LiveRef>], deadline: Deadline) {
        let mut found = Vec::new();
        for ((sample, wanted), answer) in items.iter().zip(answers) {
            if let (None, Ok((live, got @ None))) = (&sample.description, answer) {
                found.push((live.described(), *wanted, got));
            }
        }
        // One of them is got as well by itself, and waits for memory if it has to.
        if found.len() < 2 {
            return;
        }
        let items: Vec<Item<'_>> = found.iter().map(|(sample, wanted, _)| (sample, *wanted)).collect();
        let (moving, _moved) = mpsc::channel(1);
        let known = std::future::ready(vec![Ok(()); items.len()]);
        let together = self.get_early(&items, moving, known, |_, ()| true, deadline).await;
        for ((_, _, got), answer) in found.into_iter().zip(together) {
            *got = answer.ok().and_then(|((), tensors)| tensors);
        }
    }

    /// What the index says of these samples, with one look.
    async fn find_live_all(&self, items: &[Item<'_>], deadline: Deadline) -> Vec<Result<LiveRef>> {
        let samples: Vec<SampleId> = items.iter().map(|(item, _)| item.reference.sample.clone()).collect();
        match self.find(&samples, deadline).await {
            Err(error) => items.iter().map(|_| Err(error.clone())).collect(),
            Ok(found) => {
                let live = |((item, _), found): (&Item<'_>, Result<Option<Found>>)| {
                    let generation = Some(item.reference.generation);
                    self.live(&item.reference.sample, generation, found?)
                };
                items.iter().zip(found).map(live).collect()
            }
        }
    }

    /// Gets samples under their leases. Only an error is a look at them.
    async fn get_leased(
        &self,
        items: Vec<(Lease, Wanted)>,
        caller: &Caller,
        deadline: Deadline,
    ) -> Vec<Result<Vec<TensorOut>>> {
        let started = self.runtime.step_begins();
        let leases: Vec<Lease> = items.iter().map(|(lease, _)| lease.clone()).collect();
        let samples: Vec<DescribedRef> = leases.iter().map(Lease::described).collect();
        let wanted = items.iter().map(|(_, wanted)| wanted);
        let pairs: Vec<Item<'_>> = samples.iter().zip(wanted).collect();
        let (moving, mut moved) = mpsc::channel(1);
        let ask = async {
            let checks = leases.iter().map(|lease| async move {
                let held = lease.grant();
                self.checks.ask(lease.session(), &held, deadline).await
            });
            tokio::join!(join_all(checks), self.until_moved(&leases, &mut moved, deadline)).0
        };
        let answers = self
            .get_early(&pairs, moving, ask, |_, good: &bool| *good, deadline)
            .await;
        let each = items
            .into_iter()
            .zip(answers)
            .map(|((lease, wanted), answer)| async move {
                match answer {
                    Ok((_, Some(tensors))) => {
                        lease.set_unserved(false);
                        lease.step_ended(&self.runtime, "get", started, None);
                        Ok(tensors)
                    }
                    // The get asks again, and says what is wrong. A caller that is told so knows of the sample.
                    _ => {
                        let got = self.get(&lease, wanted, caller, deadline).await;
                        if got.is_err() && caller.may_wait() {
                            lease.look();
                        }
                        got
                    }
                }
            });
        join_all(each).await
    }

    async fn lease_shared_and_get(
        &self,
        sample: &DescribedRef,
        wanted: Wanted,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<(Lease, Vec<TensorOut>)> {
        let started = self.runtime.step_begins();
        let (moving, _moved) = mpsc::channel(1);
        let ask = async { vec![self.take_one(&sample.reference, caller, deadline).await] };
        let same = |sample: &DescribedRef, lease: &Lease| sample.description.as_ref() == Some(lease.description());
        let mut answers = self.get_early(&[(sample, &wanted)], moving, ask, same, deadline).await;
        let none = || Err(Error::internal(OPERATION, "a sample got no result; this is a bug"));
        let answer = answers.pop().unwrap_or_else(none);
        let answer = answer.map_err(|error| self.reclaim.gone(&sample.reference, error))?;
        match answer {
            (lease, Some(tensors)) => {
                lease.step_ended(&self.runtime, "get", started, None);
                Ok((lease, tensors))
            }
            (lease, None) => {
                let tensors = self.get(&lease, wanted, caller, deadline).await?;
                Ok((lease, tensors))
            }
        }
    }
}

/// The error of early bytes that are not handed out. No caller sees it.
fn unconfirmed() -> Error {
    Error::internal(OPERATION, "the index did not confirm bytes that were read early")
}

impl FeatureStore {
    /// Gets tensors of a sample, without a lease: exactly the committed bytes, or an error and no bytes. If the reference
    /// carries the sample's description, the bytes move while the index is asked. Errors as of
    /// [`FeatureStore::get_unleased`]; `Fenced` if another generation is live, `NotFound` if none is.
    pub async fn get_described(
        &self,
        sample: DescribedRef,
        wanted: Wanted,
        within: Duration,
    ) -> Result<Vec<TensorOut>> {
        let mut got = self.get_described_many(vec![(sample, wanted)], within).await;
        let none = || Err(Error::internal(OPERATION, "a sample got no result; this is a bug"));
        got.pop().unwrap_or_else(none)
    }

    /// [`FeatureStore::get_described`] for several samples, which share calls to the index and to the engine. Their tensors
    /// have to fit into the pool together.
    pub async fn get_described_many(
        &self,
        items: Vec<(DescribedRef, Wanted)>,
        within: Duration,
    ) -> Vec<Result<Vec<TensorOut>>> {
        self.run_batch_for(OPERATION, items.len(), |inner, caller| async move {
            inner.get_described(items, &caller, inner.deadline(within)).await
        })
        .await
    }

    /// [`FeatureStore::get`] for several leases, which share calls to the index and to the engine. Their tensors have to
    /// fit into the pool together.
    pub async fn get_many(&self, items: Vec<(Lease, Wanted)>, within: Duration) -> Vec<Result<Vec<TensorOut>>> {
        for (lease, _) in &items {
            lease.look();
        }
        self.get_ahead(items, within).await
    }

    /// [`FeatureStore::get_many`] before the holder of the leases looks at them: one that is dropped after this goes back as
    /// if it had never been taken.
    pub async fn get_ahead(&self, items: Vec<(Lease, Wanted)>, within: Duration) -> Vec<Result<Vec<TensorOut>>> {
        self.run_batch_for(OPERATION, items.len(), |inner, caller| async move {
            inner.get_leased(items, &caller, inner.deadline(within)).await
        })
        .await
    }

    /// Takes a sample for reading only and gets tensors of it. If the reference carries the sample's description, both
    /// happen side by side. Errors as of [`FeatureStore::lease_shared`] and [`FeatureStore::get`]; then the lease, if it was
    /// taken, is released in the background.
    pub async fn lease_shared_and_get(
        &self,
        sample: DescribedRef,
        wanted: Wanted,
        within: Duration,
    ) -> Result<(Lease, Vec<TensorOut>)> {
        self.run_for(OPERATION, |inner, caller| async move {
            let deadline = inner.deadline(within);
            inner.lease_shared_and_get(&sample, wanted, &caller, deadline).await
        })
        .await
    }
}
