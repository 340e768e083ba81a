//! The history: what was asked when, and what was answered when, by one clock for all processes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

/// What a worker did to one sample, and what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    Reserved { generation: u64 },
    Committed { generation: u64 },
    CommitRefused { generation: u64 },
    Leased { generation: u64, token: u64 },
    Acked { generation: u64, token: u64 },
    AckRefused { generation: u64, token: u64 },
}

/// What a worker asked, before it knew the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ask {
    Reserve,
    Commit { generation: u64 },
    Lease,
    Ack { generation: u64, token: u64 },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// Nanoseconds of the machine's monotonic clock, which all processes share.
    pub at: u64,
    /// The operation: unique over all workers.
    pub id: (usize, u64),
    pub sample: Option<String>,
    pub event: Event,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Event {
    Asked(Ask),
    Told(Step),
    /// The outcome is unknown; it may still happen.
    Unclear,
    /// It certainly did not happen.
    Nothing,
}

/// Writes lines as they happen, so that what a killed process asked is there.
pub struct Recorder {
    file: Mutex<File>,
    worker: usize,
    next: Mutex<u64>,
}

fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).expect("after boot") * 1_000_000_000
        + u64::try_from(time.tv_nsec).expect("below a second")
}

impl Recorder {
    pub fn open(path: &Path, worker: usize) -> Self {
        let file = File::options()
            .create(true)
            .append(true)
            .open(path)
            .expect("a history file");
        Self {
            file: Mutex::new(file),
            worker,
            next: Mutex::new(0),
        }
    }

    fn write(&self, id: (usize, u64), sample: Option<&str>, event: Event) {
        let line = Line {
            at: now(),
            id,
            sample: sample.map(str::to_owned),
            event,
        };
        let mut text = serde_json::to_string(&line).expect("json");
        text.push('\n');
        self.file
            .lock()
            .expect("file")
            .write_all(text.as_bytes())
            .expect("written");
    }

    pub fn asked(&self, sample: Option<&str>, ask: Ask) -> (usize, u64) {
        let mut next = self.next.lock().expect("counter");
        *next += 1;
        let id = (self.worker, *next);
        drop(next);
        self.write(id, sample, Event::Asked(ask));
        id
    }

    pub fn told(&self, id: (usize, u64), sample: &str, step: Step) {
        self.write(id, Some(sample), Event::Told(step));
    }

    pub fn unclear(&self, id: (usize, u64)) {
        self.write(id, None, Event::Unclear);
    }

    pub fn nothing(&self, id: (usize, u64)) {
        self.write(id, None, Event::Nothing);
    }
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Operation {
    pub id: (usize, u64),
    pub from: u64,
    pub ask: Ask,
    /// When it was told what; none if it never was, or unclearly.
    pub end: Option<(u64, Step)>,
}

/// All operations, by sample. Operations that certainly did not happen are left out, and so is a lease that no worker
/// was told of.
pub fn by_sample(lines: &[Line]) -> BTreeMap<String, Vec<Operation>> {
    let mut asked: BTreeMap<(usize, u64), (u64, Ask, Option<String>)> = BTreeMap::new();
    let mut samples: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
    for line in lines {
        match line.event {
            Event::Asked(ask) => {
                asked.insert(line.id, (line.at, ask, line.sample.clone()));
            }
            Event::Told(step) => {
                let (from, ask, _) = asked.remove(&line.id).expect("asked before it was told");
                let sample = line.sample.clone().expect("told about a sample");
                samples.entry(sample).or_default().push(Operation {
                    id: line.id,
                    from,
                    ask,
                    end: Some((line.at, step)),
                });
            }
            Event::Nothing => drop(asked.remove(&line.id)),
            Event::Unclear => {}
        }
    }
    for (id, (from, ask, sample)) in asked {
        if let Some(sample) = sample {
            samples.entry(sample).or_default().push(Operation {
                id,
                from,
                ask,
                end: None,
            });
        }
    }
    samples
}
