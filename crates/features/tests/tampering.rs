//! What an attacker that reaches the engine's ports can do, and that none of it goes unnoticed in a sealed store.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::raw::{keys, keys_of, read_raw, replace_raw};
use common::*;
use tensorhold_core::{ErrorKind, ObjectKey};
use tensorhold_engine::Engine;
use tensorhold_features::{FeatureConfig, FeatureStore};

/// How many objects a tensor of 30,000 bytes is in.
const FIRST_OBJECTS: usize = 8;

async fn open(world: &World) -> FeatureStore {
    let config = FeatureConfig {
        keyring: Some(keys(&["k1"])),
        ..world.config()
    };
    world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await
}

/// What is done to the objects of a sample, given those of an older generation of it and of another sample.
type Attack = fn(&dyn Engine, now: &[ObjectKey], before: &[ObjectKey], other: &[ObjectKey]);

fn change(engine: &dyn Engine, key: &ObjectKey, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = read_raw(engine, key);
    change(&mut bytes);
    replace_raw(engine, key, &bytes);
}

fn swap(engine: &dyn Engine, one: &ObjectKey, other: &ObjectKey) {
    let (first, second) = (read_raw(engine, one), read_raw(engine, other));
    replace_raw(engine, one, &second);
    replace_raw(engine, other, &first);
}

const ATTACKS: [(&str, Attack); 8] = [
    ("one flipped byte", |engine, now, _, _| {
        change(engine, &now[2], |bytes| bytes[77] ^= 0x40)
    }),
    ("one flipped byte of a tag", |engine, now, _, _| {
        change(engine, &now[0], |bytes| *bytes.last_mut().expect("a tag") ^= 1);
    }),
    ("two objects of a tensor swapped", |engine, now, _, _| {
        swap(engine, &now[0], &now[1])
    }),
    ("two tensors swapped", |engine, now, _, _| {
        swap(engine, &now[FIRST_OBJECTS], &now[FIRST_OBJECTS + 1])
    }),
    ("an older generation's object", |engine, now, before, _| {
        replace_raw(engine, &now[3], &read_raw(engine, &before[3]));
    }),
    ("all of an older generation", |engine, now, before, _| {
        now.iter()
            .zip(before)
            .for_each(|(now, before)| replace_raw(engine, now, &read_raw(engine, before)));
    }),
    ("another sample's object", |engine, now, _, other| {
        replace_raw(engine, &now[0], &read_raw(engine, &other[0]))
    }),
    ("a truncated object", |engine, now, _, _| {
        change(engine, &now[1], |bytes| bytes.truncate(100))
    }),
];

#[tokio::test]
async fn whatever_is_done_to_objects_is_corrupt() {
    for (what, attack) in ATTACKS {
        let world = World::new();
        let (raw, store) = (world.cluster.connect(), open(&world).await);
        let lens = [30_000, 5000, 5000];
        // A reader keeps the older generation's objects alive.
        let before = put(&store, item("run/1", &lens, 1)).await;
        let _kept = read(&store, &before.reference).await;
        let other = put(&store, item("run/2", &lens, 1)).await;
        let now = put(&store, item("run/1", &lens, 1)).await;
        let [now_keys, before_keys, other_keys] = [&now, &before, &other].map(|stored| keys_of(&world, stored));
        let (now_keys, before_keys): (Vec<_>, Vec<_>) = (
            now_keys
                .into_iter()
                .filter(|key| key.as_str().contains("%2F1/"))
                .collect(),
            before_keys
                .into_iter()
                .filter(|key| key.as_str().contains("%2F1/"))
                .collect(),
        );
        assert_eq!(
            (now_keys.len(), before_keys.len()),
            (FIRST_OBJECTS + 4, FIRST_OBJECTS + 4),
            "{what}"
        );
        let lease = read(&store, &now.reference).await;
        check_tensors(&get_all(&store, &lease).await.expect("tensors"), &lens, 1);
        attack(&*raw, &now_keys, &before_keys, &other_keys);
        let error = get_all(&store, &lease).await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert_eq!(store.health(WITHIN).await.counters.corrupt, 1, "{what}");
    }
}

#[tokio::test]
async fn chunks_of_one_object_cannot_change_places() {
    const MIB: usize = 1 << 20;
    let world = World::new();
    let (raw, config) = (
        world.cluster.connect(),
        FeatureConfig {
            keyring: Some(keys(&["k1"])),
            // Objects are whole chunks of 1 MiB: three of them.
            chunk_bytes: (3 << 20) + 5,
            pool_bytes: 32 << 20,
            ..world.config()
        },
    );
    let store = world
        .open_on(world.cluster.connect(), world.txn_store.client(), config)
        .await;
    let lens = [4 * MIB + 3];
    let stored = put(&store, item("run/1", &lens, 1)).await;
    let objects = keys_of(&world, &stored);
    assert_eq!(objects.len(), 2);
    assert_eq!(read_raw(&*raw, &objects[0]).len(), 3 * MIB + 3 * 16);
    assert_eq!(read_raw(&*raw, &objects[1]).len(), MIB + 3 + 2 * 16);
    let lease = read(&store, &stored.reference).await;
    check_tensors(&get_all(&store, &lease).await.expect("tensors"), &lens, 1);
    change(&*raw, &objects[0], |bytes| {
        let (first, rest) = bytes.split_at_mut(MIB);
        first.swap_with_slice(&mut rest[..MIB]);
        let (first, second) = bytes[3 * MIB..].split_at_mut(16);
        first.swap_with_slice(&mut second[..16]);
    });
    let error = get_all(&store, &lease).await.expect_err("swapped");
    assert_eq!(
        (error.kind(), error.fact("chunk")),
        (ErrorKind::Corrupt, Some("0")),
        "{error}"
    );
}
