//! Sessions while nodes and holders die.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects"
)]

mod common;

use std::time::Duration;

use common::{CALL, get, open};
use tensorhold_core::{Clock, ErrorKind, SystemClock};
use tensorhold_custody::SessionId;
use tensorhold_index::store::{Transaction, TxnStore, Write};
use tensorhold_testkit::EtcdCluster;
use tokio::task::block_in_place;

fn put_with(key: &str, session: SessionId) -> Transaction {
    let write = Write::Put {
        key: key.to_owned(),
        value: b"alive".to_vec(),
        session: Some(session),
    };
    Transaction {
        conditions: Vec::new(),
        writes: vec![write],
    }
}

/// Waits until a key is gone; how long that took.
async fn until_gone(txn_store: &dyn TxnStore, key: &str, within: Duration) -> Duration {
    let clock = SystemClock::new();
    let begun = clock.now();
    while get(txn_store, key).await.is_some() {
        assert!(
            clock.now().since(begun) < within,
            "{key} is still there after {within:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    clock.now().since(begun)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_survives_a_dead_leader() {
    let etcd = block_in_place(|| EtcdCluster::start(3)).expect("etcd");
    let leader = etcd.leader().expect("a leader");
    let txn_store = open(&etcd.endpoints(), leader).await;
    let session = txn_store
        .open_session(Duration::from_secs(5), CALL)
        .await
        .expect("a session");
    txn_store
        .transact(&put_with("s", session.id()), CALL)
        .await
        .expect("a put");
    let version = get(&txn_store, "s").await.expect("there").version;
    block_in_place(|| etcd.node(leader).kill()).expect("killed");
    for _ in 0..24 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(session.is_alive(), "the keeper has two nodes left");
    }
    assert_eq!(get(&txn_store, "s").await.expect("its key is there").version, version);
    txn_store
        .transact(&put_with("s2", session.id()), CALL)
        .await
        .expect("it is not fenced");
    session.close(CALL).await.expect("closed");
    assert_eq!(get(&txn_store, "s").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_dies_with_its_process() {
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let txn_store = open(&etcd.endpoints(), 0).await;
    let endpoints = etcd.endpoints();
    // A runtime of its own stands for the process: nothing of it runs on, and nothing says goodbye.
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let id = runtime.block_on(async {
            let txn_store = open(&endpoints, 0).await;
            let session = txn_store
                .open_session(Duration::from_secs(3), CALL)
                .await
                .expect("a session");
            txn_store
                .transact(&put_with("s", session.id()), CALL)
                .await
                .expect("a put");
            tokio::time::sleep(Duration::from_secs(4)).await; // it has been kept
            let id = session.id();
            std::mem::forget(session);
            id
        });
        runtime.shutdown_background();
        id
    });
    let id = block_in_place(|| process.join()).expect("the process");
    assert!(get(&txn_store, "s").await.is_some(), "it was kept until the end");
    let took = until_gone(&txn_store, "s", Duration::from_secs(3 + 5)).await;
    let fenced = txn_store.transact(&put_with("s", id), CALL).await.expect_err("dead");
    assert_eq!(fenced.kind(), ErrorKind::Fenced, "{fenced:?}");
    eprintln!("a session of 3 s was gone {took:?} after its process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_reaches_nobody_knows_before_etcd_does() {
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let txn_store = open(&etcd.endpoints(), 0).await;
    let ttl = Duration::from_secs(3);
    let session = txn_store.open_session(ttl, CALL).await.expect("a session");
    block_in_place(|| etcd.node(0).stop()).expect("stopped");
    let clock = SystemClock::new();
    let begun = clock.now();
    tokio::time::timeout(ttl + Duration::from_millis(300), session.ended())
        .await
        .expect("it ended in time");
    assert!(!session.is_alive());
    let took = clock.now().since(begun);
    assert!(
        took > ttl / 2,
        "it had been heard of a third of its life ago at most, and ended after {took:?}"
    );
    block_in_place(|| etcd.node(0).resume()).expect("resumed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_cannot_be_closed_dies_all_the_same() {
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let txn_store = open(&etcd.endpoints(), 0).await;
    let session = txn_store
        .open_session(Duration::from_secs(2), CALL)
        .await
        .expect("a session");
    txn_store
        .transact(&put_with("s", session.id()), CALL)
        .await
        .expect("a put");
    block_in_place(|| etcd.node(0).stop()).expect("stopped");
    let error = session
        .close(Duration::from_millis(500))
        .await
        .expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(!session.is_alive(), "whatever etcd thinks, its holder is done with it");
    block_in_place(|| etcd.node(0).resume()).expect("resumed");
    until_gone(&txn_store, "s", Duration::from_secs(2 + 8)).await;
}
