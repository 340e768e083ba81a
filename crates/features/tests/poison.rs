//! Records that cannot be read, or claim what cannot be: they harm nothing but themselves. A sample that is too large
//! is refused before a byte moves.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::*;
use tensorhold_core::ErrorKind;
use tensorhold_features::{FeatureConfig, FeatureStore, Publication, Quarantined, TensorIn};
use tensorhold_index::store::{Transaction, TxnStore, Write};

/// What any process with access to the index can write.
async fn write(world: &World, key: &str, value: impl Into<Vec<u8>>) {
    let put = Transaction {
        writes: vec![Write::put(format!("s/{key}"), value)],
        ..Transaction::default()
    };
    world.txn_store.transact(&put, WITHIN).await.expect("written");
}

async fn quarantined(store: &FeatureStore) -> Vec<Quarantined> {
    store.quarantined(None, 1000, WITHIN).await.expect("a list")
}

fn retired(generation: u64, plan: &str) -> String {
    let plan = plan.replace('"', "\\\"");
    format!(
        r#"{{"generation":{generation},"nonce":5,"producer":1,"bytes":1,"readers":[],"reason":"Aborted","failed_frees":0,"plan":"{plan}"}}"#
    )
}

#[tokio::test]
async fn ten_thousand_tensors_are_refused_before_a_byte_moves() {
    let world = World::new();
    let store = world.open().await;
    for groups in [vec![], vec![trainers()]] {
        let mut many = item("run/1", &[1; 10_000], 1);
        many.publication = Publication {
            groups,
            ..publication()
        };
        let error = store.put(many, WITHIN).await.expect_err("too many");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(
            error.fact("most_bytes").is_some() && error.fact("tensors") == Some("10000"),
            "{error}"
        );
        world.assert_empty();
        assert_eq!(store.health(WITHIN).await.counters.bytes_put, 0);
    }
    // A chunk is 4 KiB here: more objects than a sample may have.
    let bytes = 4096 * 65_536 + 1;
    let mut large = item("run/1", &[1], 1);
    large.tensors = vec![TensorIn::new(spec("t0", bytes), lent(vec![0; bytes]))];
    let error = store.put(large, WITHIN).await.expect_err("too many");
    assert_eq!(
        (error.kind(), error.fact("most_objects")),
        (ErrorKind::Invalid, Some("65536")),
        "{error}"
    );
    world.assert_empty();
    put(&store, item("run/1", &[1; 1000], 1)).await;
}

#[tokio::test]
async fn a_record_that_claims_a_billion_objects_harms_nothing_else() {
    let world = World::new();
    let store = world.open().await;
    let stored = put(&store, item("run/1", &[5000], 1)).await;
    for (n, plan) in [
        r#"{"v":1,"tensors":[["t",18446744073709551615]]}"#,
        r#"{"v":1,"tensors":[["t",1000000000],["u",1000000000]]}"#,
        "no plan",
    ]
    .iter()
    .enumerate()
    {
        write(&world, &format!("f/a{n}/{:016x}", 1), retired(1, plan)).await;
    }
    let whole =
        r#"{"v":1,"nonce":1,"chunk_bytes":1,"tensors":[{"spec":{"name":"a","dtype":"uint8","shape":[1000000000]}}]}"#;
    let described = [retired(1, "").as_bytes(), b"\0", whole.as_bytes()].concat();
    write(&world, &format!("f/a3/{:016x}", 1), described).await;
    write(&world, &format!("f/a4/{:016x}", 1), retired(1, r#"{"v":2}"#)).await;
    one(store.abort(&[id("run/1")], WITHIN).await).expect("aborted");
    store.drain(WITHIN).await.expect("freed");
    let swept = store.sweep(WITHIN).await.expect("swept");
    assert_eq!((swept.failed, swept.later), (0, 1), "{swept:?}");
    world.assert_empty();
    let keys: Vec<String> = quarantined(&store).await.into_iter().map(|record| record.key).collect();
    let expected: Vec<String> = (0..4).map(|n| format!("s/f/a{n}/{:016x}", 1)).collect();
    assert_eq!(keys, expected, "the one of a later release stays");
    assert_eq!(store.health(WITHIN).await.passed_over.quarantined, 4);
    drop(stored);
}

#[tokio::test]
async fn a_sample_whose_description_cannot_be_read_is_not_taken() {
    let world = World::new();
    let store = world.open().await;
    let bad = put(&store, item("run/1", &[5000], 1)).await;
    for entry in world.txn_store.dump() {
        if entry.key.starts_with("s/s/") || entry.key.starts_with("s/q/") {
            let end = entry.value.iter().position(|byte| *byte == 0).expect("a description");
            let value = [&entry.value[..=end], b"{\"v\":1}".as_slice()].concat();
            write(&world, entry.key.strip_prefix("s/").expect("ours"), value).await;
        }
    }
    let good = put(&store, item("run/2", &[5000], 2)).await;
    let lease = one(store.lease_next(&trainers(), 1, WITHIN).await.expect("taken"));
    assert_eq!(lease.reference(), good.reference);
    ack(&store, &lease).await.expect("acked");
    assert_eq!(
        store.lease_next(&trainers(), 1, 10 * SOON).await.expect("none").len(),
        0
    );
    let found = store
        .find(std::slice::from_ref(&bad.reference.sample), WITHIN)
        .await
        .expect("found");
    assert!(found[0].is_none(), "what is in quarantine is not live");
    let listed = one(quarantined(&store).await);
    assert_eq!(listed.key, "s/s/run%2F1");
    let bytes = store.quarantined_bytes(&listed, WITHIN).await.expect("kept");
    assert!(bytes.ends_with(b"{\"v\":1}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_puts_give_their_names_back_though_the_queue_is_full() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let config = FeatureConfig {
        free_queue: 1,
        call_within: Duration::from_secs(1),
        ..world.config()
    };
    let store = world.open_on(engine.clone(), world.txn_store.client(), config).await;
    engine.set(Mode::LatePut);
    for n in 0..8 {
        let error = store
            .put(item(&format!("run/{n}"), &[5000], n), WITHIN)
            .await
            .expect_err("out of time");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    engine.let_go();
    store.drain(WITHIN).await.expect("given up and removed");
    world.assert_empty();
    let other = world.open().await;
    for n in 0..8 {
        put(&other, item(&format!("run/{n}"), &[5000], n)).await;
    }
}
