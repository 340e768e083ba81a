//! A process's connection to etcd, with a network in between. Sessions know of their end by a deadline of their own, as
//! those of the real client do (`index-etcd/src/session.rs`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Clock, Error, ErrorKind, Result, Retry, Rng, Timestamp};
use tensorhold_custody::{SessionId, Version};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::store::{
    Change, History, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, Write,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::faults::Fault;
use crate::world::{Link, Outside, ProcessClock};

/// What the store behind the network has time for: the network is what takes time.
const AT_ONCE: Duration = Duration::from_secs(3600);

/// A client of etcd.
#[derive(Clone, Debug)]
pub(crate) struct Etcd {
    inner: MemoryStore,
    outside: Arc<Outside>,
    clock: Arc<ProcessClock>,
    link: Arc<Link>,
}

fn no_answer(operation: &'static str) -> Error {
    Error::unavailable(operation, "no answer (simulated)")
}

fn full(operation: &'static str) -> Error {
    Error::new(ErrorKind::Capacity, operation, "etcd is full (simulated)").with_retry(Retry::Ambiguous)
}

impl Etcd {
    pub(crate) fn new(outside: &Arc<Outside>, clock: &Arc<ProcessClock>, link: &Arc<Link>) -> Self {
        Self {
            inner: outside.etcd.client(),
            outside: Arc::clone(outside),
            clock: Arc::clone(clock),
            link: Arc::clone(link),
        }
    }

    fn has_leader(&self) -> bool {
        self.outside.now() >= self.outside.troubles.lock().leaderless
    }

    fn is_full(&self) -> bool {
        self.outside.now() < self.outside.troubles.lock().full
    }

    /// Sends a request, and waits for its answer. The request travels outside of this process.
    async fn call<T, F>(
        &self,
        operation: &'static str,
        within: Duration,
        act: impl FnOnce(Self) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if within.is_zero() {
            return Err(no_answer(operation));
        }
        let outside = &self.outside;
        let (there, back) = (outside.lag(), outside.lag());
        let (lost, unheard) = (outside.hits(Fault::RequestLost), outside.hits(Fault::ReplyLost));
        let (tell, told) = oneshot::channel();
        if !lost && !self.link.is_cut() {
            let me = self.clone();
            drop(outside.handle.spawn(async move {
                tokio::time::sleep(there).await;
                if me.link.is_cut() || !me.has_leader() {
                    return;
                }
                let (outside, link) = (Arc::clone(&me.outside), Arc::clone(&me.link));
                let leader = outside.troubles.lock().leaders;
                let answer = act(me).await;
                outside.event(link.name, operation, u64::from(answer.is_ok()));
                tokio::time::sleep(back).await;
                let same_leader = leader == outside.troubles.lock().leaders;
                if !unheard && same_leader && !link.is_cut() {
                    // Nobody may wait any more.
                    drop(tell.send(answer));
                }
            }));
        }
        match tokio::time::timeout(within, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                // The connection broke, which is seen sooner than a deadline passes.
                tokio::time::sleep(within.min(Duration::from_millis(outside.rng.below(500)))).await;
                Err(no_answer(operation))
            }
            Err(_) => Err(no_answer(operation)),
        }
    }

    /// Applies a transaction at this moment, and has it judged.
    async fn apply(&self, transaction: &Transaction, reads: &[Read]) -> Result<(TxnOutcome, Option<Snapshot>)> {
        let puts = transaction
            .writes
            .iter()
            .any(|write| matches!(write, Write::Put { .. }));
        let refused = puts && self.is_full();
        // Even then it may have been applied: by a leader that had not heard of it.
        if refused && !self.outside.rng.chance(100) {
            return Err(full("txn"));
        }
        let answer = self.inner.transact_and_read(transaction, reads, AT_ONCE).await?;
        if let TxnOutcome::Committed(version) = answer.0 {
            let mut judge = self.outside.judge.lock();
            judge.committed(&self.outside, self.link.name, transaction, version);
        }
        if refused { Err(full("txn")) } else { Ok(answer) }
    }
}

#[async_trait]
impl TxnStore for Etcd {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn history(&self) -> History {
        self.inner.history()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        let reads = reads.to_vec();
        self.call("read", within, |me| async move { me.inner.read(&reads, AT_ONCE).await })
            .await
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
        let (transaction, reads) = (transaction.clone(), reads.to_vec());
        let act = |me: Self| async move { me.apply(&transaction, &reads).await };
        self.call("txn", within, act).await.map_err(|error| match error.kind() {
            ErrorKind::Unavailable => error.with_retry(Retry::Ambiguous),
            _ => error,
        })
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        let sent = self.clock.now();
        let act = move |me: Self| async move {
            if me.is_full() {
                return Err(full("open"));
            }
            let session = me.inner.open_session(time_to_live, AT_ONCE).await?;
            // Dropping the handle stops its keeper: from now on it lives for its time to live, unless it is kept.
            Ok(session.id())
        };
        let id = self.call("open", within, act).await?;
        let life = Arc::new(Life {
            until: AtomicU64::new(nanos(sent.after(time_to_live))),
            over: watch::Sender::new(false),
        });
        let keeper = tokio::spawn(keep(self.clone(), id, time_to_live, Arc::clone(&life)));
        Ok(Box::new(Session {
            id,
            etcd: self.clone(),
            life,
            keeper,
        }))
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        let act = move |me: Self| async move {
            if me.outside.hits(Fault::Compacted) {
                let read = me.inner.read(&[], AT_ONCE).await?;
                me.inner.compact(read.version);
            }
            me.inner.watch(keys, after, AT_ONCE).await
        };
        let inner = self.call("watch", within, act).await?;
        let (tell, told) = mpsc::unbounded_channel();
        let pump = self.outside.handle.spawn(pump(self.clone(), inner, tell));
        Ok(Box::new(Told { told, pump }))
    }
}

/// Carries the changes of a watch over the network.
async fn pump(etcd: Etcd, mut watch: Box<dyn Watch>, tell: mpsc::UnboundedSender<Result<Vec<Change>>>) {
    let outside = &etcd.outside;
    let leader = outside.troubles.lock().leaders;
    loop {
        let changes = watch.next().await;
        let late = if outside.hits(Fault::WatchLate) {
            outside.rng.below(1500)
        } else {
            0
        };
        tokio::time::sleep(outside.lag() + Duration::from_millis(late)).await;
        let broken = outside.hits(Fault::WatchBroken) || leader != outside.troubles.lock().leaders;
        if broken || etcd.link.is_cut() {
            drop(tell.send(Err(no_answer("watch"))));
            return;
        }
        let Ok(changes) = changes else {
            drop(tell.send(changes));
            return;
        };
        outside.event(etcd.link.name, "watched", changes.len() as u64);
        if outside.hits(Fault::WatchTwice) {
            drop(tell.send(Ok(changes.clone())));
        }
        if tell.send(Ok(changes)).is_err() {
            return;
        }
    }
}

/// The end of a watch in its process.
#[derive(Debug)]
struct Told {
    told: mpsc::UnboundedReceiver<Result<Vec<Change>>>,
    pump: JoinHandle<()>,
}

#[async_trait]
impl Watch for Told {
    async fn next(&mut self) -> Result<Vec<Change>> {
        self.told.recv().await.unwrap_or_else(|| Err(no_answer("watch")))
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

/// What a session and its keeper share.
#[derive(Debug)]
struct Life {
    /// Until when it certainly lives, in nanoseconds of its process's clock.
    until: AtomicU64,
    over: watch::Sender<bool>,
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.since(Timestamp::ORIGIN).as_nanos()).unwrap_or(u64::MAX)
}

impl Life {
    fn left(&self, clock: &ProcessClock) -> Duration {
        let until = self.until.load(Ordering::Relaxed);
        Duration::from_nanos(until.saturating_sub(nanos(clock.now())))
    }

    fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
        self.over.send_replace(true);
    }
}

async fn keep(etcd: Etcd, id: SessionId, time_to_live: Duration, life: Arc<Life>) {
    let beat = time_to_live / 3;
    tokio::time::sleep(beat).await;
    loop {
        let sent = etcd.clock.now();
        let left = life.left(&etcd.clock);
        if left.is_zero() {
            return life.end();
        }
        let act = move |me: Etcd| async move {
            let lives = me.inner.kept(id, true);
            me.inner.kept(id, false);
            Ok(lives)
        };
        match etcd.call("keep", left.min(beat), act).await {
            Ok(true) => {
                life.until.store(nanos(sent.after(time_to_live)), Ordering::Relaxed);
                tokio::time::sleep(beat).await;
            }
            Ok(false) => return life.end(),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    etcd: Etcd,
    life: Arc<Life>,
    keeper: JoinHandle<()>,
}

#[async_trait]
impl StoreSession for Session {
    fn id(&self) -> SessionId {
        self.id
    }

    async fn ended(&self) {
        let mut over = self.life.over.subscribe();
        while self.is_alive() {
            let left = self.life.left(&self.etcd.clock);
            // Either way, look again.
            tokio::time::timeout(left, over.wait_for(|over| *over)).await.ok();
        }
    }

    fn is_alive(&self) -> bool {
        !self.life.left(&self.etcd.clock).is_zero()
    }

    async fn close(&self, within: Duration) -> Result<()> {
        self.keeper.abort();
        self.life.end();
        let id = self.id;
        let act = move |me: Etcd| async move {
            me.inner.expire(id);
            Ok(())
        };
        self.etcd.call("close", within, act).await
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}
