//! A feature store whose etcd is restored from a snapshot under it, on a real master, a holder process and a real etcd.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;

use common::servers::*;
use common::*;
use tensorhold_core::{ErrorKind, SystemClock};
use tensorhold_index_etcd::{EtcdConfig, restore_guard};
use tensorhold_testkit::Revisions;
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_lives_through_a_restored_etcd_and_never_gets_other_bytes() {
    let cluster = start();
    let endpoints = cluster.endpoints();
    let etcd = cluster.etcd_cluster().expect("an etcd");
    let (producer, consumer) = (open(&endpoints).await, open(&endpoints).await);
    let kept = put(&producer, item("kept", &[MIB, 1000], 1)).await;
    let snapshot = block_in_place(|| etcd.snapshot()).expect("a snapshot");
    let gone = put(&producer, item("gone", &[MIB], 2)).await;
    let lease = take(&consumer, &gone).await;
    block_in_place(|| etcd.restore(&snapshot, Revisions::Repeat)).expect("restored");

    // Refused, and it is said why: nothing is put into or taken out of an etcd that went back.
    for store in [&producer, &consumer] {
        let put = || store.put(item("refused", &[1000], 3), WITHIN);
        let mut refused = put().await.expect_err("fenced");
        if refused.to_string().contains("this session has ended") {
            // Its keeper found out in the middle of the put. The next put wants another session, and is told why.
            assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused:?}");
            refused = put().await.expect_err("fenced");
        }
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused:?}");
        assert!(refused.to_string().contains("restore guard"), "{refused}");
        let health = store.health(WITHIN).await;
        assert!(
            health.index.refuses.is_some() && health.index.cuts == 1,
            "{:?}",
            health.index
        );
    }
    get_all(&consumer, &lease).await.expect_err("its lease is gone");

    let etcd = EtcdConfig::new(endpoints.etcd.clone());
    restore_guard(etcd, Arc::new(SystemClock::new()), WITHIN)
        .await
        .expect("the guard");
    // The same stores, without a restart. What the snapshot has is there, to the byte.
    let held = read(&consumer, &kept.reference).await;
    check_tensors(&get_all(&consumer, &held).await.expect("bytes"), &[MIB, 1000], 1);
    // What came after it is gone, and another sample of that name is never taken for it.
    let missing = one(consumer
        .lease_shared(std::slice::from_ref(&gone.reference), WITHIN)
        .await);
    assert_eq!(missing.expect_err("gone").kind(), ErrorKind::NotFound);
    let again = put(&producer, item("gone", &[MIB], 4)).await;
    assert!(again.reference.generation > gone.reference.generation);
    let missing = one(consumer
        .lease_shared(std::slice::from_ref(&gone.reference), WITHIN)
        .await);
    missing.expect_err("gone for ever");
    let lease = take(&consumer, &again).await;
    check_tensors(&get_all(&consumer, &lease).await.expect("bytes"), &[MIB], 4);
    ack(&consumer, &lease).await.expect("acked");
    consumer.drain(WITHIN).await.expect("freed");
    let health = consumer.health(WITHIN).await;
    assert_eq!((health.index.refuses, health.sessions_opened), (None, 2));
}
