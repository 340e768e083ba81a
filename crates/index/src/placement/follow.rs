//! [`FollowingStore`]: the transactional store of one store, on whichever cluster it is.
//!
//! It sends every call to the cluster that the store is on, with the condition that it is there (PL1, PL2). A call that
//! finds it frozen waits, within its own deadline; one that finds it gone follows it, and is sent again there: it was
//! not applied. One call at a time follows; the others wait for it. A task watches for moves as well, for processes that
//! only wait: the store owns it.
//!
//! # A transaction that is rejected
//! Either a condition of its own did not hold, or the store was frozen. So after a rejection `m/away` of the stay and
//! `m/froze` are read. If neither shows a freeze since this process last looked, the transaction's own conditions did not
//! hold. Otherwise it is sent again.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, StoreId};
use tensorhold_custody::Version;
use tokio::task::JoinHandle;

use super::locate::{OPERATION, Residence, ask, has_left, locate};
use super::map::ClusterName;
use super::session::{FollowingSession, Kept};
use super::versions::Copy;
use super::watch::FollowingWatch;
use super::{Clusters, Why};
use crate::record::layout::{Layout, after};
use crate::store::{
    Condition, History, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, check,
};

/// How often a process asks whether a frozen store has thawed: the first pause, doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
/// How long one look of the task that watches for moves may take, and its pause after a failure.
const LOOK_WITHIN: Duration = Duration::from_secs(10);
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// What the condition that the store is there takes at most, in bytes.
const FOR_PLACE: usize = 2048;

/// The transactional store of one store, on whichever cluster it is. Dropping it ends its task.
#[derive(Debug)]
pub struct FollowingStore {
    shared: Arc<Shared>,
    follower: JoinHandle<()>,
}

#[derive(Debug)]
pub(super) struct Shared {
    layout: Layout,
    clusters: Arc<dyn Clusters>,
    pub(super) clock: Arc<dyn Clock>,
    now: tokio::sync::watch::Sender<Arc<Residence>>,
    /// The freeze that was seen last, on the present cluster.
    froze: Mutex<Option<Version>>,
    sessions: Mutex<Vec<Weak<Kept>>>,
    /// Lets one call at a time follow.
    following: tokio::sync::Mutex<()>,
}

impl FollowingStore {
    /// Finds a store, beginning at the cluster that it was last known to be on.
    ///
    /// # Errors
    /// Those of the clusters; `Corrupt` if what they say of the store cannot be read, or cannot be.
    pub async fn open(
        store: &StoreId,
        first: &ClusterName,
        clusters: Arc<dyn Clusters>,
        clock: Arc<dyn Clock>,
        within: Duration,
    ) -> Result<Self> {
        let deadline = Deadline::after(&*clock, within);
        let layout = Layout::new(store);
        let (residence, froze) = locate(&*clusters, &layout, first, &*clock, deadline).await?;
        let shared = Arc::new(Shared {
            layout,
            clusters,
            clock,
            now: tokio::sync::watch::Sender::new(Arc::new(residence)),
            froze: Mutex::new(froze),
            sessions: Mutex::default(),
            following: tokio::sync::Mutex::default(),
        });
        let follower = tokio::spawn(follow(Arc::downgrade(&shared)));
        Ok(Self { shared, follower })
    }

    /// The cluster that the store is on, as this process knows it.
    pub fn cluster(&self) -> ClusterName {
        self.shared.residence().cluster.clone()
    }
}

impl Drop for FollowingStore {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// Notices moves while nothing else is asked.
async fn follow(shared: Weak<Shared>) {
    loop {
        let Some(strong) = shared.upgrade() else { return };
        let mut moves = strong.now.subscribe();
        let watching = strong.look_and_watch().await;
        // The store may be dropped meanwhile.
        drop(strong);
        let looked = match watching {
            // Whatever it says, the next round looks again.
            Ok(Some(mut watch)) => tokio::select! {
                told = watch.next() => told.map(drop),
                _ = moves.changed() => Ok(()),
            },
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = looked {
            tracing::debug!(%error, "whether the store was moved is not known now");
            tokio::time::sleep(AFTER_FAILURE).await;
        }
    }
}

impl Shared {
    pub(super) fn residence(&self) -> Arc<Residence> {
        Arc::clone(&self.now.borrow())
    }

    pub(super) fn left(&self, deadline: Deadline) -> Duration {
        deadline.remaining(&*self.clock)
    }

    /// Follows the store if it has left. Otherwise returns a watch of what would say so.
    async fn look_and_watch(&self) -> Result<Option<Box<dyn Watch>>> {
        let deadline = Deadline::after(&*self.clock, LOOK_WITHIN);
        let residence = self.residence();
        let key = self.layout.away(&residence.stay.0);
        let snapshot = residence
            .store
            .read(&[Read::Key(key.clone())], self.left(deadline))
            .await?;
        let away = snapshot.entries.into_iter().flatten().next();
        if has_left(away.as_ref())? {
            self.leave(&residence, deadline).await?;
            return Ok(None);
        }
        let keys = key.clone()..after(&key);
        let watch = residence
            .store
            .watch(keys, snapshot.version, self.left(deadline))
            .await?;
        Ok(Some(watch))
    }

    /// The store cannot be written on this cluster: waits until it can be, or follows it. Afterwards the call is sent
    /// again.
    pub(super) async fn leave(&self, from: &Residence, deadline: Deadline) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        loop {
            let turn = tokio::time::timeout(self.left(deadline), self.following.lock()).await;
            let Ok(_turn) = turn else {
                return Err(self.too_late(from));
            };
            if self.residence().number != from.number {
                return Ok(());
            }
            let said = ask(&*from.store, &self.layout, self.left(deadline)).await?;
            match said.away(&self.layout, &from.stay) {
                None => return Ok(()),
                Some((away, _)) if away.why == Why::Freezing => {
                    let left = self.left(deadline);
                    if left.is_zero() {
                        return Err(self.too_late(from));
                    }
                    // Nothing tells that it has thawed but the store; one call of this process asks for all.
                    tokio::time::sleep(pause.min(left)).await;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
                Some(_) => return self.arrive(from, deadline).await,
            }
        }
    }

    /// Whether the store cannot be written there now: it is frozen, or has left.
    pub(super) async fn is_away(&self, residence: &Residence, deadline: Deadline) -> Result<bool> {
        let said = ask(&*residence.store, &self.layout, self.left(deadline)).await?;
        Ok(said.away(&self.layout, &residence.stay).is_some())
    }

    fn too_late(&self, from: &Residence) -> Error {
        let message =
            "the store is being moved to another cluster, and the deadline passed before it could be written again";
        Error::unavailable(OPERATION, message)
            .with("store", self.layout.root())
            .with("cluster", &from.cluster)
    }

    /// Goes to where the store is now, with its sessions.
    async fn arrive(&self, from: &Residence, deadline: Deadline) -> Result<()> {
        let (found, froze) = locate(&*self.clusters, &self.layout, &from.cluster, &*self.clock, deadline).await?;
        let sessions: Vec<Arc<Kept>> = {
            let mut sessions = self.sessions.lock();
            sessions.retain(|session| session.strong_count() > 0);
            sessions.iter().filter_map(Weak::upgrade).collect()
        };
        let alive = sessions.iter().filter(|session| session.is_alive());
        let resumed = join_all(alive.map(|session| session.resume(&*found.store, self.left(deadline)))).await;
        resumed.into_iter().collect::<Result<()>>()?;
        tracing::info!(store = self.layout.root(), from = %from.cluster, to = %found.cluster, "followed the store");
        let number = from.number + 1;
        // Both at once, for `begin`.
        let mut seen = self.froze.lock();
        *seen = froze;
        self.now.send_replace(Arc::new(Residence { number, ..found }));
        Ok(())
    }

    /// Where a call is sent, and the last freeze there that was seen before it is sent.
    fn begin(&self) -> (Arc<Residence>, Option<Version>) {
        let froze = self.froze.lock();
        (self.residence(), *froze)
    }

    /// Whether a transaction may have been rejected by a freeze or a move, and not by its own conditions. If so, waits or
    /// follows. `froze` is the last freeze that was seen before it was sent.
    async fn was_away(&self, residence: &Residence, froze: Option<Version>, deadline: Deadline) -> Result<bool> {
        let said = ask(&*residence.store, &self.layout, self.left(deadline)).await?;
        if said.away(&self.layout, &residence.stay).is_some() {
            self.leave(residence, deadline).await?;
            return Ok(true);
        }
        let mut seen = self.froze.lock();
        if self.residence().number == residence.number {
            *seen = said.froze;
        }
        Ok(said.froze != froze)
    }

    /// Reads, if the store is there at the same moment.
    async fn read(&self, reads: &[Read], deadline: Deadline) -> Result<Snapshot> {
        loop {
            let residence = self.residence();
            let away = Read::Key(self.layout.away(&residence.stay.0));
            let all: Vec<Read> = reads.iter().cloned().chain([away]).collect();
            let mut snapshot = residence.store.read(&all, self.left(deadline)).await?;
            let away = snapshot.entries.pop().and_then(|entries| entries.into_iter().next());
            if !has_left(away.as_ref())? {
                return Ok(residence.versions.snapshot(snapshot));
            }
            self.leave(&residence, deadline).await?;
        }
    }

    /// The copies that conditions are on, if any is. None if the store has left.
    async fn copies(
        &self,
        residence: &Residence,
        conditions: &[Condition],
        deadline: Deadline,
    ) -> Result<Option<HashMap<String, Copy>>> {
        let keys: Vec<String> = residence.versions.earlier(conditions).cloned().collect();
        if keys.is_empty() {
            return Ok(Some(HashMap::new()));
        }
        let reads: Vec<Read> = keys
            .into_iter()
            .chain([self.layout.away(&residence.stay.0)])
            .map(Read::Key)
            .collect();
        let mut snapshot = residence.store.read(&reads, self.left(deadline)).await?;
        let away = snapshot.entries.pop().and_then(|entries| entries.into_iter().next());
        if has_left(away.as_ref())? {
            self.leave(residence, deadline).await?;
            return Ok(None);
        }
        Ok(Some(
            snapshot.entries.into_iter().flatten().filter_map(Copy::read).collect(),
        ))
    }
}

#[async_trait]
impl TxnStore for FollowingStore {
    /// One condition and one read say that the store is there.
    fn limits(&self) -> Limits {
        let limits = self.shared.residence().store.limits();
        Limits {
            operations: limits.operations - 1,
            bytes: limits.bytes.saturating_sub(FOR_PLACE),
        }
    }

    fn history(&self) -> History {
        self.shared.residence().store.history()
    }

    fn follows_moves(&self) -> bool {
        true
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        check::reads(reads, self.limits())?;
        let deadline = Deadline::after(&*self.shared.clock, within);
        self.shared.read(reads, deadline).await
    }

    async fn count(&self, ranges: &[Range<String>], within: Duration) -> Result<Vec<u64>> {
        let deadline = Deadline::after(&*self.shared.clock, within);
        loop {
            let residence = self.shared.residence();
            let counts = residence.store.count(ranges, self.shared.left(deadline)).await?;
            // It is there afterwards, so it was there before.
            self.shared.read(&[], deadline).await?;
            if self.shared.residence().number == residence.number {
                return Ok(counts);
            }
        }
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        Ok(self.transact_and_read(transaction, &[], within).await?.0)
    }

    async fn transact_and_read(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        within: Duration,
    ) -> Result<(TxnOutcome, Option<Snapshot>)> {
        check::transaction_and_reads(transaction, reads, self.limits())?;
        let shared = &self.shared;
        let deadline = Deadline::after(&*shared.clock, within);
        loop {
            let (residence, froze) = shared.begin();
            let versions = residence.versions;
            let Some(copies) = shared.copies(&residence, &transaction.conditions, deadline).await? else {
                continue;
            };
            let Some(mut own) = versions.transaction(transaction, &copies) else {
                let snapshot = shared.read(reads, deadline).await?;
                return Ok((TxnOutcome::Rejected, Some(snapshot)));
            };
            own.conditions
                .push(Condition::Absent(shared.layout.away(&residence.stay.0)));
            let (outcome, snapshot) = residence
                .store
                .transact_and_read(&own, reads, shared.left(deadline))
                .await?;
            let outcome = match outcome {
                TxnOutcome::Committed(version) => TxnOutcome::Committed(versions.outer(version)),
                TxnOutcome::Rejected if shared.was_away(&residence, froze, deadline).await? => continue,
                TxnOutcome::Rejected => TxnOutcome::Rejected,
            };
            return Ok((outcome, snapshot.map(|snapshot| versions.snapshot(snapshot))));
        }
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        let deadline = Deadline::after(&*self.shared.clock, within);
        loop {
            let residence = self.shared.residence();
            let session = residence
                .store
                .open_session(time_to_live, self.shared.left(deadline))
                .await?;
            // Before the cluster is asked: a call that follows a later move finds it there, and ends it.
            let kept = Kept::new(session, time_to_live);
            self.shared.sessions.lock().push(Arc::downgrade(&kept));
            // It has no key yet that a mover would take it along by.
            if !self.shared.is_away(&residence, deadline).await? {
                let store = Arc::clone(&self.shared);
                return Ok(Box::new(FollowingSession { kept, store }));
            }
            drop(kept);
            self.shared.leave(&residence, deadline).await?;
        }
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        let moves = self.shared.now.subscribe();
        let residence = Arc::clone(&moves.borrow());
        let Some(own) = residence.versions.inner(after) else {
            let message = "the changes after this version are not kept since the store was moved: read again and watch from there";
            return Err(Error::new(ErrorKind::NotFound, "kv.watch", message).with("after", after));
        };
        let watch = residence.store.watch(keys, own, within).await?;
        Ok(Box::new(FollowingWatch::new(watch, residence.versions, moves)))
    }
}
