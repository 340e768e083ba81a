//! The remover, the teller, and what a sweep does. The module [`crate::reclaim::queue`] has the overview.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Error, ErrorKind, KeySpace, ObjectKey, Result, Retry, Timestamp};
use tensorhold_engine::RemoveOutcome;
use tensorhold_index::{Known, LeaseGrant, SampleRef, SweepReport, is_named_ahead};
use tokio::sync::watch;

use super::Reclaim;
use crate::reclaim::queue::{Job, Release, by_session};

/// Whether an error leaves a lease as it was, so that its release is to be retried.
fn is_as_it_was(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Fenced | ErrorKind::NotFound | ErrorKind::Invalid
    )
}

/// The most rounds of one sweep, and the most parts of a list that one collect reads. The rest is left to the next.
pub(crate) const MOST_ROUNDS: usize = 64;
/// How long a worker sleeps when nothing is due. New work wakes it.
const IDLE: Duration = Duration::from_secs(60);

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Leases, reservations and sessions that were taken back.
    pub taken_back: SweepReport,
    /// Samples whose objects were removed.
    pub freed: usize,
    /// Samples whose objects could not be removed now.
    pub failed: usize,
    /// Records that could not be read and were moved into quarantine.
    pub quarantined: usize,
    /// Records of later releases, which were passed over.
    pub later: usize,
}

/// Removes objects until it is told to stop.
pub(crate) async fn remove(reclaim: Arc<Reclaim>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        let pause = reclaim.queue.until_removal().unwrap_or(IDLE);
        tokio::select! {
            _ = stop.changed() => {}
            () = reclaim.queue.wake_remover.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        reclaim.remove_due().await;
    }
}

/// Reports to the index, until it is told to stop.
pub(crate) async fn index_worker(reclaim: Arc<Reclaim>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        let pause = reclaim.queue.until_telling().unwrap_or(IDLE);
        tokio::select! {
            _ = stop.changed() => {}
            () = reclaim.queue.wake_teller.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        reclaim.tell_due().await;
    }
}

impl Reclaim {
    /// Removes the objects of all jobs that are due.
    async fn remove_due(&self) {
        let started = self.runtime.step_begins();
        let jobs = self.queue.to_remove();
        let outcomes = self.remove_all(&jobs).await;
        for (job, outcome) in jobs.iter().zip(outcomes) {
            self.removal_ended(started, job, &outcome);
            match outcome {
                Ok(()) => self.queue.removed(&job.sample),
                Err(error) => {
                    tracing::debug!(%error, sample = %job.sample.sample, "objects stay; they are tried again");
                    self.queue.stayed(&job.sample, error);
                }
            }
        }
        self.queue.finished();
    }

    /// Ends the step of a removal, for traces.
    pub(crate) fn removal_ended(&self, started: Option<Timestamp>, job: &Job, outcome: &Result<()>) {
        if started.is_some() {
            let (nonce, error) = (job.nonce(), outcome.as_ref().err());
            self.runtime.step_ended("free", started, &job.sample, nonce, error);
        }
    }

    /// Does the due work that needs the index: reports freed samples, releases leases, gives up reservations.
    async fn tell_due(&self) {
        let tell = self.queue.to_tell();
        self.say_freed(&tell.removed).await;
        self.let_go(tell.releases).await;
        self.give_up(tell.reservations).await;
        self.say_failed(tell.stayed).await;
        self.queue.finished();
    }

    /// Releases leases that no caller holds any more.
    async fn let_go(&self, releases: Vec<Release>) {
        let with_session = releases
            .into_iter()
            .map(|release| (Arc::clone(&release.session), release));
        for (session, releases) in by_session(with_session).into_values() {
            let held: Vec<LeaseGrant> = releases.iter().map(|release| release.held.clone()).collect();
            let results = self
                .runtime
                .index
                .release(&session, &held, self.runtime.config.call_within)
                .await;
            for (release, result) in releases.into_iter().zip(results) {
                match result {
                    // This may have been the last reader of a retired sample.
                    Ok(()) => self.queue.collect_soon(),
                    // Releasing twice is harmless: the token is valid once.
                    Err(error) if is_as_it_was(&error) && self.queue.release_again(release) => {
                        tracing::debug!(%error, "a lease was not let go of; it is tried again");
                    }
                    Err(error) => tracing::debug!(%error, "a lease was not let go of; it runs out by its time"),
                }
            }
        }
    }

    /// Takes back expired leases, reservations and sessions. It calls only the index, so that no engine holds up the
    /// shared clock. One of many that follow each other stops when a part of the grant lists has nothing that is due: the
    /// next one looks at the next part.
    pub(crate) async fn take_back(&self, deadline: Deadline, one_of_many: bool) -> Result<SweepReport> {
        const OPERATION: &str = "features.sweep";
        let mut sum = SweepReport::default();
        for _ in 0..MOST_ROUNDS {
            let session = self.runtime.sessions.current(OPERATION, deadline).await?;
            let left = self.runtime.left(deadline);
            let report = match self
                .runtime
                .index
                .sweep(&session, self.runtime.config.sweep_limit, left)
                .await
            {
                Err(error) if self.runtime.sessions.refused(&session, &error) => continue,
                report => report?,
            };
            sum.add(&report);
            let enough = one_of_many && report.looked_at == 0;
            if !report.more || enough || deadline.passed(&*self.runtime.clock) {
                break;
            }
        }
        self.runtime.count.sweeps.one();
        Ok(sum)
    }

    /// Takes back what has expired, and frees the samples that are to be freed.
    pub(crate) async fn sweep(&self, deadline: Deadline) -> Result<Swept> {
        let taken_back = self.take_back(deadline, false).await?;
        let collected = self.collect(deadline).await?;
        Ok(Swept {
            freed: collected.freed,
            failed: collected.failed,
            quarantined: taken_back.quarantined + collected.quarantined,
            later: taken_back.later + collected.later,
            taken_back,
        })
    }

    /// Gives up the reservations of jobs, so that their objects may be removed.
    async fn give_up(&self, jobs: Vec<Job>) {
        let with_session = jobs.into_iter().filter_map(|job| Some((job.abort.clone()?, job)));
        for (session, jobs) in by_session(with_session).into_values() {
            let samples: Vec<SampleRef> = jobs.iter().map(|job| job.sample.clone()).collect();
            let results = self
                .runtime
                .index
                .abort(&session, &samples, self.runtime.config.call_within)
                .await;
            for (job, result) in jobs.into_iter().zip(results) {
                let ended = |error: &Error| {
                    let gone = matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::Fenced | ErrorKind::Conflict
                    );
                    gone && error.retry() != Retry::Ambiguous
                };
                let gone = match result {
                    Ok(()) => Ok(true),
                    // The reservation was given up by a sweep before, or its session has ended. The producer was told
                    // that the sample was not committed; but removing a live sample would be the one mistake that
                    // cannot be repaired.
                    Err(error) if ended(&error) && is_named_ahead(&job.sample.sample) => {
                        match self.is_owned(&job.sample).await {
                            // The record that owns the objects says when they are removed. That may be now: a commit
                            // that was settled has already given up the reservation.
                            Ok(true) => {
                                self.queue.collect_soon();
                                self.queue.succeeded(&job.sample);
                                continue;
                            }
                            Ok(false) => Ok(true),
                            Err(error) => Err(error),
                        }
                    }
                    Err(error) if ended(&error) => self.is_not_live(&job.sample).await,
                    // Any other error (no answer, an index that is full) leaves the reservation as it was.
                    Err(error) => Err(error),
                };
                match gone {
                    Ok(true) => self.queue.aborted(&job.sample),
                    Ok(false) => {
                        tracing::error!(sample = %job.sample.sample, "a live sample was to be removed; it is left alone");
                        self.queue.succeeded(&job.sample);
                    }
                    Err(error) => self.queue.failed(&job.sample, error),
                }
            }
        }
    }

    /// Whether a record owns what was written under a reservation that was made ahead.
    async fn is_owned(&self, reservation: &SampleRef) -> Result<bool> {
        let (asked, within) = (std::slice::from_ref(reservation), self.runtime.config.call_within);
        let known = self.runtime.index.known(asked, within).await?;
        Ok(known.into_iter().any(|known| known != Known::No))
    }

    async fn is_not_live(&self, sample: &SampleRef) -> Result<bool> {
        let views = self
            .runtime
            .index
            .look(std::slice::from_ref(&sample.sample), self.runtime.config.call_within)
            .await?;
        Ok(views.into_iter().flatten().all(|view| view.sample != *sample))
    }

    /// For each job, the objects that may be removed now: all of them, except those that another generation owns (OW3 in
    /// [`crate::record::ownership`]). An error if the job names an object that is not this store's, or if the owners
    /// could not be found out.
    async fn removable(&self, jobs: &[Job]) -> Vec<Result<Vec<ObjectKey>>> {
        let is_foreign = |key: &&ObjectKey| KeySpace::of(key) == KeySpace::Foreign;
        let foreign: Vec<ObjectKey> = jobs
            .iter()
            .flat_map(|job| &job.keys)
            .filter(is_foreign)
            .cloned()
            .collect();
        let owners = if foreign.is_empty() {
            Ok(HashMap::new())
        } else {
            let deadline = self.runtime.own_deadline();
            let owners = self.runtime.index.owners(&foreign, self.runtime.left(deadline)).await;
            owners.map(|owners| foreign.into_iter().zip(owners).collect::<HashMap<_, _>>())
        };
        let removable = |job: &Job| {
            let mut keys = Vec::with_capacity(job.keys.len());
            for key in &job.keys {
                if is_foreign(&key) {
                    self.runtime.config.refuse_key("features.free", key)?;
                    let owner = owners.as_ref().map_err(Clone::clone)?.get(key).and_then(Option::as_ref);
                    if let Some(owner) = owner.filter(|owner| **owner != job.sample) {
                        let (sample, owner) = (&job.sample.sample, &owner.sample);
                        tracing::warn!(%sample, %owner, %key, "an object is another sample's by now; it is left alone");
                        continue;
                    }
                }
                keys.push(key.clone());
            }
            Ok(keys)
        };
        jobs.iter().map(removable).collect()
    }

    /// Removes the objects of all jobs. Returns for each job whether all its objects are gone.
    pub(crate) async fn remove_all(&self, jobs: &[Job]) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = Vec::with_capacity(jobs.len());
        let mut objects: Vec<(usize, ObjectKey)> = Vec::new();
        for (at, removable) in self.removable(jobs).await.into_iter().enumerate() {
            results.push(removable.map(|keys| objects.extend(keys.into_iter().map(|key| (at, key)))));
        }
        for batch in objects.chunks(self.runtime.max_batch()) {
            let keys: Vec<ObjectKey> = batch.iter().map(|(_, key)| key.clone()).collect();
            let deadline = self.runtime.own_deadline();
            let engine = Arc::clone(&self.runtime.engine);
            let answer = self
                .runtime
                .blocking
                .run("features.free", deadline, move |within| engine.remove(&keys, within))
                .await;
            let outcomes = match answer {
                Ok(outcomes) => outcomes,
                Err(error) => vec![RemoveOutcome::Failed(error); batch.len()],
            };
            for ((at, key), outcome) in batch.iter().zip(outcomes) {
                match outcome {
                    RemoveOutcome::Removed | RemoveOutcome::Absent => {}
                    RemoveOutcome::Unfinished => {
                        results[*at] = Err(Error::unavailable(
                            "features.free",
                            "an object's put never ended, or a drain moves it; the engine lets go of it in its time",
                        )
                        .with("key", key));
                    }
                    RemoveOutcome::Failed(error) => results[*at] = Err(error.with("key", key)),
                }
            }
        }
        results
    }

    /// Reports freed samples to the index. Returns how many reports the index accepted.
    pub(crate) async fn say_freed(&self, samples: &[SampleRef]) -> usize {
        const OPERATION: &str = "features.free";
        if samples.is_empty() {
            return 0;
        }
        let deadline = self.runtime.own_deadline();
        let results = match self.runtime.sessions.current(OPERATION, deadline).await {
            Ok(session) => {
                self.runtime
                    .index
                    .freed(&session, samples, self.runtime.config.call_within)
                    .await
            }
            Err(error) => vec![Err(error); samples.len()],
        };
        let mut told = 0;
        for (sample, result) in samples.iter().zip(results) {
            match result {
                Ok(is_first) => {
                    told += 1;
                    // The collector and the teller may both report a sample; it is counted once.
                    self.runtime.count.freed.add(u64::from(is_first));
                    let took = self.queue.succeeded(sample);
                    if let (true, Some(took), Some(metrics)) = (is_first, took, &self.runtime.metrics) {
                        metrics.reclaim.took(took);
                    }
                }
                Err(error) => self.queue.failed(sample, error),
            }
        }
        told
    }

    /// Reports to the index which samples could not be freed. The record is for the operator; nothing depends on it.
    pub(crate) async fn say_failed(&self, samples: Vec<SampleRef>) {
        if samples.is_empty() {
            return;
        }
        self.runtime.count.failed_frees.add(samples.len() as u64);
        let deadline = self.runtime.own_deadline();
        let Ok(session) = self.runtime.sessions.current("features.free", deadline).await else {
            return;
        };
        for result in self
            .runtime
            .index
            .free_failed(&session, &samples, self.runtime.config.call_within)
            .await
        {
            if let Err(error) = result {
                tracing::debug!(%error, "a failed removal was not recorded");
            }
        }
    }
}
