//! Clusters whose caller dies, or loses a reply, at one of its calls.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Error, Result, Retry};
use tensorhold_custody::{SessionId, Version};
use tensorhold_index::placement::{ClusterName, Clusters};
use tensorhold_index::store::{
    Change, Entry, Limits, MovableStore, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch,
};
use tokio::sync::Notify;

use crate::clusters::MemoryClusters;

/// What happens at the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// The caller dies before it is sent.
    DiesBefore,
    /// The caller dies when it was carried out.
    DiesAfter,
    /// It is not carried out, and the caller does not know.
    LostRequest,
    /// It is carried out, and the caller does not know.
    LostReply,
    /// The caller does not know, and it is carried out when [`Fused::land`] says so. Only transactions; other calls go on.
    LandsLater,
    /// The caller stops before it, until [`Fused::go_on`].
    Stops,
    /// It is carried out, and the caller is told at [`Fused::go_on`].
    IsToldLater,
    /// No call: watches deliver nothing for [`LATE`].
    LateWatches,
}

/// How late such a watch is.
pub(crate) const LATE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Fuse {
    mishap: Mishap,
    at: usize,
    calls: AtomicUsize,
    dead: Notify,
    goes_on: Notify,
    late: Mutex<Option<(Arc<dyn MovableStore>, Transaction)>>,
}

impl Fuse {
    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let is_it = self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.at;
        match self.mishap {
            _ if !is_it => call.await,
            Mishap::DiesBefore => self.die().await,
            Mishap::DiesAfter => {
                call.await.ok();
                self.die().await
            }
            Mishap::Stops => {
                self.dead.notify_one();
                self.goes_on.notified().await;
                call.await
            }
            Mishap::IsToldLater => {
                let answer = call.await;
                self.dead.notify_one();
                self.goes_on.notified().await;
                answer
            }
            Mishap::LandsLater | Mishap::LateWatches => call.await,
            Mishap::LostRequest => Err(lost_reply()),
            Mishap::LostReply => {
                call.await.ok();
                Err(lost_reply())
            }
        }
    }

    async fn die<T>(&self) -> Result<T> {
        self.dead.notify_one();
        std::future::pending().await
    }
}

fn lost_reply() -> Error {
    Error::unavailable("test.fuse", "the reply was lost").with_retry(Retry::Ambiguous)
}

/// Clusters with such a fuse.
#[derive(Debug)]
pub(crate) struct Fused {
    clusters: Arc<MemoryClusters>,
    fuse: Arc<Fuse>,
}

impl Fused {
    pub(crate) fn new(clusters: &Arc<MemoryClusters>, mishap: Mishap, at: usize) -> Self {
        let fuse = Fuse {
            mishap,
            at,
            calls: AtomicUsize::new(0),
            dead: Notify::new(),
            goes_on: Notify::new(),
            late: Mutex::default(),
        };
        Self {
            clusters: Arc::clone(clusters),
            fuse: Arc::new(fuse),
        }
    }

    /// Whether the call was reached at which something happens.
    pub(crate) fn has_burnt(&self) -> bool {
        self.fuse.calls.load(Ordering::Relaxed) >= self.fuse.at
    }

    /// Carries out what was late.
    pub(crate) async fn land(&self) {
        let late = self.fuse.late.lock().take();
        if let Some((store, transaction)) = late {
            // Whether it is still accepted is what is tried.
            store.transact(&transaction, Duration::from_secs(1)).await.ok();
        }
    }

    /// Lets a caller that has stopped go on.
    pub(crate) fn go_on(&self) {
        self.fuse.goes_on.notify_one();
    }

    /// Runs something until it ends, dies or stops; none if it has not ended.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.fuse.dead.notified() => None,
        }
    }
}

#[async_trait]
impl Clusters for Fused {
    async fn connect(&self, cluster: &ClusterName, within: Duration) -> Result<Arc<dyn MovableStore>> {
        Ok(Arc::new(FusedStore {
            store: self.clusters.connect(cluster, within).await?,
            fuse: Arc::clone(&self.fuse),
        }))
    }

    async fn names(&self, within: Duration) -> Result<Vec<ClusterName>> {
        self.clusters.names(within).await
    }
}

#[derive(Debug)]
struct FusedStore {
    store: Arc<dyn MovableStore>,
    fuse: Arc<Fuse>,
}

#[async_trait]
impl TxnStore for FusedStore {
    fn limits(&self) -> Limits {
        self.store.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.fuse.call(self.store.read(reads, within)).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        if self.fuse.mishap == Mishap::LandsLater && self.fuse.calls.load(Ordering::Relaxed) + 1 == self.fuse.at {
            self.fuse.calls.fetch_add(1, Ordering::Relaxed);
            *self.fuse.late.lock() = Some((Arc::clone(&self.store), transaction.clone()));
            return Err(lost_reply());
        }
        self.fuse.call(self.store.transact(transaction, within)).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.fuse.call(self.store.open_session(time_to_live, within)).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        let watch = self.fuse.call(self.store.watch(keys, after, within)).await?;
        if self.fuse.mishap != Mishap::LateWatches {
            return Ok(watch);
        }
        let since = tokio::time::Instant::now() + LATE;
        Ok(Box::new(LateWatch { watch, since }))
    }
}

#[derive(Debug)]
struct LateWatch {
    watch: Box<dyn Watch>,
    since: tokio::time::Instant,
}

#[async_trait]
impl Watch for LateWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        tokio::time::sleep_until(self.since).await;
        self.watch.next().await
    }
}

#[async_trait]
impl MovableStore for FusedStore {
    async fn with_sessions(
        &self,
        keys: Range<String>,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<(Entry, Option<SessionId>)>> {
        self.fuse.call(self.store.with_sessions(keys, limit, within)).await
    }

    async fn time_to_live(&self, session: SessionId, within: Duration) -> Result<Option<Duration>> {
        self.fuse.call(self.store.time_to_live(session, within)).await
    }

    async fn import_session(&self, session: SessionId, time_to_live: Duration, within: Duration) -> Result<()> {
        self.fuse
            .call(self.store.import_session(session, time_to_live, within))
            .await
    }

    async fn resume_session(
        &self,
        session: SessionId,
        time_to_live: Duration,
        within: Duration,
    ) -> Result<Box<dyn StoreSession>> {
        self.fuse
            .call(self.store.resume_session(session, time_to_live, within))
            .await
    }
}
