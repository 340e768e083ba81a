//! Putting samples: reserve, move the bytes, commit. See the crate's story.
//!
//! ```text
//!            reserve             all objects stored           commit: yes
//! prepared ──────────▶ reserved ────────────────────▶ stored ────────────────────────────▶ live
//!    │ refused            │ full until the deadline,     │ no, for good        ▲ it is there
//!    ▼                    │ failed, aborted here         │                     │
//!  error                  ▼                              ▼                  unclear ──read back, or give up the
//!                      undone ◀──────────────────────────┘                     │      reservation─▶ undone
//!                      (the engine lets go of the memory ─▶ reservation        ▼ the index does not answer
//!                       given up ─▶ objects removed)                        error `Ambiguous`; a sweep settles it
//! ```
//!
//! *Undone* is a job for the worker (module `free`), set off by the last one to let go of the memory (module `loan`): a
//! put call that outlived its deadline may still write, and what it writes must be found by the removal. Until then the
//! sample stays reserved, so nobody else can take its place either.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Digest, Error, ErrorKind, Generation, ObjectKey, Result, SampleId};
use holdfast_custody::{Publication, Version};
use holdfast_engine::Transfer;
use holdfast_index::{Commit, Reserve, SampleRef, Session};

use crate::commit::Committed;
use crate::description::Description;
use crate::free::Job;
use crate::plan::Place;
use crate::prepare::{Prepared, Record};
use crate::sealed::Seals;
use crate::send_sealed::{SampleToSeal, ToSeal};
use crate::store::{FeatureStore, Inner};
use crate::tensors::TensorIn;
use crate::transfer::{Digests, Outgoing};
use crate::writing::{Turn, Written};

const OPERATION: &str = "features.put";

/// A sample to be put.
#[derive(Debug)]
pub struct PutItem {
    /// Its id. If a sample of this id is live, this one takes its place when it is committed.
    pub sample: SampleId,
    /// Its tensors, each name once, at least one.
    pub tensors: Vec<TensorIn>,
    /// For whom it is.
    pub publication: Publication,
}

/// A sample that was put.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its incarnation.
    pub reference: SampleRef,
    /// The index's version from which it is visible.
    pub version: Version,
    /// What it says about itself.
    pub description: Arc<Description>,
}

/// A sample that is reserved.
struct Reserved<'a> {
    /// Its place in the batch.
    at: usize,
    /// Its place among those that were prepared.
    order: usize,
    prepared: Prepared,
    reference: SampleRef,
    keys: Vec<ObjectKey>,
    written: Written<'a>,
}

impl Inner {
    pub(crate) async fn put_many(&self, items: Vec<PutItem>, deadline: Deadline) -> Vec<Result<Stored>> {
        let count = items.len();
        let samples: Vec<SampleId> = items.iter().map(|item| item.sample.clone()).collect();
        let turn = self.writing.call(samples.iter());
        let mut results: Vec<Option<Result<Stored>>> = (0..count).map(|_| None).collect();
        let mut prepared = Vec::with_capacity(count);
        for (at, item) in items.into_iter().enumerate() {
            match self.prepare(item, deadline).await {
                Ok(ready) => prepared.push((at, ready)),
                Err(error) => results[at] = Some(Err(error)),
            }
        }
        if let Err(error) = self.claim_sources(&prepared, deadline).await {
            for (at, _) in prepared.drain(..) {
                results[at] = Some(Err(error.clone()));
            }
        }
        // Begun before there is an answer from the index: the bytes are here.
        let digests = (self.config.checksum && self.seals.is_none())
            .then(|| self.digests(prepared.iter().map(|(_, ready)| ready.chunks()).collect(), deadline));
        match self.reserve(prepared, &turn, &mut results, deadline).await {
            Ok((session, reserved)) => {
                let (sent, digests) = tokio::join!(self.write(&reserved, deadline), of_all(digests));
                let records = recorded(&reserved, sent, digests);
                self.commit_all(&session, reserved, records, &mut results, deadline)
                    .await;
            }
            Err(error) => {
                if let Err(error) = of_all(digests).await {
                    tracing::debug!(%error, "checksums that nobody needs failed too");
                }
                for result in results.iter_mut().filter(|result| result.is_none()) {
                    *result = Some(Err(error.clone()));
                }
            }
        }
        let forgotten = || Err(Error::internal(OPERATION, "a sample got no result"));
        let results: Vec<Result<Stored>> = results
            .into_iter()
            .map(|result| result.unwrap_or_else(forgotten))
            .collect();
        for result in &results {
            match result {
                Ok(stored) => {
                    self.count.puts.one();
                    self.count.bytes_put.add(stored.description.bytes());
                }
                Err(_) => self.count.failed_puts.one(),
            }
        }
        // A commit does not say whether it took the place of something.
        if results.iter().any(Result::is_ok) {
            self.frees.collect_soon();
        }
        results
    }

    /// Reserves what is prepared; once more in another session if the current one turns out to have ended.
    async fn reserve(
        &self,
        prepared: Vec<(usize, Prepared)>,
        turn: &Turn<'_>,
        results: &mut [Option<Result<Stored>>],
        deadline: Deadline,
    ) -> Result<(Arc<Session>, Vec<Reserved<'_>>)> {
        let mut in_turn = Vec::with_capacity(prepared.len());
        for (order, (at, ready)) in prepared.into_iter().enumerate() {
            if turn.is_last(&ready.sample) {
                in_turn.push((order, at, ready));
            } else {
                results[at] = Some(Err(outdated(&ready.sample)));
            }
        }
        let wishes: Vec<Reserve> = in_turn
            .iter()
            .map(|(_, _, ready)| Reserve {
                sample: ready.sample.clone(),
                nonce: ready.nonce,
                bytes: ready.bytes,
                plan: ready.plan.clone(),
                claims: Vec::new(),
            })
            .collect();
        let mut session = self.sessions.current(OPERATION, deadline).await?;
        let mut generations = self.reserve_in(&session, &wishes, deadline).await;
        let ended = |result: &Result<Generation>| {
            let refused = result
                .as_ref()
                .err()
                .map(|error| self.sessions.refused(&session, error));
            refused.unwrap_or(false)
        };
        if !generations.is_empty() && generations.iter().all(ended) {
            session = self.sessions.current(OPERATION, deadline).await?;
            generations = self.reserve_in(&session, &wishes, deadline).await;
        }
        let mut reserved = Vec::with_capacity(in_turn.len());
        for ((order, at, ready), generation) in in_turn.into_iter().zip(generations) {
            let generation = match generation {
                Ok(generation) => generation,
                Err(error) => {
                    results[at] = Some(Err(error));
                    continue;
                }
            };
            let reference = SampleRef {
                sample: ready.sample.clone(),
                generation,
            };
            let written = self.writing.begin(&ready.sample);
            let keys = self.keys_of(&reference, &ready);
            let reservation = Reserved {
                at,
                order,
                prepared: ready,
                reference,
                keys: keys.clone().unwrap_or_default(),
                written,
            };
            match keys {
                Ok(_) => reserved.push(reservation),
                Err(error) => results[at] = Some(Err(self.undo(&session, reservation, error))),
            }
        }
        Ok((session, reserved))
    }

    async fn reserve_in(&self, session: &Session, wishes: &[Reserve], deadline: Deadline) -> Vec<Result<Generation>> {
        self.index
            .reserve(session, wishes, deadline.remaining(&*self.clock))
            .await
    }

    fn keys_of(&self, reference: &SampleRef, ready: &Prepared) -> Result<Vec<ObjectKey>> {
        let place = Place {
            store: &self.config.store,
            sample: reference,
        };
        let mut keys = Vec::new();
        for (spec, chunks) in &ready.tensors {
            keys.extend(place.keys(ready.nonce, spec.name(), chunks.len() as u64)?);
        }
        Ok(keys)
    }

    async fn commit_all(
        &self,
        session: &Arc<Session>,
        reserved: Vec<Reserved<'_>>,
        records: Vec<Result<Record>>,
        results: &mut [Option<Result<Stored>>],
        deadline: Deadline,
    ) {
        let mut commits = Vec::new();
        let mut ready = Vec::new();
        for (sample, record) in reserved.into_iter().zip(records) {
            let described = record.and_then(|record| sample.prepared.describe(self.object_bytes(), record));
            let outcome = described.and_then(|description| {
                let bytes = description.to_bytes()?;
                if !sample.written.may_commit() {
                    return Err(given_up(&sample.reference));
                }
                Ok((description, bytes))
            });
            match outcome {
                Ok((description, bytes)) => {
                    commits.push(Commit {
                        sample: sample.reference.clone(),
                        publication: sample.prepared.publication.clone(),
                        description: bytes,
                    });
                    ready.push((sample, Arc::new(description)));
                }
                Err(error) => {
                    let at = sample.at;
                    results[at] = Some(Err(self.undo(session, sample, error)));
                }
            }
        }
        let committed = self.commit(session, &commits, deadline).await;
        for ((sample, description), committed) in ready.into_iter().zip(committed) {
            let (at, reference) = (sample.at, sample.reference.clone());
            results[at] = Some(match committed {
                Committed::Yes(version) => Ok(Stored {
                    reference,
                    version,
                    description,
                }),
                Committed::No(error) | Committed::GivenUp(error) => Err(self.undo(session, sample, error)),
                Committed::Unknown(error) => Err(error),
            });
        }
    }

    /// Moves all bytes: sealed, or as they are. Returns for each sample what is known of it then.
    async fn write(&self, reserved: &[Reserved<'_>], deadline: Deadline) -> Vec<Result<Record>> {
        if let Some(seals) = &self.seals {
            return self.write_sealed(seals, reserved, deadline).await;
        }
        let mut objects = Vec::new();
        for (sample, reservation) in reserved.iter().enumerate() {
            let all = reservation.prepared.tensors.iter().flat_map(|(_, chunks)| chunks);
            for (key, parts) in reservation.keys.iter().zip(all) {
                objects.push(Outgoing {
                    sample,
                    transfer: Transfer::scattered(key.clone(), parts.clone()),
                });
            }
        }
        let sent = self.send(objects, reserved.len(), deadline).await;
        sent.into_iter().map(|sent| sent.map(|()| Record::Nothing)).collect()
    }

    async fn write_sealed(&self, seals: &Seals, reserved: &[Reserved<'_>], deadline: Deadline) -> Vec<Result<Record>> {
        let mut to_seal = ToSeal::default();
        for reservation in reserved {
            let sample = SampleToSeal {
                reference: &reservation.reference,
                prepared: &reservation.prepared,
                keys: &reservation.keys,
            };
            if let Err(error) = to_seal.add(self, seals, &sample) {
                return reserved.iter().map(|_| Err(error.clone())).collect();
            }
        }
        let (sent, seals) = self.send_sealed(seals, to_seal, deadline).await;
        let sealed = sent.into_iter().zip(seals);
        sealed
            .map(|(sent, (header, tag))| sent.map(|()| Record::Seal(header, tag)))
            .collect()
    }

    /// Hands what a failed put leaves behind to the worker, as soon as the engine has let go of the memory.
    fn undo(&self, session: &Arc<Session>, sample: Reserved<'_>, error: Error) -> Error {
        sample.prepared.witness.undo(Job {
            sample: sample.reference.clone(),
            keys: sample.keys,
            abort: Some(Arc::clone(session)),
        });
        error
            .with("sample", &sample.reference.sample)
            .with("generation", sample.reference.generation)
    }
}

/// The checksums of all samples, when they are ready; none if none are made.
async fn of_all(digests: Option<Digests>) -> Result<Option<Vec<Vec<Digest>>>> {
    match digests {
        Some(digests) => digests.ready().await.map(Some),
        None => Ok(None),
    }
}

/// What is recorded of samples that were written: their checksums beside what is known of them already.
fn recorded(
    reserved: &[Reserved<'_>],
    written: Vec<Result<Record>>,
    digests: Result<Option<Vec<Vec<Digest>>>>,
) -> Vec<Result<Record>> {
    let mut digests = match digests {
        Ok(None) => return written,
        Ok(Some(digests)) => digests,
        Err(error) => return written.into_iter().map(|_| Err(error.clone())).collect(),
    };
    let with_digests = |(sample, written): (&Reserved<'_>, Result<Record>)| {
        let own = digests.get_mut(sample.order).map(std::mem::take);
        written.map(|_| Record::Digests(own.unwrap_or_default()))
    };
    reserved.iter().zip(written).map(with_digests).collect()
}

fn outdated(sample: &SampleId) -> Error {
    Error::new(
        ErrorKind::Conflict,
        OPERATION,
        "this process has put the sample again since: the later put counts, and this one was not made",
    )
    .with("sample", sample)
}

fn given_up(sample: &SampleRef) -> Error {
    Error::new(
        ErrorKind::Fenced,
        OPERATION,
        "the sample was aborted while it was being put; it is not committed",
    )
    .with("sample", &sample.sample)
}

impl FeatureStore {
    /// Puts a sample: it is visible to all its groups, as a whole, when this returns; or there is an error, and it is not
    /// (with [`holdfast_core::Retry::Ambiguous`]: it may be, look). A put that finds the engine full waits within its time for room.
    pub async fn put(&self, item: PutItem, within: Duration) -> Result<Stored> {
        let mut results = self.put_many(vec![item], within).await;
        results
            .pop()
            .unwrap_or_else(|| Err(Error::internal(OPERATION, "a sample got no result")))
    }

    /// Puts several samples, each by itself: one may fail beside another that does not. They share calls to the index
    /// and to the engine.
    pub async fn put_many(&self, items: Vec<PutItem>, within: Duration) -> Vec<Result<Stored>> {
        self.run_batch(OPERATION, items.len(), |inner| async move {
            inner.put_many(items, inner.deadline(within)).await
        })
        .await
    }
}
