//! Sealed stores on a real master, a separate holder process and a real etcd.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::raw::{keys, read_raw, replace_raw, shows};
use common::servers::*;
use common::*;
use tensorhold_core::ErrorKind;
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sealed_store_shows_nothing_and_takes_nothing_else() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let raw = connect(&endpoints);
    let keyring = || Some(keys(&["k1"]));
    let producer = open_with(&endpoints, connect(&endpoints), keyring()).await;
    let consumer = open_with(&endpoints, connect(&endpoints), keyring()).await;
    let before = put(&producer, item("run/1", &LENS, 1)).await;
    let _kept = read(&consumer, &before.reference).await;
    let stored = put(&producer, item("run/1", &LENS, 2)).await;
    let (older, objects) = (keys_of(&before), keys_of(&stored));
    assert_eq!((older.len(), objects.len()), (5, 5));
    let lease = read(&consumer, &stored.reference).await;
    check_tensors(&get_all(&consumer, &lease).await.expect("tensors"), &LENS, 2);
    let all: Vec<Vec<u8>> = block_in_place(|| objects.iter().map(|key| read_raw(&*raw, key)).collect());
    let tags = 9 + 1 + 3 + 1;
    let stored_bytes: usize = all.iter().map(Vec::len).sum();
    assert_eq!(stored_bytes, LENS.iter().sum::<usize>() + tags * 16);
    for (n, len) in LENS.iter().enumerate().filter(|(_, len)| **len > 0) {
        let plain = pattern(*len, 2 + n as u64);
        assert!(all.iter().all(|object| !shows(object, &plain)), "tensor {n} shows");
    }
    let stages = raw.registrations().bytes;
    assert_eq!(stages, 0, "what was read raw is forgotten");

    let corrupt = async |what: &str| {
        let error = get_all(&consumer, &lease).await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
    };
    let mut flipped = all[1].clone();
    flipped[MIB + 1] ^= 1;
    block_in_place(|| replace_raw(&*raw, &objects[1], &flipped));
    corrupt("one flipped byte").await;
    let mut swapped = all[1].clone();
    let (first, rest) = swapped.split_at_mut(MIB);
    first.swap_with_slice(&mut rest[..MIB]);
    let (first, rest) = swapped[4 * MIB..].split_at_mut(16);
    first.swap_with_slice(&mut rest[..16]);
    block_in_place(|| replace_raw(&*raw, &objects[1], &swapped));
    corrupt("two chunks of an object swapped").await;
    block_in_place(|| replace_raw(&*raw, &objects[1], &all[0]));
    corrupt("another object of the tensor").await;
    block_in_place(|| replace_raw(&*raw, &objects[1], &read_raw(&*raw, &older[1])));
    corrupt("an older generation's object").await;
    block_in_place(|| replace_raw(&*raw, &objects[1], &all[1][..3 * MIB]));
    corrupt("a truncated object").await;
    block_in_place(|| replace_raw(&*raw, &objects[1], &all[1]));
    check_tensors(&get_all(&consumer, &lease).await.expect("as it was"), &LENS, 2);

    let without = open(&endpoints).await;
    let theirs = read(&without, &stored.reference).await;
    let error = get_all(&without, &theirs).await.expect_err("no key");
    assert_eq!(
        (error.kind(), error.fact("key_id")),
        (ErrorKind::Denied, Some("k1")),
        "{error}"
    );
    let plain = put(&without, item("run/2", &[1000], 1)).await;
    let theirs = read(&consumer, &plain.reference).await;
    let error = get_all(&consumer, &theirs).await.expect_err("not sealed");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
