//! The two workers that free, and the sweeper. See [`crate::free`] for the story.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Error, ErrorKind, ObjectKey, Result, Retry};
use holdfast_engine::RemoveOutcome;
use holdfast_index::{FreeTask, SampleRef, SweepReport};
use tokio::sync::watch;

use crate::description::Description;
use crate::free::{GATHER, Job, by_session};
use crate::plan::{Place, Plan};
use crate::store::Inner;

/// The most rounds of one sweep; what is left after them is for the next.
const MOST_ROUNDS: usize = 64;
/// How long the worker rests when nothing is due. It is woken when something is.
const IDLE: Duration = Duration::from_secs(60);

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// What was taken back.
    pub taken_back: SweepReport,
    /// Samples whose objects were removed.
    pub freed: usize,
    /// Samples whose objects could not be removed now.
    pub failed: usize,
}

/// Removes objects until it is told to stop.
pub(crate) async fn remove(inner: Arc<Inner>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        let pause = inner.frees.until_removal().unwrap_or(IDLE);
        tokio::select! {
            _ = stop.changed() => {}
            () = inner.frees.wake_remover.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        inner.remove_due().await;
    }
}

/// Tells the index what is to be told, and asks it, until it is told to stop.
pub(crate) async fn tell(inner: Arc<Inner>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        let pause = inner.frees.until_telling().unwrap_or(IDLE);
        let pause = if inner.frees.wants_collect() {
            pause.min(GATHER)
        } else {
            pause
        };
        tokio::select! {
            _ = stop.changed() => {}
            () = inner.frees.wake_teller.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        inner.tell_due().await;
    }
}

/// Sweeps now and then until it is told to stop.
pub(crate) async fn sweep(inner: Arc<Inner>, every: Duration, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        // Not all processes at the same time: between half and one and a half times as long.
        let spread = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        let pause = every / 2 + Duration::from_nanos(inner.rng.below(spread));
        tokio::select! {
            _ = stop.changed() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let deadline = Deadline::after(&*inner.clock, inner.config.call_within);
        if let Err(error) = inner.sweep(deadline).await {
            tracing::warn!(%error, "a sweep did not end; the next one goes on");
        }
    }
}

impl Inner {
    /// Removes what is due.
    async fn remove_due(&self) {
        let jobs = self.frees.to_remove();
        let outcomes = self.remove_all(&jobs).await;
        for (job, outcome) in jobs.iter().zip(outcomes) {
            match outcome {
                Ok(()) => self.frees.removed(&job.sample),
                Err(error) => {
                    tracing::debug!(%error, sample = %job.sample.sample, "objects stay; they are tried again");
                    self.frees.stayed(&job.sample, error);
                }
            }
        }
        self.frees.finished();
    }

    /// Does what is due and needs the index: says what is freed, lets go of leases, gives up reservations, collects.
    async fn tell_due(&self) {
        let tell = self.frees.to_tell();
        self.say_freed(&tell.removed).await;
        for (session, held) in by_session(tell.releases).into_values() {
            for released in self.index.release(&session, &held, self.config.call_within).await {
                match released {
                    // It may have been the last reader of something retired.
                    Ok(()) => self.frees.collect_soon(),
                    Err(error) => tracing::debug!(%error, "a lease was not let go of; it runs out by its time"),
                }
            }
        }
        self.give_up(tell.reservations).await;
        self.say_failed(tell.stayed).await;
        if self.frees.wants_collect() {
            tokio::time::sleep(GATHER).await;
            self.frees.take_collect();
            let deadline = Deadline::after(&*self.clock, self.config.call_within);
            if let Err(error) = self.collect(deadline).await {
                tracing::warn!(%error, "what is to be freed could not be listed; a sweep will");
            }
        }
        self.frees.finished();
    }

    /// Takes back what has ended, and frees what is to be freed.
    pub(crate) async fn sweep(&self, deadline: Deadline) -> Result<Swept> {
        const OPERATION: &str = "features.sweep";
        let mut swept = Swept::default();
        for _ in 0..MOST_ROUNDS {
            let session = self.sessions.current(OPERATION, deadline).await?;
            let left = deadline.remaining(&*self.clock);
            let report = match self.index.sweep(&session, self.config.sweep_limit, left).await {
                Err(error) if self.sessions.refused(&session, &error) => continue,
                report => report?,
            };
            swept.taken_back.looked_at += report.looked_at;
            swept.taken_back.abandoned += report.abandoned;
            swept.taken_back.taken_back += report.taken_back;
            swept.taken_back.retired += report.retired;
            swept.taken_back.sessions_cleared += report.sessions_cleared;
            swept.taken_back.more = report.more;
            if !report.more {
                break;
            }
        }
        (swept.freed, swept.failed) = self.collect(deadline).await?;
        self.count.sweeps.one();
        Ok(swept)
    }

    /// Frees what the index lists. Returns how many samples were freed, and how many were not.
    async fn collect(&self, deadline: Deadline) -> Result<(usize, usize)> {
        let (mut freed, mut failed) = (0, 0);
        for _ in 0..MOST_ROUNDS {
            let limit = self.config.sweep_limit;
            let tasks = self.index.to_free(limit, deadline.remaining(&*self.clock)).await?;
            let more = tasks.len() == limit;
            let mut jobs = Vec::with_capacity(tasks.len());
            let mut unreadable = Vec::new();
            for task in tasks {
                match self.job_of(&task) {
                    Ok(job) => jobs.push(job),
                    Err(error) => {
                        tracing::error!(%error, sample = %task.sample.sample, "it is not known which objects to remove");
                        unreadable.push(task.sample);
                    }
                }
            }
            if !more {
                self.frees.forget_unlisted(&jobs);
            }
            failed += unreadable.len();
            self.say_failed(unreadable).await;
            if jobs.is_empty() {
                break;
            }
            let (done, not_done) = self.free_listed(jobs).await;
            (freed, failed) = (freed + done, failed + not_done);
            // What could not be freed is at the head of the list again: the next sweep tries it.
            if !more || not_done > 0 || deadline.passed(&*self.clock) {
                break;
            }
        }
        Ok((freed, failed))
    }

    /// What to remove for a retired sample: what it said when it was committed, or what was planned before.
    fn job_of(&self, task: &FreeTask) -> Result<Job> {
        let place = Place {
            store: &self.config.store,
            sample: &task.sample,
        };
        let keys = match &task.description {
            Some(description) => Description::from_bytes(description)?.object_keys(place)?,
            None => Plan::from_text(&task.record.record.plan)?.object_keys(place, task.record.record.nonce)?,
        };
        Ok(Job {
            sample: task.sample.clone(),
            keys,
            abort: None,
        })
    }

    /// Frees what the index has listed. Returns how many samples were, and how many were not.
    async fn free_listed(&self, jobs: Vec<Job>) -> (usize, usize) {
        let all = jobs.len();
        let mut gone = Vec::new();
        let mut stayed = Vec::new();
        let outcomes = self.remove_all(&jobs).await;
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => gone.push(job.sample),
                Err(error) => {
                    tracing::debug!(%error, sample = %job.sample.sample, "objects stay; they are tried again");
                    self.frees.failed(&job.sample, error);
                    stayed.push(job.sample);
                }
            }
        }
        let freed = self.say_freed(&gone).await;
        self.say_failed(stayed).await;
        (freed, all - freed)
    }

    /// Gives up the reservations of jobs, so that their objects may be removed.
    async fn give_up(&self, jobs: Vec<Job>) {
        let with_session = jobs.into_iter().filter_map(|job| Some((job.abort.clone()?, job)));
        for (session, jobs) in by_session(with_session).into_values() {
            let samples: Vec<SampleRef> = jobs.iter().map(|job| job.sample.clone()).collect();
            let results = self.index.abort(&session, &samples, self.config.call_within).await;
            for (job, result) in jobs.into_iter().zip(results) {
                let unclear =
                    |error: &Error| error.kind() == ErrorKind::Unavailable || error.retry() == Retry::Ambiguous;
                let gone = match result {
                    Ok(()) => Ok(true),
                    Err(error) if unclear(&error) => Err(error),
                    // Given up by a sweep before, or its session has ended. Whoever asked for this was told that it was
                    // not committed; but to remove what is live would be the one thing that cannot be made good.
                    Err(_) => self.is_not_live(&job.sample).await,
                };
                match gone {
                    Ok(true) => self.frees.aborted(&job.sample),
                    Ok(false) => {
                        tracing::error!(sample = %job.sample.sample, "a live sample was to be removed; it is left alone");
                        self.frees.succeeded(&job.sample);
                    }
                    Err(error) => self.frees.failed(&job.sample, error),
                }
            }
        }
    }

    async fn is_not_live(&self, sample: &SampleRef) -> Result<bool> {
        let views = self
            .index
            .look(std::slice::from_ref(&sample.sample), self.config.call_within)
            .await?;
        Ok(views.into_iter().flatten().all(|view| view.sample != *sample))
    }

    /// Removes the objects of all jobs. Says of each job whether all its objects are gone.
    async fn remove_all(&self, jobs: &[Job]) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = Vec::with_capacity(jobs.len());
        let mut objects: Vec<(usize, ObjectKey)> = Vec::new();
        for (at, removable) in self.removable(jobs).await.into_iter().enumerate() {
            results.push(removable.map(|keys| objects.extend(keys.into_iter().map(|key| (at, key)))));
        }
        for batch in objects.chunks(self.max_batch()) {
            let keys: Vec<ObjectKey> = batch.iter().map(|(_, key)| key.clone()).collect();
            let deadline = Deadline::after(&*self.clock, self.config.call_within);
            let engine = Arc::clone(&self.engine);
            let answer = self
                .calls
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
                            "an object's put never ended; the engine removes it after its own timeout",
                        )
                        .with("key", key));
                    }
                    RemoveOutcome::Failed(error) => results[*at] = Err(error.with("key", key)),
                }
            }
        }
        results
    }

    /// Tells the index which samples are freed. Returns how many it took note of.
    async fn say_freed(&self, samples: &[SampleRef]) -> usize {
        const OPERATION: &str = "features.free";
        if samples.is_empty() {
            return 0;
        }
        let deadline = Deadline::after(&*self.clock, self.config.call_within);
        let results = match self.sessions.current(OPERATION, deadline).await {
            Ok(session) => self.index.freed(&session, samples, self.config.call_within).await,
            Err(error) => vec![Err(error); samples.len()],
        };
        let mut freed = 0;
        for (sample, result) in samples.iter().zip(results) {
            match result {
                Ok(()) => {
                    freed += 1;
                    self.frees.succeeded(sample);
                }
                Err(error) => self.frees.failed(sample, error),
            }
        }
        self.count.freed.add(freed as u64);
        freed
    }

    /// Tells the index which samples could not be freed. That is a record for people; nothing depends on it.
    async fn say_failed(&self, samples: Vec<SampleRef>) {
        if samples.is_empty() {
            return;
        }
        self.count.failed_frees.add(samples.len() as u64);
        let deadline = Deadline::after(&*self.clock, self.config.call_within);
        let Ok(session) = self.sessions.current("features.free", deadline).await else {
            return;
        };
        for result in self
            .index
            .free_failed(&session, &samples, self.config.call_within)
            .await
        {
            if let Err(error) = result {
                tracing::debug!(%error, "a failed removal was not recorded");
            }
        }
    }
}
