//! Group commit: sends several transactions of one process as one request ([`crate::sharing`] says when).
//!
//! The request is a transaction without conditions whose operations are the transactions of the group, each with its own
//! conditions. They have the same outcome as if sent one after the other, in their order: see [`Group`]. They share one
//! version. Their reads run after all of them have written, so that nothing of that version is missing in the results.
//!
//! If the answer is lost, all are ambiguous. If etcd refuses the request, nothing of it has happened.

use std::fmt;
use std::sync::Arc;

use etcd_client::TxnResponse;
use futures_util::future::join_all;
use tensorhold_core::{Clock, Deadline, Error, Result, Retry};
use tensorhold_index::store::{Limits, Read, Snapshot, Transaction, TxnOutcome};
use tensorhold_metrics::{Histogram, registry};

use crate::conflicts::Group;
use crate::convert::Names;
use crate::dial::Link;
use crate::history::Since;
use crate::pool::{Call, Nature, Pool};
use crate::sharing::{Kind, Queued, Sharing, is_spoilt, latest};

const OPERATION: &str = "kv.transact";

/// A transaction that writes more keys than this is sent at once, by itself: it costs so much that sharing a request
/// saves little.
const SMALL: usize = 24;

/// The outcome of a transaction, and the results of its reads.
pub(crate) type Answer = (TxnOutcome, Option<Snapshot>);

/// Sends a process's transactions.
#[derive(Debug)]
pub(crate) struct GroupCommit(Sharing<Transactions>);

/// A transaction with its reads.
#[derive(Debug)]
pub(crate) struct WithReads {
    transaction: Transaction,
    reads: Vec<Read>,
}

pub(crate) struct Transactions {
    pool: Arc<Pool>,
    names: Names,
    limits: Limits,
    /// How many transactions the requests had; none if metrics are off.
    sizes: Option<&'static Histogram>,
}

impl GroupCommit {
    pub(crate) fn new(pool: Arc<Pool>, names: Names, limits: Limits) -> Self {
        Self(Sharing::new(Transactions {
            pool,
            names,
            limits,
            sizes: registry().group_commit(),
        }))
    }

    pub(crate) async fn transact(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        deadline: Deadline,
    ) -> Result<Answer> {
        let alone = self.0.kind().send_alone(transaction, reads, deadline);
        if transaction.writes.len() > SMALL {
            return alone.await;
        }
        let work = || WithReads {
            transaction: transaction.clone(),
            reads: reads.to_vec(),
        };
        self.0.call(deadline, alone, work).await
    }
}

impl Kind for Transactions {
    type Work = WithReads;
    type Answer = Answer;

    fn choose<'a>(&self, waiting: impl Iterator<Item = &'a WithReads>) -> Vec<bool> {
        let mut group = Group::new(self.limits);
        waiting
            .map(|work| group.take(&work.transaction, work.reads.len()))
            .collect()
    }

    async fn send(&self, calls: Vec<Queued<Self>>) {
        let (Some(latest), [_, _, ..]) = (latest(&calls, self.clock()), &*calls) else {
            return self.send_each(calls).await;
        };
        let request = |mut link: Link, since: Since| {
            let all = calls.iter().map(|call| (&call.work.transaction, &*call.work.reads));
            let transaction = self.names.together(all, &since.epoch);
            async move { link.kv.txn(transaction).await }
        };
        self.sent(calls.len());
        let answers = match self.pool.call(self.request(latest), request).await {
            Ok((response, since)) => self.same_epoch(&response, &since).and_then(|()| {
                let reads = calls.iter().map(|call| call.work.reads.len());
                self.names.answers(response, reads, &since.epoch)
            }),
            Err(error) if is_spoilt(&error) => return self.send_each(calls).await,
            Err(error) => Err(error),
        };
        match answers {
            Ok(answers) => {
                for (call, answer) in calls.into_iter().zip(answers) {
                    call.tell(Ok(answer));
                }
            }
            Err(error) => calls.into_iter().for_each(|call| call.tell(Err(error.clone()))),
        }
    }

    fn unclear(&self, message: &str) -> Error {
        Error::unavailable(OPERATION, message).with_retry(Retry::Ambiguous)
    }

    fn clock(&self) -> &dyn Clock {
        self.pool.clock.as_ref()
    }
}

impl Transactions {
    /// Counts a request of so many transactions.
    fn sent(&self, transactions: usize) {
        if let Some(sizes) = self.sizes {
            sizes.observe(transactions as u64);
        }
    }

    fn request(&self, deadline: Deadline) -> Call {
        Call {
            operation: OPERATION,
            nature: Nature::Once,
            deadline,
            patience: self.pool.config.write_timeout,
        }
    }

    async fn send_alone(&self, transaction: &Transaction, reads: &[Read], deadline: Deadline) -> Result<Answer> {
        self.sent(1);
        // Built anew for each try; there is hardly ever a second one.
        let request = |mut link: Link, since: Since| {
            let transaction = self.names.transaction(transaction, reads, &since.epoch);
            async move { link.kv.txn(transaction).await }
        };
        let (response, since) = self.pool.call(self.request(deadline), request).await?;
        self.same_epoch(&response, &since)?;
        self.names.answer(response, reads.len(), &since.epoch)
    }

    /// An error if a transaction was not applied because etcd is in another epoch. Then it never will be applied.
    fn same_epoch(&self, response: &TxnResponse, since: &Since) -> Result<()> {
        if response.succeeded() || since.epoch.text().is_none() {
            return Ok(());
        }
        let seen = Names::epoch_read(response)?;
        self.pool.history.saw_epoch(OPERATION, since, seen.as_deref())
    }

    async fn send_each(&self, calls: Vec<Queued<Self>>) {
        let send = async |call: Queued<Self>| {
            let WithReads { transaction, reads } = &call.work;
            let answer = self.send_alone(transaction, reads, call.deadline).await;
            call.tell(answer);
        };
        join_all(calls.into_iter().map(send)).await;
    }
}

impl fmt::Debug for Transactions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactions").finish_non_exhaustive()
    }
}
