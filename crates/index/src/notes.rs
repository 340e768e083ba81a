//! Notes of what was given out: how a sweep finds what a session holds.
//!
//! Every transaction that gives leases or reservations to a session leaves one note, under the session and the tick until
//! which it holds them, with the names of all samples in it. One write for a whole batch, and the list of what is due is
//! as long as the number of such transactions, not of samples.
//!
//! ```text
//!                    the last of it is answered (by this or the next transaction)
//! (nothing) ──give──▶ noted ──────────────────────────────────────────▶ gone
//!                       │                                                ▲
//!                       └── due: a sweep looks at every sample in it ────┘
//! ```
//!
//! # What holds
//! - For every lease and reservation there is a note of its session, with its tick, that names it. Renewing is giving
//!   anew: it leaves a note under the new tick.
//! - A note may name what is over already: who answered some of its samples, or died before it struck the note out.
//!   That costs the sweep a look and nothing else, because what it does follows from the records.
//! - A sweep strikes a note out only after all that it names has been looked at *after* it was due. What was given until
//!   a later tick, in another transaction, has another note.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_core::{Generation, Result, SampleId};
use holdfast_custody::{SessionId, Tick};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::kv::Entry;
use crate::record::decode;

/// Something that a session holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) sample: SampleId,
    /// The generation; none for a reservation.
    pub(crate) generation: Option<Generation>,
}

/// What a transaction gives to a session.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// To whom: whoever renews a lease of another session gives to that one.
    pub(crate) to: SessionId,
    pub(crate) until: Tick,
    pub(crate) what: Holding,
}

/// A note as it is written.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reserved: Vec<SampleId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    leased: Vec<(SampleId, Generation)>,
}

impl Note {
    pub(crate) fn add(&mut self, holding: Holding) {
        match holding.generation {
            None => self.reserved.push(holding.sample),
            Some(generation) => self.leased.push((holding.sample, generation)),
        }
    }

    pub(crate) fn read(entry: &Entry) -> Result<Vec<Holding>> {
        let note: Self = decode(entry)?;
        let reserved = note.reserved.into_iter().map(|sample| Holding {
            sample,
            generation: None,
        });
        let leased = note.leased.into_iter().map(|(sample, generation)| Holding {
            sample,
            generation: Some(generation),
        });
        Ok(reserved.chain(leased).collect())
    }
}

/// A note that this process has left, and which lines of it are not answered yet.
#[derive(Debug)]
pub(crate) struct OpenNote {
    pub(crate) key: String,
    open: Mutex<Vec<bool>>,
}

impl PartialEq for OpenNote {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for OpenNote {}

impl OpenNote {
    /// A note with so many lines.
    pub(crate) fn new(key: String, lines: usize) -> Arc<Self> {
        let open = Mutex::new(vec![true; lines]);
        Arc::new(Self { key, open })
    }

    /// Whether nothing of it is left once these lines are answered, and something was before: whoever answered the last of
    /// it has struck it out or will. If two who answer the rest ask at the same time, both may be told no: a later
    /// transaction of the session strikes it out, or the sweep that finds it due.
    pub(crate) fn ends_with(&self, answered: &[usize]) -> bool {
        let mut open = self.open.lock().clone();
        let was_open = open.contains(&true);
        answered.iter().for_each(|line| open[*line] = false);
        was_open && !open.contains(&true)
    }
}

/// One line of a note: one sample that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) note: Arc<OpenNote>,
    pub(crate) line: usize,
}

impl Line {
    /// It is answered. True if it was the last one of its note.
    pub(crate) fn answered(&self) -> bool {
        let mut open = self.note.open.lock();
        std::mem::replace(&mut open[self.line], false) && !open.contains(&true)
    }
}

/// The notes of one session: their numbers, and those of which nothing is left but which nobody has struck out yet.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    next: AtomicU64,
    over: Mutex<Vec<String>>,
}

impl Notes {
    /// A number that no other note of the session has.
    pub(crate) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, over: Vec<String>) {
        if !over.is_empty() {
            self.over.lock().extend(over);
        }
    }

    /// Up to `count` that are over: for whoever has room in a transaction.
    pub(crate) fn take(&self, count: usize) -> Vec<String> {
        let mut over = self.over.lock();
        let keep = over.len().saturating_sub(count);
        over.split_off(keep)
    }
}
