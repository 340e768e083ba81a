//! What an intent costs, counted in calls of the transactional store: a change that makes one dearer shows here.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Nonce, Result, SampleId, SeededRng, StoreId, SystemClock};
use tensorhold_custody::{GroupName, Publication, Version};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::store::{Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch};
use tensorhold_index::{Commit, Index, IndexConfig, Reserve, SampleRef, TxnIndex};

const WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Counting {
    txn_store: MemoryStore,
    reads: AtomicUsize,
    transactions: AtomicUsize,
    watches: AtomicUsize,
}

impl Counting {
    /// Reads and transactions since the last call of this.
    fn since(&self) -> (usize, usize) {
        (
            self.reads.swap(0, Ordering::Relaxed),
            self.transactions.swap(0, Ordering::Relaxed),
        )
    }
}

#[async_trait]
impl TxnStore for Counting {
    fn limits(&self) -> Limits {
        self.txn_store.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.txn_store.read(reads, within).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.txn_store.transact(transaction, within).await
    }

    async fn transact_and_read(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        within: Duration,
    ) -> Result<(TxnOutcome, Option<Snapshot>)> {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.txn_store.transact_and_read(transaction, reads, within).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.txn_store.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.watches.fetch_add(1, Ordering::Relaxed);
        self.txn_store.watch(keys, after, within).await
    }
}

fn counting() -> Arc<Counting> {
    Arc::new(Counting {
        txn_store: MemoryStore::new(Arc::new(SystemClock::new())),
        reads: AtomicUsize::new(0),
        transactions: AtomicUsize::new(0),
        watches: AtomicUsize::new(0),
    })
}

fn index_on(txn_store: &Arc<Counting>) -> TxnIndex {
    TxnIndex::new(
        Arc::clone(txn_store) as Arc<dyn TxnStore>,
        &StoreId::new("cost").expect("a name"),
        IndexConfig::default(),
        Arc::new(SystemClock::new()),
        Arc::new(SeededRng::new(1)),
    )
}

type Steps = [(&'static str, (usize, usize)); 5];

/// Reads and transactions of each step in the life of `count` samples that go through it together.
async fn costs(count: usize, budget: Option<u64>) -> Steps {
    let txn_store = counting();
    let index = index_on(&txn_store);
    if let Some(budget) = budget {
        index.set_budget(budget, WITHIN).await.expect("a budget");
    }
    let session = index.open_session(WITHIN).await.expect("a session");
    index.tick(WITHIN).await.expect("a clock");
    let group = GroupName::new("g").expect("a name");
    txn_store.since();

    let wishes: Vec<Reserve> = (0..count).map(wish).collect();
    let generations = index.reserve(&session, &wishes, WITHIN).await;
    let reserve = txn_store.since();
    let commits: Vec<Commit> = wishes
        .iter()
        .zip(generations)
        .map(|(wish, generation)| Commit {
            becomes: None,
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
    let commit = txn_store.since();
    let held = index.lease(&session, &group, &samples, 10, WITHIN).await;
    let held: Vec<_> = held.into_iter().map(|held| held.expect("leased")).collect();
    let lease = txn_store.since();
    assert!(index.ack(&session, &held, WITHIN).await.iter().all(Result::is_ok));
    let ack = txn_store.since();
    assert!(index.freed(&session, &samples, WITHIN).await.iter().all(Result::is_ok));
    let freed = txn_store.since();
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
    assert_eq!(costs(1, None).await, wanted);
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
    assert_eq!(costs(64, None).await, wanted);
}

/// One read of the free bytes; from then on the session's balance is enough, and quota costs nothing.
#[tokio::test]
async fn with_quota_to_spare_only_the_first_reservation_looks() {
    let wanted = [
        ("reserve", (1, 1)),
        ("commit", (0, 1)),
        ("lease", (1, 1)),
        ("ack", (0, 1)),
        ("freed", (0, 1)),
    ];
    assert_eq!(costs(1, Some(1000)).await, wanted);
}

/// Calls that wait at the same time share a transaction: of 64 samples each, 45 and then 19.
#[tokio::test]
async fn with_quota_two_large_reservations_of_a_process_go_together() {
    let txn_store = counting();
    let index = index_on(&txn_store);
    index.set_budget(10_000, WITHIN).await.expect("a budget");
    let session = index.open_session(WITHIN).await.expect("a session");
    index.tick(WITHIN).await.expect("a clock");
    let [first, second] = [0, 1].map(|call| (0..64).map(|n| wish(64 * call + n)).collect::<Vec<_>>());
    txn_store.since();
    let (first, second) = tokio::join!(
        index.reserve(&session, &first, WITHIN),
        index.reserve(&session, &second, WITHIN)
    );
    assert!(first.iter().chain(&second).all(Result::is_ok), "{first:?} {second:?}");
    assert_eq!(txn_store.since(), (1, 2));
}

/// One of two producers waits while the other one works, turn by turn: a sample costs five transactions, and the
/// process that frees looks at the queue.
#[tokio::test]
async fn with_quota_that_every_process_waits_for_a_sample_costs_no_more_transactions() {
    let txn_store = counting();
    index_on(&txn_store).set_budget(10, WITHIN).await.expect("a budget");
    let mut producers = Vec::new();
    for _ in 0..2 {
        let index = index_on(&txn_store);
        let session = index.open_session(WITHIN).await.expect("a session");
        producers.push(Arc::new((index, session)));
    }
    let mut turn = first_wish(&producers[0], 0).await;
    for round in 1..=6 {
        // Both have waited once by the third round; from then on it is the same every time.
        if round == 4 {
            txn_store.since();
            txn_store.watches.store(0, Ordering::Relaxed);
        }
        let next = Arc::clone(&producers[round % 2]);
        let wait = tokio::spawn(async move { first_wish(&next, round).await });
        while !txn_store
            .txn_store
            .dump()
            .iter()
            .any(|entry| entry.key.contains("/b/w/"))
        {
            tokio::task::yield_now().await;
        }
        let (index, session) = &*producers[(round + 1) % 2];
        use_up(index, session, &turn).await;
        turn = wait.await.expect("no panic");
    }
    assert_eq!(
        txn_store.since(),
        (6, 15),
        "three rounds of five transactions, the lease's read, and a look at the queue"
    );
    assert_eq!(
        txn_store.watches.load(Ordering::Relaxed),
        0,
        "the watch of before is still there"
    );
}

/// Producers of a process that itself frees what they produce: freed bytes are handed to them directly, and a sample
/// costs four transactions.
#[tokio::test]
async fn with_quota_that_a_process_frees_for_its_own_a_sample_costs_a_transaction_less() {
    const PRODUCERS: usize = 8;
    const ROUNDS: usize = 40;
    let txn_store = counting();
    let index = Arc::new(index_on(&txn_store));
    index.set_budget(20, WITHIN).await.expect("a budget");
    let mut producers = Vec::new();
    for number in 0..PRODUCERS {
        let index = Arc::clone(&index);
        let session = index.open_session(WITHIN).await.expect("a session");
        producers.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let sample = one_wish(&index, &session, number * ROUNDS + round).await;
                use_up(&index, &session, &sample).await;
            }
        }));
    }
    txn_store.since();
    for producer in producers {
        producer.await.expect("no panic");
    }
    let (_, transactions) = txn_store.since();
    let per_sample = transactions as f64 / (PRODUCERS * ROUNDS) as f64;
    assert!(per_sample < 4.75, "{per_sample} transactions for a sample");
}

async fn first_wish((index, session): &(TxnIndex, tensorhold_index::Session), round: usize) -> SampleRef {
    one_wish(index, session, round).await
}

fn wish(number: usize) -> Reserve {
    Reserve {
        sample: SampleId::new(format!("s{number}")).expect("a name"),
        nonce: Nonce::from_u64(1),
        bytes: 10,
        plan: String::new(),
        claims: Vec::new(),
    }
}

async fn one_wish(index: &TxnIndex, session: &tensorhold_index::Session, number: usize) -> SampleRef {
    let wish = wish(number);
    let reserved = index
        .reserve(session, std::slice::from_ref(&wish), WITHIN)
        .await
        .remove(0);
    SampleRef {
        sample: wish.sample,
        generation: reserved.expect("served"),
    }
}

async fn use_up(index: &TxnIndex, session: &tensorhold_index::Session, sample: &SampleRef) {
    let group = GroupName::new("g").expect("a name");
    let samples = std::slice::from_ref(sample);
    let commit = Commit {
        becomes: None,
        sample: sample.clone(),
        publication: Publication {
            groups: vec![group.clone()],
            retain: false,
            max_attempts: 3,
        },
        description: b"d".to_vec(),
    };
    let committed = index.commit(session, &[commit], WITHIN).await;
    assert!(committed.iter().all(Result::is_ok), "{committed:?}");
    let held = index.lease(session, &group, samples, 10, WITHIN).await;
    let held: Vec<_> = held.into_iter().map(|held| held.expect("leased")).collect();
    assert!(index.ack(session, &held, WITHIN).await.iter().all(Result::is_ok));
    assert!(index.freed(session, samples, WITHIN).await.iter().all(Result::is_ok));
}
