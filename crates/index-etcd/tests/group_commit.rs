//! Transactions of one process that go as one request.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::{CALL, get, open, put, put_now};
use futures_util::future::join_all;
use tensorhold_core::{ErrorKind, Retry};
use tensorhold_index::store::{Condition, Transaction, TxnOutcome, TxnStore, Write};
use tensorhold_testkit::EtcdCluster;
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_ones_go_in_few_requests_and_each_gets_its_own_answer() {
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let txn_store = open(&etcd.endpoints(), 0).await;
    put_now(&txn_store, "there", "v").await;
    let transactions: Vec<Transaction> = (0..64)
        .map(|n| Transaction {
            // Every fourth asks for what is not so.
            conditions: match n % 4 {
                0 => vec![Condition::Absent("there".to_owned())],
                _ => vec![Condition::Present("there".to_owned())],
            },
            writes: vec![Write::put(format!("k/{n}"), n.to_string())],
        })
        .collect();
    let outcomes = join_all(transactions.iter().map(|one| txn_store.transact(one, CALL))).await;
    let mut versions = BTreeSet::new();
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let entry = get(&txn_store, &format!("k/{n}")).await;
        match outcome.expect("an answer") {
            TxnOutcome::Committed(version) => {
                assert_ne!(n % 4, 0, "{n} was applied against its condition");
                let entry = entry.expect("written");
                assert_eq!(
                    (entry.value, entry.version),
                    (n.to_string().into_bytes(), version),
                    "{n}"
                );
                versions.insert(version);
            }
            TxnOutcome::Rejected => assert!(n % 4 == 0 && entry.is_none(), "{n} was not applied"),
        }
    }
    assert!(versions.len() <= 24, "48 were applied, at {} versions", versions.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_behind_a_deaf_etcd_until_its_deadline_was_never_sent() {
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let txn_store = open(&etcd.endpoints(), 0).await;
    put_now(&txn_store, "before", "v").await;
    block_in_place(|| etcd.node(0).stop()).expect("stopped");
    let patient: Vec<Transaction> = (0..2).map(|n| put(&format!("sent/{n}"), "v")).collect();
    let hasty: Vec<Transaction> = (0..8).map(|n| put(&format!("waits/{n}"), "v")).collect();
    let within = Duration::from_millis(600);
    let sent = join_all(patient.iter().map(|one| txn_store.transact(one, CALL)));
    let waiting = join_all(hasty.iter().map(|one| txn_store.transact(one, within)));
    let left = txn_store.transact(&hasty[0], CALL);
    let (sent, waiting, left) = tokio::join!(sent, waiting, tokio::time::timeout(within / 2, left));
    block_in_place(|| etcd.node(0).resume()).expect("resumed");
    left.expect_err("its caller leaves");
    for error in sent.into_iter().map(|outcome| outcome.expect_err("etcd was deaf")) {
        assert_eq!(error.retry(), Retry::Ambiguous, "{error:?}");
    }
    for error in waiting.into_iter().map(|outcome| outcome.expect_err("etcd was deaf")) {
        assert_eq!(
            (error.kind(), error.retry()),
            (ErrorKind::Unavailable, Retry::Safe),
            "{error:?}"
        );
    }
    // Whatever was sent has been done when this has.
    put_now(&txn_store, "after", "v").await;
    for n in 0..8 {
        assert!(
            get(&txn_store, &format!("waits/{n}")).await.is_none(),
            "{n} was sent after all"
        );
    }
}
