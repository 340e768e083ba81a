//! Reads of one process that go as one request.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use common::{CALL, open, put_now};
use futures_util::future::join_all;
use tensorhold_index::store::{Read, TxnStore as _};
use tensorhold_testkit::EtcdCluster;
use tokio::task::block_in_place;

/// How many reads and transactions etcd was asked for.
fn requests(etcd: &EtcdCluster) -> f64 {
    let page = block_in_place(|| etcd.metrics()).expect("etcd's metrics");
    let lines = page
        .lines()
        .filter(|line| line.starts_with("grpc_server_started_total") && line.contains("etcdserverpb.KV"));
    let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    counts.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_ones_go_in_few_requests_and_each_gets_its_own_answer() {
    const READS: usize = 64;
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let txn_store = open(&etcd.endpoints(), 0).await;
    let mut versions = Vec::new();
    for n in 0..READS {
        versions.push(put_now(&txn_store, &format!("k/{n}"), &n.to_string()).await);
    }
    let before = requests(&etcd);
    // Of different lengths, so that an answer in the wrong place is seen.
    let reads: Vec<Vec<Read>> = (0..READS)
        .map(|n| {
            let missing = (0..n % 3).map(|m| Read::Key(format!("missing/{n}/{m}")));
            missing.chain([Read::Key(format!("k/{n}"))]).collect()
        })
        .collect();
    let answers = join_all(reads.iter().map(|reads| txn_store.read(reads, CALL))).await;
    for (n, answer) in answers.into_iter().enumerate() {
        let answer = answer.expect("an answer");
        assert_eq!(answer.entries.len(), n % 3 + 1, "{n}");
        assert!(answer.version >= versions[n], "{n}");
        let (last, missing) = answer.entries.split_last().expect("one");
        assert!(missing.iter().all(Vec::is_empty), "{n}");
        let [entry] = &**last else { panic!("{n}: {last:?}") };
        assert_eq!(
            (&*entry.key, &*entry.value, entry.version),
            (&*format!("k/{n}"), n.to_string().as_bytes(), versions[n])
        );
    }
    let sent = requests(&etcd) - before;
    assert!(sent <= 8.0, "{READS} reads went in {sent} requests");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_sees_what_was_written_before_it_was_asked_for() {
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let (txn_store, other) = (open(&etcd.endpoints(), 0).await, open(&etcd.endpoints(), 0).await);
    let rounds = (0..8).map(|worker| {
        let (txn_store, other) = (&txn_store, &other);
        async move {
            let key = format!("w/{worker}");
            for round in 0..50 {
                let written = put_now(other, &key, &round.to_string()).await;
                let seen = txn_store.read(&[Read::Key(key.clone())], CALL).await.expect("a read");
                assert_eq!(seen.entries[0][0].version, written, "{key} in round {round}");
            }
        }
    });
    join_all(rounds).await;
}
