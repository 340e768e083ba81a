//! A connection that loses replies, over any transactional store.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Error, Result, Retry};
use tensorhold_custody::Version;

use crate::store::memory::Fate;
use crate::store::{History, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch};

/// A transactional store whose replies to transactions can be lost, one by one, in the order in which they are sent.
#[derive(Debug)]
pub struct LossyStore {
    inner: Arc<dyn TxnStore>,
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    fates: VecDeque<Option<Fate>>,
    late: Vec<Transaction>,
    lost: usize,
    only: &'static str,
}

impl LossyStore {
    /// A connection that loses nothing yet.
    pub fn new(inner: Arc<dyn TxnStore>) -> Self {
        Self {
            inner,
            plan: Mutex::default(),
        }
    }

    /// What becomes of the next transactions; `None` lets one pass.
    pub fn plan(&self, fates: impl IntoIterator<Item = Option<Fate>>) {
        self.plan.lock().fates.extend(fates);
    }

    /// From now on the plan applies only to transactions that write a key that contains this text.
    pub fn only(&self, part: &'static str) {
        self.plan.lock().only = part;
    }

    /// Whether everything that was planned has happened.
    pub fn is_done(&self) -> bool {
        self.plan.lock().fates.is_empty()
    }

    /// How many replies were lost so far.
    pub fn lost(&self) -> usize {
        self.plan.lock().lost
    }

    /// Sends the transactions whose fate was [`Fate::Later`]. Returns how many of them were applied.
    pub async fn land(&self, within: Duration) -> Result<usize> {
        let late = std::mem::take(&mut self.plan.lock().late);
        let mut applied = 0;
        for transaction in late {
            applied += usize::from(matches!(
                self.inner.transact(&transaction, within).await?,
                TxnOutcome::Committed(_)
            ));
        }
        Ok(applied)
    }
}

#[async_trait]
impl TxnStore for LossyStore {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn history(&self) -> History {
        self.inner.history()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.inner.read(reads, within).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        let fate = {
            let mut plan = self.plan.lock();
            let meant = transaction.writes.iter().any(|write| write.key().contains(plan.only));
            if meant { plan.fates.pop_front().flatten() } else { None }
        };
        match fate {
            None => return self.inner.transact(transaction, within).await,
            Some(Fate::Applied) => {
                self.inner.transact(transaction, within).await?;
            }
            Some(Fate::ToldAfter(delay)) => {
                let outcome = self.inner.transact(transaction, within).await;
                tokio::time::sleep(delay.min(within)).await;
                if delay < within {
                    return outcome;
                }
            }
            Some(Fate::NotApplied) => {}
            Some(Fate::Full { applied }) => {
                if applied {
                    self.inner.transact(transaction, within).await?;
                }
                self.plan.lock().lost += 1;
                return Err(Fate::full("kv.transact"));
            }
            Some(Fate::Later) => self.plan.lock().late.push(transaction.clone()),
        }
        self.plan.lock().lost += 1;
        Err(
            Error::unavailable("kv.transact", "the reply was lost (the case asked for it)")
                .with_retry(Retry::Ambiguous),
        )
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.inner.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.inner.watch(keys, after, within).await
    }
}

/// A connection on which everything stops when a reply was lost, until it is told to go on, so that something else can
/// happen in between.
#[derive(Debug)]
pub(super) struct EndsAfterLoss {
    inner: Arc<LossyStore>,
    lost: tokio::sync::Semaphore,
    go_on: tokio::sync::Semaphore,
}

impl EndsAfterLoss {
    pub(super) fn new(inner: Arc<LossyStore>) -> Self {
        Self {
            inner,
            lost: tokio::sync::Semaphore::new(0),
            go_on: tokio::sync::Semaphore::new(0),
        }
    }

    /// Pends until a reply was lost.
    pub(super) async fn lost(&self) {
        // It is never closed, so this is not an error.
        self.lost.acquire().await.map(|permit| permit.forget()).ok();
    }

    pub(super) fn go_on(&self) {
        self.go_on.add_permits(1);
    }
}

#[async_trait]
impl TxnStore for EndsAfterLoss {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn history(&self) -> History {
        self.inner.history()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.inner.read(reads, within).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        let before = self.inner.lost();
        let outcome = self.inner.transact(transaction, within).await;
        if self.inner.lost() > before {
            self.lost.add_permits(1);
            self.go_on.acquire().await.map(|permit| permit.forget()).ok();
        }
        outcome
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.inner.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.inner.watch(keys, after, within).await
    }
}
