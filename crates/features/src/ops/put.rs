//! Putting samples: reserve, move the bytes, commit. The crate's documentation has the overview.
//!
//! ```text
//!            reserve             all objects stored           commit: yes
//! prepared ──────────▶ reserved ────────────────────▶ stored ────────────────────────────▶ live
//!    │ refused            │ full until the deadline,     │ no, for good        ▲ it is there
//!    ▼                    │ failed, given up             │                     │
//!  error                  ▼                              ▼                  unclear ──read back, or give up the
//!                      undone ◀──────────────────────────┘                     │      reservation─▶ undone
//!                      (the engine lets go of the memory ─▶ reservation        ▼ the index does not answer
//!                       given up ─▶ objects removed)                        error `Ambiguous`; a sweep settles it
//! ```
//!
//! Most puts find a reservation that was made ahead (module `ahead`), and wait for the index once: for the commit.
//!
//! The samples of a batch go this way together, with one call to the index and to the engine for all of them. A sample
//! whose memory is busy when it is prepared (module `claims`) leaves the batch: it waits in a queue, holds nothing
//! meanwhile, and then proceeds alone. So it delays no other sample, and no put waits for memory while it holds some.
//!
//! A put whose bytes met a dead holder begins anew under other keys, at another holder (module `put_elsewhere`).
//!
//! *Given up*, any time before the commit: the caller has left, the sample was aborted here, or a later call of this
//! process puts the same sample (module `inflight_puts`). Waits end then.
//!
//! *Undone* is a job for the worker (module `reclaim::queue`). It starts when the last holder lets go of the memory (module
//! `tensorhold_engine::guarded`): a put call that outlived its deadline may still write, and the removal must find what it writes. Until then
//! the sample stays reserved, so no other put can take its place either.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Error, Nonce, Result, SampleId};
use tensorhold_custody::{Publication, Version};
use tensorhold_engine::busy::Waiting;
use tensorhold_index::{Commit, SampleRef, Session};
use tokio::task::JoinSet;

use crate::memory::claims::at_once;
use crate::memory::tensors::TensorIn;
use crate::ops::commit::Committed;
use crate::ops::put_elsewhere::{Again, Attempt};
use crate::ops::put_plan::{PutPlan, Record};
use crate::ops::put_reserve::Reserved;
use crate::ops::put_write::recorded;
use crate::reclaim::queue::Job;
use crate::record::description::Description;
use crate::runtime::inflight_puts::Begun;
use crate::runtime::tasks::Caller;
use crate::store::{FeatureStore, Inner};

pub use crate::runtime::inflight_puts::PutTurn;

pub(super) const OPERATION: &str = "features.put";

/// A sample to be put.
#[derive(Debug)]
pub struct PutItem {
    /// Its id. If a sample of this id is live, this one replaces it when it is committed.
    pub sample: SampleId,
    /// Its tensors, each name once, at least one.
    pub tensors: Vec<TensorIn>,
    /// Which groups it is for, and on which terms.
    pub publication: Publication,
}

/// A sample that was put.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its incarnation.
    pub reference: SampleRef,
    /// The index's version from which it is visible.
    pub version: Version,
    /// Its description.
    pub description: Arc<Description>,
}

/// A sample that can be reserved.
pub(super) struct Ready {
    /// Its position in the batch.
    pub(super) at: usize,
    pub(super) prepared: PutPlan,
    pub(super) begun: Arc<Begun>,
}

/// The results of samples, by their positions in the batch.
pub(super) type Results = Vec<(usize, Result<Stored>)>;

impl Inner {
    pub(crate) async fn put_many(
        self: &Arc<Self>,
        items: Vec<PutItem>,
        turn: PutTurn,
        caller: &Caller,
        deadline: Deadline,
    ) -> Vec<Result<Stored>> {
        let started = self.runtime.step_begins();
        let count = items.len();
        let turn = Arc::new(turn);
        let mut results = Results::with_capacity(count);
        let mut prepared = Vec::with_capacity(count);
        for (at, item) in items.into_iter().enumerate() {
            match self.ready(at, item, &turn, caller, deadline).await {
                Ok(ready) => prepared.push(ready),
                Err(error) => results.push((at, Err(error))),
            }
        }
        let mut free = Vec::with_capacity(prepared.len());
        let mut in_line = JoinSet::new();
        for ready in prepared {
            match ready.prepared.claim().map(at_once) {
                Ok(Ok(claim)) => {
                    ready.prepared.keep(claim);
                    free.push(ready);
                }
                Ok(Err(waiting)) => {
                    let (inner, turn, caller) = (Arc::clone(self), Arc::clone(&turn), caller.clone());
                    in_line.spawn(async move { inner.put_when_free(ready, waiting, &turn, &caller, deadline).await });
                }
                Err(error) => results.push((ready.at, Err(error))),
            }
        }
        results.extend(self.put_claimed(free, &turn, caller, deadline).await);
        let mut forgotten = Error::internal(OPERATION, "a sample of the batch got no result; this is a bug");
        while let Some(ended) = in_line.join_next().await {
            match ended {
                Ok(more) => results.extend(more),
                Err(failure) => forgotten = forgotten.caused_by(failure),
            }
        }
        for (_, result) in &results {
            match result {
                Ok(stored) => {
                    self.runtime.count.puts.one();
                    self.runtime.count.bytes_put.add(stored.description.bytes());
                    let (reference, nonce) = (&stored.reference, stored.description.nonce);
                    self.runtime.step_ended("put", started, reference, nonce, None);
                }
                Err(_) => self.runtime.count.failed_puts.one(),
            }
        }
        let mut in_order: Vec<Result<Stored>> = (0..count).map(|_| Err(forgotten.clone())).collect();
        for (at, result) in results {
            in_order[at] = result;
        }
        in_order
    }

    async fn ready(
        &self,
        at: usize,
        item: PutItem,
        turn: &PutTurn,
        caller: &Caller,
        deadline: Deadline,
    ) -> Result<Ready> {
        let begun = turn.put(&item.sample)?;
        let prepared = tokio::select! {
            biased;
            () = wait_ends(turn, caller, &begun) => return Err(unwanted(&begun, caller)),
            prepared = self.plan_put(item, deadline) => prepared?,
        };
        Ok(Ready { at, prepared, begun })
    }

    /// Puts a sample by itself, as soon as its memory is free.
    async fn put_when_free(
        &self,
        ready: Ready,
        waiting: Waiting,
        turn: &PutTurn,
        caller: &Caller,
        deadline: Deadline,
    ) -> Results {
        let granted = tokio::select! {
            biased;
            () = wait_ends(turn, caller, &ready.begun) => Err(unwanted(&ready.begun, caller)),
            granted = self.memory.granted(waiting, deadline) => granted,
        };
        match granted {
            Ok(claim) => {
                ready.prepared.keep(claim);
                self.put_claimed(vec![ready], turn, caller, deadline).await
            }
            Err(error) => vec![(ready.at, Err(error))],
        }
    }

    /// Puts samples whose memory is claimed.
    async fn put_claimed(&self, samples: Vec<Ready>, turn: &PutTurn, caller: &Caller, deadline: Deadline) -> Results {
        let mut results = Results::with_capacity(samples.len());
        let (mut open, mut attempt) = (samples, Attempt::first(&*self.runtime.rng));
        while !open.is_empty() {
            let again = self
                .put_once(open, &attempt, turn, caller, &mut results, deadline)
                .await;
            self.prepare_next(&mut attempt, &again, deadline).await;
            open = again.samples;
        }
        results
    }

    /// Puts samples. Returns those that are to be put again under other keys: nothing was committed of them. Their
    /// reservation was made ahead and had ended with its session, which may be found out as late as by the commit; or their
    /// bytes met a holder that does not answer (module `put_elsewhere`).
    async fn put_once(
        &self,
        samples: Vec<Ready>,
        attempt: &Attempt,
        turn: &PutTurn,
        caller: &Caller,
        results: &mut Results,
        deadline: Deadline,
    ) -> Again {
        // Started before the index has answered: the bytes are here already.
        let digests = (self.runtime.config.checksum && self.io.seals.is_none()).then(|| {
            self.io.digests(
                samples
                    .iter()
                    .map(|ready| ready.prepared.objects().cloned().collect())
                    .collect(),
                deadline,
            )
        });
        let session = match self.runtime.sessions.current(OPERATION, deadline).await {
            Ok(session) => session,
            Err(error) => {
                results.extend(samples.iter().map(|ready| (ready.at, Err(error.clone()))));
                return Again::default();
            }
        };
        let taken = match attempt.ahead {
            true => self.take_ahead(&session, &samples),
            false => Vec::new(),
        };
        let (session, reserved) = match taken.is_empty() {
            true => self.reserve(session, samples, turn, caller, results, deadline).await,
            false => {
                let reserved = self.bind(&session, samples, taken, results);
                (session, reserved)
            }
        };
        let puts: Vec<Arc<Begun>> = reserved.iter().map(|sample| Arc::clone(&sample.begun)).collect();
        let records = tokio::select! {
            biased;
            // Memory that the engine still reads is kept until it is done; nothing of it is committed.
            () = nobody_wants(turn, caller, &puts) => puts.iter().map(|begun| Err(unwanted(begun, caller))).collect(),
            (sent, digests) = self.write_and_sum(&reserved, digests, &attempt.prefer, deadline) => {
                recorded(&reserved, sent, digests)
            }
        };
        self.commit_all(&session, reserved, records, caller, results, deadline)
            .await
    }

    async fn commit_all(
        &self,
        session: &Arc<Session>,
        reserved: Vec<Reserved>,
        records: Vec<Result<Record>>,
        caller: &Caller,
        results: &mut Results,
        deadline: Deadline,
    ) -> Again {
        let mut again = Again::default();
        let mut commits = Vec::new();
        let mut ready = Vec::new();
        for (sample, record) in reserved.into_iter().zip(records) {
            let described = record.and_then(|record| sample.prepared.describe(self.io.object_bytes(), record));
            let outcome = described.and_then(|description| {
                let bytes = description.to_bytes()?;
                if caller.is_gone() {
                    return Err(unwanted(&sample.begun, caller));
                }
                sample.begun.may_commit()?;
                Ok((description, bytes))
            });
            match outcome {
                Ok((description, bytes)) => {
                    commits.push(Commit {
                        sample: sample.reference.clone(),
                        becomes: sample.becomes(),
                        publication: sample.prepared.publication.clone(),
                        description: bytes,
                    });
                    ready.push((sample, Arc::new(description)));
                }
                Err(error) => match self.to_put_elsewhere(session, sample, error, deadline).await {
                    Ok(ready) => {
                        again.samples.push(ready);
                        again.elsewhere = true;
                    }
                    Err(failed) => results.push(failed),
                },
            }
        }
        let committed = self.commit(session, &commits, deadline).await;
        for ((sample, description), committed) in ready.into_iter().zip(committed) {
            let at = sample.at;
            let result = match committed {
                Committed::Yes {
                    version,
                    may_have_replaced,
                } => {
                    if may_have_replaced {
                        self.reclaim.queue.collect_soon();
                    }
                    Ok(Stored {
                        reference: sample.incarnation(version),
                        version,
                        description,
                    })
                }
                Committed::No(error)
                    if sample.prepared.reserved_as.is_some() && self.runtime.sessions.refused(session, &error) =>
                {
                    again.samples.push(self.to_put_again(session, sample));
                    continue;
                }
                Committed::No(error) | Committed::GivenUp(error) => Err(self.undo(session, sample, error)),
                Committed::Unknown(error) => Err(error),
            };
            results.push((at, result));
        }
        again
    }

    /// The same sample, to be put under another key. What was written under the first one is removed at once, and not when
    /// the memory is free: no call that writes it is under way any more.
    pub(super) fn to_put_again(&self, session: &Arc<Session>, sample: Reserved) -> Ready {
        let Reserved {
            at,
            mut prepared,
            reference,
            keys,
            begun,
            ..
        } = sample;
        self.reclaim.free_soon(Job {
            sample: reference,
            keys,
            abort: Some(Arc::clone(session)),
            put: None,
        });
        prepared.nonce = Nonce::draw(&*self.runtime.rng);
        prepared.reserved_as = None;
        Ready { at, prepared, begun }
    }

    /// Hands the cleanup after a failed put to the worker, as soon as the engine has let go of the memory.
    pub(super) fn undo(&self, session: &Arc<Session>, sample: Reserved, error: Error) -> Error {
        let error = error
            .with("sample", &sample.prepared.sample)
            .with("generation", sample.reference.generation);
        sample.prepared.witness.undo(Job {
            sample: sample.reference,
            keys: sample.keys,
            abort: Some(Arc::clone(session)),
            put: Some(sample.begun),
        });
        error
    }
}

/// Pends until none of these puts is wanted any more: their caller has left, or every one of them is given up.
async fn nobody_wants(turn: &PutTurn, caller: &Caller, puts: &[Arc<Begun>]) {
    tokio::select! {
        () = caller.left() => {}
        () = turn.all_are_given_up(puts) => {}
    }
}

/// Pends until a put that has written nothing may not wait any longer: the store is closing, or the put is not wanted.
async fn wait_ends(turn: &PutTurn, caller: &Caller, put: &Arc<Begun>) {
    tokio::select! {
        () = caller.waits_end() => {}
        () = turn.all_are_given_up(std::slice::from_ref(put)) => {}
    }
}

/// Why a put is not made.
pub(super) fn unwanted(begun: &Begun, caller: &Caller) -> Error {
    match begun.counts() {
        Err(error) => error,
        Ok(()) => caller.ended(OPERATION, "the caller left; the sample was not committed"),
    }
}

impl FeatureStore {
    /// Puts a sample. When this returns, the sample is visible to all its groups, as a whole. On an error it is not,
    /// except with [`tensorhold_core::Retry::Ambiguous`]: then it may be, so look it up. A put that finds the engine full
    /// waits for room within its time.
    ///
    /// If the caller leaves before the commit, the put is undone. Of several puts of a sample by this process the
    /// latest call counts; the earlier ones end with `Conflict`.
    pub async fn put(&self, item: PutItem, within: Duration) -> Result<Stored> {
        let mut results = self.put_many(vec![item], within).await;
        results
            .pop()
            .unwrap_or_else(|| Err(Error::internal(OPERATION, "the sample got no result; this is a bug")))
    }

    /// Puts several samples, each independently: one may fail while another succeeds. They share calls to the index and
    /// to the engine.
    pub async fn put_many(&self, items: Vec<PutItem>, within: Duration) -> Vec<Result<Stored>> {
        let turn = self.begin_put(items.iter().map(|item| &item.sample));
        self.put_begun(turn, items, within).await
    }

    /// Announces that a put of these samples begins, for callers that have to wait for something before they can make
    /// it. From now on it takes precedence over earlier puts of this process, and an abort gives it up. Dropping the
    /// turn takes that back.
    pub fn begin_put<'a>(&self, samples: impl IntoIterator<Item = &'a SampleId>) -> PutTurn {
        self.inner().inflight_puts.call(samples)
    }

    /// As [`FeatureStore::put_many`], for samples whose put has begun.
    pub async fn put_begun(&self, turn: PutTurn, items: Vec<PutItem>, within: Duration) -> Vec<Result<Stored>> {
        self.run_batch_for(OPERATION, items.len(), |inner, caller| async move {
            inner.put_many(items, turn, &caller, inner.deadline(within)).await
        })
        .await
    }
}
