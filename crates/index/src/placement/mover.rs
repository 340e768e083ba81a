//! Moves a store to another cluster while it is in use. States and invariants are those of [`crate::placement`].
//!
//! ```text
//!   lock ─▶ copy everything ─▶ apply what changed meanwhile ─▶ freeze ─▶ apply the rest, copy sessions ─▶ commit ─▶ clean up
//!           (in use)           (in use, until little is left)   └──── nothing can be written ───────────────┘
//! ```
//!
//! The copy is not of one moment, but the changes since before it are applied in order, so each key ends with its last
//! value. They are applied after each part of the copy, so the source may forget its history while the copy goes on; a
//! part that is read later is no older than what was applied. The freeze is a change itself: when the watch delivers it,
//! all changes before it were delivered. Keys that vanish with sessions are copied only then, with the sessions.
//!
//! A copy whose reply was lost may be applied later, over something newer. So every transaction of copies requires that
//! `m/here` at the target is unchanged since the one before, and writes it again: one that is late is refused.
//!
//! Nothing of it is undone by the next step failing: until the commit the source is as it was, and what was copied is
//! deleted by the next move to that cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use holdfast_core::{Clock, Deadline, Error, ErrorKind, Result, Retry, Rng, StoreId};
use holdfast_custody::{SessionId, Version};
use parking_lot::Mutex;

use super::follow::{Residence, ask, locate};
use super::map::ClusterName;
use super::versions::{Versions, copied};
use super::{Away, Clusters, Here, MoveId, Why, encoded};
use crate::record::identity::Identity;
use crate::record::layout::{Layout, after};
use crate::record::schema;
use crate::store::{Change, Condition, Entry, MovableStore, Read, Transaction, TxnOutcome, Watch, Write};

const OPERATION: &str = "index.move";
/// How long a mover that has died holds up the store, at most.
const MOVER_TTL: Duration = Duration::from_secs(5);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(5);
/// How many keys are listed at once, and the fewest and most values that are read at once: they may be short or long.
const KEYS_AT_ONCE: usize = 5000;
const FEWEST_VALUES: usize = 16;
const MOST_VALUES: usize = 1024;
/// More bytes than this in one read, and the next one takes half as many values.
const LARGE_READ: usize = 1 << 20;
/// How many versions the copy may be behind when the store is frozen.
const LITTLE: u64 = 2000;
/// How many changes are applied between two parts of the copy: enough to keep up, and few enough that the copy goes on.
const MOST_READY: usize = 10_000;
/// How long to wait for a change before the copy counts as complete.
const QUIET: Duration = Duration::from_millis(50);
/// Versions at the target begin this far above the source's: more than any cluster gives out during a move.
const AHEAD: u64 = 1 << 32;
/// What the record of the place takes at most, in bytes.
const FOR_HERE: usize = 2048;
/// How many sessions are made known at the target at once.
const SESSIONS_AT_ONCE: usize = 64;

/// What a mover has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// So many keys are copied.
    Copied(u64),
    /// So many changes that were made meanwhile are applied.
    Applied(u64),
    /// The store is frozen: nothing can be written to it.
    Frozen,
    /// The store is at its new cluster.
    Committed,
    /// So many keys are deleted where it was.
    Deleted(u64),
}

/// What a move did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveReport {
    /// Where the store was.
    pub from: ClusterName,
    /// Where it is.
    pub to: ClusterName,
    /// How many keys were copied while it was in use.
    pub copied: u64,
    /// How many changes that were made meanwhile were applied.
    pub applied: u64,
    /// How many sessions went along.
    pub sessions: usize,
    /// For how long it could not be written.
    pub frozen: Duration,
}

/// A move to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The store.
    pub store: StoreId,
    /// The cluster that it is to be on.
    pub to: ClusterName,
    /// What it leaves behind is deleted when its sessions' time to live has passed, or after this time.
    pub longest_linger: Duration,
}

/// Moves a store to another cluster. If it is there already, only what an earlier move has left is cleared up.
///
/// # Errors
/// `Conflict` if another move is at work, if the target has another store of this name, or if a process uses the store
/// that would not notice; `Unavailable` if a cluster does not answer: unless the error is ambiguous, the store is where it
/// was. Run it again.
pub async fn move_store(
    clusters: &dyn Clusters,
    asked: &Move,
    clock: &dyn Clock,
    rng: &dyn Rng,
    within: Duration,
    told: &mut (dyn FnMut(MoveStep) + Send),
) -> Result<MoveReport> {
    let Move {
        store,
        to,
        longest_linger,
    } = asked;
    let deadline = Deadline::after(clock, within);
    let layout = Layout::new(store);
    let (source, _) = locate(clusters, &layout, &ClusterName::home(), clock, deadline).await?;
    let mut report = MoveReport {
        from: source.cluster.clone(),
        to: to.clone(),
        copied: 0,
        applied: 0,
        sessions: 0,
        frozen: Duration::ZERO,
    };
    let mut linger = Duration::ZERO;
    if source.cluster != *to {
        let target = clusters.connect(to, CALL).await?;
        let mover = Mover {
            clusters,
            layout: &layout,
            source: &source,
            target,
            to,
            by: MoveId::new(rng),
            here: Mutex::default(),
            clock,
            deadline,
        };
        linger = mover.run(&mut report, told).await?;
        told(MoveStep::Committed);
        // Removes `arriving`, unless a process that follows has.
        locate(clusters, &layout, &source.cluster, clock, deadline).await?;
    }
    point_home(clusters, &layout, to).await?;
    // Processes that have not noticed yet may still read where the store was. Their sessions end by then.
    tokio::time::sleep(linger.min(*longest_linger)).await;
    let mut deleted = 0;
    for cluster in clusters.names(CALL).await? {
        if cluster != *to {
            let left = clusters.connect(&cluster, CALL).await?;
            deleted += delete_left(&*left, &layout, Why::Moved, deleted, told).await?;
        }
    }
    Ok(report)
}

/// Lets the home say where the store is, so that nobody has to go from cluster to cluster.
async fn point_home(clusters: &dyn Clusters, layout: &Layout, to: &ClusterName) -> Result<()> {
    let home = clusters.connect(&ClusterName::home(), CALL).await?;
    let target = clusters.connect(to, CALL).await?;
    let there = ask(&*target, layout, CALL).await?;
    let said = ask(&*home, layout, CALL).await?;
    let (Some(here), Some((away, version))) = (there.here, said.away(layout, &said.stay())) else {
        return Ok(());
    };
    if away.why != Why::Moved || away.by == here.by {
        return Ok(());
    }
    let key = layout.away(&said.stay().0);
    let pointer = Away {
        by: here.by,
        why: Why::Moved,
        to: to.clone(),
    };
    let transaction = Transaction {
        conditions: vec![Condition::Unchanged(key.clone(), version)],
        writes: vec![Write::put(key, encoded(OPERATION, &pointer)?)],
    };
    // Rejected: another move was faster, and has said where it is.
    home.transact(&transaction, CALL).await?;
    Ok(())
}

/// Deletes what a store has on a cluster where it is not, for this reason, but for the keys that say where it is.
async fn delete_left(
    cluster: &dyn MovableStore,
    layout: &Layout,
    why: Why,
    before: u64,
    told: &mut (dyn FnMut(MoveStep) + Send),
) -> Result<u64> {
    let said = ask(cluster, layout, CALL).await?;
    match said.away(layout, &said.stay()) {
        Some((away, _)) if away.why == why => {
            // A move to this cluster begins another stay: then nothing may be deleted here any more.
            let still = said.is_last_stay(layout);
            delete_keys(cluster, layout, &still, &mut |deleted| {
                told(MoveStep::Deleted(before + deleted));
            })
            .await
        }
        _ => Ok(0),
    }
}

/// Deletes all keys of a store on a cluster, but for those that say where it is, as long as a condition holds.
async fn delete_keys(
    cluster: &dyn MovableStore,
    layout: &Layout,
    still: &Condition,
    told: &mut (dyn FnMut(u64) + Send),
) -> Result<u64> {
    let (all, place) = (layout.all(), layout.of_place());
    let mut deleted = 0;
    for mut keys in [all.start..place.start, place.end..all.end] {
        loop {
            let listed = list(cluster, keys.clone()).await?;
            let Some(last) = listed.last() else { break };
            keys.start = after(last);
            for part in listed.chunks(cluster.limits().operations) {
                let transaction = Transaction {
                    conditions: vec![still.clone()],
                    writes: part.iter().cloned().map(Write::Delete).collect(),
                };
                if cluster.transact(&transaction, CALL).await? == TxnOutcome::Rejected {
                    let message = "what an earlier move has left is being changed by another one: run it again";
                    return Err(Error::new(ErrorKind::Conflict, OPERATION, message));
                }
                deleted += part.len() as u64;
                told(deleted);
            }
        }
    }
    Ok(deleted)
}

/// The first keys of a range.
async fn list(cluster: &dyn MovableStore, keys: std::ops::Range<String>) -> Result<Vec<String>> {
    let read = Read::Range {
        keys,
        limit: KEYS_AT_ONCE,
        keys_only: true,
    };
    let snapshot = cluster.read(&[read], CALL).await?;
    Ok(snapshot.entries.into_iter().flatten().map(|entry| entry.key).collect())
}

/// One move.
struct Mover<'a> {
    clusters: &'a dyn Clusters,
    layout: &'a Layout,
    source: &'a Residence,
    target: Arc<dyn MovableStore>,
    to: &'a ClusterName,
    by: MoveId,
    /// What `m/here` says at the target, and its version.
    here: Mutex<Option<(Vec<u8>, Version)>>,
    clock: &'a dyn Clock,
    deadline: Deadline,
}

impl Mover<'_> {
    /// The move, up to its commit. Returns how long a process may take to notice.
    async fn run(&self, report: &mut MoveReport, told: &mut (dyn FnMut(MoveStep) + Send)) -> Result<Duration> {
        let session = self.source.store.open_session(MOVER_TTL, CALL).await?;
        let locked = self.lock(session.id()).await;
        let moved = match locked {
            Ok(()) => self.locked(session.id(), report, told).await,
            Err(error) => Err(error),
        };
        // Whatever has happened, nothing of the mover stays but what it has committed.
        if let Err(error) = session.close(CALL).await {
            tracing::warn!(%error, "the mover's session ends by its time to live");
        }
        moved
    }

    async fn lock(&self, session: SessionId) -> Result<()> {
        let transaction = Transaction {
            conditions: vec![
                Condition::Absent(self.layout.mover()),
                Condition::Absent(self.leaving()),
            ],
            writes: vec![self.with(session, self.layout.mover(), self.by.0.clone().into_bytes())],
        };
        match self.source.store.transact(&transaction, CALL).await? {
            TxnOutcome::Committed(_) => Ok(()),
            TxnOutcome::Rejected => {
                let message =
                    "another move of this store is at work, or was until a few seconds ago: wait for it to end";
                Err(Error::new(ErrorKind::Conflict, OPERATION, message).with("cluster", &self.source.cluster))
            }
        }
    }

    /// The key that says that the store has left the source.
    fn leaving(&self) -> String {
        self.layout.away(&self.source.stay.0)
    }

    fn with(&self, session: SessionId, key: String, value: Vec<u8>) -> Write {
        Write::Put {
            key,
            value,
            session: Some(session),
        }
    }

    async fn locked(
        &self,
        session: SessionId,
        report: &mut MoveReport,
        told: &mut (dyn FnMut(MoveStep) + Send),
    ) -> Result<Duration> {
        self.check_followers(&self.entries_of_sessions().await?)?;
        let seen = self.source.store.read(&[Read::Key(self.layout.mover())], CALL).await?;
        self.clear_target(seen.version).await?;
        self.clear_others().await?;
        // Clearing may take longer than the source keeps changes, so the watch begins after it.
        let seen = self.source.store.read(&[Read::Key(self.layout.mover())], CALL).await?;
        let mut watch = self.source.store.watch(self.layout.all(), seen.version, CALL).await?;
        report.copied = self.copy_all(&mut *watch, report, told).await?;
        self.catch_up(&mut *watch, report, told).await?;

        let began = self.clock.now();
        let froze = self.freeze(session).await?;
        told(MoveStep::Frozen);
        let copied = self.frozen(&mut *watch, froze, report, told).await;
        let committed = match copied {
            Ok(linger) => self.commit(froze).await.map(|()| linger),
            Err(error) => Err(error),
        };
        report.frozen = self.clock.now().since(began);
        if let Err(error) = &committed
            && error.retry() != Retry::Ambiguous
        {
            self.thaw(froze).await;
        }
        committed
    }

    /// Refuses to move a store under a process that would not notice.
    fn check_followers(&self, entries: &[(Entry, Option<SessionId>)]) -> Result<()> {
        let [_, _, _, alive, _] = self.layout.of_sessions();
        let sessions = entries.iter().filter(|(entry, _)| alive.contains(&entry.key));
        let stays = sessions
            .map(|(entry, _)| (entry, Identity::from_bytes(&entry.value)))
            .find(|(_, said)| !said.as_ref().is_some_and(|said| said.follows_moves));
        let Some((entry, said)) = stays else { return Ok(()) };
        let said = said.unwrap_or_default();
        let message = "a process uses this store that would not notice that it is moved: it is of an earlier release, or \
                       has opened the store before the index had several clusters; restart it";
        Err(Error::new(ErrorKind::Conflict, OPERATION, message)
            .with("host", said.host)
            .with("pid", said.pid)
            .with("program", said.program)
            .with("session", Layout::session_of(&entry.key).unwrap_or_default()))
    }

    /// Prepares the target: what an earlier move has left there goes, and it says how versions are read there.
    async fn clear_target(&self, source: Version) -> Result<()> {
        let said = ask(&*self.target, self.layout, CALL).await?;
        let unchanged = match said.away(self.layout, &said.stay()) {
            Some((away, _)) if away.why == Why::Freezing => {
                let message = "the target is moving another store of this name";
                return Err(Error::new(ErrorKind::Conflict, OPERATION, message).with("cluster", self.to));
            }
            Some((_, version)) => Condition::Unchanged(self.layout.away(&said.stay().0), version),
            None => Condition::NoneIn(self.layout.all()),
        };
        let own = self.target.read(&[Read::Key(self.layout.here())], CALL).await?.version;
        let boundary = self.source.versions.outer(source).0.saturating_add(AHEAD);
        let here = Here {
            by: self.by.clone(),
            offset: (boundary + 1).saturating_sub(own.0),
            boundary,
        };
        let away = Away {
            by: self.by.clone(),
            why: Why::Arriving,
            to: self.source.cluster.clone(),
        };
        let here = encoded(OPERATION, &here)?;
        let transaction = Transaction {
            conditions: vec![unchanged],
            writes: vec![
                Write::put(self.layout.away(&self.by.0), encoded(OPERATION, &away)?),
                Write::put(self.layout.here(), here.clone()),
                // A release that knows nothing of moves must not read what is copied here.
                Write::put(schema::KEY, schema::WITH_CLUSTERS.to_string()),
            ],
        };
        match self.target.transact(&transaction, CALL).await? {
            TxnOutcome::Committed(version) => {
                *self.here.lock() = Some((here, version));
                let still = Condition::Unchanged(self.layout.here(), version);
                delete_keys(&*self.target, self.layout, &still, &mut |_| {}).await?;
                Ok(())
            }
            TxnOutcome::Rejected => {
                let message = "the target has a store of this name already, which is not this one";
                Err(Error::new(ErrorKind::Conflict, OPERATION, message).with("cluster", self.to))
            }
        }
    }

    /// Deletes what movers that died have copied to other clusters. No other one is at work: this one has the lock.
    async fn clear_others(&self) -> Result<()> {
        for cluster in self.clusters.names(CALL).await? {
            if cluster != self.source.cluster && cluster != *self.to {
                let other = self.clusters.connect(&cluster, CALL).await?;
                delete_left(&*other, self.layout, Why::Arriving, 0, &mut |_| {}).await?;
            }
        }
        Ok(())
    }

    /// Whether a key is copied while the store is in use. Those of sessions are copied at the end, those of the place never.
    fn is_copied(&self, key: &str) -> bool {
        let others = self.layout.of_sessions().into_iter().chain([self.layout.of_place()]);
        !others
            .into_iter()
            .any(|keys| keys.start.as_str() <= key && key < keys.end.as_str())
    }

    async fn copy_all(
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
    async fn catch_up(
        &self,
        watch: &mut dyn Watch,
        report: &mut MoveReport,
        told: &mut (dyn FnMut(MoveStep) + Send),
    ) -> Result<()> {
        loop {
            self.in_time()?;
            let Ok(changes) = tokio::time::timeout(QUIET, watch.next()).await else {
                return Ok(());
            };
            let changes = changes?;
            let last = changes.last().map_or(0, |change| change.version.0);
            report.applied += self.apply(changes).await?;
            told(MoveStep::Applied(report.applied));
            let now = self.source.store.read(&[Read::Key(self.layout.mover())], CALL).await?;
            if now.version.0.saturating_sub(last) < LITTLE {
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

    /// Freezes the store. Returns the version of the freeze, as the source counts.
    async fn freeze(&self, session: SessionId) -> Result<Version> {
        let away = Away {
            by: self.by.clone(),
            why: Why::Freezing,
            to: self.to.clone(),
        };
        let transaction = Transaction {
            conditions: vec![
                Condition::Absent(self.leaving()),
                Condition::Present(self.layout.mover()),
            ],
            writes: vec![
                self.with(session, self.leaving(), encoded(OPERATION, &away)?),
                Write::put(self.layout.froze(), self.by.0.clone()),
            ],
        };
        match self.source.store.transact(&transaction, CALL).await? {
            TxnOutcome::Committed(version) => Ok(version),
            TxnOutcome::Rejected => Err(self.lost_lock()),
        }
    }

    fn lost_lock(&self) -> Error {
        let message =
            "the mover was not heard of for so long that its freeze has ended; the store is where it was: run it again";
        Error::new(ErrorKind::Conflict, OPERATION, message).with("cluster", &self.source.cluster)
    }

    /// Copies the rest of a frozen store. Returns the longest time to live of its sessions.
    async fn frozen(
        &self,
        watch: &mut dyn Watch,
        froze: Version,
        report: &mut MoveReport,
        told: &mut (dyn FnMut(MoveStep) + Send),
    ) -> Result<Duration> {
        loop {
            self.in_time()?;
            let changes = tokio::time::timeout(CALL, watch.next()).await;
            let changes =
                changes.map_err(|_| Error::unavailable(OPERATION, "the source told of no change in time"))??;
            let is_last = changes.iter().any(|change| change.version >= froze);
            report.applied += self.apply(changes).await?;
            told(MoveStep::Applied(report.applied));
            if is_last {
                break;
            }
        }
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
    async fn entries_of_sessions(&self) -> Result<Vec<(Entry, Option<SessionId>)>> {
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

    /// From here on the store is at the target.
    async fn commit(&self, froze: Version) -> Result<()> {
        let away = Away {
            by: self.by.clone(),
            why: Why::Moved,
            to: self.to.clone(),
        };
        let transaction = Transaction {
            conditions: vec![
                Condition::Unchanged(self.leaving(), froze),
                Condition::Present(self.layout.mover()),
            ],
            writes: vec![Write::put(self.leaving(), encoded(OPERATION, &away)?)],
        };
        loop {
            let outcome = match self.source.store.transact(&transaction, CALL).await {
                Ok(TxnOutcome::Committed(_)) => return Ok(()),
                Ok(TxnOutcome::Rejected) => Ok(()),
                Err(error) => Err(error),
            };
            // What was sent may still be applied; what the key says now, and what it can still become, tell.
            match (ask(&*self.source.store, self.layout, CALL).await, outcome) {
                (Ok(said), outcome) => match (said.away(self.layout, &self.source.stay), outcome) {
                    (Some((found, _)), _) if found == away => return Ok(()),
                    // It is still frozen by us: sent again, as one that must be applied once may be here.
                    (Some((_, version)), _) if version == froze => {}
                    // The freeze is over, and with it what the commit requires.
                    _ => return Err(self.lost_lock()),
                },
                (Err(_), Ok(())) => {}
                (Err(_), Err(error)) if self.deadline.passed(self.clock) => {
                    return Err(error.with_retry(Retry::Ambiguous));
                }
                (Err(_), Err(_)) => {}
            }
            if self.deadline.passed(self.clock) {
                let message = "the source did not say whether the move was committed; run it again";
                return Err(Error::unavailable(OPERATION, message).with_retry(Retry::Ambiguous));
            }
        }
    }

    /// Lets the source go on. If it cannot be told, the freeze ends with the mover's session.
    async fn thaw(&self, froze: Version) {
        let transaction = Transaction {
            conditions: vec![Condition::Unchanged(self.leaving(), froze)],
            writes: vec![Write::Delete(self.leaving())],
        };
        if let Err(error) = self.source.store.transact(&transaction, CALL).await {
            tracing::warn!(%error, "the freeze ends with the mover's session");
        }
    }
}
