//! Getting the bytes of samples that no consumer needs out of the engine, and finding out which samples it has lost.
//! [`queue`] has the overview.

pub(crate) mod collect;
pub(crate) mod duty;
pub(crate) mod holders;
pub(crate) mod loss;
pub(crate) mod queue;
pub(crate) mod undo;
pub(crate) mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use tensorhold_index::{AckOutcome, HoldersSeen, SampleRef};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::collect::Walk;
use self::duty::Sweeping;
use self::loss::Losses;
use self::queue::{Job, ReclaimQueue};
use crate::record::description::Description;
use crate::record::plan::SampleObjects;
use crate::runtime::Runtime;

/// The state of the workers.
#[derive(Debug)]
pub(crate) struct Reclaim {
    pub(crate) runtime: Arc<Runtime>,
    /// Shared with the leases and transfers that outlive an operation.
    pub(crate) queue: Arc<ReclaimQueue>,
    /// One collect of this process runs at a time.
    walk: tokio::sync::Mutex<Walk>,
    pub(crate) losses: Losses,
    /// Collects in a row that freed nothing of what there was to free.
    failed_collects: AtomicU32,
    pub(crate) duty: watch::Sender<Sweeping>,
    /// What this process sees of the engine's holders while it is its turn to look.
    pub(crate) holders: watch::Sender<Option<HoldersSeen>>,
}

impl Reclaim {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            queue: Arc::new(ReclaimQueue::new(Arc::clone(&runtime.clock), runtime.config.free_queue)),
            walk: tokio::sync::Mutex::default(),
            losses: Losses::new(Arc::clone(&runtime.clock)),
            failed_collects: AtomicU32::new(0),
            duty: watch::Sender::default(),
            holders: watch::Sender::default(),
            runtime,
        }
    }

    /// Starts the workers. They end when they are told to stop.
    pub(crate) fn start(self: &Arc<Self>, stop: &watch::Receiver<bool>) -> Vec<JoinHandle<()>> {
        let tasks = &self.runtime.tasks;
        let mut workers = vec![
            tasks.spawn(worker::remove(Arc::clone(self), stop.clone())),
            tasks.spawn(worker::index_worker(Arc::clone(self), stop.clone())),
            tasks.spawn(loss::watch(Arc::clone(self), stop.clone())),
            tasks.spawn(collect::collect(Arc::clone(self), stop.clone())),
        ];
        if let Some(every) = self.runtime.config.sweep_every {
            workers.push(tasks.spawn(holders::watch(Arc::clone(self), stop.clone())));
            workers.push(tasks.spawn(duty::sweep(Arc::clone(self), every, stop.clone())));
        }
        workers
    }

    /// What to do when an answer of this process has retired a sample.
    pub(crate) fn after_answer(&self, sample: &SampleRef, description: &Description, answer: AckOutcome) {
        let AckOutcome::Retired { free: true, .. } = answer else {
            return;
        };
        let place = SampleObjects {
            store: &self.runtime.config.store,
            sample,
        };
        match description.object_keys(place) {
            Ok(keys) => self.free_soon(Job {
                sample: sample.clone(),
                keys,
                abort: None,
                put: None,
            }),
            Err(error) => {
                tracing::error!(%error, sample = %sample.sample, "it is not known which objects to remove");
                self.queue.collect_soon();
            }
        }
    }

    /// Accepts a job for the workers, or leaves it to a sweep.
    pub(crate) fn free_soon(&self, job: Job) {
        if !self.queue.push(job) {
            self.runtime.count.left_to_sweeps.one();
        }
    }
}
