//! The feature store on a real master, a separate holder process and a real etcd.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects"
)]

mod common;

use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::servers::*;
use common::*;
use tensorhold_core::{Clock, Digest, ErrorKind, ObjectKey, SystemClock};
use tensorhold_engine::{EngineExt, HostMemory, PutOptions, PutOutcome};
use tensorhold_features::{AdoptedTensor, Announcement, FeatureConfig, FeatureStore, PutItem, TensorIn, Wanted};
use tensorhold_testkit::Cluster;
use tokio::task::block_in_place;

/// Gigabytes on a machine that does other things too.
const LONG: Duration = Duration::from_secs(300);

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
async fn a_sample_of_1536_mib_comes_back_through_a_pool_of_256_mib() {
    const BLOCKS: [usize; 3] = [1024, 511, 1];
    let builder = Cluster::builder().p2p_metadata(true).segment_mib(2304).etcd_nodes(1);
    let cluster = block_in_place(|| builder.start()).expect("a cluster");
    let endpoints = cluster.endpoints();
    let engine = connect(&endpoints);
    let sizes = FeatureConfig {
        pool_bytes: 256 * MIB as u64,
        chunk_bytes: 16 * MIB as u64,
        ..config()
    };
    let stage_bytes = sizes.stage_bytes;
    let store = open_as(&endpoints, engine.clone(), sizes).await;
    // A MiB of one pattern over and over, each with its number.
    let mut block = pattern(MIB, 1);
    let mut tensors = Vec::new();
    for (n, blocks) in BLOCKS.into_iter().enumerate() {
        let memory = HostMemory::allocate(blocks * MIB).expect("memory");
        let spec = spec(&format!("t{n}"), blocks * MIB);
        let region = store.register(memory, LONG).await.expect("registered");
        for at in 0..blocks {
            block[..8].copy_from_slice(&(n * 10_000 + at).to_le_bytes());
            region.whole().write(at * MIB, &block).expect("fits");
        }
        tensors.push(TensorIn::new(spec, region.whole()));
    }
    let item = PutItem {
        sample: id("run/large"),
        tensors,
        publication: publication(),
    };
    store.put(item, LONG).await.expect("put");
    let lease = one(store.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
    let got = store.get(&lease, Wanted::All, LONG).await.expect("all of it");
    let mut arrived = vec![0; MIB];
    for (n, (blocks, tensor)) in BLOCKS.into_iter().zip(&got).enumerate() {
        let [part] = &tensor.parts[..] else {
            panic!("one piece: {tensor:?}")
        };
        for at in 0..blocks {
            block[..8].copy_from_slice(&(n * 10_000 + at).to_le_bytes());
            part.read(at * MIB, &mut arrived).expect("inside");
            assert!(arrived == block, "MiB {at} of tensor {n} is another one");
        }
    }
    until("nothing but pool and stages is registered", || {
        engine.registrations().bytes <= 256 * MIB as u64 + stage_bytes
    })
    .await;
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
    let key = ObjectKey::new("real/serving:layer-3").expect("a key");
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
    let tensors = || vec![tensor.clone()];
    let stored = store
        .adopt(&announced, tensors(), publication(), WITHIN)
        .await
        .expect("adopted");
    // Done again, by any process, it is the same sample; another sample cannot have its objects.
    let again = store
        .adopt(&announced, tensors(), publication(), WITHIN)
        .await
        .expect("the same");
    let now = consumer
        .adopt_now(id("run/1"), tensors(), publication(), WITHIN)
        .await
        .expect("the same");
    assert_eq!(
        (&again.reference, &now.reference),
        (&stored.reference, &stored.reference)
    );
    let refused = consumer
        .adopt_now(id("run/2"), tensors(), publication(), WITHIN)
        .await
        .expect_err("owned");
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    consumer.drain(WITHIN).await.expect("nothing to do");
    consumer.sweep(WITHIN).await.expect("swept");
    assert_eq!(present(&*serving, std::slice::from_ref(&key)), 1, "nothing was removed");
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
    until_lost(&store, &lease).await;
    let begun = clock.now();
    assert!(store.find(&[id("run/1")], WITHIN).await.expect("found")[0].is_none());
    let mut again = None;
    while again.is_none() {
        assert!(clock.now().since(begun) < 3 * WITHIN, "the cluster serves again");
        again = store.put(item("run/1", &LENS, 2), WITHIN).await.ok();
    }
    let lease = take(&store, &again.expect("put")).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &LENS, 2);
}
