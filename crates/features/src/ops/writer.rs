//! A writer: puts that are under way at the same time go together.
//!
//! Each engine call has a thread that waits for it by polling, and each commit a transaction. Several puts at once compete
//! for processors with their own waits; as one batch they have one call and one transaction.
//!
//! ```text
//!           no batch is under way                 the batch ends
//! begun ──────────────────────────▶ in a batch ──────────────────▶ told
//!   │ one is                          ▲   │ its caller leaves: given up; the others proceed
//!   └────────▶ waiting ── it ends ────┘   ▼
//!                 └─ its caller leaves ▶ undone
//! ```
//!
//! Invariants:
//! - WR1: at most one batch of a writer is under way, and one is while puts wait. If the task that sends them panics,
//!   those that wait are told.
//! - WR2: a caller that leaves gives up its own put, and no other.
//! - WR3: of several puts of a sample the latest call counts, as without a writer: a put is begun when it is called, and
//!   not when it is sent.
//!
//! What is put together shares its fate where the engine is concerned: a holder that does not answer delays the whole
//! batch.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Error, Result, SampleId};
use tokio::sync::{Notify, oneshot};

use crate::ops::put::{PutItem, PutTurn, Stored};
use crate::runtime::inflight_puts::Begun;
use crate::store::FeatureStore;

const OPERATION: &str = "features.put";

/// Puts samples; those that are under way at the same time go together. Made by [`FeatureStore::writer`].
#[derive(Debug)]
pub struct Writer {
    store: FeatureStore,
    /// Shared by the turns of all its puts, so that they can be joined.
    changed: Arc<Notify>,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Whether a task sends what waits.
    sending: bool,
}

#[derive(Debug)]
struct Waiting {
    item: PutItem,
    turn: PutTurn,
    within: Duration,
    tell: oneshot::Sender<Result<Stored>>,
}

/// A caller that waits for its put. Its drop gives the put up if it has not ended. It does not keep the put from ending: a
/// caller that was told may not look for a while, and a later put of the sample waits for the end.
struct WaitingCaller(Weak<Begun>);

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        if let Some(begun) = self.0.upgrade() {
            begun.give_up();
        }
    }
}

impl Queue {
    /// Adds a put. Returns whether a task sends what waits; if not, the caller has to start one.
    fn push(&mut self, waiting: Waiting) -> bool {
        self.waiting.push_back(waiting);
        std::mem::replace(&mut self.sending, true)
    }

    /// The next puts that can go together: with the same time limit, and each of another sample.
    fn next_batch(&mut self) -> Vec<Waiting> {
        let Some(within) = self.waiting.front().map(|first| first.within) else {
            return Vec::new();
        };
        let mut samples = HashSet::new();
        let fits = |one: &&Waiting| one.within == within && samples.insert(one.item.sample.clone());
        let count = self.waiting.iter().take_while(fits).count();
        self.waiting.drain(..count).collect()
    }
}

/// The task that sends what waits in a queue.
struct Sender {
    queue: Arc<Mutex<Queue>>,
    ended: bool,
}

impl Sender {
    async fn send_all(mut self, store: FeatureStore) {
        while let Some(batch) = self.next_batch() {
            send(&store, batch).await;
        }
    }

    fn next_batch(&mut self) -> Option<Vec<Waiting>> {
        let mut queue = self.queue.lock();
        let batch = queue.next_batch();
        if batch.is_empty() {
            // Under the lock under which the next put looks whether a task sends.
            queue.sending = false;
            self.ended = true;
            return None;
        }
        Some(batch)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if !self.ended {
            let mut queue = self.queue.lock();
            queue.sending = false;
            let untold = std::mem::take(&mut queue.waiting);
            drop(queue);
            drop(untold);
        }
    }
}

async fn send(store: &FeatureStore, batch: Vec<Waiting>) {
    let Some(within) = batch.first().map(|first| first.within) else {
        return;
    };
    let parts = batch.into_iter().map(|one| (one.turn, (one.item, one.tell)));
    let (turns, (items, tells)): (Vec<_>, (Vec<_>, Vec<_>)) = parts.unzip();
    let Some(turn) = turns.into_iter().reduce(PutTurn::joined) else {
        return;
    };
    let results = store.put_begun(turn, items, within).await;
    for (tell, result) in tells.into_iter().zip(results) {
        // A caller that has left is not told: its put was given up, or it is committed and stays.
        drop(tell.send(result));
    }
}

impl Writer {
    /// Announces that a put of this sample begins, as [`FeatureStore::begin_put`] does.
    pub fn begin_put(&self, sample: &SampleId) -> PutTurn {
        let puts = &self.store.inner().inflight_puts;
        puts.call_among(&self.changed, std::iter::once(sample))
    }

    /// Puts a sample, as [`FeatureStore::put`] does. Its time begins when it is sent: when the batch that is under way,
    /// if one is, has ended.
    pub async fn put(&self, item: PutItem, within: Duration) -> Result<Stored> {
        let turn = self.begin_put(&item.sample);
        self.put_begun(turn, item, within).await
    }

    /// As [`Writer::put`], for a sample whose put has begun.
    pub async fn put_begun(&self, turn: PutTurn, item: PutItem, within: Duration) -> Result<Stored> {
        let _caller = WaitingCaller(Arc::downgrade(&turn.put(&item.sample)?));
        let (tell, told) = oneshot::channel();
        let waiting = Waiting {
            item,
            turn,
            within,
            tell,
        };
        if !self.queue.lock().push(waiting) {
            let (store, queue) = (self.store.clone(), Arc::clone(&self.queue));
            let sender = Sender { queue, ended: false };
            // It ends with its last batch, each of which ends by its time; detached, because the caller may leave.
            drop(self.store.inner().runtime.tasks.spawn(sender.send_all(store)));
        }
        told.await.unwrap_or_else(|_| {
            Err(Error::internal(
                OPERATION,
                "the writer's task panicked or was cancelled",
            ))
        })
    }
}

impl FeatureStore {
    /// A writer, for a producer that has several puts under way.
    pub fn writer(&self) -> Writer {
        Writer {
            store: self.clone(),
            changed: Arc::default(),
            queue: Arc::default(),
        }
    }
}
