//! Writing objects: batches, retries while the engine is full, and checksums that are computed meanwhile.
//!
//! One batched put serves all objects of all samples. An object that finds the engine full was not written, so it is
//! retried with backoff until the deadline; meanwhile samples may be freed elsewhere. Any other failure is final for
//! its sample under these keys: after a dead holder the put begins anew under others (module `put_elsewhere`).
//!
//! Reading is in module `read`, writing sealed samples in `write_sealed`.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Digest, Error, ErrorKind, ObjectKey, Result};
use tensorhold_engine::{Pin, Presence, PutOptions, PutOutcome, Transfer};
use tokio::task::JoinHandle;

use super::Io;
use crate::io::checksum::digest_of;
use crate::memory::device::ObjectMemory;
use crate::runtime::config::Residency;
use crate::runtime::tasks::closed;

/// The first pause of a put that finds the engine full. Each later one is half as long again, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// How often a put that waits for copies on SSD looks for them: one request for all of its objects. Holders write at their
/// heartbeats, a second apart at the least.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How much of a put's time is kept for the commit, at most.
const SPARE_FOR_COMMIT: Duration = Duration::from_secs(1);

/// An object to be written.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Which of the samples it belongs to.
    pub(crate) sample: usize,
    pub(crate) transfer: Transfer,
}

impl Io {
    fn put_options(&self, prefer: &[String]) -> PutOptions {
        PutOptions {
            replicas: self.runtime.config.replicas,
            pin: match self.runtime.config.residency {
                Residency::Dram => Pin::Hard,
                Residency::Spill => Pin::Evictable,
            },
            preferred_segments: prefer.to_vec(),
        }
    }

    /// Waits until every object of these samples has been seen on SSD. Until then the engine may evict an object and lose
    /// it; a sample must not be committed before.
    pub(crate) async fn seen_on_ssd(&self, samples: Vec<Vec<ObjectKey>>, deadline: Deadline) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = samples.iter().map(|_| Ok(())).collect();
        let mut open: Vec<(usize, ObjectKey)> = Vec::new();
        for (sample, keys) in samples.into_iter().enumerate() {
            open.extend(keys.into_iter().map(|key| (sample, key)));
        }
        // One object that never gets there must not take the time that the others need to be committed.
        let left = self.runtime.left(deadline);
        let spare = (left / 4).min(SPARE_FOR_COMMIT) + LOOK_EVERY;
        let seen_by = Deadline::after(&*self.runtime.clock, left.saturating_sub(spare));
        loop {
            let (mut unseen, mut failed_look) = (Vec::new(), None);
            for batch in open.chunks(self.runtime.max_batch()) {
                let keys: Vec<ObjectKey> = batch.iter().map(|(_, key)| key.clone()).collect();
                let engine = Arc::clone(&self.runtime.engine);
                let probe = move |within| engine.probe(&keys, within);
                let found = self.runtime.blocking.run("features.put", seen_by, probe).await;
                match found {
                    Ok(found) => {
                        for ((sample, key), presence) in batch.iter().zip(found) {
                            match presence {
                                Presence::Present { ssd: 1.., .. } => {}
                                Presence::Present { .. } => unseen.push((*sample, key.clone())),
                                Presence::Absent | Presence::Unfinished => results[*sample] = Err(evicted(key)),
                            }
                        }
                    }
                    // What is on SSD is not known: a later look may tell.
                    Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout) => {
                        unseen.extend(batch.iter().cloned());
                        failed_look = Some(error);
                    }
                    Err(error) => {
                        for (sample, _) in batch {
                            results[*sample] = Err(error.clone());
                        }
                    }
                }
            }
            unseen.retain(|(sample, _)| results[*sample].is_ok());
            if unseen.is_empty() {
                return results;
            }
            // A look without time would tell nothing.
            if self.runtime.left(seen_by) <= LOOK_EVERY {
                for (sample, key) in unseen {
                    results[sample] = Err(not_on_ssd(&key, failed_look.clone()));
                }
                return results;
            }
            // The engine does not tell when a holder has written an object.
            tokio::time::sleep(LOOK_EVERY).await;
            open = unseen;
        }
    }

    /// Writes objects, to these holders first. Returns for each of `samples` samples whether all its objects are stored.
    pub(crate) async fn send(
        &self,
        objects: Vec<Outgoing>,
        samples: usize,
        prefer: &[String],
        deadline: Deadline,
    ) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = (0..samples).map(|_| Ok(())).collect();
        let mut open = objects;
        let mut pause = FIRST_PAUSE;
        loop {
            let mut full = Vec::new();
            while !open.is_empty() {
                let rest = open.split_off(open.len().min(self.runtime.max_batch()));
                let batch = std::mem::replace(&mut open, rest);
                self.send_batch(batch, prefer, &mut results, &mut full, deadline).await;
            }
            // Nothing more is written of a sample that has failed.
            full.retain(|object: &Outgoing| results[object.sample].is_ok());
            if full.is_empty() {
                return results;
            }
            let left = self.runtime.left(deadline);
            if left <= pause {
                for object in full {
                    results[object.sample] = Err(no_room(&object.transfer.key));
                }
                return results;
            }
            self.runtime.count.waits_for_room.one();
            if self.runtime.tasks.is_closing() {
                for object in full {
                    results[object.sample] = Err(closed("features.put"));
                }
                return results;
            }
            // There may be samples to be freed that no process has collected yet.
            self.queue.collect_soon();
            let spread = self
                .runtime
                .rng
                .below(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX) / 2);
            tokio::time::sleep(pause / 2 + Duration::from_nanos(spread)).await;
            pause = (pause + pause / 2).min(LONGEST_PAUSE);
            open = full;
        }
    }

    async fn send_batch(
        &self,
        batch: Vec<Outgoing>,
        prefer: &[String],
        results: &mut [Result<()>],
        full: &mut Vec<Outgoing>,
        deadline: Deadline,
    ) {
        let (samples, transfers): (Vec<usize>, Vec<Transfer>) =
            batch.into_iter().map(|object| (object.sample, object.transfer)).unzip();
        let (engine, options) = (Arc::clone(&self.runtime.engine), self.put_options(prefer));
        let answer = self
            .runtime
            .blocking
            .run("features.put", deadline, move |within| {
                let outcomes = engine.put(&transfers, &options, within)?;
                Ok(outcomes.into_iter().zip(transfers).collect::<Vec<_>>())
            })
            .await;
        match answer {
            Ok(outcomes) => {
                for (sample, (outcome, transfer)) in samples.into_iter().zip(outcomes) {
                    match outcome {
                        PutOutcome::Stored => {}
                        PutOutcome::Full => full.push(Outgoing { sample, transfer }),
                        PutOutcome::Failed(error) => results[sample] = Err(error.with("key", &transfer.key)),
                    }
                }
            }
            Err(error) => {
                for sample in samples {
                    results[sample] = Err(error.clone());
                }
            }
        }
    }

    /// Starts to compute the checksums of samples' objects, in parallel with the transfer. The caller awaits the
    /// result. There is none for an object on a device: its checksum is computed when it has been copied.
    pub(crate) fn digests(&self, samples: Vec<Vec<ObjectMemory>>, deadline: Deadline) -> Digests {
        let calls = self.runtime.blocking.clone();
        let of_object = |memory: &ObjectMemory| match memory {
            ObjectMemory::Host(parts) => digest_of(parts).map(Some),
            ObjectMemory::Device(_) => Ok(None),
        };
        let of_sample = move |objects: &Vec<ObjectMemory>| objects.iter().map(of_object).collect();
        let record = move |_| samples.iter().map(of_sample).collect();
        Digests(tokio::spawn(async move {
            calls.run("features.checksum", deadline, record).await
        }))
    }
}

/// Checksums that are being computed: for each sample, those of its objects.
pub(crate) struct Digests(JoinHandle<Result<Vec<Vec<Option<Digest>>>>>);

impl Digests {
    pub(crate) async fn ready(self) -> Result<Vec<Vec<Option<Digest>>>> {
        self.0.await.map_err(|failure| {
            Error::internal("features.checksum", "a checksum task panicked or was cancelled").caused_by(failure)
        })?
    }
}

fn evicted(key: &ObjectKey) -> Error {
    Error::unavailable(
        "features.put",
        "the engine evicted an object before it had a copy on SSD; nothing was committed, put the sample again",
    )
    .with("key", key)
}

fn not_on_ssd(key: &ObjectKey, failed_look: Option<Error>) -> Error {
    let error = Error::unavailable(
        "features.put",
        "no copy on SSD was seen until the deadline, so nothing was committed; a store with residency \"spill\" needs a \
         master with --enable_offload=true, without --offload_on_evict and --enable_oplog, and holders with an SSD folder \
         and a bucket per object (docs/ssd.md); allow at least two heartbeats of the holders",
    )
    .with("key", key);
    match failed_look {
        Some(cause) => error.caused_by(cause),
        None => error,
    }
}

fn no_room(key: &ObjectKey) -> Error {
    Error::new(
        ErrorKind::Capacity,
        "features.put",
        "the engine had no room until the deadline; free samples, add holders, or give the store a budget",
    )
    .with("key", key)
}
