//! What can be done to the record of a sealed sample, and that none of it goes unnoticed.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::raw::{earlier_seal, keys, keys_of, replace_raw};
use common::*;
use serde_json::Value;
use tensorhold_core::ErrorKind;
use tensorhold_features::{FeatureConfig, FeatureStore, SampleRef, Stored};
use tensorhold_index::store::{Transaction, TxnOutcome, TxnStore, Write};

const LENS: [usize; 3] = [30_000, 5000, 0];

async fn open(world: &World, accept_seal_v1: bool) -> FeatureStore {
    let config = FeatureConfig {
        keyring: Some(keys(&["k1"])),
        accept_seal_v1,
        ..world.config()
    };
    world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// The description in a live sample's record.
fn description(world: &World, sample: &str) -> Value {
    let (_, _, description) = record(world, sample);
    description
}

fn record(world: &World, sample: &str) -> (String, Vec<u8>, Value) {
    let key = format!("s/s/{}", sample.replace('/', "%2F"));
    let entry = world.txn_store.dump().into_iter().find(|entry| entry.key == key);
    let value = entry.unwrap_or_else(|| panic!("{key} is not there")).value;
    let at = value.iter().position(|byte| *byte == 0).expect("a description");
    let description = serde_json::from_slice(&value[at + 1..]).expect("JSON");
    (key, value[..=at].to_vec(), description)
}

/// Writes another description into a live sample's record, as an enemy in etcd would.
async fn forge(world: &World, sample: &str, description: &Value) {
    let (key, mut value, _) = record(world, sample);
    value.extend(serde_json::to_vec(description).expect("JSON"));
    let transaction = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::put(key, value)],
    };
    let applied = world.txn_store.client().transact(&transaction, WITHIN).await;
    assert!(matches!(applied, Ok(TxnOutcome::Committed(_))), "{applied:?}");
}

/// What a consumer sees of a sample, leased or through a live reference.
async fn refused(store: &FeatureStore, reference: &SampleRef, what: &str) -> ErrorKind {
    let lease = read(store, reference).await;
    let taken = get_all(store, &lease).await.expect_err(what);
    let glimpse = store
        .find_live(&reference.sample, None, WITHIN)
        .await
        .expect("a glimpse");
    let glimpsed = store
        .get_unleased(glimpse, tensorhold_features::Wanted::All, WITHIN)
        .await;
    let glimpsed = glimpsed.expect_err(what);
    assert_eq!(taken.kind(), glimpsed.kind(), "{what}: {taken} and {glimpsed}");
    taken.kind()
}

type Change = fn(&mut Value);

const FORGERIES: [(&str, Change); 12] = [
    ("a tensor without elements", |d| {
        d["tensors"][0]["spec"]["shape"] = json("[0]")
    }),
    ("all tensors without elements", |d| {
        for tensor in d["tensors"].as_array_mut().expect("tensors") {
            tensor["spec"]["shape"] = json("[0]");
        }
    }),
    ("another shape of as many bytes", |d| {
        d["tensors"][0]["spec"]["shape"] = json("[3, 10000]")
    }),
    ("another element type of as many bytes", |d| {
        d["tensors"][1]["spec"] = json(r#"{"name": "t1", "dtype": "float16", "shape": [2500]}"#);
    }),
    ("another empty shape", |d| {
        d["tensors"][2]["spec"]["shape"] = json("[7, 0]")
    }),
    ("one tensor fewer", |d| {
        drop(d["tensors"].as_array_mut().expect("tensors").remove(1))
    }),
    ("no tensors", |d| d["tensors"] = json("[]")),
    ("one more, empty tensor", |d| {
        let more = json(r#"{"spec": {"name": "t9", "dtype": "uint8", "shape": [0]}}"#);
        d["tensors"].as_array_mut().expect("tensors").push(more);
    }),
    ("tensors in another order", |d| {
        d["tensors"].as_array_mut().expect("tensors").swap(0, 1)
    }),
    ("other objects", |d| d["chunk_bytes"] = Value::from(8192)),
    ("no tag", |d| {
        drop(d.as_object_mut().expect("fields").remove("record_tag"))
    }),
    ("another tag", |d| d["record_tag"] = Value::from("00".repeat(32))),
];

#[tokio::test]
async fn a_sealed_sample_whose_record_was_altered_is_corrupt_and_never_an_empty_tensor() {
    for (what, change) in FORGERIES {
        let world = World::new();
        let store = open(&world, false).await;
        let stored = put(&store, item("run/1", &LENS, 1)).await;
        let lease = read(&store, &stored.reference).await;
        check_tensors(&get_all(&store, &lease).await.expect("tensors"), &LENS, 1);
        let mut forged = description(&world, "run/1");
        change(&mut forged);
        forge(&world, "run/1", &forged).await;
        let before = store.pool().usage().taken;
        assert_eq!(
            refused(&store, &stored.reference, what).await,
            ErrorKind::Corrupt,
            "{what}"
        );
        assert_eq!(
            store.pool().usage().taken,
            before,
            "{what}: memory was taken for a forged record"
        );
        assert_eq!(store.health(WITHIN).await.counters.corrupt, 2, "{what}");
    }
}

#[tokio::test]
async fn a_description_of_another_sample_or_generation_is_corrupt() {
    let world = World::new();
    let store = open(&world, false).await;
    let earlier = put(&store, item("run/1", &LENS, 1)).await;
    let _kept = read(&store, &earlier.reference).await;
    let of_earlier = description(&world, "run/1");
    put(&store, item("run/2", &LENS, 1)).await;
    let of_another = description(&world, "run/2");
    let now = put(&store, item("run/1", &LENS, 2)).await;
    for (what, replayed) in [
        ("an earlier generation's", of_earlier),
        ("another sample's", of_another),
    ] {
        forge(&world, "run/1", &replayed).await;
        assert_eq!(
            refused(&store, &now.reference, what).await,
            ErrorKind::Corrupt,
            "{what}"
        );
    }
}

/// Makes a sample what an earlier release would have put: the same tensors, sealed without a tag over the record.
async fn sealed_by_an_earlier_release(world: &World, stored: &Stored, seed: u64) {
    let sample = stored.reference.sample.as_str();
    let mut description = description(world, sample);
    let raw = world.cluster.connect();
    let (header, sealed) = earlier_seal("k1", "s", &stored.reference, &description, |n, len| {
        pattern(len, seed + n)
    });
    for (key, bytes) in keys_of(world, stored).iter().zip(sealed) {
        replace_raw(&*raw, key, &bytes);
    }
    description["encoding"]["sealed"] = header;
    description.as_object_mut().expect("fields").remove("record_tag");
    forge(world, sample, &description).await;
}

#[tokio::test]
async fn samples_of_the_first_seal_are_read_only_where_a_setting_says_so() {
    let world = World::new();
    let (store, accepting) = (open(&world, false).await, open(&world, true).await);
    let lens = [5000, 0, 9];
    let stored = put(&store, item("run/1", &lens, 1)).await;
    sealed_by_an_earlier_release(&world, &stored, 1).await;
    let lease = read(&store, &stored.reference).await;
    let error = get_all(&store, &lease).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("accept_seal_v1"), "{error}");
    let lease = read(&accepting, &stored.reference).await;
    check_tensors(&get_all(&accepting, &lease).await.expect("tensors"), &lens, 1);
}

#[tokio::test]
async fn the_new_seal_cannot_be_passed_off_as_the_first() {
    let world = World::new();
    let store = open(&world, true).await;
    let stored = put(&store, item("run/1", &LENS, 1)).await;
    let mut forged = description(&world, "run/1");
    forged["encoding"]["sealed"]["scheme"] = Value::from("aes-256-gcm+hkdf-sha256/1");
    forged["tensors"][0]["spec"]["shape"] = json("[0]");
    forge(&world, "run/1", &forged).await;
    assert_eq!(
        refused(&store, &stored.reference, "an older scheme's name").await,
        ErrorKind::Denied,
        "the keys of the two schemes differ"
    );
}
