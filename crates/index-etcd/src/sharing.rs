//! Lets the calls of one process share requests.
//!
//! A small request costs etcd several times what its operations do: a message, a proposal, an answer. So no more than a few
//! requests of a kind are in flight at a time. A call that comes meanwhile waits, and when one of those requests has
//! ended, all waiting calls go as one request. No call waits for company: a single one is sent at once, by itself.
//!
//! ```text
//!          few are in flight
//!   call ─────────────────────▶ sent alone ──────────────────────────────────▶ answer
//!    │                              ▲                                            ▲
//!    │ many are                     │ refused: one spoils it for all             │ its own part
//!    ▼                              │                                            │
//!   waiting ─── one has ended ───▶ sent as one request with all that wait and fit ┘
//!    └── deadline ──▶ taken out of the queue, was never sent
//! ```
//!
//! There are two kinds: transactions ([`crate::group_commit`]) and reads of keys ([`crate::group_read`]). Neither waits for the other.
//!
//! # What if
//! - *the answer is lost*: each caller is told so, and finds out for itself.
//! - *one cannot be carried out at all* (its session has ended, it may not read there): etcd refuses the request as a whole;
//!   each call is then sent alone.
//! - *a caller leaves*: a call that still waits is taken out of the queue; one that was sent goes on, for the others.
//! - *the flusher is gone* (its runtime has shut down): a caller whose call still waits gets an error at its own
//!   deadline; one whose call was being sent learns at once that the outcome is unknown.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

/// How many requests of a kind are in flight before further calls wait and share one. With sixteen workers two was as good as
/// one, and better than four. With one, every call would first wait for a whole request of others.
const MOST_UNDER_WAY: usize = 2;

/// A kind of calls that can share requests.
pub(crate) trait Kind: Debug + Send + Sync + 'static {
    /// What a caller wants.
    type Work: Debug + Send;
    type Answer: Debug + Send;

    /// Which of the waiting calls go in one request; the first one does.
    fn choose<'a>(&self, waiting: impl Iterator<Item = &'a Self::Work>) -> Vec<bool>;

    /// Sends these calls as one request, and tells each its answer.
    fn send(&self, calls: Vec<Queued<Self>>) -> impl Future<Output = ()> + Send;

    /// The error for a call that may have been carried out, or not.
    fn unclear(&self, message: &str) -> Error;

    /// The clock of deadlines.
    fn clock(&self) -> &dyn Clock;
}

/// Sends a process's calls of one kind. Dropping it ends its flusher: no caller waits for it any more then.
#[derive(Debug)]
pub(crate) struct Sharing<K: Kind> {
    shared: Arc<Shared<K>>,
    flusher: JoinHandle<()>,
}

/// The state that callers and the flusher share.
#[derive(Debug)]
struct Shared<K: Kind> {
    kind: K,
    queue: Mutex<Queue<K>>,
    /// Wakes the flusher: a call waits, and a request has ended.
    ended: Notify,
}

#[derive(Debug)]
struct Queue<K: Kind + ?Sized> {
    waiting: VecDeque<Queued<K>>,
    under_way: usize,
    last_number: u64,
}

/// A call that waits for its turn.
#[derive(Debug)]
pub(crate) struct Queued<K: Kind + ?Sized> {
    number: u64,
    pub(crate) work: K::Work,
    pub(crate) deadline: Deadline,
    answer: oneshot::Sender<Result<K::Answer>>,
}

impl<K: Kind + ?Sized> Queued<K> {
    pub(crate) fn tell(self, answer: Result<K::Answer>) {
        if self.answer.send(answer).is_err() {
            tracing::trace!("a caller had left before its call was answered");
        }
    }
}

/// The last of these deadlines.
pub(crate) fn latest<K: Kind>(calls: &[Queued<K>], clock: &dyn Clock) -> Option<Deadline> {
    let deadlines = calls.iter().map(|call| call.deadline);
    deadlines.max_by_key(|deadline| deadline.remaining(clock))
}

/// Whether each call of a refused request may have a better answer by itself.
pub(crate) fn is_spoilt(error: &Error) -> bool {
    error.retry() != Retry::Ambiguous && error.kind() != ErrorKind::Unavailable
}

/// One request in flight.
struct SendPermit<'a, K: Kind>(&'a Shared<K>);

impl<K: Kind> Drop for SendPermit<'_, K> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.under_way -= 1;
        if !queue.waiting.is_empty() {
            self.0.ended.notify_one();
        }
    }
}

/// A waiting call. Dropping it takes it out of the queue, if it is still there.
struct Waiting<'a, K: Kind> {
    shared: &'a Shared<K>,
    number: u64,
}

impl<K: Kind> Waiting<'_, K> {
    /// Takes the call out of the queue. True if it was still there: it was not sent, and will not be.
    fn leave(&self) -> bool {
        let mut queue = self.shared.queue.lock();
        let place = queue.waiting.iter().position(|call| call.number == self.number);
        place.is_some_and(|place| queue.waiting.remove(place).is_some())
    }
}

impl<K: Kind> Drop for Waiting<'_, K> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// How a call begins.
enum Begun<'a, K: Kind> {
    Alone(SendPermit<'a, K>),
    Waiting(Waiting<'a, K>, oneshot::Receiver<Result<K::Answer>>),
}

impl<K: Kind> Sharing<K> {
    pub(crate) fn new(kind: K) -> Self {
        let shared = Arc::new(Shared {
            kind,
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                under_way: 0,
                last_number: 0,
            }),
            ended: Notify::new(),
        });
        let flusher = tokio::spawn(flusher(Arc::clone(&shared)));
        Self { shared, flusher }
    }

    pub(crate) fn kind(&self) -> &K {
        &self.shared.kind
    }

    /// Makes a call: `alone`, if few are under way, otherwise its work in a request with others.
    pub(crate) async fn call(
        &self,
        deadline: Deadline,
        alone: impl Future<Output = Result<K::Answer>>,
        work: impl FnOnce() -> K::Work,
    ) -> Result<K::Answer> {
        let (waiting, answer) = match self.shared.begin(deadline, work) {
            Begun::Alone(_permit) => return alone.await,
            Begun::Waiting(waiting, answer) => (waiting, answer),
        };
        let kind = &self.shared.kind;
        match tokio::time::timeout(deadline.remaining(kind.clock()), answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_gone)) => Err(kind.unclear("the task that sends requests ended without an answer")),
            Err(_) if waiting.leave() => Err(kind
                .unclear("the requests before this one were not answered before the deadline; nothing was sent")
                .with_retry(Retry::Safe)),
            Err(_) => Err(kind.unclear("etcd did not answer before the deadline")),
        }
    }
}

impl<K: Kind> Drop for Sharing<K> {
    fn drop(&mut self) {
        self.flusher.abort();
    }
}

/// The flusher: whenever a request has ended, sends the waiting calls.
async fn flusher<K: Kind>(shared: Arc<Shared<K>>) {
    let mut under_way = FuturesUnordered::new();
    loop {
        while let Some(calls) = shared.next() {
            let shared = &*shared;
            under_way.push(async move {
                let _permit = SendPermit(shared);
                shared.kind.send(calls).await;
            });
        }
        tokio::select! {
            () = shared.ended.notified() => {}
            Some(()) = under_way.next(), if !under_way.is_empty() => {}
        }
    }
}

impl<K: Kind> Shared<K> {
    fn begin(&self, deadline: Deadline, work: impl FnOnce() -> K::Work) -> Begun<'_, K> {
        let mut queue = self.queue.lock();
        if queue.under_way < MOST_UNDER_WAY && queue.waiting.is_empty() {
            queue.under_way += 1;
            return Begun::Alone(SendPermit(self));
        }
        queue.last_number += 1;
        let number = queue.last_number;
        let (sender, answer) = oneshot::channel();
        queue.waiting.push_back(Queued {
            number,
            work: work(),
            deadline,
            answer: sender,
        });
        Begun::Waiting(Waiting { shared: self, number }, answer)
    }

    /// The calls of the next request, if it is time to send one. It counts as in flight.
    fn next(&self) -> Option<Vec<Queued<K>>> {
        let mut queue = self.queue.lock();
        if queue.waiting.is_empty() || queue.under_way >= MOST_UNDER_WAY {
            return None;
        }
        let goes = self.kind.choose(queue.waiting.iter().map(|call| &call.work));
        let (mut together, mut rest) = (Vec::new(), VecDeque::new());
        for (call, goes) in queue.waiting.drain(..).zip(goes) {
            if goes {
                together.push(call);
            } else {
                rest.push_back(call);
            }
        }
        queue.waiting = rest;
        queue.under_way += 1;
        Some(together)
    }
}
