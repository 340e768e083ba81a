//! Moves a store to another cluster while it is in use. States and invariants are those of [`crate::placement`].
//!
//! ```text
//!   lock ─▶ copy everything ─▶ apply what changed meanwhile ─▶ freeze ─▶ apply the rest, copy sessions ─▶ commit ─▶ clean up
//!           (in use)           (in use, until little is left)   └──── nothing can be written ───────────────┘
//! ```
//!
//! The copy is not of one moment, but the changes since before it are applied in order, so each key ends with its last
//! value. They are applied after each part of the copy, so the source may forget its history while the copy goes on; a
//! part that is read later is no older than what was applied. How little is left is known by a mark: the mover writes its key
//! again, and when the watch delivers that, it has delivered all before it. The freeze is a change itself: when the watch delivers it,
//! all changes before it were delivered. Keys that vanish with sessions are copied only then, with the sessions.
//!
//! A copy whose reply was lost may be applied later, over something newer. So every transaction of copies requires that
//! `m/here` at the target is unchanged since the one before, and writes it again: one that is late is refused.
//!
//! Nothing of it is undone by the next step failing: until the commit the source is as it was, and what was copied is
//! deleted by the next move to that cluster.

mod copy;
mod left;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry, Rng, StoreId};
use tensorhold_custody::{SessionId, Version};

use self::left::{delete_left, point_home};
use super::locate::{Residence, ask, locate};
use super::map::ClusterName;
use super::{Away, Clusters, MoveId, Why, encoded};
use crate::record::identity::Identity;
use crate::record::layout::Layout;
use crate::store::{Condition, Entry, MovableStore, Read, Transaction, TxnOutcome, Write};

const OPERATION: &str = "index.move";
/// How long a mover that has died holds up the store, at most.
const MOVER_TTL: Duration = Duration::from_secs(5);
/// How long one call may take.
const CALL: Duration = Duration::from_secs(5);
/// How long finding the store may take, and never longer than the move. Nothing answers at a mistyped address, and whoever
/// mistyped it is to be told soon, however long copying may take. An election takes less.
const LOCATE: Duration = Duration::from_secs(15);
/// How many keys are listed at once.
const KEYS_AT_ONCE: usize = 5000;

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
/// that would not notice; `Unavailable` if a cluster does not answer: unless the error is ambiguous or came after
/// [`MoveStep::Committed`], the store is where it was. Run it again.
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
    let soon = || Deadline::after(clock, LOCATE.min(deadline.remaining(clock)));
    let (source, _) = locate(clusters, &layout, &ClusterName::home(), clock, soon()).await?;
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
        // Removes `arriving`, unless a process that follows has. It is committed: the move's own deadline does not matter any more.
        locate(
            clusters,
            &layout,
            &source.cluster,
            clock,
            Deadline::after(clock, LOCATE),
        )
        .await?;
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
            writes: vec![self.lock_of(session)],
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

    /// The mover's key, which says that a move is at work.
    fn lock_of(&self, session: SessionId) -> Write {
        self.with(session, self.layout.mover(), self.by.0.clone().into_bytes())
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
        self.catch_up(session, &mut *watch, report, told).await?;

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
