//! One bad record harms one record, and a master that hangs stops nothing but removals: on real servers.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects"
)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::servers::*;
use common::*;
use tensorhold_core::{Clock, Nonce, StoreId, SystemClock, SystemRng};
use tensorhold_engine::{Engine, MemoryCluster, MemoryConfig};
use tensorhold_features::{FeatureConfig, FeatureStore, Reason, SampleRef};
use tensorhold_index::store::{Entry, Read, Transaction, TxnStore, Write};
use tensorhold_index::{Index, IndexConfig, Reserve, TxnIndex};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
use tensorhold_testkit::Endpoints;
use tokio::task::block_in_place;

async fn etcd(endpoints: &Endpoints) -> EtcdStore {
    let clock = Arc::new(SystemClock::new());
    let config = EtcdConfig::new(endpoints.etcd.clone());
    EtcdStore::open(config, clock, WITHIN).await.expect("etcd")
}

fn index_on(txn_store: EtcdStore, store: &StoreId, tick: Duration) -> Arc<dyn Index> {
    let settings = IndexConfig {
        session_ttl: Duration::from_secs(3),
        tick,
        ..IndexConfig::default()
    };
    let (clock, rng) = (Arc::new(SystemClock::new()), Arc::new(SystemRng));
    Arc::new(TxnIndex::new(Arc::new(txn_store), store, settings, clock, rng))
}

async fn open_as(endpoints: &Endpoints, config: FeatureConfig, tick: Duration) -> FeatureStore {
    open_over(endpoints, connect(endpoints), config, tick).await
}

async fn open_over(
    endpoints: &Endpoints,
    engine: Arc<dyn Engine>,
    config: FeatureConfig,
    tick: Duration,
) -> FeatureStore {
    let index = index_on(etcd(endpoints).await, &config.store, tick);
    let (clock, rng) = (Arc::new(SystemClock::new()), Arc::new(SystemRng));
    FeatureStore::open(engine, index, config, clock, rng)
        .await
        .expect("a store")
}

/// What any process with access to etcd can write.
async fn write(txn_store: &EtcdStore, key: &str, value: impl Into<Vec<u8>>) {
    let transaction = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::put(format!("{}/{key}", config().store), value)],
    };
    txn_store.transact(&transaction, WITHIN).await.expect("written");
}

async fn tick_of(txn_store: &EtcdStore, store: &StoreId) -> u64 {
    let read = [Read::Key(format!("{store}/t"))];
    let snapshot = txn_store.read(&read, WITHIN).await.expect("read");
    // A clock that has not ticked yet has no record.
    let tick = |entry: Entry| String::from_utf8(entry.value).expect("text").parse().expect("a number");
    snapshot.entries.into_iter().flatten().next().map_or(0, tick)
}

/// A retired record whose sample was never committed, with this plan.
fn retired(generation: u64, reason: &str, plan: &str) -> String {
    let plan = plan.replace('"', "\\\"");
    format!(
        r#"{{"generation":{generation},"nonce":5,"producer":1,"bytes":1,"readers":[],"reason":"{reason}","failed_frees":0,"plan":"{plan}"}}"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_cannot_be_removed_do_not_hold_up_those_behind_them() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let index = index_on(etcd(&endpoints).await, &config().store, TICK);
    let session = index.open_session(WITHIN).await.expect("a session");
    // Ten retired samples that only a later release can remove, early in the order of names.
    for n in 0..10 {
        let sample = id(&format!("a-run/{n}"));
        let reserve = Reserve {
            sample: sample.clone(),
            nonce: Nonce::draw(&SystemRng),
            bytes: 10,
            plan: r#"{"v":2}"#.into(),
            claims: Vec::new(),
        };
        let generation = one(index.reserve(&session, &[reserve], WITHIN).await).expect("reserved");
        one(index.abort(&session, &[SampleRef { sample, generation }], WITHIN).await).expect("aborted");
    }
    let few = FeatureConfig {
        sweep_limit: 10,
        ..config()
    };
    let producer = open_as(&endpoints, few.clone(), TICK).await;
    let stored = put(&producer, item("run/1", &[5000], 1)).await;
    // The process that retires it dies before the objects are removed.
    one(index
        .retire(
            &session,
            std::slice::from_ref(&stored.reference),
            Reason::Aborted,
            WITHIN,
        )
        .await)
    .expect("retired");
    let engine = connect(&endpoints);
    let sweeper = open_as(&endpoints, few, TICK).await;
    for _ in 0..3 {
        let swept = sweeper.sweep(WITHIN).await.expect("swept");
        eprintln!("freed {}, failed {}, later {}", swept.freed, swept.failed, swept.later);
        assert_eq!((swept.failed, swept.later), (0, 10));
    }
    // By the sweeper, or by the producer's own collector.
    assert_eq!(present(&*engine, &keys_of(&stored)), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_retired_samples_with_long_descriptions_are_freed() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let txn_store = etcd(&endpoints).await;
    let long = "x".repeat(180);
    let tensors: Vec<String> = (0..4000)
        .map(|n| format!(r#"{{"spec":{{"name":"tensor-{n}-{long}","dtype":"uint8","shape":[0]}}}}"#))
        .collect();
    let description = format!(
        r#"{{"v":1,"nonce":5,"chunk_bytes":4096,"encoding":"plain","tensors":[{}]}}"#,
        tensors.join(",")
    );
    let many = 280;
    for n in 1..=many {
        let value = [retired(n, "Aborted", "").as_bytes(), b"\0", description.as_bytes()].concat();
        write(&txn_store, &format!("f/big{n:04}/{n:016x}"), value).await;
    }
    eprintln!("{many} records, {} MiB", (description.len() * 280) >> 20);
    let store = open(&endpoints).await;
    let clock = SystemClock::new();
    let (begun, mut freed) = (clock.now(), 0);
    while freed < 280 {
        assert!(
            clock.now().since(begun) < Duration::from_secs(120),
            "only {freed} freed"
        );
        let swept = store.sweep(WITHIN).await.expect("swept");
        eprintln!("freed {} after {:?}", swept.freed, clock.now().since(begun));
        freed += swept.freed;
    }
    assert_eq!(freed, 280);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_cannot_be_read_stops_neither_sweeps_nor_takes() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let txn_store = etcd(&endpoints).await;
    let store = open(&endpoints).await;
    let stored = put(&store, item("run/1", &[5000], 1)).await;
    // A reason that a later release has is passed over; the others are no records at all.
    let plan = r#"{"v":1,"tensors":[["t",1]]}"#;
    write(&txn_store, &format!("f/a/{:016x}", 1), retired(1, "SomethingNew", plan)).await;
    write(
        &txn_store,
        &format!("f/b/{:016x}", 1),
        r#"{"generation":1,"reason":"Aborted"}"#,
    )
    .await;
    write(&txn_store, "f/no-generation", "{}").await;
    write(&txn_store, &format!("q/trainers/00/{:016x}/zzz", 1), "garbage").await;
    let swept = store.sweep(WITHIN).await.expect("swept");
    eprintln!("{swept:?}");
    let left = txn_store
        .read(&[Read::Key(format!("real/f/a/{:016x}", 1))], WITHIN)
        .await
        .expect("read");
    assert_eq!(left.entries[0].len(), 0, "the one with an unknown reason is freed");
    let lease = one(store.lease_next(&trainers(), 1, WITHIN).await.expect("taken"));
    assert_eq!(lease.reference(), stored.reference);
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[5000], 1);
    ack(&store, &lease).await.expect("acked");
    // The first reads begin at a random shard; a consumer that finds nothing has read them all.
    let none = store.lease_next(&trainers(), 1, Duration::from_secs(1)).await;
    assert_eq!(none.expect("nothing else").len(), 0);
    store.drain(WITHIN).await.expect("freed");
    let listed = store.quarantined(None, 100, WITHIN).await.expect("a list");
    let keys: Vec<&str> = listed.iter().map(|record| record.key.as_str()).collect();
    let bad = format!("real/f/b/{:016x}", 1);
    let ready = format!("real/q/trainers/00/{:016x}/zzz", 1);
    assert_eq!(keys, [bad.as_str(), "real/f/no-generation", ready.as_str()]);
    let bytes = store.quarantined_bytes(&listed[2], WITHIN).await.expect("kept");
    assert_eq!(bytes, b"garbage");
}

/// A shorter form of the proof `poison`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_good_sample_of_a_poisoned_store_is_delivered_and_freed() {
    const GOOD: usize = 300;
    let cluster = start();
    let endpoints = cluster.endpoints();
    let txn_store = etcd(&endpoints).await;
    let (mut expected, mut later) = (Vec::new(), Vec::new());
    for n in 0..30 {
        let name = format!("{}bad-{n}", ["a", "run", "z"][n % 3]);
        let free = format!("f/{name}/{:016x}", 1);
        let (key, value) = match n % 6 {
            0 => (free, b"garbage".to_vec()),
            1 => (
                free,
                retired(1, "Aborted", r#"{"v":1,"tensors":[["t",9000000000]]}"#).into_bytes(),
            ),
            2 => (free, vec![b'x'; 1_000_000]),
            3 => (format!("p/run-{n}"), b"{}".to_vec()),
            4 => (format!("q/trainers/07/{:016x}/{name}", 1), b"{".to_vec()),
            _ => (free, retired(1, "Aborted", r#"{"v":2}"#).into_bytes()),
        };
        write(&txn_store, &key, value).await;
        if n % 6 == 5 { &mut later } else { &mut expected }.push(format!("real/{key}"));
    }
    let store = open(&endpoints).await;
    for batch in (0..GOOD).collect::<Vec<_>>().chunks(50) {
        let items = batch
            .iter()
            .map(|n| item(&format!("run-{n}"), &[4096], *n as u64))
            .collect();
        for stored in store.put_many(items, WITHIN).await {
            stored.expect("put");
        }
    }
    let mut delivered = 0;
    while delivered < GOOD {
        let leases = store.lease_next(&trainers(), 50, WITHIN).await.expect("taken");
        assert!(!leases.is_empty(), "only {delivered} were delivered");
        for lease in &leases {
            let number = lease.reference().sample.to_string().trim_start_matches("run-").parse();
            let tensors = get_all(&store, lease).await.expect("tensors");
            check_tensors(&tensors, &[4096], number.expect("a good one"));
        }
        delivered += leases.len();
        for answer in store.ack(&leases, WITHIN).await {
            answer.expect("acked");
        }
    }
    let none = store.lease_next(&trainers(), 1, Duration::from_secs(1)).await;
    assert_eq!(none.expect("nothing else").len(), 0);
    store.drain(WITHIN).await.expect("freed");
    let swept = store.sweep(WITHIN).await.expect("swept");
    assert_eq!((swept.failed, swept.later), (0, later.len()), "{swept:?}");
    let engine = connect(&endpoints);
    assert_eq!(block_in_place(|| engine.usage(WITHIN)).expect("usage").objects, 0);
    let listed = store.quarantined(None, 100, WITHIN).await.expect("a list");
    let mut listed: Vec<String> = listed.into_iter().map(|record| record.key).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    for key in later {
        let snapshot = txn_store.read(&[Read::Key(key.clone())], WITHIN).await.expect("read");
        assert_eq!(snapshot.entries[0].len(), 1, "{key} is left to a later release");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_does_not_stop_the_clock() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let txn_store = etcd(&endpoints).await;
    let ticking = FeatureConfig {
        // More often than the clock ticks, so that it is its tick that is seen.
        sweep_every: Some(Duration::from_millis(250)),
        ..config()
    };
    let tick = Duration::from_secs(1);
    // A second store ticks beside it on an engine that does not hang. On a machine that is busy with other things both
    // tick more slowly; only a clock that waits for the master ticks more slowly than the other.
    let beside = FeatureConfig {
        store: StoreId::new("beside").expect("a name"),
        ..ticking.clone()
    };
    let (this, other) = (ticking.store.clone(), beside.store.clone());
    let memory = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new()));
    let _beside = open_over(&endpoints, memory.connect(), beside, tick).await;
    let store = open_as(&endpoints, ticking, tick).await;
    let engine = connect(&endpoints);
    let mut stored = Vec::new();
    for n in 0..3 {
        stored.push(put(&store, item(&format!("run/{n}"), &[5000], n)).await);
    }
    block_in_place(|| cluster.master(0).stop()).expect("stopped");
    let samples: Vec<SampleRef> = stored.iter().map(|stored| stored.reference.clone()).collect();
    for retired in store.retire(&samples, WITHIN).await {
        retired.expect("retired");
    }
    let before = (tick_of(&txn_store, &this).await, tick_of(&txn_store, &other).await);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let ticks = tick_of(&txn_store, &this).await - before.0;
    let beside = tick_of(&txn_store, &other).await - before.1;
    block_in_place(|| cluster.master(0).resume()).expect("goes on");
    eprintln!("{ticks} ticks in 20 s, {beside} of the clock beside it");
    assert!(
        beside >= 5 && ticks * 5 >= beside * 4,
        "{ticks} ticks in 20 s, {beside} of the clock beside it"
    );
    store.drain(3 * WITHIN).await.expect("removed once the master goes on");
    for stored in &stored {
        assert_eq!(present(&*engine, &keys_of(stored)), 0);
    }
}
