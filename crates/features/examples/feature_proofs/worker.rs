//! A worker process: this program, started again with a task in its environment.
//!
//! It does its task until it is done, or until its standard input closes, and writes down what it does.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tensorhold_core::{ErrorKind, Rng, SampleId, SystemRng};
use tensorhold_features::{FeatureStore, Lease, Wanted};
use tokio::task::JoinSet;

use crate::doom::{Doom, Point};
use crate::hooks::Hooks;
use crate::journal::{Event, Journal, Which};
use crate::pattern::seed_of;
use crate::rewrite;
use crate::world::{Settings, WITHIN, put, right, runtime, trainers};

/// The variable that makes this program a worker.
pub(crate) const TASK: &str = "TENSORHOLD_PROOF_TASK";

/// How long a consumer waits for a sample before it checks whether it is to stop. Not short: a deadline that passes
/// while a sample is being taken leaves that sample without a consumer until its lease ends.
const TAKE_WITHIN: Duration = Duration::from_secs(3);

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) settings: Settings,
    pub(crate) journal: PathBuf,
    pub(crate) role: Role,
    pub(crate) doom: Option<Doom>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Puts samples, each once.
    Produce(Produce),
    /// Takes, gets, checks and acknowledges samples, so many at once, each used for at most so many milliseconds.
    Consume { at_once: usize, use_millis: u64 },
    /// Puts one sample again and again, with other bytes each time, and aborts it in between.
    Rewrite { sample: String, len: usize },
    /// Reads that sample again and again.
    Reread { sample: String },
    /// Aborts a sample once.
    Abort { sample: String },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Produce {
    /// How many samples; none for as many as possible until it is told to stop.
    pub(crate) count: Option<u64>,
    /// The lengths of the tensors of each.
    pub(crate) lens: Vec<usize>,
    /// How many puts at once.
    pub(crate) at_once: usize,
    /// The longest pause between two puts of one task.
    pub(crate) pause_millis: u64,
}

/// What the tasks of a worker share.
pub(crate) struct Worker {
    pub(crate) name: String,
    pub(crate) store: FeatureStore,
    pub(crate) hooks: Arc<Hooks>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, event: &Event) {
        self.hooks.journal.note(event);
    }
}

pub(crate) fn main(task: &str) -> Result<()> {
    let task: Task = serde_json::from_str(task)?;
    let journal = Arc::new(Journal::open(&task.journal)?);
    let hooks = Hooks::new(Arc::clone(&journal), task.doom, task.doom.is_some());
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    // No thread joins it: it ends with the process, or when the process that started this one closes the pipe.
    std::thread::spawn(move || {
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        told.store(true, Ordering::Relaxed);
    });
    let engine = task.settings.engine()?;
    runtime()?.block_on(async {
        let store = task.settings.join(engine, Some(&hooks)).await?;
        journal.note(&Event::Ready);
        let worker = Arc::new(Worker {
            name: task.name.clone(),
            store: store.clone(),
            hooks,
            stop,
        });
        match task.role {
            Role::Produce(task) => produce(&worker, task).await?,
            Role::Consume { at_once, use_millis } => consume(&worker, at_once, use_millis).await?,
            Role::Rewrite { sample, len } => rewrite::write(&worker, &sample.parse()?, len).await?,
            Role::Reread { sample } => rewrite::read(&worker, &sample.parse()?).await?,
            Role::Abort { sample } => {
                for aborted in store.abort(&[sample.parse()?], WITHIN).await {
                    aborted?;
                }
                journal.note(&Event::Aborted { sample });
            }
        }
        drop(worker);
        Ok(store.close(WITHIN).await?)
    })
}

/// A random time up to so many milliseconds.
pub(crate) fn up_to(millis: u64) -> Duration {
    Duration::from_micros(SystemRng.below(millis * 1000 + 1))
}

async fn join(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

async fn produce(worker: &Arc<Worker>, task: Produce) -> Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..task.at_once {
        let (worker, task, next) = (Arc::clone(worker), task.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if worker.stopped() || task.count.is_some_and(|count| number >= count) {
                    return Ok(());
                }
                let sample = SampleId::new(format!("{}/{number}", worker.name))?;
                let seed = seed_of(&sample);
                let text = sample.to_string();
                worker.note(&Event::Putting { sample: text.clone() });
                match put(&worker.store, &sample, &task.lens, seed).await {
                    Ok(stored) => worker.note(&Event::Committed {
                        which: (&stored.reference).into(),
                        seed,
                    }),
                    Err(error) => worker.note(&Event::NotPut {
                        sample: text,
                        why: format!("{error:#}"),
                    }),
                }
                tokio::time::sleep(up_to(task.pause_millis)).await;
            }
        });
    }
    join(tasks).await
}

async fn consume(worker: &Arc<Worker>, at_once: usize, use_millis: u64) -> Result<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..at_once {
        let worker = Arc::clone(worker);
        tasks.spawn(async move {
            let group = trainers()?;
            while !worker.stopped() {
                match worker.store.lease_next(&group, 1, TAKE_WITHIN).await {
                    Ok(leases) => {
                        for lease in leases {
                            use_one(&worker, lease, use_millis).await?;
                        }
                    }
                    Err(error) => {
                        worker.note(&Event::Trouble { why: error.to_string() });
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
            Ok(())
        });
    }
    join(tasks).await
}

/// Gets, checks and acknowledges one sample; hands it back if that does not work.
async fn use_one(worker: &Worker, lease: Lease, use_millis: u64) -> Result<()> {
    let reference = lease.reference();
    let which = Which::from(&reference);
    let seed = seed_of(&reference.sample);
    let tensors = match worker.store.get(&lease, Wanted::All, WITHIN).await {
        Ok(tensors) => tensors,
        Err(error) => {
            worker.hooks.journal.not_got(which, &error);
            if error.kind() != ErrorKind::Fenced {
                worker.store.nack(&[lease], WITHIN).await;
            }
            return Ok(());
        }
    };
    let right = right(&tensors, seed)?;
    worker.note(&Event::Got {
        which: which.clone(),
        seed,
        right,
    });
    worker.hooks.step(Point::AfterGet).await;
    if use_millis > 0 {
        tokio::time::sleep(up_to(use_millis)).await;
    }
    drop(tensors);
    worker.note(&Event::Acking { which: which.clone() });
    worker.hooks.acking(&reference.sample);
    for answer in worker.store.ack(&[lease], WITHIN).await {
        match answer {
            Ok(_) => {
                worker.hooks.acked(&reference.sample);
                worker.note(&Event::Acked { which: which.clone() });
            }
            Err(error) => worker.hooks.journal.not_acked(which.clone(), &error),
        }
    }
    Ok(())
}
