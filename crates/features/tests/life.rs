//! The life of samples when nothing goes wrong but what users do.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::time::Duration;

use common::*;
use tensorhold_core::ErrorKind;
use tensorhold_engine::{Engine, EngineExt, MemoryConfig};
use tensorhold_features::{
    AckOutcome, Destination, FeatureConfig, Publication, PutItem, Reason, RecordQuery, Source, Stage, TensorIn, Wanted,
};

/// One chunk, several chunks, an exact number of chunks, nothing, one byte.
const LENS: [usize; 5] = [1000, 10_000, 8192, 0, 1];

#[tokio::test]
async fn put_get_ack_and_gone() {
    let world = World::new();
    let store = world.open().await;
    let stored = put(&store, item("run/1", &LENS, 7)).await;
    assert_eq!(world.cluster.objects().len(), 1 + 3 + 2 + 1, "an object per chunk");
    assert_eq!(stored.description.bytes(), 19_193);

    let mut leases = store.lease_next(&trainers(), 8, WITHIN).await.expect("leases");
    let lease = one(std::mem::take(&mut leases));
    assert_eq!(lease.reference(), stored.reference);
    assert_eq!(*lease.description(), stored.description);
    let tensors = get_all(&store, &lease).await.expect("tensors");
    check_tensors(&tensors, &LENS, 7);

    let answered = ack(&store, &lease).await.expect("acked");
    let consumed = AckOutcome::Retired {
        reason: Reason::Consumed,
        free: true,
    };
    assert_eq!(answered, consumed);
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
    check_tensors(&tensors, &LENS, 7);

    let fenced = get_all(&store, &lease).await.expect_err("it is over");
    assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced}");
    let lent = store.pool().usage().lent;
    drop(tensors);
    assert!(lent > 0 && store.pool().usage().lent == 0, "the memory is back");
    let counters = store.health(WITHIN).await.counters;
    assert_eq!(
        (counters.puts, counters.gets, counters.acks, counters.freed),
        (1, 1, 1, 1)
    );
    assert_eq!(
        (counters.bytes_put, counters.bytes_got, counters.fenced),
        (19_193, 19_193, 1)
    );
    store.close(WITHIN).await.expect("closed");
    let closed = store.put(item("run/1", &[1], 1), WITHIN).await.expect_err("closed");
    assert_eq!(closed.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn tensors_by_name_and_into_memory_of_ones_own() {
    let world = World::new();
    let engine = world.cluster.connect();
    let store = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    let stored = put(&store, item("run/1", &LENS, 7)).await;
    let lease = read(&store, &stored.reference).await;

    let some = store
        .get(&lease, Wanted::Names(vec![name("t4"), name("t1")]), WITHIN)
        .await;
    let some = some.expect("tensors");
    assert_eq!(some[0].to_vec(), pattern(1, 11));
    assert_eq!(some[1].to_vec(), pattern(10_000, 8));

    let own = engine.allocate(20_000, WITHIN).expect("memory");
    let pieces = vec![
        own.span(5..3000).expect("inside"),
        own.span(4000..11_005).expect("inside"),
    ];
    let into = vec![
        (name("t1"), Destination::Spans(pieces)),
        (name("t2"), Destination::Lent(lent(vec![0; 8192]))),
        (name("t3"), Destination::Spans(Vec::new())),
        (name("t0"), Destination::Pool),
    ];
    let tensors = store.get(&lease, Wanted::Into(into), WITHIN).await.expect("tensors");
    assert_eq!(own.span(5..3000).expect("inside").to_vec(), pattern(10_000, 8)[..2995]);
    assert_eq!(
        own.span(4000..11_005).expect("inside").to_vec(),
        pattern(10_000, 8)[2995..]
    );
    assert_eq!((tensors[0].address(), tensors[0].to_vec()), (None, pattern(10_000, 8)));
    assert_eq!(tensors[1].to_vec(), pattern(8192, 9));
    assert!(tensors[2].to_vec().is_empty());
    assert_eq!(tensors[3].to_vec(), pattern(1000, 7));

    let wrong = |wanted| {
        let (store, lease) = (store.clone(), lease.clone());
        async move { store.get(&lease, wanted, WITHIN).await.expect_err("refused").kind() }
    };
    assert_eq!(wrong(Wanted::Names(vec![name("t9")])).await, ErrorKind::NotFound);
    assert_eq!(
        wrong(Wanted::Names(vec![name("t1"), name("t1")])).await,
        ErrorKind::Invalid
    );
    assert_eq!(wrong(Wanted::Names(Vec::new())).await, ErrorKind::Invalid);
    let short = Destination::Spans(vec![own.span(0..9).expect("inside")]);
    assert_eq!(wrong(Wanted::Into(vec![(name("t1"), short)])).await, ErrorKind::Invalid);

    drop((tensors, some));
    one(store.release(&[lease], WITHIN).await).expect("released");
    drop(own);
    let registered = engine.registrations();
    assert_eq!(
        registered.bytes,
        store.pool().usage().taken,
        "nothing but the pool stays registered"
    );
    assert!(store.find(&[id("run/1"), id("run/2")], WITHIN).await.expect("found")[1].is_none());
}

#[tokio::test]
async fn several_samples_share_calls_and_fail_by_themselves() {
    let world = World::new();
    let store = world.open().await;
    let mut bad_length = item("run/b", &[10], 1);
    bad_length.tensors[0].spec = spec("t0", 11);
    let mut twice = item("run/c", &[10, 10], 1);
    twice.tensors[1].spec = spec("t0", 10);
    let mut none = item("run/d", &[], 1);
    none.publication.groups.clear();
    let items = vec![
        item("run/a", &[5000, 6], 1),
        bad_length,
        twice,
        none,
        item("run/e", &[7], 9),
        item("run/a", &[1], 1),
    ];
    let results = store.put_many(items, WITHIN).await;
    let kinds: Vec<_> = results
        .iter()
        .map(|result| result.as_ref().err().map(|error| error.kind()))
        .collect();
    let invalid = Some(ErrorKind::Invalid);
    assert_eq!(
        kinds,
        [None, invalid, invalid, invalid, None, Some(ErrorKind::Conflict)]
    );
    store.drain(WITHIN).await.expect("nothing to free");
    assert_eq!(world.cluster.objects().len(), 4);

    let mut leases = store.lease_next(&trainers(), 5, WITHIN).await.expect("leases");
    while leases.len() < 2 {
        leases.extend(store.lease_next(&trainers(), 5, WITHIN).await.expect("leases"));
    }
    for lease in &leases {
        let (lens, seed): (&[usize], _) = if lease.reference().sample == id("run/a") {
            (&[5000, 6], 1)
        } else {
            (&[7], 9)
        };
        check_tensors(&get_all(&store, lease).await.expect("tensors"), lens, seed);
    }
    assert!(store.ack(&leases, WITHIN).await.iter().all(Result::is_ok));
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test]
async fn a_second_put_takes_the_place_of_the_first_under_its_reader() {
    let world = World::new();
    let (producer, consumer) = (world.open().await, world.open().await);
    let first = put(&producer, item("run/1", &[9000], 1)).await;
    let lease = take(&consumer, &first).await;
    check_tensors(&get_all(&consumer, &lease).await.expect("tensors"), &[9000], 1);

    let second = put(&producer, item("run/1", &[9000], 2)).await;
    assert!(second.reference.generation > first.reference.generation);
    let error = get_all(&consumer, &lease).await.expect_err("replaced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    producer.drain(WITHIN).await.expect("nothing may be freed yet");
    assert_eq!(
        world.cluster.objects().len(),
        6,
        "the reader of the first still holds it"
    );

    let late = ack(&consumer, &lease).await.expect_err("replaced");
    assert_eq!(late.kind(), ErrorKind::Fenced, "{late}");
    consumer.drain(WITHIN).await.expect("freed by whoever let go last");
    assert_eq!(world.cluster.objects().len(), 3, "only the second is left");
    let lease = take(&consumer, &second).await;
    check_tensors(&get_all(&consumer, &lease).await.expect("tensors"), &[9000], 2);
    ack(&consumer, &lease).await.expect("acked");
    consumer.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test]
async fn a_replaced_sample_without_readers_is_freed_at_once() {
    let world = World::new();
    let store = world.open().await;
    put(&store, item("run/1", &[9000], 1)).await;
    put(&store, item("run/1", &[100], 2)).await;
    store.drain(WITHIN).await.expect("freed");
    assert_eq!(world.cluster.objects().len(), 1);
}

#[tokio::test]
async fn any_process_may_abort() {
    let world = World::new();
    let (producer, consumer, operator) = (world.open().await, world.open().await, world.open().await);
    let stored = put(&producer, item("run/1", &[9000], 1)).await;
    let lease = take(&consumer, &stored).await;
    one(operator.abort(&[id("run/1")], WITHIN).await).expect("aborted");
    let error = get_all(&consumer, &lease).await.expect_err("aborted");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(world.cluster.objects().len(), 3, "its reader has not let go");
    drop(lease);
    consumer.drain(WITHIN).await.expect("freed");
    world.assert_empty();
    let gone = one(operator.abort(&[id("run/1")], WITHIN).await).expect_err("gone");
    assert_eq!(gone.kind(), ErrorKind::NotFound);

    let stored = put(&producer, item("run/2", &[9000], 1)).await;
    let mut other = stored.reference.clone();
    other.generation = tensorhold_core::Generation::new(other.generation.get() + 1).expect("not zero");
    assert!(
        one(operator.retire(&[other], WITHIN).await).is_err(),
        "exactly this generation"
    );
    one(operator.retire(&[stored.reference], WITHIN).await).expect("retired");
    operator.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test]
async fn retained_samples_come_again_and_hopeless_ones_do_not() {
    let world = World::new();
    let store = world.open().await;
    let retained = PutItem {
        publication: Publication {
            retain: true,
            ..publication()
        },
        ..item("run/1", &[10], 1)
    };
    let stored = put(&store, retained).await;
    for _epoch in 0..3 {
        let lease = take(&store, &stored).await;
        check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[10], 1);
        assert_eq!(ack(&store, &lease).await.expect("acked"), AckOutcome::Live);
        one(store.reopen(std::slice::from_ref(&stored.reference), WITHIN).await).expect("reopened");
    }
    one(store.abort(&[id("run/1")], WITHIN).await).expect("aborted");

    let stored = put(&store, item("run/2", &[10], 1)).await;
    for attempt in 1..=3 {
        let lease = take(&store, &stored).await;
        let answer = one(store.nack(&[lease], WITHIN).await).expect("handed back");
        assert_eq!(answer == AckOutcome::Live, attempt < 3, "{answer:?}");
    }
    store.drain(WITHIN).await.expect("freed");
    assert_eq!(world.cluster.objects(), [], "objects");
    let letter = std::slice::from_ref(&stored.reference);
    let gone = one(store.requeue(letter, WITHIN).await).expect_err("its bytes are gone");
    assert_eq!(gone.kind(), ErrorKind::Conflict, "{gone}");
    one(store.drop_dead(letter, WITHIN).await).expect("dropped");
    world.assert_empty();
}

#[tokio::test]
async fn a_dead_letter_that_keeps_its_bytes_is_requeued_or_ends_with_the_store() {
    let mut world = World::new();
    world.index_config.dead_ticks = 1000;
    let store = world.open().await;
    let once = |name: &str| PutItem {
        publication: Publication {
            max_attempts: 1,
            ..publication()
        },
        ..item(name, &[10_000], 3)
    };
    let letters = async || {
        let query = RecordQuery::of(Stage::Dead);
        store.records(&query, None, 10, WITHIN).await.expect("a list").records
    };
    let stored = put(&store, once("run/1")).await;
    let other = put(&store, once("run/2")).await;
    for sample in [&stored, &other] {
        let lease = take(&store, sample).await;
        one(store.nack(&[lease], WITHIN).await).expect("handed back");
    }
    store.drain(WITHIN).await.expect("nothing is freed");
    assert_eq!(letters().await.len(), 2);
    one(store.requeue(std::slice::from_ref(&stored.reference), WITHIN).await).expect("requeued");
    let lease = take(&store, &stored).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[10_000], 3);
    ack(&store, &lease).await.expect("acked");
    assert_eq!(letters().await.len(), 1);
    store.end(false, WITHIN).await.expect("ended");
    world.assert_empty();
}

#[tokio::test]
async fn a_lease_that_is_dropped_is_let_go_of() {
    let world = World::new();
    let store = world.open().await;
    let stored = put(&store, item("run/1", &[10], 1)).await;
    drop(take(&store, &stored).await);
    store.drain(WITHIN).await.expect("let go of");
    let lease = take(&store, &stored).await;
    let clone = lease.clone();
    drop(lease);
    assert!(!clone.is_answered());
    ack(&store, &clone).await.expect("a clone is the same lease");
    assert!(clone.is_answered());
    store.close(WITHIN).await.expect("closed");
    world.assert_empty();
}

#[tokio::test]
async fn without_checksums_lengths_and_leases_are_checked() {
    let world = World::new();
    let config = FeatureConfig {
        checksum: false,
        ..world.config()
    };
    let store = world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await;
    let stored = put(&store, item("run/1", &LENS, 3)).await;
    assert!(
        stored
            .description
            .tensors()
            .iter()
            .all(|tensor| tensor.digests.is_empty())
    );
    let lease = read(&world.open().await, &stored.reference).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &LENS, 3);
}

#[tokio::test]
async fn registered_memory_in_pieces_goes_in_as_one_tensor() {
    let world = World::new();
    let engine = world.cluster.connect();
    let store = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    let region = engine.allocate(30_000, WITHIN).expect("memory");
    region.whole().write(0, &pattern(30_000, 5)).expect("fits");
    let parts = vec![
        region.span(10..5000).expect("inside"),
        region.span(6000..20_000).expect("inside"),
    ];
    let bytes: Vec<u8> = parts.iter().flat_map(tensorhold_engine::Span::to_vec).collect();
    let item = PutItem {
        sample: id("run/1"),
        tensors: vec![TensorIn {
            spec: spec("t0", bytes.len()),
            bytes: Source::Spans(parts),
        }],
        publication: publication(),
    };
    let stored = put(&store, item).await;
    let lease = read(&store, &stored.reference).await;
    let tensor = one(get_all(&store, &lease).await.expect("tensors"));
    assert!(tensor.to_vec() == bytes);
    assert_eq!(store.estimate_bytes(&[tensor.spec]), bytes.len() as u64);
}

#[tokio::test]
async fn a_full_engine_makes_a_put_wait_for_room() {
    let world = World::with(MemoryConfig {
        segment_bytes: 100_000,
        ..MemoryConfig::default()
    });
    let store = world.open().await;
    let first = put(&store, item("run/1", &[60_000], 1)).await;
    let error = store.put(item("run/2", &[60_000], 2), SOON).await.expect_err("full");
    assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    store.drain(WITHIN).await.expect("what it wrote is gone");
    assert_eq!(world.cluster.objects().len(), 15, "only the first");

    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.put(item("run/2", &[60_000], 2), WITHIN).await }
    });
    while store.health(WITHIN).await.counters.waits_for_room < 6 {
        assert!(!waiting.is_finished(), "it gave up");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lease = take(&store, &first).await;
    ack(&store, &lease).await.expect("acked");
    let second = waiting.await.expect("no panic").expect("there is room now");
    let lease = take(&store, &second).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &[60_000], 2);
}

#[tokio::test]
async fn a_get_needs_room_in_the_pool() {
    let world = World::new();
    let config = FeatureConfig {
        pool_bytes: 40_960,
        ..world.config()
    };
    let store = world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await;
    let stored = put(&store, item("run/1", &[16_000], 1)).await;
    let lease = read(&store, &stored.reference).await;
    let first = get_all(&store, &lease).await.expect("tensors");
    let second = get_all(&store, &lease).await.expect("tensors");
    let error = store.get(&lease, Wanted::All, SOON).await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Capacity, "{error}");
    drop((first, second));
    get_all(&store, &lease).await.expect("room again");
}

#[tokio::test]
async fn a_sample_named_twice_in_one_abort_is_gone_the_second_time() {
    let world = World::new();
    let store = world.open().await;
    put(&store, item("run/1", &[100], 7)).await;
    let both = store.abort(&[id("run/1"), id("run/1"), id("run/2")], WITHIN).await;
    let kinds: Vec<_> = both
        .iter()
        .map(|each| each.as_ref().err().map(|error| error.kind()))
        .collect();
    assert_eq!(kinds, [None, Some(ErrorKind::NotFound), Some(ErrorKind::NotFound)]);
}

#[tokio::test]
async fn a_store_is_ended_page_by_page_and_not_under_others() {
    let world = World::new();
    let (store, other) = (world.open().await, world.open().await);
    for n in 0..300 {
        put(&store, item(&format!("run/{n}"), &[100], n)).await;
    }
    let error = store.end(false, WITHIN).await.expect_err("another session is alive");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    other.close(WITHIN).await.expect("closed");
    assert_eq!(store.end(false, WITHIN).await.expect("ended"), 300);
    assert_eq!(store.end(false, WITHIN).await.expect("ended"), 0);
    let first = store
        .find(&[id("run/0"), id("run/299")], WITHIN)
        .await
        .expect("an answer");
    assert!(first.iter().all(Option::is_none));
}
