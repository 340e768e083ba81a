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

use crate::codec::Encoding;
use crate::commit::Committed;
use crate::description::Description;
use crate::free::Job;
use crate::plan::Place;
use crate::prepare::Prepared;
use crate::store::{FeatureStore, Inner};
use crate::tensors::TensorIn;
use crate::transfer::Outgoing;
use crate::writing::Written;

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
    prepared: Prepared,
    reference: SampleRef,
    keys: Vec<ObjectKey>,
    written: Written<'a>,
}

impl Inner {
    pub(crate) async fn put_many(&self, items: Vec<PutItem>, deadline: Deadline) -> Vec<Result<Stored>> {
        let count = items.len();
        let mut results: Vec<Option<Result<Stored>>> = (0..count).map(|_| None).collect();
        let mut prepared = Vec::with_capacity(count);
        for (at, item) in items.into_iter().enumerate() {
            match self.prepare(item, deadline).await {
                Ok(ready) => prepared.push((at, ready)),
                Err(error) => results[at] = Some(Err(error)),
            }
        }
        match self.reserve(prepared, &mut results, deadline).await {
            Ok((session, reserved)) => self.write_and_commit(&session, reserved, &mut results, deadline).await,
            Err(error) => {
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
        results: &mut [Option<Result<Stored>>],
        deadline: Deadline,
    ) -> Result<(Arc<Session>, Vec<Reserved<'_>>)> {
        let wishes: Vec<Reserve> = prepared
            .iter()
            .map(|(_, ready)| Reserve {
                sample: ready.sample.clone(),
                nonce: ready.nonce,
                bytes: ready.bytes,
                plan: ready.plan.clone(),
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
        let mut reserved = Vec::with_capacity(prepared.len());
        for ((at, ready), generation) in prepared.into_iter().zip(generations) {
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

    async fn write_and_commit(
        &self,
        session: &Arc<Session>,
        reserved: Vec<Reserved<'_>>,
        results: &mut [Option<Result<Stored>>],
        deadline: Deadline,
    ) {
        let (sent, digests) = self.write(&reserved, deadline).await;
        let mut digests = digests.map(IntoIterator::into_iter);
        let mut commits = Vec::new();
        let mut ready = Vec::new();
        for (sample, sent) in reserved.into_iter().zip(sent) {
            let described = match &mut digests {
                Ok(digests) => sample
                    .prepared
                    .describe(self.config.chunk_bytes, self.config.checksum, digests),
                Err(error) => Err(error.clone()),
            };
            let outcome = sent.and(described).and_then(|description| {
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

    /// Moves all bytes, and computes the checksums meanwhile.
    async fn write(&self, reserved: &[Reserved<'_>], deadline: Deadline) -> (Vec<Result<()>>, Result<Vec<Digest>>) {
        let mut objects = Vec::new();
        let mut chunks = Vec::new();
        for (sample, reservation) in reserved.iter().enumerate() {
            let all = reservation.prepared.tensors.iter().flat_map(|(_, chunks)| chunks);
            for (key, parts) in reservation.keys.iter().zip(all) {
                chunks.push(parts.clone());
                objects.push(Outgoing {
                    sample,
                    transfer: Transfer::scattered(key.clone(), parts.clone()),
                });
            }
        }
        let send = self.send(objects, reserved.len(), deadline);
        if !self.config.checksum {
            return (send.await, Ok(Vec::new()));
        }
        tokio::join!(send, self.digests(chunks, Encoding::Plain, deadline))
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
