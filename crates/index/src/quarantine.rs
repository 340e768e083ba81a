//! Records that cannot be read: one bad record harms one record.
//!
//! Any client of the store of keys can write what is no record: a program with a bug, a person with a shell, an
//! enemy. A release that is older than the one that wrote a record cannot read it either. The two are not the same:
//!
//! | what was found | what it is | what becomes of it |
//! |---|---|---|
//! | no record, or one over the limits of decoding | *unreadable* (`Corrupt`) | it is moved into quarantine |
//! | a record that says `"v"` with a larger number than [`crate::record::RECORD_VERSION`] | *later* (`Unsupported`) | it stays where it is for processes of that release; passed over, counted, logged once |
//! | an unknown field, or an unknown [`holdfast_custody::Reason`] | readable | passed over, or `Other` |
//!
//! So a release that adds what an older one may ignore simply adds it; one that adds what an older one must not touch (a
//! state of a group, say) writes `"v"`. A record of a later release that was taken for garbage would be lost to those
//! that can read it, and an upgrade goes process by process.
//!
//! ```text
//!              unreadable: one transaction, on condition that the record is as it was read
//! f/…, s/…, q/…, p/…, h/…, b/… ──────────────────────────────────────────────────▶ x/o/{its key}/{its version}  the bytes
//!                   │                                                              x/i/{its key}/{its version}  why
//!                   └─ longer than a transaction holds: stays, and x/i says so (`in_place`)
//! ```
//!
//! It is moved and not only marked, so that the lists that every sweep and every take walks are clean: a mark would cost
//! each of them a second look at each bad record, for ever. Its bytes are kept as they were. Nobody ever reads them again
//! by itself: a person looks ([`crate::Index::quarantined`]), and deletes them or puts them back.
//!
//! # What if…
//! - *…two find it at once?* The second one's condition does not hold.
//! - *…the reply is lost?* It is there or not; the next look tells. Nothing else depends on it.
//! - *…the record changes meanwhile?* Then it stays, and the next look reads it.
//! - *…it held bytes of the budget?* They stay bound, as its objects do: nobody knows which they are. Putting the record
//!   back, mended, frees both.
//! - *…the process dies half-way?* There is no half.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_core::{Deadline, Digest, Error, ErrorKind, Result};
use holdfast_custody::{Live, Version};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::index::KvIndex;
use crate::kv::{Applied, Condition, Entry, Read, Transaction, Write};
use crate::layout::{Layout, after};
use crate::pages::MOST_BYTES;
use crate::record::{decode, decode_versioned, encode};
use crate::types::{Quarantined, SampleRef, Unreadable, Versioned};

const OPERATION: &str = "index.quarantine";

/// How many records this process remembers as left in place.
const MOST_KNOWN: usize = 16_384;

/// How many records one call sets aside: it has its own work to do within its time.
const MOST_AT_ONCE: usize = 64;

/// What is written under `x/i/`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Info {
    why: String,
    bytes: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    in_place: bool,
}

/// What became of a record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetAside {
    /// It is in quarantine.
    Moved,
    /// It was changed or moved by another process since it was read.
    Changed,
    /// It is too long to be moved, and stays.
    InPlace,
}

/// What this process has passed over.
#[derive(Debug, Default)]
pub(crate) struct PassedOver {
    quarantined: AtomicU64,
    later: AtomicU64,
    /// Records that stay where they are, so that each is told of once.
    known: Mutex<HashMap<Digest, Version>>,
}

impl PassedOver {
    /// How many records this process has moved into quarantine, and how many of later releases it has met.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (count(&self.quarantined), count(&self.later))
    }

    /// Whether this record of this version is met for the first time.
    fn is_new(&self, key: &str, version: Version) -> bool {
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(Digest::of(key.as_bytes()), version) != Some(version)
    }

    /// What was to be noted of this record was not.
    fn forget(&self, key: &str) {
        self.known.lock().remove(&Digest::of(key.as_bytes()));
    }

    /// A record of a later release was met.
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

/// Entries of a list, some of which are none of ours.
pub(crate) struct Sorted<T> {
    pub(crate) good: Vec<T>,
    pub(crate) quarantined: usize,
    pub(crate) later: usize,
}

impl KvIndex {
    /// Moves an entry into quarantine, and deletes what lies only because of it.
    pub(crate) async fn set_aside(
        &self,
        entry: &Entry,
        why: &str,
        along: Vec<String>,
        deadline: Deadline,
    ) -> Result<SetAside> {
        let Some(aside) = self.layout().aside(&entry.key, entry.version) else {
            return Err(Error::internal(OPERATION, "this key is not one of the store").with("key", &entry.key));
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
        let limits = self.kv().limits();
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
        // Without a session: any process that finds it may move it, once.
        let applied = self.kv().transact(&transaction, deadline.remaining(self.clock())).await;
        if !matches!(applied, Ok(Applied::Yes(_))) {
            // The next to meet it notes it.
            self.passed_over().forget(&entry.key);
        }
        if applied? == Applied::No {
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

    /// Takes in the entries of a list: what can be read is returned, the rest is set aside or passed over. What cannot be
    /// set aside now, because the store does not answer or because there is too much of it for one call, is passed over
    /// as well: the next reader of the list goes on with it.
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
                            tracing::debug!(%error, key = entry.key, "a record that cannot be read stays for now");
                            left = 0;
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sorted)
    }

    /// Moves samples into quarantine whose record can be read, and what their producer said about them cannot.
    pub(crate) async fn do_quarantine(&self, items: &[Unreadable], deadline: Deadline) -> Vec<Result<bool>> {
        let mut results = Vec::with_capacity(items.len());
        for item in items {
            results.push(self.quarantine_one(item, deadline).await);
        }
        results
    }

    async fn quarantine_one(&self, item: &Unreadable, deadline: Deadline) -> Result<bool> {
        let SampleRef { sample, generation } = &item.sample;
        let reads = [
            Read::Key(self.layout().live(sample)),
            Read::Key(self.layout().retired_with_readers(sample, *generation)),
            Read::Key(self.layout().to_free(sample, *generation)),
        ];
        let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
        let mut moved = false;
        for (place, entry) in snapshot.entries.into_iter().enumerate() {
            let Some(entry) = entry.into_iter().next() else {
                continue;
            };
            let mut along = Vec::new();
            if place == 0 {
                let live: Versioned<Live> = decode_versioned(&entry)?;
                if live.record.generation != *generation {
                    continue;
                }
                along.extend(self.layout().ready_entries(sample, &live.record, None));
            }
            let aside = self.set_aside(&entry, &item.why, along, deadline).await?;
            moved |= aside != SetAside::Changed;
        }
        Ok(moved)
    }

    /// What is in quarantine, in the order of keys: after this one, up to a limit.
    pub(crate) async fn do_quarantined(
        &self,
        after_this: Option<&Quarantined>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<Quarantined>> {
        let mut range = self.layout().all_aside();
        if let Some(last) = after_this.and_then(|last| self.layout().aside(&last.key, last.version)) {
            range.start = after(&last.info);
        }
        loop {
            let keys = self.read_keys([range.clone()], limit, deadline).await?;
            let keys = keys.into_iter().next().unwrap_or_default();
            let (entries, looked_at) = self.read_values(&keys, MOST_BYTES, deadline).await?;
            let found: Vec<Quarantined> = entries
                .iter()
                .filter_map(|entry| Quarantined::parse(self.layout(), entry))
                .collect();
            match looked_at.checked_sub(1).and_then(|last| keys.get(last)) {
                // An empty part would be taken for the end of the list.
                Some(last) if found.is_empty() => range.start = after(last),
                _ => return Ok(found),
            }
        }
    }

    /// The bytes of a record in quarantine, as they were.
    pub(crate) async fn do_quarantined_bytes(&self, which: &Quarantined, deadline: Deadline) -> Result<Vec<u8>> {
        let gone = || {
            let message = "there is no such record in quarantine, or not any more";
            Error::new(ErrorKind::NotFound, OPERATION, message).with("key", &which.key)
        };
        let aside = self.layout().aside(&which.key, which.version).ok_or_else(gone)?;
        let key = if which.in_place { which.key.clone() } else { aside.bytes };
        let snapshot = self
            .kv()
            .read(&[Read::Key(key)], deadline.remaining(self.clock()))
            .await?;
        let entry = snapshot.entries.into_iter().flatten().next();
        let entry = entry.filter(|entry| !which.in_place || entry.version == which.version);
        entry.map(|entry| entry.value).ok_or_else(gone)
    }
}

impl Quarantined {
    /// What an entry under `x/i/` tells; none if it is no entry of ours.
    pub(crate) fn parse(layout: &Layout, entry: &Entry) -> Option<Self> {
        let (key, version) = layout.parse_aside(&entry.key)?;
        // What is said about it may be lost; that it is there is not.
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

/// Why a record cannot be read, in one line.
pub(crate) fn told(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{}{}", error.message(), cause.unwrap_or_default())
}
