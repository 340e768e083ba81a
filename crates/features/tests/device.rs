//! Tensors on a device: in both directions, plain and sealed, with copies that are late, fail, or have nobody who waits.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::device::{FakeBytes, FakeDevice};
use common::held_up::{HeldUp, Mode};
use common::raw::keys;
use common::*;
use tensorhold_core::{Clock, ErrorKind, SystemClock};
use tensorhold_features::{
    Destination, DeviceBytes, Direction, FeatureConfig, FeatureStore, Lease, PutItem, Source, TensorIn, Wanted,
};

const LENS: [usize; 3] = [100, 10_000, 70_000];

/// Tensors on the device, except for the first.
fn on_device(device: &FakeDevice, sample: &str, lens: &[usize], seed: u64) -> PutItem {
    let mut item = item(sample, lens, seed);
    for (n, tensor) in item.tensors.iter_mut().enumerate().skip(1) {
        let bytes = device.bytes(pattern(lens[n], seed + n as u64));
        *tensor = TensorIn {
            spec: tensor.spec.clone(),
            bytes: Source::Device(bytes),
        };
    }
    item
}

/// Gets all tensors of [`LENS`] to the device.
async fn get_to_device(
    device: &FakeDevice,
    store: &FeatureStore,
    lease: &Lease,
    within: Duration,
) -> tensorhold_core::Result<Vec<Arc<FakeBytes>>> {
    let memory: Vec<Arc<FakeBytes>> = LENS.iter().map(|len| device.bytes(vec![0; *len])).collect();
    let into = memory.iter().enumerate().map(|(n, bytes)| {
        let bytes: Arc<dyn DeviceBytes> = Arc::<FakeBytes>::clone(bytes);
        (name(&format!("t{n}")), Destination::Device(bytes))
    });
    store.get(lease, Wanted::Into(into.collect()), within).await?;
    Ok(memory)
}

fn configs(world: &World) -> Vec<FeatureConfig> {
    // Stages that a large tensor does not fit into.
    let plain = FeatureConfig {
        stage_bytes: 32 << 10,
        ..world.config()
    };
    let unchecked = FeatureConfig {
        checksum: false,
        ..plain.clone()
    };
    let sealed = FeatureConfig {
        keyring: Some(keys(&["k1"])),
        ..plain.clone()
    };
    vec![plain, unchecked, sealed]
}

async fn open(world: &World, config: FeatureConfig) -> FeatureStore {
    world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await
}

/// Everything is back: stages, and what the samples took.
async fn close_empty(world: &World, store: FeatureStore) {
    store.close(WITHIN).await.expect("closed");
    world.assert_empty();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_from_device_to_device_unchanged() {
    let device = FakeDevice::new();
    for config in configs(&World::new()) {
        let world = World::new();
        let store = open(&world, config).await;
        let before = device.stage_bytes();
        let stored = put(&store, on_device(&device, "run/1", &LENS, 1)).await;
        let lease = take(&store, &stored).await;
        check_tensors(&get_all(&store, &lease).await.expect("on the host"), &LENS, 1);
        let got = get_to_device(&device, &store, &lease, WITHIN)
            .await
            .expect("on the device");
        for (n, bytes) in got.iter().enumerate() {
            assert!(
                bytes.to_vec() == pattern(LENS[n], 1 + n as u64),
                "tensor {n} has other bytes"
            );
        }
        assert!(device.stage_bytes() > before, "the device says where stages are");
        assert!(
            device.stage_bytes() - before <= 3 * (32 << 10),
            "no more than the stages of puts and gets"
        );
        ack(&store, &lease).await.expect("acknowledged");
        close_empty(&world, store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sample_on_a_device_is_read_like_any_other() {
    let (device, world) = (FakeDevice::new(), World::new());
    let (producer, consumer) = (world.open().await, world.open().await);
    let stored = put(&producer, on_device(&device, "run/1", &LENS, 1)).await;
    assert!(
        stored
            .description
            .tensors()
            .iter()
            .all(|tensor| !tensor.digests.is_empty())
    );
    let host = put(&producer, item("run/2", &LENS, 1)).await;
    let digests = |stored: &tensorhold_features::Stored| -> Vec<_> {
        let tensors = stored.description.tensors().iter();
        tensors.flat_map(|tensor| tensor.digests.clone()).collect()
    };
    assert_eq!(digests(&stored), digests(&host), "the checksums are those of the bytes");
    let lease = take(&consumer, &stored).await;
    check_tensors(&get_all(&consumer, &lease).await.expect("tensors"), &LENS, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_fails_its_call_and_its_stage_waits_for_it() {
    for config in configs(&World::new()) {
        let (device, world) = (FakeDevice::new(), World::new());
        let store = open(&world, config).await;
        let stored = put(&store, on_device(&device, "run/0", &LENS, 1)).await;
        let lease = take(&store, &stored).await;
        device.hold(true);
        let error = store
            .put(on_device(&device, "run/1", &LENS, 5), SOON)
            .await
            .expect_err("late");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("the device"), "{error}");
        let error = get_to_device(&device, &store, &lease, SOON).await.expect_err("late");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        device.hold(false);
        assert!(store.find(&[id("run/1")], WITHIN).await.expect("an answer")[0].is_none());
        // The stages come back: there is room for only a few of them.
        for n in 2..20 {
            let stored = put(&store, on_device(&device, &format!("run/{n}"), &LENS, n)).await;
            let lease = take(&store, &stored).await;
            let got = get_to_device(&device, &store, &lease, WITHIN)
                .await
                .expect("on the device");
            assert!(got[2].to_vec() == pattern(LENS[2], n + 2), "other bytes");
            ack(&store, &lease).await.expect("acknowledged");
        }
        ack(&store, &lease).await.expect("acknowledged");
        close_empty(&world, store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_fails_costs_its_own_samples_only() {
    for config in configs(&World::new()) {
        let (good, bad, world) = (FakeDevice::new(), FakeDevice::new(), World::new());
        // Small enough to share a stage.
        let lens = [100, 1000];
        let store = open(&world, config).await;
        bad.lose();
        let items = vec![
            on_device(&good, "run/0", &lens, 1),
            on_device(&bad, "run/1", &lens, 2),
            item("run/2", &lens, 3),
        ];
        let mut outcomes = store.put_many(items, WITHIN).await.into_iter();
        let first = outcomes.next().expect("an outcome").expect("stored");
        let error = outcomes.next().expect("an outcome").expect_err("its device is lost");
        assert!(error.to_string().contains("the device is lost"), "{error}");
        let third = outcomes.next().expect("an outcome").expect("stored");
        for (stored, seed) in [(first, 1), (third, 3)] {
            let lease = take(&store, &stored).await;
            check_tensors(&get_all(&store, &lease).await.expect("tensors"), &lens, seed);
            let into = bad.bytes(vec![0; lens[1]]);
            let wanted = Wanted::Into(vec![(name("t1"), Destination::Device(into))]);
            let error = store.get(&lease, wanted, WITHIN).await.expect_err("lost");
            assert!(error.to_string().contains("the device is lost"), "{error}");
            ack(&store, &lease).await.expect("acknowledged");
        }
        close_empty(&world, store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_a_late_copy_may_touch_is_not_given_out() {
    let (late, good, world) = (FakeDevice::new(), FakeDevice::new(), World::new());
    let config = FeatureConfig {
        chunk_bytes: 16 << 10,
        stage_bytes: 32 << 10,
        ..world.config()
    };
    let store = open(&world, config).await;
    late.hold(true);
    for n in 0..2 {
        let error = store.put(on_device(&late, &format!("run/{n}"), &LENS, 1), SOON).await;
        assert_eq!(error.expect_err("late").kind(), ErrorKind::Unavailable);
    }
    let error = store
        .put(on_device(&good, "run/2", &LENS, 1), SOON)
        .await
        .expect_err("no stage is free");
    assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    late.hold(false);
    put(&store, on_device(&good, "run/2", &LENS, 1)).await;
}

/// An operation whose caller has left runs to its end; another on the same memory comes after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_whose_caller_left_does_not_write_over_the_next_one() {
    let (device, world) = (FakeDevice::new(), World::new());
    let engine = HeldUp::new(world.cluster.connect());
    let store = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    let lens = [1, 10 * 4096];
    let mut leases = Vec::new();
    for n in 0..2_u64 {
        let stored = put(&store, item(&format!("run/{n}"), &lens, 10 * n)).await;
        leases.push(take(&store, &stored).await);
    }
    let memory = device.bytes(vec![0; lens[1]]);
    let wanted = || {
        let bytes: Arc<dyn DeviceBytes> = Arc::<FakeBytes>::clone(&memory);
        Wanted::Into(vec![(name("t1"), Destination::Device(bytes))])
    };
    engine.set(Mode::HangBeforeGet);
    let first = store.get(&leases[0], wanted(), WITHIN);
    assert!(
        tokio::time::timeout(SOON, first).await.is_err(),
        "the engine holds it up"
    );
    engine.set(Mode::Pass);
    let second = tokio::spawn({
        let (store, lease, wanted) = (store.clone(), leases[1].clone(), wanted());
        async move { store.get(&lease, wanted, WITHIN).await.map(|_| ()) }
    });
    // Time enough to go first, if nothing kept it from that.
    tokio::time::sleep(SOON).await;
    engine.let_go();
    second.await.expect("no panic").expect("on the device");
    let clock = SystemClock::new();
    let begun = clock.now();
    while device.log().len() < 20 {
        assert!(clock.now().since(begun) < WITHIN, "{} copies", device.log().len());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(memory.to_vec() == pattern(lens[1], 11), "bytes of the get before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_device_takes_no_slot_of_the_engine() {
    let (device, world) = (FakeDevice::new(), World::new());
    let config = FeatureConfig {
        max_in_flight: 2,
        ..world.config()
    };
    let store = open(&world, config).await;
    device.hold(true);
    let mut waiting = Vec::new();
    for n in 0..4_u64 {
        let (store, item) = (store.clone(), on_device(&device, &format!("run/{n}"), &LENS, n));
        waiting.push(tokio::spawn(async move { store.put(item, WITHIN).await.map(|_| ()) }));
    }
    // Twenty-one objects each, of as many puts as there are slots.
    let clock = SystemClock::new();
    let begun = clock.now();
    while device.queued() < 42 {
        assert!(
            clock.now().since(begun) < WITHIN,
            "{} copies have begun",
            device.queued()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stored = put(&store, item("run/host", &LENS, 9)).await;
    let lease = take(&store, &stored).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &LENS, 9);
    device.hold(false);
    for put in waiting {
        put.await.expect("no panic").expect("stored");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_leaves_during_a_copy_leaves_nothing() {
    let (device, world) = (FakeDevice::new(), World::new());
    let store = world.open().await;
    device.hold(true);
    let put = store.put(on_device(&device, "run/1", &LENS, 1), WITHIN);
    assert!(tokio::time::timeout(SOON, put).await.is_err(), "the copy is held");
    device.hold(false);
    close_empty(&world, store).await;
}

/// While one object is sent, the next is copied; while one is copied to the device, the next arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_and_transfers_overlap() {
    const STEP: Duration = Duration::from_millis(20);
    let (device, world) = (FakeDevice::new(), World::new());
    let engine = HeldUp::new(world.cluster.connect());
    let config = FeatureConfig {
        stage_bytes: 8 << 10,
        ..world.config()
    };
    let store = world.open_on(engine.clone(), world.txn_store.client(), config).await;
    device.set_copy_time(STEP);
    engine.set(Mode::Slow(STEP));
    let lens = [1, 10 * 4096];
    let clock = SystemClock::new();
    let begun = clock.now();
    let stored = put(&store, on_device(&device, "run/1", &lens, 1)).await;
    let took = clock.now().since(begun);
    assert_eq!(device.log().len(), 10);
    let overlapping = |direction: Direction, calls: &[(tensorhold_core::Timestamp, tensorhold_core::Timestamp)]| {
        let copies = device
            .log()
            .into_iter()
            .filter(|copy| copy.0 == direction)
            .collect::<Vec<_>>();
        let meets = |from, to| copies.iter().any(|(_, begun, ended)| *begun < to && from < *ended);
        calls.iter().filter(|(from, to)| meets(*from, *to)).count()
    };
    let puts = engine.put_times();
    assert!(
        overlapping(Direction::ToHost, &puts) >= 8,
        "{puts:?} beside {:?}",
        device.log()
    );
    assert!(
        took < STEP * 16,
        "ten copies and ten transfers, one after the other, take 20 steps: {took:?}"
    );
    let lease = take(&store, &stored).await;
    let memory = device.bytes(vec![0; lens[1]]);
    let bytes: Arc<dyn DeviceBytes> = Arc::<FakeBytes>::clone(&memory);
    let into = Wanted::Into(vec![(name("t1"), Destination::Device(bytes))]);
    store.get(&lease, into, WITHIN).await.expect("on the device");
    assert!(memory.to_vec() == pattern(lens[1], 2), "other bytes");
    let gets = engine.get_times();
    assert!(
        overlapping(Direction::ToDevice, &gets) >= 8,
        "{gets:?} beside {:?}",
        device.log()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_fits_no_stage_is_refused_before_anything_moves() {
    let (device, world) = (FakeDevice::new(), World::new());
    let config = FeatureConfig {
        chunk_bytes: 64 << 10,
        stage_bytes: 32 << 10,
        ..world.config()
    };
    let store = open(&world, config).await;
    let stored = put(&store, item("run/0", &LENS, 1)).await;
    let lease = take(&store, &stored).await;
    let put = store
        .put(on_device(&device, "run/1", &LENS, 1), WITHIN)
        .await
        .map(|_| ());
    let get = get_to_device(&device, &store, &lease, WITHIN).await.map(|_| ());
    for error in [put.expect_err("too large"), get.expect_err("too large")] {
        assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
        assert!(error.to_string().contains("raise stage_bytes"), "{error}");
    }
    ack(&store, &lease).await.expect("acknowledged");
    close_empty(&world, store).await;
}
