//! Stores with keys: what lies in the engine tells nothing, and what comes back is what was put, or an error.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::held_up::{HeldUp, Mode};
use common::raw::{keys, keys_of, read_raw, replace_raw, shows};
use common::*;
use tensorhold_core::{ErrorKind, ObjectKey};
use tensorhold_engine::{Engine, MemoryConfig};
use tensorhold_features::seal::Keyring;
use tensorhold_features::{
    AdoptedTensor, Announcement, Destination, FeatureConfig, FeatureStore, PutItem, Source, Stored, TensorIn, Wanted,
};

/// Many objects of one chunk, one of a part of a chunk, nothing, and one byte.
const LENS: [usize; 4] = [30_000, 1000, 0, 1];
/// The first tensor of `LENS` in chunks of 4 KiB.
const FIRST_OBJECTS: usize = 8;

async fn open_with(world: &World, keyring: Option<Keyring>) -> FeatureStore {
    let config = FeatureConfig {
        keyring,
        ..world.config()
    };
    world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await
}

async fn open(world: &World) -> FeatureStore {
    open_with(world, Some(keys(&["k1"]))).await
}

#[tokio::test]
async fn what_one_process_seals_another_opens_and_the_engine_learns_nothing() {
    let world = World::new();
    let raw = world.cluster.connect();
    let (producer, consumer) = (open(&world).await, open(&world).await);
    let stored = put(&producer, item("run/1", &LENS, 1)).await;
    let objects = keys_of(&world, &stored);
    assert_eq!(objects.len(), FIRST_OBJECTS + 2);
    let all: Vec<u8> = objects.iter().flat_map(|key| read_raw(&*raw, key)).collect();
    assert_eq!(all.len(), LENS.iter().sum::<usize>() + (FIRST_OBJECTS + 2) * 16);
    let index: Vec<u8> = world
        .txn_store
        .dump()
        .into_iter()
        .flat_map(|entry| entry.value)
        .collect();
    for (n, len) in LENS.iter().enumerate().filter(|(_, len)| **len > 16) {
        let plain = pattern(*len, 1 + n as u64);
        assert!(!shows(&all, &plain) && !shows(&index, &plain), "tensor {n}");
    }
    assert!(
        stored
            .description
            .tensors()
            .iter()
            .all(|tensor| tensor.digests.is_empty())
    );
    let text = serde_json::to_string(&*stored.description).expect("JSON");
    assert!(text.contains(r#""sealed""#) && text.contains(r#""key":"k1""#), "{text}");
    let specs: Vec<_> = stored
        .description
        .tensors()
        .iter()
        .map(|tensor| tensor.spec.clone())
        .collect();
    assert_eq!(producer.estimate_bytes(&specs), all.len() as u64, "tags count too");

    let lease = take(&consumer, &stored).await;
    check_tensors(&get_all(&consumer, &lease).await.expect("tensors"), &LENS, 1);
    let some = consumer.get(&lease, Wanted::Names(vec![name("t1")]), WITHIN).await;
    assert!(one(some.expect("one tensor")).to_vec() == pattern(1000, 2));
    ack(&consumer, &lease).await.expect("acked");
    consumer.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test]
async fn a_tensor_too_large_to_seal_fails_alone_in_its_batch() {
    const PART: usize = 64 << 20;
    /// One more than a key seals: 1 TiB.
    const PARTS: usize = (1 << 14) + 1;
    let world = World::new();
    let config = FeatureConfig {
        keyring: Some(keys(&["k1"])),
        chunk_bytes: PART as u64,
        stage_bytes: 4 * PART as u64,
        ..world.config()
    };
    let store = world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await;
    let part = store.register(lent(vec![0; PART]), WITHIN).await.expect("registered");
    // The same memory over and over, since no machine has so much.
    let parts = Source::Spans(vec![part.whole(); PARTS]);
    let large = PutItem {
        sample: id("run/large"),
        tensors: vec![TensorIn::new(spec("t0", PART * PARTS), parts)],
        publication: publication(),
    };
    let batch = vec![item("run/a", &[5000, 8], 1), large, item("run/b", &[7], 3)];
    let mut results = store.put_many(batch, WITHIN).await;
    let error = results.remove(1).expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("1 TiB"), "{error}");
    let expected: [(&[usize], u64); 2] = [(&[5000, 8], 1), (&[7], 3)];
    for (stored, (lens, seed)) in results.into_iter().zip(expected) {
        let stored = stored.expect("it can be sealed");
        let lease = take(&store, &stored).await;
        check_tensors(&get_all(&store, &lease).await.expect("tensors"), lens, seed);
        ack(&store, &lease).await.expect("acked");
    }
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test]
async fn equal_tensors_do_not_look_equal() {
    let world = World::new();
    let (raw, store) = (world.cluster.connect(), open(&world).await);
    let first = put(&store, item("run/1", &[4096], 1)).await;
    let before = read_raw(&*raw, &one(keys_of(&world, &first)));
    let second = put(&store, item("run/2", &[4096], 1)).await;
    assert!(read_raw(&*raw, &one(keys_of(&world, &second))) != before);
}

#[tokio::test]
async fn plaintext_is_never_registered_and_failed_gets_leave_zeros() {
    let world = World::new();
    let engine = world.cluster.connect();
    let config = FeatureConfig {
        keyring: Some(keys(&["k1"])),
        ..world.config()
    };
    let store = world.open_on(engine.clone(), world.txn_store.client(), config).await;
    let own = store
        .register(lent(pattern(30_000, 1)), WITHIN)
        .await
        .expect("a region");
    let mut sample = item("run/1", &[30_000, 8192], 1);
    sample.tensors[0].bytes = tensorhold_features::Source::Spans(vec![
        own.span(0..7).expect("inside"),
        own.span(7..30_000).expect("inside"),
    ]);
    let stored = put(&store, sample).await;
    let lease = read(&store, &stored.reference).await;
    let pooled = get_all(&store, &lease).await.expect("tensors");
    check_tensors(&pooled, &[30_000, 8192], 1);
    let addresses: Vec<usize> = pooled.iter().filter_map(|tensor| tensor.address()).collect();
    assert!(
        engine.register(lent(vec![1; 10]), WITHIN).is_ok(),
        "it checks registrations"
    );
    assert_eq!(addresses.len(), 2);
    let stages = engine.registrations().bytes;
    assert!(stages > 0 && stages <= 2 * (128 << 20), "{stages}");
    assert!(store.pool().usage().taken > 0, "the pool is there, and is none of it");

    let into = || {
        let spans = vec![
            own.span(0..10_000).expect("inside"),
            own.span(10_000..30_000).expect("inside"),
        ];
        let second = Destination::Lent(lent(vec![9; 8192]));
        Wanted::Into(vec![(name("t0"), Destination::Spans(spans)), (name("t1"), second)])
    };
    own.whole().write(0, &[9; 30_000]).expect("fits");
    let tensors = store.get(&lease, into(), WITHIN).await.expect("tensors");
    check_tensors(&tensors, &[30_000, 8192], 1);
    // The last object does not open: nothing of the others is left.
    let key = &keys_of(&world, &stored)[FIRST_OBJECTS - 1];
    let mut bytes = read_raw(&*engine, key);
    bytes[5] ^= 1;
    replace_raw(&*engine, key, &bytes);
    let error = store.get(&lease, into(), WITHIN).await.expect_err("corrupt");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(own.whole().to_vec().iter().all(|byte| *byte == 0));
    // A sample that was replaced is not left there either.
    own.whole().write(0, &[9; 30_000]).expect("fits");
    put(&store, item("run/1", &[30_000, 8192], 2)).await;
    let error = store.get(&lease, into(), WITHIN).await.expect_err("replaced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(own.whole().to_vec().iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn keys_that_are_missing_wrong_or_new() {
    let world = World::new();
    let sealed = put(&open(&world).await, item("run/1", &LENS, 1)).await;
    let plain = put(&world.open().await, item("run/2", &LENS, 2)).await;
    let refused = async |store: FeatureStore, stored: &Stored| {
        let lease = read(&store, &stored.reference).await;
        get_all(&store, &lease).await.expect_err("refused")
    };
    let without = refused(world.open().await, &sealed).await;
    assert_eq!(
        (without.kind(), without.fact("key_id")),
        (ErrorKind::Denied, Some("k1")),
        "{without}"
    );
    let another_id = refused(open_with(&world, Some(keys(&["k2"]))).await, &sealed).await;
    assert_eq!(
        (another_id.kind(), another_id.fact("key_id")),
        (ErrorKind::Denied, Some("k1"))
    );
    let bytes = *b"another key under the same old id";
    let wrong = tensorhold_features::seal::StoreKey::from_bytes("k1".parse().expect("an id"), &bytes[..32]);
    let wrong = refused(
        open_with(&world, Some(Keyring::of(wrong.expect("a key")))).await,
        &sealed,
    )
    .await;
    assert_eq!(
        (wrong.kind(), wrong.fact("key_id")),
        (ErrorKind::Denied, Some("k1")),
        "{wrong}"
    );
    // No downgrade: a sample that is not sealed is not read, and nothing of it moves.
    let downgrade = refused(open(&world).await, &plain).await;
    assert_eq!(downgrade.kind(), ErrorKind::Unsupported, "{downgrade}");

    // Rotation: first every process has the new key, then it becomes current, then the old one goes.
    let (both, rotated) = (
        open_with(&world, Some(keys(&["k1", "k2"]))).await,
        open_with(&world, Some(keys(&["k2", "k1"]))).await,
    );
    let newer = put(&rotated, item("run/3", &LENS, 3)).await;
    assert_eq!(
        newer
            .description
            .encoding()
            .seal()
            .map(|seal| seal.key_id().as_str().to_owned()),
        Some("k2".to_owned())
    );
    for (stored, seed) in [(&sealed, 1), (&newer, 3)] {
        for store in [&both, &rotated] {
            let lease = read(store, &stored.reference).await;
            check_tensors(&get_all(store, &lease).await.expect("tensors"), &LENS, seed);
        }
    }
    let after = open_with(&world, Some(keys(&["k2"]))).await;
    let gone = refused(after.clone(), &sealed).await;
    assert_eq!((gone.kind(), gone.fact("key_id")), (ErrorKind::Denied, Some("k1")));
    // Sealed again with the new key: put again.
    let again = put(&after, item("run/1", &LENS, 4)).await;
    let lease = read(&after, &again.reference).await;
    check_tensors(&get_all(&after, &lease).await.expect("tensors"), &LENS, 4);
}

#[tokio::test]
async fn what_others_wrote_is_not_adopted() {
    let world = World::new();
    let store = open(&world).await;
    let key = ObjectKey::new("x:a").expect("a key");
    replace_raw(&*world.cluster.connect(), &key, &[1; 100]);
    let announcement = Announcement {
        sample: id("run/1"),
        keys: vec![key.clone()],
        bytes: 100,
    };
    let error = store.announce(announcement, WITHIN).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let tensor = AdoptedTensor {
        spec: spec("a", 100),
        key: key.clone(),
        digest: None,
    };
    let adopted = store.adopt_now(id("run/1"), vec![tensor], publication(), WITHIN);
    assert_eq!(adopted.await.expect_err("refused").kind(), ErrorKind::Unsupported);
    assert_eq!(world.cluster.objects(), [key], "it stays whose it was");
    assert_eq!(world.records(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sealed_put_that_is_late_is_undone_when_it_has_landed() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let config = FeatureConfig {
        keyring: Some(keys(&["k1"])),
        ..world.config()
    };
    let store = world.open_on(engine.clone(), world.txn_store.client(), config).await;
    engine.set(Mode::LatePut);
    let error = store
        .put(item("run/1", &[10_000, 5], 1), WITHIN)
        .await
        .expect_err("late");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let left = store.drain(SOON).await.expect_err("the engine has not let go");
    assert_eq!(left.fact("held_by_engine"), Some("1"), "{left}");
    engine.let_go();
    store.drain(WITHIN).await.expect("undone");
    world.assert_empty();

    let stored = put(&store, item("run/1", &[10_000, 5], 2)).await;
    let lease = read(&store, &stored.reference).await;
    engine.set(Mode::LateGet);
    let own = store.register(lent(vec![9; 10_000]), WITHIN).await.expect("a region");
    let into = Wanted::Into(vec![(name("t0"), Destination::Spans(vec![own.whole()]))]);
    let error = store.get(&lease, into, WITHIN).await.expect_err("late");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    engine.let_go();
    assert!(
        own.whole().to_vec().iter().all(|byte| *byte == 0),
        "late bytes are in a stage"
    );
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[10_000, 5], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_are_far_smaller_than_samples_and_room_is_waited_for() {
    let world = World::with(MemoryConfig {
        segment_bytes: 250_000,
        ..MemoryConfig::default()
    });
    let config = FeatureConfig {
        keyring: Some(keys(&["k1"])),
        // One object at a time.
        stage_bytes: 8192,
        ..world.config()
    };
    let store = world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await;
    let first = put(&store, item("run/1", &[60_000, 60_000], 1)).await;
    let waiting: Vec<_> = (2..4)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.put(item(&format!("run/{n}"), &[60_000, 60_000], n), WITHIN).await })
        })
        .collect();
    while store.health(WITHIN).await.counters.waits_for_room < 3 {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let lease = take(&store, &first).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[60_000, 60_000], 1);
    ack(&store, &lease).await.expect("acked");
    for _ in 2..4 {
        let lease = one(store.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
        let seed = lease.reference().sample.as_str()[4..].parse().expect("a number");
        check_tensors(
            &get_all(&store, &lease).await.expect("tensors"),
            &[60_000, 60_000],
            seed,
        );
        ack(&store, &lease).await.expect("acked");
    }
    for put in waiting {
        put.await.expect("no panic").expect("put");
    }
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[test]
fn nothing_that_is_printed_holds_a_key() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let world = World::new();
        let store = open(&world).await;
        let printed = format!("{store:?} {:?}", store.config());
        let secret: Vec<String> = (0..8_u8)
            .map(|n| (b"k1"[usize::from(n % 2)] ^ (n * 7)).to_string())
            .collect();
        assert!(!printed.contains(&secret.join(", ")) && printed.contains("k1"));
        assert!(serde_json::to_string(store.config()).is_err());
    });
}
