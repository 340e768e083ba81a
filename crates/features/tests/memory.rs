//! Memory of gets and puts: memory that a late call may still touch is busy, and no operation waits for ever for memory
//! that fits.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::*;
use tensorhold_core::{Clock, ErrorKind, Result};
use tensorhold_engine::{FaultEngine, FaultPlan, MemoryConfig, Region};
use tensorhold_features::{
    Destination, FeatureConfig, FeatureStore, PutItem, SampleRef, Source, Stored, TensorIn, TensorOut, Wanted,
};

const MIB: usize = 1 << 20;

async fn held_up(world: &World) -> (Arc<HeldUp>, FeatureStore) {
    let engine = HeldUp::new(world.cluster.connect());
    let store = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    (engine, store)
}

async fn region(store: &FeatureStore, len: usize) -> Region {
    store.register(lent(vec![0; len]), WITHIN).await.expect("registered")
}

async fn get_into(store: &FeatureStore, stored: &Stored, into: &Region, within: Duration) -> Result<Vec<TensorOut>> {
    let lease = read(store, &stored.reference).await;
    let spans = Destination::Spans(vec![into.whole()]);
    store.get(&lease, Wanted::Into(vec![(name("t0"), spans)]), within).await
}

fn from_region(sample: &str, from: &Region) -> PutItem {
    PutItem {
        sample: id(sample),
        tensors: vec![TensorIn::new(spec("t0", from.len()), Source::Spans(vec![from.whole()]))],
        publication: publication(),
    }
}

/// Memory that a late get may still write to.
async fn busy_region(world: &World) -> (Arc<HeldUp>, FeatureStore, Region) {
    let (engine, store) = held_up(world).await;
    let first = put(&store, item("run/1", &[10_000], 1)).await;
    let mine = region(&store, 10_000).await;
    engine.set(Mode::LateGet);
    get_into(&store, &first, &mine, WITHIN).await.expect_err("late");
    engine.set(Mode::Pass);
    (engine, store, mine)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_get_never_overwrites_a_later_get_into_the_same_memory() {
    let world = World::new();
    let (engine, store, mine) = busy_region(&world).await;
    // Another store of the same process, on an engine of its own that works: memory is memory.
    let other = world.open().await;
    let second = put(&store, item("run/2", &[10_000], 2)).await;

    for store in [&store, &other] {
        let seen = || get_into(store, &second, &mine, SOON);
        let error = seen().await.expect_err("the engine may still write there");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.fact("used_by"), Some("features.get"), "{error}");
        let error = store.put(from_region("run/3", &mine), SOON).await.expect_err("busy");
        assert_eq!(error.fact("used_by"), Some("features.get"), "{error}");
    }
    // A get that has time gets the memory as soon as the engine has let go.
    let waiting = tokio::spawn({
        let (store, second, mine) = (store.clone(), second.clone(), mine.clone());
        async move { get_into(&store, &second, &mine, WITHIN).await }
    });
    tokio::time::sleep(SOON).await;
    assert!(!waiting.is_finished(), "the late call has not ended");
    engine.let_go();
    waiting.await.expect("no panic").expect("its turn");
    assert!(mine.whole().to_vec() == pattern(10_000, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_put_keeps_others_from_writing_to_its_memory_but_not_from_reading_it() {
    let world = World::new();
    let (engine, store) = held_up(&world).await;
    let stored = put(&store, item("run/1", &[10_000], 1)).await;
    let mine = region(&store, 10_000).await;
    mine.whole().write(0, &pattern(10_000, 7)).expect("fits");
    engine.set(Mode::LatePut);
    store.put(from_region("run/2", &mine), WITHIN).await.expect_err("late");
    engine.set(Mode::Pass);
    put(&store, from_region("run/3", &mine)).await;
    let error = get_into(&store, &stored, &mine, SOON).await.expect_err("it is read");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(
        (error.fact("used_by"), error.fact("which")),
        (Some("features.put"), Some("reads"))
    );
    engine.let_go();
    get_into(&store, &stored, &mine, WITHIN).await.expect("free");
    assert!(mine.whole().to_vec() == pattern(10_000, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_whose_memory_stays_busy_fails_alone_in_its_batch() {
    let world = World::new();
    let (engine, store, mine) = busy_region(&world).await;
    let batch = vec![
        item("run/a", &[5000], 2),
        from_region("run/busy", &mine),
        item("run/b", &[7], 3),
    ];
    let mut results = store.put_many(batch, Duration::from_secs(2)).await;
    let error = results.remove(1).expect_err("the engine may still write there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.fact("used_by"), Some("features.get"), "{error}");
    for (stored, (lens, seed)) in results.into_iter().zip([(5000, 2), (7, 3)]) {
        let lease = read(&store, &stored.expect("its memory is free").reference).await;
        check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[lens], seed);
    }
    engine.let_go();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_whose_memory_is_busy_holds_up_no_other_of_its_batch() {
    let world = World::new();
    let (engine, store, mine) = busy_region(&world).await;
    let putting = tokio::spawn({
        let (store, busy) = (store.clone(), from_region("run/busy", &mine));
        let batch = vec![item("run/a", &[5000], 2), busy, item("run/b", &[7], 3)];
        async move { store.put_many(batch, 2 * WITHIN).await }
    });
    let mut leases = Vec::new();
    // The first, and the two whose memory is free.
    while leases.len() < 3 {
        let more = store.lease_next(&trainers(), 4, WITHIN).await.expect("an answer");
        assert!(!more.is_empty(), "the others are put meanwhile");
        leases.extend(more);
    }
    assert!(!putting.is_finished(), "the late call has not ended");
    engine.let_go();
    let results = putting.await.expect("no panic");
    assert_eq!(results.len(), 3);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let busy = results[1].as_ref().expect("put");
    let lease = read(&store, &busy.reference).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[10_000], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_of_a_batch_that_waits_for_its_memory_can_be_aborted() {
    let world = World::new();
    let (engine, store, mine) = busy_region(&world).await;
    let putting = tokio::spawn({
        let (store, busy) = (store.clone(), from_region("run/busy", &mine));
        let batch = vec![item("run/a", &[5000], 2), busy];
        async move { store.put_many(batch, 2 * WITHIN).await }
    });
    while store.health(WITHIN).await.operations == 0 {
        tokio::task::yield_now().await;
    }
    one(store.abort(&[id("run/busy")], WITHIN).await).expect("it is seen");
    let results = tokio::time::timeout(WITHIN, putting).await.expect("its wait has ended");
    let kinds: Vec<_> = results
        .expect("no panic")
        .into_iter()
        .map(|result| result.err())
        .collect();
    assert!(kinds[0].is_none(), "{kinds:?}");
    assert_eq!(
        kinds[1].as_ref().map(|error| error.kind()),
        Some(ErrorKind::Fenced),
        "{kinds:?}"
    );
    engine.let_go();
}

#[tokio::test]
async fn two_tensors_cannot_be_got_into_the_same_memory() {
    let world = World::new();
    let store = world.open().await;
    let stored = put(&store, item("run/1", &[5000, 5000], 1)).await;
    let mine = region(&store, 8000).await;
    let lease = read(&store, &stored.reference).await;
    let part = |from: usize| Destination::Spans(vec![mine.span(from..from + 5000).expect("inside")]);
    let into = vec![(name("t0"), part(0)), (name("t1"), part(3000))];
    let error = store
        .get(&lease, Wanted::Into(into), WITHIN)
        .await
        .expect_err("overlap");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// Gets of all these samples at once.
async fn get_at_once(store: &FeatureStore, refs: &[SampleRef], within: Duration) -> Vec<Result<Vec<TensorOut>>> {
    let gets: Vec<_> = refs
        .iter()
        .map(|reference| {
            let (store, reference) = (store.clone(), reference.clone());
            tokio::spawn(async move {
                let glimpse = store.find_live(&reference.sample, None, within).await?;
                // Used and dropped, as a consumer would.
                store.get_unleased(glimpse, Wanted::All, within).await
            })
        })
        .collect();
    let mut results = Vec::new();
    for get in gets {
        results.push(get.await.expect("no panic"));
    }
    results
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gets_that_fit_one_by_one_never_wait_for_each_other() {
    let world = World::new();
    let config = FeatureConfig {
        pool_bytes: 4 * MIB as u64,
        ..world.config()
    };
    let plan = FaultPlan::new(14).with_delay(200, Duration::from_millis(5));
    let engine = FaultEngine::new(world.cluster.connect(), plan, world.clock.clone());
    let store = world.open_on(Arc::new(engine), world.txn_store.client(), config).await;
    let lens = [MIB / 2; 4];
    let mut refs = Vec::new();
    for n in 0..8 {
        refs.push(put(&store, item(&format!("run/{n}"), &lens, n)).await.reference);
    }
    for round in 0..10 {
        let within = Duration::from_secs(15);
        let gets: Vec<_> = refs
            .iter()
            .enumerate()
            .map(|(n, reference)| {
                let (store, reference) = (store.clone(), reference.clone());
                tokio::spawn(async move {
                    let glimpse = store.find_live(&reference.sample, None, within).await?;
                    let got = store.get_unleased(glimpse, Wanted::All, within).await?;
                    check_tensors(&got, &lens, n as u64);
                    Ok::<(), tensorhold_core::Error>(())
                })
            })
            .collect();
        for get in gets {
            get.await
                .expect("no panic")
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
    assert_eq!(store.pool().usage().lent, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_get_is_not_starved_by_small_ones() {
    let world = World::new();
    let config = FeatureConfig {
        pool_bytes: 4 * MIB as u64,
        ..world.config()
    };
    let store = world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await;
    let small = put(&store, item("run/small", &[MIB], 1)).await;
    let large = put(&store, item("run/large", &[MIB, MIB], 2)).await;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy: Vec<_> = (0..6)
        .map(|_| {
            let (store, reference, stop) = (store.clone(), small.reference.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut done = 0;
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    let got = get_at_once(&store, std::slice::from_ref(&reference), WITHIN).await;
                    let held = one(got).expect("small");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    drop(held);
                    done += 1;
                }
                done
            })
        })
        .collect();
    let clock = world.clock.clone();
    for _ in 0..20 {
        let begun = clock.now();
        let got = get_at_once(&store, std::slice::from_ref(&large.reference), Duration::from_secs(5)).await;
        check_tensors(&one(got).expect("large"), &[MIB, MIB], 2);
        let took = clock.now().since(begun);
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for task in busy {
        assert!(task.await.expect("no panic") > 0);
    }
}

/// A store whose pool is small for what it gets.
async fn with_a_small_pool(world: &World, pool_bytes: usize) -> FeatureStore {
    let config = FeatureConfig {
        pool_bytes: pool_bytes as u64,
        stage_bytes: MIB as u64,
        ..world.config()
    };
    world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_larger_than_the_pool_comes_back_whole() {
    let world = World::with(MemoryConfig::default());
    let store = with_a_small_pool(&world, MIB).await;
    let lens = [3 * MIB + 5, 0, 100, 2 * MIB];
    let stored = put(&store, item("run/1", &lens, 1)).await;
    let lease = take(&store, &stored).await;
    let tensors = get_all(&store, &lease).await.expect("tensors");
    check_tensors(&tensors, &lens, 1);
    let usage = store.pool().usage();
    assert!(usage.taken <= usage.budget, "{usage:?}");
    // What was got is put again, from where it lies.
    let again = PutItem {
        sample: id("run/2"),
        tensors: tensors
            .iter()
            .map(|tensor| TensorIn {
                spec: tensor.spec.clone(),
                bytes: Source::Spans(tensor.parts.clone()),
            })
            .collect(),
        publication: publication(),
    };
    let stored = put(&store, again).await;
    drop(tensors);
    let lease = take(&store, &stored).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &lens, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_samples_larger_than_the_pool_come_back_together() {
    let world = World::new();
    let store = with_a_small_pool(&world, MIB).await;
    let lens = [3 * MIB];
    let mut refs = Vec::new();
    for n in 0..6 {
        refs.push(put(&store, item(&format!("run/{n}"), &lens, n)).await.reference);
    }
    // All results are kept until the last one is there.
    let got = get_at_once(&store, &refs, Duration::from_secs(10)).await;
    for (n, tensors) in got.into_iter().enumerate() {
        check_tensors(&tensors.expect("tensors"), &lens, n as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn altered_bytes_of_a_sample_larger_than_the_pool_are_corrupt() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let config = FeatureConfig {
        pool_bytes: MIB as u64,
        stage_bytes: MIB as u64,
        ..world.config()
    };
    let store = world.open_on(engine.clone(), world.txn_store.client(), config).await;
    let stored = put(&store, item("run/1", &[3 * MIB], 1)).await;
    let lease = take(&store, &stored).await;
    engine.set(Mode::TornOnce);
    let error = get_all(&store, &lease).await.expect_err("torn");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[3 * MIB], 1);
}

#[tokio::test]
async fn an_object_larger_than_all_stages_comes_back_too() {
    let world = World::new();
    let writer = world
        .open_on(
            world.cluster.connect(),
            world.txn_store.client(),
            FeatureConfig {
                chunk_bytes: 8 * MIB as u64,
                ..world.config()
            },
        )
        .await;
    let lens = [5 * MIB, 100];
    put(&writer, item("run/1", &lens, 1)).await;
    let reader = with_a_small_pool(&world, MIB).await;
    let lease = one(reader.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
    check_tensors(&get_all(&reader, &lease).await.expect("tensors"), &lens, 1);
}
