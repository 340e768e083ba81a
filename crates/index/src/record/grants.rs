//! Grant lists: how a sweep finds what a session holds.
//!
//! Every transaction that grants leases or reservations to a session writes one grant list, under the session and the
//! tick until which they are granted, with the names of all samples in it. That is one write for a whole batch, and the
//! list of what is due is as long as the number of such transactions, not of samples.
//!
//! ```text
//!                    the last of its samples is answered (deleted by this or the next transaction)
//! (nothing) ──grant──▶ written ─────────────────────────────────────────▶ gone
//!                        │                                                 ▲
//!                        └── due: a sweep looks at every sample in it ─────┘
//! ```
//!
//! # Invariants
//! - For every lease and reservation there is a grant list of its session, with its tick, that names it. A renewal is
//!   a new grant: it writes a grant list under the new tick.
//! - A grant list may name leases that are over: their holder has answered only some of its samples, or died before
//!   it deleted the grant list. That costs the sweep a read and nothing else, because a sweep decides by the samples'
//!   records.
//! - A sweep deletes a grant list only after every sample that it names has been looked at *after* it was due. Leases
//!   that another transaction granted until a later tick have another grant list.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Generation, Result, SampleId};
use tensorhold_custody::{SessionId, Tick};

use crate::record::codec::decode;
use crate::record::types::SampleRef;
use crate::store::Entry;

/// A lease or a reservation that a session holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) sample: SampleId,
    /// The generation of a leased sample; none for a reservation.
    pub(crate) generation: Option<Generation>,
}

/// A lease or a reservation that a transaction grants.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    /// The session that gets it. A renewal of another session's lease grants to that session.
    pub(crate) to: SessionId,
    pub(crate) until: Tick,
    pub(crate) what: Holding,
}

/// The value of a grant list.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GrantList {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reserved: Vec<SampleId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    leased: Vec<(SampleId, Generation)>,
}

impl GrantList {
    pub(crate) fn add(&mut self, holding: Holding) {
        match holding.generation {
            None => self.reserved.push(holding.sample),
            Some(generation) => self.leased.push((holding.sample, generation)),
        }
    }

    pub(crate) fn read(entry: &Entry) -> Result<Vec<Holding>> {
        let grant: Self = decode(entry)?;
        let reserved = grant.reserved.into_iter().map(|sample| Holding {
            sample,
            generation: None,
        });
        let leased = grant.leased.into_iter().map(|(sample, generation)| Holding {
            sample,
            generation: Some(generation),
        });
        Ok(reserved.chain(leased).collect())
    }
}

/// A grant list that this process has written, and which of its lines are not answered yet.
#[derive(Debug)]
pub(crate) struct OpenGrantList {
    pub(crate) key: String,
    open: Mutex<Vec<bool>>,
}

impl PartialEq for OpenGrantList {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for OpenGrantList {}

impl OpenGrantList {
    /// A grant list with this many lines.
    pub(crate) fn new(key: String, lines: usize) -> Arc<Self> {
        let open = Mutex::new(vec![true; lines]);
        Arc::new(Self { key, open })
    }

    /// Whether these lines are the last open ones: none is open once they are answered, and one was before. If none was
    /// open before, the call that answered the last line has deleted the grant list, or will. If two callers that
    /// answer the remaining lines ask at the same time, both may be told no. Then a later transaction of the session
    /// deletes the grant list, or the sweep that finds it due.
    pub(crate) fn ends_with(&self, answered: &[usize]) -> bool {
        let mut open = self.open.lock().clone();
        let was_open = open.contains(&true);
        answered.iter().for_each(|line| open[*line] = false);
        was_open && !open.contains(&true)
    }
}

/// One line of a grant list: one sample that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantLine {
    pub(crate) grant: Arc<OpenGrantList>,
    pub(crate) line: usize,
}

impl GrantLine {
    /// Marks the line as answered. True if it was the last open one of its grant list.
    pub(crate) fn answered(&self) -> bool {
        let mut open = self.grant.open.lock();
        std::mem::replace(&mut open[self.line], false) && !open.contains(&true)
    }
}

/// The grant lists of one session: the next number, and the keys of those that have no open line but are not deleted
/// yet.
#[derive(Debug, Default)]
pub(crate) struct SessionGrants {
    next: AtomicU64,
    over: Mutex<Vec<String>>,
}

impl SessionGrants {
    /// A number that no other grant list of the session has.
    pub(crate) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, over: Vec<String>) {
        if !over.is_empty() {
            self.over.lock().extend(over);
        }
    }

    /// Up to `count` keys of grant lists that are over, for a transaction that has room to delete them.
    pub(crate) fn take(&self, count: usize) -> Vec<String> {
        let mut over = self.over.lock();
        let keep = over.len().saturating_sub(count);
        over.split_off(keep)
    }
}

/// A lease or a read of a live sample, as its grant.
pub(crate) fn held_until(sample: &SampleRef, to: SessionId, until: Tick) -> Grant {
    let what = Holding {
        sample: sample.sample.clone(),
        generation: Some(sample.generation),
    };
    Grant { to, until, what }
}
