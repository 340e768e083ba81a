//! Group commit: sends several transactions of one process as one request.
//!
//! A small transaction costs etcd several times what its operations do: a message, a proposal, an answer. So no more
//! than a few requests are in flight at a time. A transaction that comes meanwhile waits, and when one of those
//! requests has ended, all waiting transactions go as one request: a transaction without conditions whose operations
//! are the waiting transactions, each with its own conditions. No transaction waits for company: a single one is sent
//! at once, by itself.
//!
//! ```text
//!              few are in flight, or it is large
//!   transact ─────────────────────────────────────▶ sent alone ─────────────────────▶ answer
//!      │                                                ▲                                ▲
//!      │ many are        refused: one spoils it for all │                                │ its own part
//!      ▼                                                │                                │
//!   waiting ─── one has ended ───▶ sent as a group with all that wait and fit ([`Group`]) ┘
//!      └── deadline ──▶ taken out of the queue, was never sent
//! ```
//!
//! Transactions of a group have the same outcome as if sent one after the other, in their order: see [`crate::group`].
//! They share one version. Their reads run after all of them have written, so that nothing of that version is missing
//! in the results.
//!
//! # What if
//! - *the answer is lost*: all are ambiguous, and each caller finds out for itself.
//! - *one cannot be applied at all* (its session has ended, it may not write there): etcd refuses the request as a
//!   whole, and nothing of it has happened; each transaction is then sent alone.
//! - *a caller leaves*: a transaction that still waits is taken out of the queue; one that was sent goes on, for the
//!   others.
//! - *the flusher is gone* (its runtime has shut down): a caller whose transaction still waits gets an error at
//!   its own deadline; one whose transaction was being sent learns at once that the outcome is unknown.

use std::collections::VecDeque;
use std::sync::Arc;

use etcd_client::TxnResponse;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use holdfast_core::{Deadline, Error, ErrorKind, Result, Retry};
use holdfast_index::store::{Limits, Read, Snapshot, Transaction, TxnOutcome};
use holdfast_metrics::{Histogram, registry};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::conflicts::Group;
use crate::convert::Names;
use crate::dial::Link;
use crate::history::Since;
use crate::pool::{Call, Nature, Pool};

const OPERATION: &str = "kv.transact";

/// How many requests are in flight before further transactions wait and share a request. With sixteen workers two was
/// as good as one, and better than four. With one, every transaction would first wait for a whole request of others.
const MOST_UNDER_WAY: usize = 2;

/// A transaction that writes more keys than this is sent at once, by itself: it costs so much that sharing a request
/// saves little.
const SMALL: usize = 24;

/// The outcome of a transaction, and the results of its reads.
pub(crate) type Answer = (TxnOutcome, Option<Snapshot>);

/// Sends a process's transactions. Dropping it ends its flusher: no caller waits for it any more then.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    shared: Arc<Shared>,
    flusher: JoinHandle<()>,
}

/// The state that callers and the flusher share.
#[derive(Debug)]
struct Shared {
    pool: Arc<Pool>,
    names: Names,
    limits: Limits,
    queue: Mutex<Queue>,
    /// Wakes the flusher: a transaction waits, and a request has ended.
    ended: Notify,
    /// How many transactions the requests had; none if metrics are off.
    sizes: Option<&'static Histogram>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<QueuedTxn>,
    under_way: usize,
    last_number: u64,
}

#[derive(Debug)]
struct QueuedTxn {
    number: u64,
    transaction: Transaction,
    reads: Vec<Read>,
    deadline: Deadline,
    answer: oneshot::Sender<Result<Answer>>,
}

/// One request in flight.
struct SendPermit<'a>(&'a Shared);

impl Drop for SendPermit<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.under_way -= 1;
        if !queue.waiting.is_empty() {
            self.0.ended.notify_one();
        }
    }
}

/// A waiting transaction. Dropping it takes it out of the queue, if it is still there.
struct Waiting<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Waiting<'_> {
    /// Takes the transaction out of the queue. True if it was still there: it was not sent, and will not be.
    fn leave(&self) -> bool {
        let mut queue = self.shared.queue.lock();
        let place = queue.waiting.iter().position(|job| job.number == self.number);
        place.is_some_and(|place| queue.waiting.remove(place).is_some())
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl GroupCommit {
    pub(crate) fn new(pool: Arc<Pool>, names: Names, limits: Limits) -> Self {
        let shared = Arc::new(Shared {
            pool,
            names,
            limits,
            queue: Mutex::default(),
            ended: Notify::new(),
            sizes: registry().group_commit(),
        });
        let flusher = tokio::spawn(flusher(Arc::clone(&shared)));
        Self { shared, flusher }
    }

    pub(crate) async fn transact(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        deadline: Deadline,
    ) -> Result<Answer> {
        let shared = &*self.shared;
        if transaction.writes.len() > SMALL {
            return shared.send_alone(transaction, reads, deadline).await;
        }
        let (waiting, answer) = match shared.begin(transaction, reads, deadline) {
            Begun::Alone(_permit) => return shared.send_alone(transaction, reads, deadline).await,
            Begun::Waiting(waiting, answer) => (waiting, answer),
        };
        let left = deadline.remaining(shared.pool.clock.as_ref());
        match tokio::time::timeout(left, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_gone)) => Err(unclear("the task that sends transactions ended without an answer")),
            Err(_) if waiting.leave() => Err(Error::unavailable(
                OPERATION,
                "the requests before this one were not answered before the deadline; nothing was sent",
            )),
            Err(_) => Err(unclear("etcd did not answer before the deadline")),
        }
    }
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        self.flusher.abort();
    }
}

fn unclear(message: &str) -> Error {
    Error::unavailable(OPERATION, message).with_retry(Retry::Ambiguous)
}

/// The flusher: whenever a request has ended, sends the waiting transactions.
async fn flusher(shared: Arc<Shared>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        while let Some(group) = shared.next_group() {
            let shared = &*shared;
            under_way.push(async move {
                let _permit = SendPermit(shared);
                shared.send_group(group).await;
            });
        }
        tokio::select! {
            () = shared.ended.notified() => {}
            Some(()) = under_way.next(), if !under_way.is_empty() => {}
        }
    }
}

/// How a transaction begins.
enum Begun<'a> {
    Alone(SendPermit<'a>),
    Waiting(Waiting<'a>, oneshot::Receiver<Result<Answer>>),
}

impl Shared {
    fn begin(&self, transaction: &Transaction, reads: &[Read], deadline: Deadline) -> Begun<'_> {
        let mut queue = self.queue.lock();
        if queue.under_way < MOST_UNDER_WAY && queue.waiting.is_empty() {
            queue.under_way += 1;
            return Begun::Alone(SendPermit(self));
        }
        queue.last_number += 1;
        let number = queue.last_number;
        let (sender, answer) = oneshot::channel();
        queue.waiting.push_back(QueuedTxn {
            number,
            transaction: transaction.clone(),
            reads: reads.to_vec(),
            deadline,
            answer: sender,
        });
        Begun::Waiting(Waiting { shared: self, number }, answer)
    }

    /// The transactions of the next request, if it is time to send one. It counts as in flight.
    fn next_group(&self) -> Option<Vec<QueuedTxn>> {
        let mut queue = self.queue.lock();
        if queue.waiting.is_empty() || queue.under_way >= MOST_UNDER_WAY {
            return None;
        }
        let mut group = Group::new(self.limits);
        let goes: Vec<bool> = queue
            .waiting
            .iter()
            .map(|job| group.take(&job.transaction, job.reads.len()))
            .collect();
        let (mut together, mut rest) = (Vec::new(), VecDeque::new());
        for (job, goes) in queue.waiting.drain(..).zip(goes) {
            if goes {
                together.push(job);
            } else {
                rest.push_back(job);
            }
        }
        queue.waiting = rest;
        queue.under_way += 1;
        Some(together)
    }

    /// Counts a request of so many transactions.
    fn sent(&self, transactions: usize) {
        if let Some(sizes) = self.sizes {
            sizes.observe(transactions as u64);
        }
    }

    fn call(&self, deadline: Deadline) -> Call {
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
        let (response, since) = self.pool.call(self.call(deadline), request).await?;
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

    async fn send_group(&self, jobs: Vec<QueuedTxn>) {
        let clock = self.pool.clock.as_ref();
        let latest = jobs
            .iter()
            .map(|job| job.deadline)
            .max_by_key(|deadline| deadline.remaining(clock));
        let (Some(latest), [_, _, ..]) = (latest, &*jobs) else {
            return self.send_each(jobs).await;
        };
        let request = |mut link: Link, since: Since| {
            let jobs = jobs.iter().map(|job| (&job.transaction, &*job.reads));
            let transaction = self.names.together(jobs, &since.epoch);
            async move { link.kv.txn(transaction).await }
        };
        self.sent(jobs.len());
        let answers = match self.pool.call(self.call(latest), request).await {
            Ok((response, since)) => self.same_epoch(&response, &since).and_then(|()| {
                let reads = jobs.iter().map(|job| job.reads.len());
                self.names.answers(response, reads, &since.epoch)
            }),
            Err(error) if error.retry() != Retry::Ambiguous && error.kind() != ErrorKind::Unavailable => {
                return self.send_each(jobs).await;
            }
            Err(error) => Err(error),
        };
        match answers {
            Ok(answers) => {
                for (job, answer) in jobs.into_iter().zip(answers) {
                    job.tell(Ok(answer));
                }
            }
            Err(error) => jobs.into_iter().for_each(|job| job.tell(Err(error.clone()))),
        }
    }

    async fn send_each(&self, jobs: Vec<QueuedTxn>) {
        let send = async |job: QueuedTxn| {
            let answer = self.send_alone(&job.transaction, &job.reads, job.deadline).await;
            job.tell(answer);
        };
        join_all(jobs.into_iter().map(send)).await;
    }
}

impl QueuedTxn {
    fn tell(self, answer: Result<Answer>) {
        if self.answer.send(answer).is_err() {
            tracing::trace!(OPERATION, "a caller had left before its transaction was answered");
        }
    }
}
