//! Records that cannot be decoded: one bad record harms one record.
//!
//! Any client of the transactional store can write a value that is not a record: a program with a bug, a person with a
//! shell, an attacker. A release that is older than the one that wrote a record cannot decode it either. The two cases
//! differ:
//!
//! | what was found | what it is | what becomes of it |
//! |---|---|---|
//! | no record, or one over the limits of decoding | *unreadable* (`Corrupt`) | it is moved into quarantine |
//! | a record that says `"v"` with a larger number than [`crate::record::codec::RECORD_VERSION`] | *later* (`Unsupported`) | it stays where it is for processes of that release; skipped, counted, logged once |
//! | an unknown field, or an unknown [`tensorhold_custody::Reason`] | readable | ignored, or `Other` |
//!
//! So a release that adds what an older one may ignore simply adds it. A release that adds what an older one must not
//! touch (a state of a group, for example) writes `"v"`. If a record of a later release were taken for garbage, the
//! processes that can decode it would lose it, and an upgrade goes process by process.
//!
//! ```text
//!              unreadable: one transaction, on condition that the record is as it was read
//! f/…, s/…, q/…, p/…, h/…, b/… ──────────────────────────────────────────────────▶ x/o/{its key}/{its version}  the bytes
//!                   │                                                              x/i/{its key}/{its version}  why
//!                   └─ longer than a transaction holds: stays, and x/i says so (`in_place`)
//! ```
//!
//! The record is moved and not only marked, so that the lists that every sweep and every lease walks stay clean: a mark
//! would cost each of them a second read of each bad record, for ever. Its bytes are kept unchanged. No process ever
//! reads them again on its own: an operator looks at them ([`crate::Index::quarantined`]), and deletes them or puts
//! them back.
//!
//! # What if…
//! - *…two processes find it at once?* The condition of the second one does not hold.
//! - *…the reply is lost?* The record was moved or not; the next read shows which. Nothing else depends on it.
//! - *…the record changes meanwhile?* Then it stays, and the next read decodes the new one.
//! - *…it held bytes of the budget?* They stay charged, and its objects stay in the engine: no process knows which they
//!   are. When an operator repairs the record and puts it back, both can be freed.
//! - *…the process dies half-way?* There is no half-way: it is one transaction.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tensorhold_core::{Deadline, Digest, Error, ErrorKind, Result};
use tensorhold_custody::Version;

use crate::record::codec::{decode, encode};
use crate::record::layout::Layout;
use crate::record::types::Quarantined;
use crate::store::{Condition, Entry, Transaction, TxnOutcome, Write};
use crate::txn::TxnCore;

const OPERATION: &str = "index.quarantine";

/// The most records that this process remembers as left in place, so that each is reported once. Bounds memory.
const MOST_KNOWN: usize = 16_384;

/// The most records that one call quarantines. The call has its own work to do within its deadline.
const MOST_AT_ONCE: usize = 64;

/// The value under `x/i/`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Info {
    why: String,
    bytes: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    in_place: bool,
}

/// What became of a record that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetAside {
    /// It is in quarantine.
    Moved,
    /// It was changed or moved by another process since it was read.
    Changed,
    /// It is too long for a transaction and stays under its key.
    InPlace,
}

/// The records that this process has skipped.
#[derive(Debug, Default)]
pub(crate) struct PassedOver {
    quarantined: AtomicU64,
    later: AtomicU64,
    /// Records that stay where they are, so that each is reported once.
    known: Mutex<HashMap<Digest, Version>>,
}

impl PassedOver {
    /// How many records this process has quarantined, and how many of later releases it has met.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.quarantined), count(&self.later))
    }

    /// Whether this record is met at this version for the first time.
    fn is_new(&self, key: &str, version: Version) -> bool {
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(Digest::of(key.as_bytes()), version) != Some(version)
    }

    /// Forgets a record whose entry in `x/i/` was not written.
    fn forget(&self, key: &str) {
        self.known.lock().remove(&Digest::of(key.as_bytes()));
    }

    /// Counts and logs a record of a later release.
    pub(crate) fn later(&self, key: &str, version: Version) {
        if self.is_new(key, version) {
            self.later.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                key,
                "a record was written by a later release; it is left to processes of that release"
            );
        }
    }
}

/// The entries of a list, sorted by whether they could be decoded.
pub(crate) struct Sorted<T> {
    pub(crate) good: Vec<T>,
    pub(crate) quarantined: usize,
    pub(crate) later: usize,
}

impl TxnCore {
    /// Moves an entry into quarantine, and deletes the list entries that exist only because of it.
    pub(crate) async fn set_aside(
        &self,
        entry: &Entry,
        why: &str,
        along: Vec<String>,
        deadline: Deadline,
    ) -> Result<SetAside> {
        let Some(aside) = self.layout().aside(&entry.key, entry.version) else {
            return Err(Error::internal(OPERATION, "this key lies outside the store's root").with("key", &entry.key));
        };
        let info = |in_place| {
            encode(&Info {
                why: why.to_owned(),
                bytes: entry.value.len() as u64,
                in_place,
            })
        };
        let unchanged = Condition::Unchanged(entry.key.clone(), entry.version);
        let mut writes = vec![
            Write::Delete(entry.key.clone()),
            Write::put(aside.bytes, entry.value.clone()),
            Write::put(aside.info.clone(), info(false)?),
        ];
        writes.extend(along.into_iter().filter(|key| *key != entry.key).map(Write::Delete));
        let limits = self.txn_store().limits();
        let bytes: usize = unchanged.bytes() + writes.iter().map(Write::bytes).sum::<usize>();
        let fits = bytes <= limits.bytes && writes.len() <= limits.operations;
        if !fits {
            if !self.passed_over().is_new(&entry.key, entry.version) {
                return Ok(SetAside::InPlace);
            }
            writes = vec![Write::put(aside.info, info(true)?)];
        }
        let transaction = Transaction {
            conditions: vec![unchanged],
            writes,
        };
        // Not in the name of a session: any process that finds the record may move it, and only one does.
        let applied = self
            .txn_store()
            .transact(&transaction, deadline.remaining(self.clock()))
            .await;
        if !matches!(applied, Ok(TxnOutcome::Committed(_))) {
            // The next caller that meets it tries again.
            self.passed_over().forget(&entry.key);
        }
        if applied? == TxnOutcome::Rejected {
            return Ok(SetAside::Changed);
        }
        self.passed_over().quarantined.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            key = entry.key,
            why,
            bytes = entry.value.len(),
            in_place = !fits,
            "a record cannot be read; it is in quarantine, and everything else goes on"
        );
        Ok(if fits { SetAside::Moved } else { SetAside::InPlace })
    }

    /// Decodes the entries of a list. Those that cannot be decoded are quarantined or skipped. If a record cannot be
    /// quarantined now, because the store does not answer or because there are too many for one call, it is skipped
    /// too: the next read of the list tries it again.
    pub(crate) async fn sort_out<T>(
        &self,
        entries: impl IntoIterator<Item = Entry>,
        read: impl Fn(&Entry) -> Result<T>,
        deadline: Deadline,
    ) -> Result<Sorted<T>> {
        let mut sorted = Sorted {
            good: Vec::new(),
            quarantined: 0,
            later: 0,
        };
        let mut left = MOST_AT_ONCE;
        for entry in entries {
            match read(&entry) {
                Ok(item) => sorted.good.push(item),
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    self.passed_over().later(&entry.key, entry.version);
                    sorted.later += 1;
                }
                Err(_) if left == 0 => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    left -= 1;
                    match self.set_aside(&entry, &told(&error), Vec::new(), deadline).await {
                        Ok(SetAside::Changed) => {}
                        Ok(SetAside::Moved | SetAside::InPlace) => sorted.quarantined += 1,
                        Err(error) => {
                            tracing::debug!(%error, key = entry.key, "an unreadable record stays for now");
                            left = 0;
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sorted)
    }
}

impl Quarantined {
    /// Decodes an entry under `x/i/`; none if its key is not one that this crate writes.
    pub(crate) fn parse(layout: &Layout, entry: &Entry) -> Option<Self> {
        let (key, version) = layout.parse_aside(&entry.key)?;
        // If the explanation cannot be decoded, the record is listed all the same.
        let info = decode(entry).unwrap_or_else(|_| Info {
            why: "unknown".to_owned(),
            bytes: 0,
            in_place: false,
        });
        Some(Self {
            key,
            version,
            why: info.why,
            bytes: info.bytes,
            in_place: info.in_place,
        })
    }
}

/// Why a record cannot be decoded, in one line.
pub(crate) fn told(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{}{}", error.message(), cause.unwrap_or_default())
}
