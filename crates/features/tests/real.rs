//! The feature store on a real master, a separate holder process and a real etcd.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects"
)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::*;
use holdfast_core::{Clock, Digest, ErrorKind, ObjectKey, SystemClock, SystemRng};
use holdfast_engine::{Engine, EngineExt, Presence, PutOptions, PutOutcome};
use holdfast_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use holdfast_features::{AdoptedTensor, Announcement, FeatureConfig, FeatureStore, Stored, Wanted};
use holdfast_index::{IndexConfig, KvIndex};
use holdfast_index_etcd::{EtcdConfig, EtcdKv};
use holdfast_testkit::{Cluster, Endpoints};
use tokio::task::block_in_place;

const MIB: usize = 1 << 20;
/// Several chunks, less than a chunk, nothing.
const LENS: [usize; 4] = [9 * MIB + 7, 3 * MIB, 1000, 0];

fn start() -> Cluster {
    let builder = Cluster::builder().p2p_metadata(true).segment_mib(256).etcd_nodes(1);
    block_in_place(|| builder.start()).expect("a cluster")
}

fn connect(endpoints: &Endpoints) -> Arc<dyn Engine> {
    let mut environment: BTreeMap<_, _> = endpoints.client_env.iter().cloned().collect();
    environment.insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
    let config = MooncakeConfig {
        master: endpoints.master.clone(),
        metadata: endpoints.metadata.clone(),
        admin: endpoints.admin.clone(),
        environment,
        ..MooncakeConfig::default()
    };
    Arc::new(block_in_place(|| MooncakeEngine::connect(config)).expect("a client"))
}

fn config() -> FeatureConfig {
    FeatureConfig {
        chunk_bytes: 4 << 20,
        sweep_every: None,
        tick: Duration::from_millis(200),
        lease_ticks: 300,
        pool_bytes: 128 << 20,
        ..FeatureConfig::new("real".parse().expect("a name"))
    }
}

async fn open_on(endpoints: &Endpoints, engine: Arc<dyn Engine>) -> FeatureStore {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let kv = EtcdKv::open(EtcdConfig::new(endpoints.etcd.clone()), Arc::clone(&clock), WITHIN)
        .await
        .expect("etcd");
    let settings = IndexConfig {
        session_ttl: Duration::from_secs(3),
        tick: config().tick,
        ..IndexConfig::default()
    };
    let (store, rng) = (config().store, Arc::new(SystemRng));
    let index = KvIndex::new(
        Arc::new(kv),
        &store,
        settings,
        Arc::clone(&clock),
        Arc::clone(&rng) as _,
    );
    FeatureStore::open(engine, Arc::new(index), config(), clock, rng)
        .await
        .expect("a store")
}

/// A process of its own, as far as engine and index can tell.
async fn open(endpoints: &Endpoints) -> FeatureStore {
    open_on(endpoints, connect(endpoints)).await
}

fn keys_of(stored: &Stored) -> Vec<ObjectKey> {
    let chunk = stored.description.chunk_bytes();
    let mut keys = Vec::new();
    for tensor in stored.description.tensors() {
        let (bytes, digests) = (tensor.spec.bytes(), tensor.digests.len() as u64);
        assert_eq!(bytes.div_ceil(chunk), digests, "a checksum for each chunk");
    }
    let reference = &stored.reference;
    let nonce = serde_json::to_value(&*stored.description).expect("JSON")["nonce"]
        .as_u64()
        .expect("a nonce");
    for tensor in stored.description.tensors() {
        let whole = holdfast_core::SampleKey {
            store: config().store,
            sample: reference.sample.clone(),
            generation: reference.generation,
            nonce: holdfast_core::Nonce::from_u64(nonce),
            tensor: tensor.spec.name().clone(),
        }
        .to_object_key();
        match tensor.digests.len() {
            1 => keys.push(whole),
            n => keys.extend((0..n).map(|n| ObjectKey::new(format!("{whole}/{n}")).expect("a key"))),
        }
    }
    keys
}

fn present(engine: &dyn Engine, keys: &[ObjectKey]) -> usize {
    let found = block_in_place(|| engine.probe(keys, WITHIN)).expect("a probe");
    found
        .iter()
        .filter(|presence| matches!(presence, Presence::Present { .. }))
        .count()
}

async fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let begun = clock.now();
    while !ready() {
        assert!(clock.now().since(begun) < WITHIN, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn put_get_some_get_all_ack_and_the_bytes_are_gone() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let engine = connect(&endpoints);
    let (producer, consumer) = (open(&endpoints).await, open_on(&endpoints, engine.clone()).await);
    let stored = put(&producer, item("run/1", &LENS, 1)).await;
    let keys = keys_of(&stored);
    assert_eq!((keys.len(), present(&*engine, &keys)), (3 + 1 + 1, 5));

    let lease = one(consumer.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
    let some = consumer
        .get(&lease, Wanted::Names(vec![name("t1")]), WITHIN)
        .await
        .expect("one tensor");
    assert!(one(some).to_vec() == pattern(3 * MIB, 2));
    let tensors = get_all(&consumer, &lease).await.expect("tensors");
    check_tensors(&tensors, &LENS, 1);
    drop(tensors);

    let clock = SystemClock::new();
    ack(&consumer, &lease).await.expect("acked");
    let begun = clock.now();
    consumer.drain(WITHIN).await.expect("freed");
    eprintln!("freed {:?} after the ack", clock.now().since(begun));
    assert_eq!(present(&*engine, &keys), 0);
    let mut used = u64::MAX;
    until("the engine counts the bytes as free", || {
        used = block_in_place(|| engine.usage(WITHIN)).expect("usage").dram_used;
        used == 0
    })
    .await;
    assert_eq!(
        engine.registrations().bytes,
        consumer.pool().usage().taken,
        "nothing but the pool is registered"
    );
    consumer.close(WITHIN).await.expect("closed");
    producer.close(WITHIN).await.expect("closed");
    assert_eq!(registered_at_last(&producer).await, 0);
}

/// How much memory stays registered: what was lent for a put is forgotten soon after it.
async fn registered_at_last(store: &FeatureStore) -> usize {
    for _ in 0..100 {
        if store.health(WITHIN).await.registrations.regions == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    store.health(WITHIN).await.registrations.regions
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_put_takes_the_place_of_the_first_under_its_reader() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let engine = connect(&endpoints);
    let (producer, consumer) = (open(&endpoints).await, open_on(&endpoints, engine.clone()).await);
    let first = put(&producer, item("run/1", &LENS, 1)).await;
    let lease = take(&consumer, &first).await;
    check_tensors(&get_all(&consumer, &lease).await.expect("tensors"), &LENS, 1);
    let second = put(&producer, item("run/1", &LENS, 2)).await;
    let error = get_all(&consumer, &lease).await.expect_err("replaced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    producer.drain(WITHIN).await.expect("nothing may be freed yet");
    assert_eq!(present(&*engine, &keys_of(&first)), 5, "its reader has not let go");
    drop(lease);
    consumer.drain(WITHIN).await.expect("freed");
    assert_eq!(
        (
            present(&*engine, &keys_of(&first)),
            present(&*engine, &keys_of(&second))
        ),
        (0, 5)
    );
    let lease = read(&consumer, &second.reference).await;
    check_tensors(&get_all(&consumer, &lease).await.expect("tensors"), &LENS, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_by_another_process_makes_gets_fail() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let engine = connect(&endpoints);
    let (producer, consumer) = (open_on(&endpoints, engine.clone()).await, open(&endpoints).await);
    let operator = open(&endpoints).await;
    let stored = put(&producer, item("run/1", &LENS, 1)).await;
    let lease = take(&consumer, &stored).await;
    one(operator.abort(&[id("run/1")], WITHIN).await).expect("aborted");
    let error = get_all(&consumer, &lease).await.expect_err("aborted");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    one(consumer.release(&[lease], WITHIN).await).expect("released");
    consumer.drain(WITHIN).await.expect("freed");
    assert_eq!(present(&*engine, &keys_of(&stored)), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_producer_wrote_that_crashed_vanishes_by_a_sweep() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let watcher = connect(&endpoints);
    let sweeper = open_on(&endpoints, watcher.clone()).await;
    let held_up = HeldUp::new(connect(&endpoints));
    held_up.set(Mode::HangAfterPut);
    // A runtime of its own stands for the process: nothing of it runs on, and nothing says goodbye.
    let process = std::thread::spawn({
        let (endpoints, held_up) = (endpoints.clone(), held_up.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime");
            let store = runtime.block_on(open_on(&endpoints, held_up));
            let writing = runtime.spawn(async move { store.put(item("run/1", &LENS, 1), WITHIN).await });
            (runtime, writing)
        }
    });
    let (runtime, writing) = block_in_place(|| process.join()).expect("the process");
    let written = || block_in_place(|| watcher.usage(WITHIN)).expect("usage").objects;
    until("the objects are written", || written() == 5).await;
    runtime.shutdown_background();
    drop(writing);
    assert!(
        sweeper.find(&[id("run/1")], WITHIN).await.expect("found")[0].is_none(),
        "never committed"
    );

    let clock = SystemClock::new();
    let begun = clock.now();
    loop {
        let swept = sweeper.sweep(WITHIN).await.expect("swept");
        if swept.freed == 1 {
            break;
        }
        assert!(clock.now().since(begun) < WITHIN, "its session has ended by now");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    until("the objects are gone", || written() == 0).await;
    eprintln!(
        "a crashed producer's objects were gone after {:?}",
        clock.now().since(begun)
    );
    block_in_place(|| held_up.let_go());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_serving_engines_objects_are_adopted() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let serving = connect(&endpoints);
    let (store, consumer) = (open(&endpoints).await, open(&endpoints).await);
    let bytes = pattern(5 * MIB, 9);
    let key = ObjectKey::new("serving:layer-3").expect("a key");
    let announcement = Announcement {
        sample: id("run/1"),
        keys: vec![key.clone()],
        bytes: bytes.len() as u64,
    };
    let announced = store.announce(announcement, WITHIN).await.expect("announced");
    let outcome = block_in_place(|| {
        let region = serving.allocate(bytes.len(), WITHIN)?;
        region.whole().write(0, &bytes)?;
        serving.put_one(&key, &region.whole(), &PutOptions::default(), WITHIN)
    });
    assert!(matches!(outcome, Ok(PutOutcome::Stored)), "{outcome:?}");
    let tensor = AdoptedTensor {
        spec: spec("hidden", bytes.len()),
        key: key.clone(),
        digest: Some(Digest::of(&bytes)),
    };
    store
        .adopt(&announced, vec![tensor], publication(), WITHIN)
        .await
        .expect("adopted");
    let lease = one(consumer.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
    assert!(one(get_all(&consumer, &lease).await.expect("tensors")).to_vec() == bytes);
    ack(&consumer, &lease).await.expect("acked");
    consumer.drain(WITHIN).await.expect("freed");
    assert_eq!(present(&*serving, &[key]), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_forgot_everything_means_lost_and_the_store_goes_on() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let store = open(&endpoints).await;
    let stored = put(&store, item("run/1", &LENS, 1)).await;
    let lease = take(&store, &stored).await;
    block_in_place(|| cluster.master(0).kill()).expect("killed");
    let error = store
        .get(&lease, Wanted::All, Duration::from_secs(3))
        .await
        .expect_err("nobody to ask");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    block_in_place(|| cluster.master(0).restart()).expect("restarted");
    let clock = SystemClock::new();
    let begun = clock.now();
    loop {
        let error = get_all(&store, &lease).await.expect_err("gone");
        if error.fact("reason") == Some("lost") {
            break;
        }
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(clock.now().since(begun) < 3 * WITHIN, "{error}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(store.find(&[id("run/1")], WITHIN).await.expect("found")[0].is_none());
    let mut again = None;
    while again.is_none() {
        assert!(clock.now().since(begun) < 3 * WITHIN, "the cluster serves again");
        again = store.put(item("run/1", &LENS, 2), WITHIN).await.ok();
    }
    let lease = take(&store, &again.expect("put")).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &LENS, 2);
}
