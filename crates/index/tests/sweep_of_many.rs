//! A sweep that looks at more samples than one snapshot holds, while they are replaced.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{ManualClock, Nonce, Result, SampleId, SeededRng, StoreId};
use tensorhold_custody::{GroupName, Publication, Version};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::store::{Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch};
use tensorhold_index::{Commit, Index, IndexConfig, RecordQuery, Reserve, SampleRef, Session, Stage, TxnIndex};
use tokio::sync::Notify;

const WITHIN: Duration = Duration::from_secs(60);
/// Two keys each: more than a snapshot of 127 keys holds.
const SAMPLES: usize = 100;

/// Stops once between two snapshots of many keys.
#[derive(Debug)]
struct Stopping {
    inner: MemoryStore,
    stops: AtomicBool,
    stopped: Notify,
    goes_on: Notify,
}

#[async_trait]
impl TxnStore for Stopping {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        let snapshot = self.inner.read(reads, within).await;
        if reads.len() == self.limits().operations && self.stops.swap(false, Ordering::Relaxed) {
            self.stopped.notify_one();
            self.goes_on.notified().await;
        }
        snapshot
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        self.inner.transact(transaction, within).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.inner.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.inner.watch(keys, after, within).await
    }
}

async fn put_all(index: &TxnIndex, session: &Session, group: &GroupName) {
    let wish = |n| Reserve {
        sample: SampleId::new(format!("{n}")).expect("a name"),
        nonce: Nonce::from_u64(1),
        bytes: 1,
        plan: String::new(),
        claims: Vec::new(),
    };
    let wishes: Vec<Reserve> = (0..SAMPLES).map(wish).collect();
    let reserved = index.reserve(session, &wishes, WITHIN).await;
    let commit = |(wish, generation): (Reserve, Result<_>)| Commit {
        sample: SampleRef {
            sample: wish.sample,
            generation: generation.expect("reserved"),
        },
        becomes: None,
        publication: Publication {
            groups: vec![group.clone()],
            retain: false,
            max_attempts: 3,
        },
        description: b"d".to_vec(),
    };
    let commits: Vec<Commit> = wishes.into_iter().zip(reserved).map(commit).collect();
    for committed in index.commit(session, &commits, WITHIN).await {
        committed.expect("committed");
    }
}

/// They move from one key to another while the sweep reads both: it finds each of them all the same.
#[tokio::test]
async fn samples_that_are_replaced_while_a_sweep_reads_lose_their_dead_readers() {
    let clock = Arc::new(ManualClock::new());
    let (store, group) = (StoreId::new("s").expect("a name"), GroupName::new("g").expect("a name"));
    let shared = MemoryStore::new(clock.clone());
    let stopping = Arc::new(Stopping {
        inner: shared.client(),
        stops: AtomicBool::new(false),
        stopped: Notify::new(),
        goes_on: Notify::new(),
    });
    let index = |txn_store: Arc<dyn TxnStore>| {
        let rng = Arc::new(SeededRng::new(1));
        Arc::new(TxnIndex::new(
            txn_store,
            &store,
            IndexConfig::default(),
            clock.clone(),
            rng,
        ))
    };
    let (sweeper, other) = (index(stopping.clone()), index(Arc::new(shared.client())));
    let producer = other.open_session(WITHIN).await.expect("a session");
    let consumer = other.open_session(WITHIN).await.expect("a session");
    let by = sweeper.open_session(WITHIN).await.expect("a session");
    put_all(&other, &producer, &group).await;
    let taken = other.lease_next(&consumer, &group, SAMPLES, 60, WITHIN).await;
    assert_eq!(taken.expect("taken").len(), SAMPLES);
    consumer.close(WITHIN).await.expect("closed");

    stopping.stops.store(true, Ordering::Relaxed);
    let sweep = async { sweeper.sweep(&by, 1000, WITHIN).await };
    let replace = async {
        stopping.stopped.notified().await;
        put_all(&other, &producer, &group).await;
        stopping.goes_on.notify_one();
    };
    let (swept, ()) = tokio::join!(sweep, replace);
    swept.expect("swept");
    sweeper.sweep(&by, 1000, WITHIN).await.expect("swept");
    let held = sweeper
        .records(&RecordQuery::of(Stage::Retired), None, 1000, WITHIN)
        .await;
    let held = held.expect("a list").records;
    assert!(
        held.is_empty(),
        "{} samples wait for a dead reader for ever",
        held.len()
    );
}
