//! The state of a [`MemoryStore`](super::MemoryStore), and how it changes: no waiting, no clock of its own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, Range};
use std::time::Duration;

use tensorhold_core::{Error, ErrorKind, Result, Timestamp};
use tensorhold_custody::{SessionId, Version};

use crate::store::{Change, Condition, Entry, History, Read, Snapshot, Transaction, TxnOutcome, Write};

/// The most changes that are kept for watches. Older ones are forgotten, as in a store with compaction.
const HISTORY: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct State {
    version: u64,
    entries: BTreeMap<String, Stored>,
    sessions: BTreeMap<SessionId, Session>,
    last_session: u64,
    history: VecDeque<Change>,
    compacted: u64,
    /// The largest version that was ever given out, and how often the store was restored.
    largest: u64,
    cuts: u64,
    /// Whether it was restored and the operator has not declared yet that this is the store from now on.
    is_cut: bool,
}

/// A copy of the store at an earlier moment.
#[derive(Clone, Debug)]
pub struct Saved {
    version: u64,
    entries: BTreeMap<String, Stored>,
}

#[derive(Clone, Debug)]
struct Stored {
    value: Vec<u8>,
    version: Version,
    session: Option<SessionId>,
}

#[derive(Debug)]
struct Session {
    time_to_live: Duration,
    /// When it ends, if no keeper keeps it alive.
    dies: Option<Timestamp>,
    keys: BTreeSet<String>,
}

impl State {
    pub(super) fn version(&self) -> Version {
        Version(self.version)
    }

    /// Ends every session whose time has come, in the order of their deaths.
    pub(super) fn settle(&mut self, now: Timestamp) {
        let mut due: Vec<(Timestamp, SessionId)> = self
            .sessions
            .iter()
            .filter_map(|(id, session)| Some((session.dies.filter(|dies| *dies <= now)?, *id)))
            .collect();
        due.sort_unstable();
        for (_, id) in due {
            self.end(id);
        }
    }

    pub(super) fn read(&self, reads: &[Read]) -> Snapshot {
        let entries = reads.iter().map(|read| self.read_one(read)).collect();
        Snapshot {
            version: self.version(),
            entries,
        }
    }

    fn read_one(&self, read: &Read) -> Vec<Entry> {
        match read {
            Read::Key(key) => self
                .entries
                .get(key)
                .map(|stored| stored.entry(key, false))
                .into_iter()
                .collect(),
            // `BTreeMap::range` panics on a range that ends before it begins; as a read it is just empty.
            Read::Range { keys, .. } | Read::Oldest { keys, .. } if keys.start >= keys.end => Vec::new(),
            Read::Range { keys, limit, keys_only } => self
                .range(keys)
                .take(*limit)
                .map(|(key, stored)| stored.entry(key, *keys_only))
                .collect(),
            Read::Oldest { keys, limit } => {
                let mut all: Vec<_> = self.range(keys).map(|(key, stored)| stored.entry(key, false)).collect();
                all.sort_by_key(|entry| entry.version);
                all.truncate(*limit);
                all
            }
        }
    }

    /// The entries of a range that is not empty.
    fn range(&self, keys: &Range<String>) -> impl Iterator<Item = (&String, &Stored)> {
        let bounds = (Bound::Included(keys.start.as_str()), Bound::Excluded(keys.end.as_str()));
        self.entries.range::<str, _>(bounds)
    }

    pub(super) fn transact(&mut self, transaction: &Transaction) -> Result<TxnOutcome> {
        if !transaction.conditions.iter().all(|condition| self.holds(condition)) {
            return Ok(TxnOutcome::Rejected);
        }
        for write in &transaction.writes {
            if let Write::Put {
                key,
                session: Some(session),
                ..
            } = write
                && !self.is_alive(*session)
            {
                return Err(Error::new(ErrorKind::Fenced, "kv.transact", "the session has ended")
                    .with("session", session)
                    .with("key", key));
            }
        }
        let changes_something = |write: &Write| match write {
            Write::Put { .. } => true,
            Write::Delete(key) => self.entries.contains_key(key),
        };
        if transaction.writes.iter().any(changes_something) {
            self.version += 1;
        }
        for write in &transaction.writes {
            match write {
                Write::Put { key, value, session } => self.put(key, value, *session),
                Write::Delete(key) => self.delete(key),
            }
        }
        self.trim();
        Ok(TxnOutcome::Committed(self.version()))
    }

    fn holds(&self, condition: &Condition) -> bool {
        match condition {
            Condition::Unchanged(key, version) => {
                self.entries.get(key).is_some_and(|stored| stored.version == *version)
            }
            Condition::Absent(key) => !self.entries.contains_key(key),
            Condition::Present(key) => self.entries.contains_key(key),
            Condition::NoneIn(keys) => keys.start >= keys.end || self.range(keys).next().is_none(),
        }
    }

    fn put(&mut self, key: &str, value: &[u8], session: Option<SessionId>) {
        let version = self.version();
        let stored = Stored {
            value: value.to_vec(),
            version,
            session,
        };
        let replaced = self.entries.insert(key.to_owned(), stored);
        self.let_go(key, replaced.and_then(|stored| stored.session));
        if let Some(session) = session.and_then(|id| self.sessions.get_mut(&id)) {
            session.keys.insert(key.to_owned());
        }
        self.history.push_back(Change {
            key: key.to_owned(),
            value: Some(value.to_vec()),
            version,
        });
    }

    fn delete(&mut self, key: &str) {
        let Some(stored) = self.entries.remove(key) else { return };
        self.let_go(key, stored.session);
        let version = self.version();
        self.history.push_back(Change {
            key: key.to_owned(),
            value: None,
            version,
        });
    }

    fn let_go(&mut self, key: &str, session: Option<SessionId>) {
        if let Some(session) = session.and_then(|id| self.sessions.get_mut(&id)) {
            session.keys.remove(key);
        }
    }

    pub(super) fn open(&mut self, time_to_live: Duration) -> SessionId {
        self.last_session += 1;
        let id = SessionId(self.last_session);
        let session = Session {
            time_to_live,
            dies: None,
            keys: BTreeSet::new(),
        };
        self.sessions.insert(id, session);
        id
    }

    pub(super) fn keep(&mut self, id: SessionId, kept: bool, now: Timestamp) -> bool {
        let Some(session) = self.sessions.get_mut(&id) else {
            return false;
        };
        session.dies = match (kept, session.dies) {
            (true, _) => None,
            (false, None) => Some(now.after(session.time_to_live)),
            (false, dying) => dying,
        };
        true
    }

    pub(super) fn end(&mut self, id: SessionId) -> bool {
        let Some(session) = self.sessions.remove(&id) else {
            return false;
        };
        if !session.keys.is_empty() {
            self.version += 1;
        }
        for key in &session.keys {
            self.delete(key);
        }
        self.trim();
        true
    }

    pub(super) fn is_alive(&self, id: SessionId) -> bool {
        self.sessions.contains_key(&id)
    }

    pub(super) fn sessions(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    /// All changes of keys in a range after a version.
    pub(super) fn changes(&self, keys: &Range<String>, after: Version) -> Result<Vec<Change>> {
        if after.0 < self.compacted {
            return Err(Error::new(
                ErrorKind::NotFound,
                "kv.watch",
                "the changes after this version are no longer kept: read again and watch from there",
            )
            .with("after", after)
            .with("kept_after", self.compacted));
        }
        let begin = self.history.partition_point(|change| change.version <= after);
        let new = self.history.range(begin..);
        Ok(new.filter(|change| keys.contains(&change.key)).cloned().collect())
    }

    pub(super) fn compact(&mut self, version: Version) {
        self.compacted = self.compacted.max(version.0.min(self.version));
        let forgotten = self
            .history
            .partition_point(|change| change.version.0 <= self.compacted);
        self.history.drain(..forgotten);
    }

    fn trim(&mut self) {
        let over = self.history.len().saturating_sub(HISTORY);
        if over > 0
            && let Some(last) = self.history.get(over - 1)
        {
            self.compact(last.version);
        }
    }

    pub(super) fn save(&self) -> Saved {
        Saved {
            version: self.version,
            entries: self.entries.clone(),
        }
    }

    /// Versions go back too: writes before [`State::declare`] would get the same ones again.
    pub(super) fn put_back(&mut self, saved: &Saved) {
        self.largest = self.largest.max(self.version);
        self.version = saved.version;
        self.entries = saved.entries.clone();
        self.entries.retain(|_, stored| stored.session.is_none());
        self.sessions.clear();
        self.history.clear();
        self.cuts += 1;
        self.is_cut = true;
    }

    pub(super) fn declare(&mut self) {
        self.version = self.largest.max(self.version) + 1;
        self.compacted = self.version;
        self.is_cut = false;
    }

    /// Why every call is refused, if it is.
    pub(super) fn refuses(&self) -> Option<&'static str> {
        let why = "the store was restored to an earlier state, and the operator has not declared it valid yet";
        self.is_cut.then_some(why)
    }

    pub(super) fn told_history(&self) -> History {
        History {
            epoch: self.cuts.to_string(),
            cuts: self.cuts,
            refuses: self.refuses().map(str::to_owned),
        }
    }

    pub(super) fn dump(&self) -> Vec<Entry> {
        self.entries
            .iter()
            .map(|(key, stored)| stored.entry(key, false))
            .collect()
    }
}

impl Stored {
    fn entry(&self, key: &str, without_value: bool) -> Entry {
        let value = if without_value { Vec::new() } else { self.value.clone() };
        Entry {
            key: key.to_owned(),
            value,
            version: self.version,
        }
    }
}
