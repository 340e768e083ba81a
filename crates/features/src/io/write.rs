//! Writing objects: batches, retries while the engine is full, and checksums that are computed meanwhile.
//!
//! One batched put serves all objects of all samples. An object that finds the engine full was not written, so it is
//! retried with backoff until the deadline; meanwhile samples may be freed elsewhere. Any other failure is final for
//! its sample.
//!
//! Reading is in module `read`, writing sealed samples in `write_sealed`.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Digest, Error, ErrorKind, ObjectKey, Result};
use holdfast_engine::{PutOptions, PutOutcome, Span, Transfer};
use tokio::task::JoinHandle;

use super::Io;
use crate::io::checksum::digest_of;

/// The first pause of a put that finds the engine full. Each later one is half as long again, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// An object to be written.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Which of the samples it belongs to.
    pub(crate) sample: usize,
    pub(crate) transfer: Transfer,
}

impl Io {
    fn put_options(&self) -> PutOptions {
        PutOptions {
            replicas: self.runtime.config.replicas,
            ..PutOptions::default()
        }
    }

    /// Writes objects. Returns for each of `samples` samples whether all its objects are stored.
    pub(crate) async fn send(&self, objects: Vec<Outgoing>, samples: usize, deadline: Deadline) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = (0..samples).map(|_| Ok(())).collect();
        let mut open = objects;
        let mut pause = FIRST_PAUSE;
        loop {
            let mut full = Vec::new();
            while !open.is_empty() {
                let rest = open.split_off(open.len().min(self.runtime.max_batch()));
                let batch = std::mem::replace(&mut open, rest);
                self.send_batch(batch, &mut results, &mut full, deadline).await;
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
        results: &mut [Result<()>],
        full: &mut Vec<Outgoing>,
        deadline: Deadline,
    ) {
        let (samples, transfers): (Vec<usize>, Vec<Transfer>) =
            batch.into_iter().map(|object| (object.sample, object.transfer)).unzip();
        let (engine, options) = (Arc::clone(&self.runtime.engine), self.put_options());
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
    /// result.
    pub(crate) fn digests(&self, samples: Vec<Vec<Vec<Span>>>, deadline: Deadline) -> Digests {
        let calls = self.runtime.blocking.clone();
        let of_sample = |chunks: &Vec<Vec<Span>>| chunks.iter().map(|parts| digest_of(parts)).collect();
        let record = move |_| samples.iter().map(of_sample).collect();
        Digests(tokio::spawn(async move {
            calls.run("features.checksum", deadline, record).await
        }))
    }
}

/// Checksums that are being computed: for each sample, those of its objects.
pub(crate) struct Digests(JoinHandle<Result<Vec<Vec<Digest>>>>);

impl Digests {
    pub(crate) async fn ready(self) -> Result<Vec<Vec<Digest>>> {
        self.0.await.map_err(|failure| {
            Error::internal("features.checksum", "a checksum task panicked or was cancelled").caused_by(failure)
        })?
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
