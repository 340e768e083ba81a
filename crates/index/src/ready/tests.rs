use tensorhold_core::{ManualClock, Nonce, SampleId, SeededRng, StoreId};
use tensorhold_custody::Publication;

use super::*;
use crate::Index as _;
use crate::index::TxnIndex;
use crate::record::layout::shard_of;
use crate::record::types::{Becomes, Commit, Reserve};
use crate::store::memory::MemoryStore;
use crate::store::{Transaction, TxnStore, Write};
use crate::txn::IndexConfig;

const WITHIN: Duration = Duration::from_secs(60);
/// The samples in each shard: fewer than a take gets.
const THIN: usize = 2;

/// A store in which each shard of the group has [`THIN`] samples.
async fn thin(store: &StoreId, group: &GroupName, clock: Arc<ManualClock>) -> MemoryStore {
    let (layout, generation) = (Layout::new(store), Generation::new(1).expect("a generation"));
    let txn_store = MemoryStore::new(clock);
    let mut in_shard: HashMap<u64, usize> = HashMap::new();
    let mut names = (0..).map(|n| SampleId::new(format!("s{n}")).expect("a name"));
    for _ in 0..SHARDS * THIN as u64 {
        let fits = |sample: &SampleId| {
            in_shard
                .get(&u64::from(shard_of(sample)))
                .is_none_or(|have| *have < THIN)
        };
        let sample = names.find(fits).expect("names do not end");
        *in_shard.entry(u64::from(shard_of(&sample))).or_default() += 1;
        let put = Transaction {
            writes: vec![Write::put(layout.ready_entry(&sample, generation, group), Vec::new())],
            ..Transaction::default()
        };
        txn_store.transact(&put, WITHIN).await.expect("a put");
    }
    txn_store
}

#[tokio::test]
async fn where_shards_have_few_samples_a_peek_names_what_the_next_take_gets() {
    let clock = Arc::new(ManualClock::new());
    let (store, group) = (StoreId::new("s").expect("a name"), GroupName::new("g").expect("a name"));
    let txn_store = thin(&store, &group, clock.clone()).await;
    for first in 0..SHARDS {
        // A process that has read nothing yet, and whose next read begins at this shard.
        let rng = Arc::new(SeededRng::new(first));
        let settings = IndexConfig::default();
        let index = TxnIndex::new(Arc::new(txn_store.client()), &store, settings, clock.clone(), rng);
        let session = index.open_session(WITHIN).await.expect("a session");
        index.ready.next_shard.store(first, Ordering::Relaxed);
        let deadline = index.core.deadline(WITHIN);
        let count = 2 * THIN;
        let peeked = index.ready.peek(&group, count, count, deadline).await.expect("a peek");
        let shards: Vec<u64> = peeked.iter().map(|one| u64::from(shard_of(&one.sample))).collect();
        let next = (first + 1) % SHARDS;
        assert_eq!(shards, [first, first, next, next], "two looks into one shard each");
        let Ready::Some(taken) = index
            .ready
            .find(&session, &group, count, deadline)
            .await
            .expect("a find")
        else {
            panic!("there are samples");
        };
        let taken: Vec<SampleRef> = taken.iter().map(|entry| entry.sample.clone()).collect();
        assert_eq!(peeked, taken, "from shard {first}");
    }
}

/// Two reservations of one write have one place in the ready list, so the doubts about the first sample's entry meet the
/// second sample's.
#[tokio::test]
async fn the_entry_of_a_newer_generation_in_the_same_place_is_no_stray() {
    let clock = Arc::new(ManualClock::new());
    let (store, group) = (StoreId::new("s").expect("a name"), GroupName::new("g").expect("a name"));
    let txn_store = Arc::new(MemoryStore::new(clock.clone()).client());
    let rng = Arc::new(SeededRng::new(1));
    let index = TxnIndex::new(txn_store, &store, IndexConfig::default(), clock.clone(), rng);
    let session = index.open_session(WITHIN).await.expect("a session");
    let wish = || Reserve {
        sample: session.name_ahead().expect("a name"),
        nonce: Nonce::from_u64(7),
        bytes: 0,
        plan: String::new(),
        claims: Vec::new(),
    };
    let reserved = [wish(), wish()];
    let orders = index.reserve(&session, &reserved, WITHIN).await;
    let put = async |at: usize| {
        let commit = Commit {
            sample: SampleRef {
                sample: reserved[at].sample.clone(),
                generation: *orders[at].as_ref().expect("reserved"),
            },
            becomes: Some(Becomes {
                sample: SampleId::new("x").expect("a name"),
                bytes: 10,
            }),
            publication: Publication {
                groups: vec![group.clone()],
                retain: false,
                max_attempts: 3,
            },
            description: b"{}".to_vec(),
        };
        let committed = index.commit(&session, &[commit], WITHIN).await.remove(0);
        Generation::new(committed.expect("committed").version.0).expect("a generation")
    };
    let deadline = index.core.deadline(WITHIN);
    let entries = async || {
        let Ready::Some(found) = index.ready.find(&session, &group, 9, deadline).await.expect("a find") else {
            panic!("a sample waits");
        };
        found.to_vec()
    };
    let first = put(0).await;
    let doubted = entries().await;
    assert_eq!(doubted[0].sample.generation, first);
    let second = put(1).await;
    assert_eq!(
        orders[0].as_ref().ok(),
        orders[1].as_ref().ok(),
        "one place in the list"
    );

    let done = index.ready.set_strays_aside(&group, &doubted, deadline).await;
    done.expect("looked at");
    let aside = index.quarantined(None, 9, WITHIN).await.expect("a list");
    assert!(aside.is_empty(), "{aside:?}");
    clock.advance(Duration::from_secs(1));
    let found = entries().await;
    assert_eq!(found[0].sample.generation, second, "it is still offered");
}
