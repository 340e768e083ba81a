//! Collecting: freeing the samples that the index lists, whichever process retired them.
//!
//! ```text
//!   the list:  f/a  f/b  f/c  f/d  f/e  …            a part: so many records, so many bytes
//!              └────part────┘└────part────┘
//!                             ▲ place: where the next part begins, also in the next collect
//! ```
//! A collect walks the list once around, from where the last one of this process ended. So a record whose objects
//! cannot be removed now costs one attempt per walk and holds up nothing behind it. A record of a later release is
//! passed over. A record whose description or plan cannot be read goes into quarantine, because no process can know
//! which objects belong to it.
//!
//! One collect of a process runs at a time. Objects are removed in groups of a bounded number of keys, whatever the
//! records claim.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tensorhold_core::{Deadline, Error, ErrorKind, Result};
use tensorhold_index::{FreeTask, ListPlace, SampleRef, Unreadable};
use tokio::sync::watch;

use super::Reclaim;
use crate::reclaim::queue::{GATHER, Job};
use crate::reclaim::worker::MOST_ROUNDS;
use crate::record::description::Description;
use crate::record::limits::MOST_OBJECTS;
use crate::record::plan::{Plan, SampleObjects};

/// The position of this process's walk along the list of samples to be freed.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// None at the start of the list.
    place: Option<ListPlace>,
    /// The samples that this process has left to sweeps and has not seen in the list since the walk started.
    unlisted: HashSet<SampleRef>,
}

/// The result of a collect.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Collected {
    pub(crate) freed: usize,
    pub(crate) failed: usize,
    pub(crate) quarantined: usize,
    pub(crate) later: usize,
    /// Whether the engine answered for no sample of a group.
    silent: bool,
}

/// Collects whenever it is woken, until it is told to stop.
pub(crate) async fn collect(reclaim: Arc<Reclaim>, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        tokio::select! {
            _ = stop.changed() => {}
            () = reclaim.queue.wake_collector.notified() => {}
        }
        if *stop.borrow() {
            return;
        }
        if reclaim.queue.wants_collect() {
            // So that many puts and releases cost one collect.
            tokio::time::sleep(GATHER).await;
        }
        reclaim.queue.begin();
        reclaim.queue.take_collect();
        let deadline = reclaim.runtime.own_deadline();
        let collected = reclaim.collect(deadline).await;
        reclaim.note_collect(&collected);
        match collected {
            Ok(done) if done.freed + done.failed + done.quarantined > 0 => tracing::info!(
                store = %reclaim.runtime.config.store,
                freed = done.freed,
                failed = done.failed,
                quarantined = done.quarantined,
                "collected: these samples were retired and had no reader left"
            ),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(%error, "the samples to be freed could not be listed; the next sweep goes on");
            }
        }
        reclaim.queue.finished();
    }
}

impl Reclaim {
    /// A process whose collects free nothing, because it cannot reach the engine, leaves sweeping to others.
    fn note_collect(&self, collected: &Result<Collected>) {
        let in_vain = match collected {
            Ok(done) => done.failed > 0 && done.freed == 0,
            Err(_) => true,
        };
        if in_vain {
            self.failed_collects.fetch_add(1, Ordering::Relaxed);
        } else {
            self.failed_collects.store(0, Ordering::Relaxed);
        }
    }

    /// Frees the samples that the index lists.
    pub(crate) async fn collect(&self, deadline: Deadline) -> Result<Collected> {
        let left = || self.runtime.left(deadline);
        let Ok(mut walk) = tokio::time::timeout(left(), self.walk.lock()).await else {
            let message = "another collect of this process ran until the deadline; it frees the same samples";
            return Err(Error::unavailable("features.free", message));
        };
        let mut collected = Collected::default();
        let mut parts = 0;
        // Once around: to the end, and from the start to where it began, or to the end again.
        let mut ends = if walk.place.is_some() { 2 } else { 1 };
        while ends > 0 && parts < MOST_ROUNDS {
            if walk.place.is_none() {
                walk.unlisted = self.queue.left_to_sweeps();
            }
            let limit = self.runtime.config.sweep_limit;
            let list = match self.runtime.index.to_free(walk.place.as_ref(), limit, left()).await {
                Ok(list) => list,
                // The parts done so far count; the next collect continues from here.
                Err(error) if parts > 0 => {
                    tracing::debug!(%error, "the rest of the samples to be freed is left to the next collect");
                    break;
                }
                Err(error) => return Err(error),
            };
            parts += 1;
            collected.quarantined += list.quarantined;
            collected.later += list.later;
            for task in &list.tasks {
                walk.unlisted.remove(&task.sample);
            }
            walk.place = list.next;
            if walk.place.is_none() {
                ends -= 1;
                self.queue.forget(&walk.unlisted);
                walk.unlisted.clear();
            }
            self.free_tasks(list.tasks, &mut collected, deadline).await;
            if collected.silent || deadline.passed(&*self.runtime.clock) {
                break;
            }
        }
        Ok(collected)
    }

    async fn free_tasks(&self, tasks: Vec<FreeTask>, collected: &mut Collected, deadline: Deadline) {
        let (mut jobs, mut keys) = (Vec::new(), 0);
        let mut unreadable = Vec::new();
        for task in tasks {
            match self.job_of(&task) {
                Ok(job) => {
                    let reason = task.record.record.reason;
                    tracing::debug!(sample = %task.sample.sample, ?reason, "to be freed");
                    keys += job.keys.len() as u64;
                    jobs.push(job);
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    tracing::debug!(%error, sample = %task.sample.sample, "left to processes of a later release");
                    collected.later += 1;
                }
                Err(error) => unreadable.push(Unreadable {
                    sample: task.sample,
                    why: error.to_string(),
                }),
            }
            if keys >= MOST_OBJECTS {
                self.free_listed(std::mem::take(&mut jobs), collected).await;
                keys = 0;
                if collected.silent || deadline.passed(&*self.runtime.clock) {
                    return;
                }
            }
        }
        if !unreadable.is_empty() {
            collected.quarantined += self.quarantine(&unreadable, deadline).await;
        }
        self.free_listed(jobs, collected).await;
    }

    /// Moves samples whose description or plan cannot be read into quarantine. Returns how many were moved.
    pub(crate) async fn quarantine(&self, unreadable: &[Unreadable], deadline: Deadline) -> usize {
        let left = self.runtime.left(deadline);
        let mut moved = 0;
        for result in self.runtime.index.quarantine(unreadable, left).await {
            match result {
                Ok(is_moved) => moved += usize::from(is_moved),
                Err(error) => tracing::debug!(%error, "a sample that cannot be read stays where it is for now"),
            }
        }
        moved
    }

    /// The objects to remove for a retired sample: those of its description if it was committed, otherwise those of its
    /// plan.
    fn job_of(&self, task: &FreeTask) -> Result<Job> {
        let place = SampleObjects {
            store: &self.runtime.config.store,
            sample: &task.sample,
        };
        let keys = match &task.description {
            Some(description) => {
                let description = Description::from_bytes(description)?;
                let record = &task.record.record;
                if description.reserved_as != record.reserved_as {
                    let message = "a record and its description name different reservations";
                    return Err(Error::new(ErrorKind::Corrupt, "features.collect", message));
                }
                description.object_keys(place)?
            }
            None => Plan::from_text(&task.record.record.plan)?.object_keys(place, task.record.record.nonce)?,
        };
        Ok(Job {
            sample: task.sample.clone(),
            keys,
            abort: None,
            put: None,
        })
    }

    /// Keeps to the rate at which this process may free what others have retired.
    async fn wait_for_turn(&self, samples: usize) {
        let Some(rate) = self.runtime.config.frees_per_second else {
            return;
        };
        let samples = u32::try_from(samples).unwrap_or(u32::MAX);
        let pause = Duration::from_secs(1).saturating_mul(samples) / rate.max(1);
        // Not longer than one call may take: a part is as long as `sweep_limit` says.
        tokio::time::sleep(pause.min(self.runtime.config.call_within)).await;
    }

    /// Frees samples that the index has listed.
    async fn free_listed(&self, jobs: Vec<Job>, collected: &mut Collected) {
        if jobs.is_empty() {
            return;
        }
        let all = jobs.len();
        self.wait_for_turn(all).await;
        let mut gone = Vec::new();
        let mut stayed = Vec::new();
        let mut unanswered = 0;
        let started = self.runtime.step_begins();
        let outcomes = self.remove_all(&jobs).await;
        for (job, outcome) in jobs.into_iter().zip(outcomes) {
            self.removal_ended(started, &job, &outcome);
            match outcome {
                Ok(()) => gone.push(job.sample),
                Err(error) => {
                    tracing::debug!(%error, sample = %job.sample.sample, "objects stay; they are tried again");
                    unanswered += usize::from(error.kind() == ErrorKind::Unavailable);
                    self.queue.failed(&job.sample, error);
                    stayed.push(job.sample);
                }
            }
        }
        collected.silent |= unanswered == all;
        let freed = self.say_freed(&gone).await;
        self.say_failed(stayed).await;
        collected.freed += freed;
        collected.failed += all - freed;
    }
}
