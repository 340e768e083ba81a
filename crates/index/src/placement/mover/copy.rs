//! Copies a store to the target of a move: everything while it is in use, then what has changed meanwhile, and, when it is
//! frozen, the rest and the sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use tensorhold_core::{Error, ErrorKind, Result};
use tensorhold_custody::{SessionId, Version};

use super::{CALL, KEYS_AT_ONCE, MoveReport, MoveStep, Mover, OPERATION, list};
use crate::placement::locate::ask;
use crate::placement::versions::{Versions, copied};
use crate::record::layout::after;
use crate::store::{Change, Condition, Entry, Read, Transaction, TxnOutcome, Watch, Write};

/// The fewest and the most values that are read at once: they may be short or long.
const FEWEST_VALUES: usize = 16;
const MOST_VALUES: usize = 1024;
/// More bytes than this in one read, and the next one takes half as many values.
const LARGE_READ: usize = 1 << 20;
/// How many versions the copy may be behind when the store is frozen.
const LITTLE: u64 = 2000;
/// How many changes are applied between two parts of the copy: enough to keep up, and few enough that the copy goes on.
const MOST_READY: usize = 10_000;
/// What the record of the place takes at most, in bytes.
const FOR_HERE: usize = 2048;
/// How many sessions are made known at the target at once.
const SESSIONS_AT_ONCE: usize = 64;

impl Mover<'_> {
    /// Whether a key is copied while the store is in use. Those of sessions are copied at the end, those of the place never.
    fn is_copied(&self, key: &str) -> bool {
        let others = self.layout.of_sessions().into_iter().chain([self.layout.of_place()]);
        !others
            .into_iter()
            .any(|keys| keys.start.as_str() <= key && key < keys.end.as_str())
    }

    pub(super) async fn copy_all(
        &self,
        watch: &mut dyn Watch,
        report: &mut MoveReport,
        told: &mut (dyn FnMut(MoveStep) + Send),
    ) -> Result<u64> {
        let mut keys = self.layout.all();
        let (mut done, mut limit) = (0, FEWEST_VALUES);
        loop {
            let listed = list(&*self.source.store, keys.clone()).await?;
            let Some(last) = listed.last() else { return Ok(done) };
            let mut part = keys.start.clone()..after(last);
            keys.start = part.end.clone();
            loop {
                self.in_time()?;
                let read = Read::Range {
                    keys: part.clone(),
                    limit,
                    keys_only: false,
                };
                let snapshot = self
                    .source
                    .versions
                    .snapshot(self.source.store.read(&[read], CALL).await?);
                let entries: Vec<Entry> = snapshot.entries.into_iter().flatten().collect();
                let bytes: usize = entries.iter().map(|entry| entry.value.len()).sum();
                let is_last = entries.len() < limit;
                let next = entries.last().map(|entry| after(&entry.key));
                let copies = entries
                    .into_iter()
                    .filter(|entry| self.is_copied(&entry.key))
                    .map(|entry| Write::put(entry.key, copied(entry.version, &entry.value)));
                let copies: Vec<Write> = copies.collect();
                done += copies.len() as u64;
                self.write(copies).await?;
                told(MoveStep::Copied(done));
                report.applied += self.apply_ready(watch).await?;
                match next {
                    Some(next) if !is_last => part.start = next,
                    _ => break,
                }
                limit = if bytes > LARGE_READ { limit / 2 } else { limit * 2 };
                limit = limit.clamp(FEWEST_VALUES, MOST_VALUES);
            }
        }
    }

    /// Applies the changes that the watch has ready. What is not taken from a watch is lost when the source compacts its
    /// history, and copying everything may take longer than the source keeps it.
    async fn apply_ready(&self, watch: &mut dyn Watch) -> Result<u64> {
        let mut ready = Vec::new();
        while ready.len() < MOST_READY
            && let Ok(changes) = tokio::time::timeout(Duration::ZERO, watch.next()).await
        {
            ready.extend(changes?);
        }
        self.apply(ready).await
    }

    /// Writes to the target, in as many transactions as it takes.
    async fn write(&self, writes: Vec<Write>) -> Result<()> {
        let limits = self.target.limits();
        let most_bytes = limits.bytes.saturating_sub(FOR_HERE);
        let mut part = Vec::new();
        let mut bytes = 0;
        for write in writes {
            bytes += write.bytes();
            if part.len() + 1 == limits.operations || bytes > most_bytes {
                self.put(std::mem::take(&mut part)).await?;
                bytes = write.bytes();
            }
            part.push(write);
        }
        self.put(part).await
    }

    /// One transaction of copies. It is sent until it is known to be applied.
    async fn put(&self, mut writes: Vec<Write>) -> Result<()> {
        let lost = || Error::internal(OPERATION, "copies are written before the target is prepared");
        if writes.is_empty() {
            return Ok(());
        }
        let (here, last) = self.here.lock().clone().ok_or_else(lost)?;
        writes.push(Write::put(self.layout.here(), here.clone()));
        let transaction = Transaction {
            conditions: vec![Condition::Unchanged(self.layout.here(), last)],
            writes,
        };
        loop {
            self.in_time()?;
            let applied = match self.target.transact(&transaction, CALL).await {
                Ok(TxnOutcome::Committed(version)) => Some(version),
                // Not applied, or a try before it was: the key tells.
                Ok(TxnOutcome::Rejected) => self.applied_since(last).await?,
                Err(error) if error.kind() == ErrorKind::Unavailable => self.applied_since(last).await?,
                Err(error) => return Err(error),
            };
            if let Some(version) = applied {
                *self.here.lock() = Some((here, version));
                return Ok(());
            }
        }
    }

    /// The version of this mover's last copies, if it is another than this one.
    async fn applied_since(&self, last: Version) -> Result<Option<Version>> {
        let said = ask(&*self.target, self.layout, CALL).await?;
        if said.stay() != self.by {
            let message = "another move to this cluster has begun; the store is where it was";
            return Err(Error::new(ErrorKind::Conflict, OPERATION, message).with("cluster", self.to));
        }
        Ok(said.here_version.filter(|version| *version != last))
    }

    fn in_time(&self) -> Result<()> {
        if !self.deadline.passed(self.clock) {
            return Ok(());
        }
        let message = "the deadline passed before the store was copied; it is where it was";
        Err(Error::unavailable(OPERATION, message))
    }

    /// Applies what has changed since the copy began, until little is left.
    pub(super) async fn catch_up(
        &self,
        session: SessionId,
        watch: &mut dyn Watch,
        report: &mut MoveReport,
        told: &mut (dyn FnMut(MoveStep) + Send),
    ) -> Result<()> {
        loop {
            let mark = self.mark(session).await?;
            // The store is in use: the watch may take its time to find another node.
            let within = self.deadline.remaining(self.clock);
            self.apply_up_to(mark, within, watch, report, told).await?;
            let now = self.source.store.read(&[Read::Key(self.layout.mover())], CALL).await?;
            if now.version.0.saturating_sub(mark.0) < LITTLE {
                return Ok(());
            }
        }
    }

    /// Writes the mover's key again. A watch that delivers it has delivered all before it; one that delivers nothing says
    /// nothing. Returns its version, as the source counts.
    async fn mark(&self, session: SessionId) -> Result<Version> {
        let transaction = Transaction {
            conditions: vec![
                Condition::Absent(self.leaving()),
                Condition::Present(self.layout.mover()),
            ],
            writes: vec![self.lock_of(session)],
        };
        loop {
            self.in_time()?;
            match self.source.store.transact(&transaction, CALL).await {
                Ok(TxnOutcome::Committed(version)) => return Ok(version),
                Ok(TxnOutcome::Rejected) => return Err(self.lost_lock()),
                // Another mark does no harm.
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Applies changes up to a version. No two of them may be further apart than `within`.
    async fn apply_up_to(
        &self,
        version: Version,
        within: Duration,
        watch: &mut dyn Watch,
        report: &mut MoveReport,
        told: &mut (dyn FnMut(MoveStep) + Send),
    ) -> Result<()> {
        loop {
            self.in_time()?;
            let changes = tokio::time::timeout(within, watch.next()).await;
            let changes =
                changes.map_err(|_| Error::unavailable(OPERATION, "the source told of no change in time"))??;
            let is_last = changes.iter().any(|change| change.version >= version);
            report.applied += self.apply(changes).await?;
            told(MoveStep::Applied(report.applied));
            if is_last {
                return Ok(());
            }
        }
    }

    async fn apply(&self, changes: Vec<Change>) -> Result<u64> {
        let count = changes.len() as u64;
        let mut last: BTreeMap<String, Change> = BTreeMap::new();
        for change in changes {
            let change = self.source.versions.change(change);
            if self.is_copied(&change.key) {
                last.insert(change.key.clone(), change);
            }
        }
        let writes = last.into_values().map(|change| match change.value {
            Some(value) => Write::put(change.key, copied(change.version, &value)),
            None => Write::Delete(change.key),
        });
        self.write(writes.collect()).await?;
        Ok(count)
    }

    /// Copies the rest of a frozen store. Returns the longest time to live of its sessions.
    pub(super) async fn frozen(
        &self,
        watch: &mut dyn Watch,
        froze: Version,
        report: &mut MoveReport,
        told: &mut (dyn FnMut(MoveStep) + Send),
    ) -> Result<Duration> {
        self.apply_up_to(froze, CALL, watch, report, told).await?;
        let mut entries = self.entries_of_sessions().await?;
        self.check_followers(&entries)?;
        // Who waits for quota is served in the order of versions.
        entries.sort_by_key(|(entry, _)| entry.version);
        let sessions: BTreeSet<SessionId> = entries.iter().filter_map(|(_, session)| *session).collect();
        let alive = self.import(&sessions).await?;
        let is_alive = |session: Option<SessionId>| session.is_none_or(|session| alive.contains_key(&session));
        let copies = entries
            .into_iter()
            .filter(|(_, session)| is_alive(*session))
            .map(|(entry, session)| Write::Put {
                value: copied(entry.version, &entry.value),
                key: entry.key,
                session,
            });
        self.write(copies.collect()).await?;
        self.compare().await?;
        // From here on each of them has its whole time to live to be resumed.
        self.import(&sessions).await?;
        report.sessions = alive.len();
        Ok(alive.values().copied().max().unwrap_or_default())
    }

    /// The keys that vanish with sessions, each with its session.
    pub(super) async fn entries_of_sessions(&self) -> Result<Vec<(Entry, Option<SessionId>)>> {
        let mut entries = Vec::new();
        for mut keys in self.layout.of_sessions() {
            loop {
                let part = self
                    .source
                    .store
                    .with_sessions(keys.clone(), KEYS_AT_ONCE, CALL)
                    .await?;
                let Some((last, _)) = part.last() else { break };
                keys.start = after(&last.key);
                let versions: Versions = self.source.versions;
                entries.extend(
                    part.into_iter()
                        .map(|(entry, session)| (versions.entry(entry), session)),
                );
            }
        }
        Ok(entries)
    }

    /// Makes sessions known at the target, if they have not ended. Returns them, with their times to live.
    async fn import(&self, sessions: &BTreeSet<SessionId>) -> Result<BTreeMap<SessionId, Duration>> {
        let one = async |session: SessionId| {
            let Some(time_to_live) = self.source.store.time_to_live(session, CALL).await? else {
                return Ok(None);
            };
            self.target.import_session(session, time_to_live, CALL).await?;
            Ok(Some((session, time_to_live)))
        };
        let mut alive = BTreeMap::new();
        let all: Vec<SessionId> = sessions.iter().copied().collect();
        for some in all.chunks(SESSIONS_AT_ONCE) {
            let imported: Result<Vec<_>> = join_all(some.iter().map(|session| one(*session)))
                .await
                .into_iter()
                .collect();
            alive.extend(imported?.into_iter().flatten());
        }
        Ok(alive)
    }

    /// Refuses to commit a copy that does not have as many keys as the source: then this mover is wrong.
    async fn compare(&self) -> Result<()> {
        let mut keys = Vec::new();
        let mut start = self.layout.all().start;
        let mut apart: Vec<_> = self
            .layout
            .of_sessions()
            .into_iter()
            .chain([self.layout.of_place()])
            .collect();
        apart.sort_by(|one, other| one.start.cmp(&other.start));
        for range in apart {
            keys.push(start..range.start);
            start = range.end;
        }
        keys.push(start..self.layout.all().end);
        let there = self.source.store.count(&keys, CALL).await?;
        let here = self.target.count(&keys, CALL).await?;
        if there == here {
            return Ok(());
        }
        let message = "the copy does not have the keys of the store; it is where it was: please report this";
        Err(Error::internal(OPERATION, message)
            .with("source", format!("{there:?}"))
            .with("target", format!("{here:?}")))
    }
}
