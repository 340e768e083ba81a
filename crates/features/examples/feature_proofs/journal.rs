//! What a worker process did, written down as it happens: a line of JSON per event, so that what a killed process was
//! about to do is there. Its last line may be cut off; a reader takes whole lines only.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ObjectKey, Retry};
use tensorhold_features::SampleRef;

use crate::doom::Point;

/// A generation of a sample, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Which {
    pub(crate) sample: String,
    pub(crate) generation: u64,
}

impl From<&SampleRef> for Which {
    fn from(reference: &SampleRef) -> Self {
        Self {
            sample: reference.sample.to_string(),
            generation: reference.generation.get(),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// It is a member of the store, and begins.
    Ready,
    /// Objects are about to be written.
    Writing { keys: Vec<ObjectKey> },
    /// A put begins.
    Putting { sample: String },
    /// A put was told that its sample is committed.
    Committed { which: Which, seed: u64 },
    /// A put failed.
    NotPut { sample: String, why: String },
    /// A get returned tensors; whether they are exactly the bytes of the seed.
    Got { which: Which, seed: u64, right: bool },
    /// A get returned an error.
    NotGot { which: Which, kind: String, why: String },
    /// An acknowledgement is about to be sent.
    Acking { which: Which },
    /// An acknowledgement was accepted.
    Acked { which: Which },
    /// An acknowledgement was refused, or (`unclear`) its outcome is ambiguous.
    NotAcked { which: Which, unclear: bool, why: String },
    /// The bytes of a sample are free, so many milliseconds after its last acknowledgement was sent, and answered.
    Freed { after_sent: f64, after_answered: f64 },
    /// A reservation took so many milliseconds.
    Reserved { millis: f64 },
    /// A sample was aborted.
    Aborted { sample: String },
    /// The process is to die here.
    Doomed { point: Point },
    /// The call in whose middle the process is to die was over before the signal came.
    Survived { point: Point },
    /// Something else failed.
    Trouble { why: String },
}

/// Where a process writes down what it does.
#[derive(Debug)]
pub(crate) struct Journal(Mutex<File>);

impl Journal {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        let file = file.with_context(|| format!("cannot open the journal {}", path.display()))?;
        Ok(Self(Mutex::new(file)))
    }

    /// Writes one event. A process that cannot write its journal proves nothing, so it ends.
    pub(crate) fn note(&self, event: &Event) {
        let written = serde_json::to_string(event)
            .map_err(std::io::Error::other)
            .and_then(|line| self.0.lock().write_all(format!("{line}\n").as_bytes()));
        if let Err(error) = written {
            eprintln!("the journal cannot be written: {error}");
            std::process::exit(3);
        }
    }

    /// Writes down that a get was refused.
    pub(crate) fn not_got(&self, which: Which, error: &Error) {
        self.note(&Event::NotGot {
            which,
            kind: error.kind().to_string(),
            why: error.to_string(),
        });
    }

    /// Writes down that an acknowledgement was not accepted.
    pub(crate) fn not_acked(&self, which: Which, error: &Error) {
        self.note(&Event::NotAcked {
            which,
            unclear: error.retry() == Retry::Ambiguous,
            why: error.to_string(),
        });
    }
}

/// Reads a journal while it is written.
#[derive(Debug)]
pub(crate) struct Reader {
    path: PathBuf,
    position: u64,
    pub(crate) events: Vec<Event>,
}

impl Reader {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            position: 0,
            events: Vec::new(),
        }
    }

    /// Takes in what was added since the last time.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        let Ok(mut file) = File::open(&self.path) else {
            return Ok(()); // the process has not begun yet
        };
        file.seek(SeekFrom::Start(self.position))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in text[..whole]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            let event = serde_json::from_slice(line);
            self.events
                .push(event.with_context(|| format!("a line of {}", self.path.display()))?);
        }
        self.position += whole as u64;
        Ok(())
    }
}

/// How often each of these texts stands in a list, the most frequent first; for messages.
pub(crate) fn most_frequent(texts: impl IntoIterator<Item = String>) -> String {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for text in texts {
        *counts.entry(text).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let shown: Vec<String> = counts.iter().take(3).map(|(text, n)| format!("{n}x {text}")).collect();
    shown.join("; ")
}
