//! Three nodes, and the leader dies or stops responding: callers notice nothing but time and ambiguity.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects"
)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{CALL, clock, config, get, open, put, put_now, raw};
use tensorhold_core::{Clock, ErrorKind, Retry, SystemClock, Timestamp};
use tensorhold_custody::Version;
use tensorhold_index::store::{Change, Read, TxnOutcome, TxnStore, Watch, prefix};
use tensorhold_index_etcd::EtcdStore;
use tensorhold_testkit::EtcdCluster;
use tokio::task::block_in_place;

fn start(nodes: usize) -> EtcdCluster {
    block_in_place(|| EtcdCluster::start(nodes)).expect("etcd")
}

/// What one writer saw.
#[derive(Default)]
struct Written {
    acknowledged: BTreeMap<String, Version>,
    ambiguous: Vec<String>,
    acknowledged_at: Vec<Timestamp>,
}

/// Writes keys of its own, one after the other, until it is stopped.
async fn write(txn_store: EtcdStore, clock: SystemClock, name: String, stop: Arc<AtomicBool>) -> Written {
    let mut written = Written::default();
    let mut last = Version(0);
    let mut i = 0;
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{name}/{i:06}");
        i += 1;
        match txn_store.transact(&put(&key, "v"), CALL).await {
            Ok(TxnOutcome::Committed(version)) => {
                assert!(version > last, "version {version} after {last}");
                last = version;
                written.acknowledged.insert(key, version);
                written.acknowledged_at.push(clock.now());
            }
            Ok(TxnOutcome::Rejected) => panic!("no conditions, not applied"),
            Err(error) => {
                assert_eq!(
                    (error.kind(), error.retry()),
                    (ErrorKind::Unavailable, Retry::Ambiguous),
                    "{error:?}"
                );
                written.ambiguous.push(key);
            }
        }
    }
    written
}

fn longest_gap(moments: &[Timestamp]) -> Duration {
    moments
        .windows(2)
        .map(|pair| pair[1].since(pair[0]))
        .max()
        .unwrap_or_default()
}

async fn everything(txn_store: &dyn TxnStore, start: &str) -> BTreeMap<String, Version> {
    let mut all = BTreeMap::new();
    let mut keys = prefix(start);
    loop {
        let read = Read::Range {
            keys: keys.clone(),
            limit: 5000,
            keys_only: true,
        };
        let page = txn_store.read(&[read], CALL).await.expect("a read").entries.concat();
        let Some(last) = page.last() else { return all };
        keys.start = format!("{}\0", last.key);
        all.extend(page.into_iter().map(|entry| (entry.key, entry.version)));
    }
}

/// Four writers at one node, and the leader is killed under them.
async fn kill_the_leader_under_writers(etcd: &EtcdCluster, leader: usize, at: usize) {
    let txn_store = open(&etcd.endpoints(), at).await;
    let clock = SystemClock::new();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|i| tokio::spawn(write(txn_store.clone(), clock, format!("w{i}"), Arc::clone(&stop))))
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    block_in_place(|| etcd.node(leader).kill()).expect("killed");
    let killed = clock.now();
    tokio::time::sleep(Duration::from_secs(6)).await;
    stop.store(true, Ordering::Relaxed);

    let (mut acknowledged, mut ambiguous, mut gap) = (BTreeMap::new(), Vec::new(), Duration::ZERO);
    for writer in writers {
        let written = writer.await.expect("a writer");
        let after = written
            .acknowledged_at
            .iter()
            .filter(|moment| **moment > killed)
            .count();
        assert!(after > 100, "only {after} writes after the kill");
        gap = gap.max(longest_gap(&written.acknowledged_at));
        acknowledged.extend(written.acknowledged);
        ambiguous.extend(written.ambiguous);
    }
    let there = everything(&txn_store, "w").await;
    for (key, version) in &acknowledged {
        assert_eq!(there.get(key), Some(version), "{key} was acknowledged");
    }
    let extra: Vec<_> = there.keys().filter(|key| !acknowledged.contains_key(*key)).collect();
    assert!(
        extra.iter().all(|key| ambiguous.contains(key)),
        "written by nobody: {extra:?}"
    );
    eprintln!(
        "leader {leader} killed, writers at {at}: {} acknowledged, {} ambiguous of which {} were applied, longest gap {gap:?}",
        acknowledged.len(),
        ambiguous.len(),
        extra.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_loses_no_acknowledged_write() {
    let etcd = start(3);
    let leader = etcd.leader().expect("a leader");
    kill_the_leader_under_writers(&etcd, leader, leader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_behind_a_follower_loses_no_acknowledged_write() {
    let etcd = start(3);
    let leader = etcd.leader().expect("a leader");
    kill_the_leader_under_writers(&etcd, leader, (leader + 1) % 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_goes_deaf_is_left() {
    let etcd = start(3);
    let leader = etcd.leader().expect("a leader");
    let txn_store = open(&etcd.endpoints(), leader).await;
    let clock = SystemClock::new();
    let before = put_now(&txn_store, "a", "before").await;
    block_in_place(|| etcd.node(leader).stop()).expect("stopped");
    let begun = clock.now();
    assert_eq!(
        get(&txn_store, "a").await.expect("there").version,
        before,
        "a read finds another node"
    );
    let read = clock.now().since(begun);
    // The old leader may still be what the cluster waits for: ambiguity is lawful, another error is not.
    let mut tries = 0;
    let after = loop {
        tries += 1;
        assert!(tries < 10, "no write goes through");
        match txn_store.transact(&put("a", "after"), CALL).await {
            Ok(TxnOutcome::Committed(version)) => break version,
            Ok(TxnOutcome::Rejected) => panic!("no conditions, not applied"),
            Err(error) => assert_eq!(error.retry(), Retry::Ambiguous, "{error:?}"),
        }
    };
    let wrote = clock.now().since(begun);
    assert!(after > before);
    block_in_place(|| etcd.node(leader).resume()).expect("resumed");
    // The old leader, asked alone, has learnt what happened.
    let mut alone = config(&etcd.endpoints(), leader);
    alone.endpoints.truncate(1);
    let alone = EtcdStore::open(alone, common::clock(), CALL).await.expect("a store");
    assert!(get(&alone, "a").await.expect("there").version >= after);
    eprintln!("leader deaf: a read took {read:?}, a write went through after {wrote:?} and {tries} tries");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_restarts_is_found_again() {
    let etcd = start(1);
    let txn_store = open(&etcd.endpoints(), 0).await;
    let before = put_now(&txn_store, "a", "1").await;
    block_in_place(|| etcd.node(0).kill()).expect("killed");
    let down = txn_store
        .read(&[Read::Key("a".to_owned())], Duration::from_millis(300))
        .await
        .expect_err("nobody is there");
    assert_eq!(
        (down.kind(), down.retry()),
        (ErrorKind::Unavailable, Retry::Safe),
        "{down:?}"
    );
    let refused = txn_store
        .transact(&put("b", "1"), Duration::from_millis(300))
        .await
        .expect_err("nobody is there");
    assert_eq!(
        refused.retry(),
        Retry::Safe,
        "a refused connection sent nothing: {refused:?}"
    );
    let patient = txn_store.clone();
    let read = tokio::spawn(async move { get(&patient, "a").await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!read.is_finished(), "the read waits for the node");
    block_in_place(|| etcd.node(0).restart()).expect("restarted");
    assert_eq!(read.await.expect("a reader").expect("there").version, before);
    assert_eq!(get(&txn_store, "b").await, None, "what was not sent is not there");
    assert!(put_now(&txn_store, "a", "2").await > before, "versions do not go back");
}

/// Takes changes until one of `last` comes.
async fn until(watch: &mut dyn Watch, last: &str) -> Vec<Change> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|change: &Change| change.key != last) {
        let next = tokio::time::timeout(Duration::from_secs(40), watch.next()).await;
        seen.extend(
            next.unwrap_or_else(|_| panic!("no more changes after {:?}", seen.last()))
                .expect("changes"),
        );
    }
    seen
}

/// A watch at the leader, changes before, during and after what is done to it.
async fn watch_over(done_to_leader: impl AsyncFn(&EtcdCluster, usize)) -> Duration {
    let etcd = start(3);
    let leader = etcd.leader().expect("a leader");
    let mut settings = config(&etcd.endpoints(), leader);
    settings.watch_probe = Duration::from_secs(1);
    let watcher = EtcdStore::open(settings, clock(), CALL).await.expect("a store");
    let after = watcher.read(&[], CALL).await.expect("a read").version;
    let mut watch = watcher.watch(prefix("w/"), after, CALL).await.expect("a watch");

    let txn_store = open(&etcd.endpoints(), (leader + 1) % 3).await;
    let clock = SystemClock::new();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write(txn_store.clone(), clock, "w".to_owned(), Arc::clone(&stop)));
    let watching = tokio::spawn(async move {
        let changes = until(watch.as_mut(), "w/last").await;
        (changes, watch)
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    done_to_leader(&etcd, leader).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    stop.store(true, Ordering::Relaxed);
    let written = writer.await.expect("a writer");
    put_now(&txn_store, "w/last", "v").await;
    let stopped = clock.now();
    let (changes, _watch) = watching.await.expect("a watch");
    let late = clock.now().since(stopped);

    assert!(
        changes.is_sorted_by(|a, b| a.version < b.version),
        "in order, each once"
    );
    let seen: BTreeMap<_, _> = changes.into_iter().map(|change| (change.key, change.version)).collect();
    for (key, version) in &written.acknowledged {
        assert_eq!(seen.get(key), Some(version), "the watch missed {key}");
    }
    let there = everything(&txn_store, "w/").await;
    assert_eq!(seen, there, "the watch told of what is there, and of nothing else");
    late
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_survives_a_dead_leader() {
    let late = watch_over(async |etcd, leader| block_in_place(|| etcd.node(leader).kill()).expect("killed")).await;
    eprintln!("watch over a killed leader: the last change came {late:?} after it was acknowledged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_leaves_a_deaf_node() {
    let late = watch_over(async |etcd, leader| block_in_place(|| etcd.node(leader).stop()).expect("stopped")).await;
    eprintln!("watch over a deaf leader: the last change came {late:?} after it was acknowledged");
}

/// A mover takes what is ready, again and again: each of its calls is cancelled almost at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_whose_calls_are_cancelled_finds_its_node_again() {
    let etcd = start(1);
    let txn_store = open(&etcd.endpoints(), 0).await;
    let after = txn_store.read(&[], CALL).await.expect("a read").version;
    let mut watch = txn_store.watch(prefix("w/"), after, CALL).await.expect("a watch");
    block_in_place(|| etcd.node(0).kill()).expect("killed");
    tokio::time::timeout(Duration::from_millis(1), watch.next())
        .await
        .expect_err("nothing changes");
    block_in_place(|| etcd.node(0).restart()).expect("restarted");
    let version = put_now(&txn_store, "w/a", "1").await;

    let change = async {
        let mut polls = tokio::time::interval(Duration::from_millis(10));
        loop {
            polls.tick().await;
            if let Ok(changes) = tokio::time::timeout(Duration::ZERO, watch.next()).await {
                return changes.expect("no gap, no error");
            }
        }
    };
    let changes = tokio::time::timeout(CALL, change).await.expect("in time");
    assert_eq!(changes.first().map(|change| change.version), Some(version));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_watch_resumes_although_the_history_was_compacted() {
    let etcd = start(1);
    let mut settings = config(&etcd.endpoints(), 0);
    settings.watch_probe = Duration::from_millis(300);
    let txn_store = EtcdStore::open(settings, clock(), CALL).await.expect("a store");
    let after = txn_store.read(&[], CALL).await.expect("a read").version;
    let mut watch = txn_store.watch(prefix("quiet/"), after, CALL).await.expect("a watch");
    let mut last = after;
    for i in 0..20 {
        last = put_now(&txn_store, "loud", &i.to_string()).await;
    }
    // Long enough for it to ask for progress.
    tokio::time::timeout(Duration::from_secs(2), watch.next())
        .await
        .expect_err("nothing changes");
    let revision = i64::try_from(last.0).expect("a revision");
    raw(&etcd.endpoints()[0])
        .await
        .compact(revision, None)
        .await
        .expect("compacted");
    block_in_place(|| etcd.node(0).kill()).expect("killed");
    block_in_place(|| etcd.node(0).restart()).expect("restarted");
    let version = put_now(&txn_store, "quiet/a", "1").await;
    let changes = tokio::time::timeout(CALL, watch.next())
        .await
        .expect("in time")
        .expect("no gap, no error");
    assert_eq!(
        changes,
        [Change {
            key: "quiet/a".to_owned(),
            value: Some(b"1".to_vec()),
            version
        }]
    );
}
