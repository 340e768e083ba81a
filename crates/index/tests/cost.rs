//! What an intent costs, counted in calls of the store of keys: a change that makes one dearer shows here.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::{Nonce, Result, SampleId, SeededRng, StoreId, SystemClock};
use holdfast_custody::{GroupName, Publication, Version};
use holdfast_index::kv::memory::MemoryKv;
use holdfast_index::kv::{Applied, Kv, KvSession, Limits, Read, Snapshot, Transaction, Watch};
use holdfast_index::{Commit, Index, IndexConfig, KvIndex, Reserve, SampleRef};

const WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Counting {
    kv: MemoryKv,
    reads: AtomicUsize,
    transactions: AtomicUsize,
}

impl Counting {
    /// Reads and transactions since the last time this was asked.
    fn since(&self) -> (usize, usize) {
        (
            self.reads.swap(0, Ordering::Relaxed),
            self.transactions.swap(0, Ordering::Relaxed),
        )
    }
}

#[async_trait]
impl Kv for Counting {
    fn limits(&self) -> Limits {
        self.kv.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.kv.read(reads, within).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<Applied> {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.kv.transact(transaction, within).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn KvSession>> {
        self.kv.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.kv.watch(keys, after, within).await
    }
}

/// Reads and transactions of each step in the life of `count` samples that go through it together.
async fn costs(count: usize) -> [(&'static str, (usize, usize)); 5] {
    let clock = Arc::new(SystemClock::new());
    let kv = Arc::new(Counting {
        kv: MemoryKv::new(Arc::clone(&clock) as Arc<dyn holdfast_core::Clock>),
        reads: AtomicUsize::new(0),
        transactions: AtomicUsize::new(0),
    });
    let store = StoreId::new("cost").expect("a name");
    let index = KvIndex::new(
        Arc::clone(&kv) as Arc<dyn Kv>,
        &store,
        IndexConfig::default(),
        clock,
        Arc::new(SeededRng::new(1)),
    );
    let session = index.open_session(WITHIN).await.expect("a session");
    index.tick(WITHIN).await.expect("a clock");
    let group = GroupName::new("g").expect("a name");
    kv.since();

    let wishes: Vec<Reserve> = (0..count)
        .map(|n| Reserve {
            sample: SampleId::new(format!("s{n}")).expect("a name"),
            nonce: Nonce::from_u64(1),
            bytes: 1,
            plan: String::new(),
        })
        .collect();
    let generations = index.reserve(&session, &wishes, WITHIN).await;
    let reserve = kv.since();
    let commits: Vec<Commit> = wishes
        .iter()
        .zip(generations)
        .map(|(wish, generation)| Commit {
            sample: SampleRef {
                sample: wish.sample.clone(),
                generation: generation.expect("reserved"),
            },
            publication: Publication {
                groups: vec![group.clone()],
                retain: false,
                max_attempts: 3,
            },
            description: b"d".to_vec(),
        })
        .collect();
    let samples: Vec<SampleRef> = commits.iter().map(|commit| commit.sample.clone()).collect();
    assert!(index.commit(&session, &commits, WITHIN).await.iter().all(Result::is_ok));
    let commit = kv.since();
    let held = index.lease(&session, &group, &samples, 10, WITHIN).await;
    let held: Vec<_> = held.into_iter().map(|held| held.expect("leased")).collect();
    let lease = kv.since();
    assert!(index.ack(&session, &held, WITHIN).await.iter().all(Result::is_ok));
    let ack = kv.since();
    assert!(index.freed(&session, &samples, WITHIN).await.iter().all(Result::is_ok));
    let freed = kv.since();
    [
        ("reserve", reserve),
        ("commit", commit),
        ("lease", lease),
        ("ack", ack),
        ("freed", freed),
    ]
}

#[tokio::test]
async fn a_single_sample_costs_one_transaction_a_step() {
    let wanted = [
        ("reserve", (0, 1)),
        ("commit", (0, 1)),
        ("lease", (1, 1)),
        ("ack", (0, 1)),
        ("freed", (0, 1)),
    ];
    assert_eq!(costs(1).await, wanted);
}

#[tokio::test]
async fn a_batch_of_sixty_four_costs_as_many_transactions_as_etcd_s_limit_makes_of_it() {
    let wanted = [
        ("reserve", (0, 1)),
        ("commit", (0, 2)),
        ("lease", (1, 2)),
        ("ack", (0, 2)),
        ("freed", (0, 1)),
    ];
    assert_eq!(costs(64).await, wanted);
}
