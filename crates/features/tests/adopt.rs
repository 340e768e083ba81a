//! Samples that another program wrote.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::*;
use tensorhold_core::{Digest, ErrorKind, ObjectKey};
use tensorhold_engine::{EngineExt, PutOptions};
use tensorhold_features::{AdoptedTensor, Announcement};

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).expect("a key")
}

/// What a serving engine does: writes an object under a key of its own.
fn write(world: &World, text: &str, bytes: &[u8]) {
    let engine = world.cluster.connect();
    let region = engine.allocate(bytes.len(), WITHIN).expect("memory");
    region.whole().write(0, bytes).expect("fits");
    engine
        .put_one(&key(text), &region.whole(), &PutOptions::default(), WITHIN)
        .expect("put");
}

fn tensor(name: &str, object: &str, bytes: &[u8]) -> AdoptedTensor {
    AdoptedTensor {
        spec: spec(name, bytes.len()),
        key: key(object),
        digest: Some(Digest::of(bytes)),
    }
}

fn announcement(keys: &[&str]) -> Announcement {
    Announcement {
        sample: id("run/1"),
        keys: keys.iter().map(|text| key(text)).collect(),
        bytes: 20_000,
    }
}

#[tokio::test]
async fn announced_written_adopted_and_used_like_any_other() {
    let world = World::new();
    let store = world.open().await;
    let announced = store
        .announce(announcement(&["x:a", "x:b", "x:c"]), WITHIN)
        .await
        .expect("announced");
    let conflict = store.put(item("run/1", &[1], 1), WITHIN).await.expect_err("reserved");
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    let (a, b) = (pattern(10_000, 1), pattern(7, 2));
    let tensors = || vec![tensor("a", "x:a", &a), tensor("b", "x:b", &b)];
    write(&world, "x:a", &a);
    let early = store
        .adopt(&announced, tensors(), publication(), WITHIN)
        .await
        .expect_err("b is missing");
    assert_eq!(early.kind(), ErrorKind::NotFound, "{early}");
    write(&world, "x:b", &b);
    let strange = vec![tensor("a", "x:other", &a)];
    let strange = store
        .adopt(&announced, strange, publication(), WITHIN)
        .await
        .expect_err("not announced");
    assert_eq!(strange.kind(), ErrorKind::Invalid, "{strange}");
    let stored = store
        .adopt(&announced, tensors(), publication(), WITHIN)
        .await
        .expect("adopted");
    assert_eq!(stored.reference, *announced.reference());

    let lease = take(&store, &stored).await;
    let tensors = get_all(&store, &lease).await.expect("tensors");
    assert!(tensors[0].to_vec() == a && tensors[1].to_vec() == b);
    ack(&store, &lease).await.expect("acked");
    store.drain(WITHIN).await.expect("freed");
    world.assert_empty();
}

#[tokio::test]
async fn what_never_gets_adopted_is_removed() {
    let world = World::new();
    let (store, sweeper) = (world.open().await, world.open().await);
    write(&world, "x:a", &[1; 100]);
    let announced = store
        .announce(announcement(&["x:a", "x:b"]), WITHIN)
        .await
        .expect("announced");
    store.discard(&announced, WITHIN).await.expect("discarded");
    store.drain(WITHIN).await.expect("removed");
    world.assert_empty();

    write(&world, "x:a", &[1; 100]);
    let announced = store
        .announce(announcement(&["x:a", "x:b"]), WITHIN)
        .await
        .expect("announced");
    assert_eq!(announced.keys().len(), 2);
    world.end_session(&store).await;
    drop(store);
    write(&world, "x:b", &[2; 100]);
    sweeper.sweep(WITHIN).await.expect("swept");
    world.assert_empty();
}

#[tokio::test]
async fn what_is_there_already_is_adopted_at_once() {
    let world = World::new();
    let store = world.open().await;
    write(&world, "x:a", &pattern(5000, 3));
    let adopt = |tensors| store.adopt_now(id("run/1"), tensors, publication(), WITHIN);
    let long = adopt(vec![tensor("a", "x:a", &[0; 5001])]).await.expect_err("too long");
    assert_eq!(long.kind(), ErrorKind::Invalid, "{long}");
    let absent = adopt(vec![tensor("a", "x:nothing", &[0; 5])])
        .await
        .expect_err("not there");
    assert_eq!(absent.kind(), ErrorKind::NotFound, "{absent}");
    store.drain(WITHIN).await.expect("nothing to do");
    assert_eq!(world.cluster.objects(), [key("x:a")], "it was not taken into custody");

    let mut without = tensor("a", "x:a", &pattern(5000, 3));
    without.digest = None;
    let stored = adopt(vec![without]).await.expect("adopted");
    let lease = read(&store, &stored.reference).await;
    assert!(one(get_all(&store, &lease).await.expect("tensors")).to_vec() == pattern(5000, 3));
    drop(lease);

    // Adopted again, with another checksum: it takes the place of the first, whose object it is.
    write(&world, "x:b", &pattern(5000, 4));
    let stored = adopt(vec![tensor("a", "x:b", &pattern(5000, 5))])
        .await
        .expect("adopted");
    let lease = read(&store, &stored.reference).await;
    let error = get_all(&store, &lease).await.expect_err("not what its writer said");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    store.drain(WITHIN).await.expect("the first is freed");
    assert_eq!(world.cluster.objects(), [key("x:b")]);
}
