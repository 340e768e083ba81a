//! A transactional store that counts and times the calls to the one below it, and what their reads were for.
//!
//! It changes nothing of what a call does or returns. What a read is for is known to the operation far above that makes it;
//! it is told along the task ([`Cause::of`]), not through every call in between.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Clock, Result, Retry, Timestamp};
use tensorhold_custody::Version;
use tensorhold_metrics::{IndexCall, Outcome, StoreMetrics, registry};

use crate::placement::PlacedStore;

use super::{History, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch};

/// What the reads of an operation are for; the positions are those of [`tensorhold_metrics::CAUSES`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    Other,
    Sweep,
    Collect,
}

tokio::task_local! {
    static CAUSE: Cause;
}

impl Cause {
    /// Runs an operation whose reads are for this.
    pub(crate) async fn of<T>(self, operation: impl Future<Output = T>) -> T {
        CAUSE.scope(self, operation).await
    }

    fn now() -> Self {
        CAUSE.try_with(|cause| *cause).unwrap_or(Self::Other)
    }
}

/// See the module.
#[derive(Debug)]
struct MeteredStore {
    txn_store: Arc<dyn TxnStore>,
    metrics: Arc<StoreMetrics>,
    clock: Arc<dyn Clock>,
}

/// The transactional store, with its calls counted for this store; the same one if metrics are off.
pub(crate) fn metered(txn_store: Arc<dyn TxnStore>, store: &str, clock: &Arc<dyn Clock>) -> Arc<dyn TxnStore> {
    match registry().store(store) {
        Some(metrics) => Arc::new(MeteredStore {
            txn_store,
            metrics,
            clock: Arc::clone(clock),
        }),
        None => txn_store,
    }
}

impl MeteredStore {
    fn ended<T>(&self, call: IndexCall, started: Timestamp, result: Result<T>) -> Result<T> {
        let took = self.clock.now().since(started);
        self.metrics.index.ended(call, Outcome::of(&result), took);
        result
    }

    /// Ends a transaction.
    fn transacted<T>(&self, started: Timestamp, result: &Result<T>, applied: impl Fn(&T) -> TxnOutcome) {
        let took = self.clock.now().since(started);
        let outcome = match result.as_ref().map(applied) {
            Ok(TxnOutcome::Committed(_)) => Outcome::OK,
            Ok(TxnOutcome::Rejected) => Outcome::REJECTED,
            Err(error) => {
                if error.retry() == Retry::Ambiguous {
                    self.metrics.index.ambiguous.one();
                }
                Outcome::error(error.kind())
            }
        };
        self.metrics.index.ended(IndexCall::Transact, outcome, took);
    }

    fn count_reads(&self, reads: &[Read]) {
        let keys = reads.iter().filter(|read| matches!(read, Read::Key(_))).count();
        let cause = Cause::now() as usize;
        for (kind, count) in [keys, reads.len() - keys].into_iter().enumerate() {
            if count > 0 {
                self.metrics.index.reads(kind, cause, count as u64);
            }
        }
    }
}

#[async_trait]
impl TxnStore for MeteredStore {
    fn limits(&self) -> Limits {
        self.txn_store.limits()
    }

    fn history(&self) -> History {
        self.txn_store.history()
    }

    fn placed(&self) -> Option<&PlacedStore> {
        self.txn_store.placed()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.count_reads(reads);
        let started = self.clock.now();
        let result = self.txn_store.read(reads, within).await;
        self.ended(IndexCall::Read, started, result)
    }

    async fn count(&self, ranges: &[Range<String>], within: Duration) -> Result<Vec<u64>> {
        self.metrics.index.reads(1, Cause::now() as usize, ranges.len() as u64);
        let started = self.clock.now();
        let result = self.txn_store.count(ranges, within).await;
        self.ended(IndexCall::Read, started, result)
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        let started = self.clock.now();
        let result = self.txn_store.transact(transaction, within).await;
        self.transacted(started, &result, |applied| *applied);
        result
    }

    async fn transact_and_read(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        within: Duration,
    ) -> Result<(TxnOutcome, Option<Snapshot>)> {
        self.count_reads(reads);
        let started = self.clock.now();
        let result = self.txn_store.transact_and_read(transaction, reads, within).await;
        self.transacted(started, &result, |(applied, _)| *applied);
        result
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        let started = self.clock.now();
        let result = self.txn_store.open_session(time_to_live, within).await;
        self.ended(IndexCall::OpenSession, started, result)
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        let started = self.clock.now();
        let result = self.txn_store.watch(keys, after, within).await;
        self.ended(IndexCall::Watch, started, result)
    }
}
