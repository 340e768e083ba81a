//! Getting by described references: bytes that move before the index has answered, and are not believed until it has.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::raw::{keys, shows};
use common::*;
use serde_json::Value;
use tensorhold_core::{ErrorKind, ObjectKey, Result};
use tensorhold_engine::{EngineExt, PutOptions};
use tensorhold_features::seal::Keyring;
use tensorhold_features::{DescribedRef, Destination, FeatureConfig, FeatureStore, Lease, Stored, TensorOut, Wanted};
use tensorhold_index::store::memory::MemoryStore;

const LENS: [usize; 3] = [10_000, 0, 300];
/// No call of the index is answered.
const ALL: usize = 1_000_000;

/// A process whose engine can be held up and whose index can be cut off.
struct Process {
    world: World,
    engine: Arc<HeldUp>,
    txn_store: MemoryStore,
    store: FeatureStore,
}

impl Process {
    async fn new(keyring: Option<Keyring>) -> Self {
        let world = World::new();
        let config = FeatureConfig {
            keyring,
            ..world.config()
        };
        Self::open(world, config).await
    }

    async fn open(world: World, config: FeatureConfig) -> Self {
        let (engine, txn_store) = (HeldUp::new(world.cluster.connect()), world.txn_store.client());
        let store = world.open_on(engine.clone(), txn_store.clone(), config).await;
        // Counts the calls.
        engine.set(Mode::Slow(Duration::ZERO));
        Self {
            world,
            engine,
            txn_store,
            store,
        }
    }

    async fn get(&self, sample: DescribedRef) -> Result<Vec<TensorOut>> {
        self.store.get_described(sample, Wanted::All, WITHIN).await
    }

    /// How many calls have got objects from the engine.
    fn gets(&self) -> usize {
        self.engine.get_times().len()
    }

    /// Whether a get moves bytes that the index has not confirmed: it is cut off.
    async fn moves_early(&self, sample: DescribedRef, wanted: Wanted) -> bool {
        let before = self.gets();
        self.txn_store.faults().outage(ALL);
        let error = self.store.get_described(sample, wanted, WITHIN).await;
        let error = error.expect_err("the index does not answer");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        self.txn_store.faults().outage(0);
        self.gets() > before
    }
}

fn described(stored: &Stored) -> DescribedRef {
    DescribedRef::from(stored)
}

/// A reference that carries another description than its sample has.
fn forged(stored: &Stored, change: impl FnOnce(&mut Value)) -> DescribedRef {
    let carried = described(stored).carried().expect("short");
    let mut description: Value = serde_json::from_slice(&carried).expect("JSON");
    change(&mut description);
    let carried = serde_json::to_vec(&description).expect("JSON");
    DescribedRef::with_carried(stored.reference.clone(), &carried)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

type Change = fn(&mut Value);

/// What the carried description may say instead; each can be read.
const FORGERIES: [(&str, Change); 8] = [
    ("another checksum", |d| {
        d["tensors"][0]["digests"][1] = Value::from("xxh3-128:00000000000000000000000000000007");
    }),
    ("another shape of as many bytes", |d| {
        d["tensors"][0]["spec"]["shape"] = Value::from(vec![100, 100])
    }),
    ("another element type of as many bytes", |d| {
        d["tensors"][2]["spec"] = json(r#"{"name": "t2", "dtype": "float16", "shape": [150]}"#);
    }),
    ("another nonce", |d| d["nonce"] = Value::from(7)),
    ("one tensor fewer", |d| {
        drop(d["tensors"].as_array_mut().expect("tensors").remove(2))
    }),
    ("tensors in another order", |d| {
        d["tensors"].as_array_mut().expect("tensors").swap(0, 2)
    }),
    ("other objects", |d| {
        d["chunk_bytes"] = Value::from(1 << 20);
        d["tensors"][0]["digests"] = Value::from(vec!["xxh3-128:00000000000000000000000000000007"]);
    }),
    ("a terabyte", |d| {
        d["chunk_bytes"] = Value::from(1_u64 << 40);
        d["tensors"][0]["spec"]["shape"] = Value::from(vec![1_u64 << 40]);
        d["tensors"][0]["digests"] = Value::from(vec!["xxh3-128:00000000000000000000000000000007"]);
    }),
];

#[tokio::test]
async fn bytes_move_while_the_index_is_asked_and_wait_for_its_answer() {
    for keyring in [None, Some(keys(&["k1"]))] {
        let here = Process::new(keyring).await;
        let stored = put(&here.store, item("run/1", &LENS, 7)).await;
        let before = here.world.txn_store.dump();
        check_tensors(&here.get(described(&stored)).await.expect("tensors"), &LENS, 7);
        assert_eq!(here.gets(), 1);
        assert_eq!(here.world.txn_store.dump(), before, "nothing is written to the index");
        assert!(here.moves_early(described(&stored), Wanted::All).await);
        assert!(
            here.moves_early(described(&stored), Wanted::Names(vec![name("t2")]))
                .await
        );
        let counters = here.store.health(WITHIN).await.counters;
        assert_eq!((counters.gets, counters.bytes_got), (1, 10_300));
    }
}

#[tokio::test]
async fn a_reference_without_a_description_asks_first() {
    let here = Process::new(None).await;
    let stored = put(&here.store, item("run/1", &LENS, 7)).await;
    let bare = DescribedRef::from(stored.reference.clone());
    check_tensors(&here.get(bare.clone()).await.expect("tensors"), &LENS, 7);
    assert!(!here.moves_early(bare, Wanted::All).await);
}

#[tokio::test]
async fn what_is_carried_is_never_believed() {
    let here = Process::new(None).await;
    let stored = put(&here.store, item("run/1", &LENS, 7)).await;
    for (what, change) in FORGERIES {
        let sample = forged(&stored, change);
        assert!(sample.description.is_some(), "{what}");
        let got = here.get(sample.clone()).await.expect(what);
        check_tensors(&got, &LENS, 7);
        let leased = here.store.lease_shared_and_get(sample, Wanted::All, WITHIN).await;
        let (_lease, got) = leased.expect(what);
        check_tensors(&got, &LENS, 7);
    }
    let counters = here.store.health(WITHIN).await.counters;
    assert_eq!((counters.corrupt, counters.lost), (0, 0), "forgeries count as nothing");
}

#[tokio::test]
async fn a_sealed_sample_is_not_got_by_a_forged_description_either() {
    let here = Process::new(Some(keys(&["k1"]))).await;
    let stored = put(&here.store, item("run/1", &LENS, 7)).await;
    for (what, change) in &FORGERIES[1..6] {
        let got = here.get(forged(&stored, change)).await.expect(what);
        check_tensors(&got, &LENS, 7);
    }
    let plain = forged(&stored, |d| d["encoding"] = Value::from("plain"));
    check_tensors(&here.get(plain).await.expect("tensors"), &LENS, 7);
    assert_eq!(here.store.health(WITHIN).await.counters.corrupt, 0);
}

#[tokio::test]
async fn a_sample_that_is_gone_or_superseded_is_never_bytes_although_they_are_there() {
    for keyring in [None, Some(keys(&["k1"]))] {
        let here = Process::new(keyring).await;
        let first = put(&here.store, item("run/1", &LENS, 7)).await;
        let _keeps_its_bytes = read(&here.store, &first.reference).await;
        let second = put(&here.store, item("run/1", &LENS, 8)).await;
        let error = here.get(described(&first)).await.expect_err("superseded");
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        check_tensors(&here.get(described(&second)).await.expect("tensors"), &LENS, 8);
        let _keeps_its_bytes_too = read(&here.store, &second.reference).await;
        one(here.store.abort(&[id("run/1")], WITHIN).await).expect("aborted");
        let before = here.gets();
        let error = here.get(described(&second)).await.expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!(here.gets(), before + 1, "its bytes had come");
        let leased = here.store.lease_shared_and_get(described(&second), Wanted::All, WITHIN);
        let error = leased.await.expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
}

#[tokio::test]
async fn what_was_decrypted_and_not_handed_out_is_cleared() {
    let here = Process::new(Some(keys(&["k1"]))).await;
    let stored = put(&here.store, item("run/1", &LENS, 7)).await;
    let _keeps_its_bytes = read(&here.store, &stored.reference).await;
    one(here.store.abort(&[id("run/1")], WITHIN).await).expect("aborted");
    here.get(described(&stored)).await.expect_err("gone");
    assert_eq!(here.gets(), 1, "its bytes had come");
    let memory = here.store.pool().buffer(1 << 20, WITHIN).await.expect("memory");
    assert!(!shows(&memory.to_vec(), &pattern(LENS[0], 7)));
}

#[tokio::test]
async fn bytes_that_nothing_vouches_for_are_not_read_early() {
    let world = World::new();
    let config = FeatureConfig {
        checksum: false,
        ..world.config()
    };
    let here = Process::open(world, config).await;
    let stored = put(&here.store, item("run/1", &LENS, 7)).await;
    assert!(!here.moves_early(described(&stored), Wanted::All).await);
    check_tensors(&here.get(described(&stored)).await.expect("tensors"), &LENS, 7);
}

#[tokio::test]
async fn objects_of_other_writers_are_not_read_early() {
    let here = Process::new(None).await;
    let stored = put(&here.store, item("run/1", &LENS, 7)).await;
    let raw = here.world.cluster.connect();
    let region = raw.allocate(300, WITHIN).expect("memory");
    let theirs = ObjectKey::new("x:theirs").expect("a key");
    raw.put_one(&theirs, &region.whole(), &PutOptions::default(), WITHIN)
        .expect("stored");
    let sample = forged(&stored, |d| d["tensors"][2]["key"] = Value::from("x:theirs"));
    assert!(sample.description.is_some());
    assert!(!here.moves_early(sample.clone(), Wanted::All).await);
    check_tensors(&here.get(sample).await.expect("tensors"), &LENS, 7);
}

#[tokio::test]
async fn early_bytes_take_nothing_but_free_memory_of_the_pool() {
    let here = Process::new(None).await;
    let stored = put(&here.store, item("run/1", &LENS, 7)).await;
    let (_, terabyte) = FORGERIES[7];
    assert!(!here.moves_early(forged(&stored, terabyte), Wanted::All).await);
    let mine = vec![(name("t2"), Destination::Lent(lent(vec![9; 300])))];
    assert!(!here.moves_early(described(&stored), Wanted::Into(mine)).await);
    let budget = usize::try_from(here.store.pool().usage().budget).expect("small");
    let taken = here.store.pool().buffer(budget, WITHIN).await.expect("all of it");
    let at_once = tokio::time::timeout(WITHIN / 4, here.moves_early(described(&stored), Wanted::All));
    assert!(!at_once.await.expect("it waits for no memory"));
    drop(taken);
    assert!(here.moves_early(described(&stored), Wanted::All).await);
}

#[tokio::test]
async fn torn_bytes_are_read_again() {
    let here = Process::new(None).await;
    let stored = put(&here.store, item("run/1", &LENS, 7)).await;
    here.engine.set(Mode::TornOnce);
    check_tensors(&here.get(described(&stored)).await.expect("tensors"), &LENS, 7);
    here.engine.set(Mode::TornOnce);
    let leased = here
        .store
        .lease_shared_and_get(described(&stored), Wanted::All, WITHIN)
        .await;
    let (_lease, tensors) = leased.expect("tensors");
    check_tensors(&tensors, &LENS, 7);
    assert_eq!(here.store.health(WITHIN).await.counters.corrupt, 0);
}

#[tokio::test]
async fn a_read_lease_is_taken_beside_the_bytes_and_holds() {
    let here = Process::new(None).await;
    let stored = put(&here.store, item("run/1", &LENS, 7)).await;
    let leased = here
        .store
        .lease_shared_and_get(described(&stored), Wanted::All, WITHIN)
        .await;
    let (lease, tensors) = leased.expect("tensors");
    check_tensors(&tensors, &LENS, 7);
    assert_eq!(here.gets(), 1);
    let other = here.world.open().await;
    one(other.abort(&[id("run/1")], WITHIN).await).expect("aborted");
    assert_eq!(here.world.cluster.objects().len(), 4, "its reader keeps them");
    one(here.store.release(&[lease], WITHIN).await).expect("released");
    for store in [&other, &here.store] {
        store.sweep(WITHIN).await.expect("swept");
        store.drain(WITHIN).await.expect("freed");
    }
    here.world.assert_empty();
    // The engine is called although the index does not answer.
    let stored = put(&here.store, item("run/2", &LENS, 7)).await;
    let before = here.gets();
    here.txn_store.faults().outage(ALL);
    let leased = here.store.lease_shared_and_get(described(&stored), Wanted::All, WITHIN);
    leased.await.expect_err("no lease");
    assert_eq!(here.gets(), before + 1);
}

#[tokio::test]
async fn several_samples_share_calls_and_each_has_its_own_answer() {
    let here = Process::new(None).await;
    let mut samples = Vec::new();
    for n in 0..6 {
        samples.push(put(&here.store, item(&format!("run/{n}"), &LENS, 10 * n)).await);
    }
    let all = |make: fn(&Stored) -> DescribedRef| -> Vec<(DescribedRef, Wanted)> {
        samples.iter().map(|stored| (make(stored), Wanted::All)).collect()
    };
    let bare: fn(&Stored) -> DescribedRef = |stored| DescribedRef::from(stored.reference.clone());
    for make in [described, bare] {
        let before = here.gets();
        for (n, tensors) in here
            .store
            .get_described_many(all(make), WITHIN)
            .await
            .iter()
            .enumerate()
        {
            check_tensors(tensors.as_ref().expect("tensors"), &LENS, 10 * n as u64);
        }
        assert_eq!(here.gets(), before + 1, "one call of the engine");
    }
    here.engine.set(Mode::TornOnce);
    for (n, tensors) in here
        .store
        .get_described_many(all(described), WITHIN)
        .await
        .iter()
        .enumerate()
    {
        check_tensors(tensors.as_ref().expect("tensors"), &LENS, 10 * n as u64);
    }
    one(here.store.abort(&[id("run/3")], WITHIN).await).expect("aborted");
    here.store.drain(WITHIN).await.expect("freed");
    for (n, tensors) in here
        .store
        .get_described_many(all(described), WITHIN)
        .await
        .iter()
        .enumerate()
    {
        match tensors {
            Ok(tensors) => check_tensors(tensors, &LENS, 10 * n as u64),
            Err(error) => assert_eq!((n, error.kind()), (3, ErrorKind::NotFound), "{error}"),
        }
        assert_eq!(tensors.is_err(), n == 3);
    }
    assert!(here.store.get_described_many(Vec::new(), WITHIN).await.is_empty());
}

#[tokio::test]
async fn several_leases_share_calls_and_each_has_its_own_answer() {
    let here = Process::new(None).await;
    for n in 0..6 {
        put(&here.store, item(&format!("run/{n}"), &LENS, 10 * n)).await;
    }
    let leases = here.store.lease_next(&trainers(), 6, WITHIN).await.expect("leases");
    assert_eq!(leases.len(), 6);
    let all = || -> Vec<(Lease, Wanted)> { leases.iter().map(|lease| (lease.clone(), Wanted::All)).collect() };
    let seed = |n: usize| {
        let sample = leases[n].reference().sample.to_string();
        10 * sample.trim_start_matches("run/").parse::<u64>().expect("a number")
    };
    let before = here.gets();
    for (n, tensors) in here.store.get_many(all(), WITHIN).await.iter().enumerate() {
        check_tensors(tensors.as_ref().expect("tensors"), &LENS, seed(n));
    }
    assert_eq!(here.gets(), before + 1, "one call of the engine");
    let _keeps_its_bytes = read(&here.store, &leases[2].reference()).await;
    ack(&here.store, &leases[2]).await.expect("acked");
    for (n, tensors) in here.store.get_many(all(), WITHIN).await.iter().enumerate() {
        match tensors {
            Ok(tensors) => check_tensors(tensors, &LENS, seed(n)),
            Err(error) => assert_eq!((n, error.kind()), (2, ErrorKind::Fenced), "{error}"),
        }
        assert_eq!(tensors.is_err(), n == 2);
    }
}

#[tokio::test]
async fn a_lease_whose_bytes_came_ahead_and_that_no_caller_looked_at_costs_no_attempt() {
    let here = Process::new(None).await;
    put(&here.store, item("run/1", &LENS, 7)).await;
    // The first time, its bytes are torn on the way: they are got again.
    for (mode, looks) in [(Mode::TornOnce, false), (Mode::Pass, false), (Mode::Pass, true)] {
        let lease = one(here.store.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
        here.engine.set(mode);
        let got = one(here.store.get_ahead(vec![(lease.clone(), Wanted::All)], WITHIN).await);
        check_tensors(&got.expect("tensors"), &LENS, 7);
        if looks {
            let _sample = lease.reference();
        }
        drop(lease);
        here.store.drain(WITHIN).await.expect("given back");
        let found = one(here.store.find(&[id("run/1")], WITHIN).await.expect("an answer")).expect("live");
        assert_eq!(found.record.groups[0].attempts, u32::from(looks));
    }
    // A caller that is told why it has no tensors knows of the sample.
    let lease = one(here.store.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
    let wanted = Wanted::Names(vec![name("none")]);
    let got = one(here.store.get_ahead(vec![(lease, wanted)], WITHIN).await);
    got.expect_err("there is no such tensor");
    here.store.drain(WITHIN).await.expect("given back");
    let found = one(here.store.find(&[id("run/1")], WITHIN).await.expect("an answer")).expect("live");
    assert_eq!(found.record.groups[0].attempts, 2);
}
