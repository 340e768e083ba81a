//! A real etcd that does not compact by itself.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::time::Duration;

use common::{CALL, commit, config, index, put_now, raw, wish};
use etcd_client::GetOptions;
use tensorhold_core::ErrorKind;
use tensorhold_custody::GroupName;
use tensorhold_index::store::TxnStore as _;
use tensorhold_index::{Index as _, SampleRef, TxnIndex};
use tensorhold_index_etcd::{Compacted, compact, has_other_keys, head};
use tensorhold_testkit::EtcdCluster;
use tokio::task::{JoinSet, block_in_place};

/// How long a take waits: for all that is written meanwhile, on a busy machine.
const WAITS: Duration = Duration::from_secs(120);
const WRITERS: u64 = 10;
const EACH: u64 = 1000;

fn start() -> EtcdCluster {
    block_in_place(|| EtcdCluster::start_uncompacted(1)).expect("etcd")
}

/// Writes ten thousand revisions: each put by an operator's client is one.
async fn write_many(endpoint: &str) {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let mut client = raw(endpoint).await;
        writers.spawn(async move {
            for number in 0..EACH {
                let key = format!("/tensorhold/loud/{writer}");
                client.put(key, number.to_string(), None).await.expect("a put");
            }
        });
    }
    while let Some(ended) = writers.join_next().await {
        ended.expect("a writer");
    }
}

/// Reads a key as it was at a revision.
async fn read_at(endpoint: &str, revision: u64) -> Result<(), etcd_client::Error> {
    let then = GetOptions::new().with_revision(i64::try_from(revision).expect("a revision"));
    raw(endpoint)
        .await
        .get("/tensorhold/loud/0", Some(then))
        .await
        .map(drop)
}

async fn put(index: &TxnIndex, session: &tensorhold_index::Session, group: &GroupName) {
    let wish = wish("late", 10);
    let sample = wish.sample.clone();
    let reserved = index.reserve(session, &[wish], CALL).await.remove(0);
    let sample = SampleRef {
        sample,
        generation: reserved.expect("reserved"),
    };
    let committed = index.commit(session, &[commit(&sample, group)], CALL).await.remove(0);
    committed.expect("committed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_past_is_forgotten_and_who_waits_or_puts_does_not_notice() {
    let etcd = start();
    let (endpoints, config) = (etcd.endpoints(), config(&etcd.endpoints(), 0));
    let endpoint = &endpoints[0];
    let index = index(&endpoints, "run", Duration::from_secs(10)).await;
    let session = index.open_session(CALL).await.expect("a session");
    let group = GroupName::new("trainers").expect("a name");
    let take = index.lease_next(&session, &group, 1, 100, WAITS);
    let compacted = async {
        let old = head(&config, CALL).await.expect("a revision");
        write_many(endpoint).await;
        let now = head(&config, CALL).await.expect("a revision");
        assert_eq!(now.cluster, old.cluster);
        assert!(now.revision >= old.revision + WRITERS * EACH, "{old:?}, {now:?}");
        read_at(endpoint, old.revision).await.expect("nobody has compacted");

        let done = compact(&config, now.revision, CALL).await.expect("compacted");
        assert_eq!(done, Compacted::Now);
        let error = read_at(endpoint, old.revision).await.expect_err("forgotten");
        assert!(error.to_string().contains("has been compacted"), "{error}");
        read_at(endpoint, now.revision).await.expect("what was there then");
        let again = compact(&config, now.revision, CALL).await.expect("nothing to do");
        assert_eq!(again, Compacted::Already);
        let error = compact(&config, now.revision + 1_000_000, CALL).await;
        assert_eq!(error.expect_err("yet to come").kind(), ErrorKind::Invalid);
        put(&index, &session, &group).await;
    };
    let (taken, ()) = tokio::join!(take, compacted);
    let taken = taken.expect("the take goes on");
    assert_eq!(taken.len(), 1, "what was put after the compaction");
    assert!(session.is_alive());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_others_are_seen_wherever_they_are() {
    let etcd = start();
    let (endpoints, config) = (etcd.endpoints(), config(&etcd.endpoints(), 0));
    let txn_store = common::open(&endpoints, 0).await;
    put_now(&txn_store, "first", "1").await;
    put_now(&txn_store, "\u{10ffff}", "1").await;
    let others = async || has_other_keys(&config, CALL).await.expect("an answer");
    assert!(!others().await, "all keys are of this index");
    let mut operator = raw(&endpoints[0]).await;
    for key in [
        "\0",
        "/a",
        "/tensorhold",
        "/tensorhold-2/x",
        "/tensorhold0",
        "/tensorhold2/x",
        "z",
    ] {
        operator.put(key, "1", None).await.expect("a put");
        assert!(others().await, "{key:?}");
        operator.delete(key, None).await.expect("a delete");
        assert!(!others().await, "{key:?} is gone");
    }
    assert!(txn_store.history().refuses.is_none());
}
