//! A store that is moved between two real etcds while processes use it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test says what it expects"
)]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{ErrorKind, StoreId, SystemRng};
use tensorhold_custody::GroupName;
use tensorhold_index::placement::{
    ClusterAddress, ClusterName, Clusters as _, Move, MoveReport, move_store, write_map,
};
use tensorhold_index::store::{MovableStore, TxnStore, Write, prefix};
use tensorhold_index::testing::Client;
use tensorhold_index::{Index, IndexConfig, TxnIndex};
use tensorhold_index_etcd::{EtcdClusters, EtcdStore, NewStore, open_store};
use tensorhold_testkit::EtcdCluster;

use crate::common::{CALL, START, clock, config, open};

fn store() -> StoreId {
    StoreId::new("run/7").expect("a name")
}

/// Those who use the samples.
const GROUPS: &[&str] = &["trainers"];

fn group() -> GroupName {
    GroupName::new(GROUPS[0]).expect("a name")
}

/// Two etcds as one index: the home, and `b`.
struct Two {
    home: EtcdCluster,
    other: EtcdCluster,
}

impl Two {
    async fn start() -> Self {
        let start = || tokio::task::spawn_blocking(|| EtcdCluster::start(1));
        let (home, other) = tokio::join!(start(), start());
        let two = Self {
            home: home.expect("no panic").expect("an etcd"),
            other: other.expect("no panic").expect("an etcd"),
        };
        let endpoints = two.other.endpoints();
        let (home, clock) = (open(&two.home.endpoints(), 0).await, clock());
        let added = write_map(&home, &*clock, CALL, |map| {
            let address = ClusterAddress {
                endpoints: endpoints.clone(),
                open: true,
            };
            map.clusters.insert(b(), address);
            Ok(())
        });
        added.await.expect("a map");
        two
    }

    /// The clusters, as one process reaches them.
    async fn clusters(&self) -> Arc<EtcdClusters> {
        let settings = config(&self.home.endpoints(), 0);
        let home = EtcdStore::open(settings.clone(), clock(), START)
            .await
            .expect("the home");
        Arc::new(EtcdClusters::new(home, settings, clock()))
    }

    async fn process(&self) -> Client {
        let store = store();
        let txn_store = open_store(self.clusters().await, &store, NewStore::Begins, &SystemRng, START);
        let txn_store = txn_store.await.expect("the store");
        let settings = IndexConfig::default();
        let index = TxnIndex::new(txn_store, &store, settings, clock(), Arc::new(SystemRng));
        Client::open(Arc::new(index)).await.expect("a session")
    }

    async fn move_to(&self, to: &ClusterName, longest_linger: Duration) -> MoveReport {
        let asked = Move {
            store: store(),
            to: to.clone(),
            longest_linger,
        };
        let (clusters, clock) = (self.clusters().await, clock());
        move_store(&*clusters, &asked, &*clock, &SystemRng, START, &mut |_| {})
            .await
            .expect("a move")
    }
}

fn b() -> ClusterName {
    "b".parse().expect("a name")
}

/// Several processes' worth of clients; each put, take and answer is timed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_nothing_is_lost_or_used_twice_and_the_pause_is_short() {
    const PAIRS: usize = 2;
    const LONGEST_PAUSE: Duration = Duration::from_secs(5);
    let two = Two::start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let (made, used) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(Mutex::new(BTreeMap::<String, usize>::new())),
    );
    let longest = Arc::new(Mutex::new(Duration::ZERO));
    let timed = |longest: &Arc<Mutex<Duration>>, since: tokio::time::Instant| {
        let mut longest = longest.lock();
        *longest = since.elapsed().max(*longest);
    };
    let (mut producers, mut consumers) = (tokio::task::JoinSet::new(), tokio::task::JoinSet::new());
    let all_made = Arc::new(AtomicBool::new(false));
    for pair in 0..PAIRS {
        let process = two.process().await;
        let (stop, made, slowest) = (Arc::clone(&stop), Arc::clone(&made), Arc::clone(&longest));
        producers.spawn(async move {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let began = tokio::time::Instant::now();
                process
                    .publish(&format!("{pair}-{number}"), GROUPS)
                    .await
                    .expect("a put");
                timed(&slowest, began);
                made.fetch_add(1, Ordering::Relaxed);
            }
        });
        let process = two.process().await;
        let (all_made, used, slowest) = (Arc::clone(&all_made), Arc::clone(&used), Arc::clone(&longest));
        consumers.spawn(async move {
            loop {
                let is_end = all_made.load(Ordering::Relaxed);
                let taken = process.next_one(&group(), Duration::from_millis(500)).await;
                match taken.expect("a take") {
                    Some(grant) => {
                        let began = tokio::time::Instant::now();
                        process.ack_and_free(&grant).await.expect("an answer");
                        timed(&slowest, began);
                        *used.lock().entry(grant.sample.sample.to_string()).or_default() += 1;
                    }
                    None if is_end => break,
                    None => {}
                }
            }
        });
    }
    let (home, other) = (ClusterName::home(), b());
    let mut reports = Vec::new();
    for to in [&other, &home, &other] {
        let before = made.load(Ordering::Relaxed);
        while made.load(Ordering::Relaxed) < before + 100 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        reports.push(two.move_to(to, Duration::from_millis(100)).await);
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = producers.join_next().await {
        ended.expect("no producer fails");
    }
    all_made.store(true, Ordering::Relaxed);
    while let Some(ended) = consumers.join_next().await {
        ended.expect("no consumer fails");
    }
    let (used, made) = (used.lock().clone(), made.load(Ordering::Relaxed));
    let longest = *longest.lock();
    println!("{made} samples, longest call {longest:?}");
    for report in &reports {
        println!("{report:?}");
    }
    assert_eq!(used.len(), made, "each was used");
    assert!(used.values().all(|count| *count == 1), "once");
    assert!(
        reports
            .iter()
            .all(|report| report.frozen < LONGEST_PAUSE && report.sessions == 2 * PAIRS)
    );
    assert!(longest < LONGEST_PAUSE, "{longest:?}");
    // What is left at home says where the store is, and nothing else.
    let left = open(&two.home.endpoints(), 0).await;
    let left = left.with_sessions(prefix("run%2F7/"), 100, CALL).await.expect("a list");
    let others = left
        .iter()
        .filter(|(entry, _)| !entry.key.starts_with("run%2F7/m/"))
        .count();
    assert_eq!(others, 0, "{left:?}");
}

#[tokio::test]
async fn a_session_is_known_elsewhere_under_its_own_id() {
    let two = Two::start().await;
    let (here, there) = (
        open(&two.home.endpoints(), 0).await,
        open(&two.other.endpoints(), 0).await,
    );
    let time_to_live = Duration::from_secs(5);
    let session = here.open_session(time_to_live, CALL).await.expect("a session");
    let id = session.id();
    assert_eq!(here.time_to_live(id, CALL).await.expect("known"), Some(time_to_live));
    assert_eq!(there.time_to_live(id, CALL).await.expect("not known"), None);
    let error = there
        .resume_session(id, time_to_live, CALL)
        .await
        .expect_err("not there");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    for _ in 0..2 {
        there
            .import_session(id, time_to_live, CALL)
            .await
            .expect("twice is once");
    }
    let with = Write::Put {
        key: "k".to_owned(),
        value: b"v".to_vec(),
        session: Some(id),
    };
    let put = tensorhold_index::store::Transaction {
        writes: vec![with, Write::put("l", "w")],
        ..Default::default()
    };
    there.transact(&put, CALL).await.expect("a put");
    let entries = there.with_sessions(prefix(""), 10, CALL).await.expect("a list");
    let found: Vec<_> = entries
        .iter()
        .map(|(entry, session)| (entry.key.as_str(), *session))
        .collect();
    assert!(
        found.contains(&("k", Some(id))) && found.contains(&("l", None)),
        "{found:?}"
    );
    let resumed = there.resume_session(id, time_to_live, CALL).await.expect("there");
    session.close(CALL).await.expect("closed here");
    tokio::time::sleep(time_to_live + Duration::from_secs(2)).await;
    assert!(resumed.is_alive());
    assert_eq!(
        there.time_to_live(id, CALL).await.expect("kept alive"),
        Some(time_to_live)
    );
    resumed.close(CALL).await.expect("closed");
    assert!(common::get(&there, "k").await.is_none(), "its key vanishes with it");
}

#[tokio::test]
async fn a_new_store_begins_where_the_map_says() {
    let two = Two::start().await;
    let clusters = two.clusters().await;
    let map = clusters.map(CALL).await.expect("read").expect("a map");
    let (mut there, mut here) = (0, 0);
    for number in 0..8 {
        let store = StoreId::new(format!("run-{number}")).expect("a name");
        let opened = open_store(Arc::clone(&clusters), &store, NewStore::Begins, &SystemRng, START);
        assert!(opened.await.expect("the store").follows_moves());
        let raw = clusters.connect(&map.choose(&store), CALL).await.expect("its cluster");
        let index = TxnIndex::new(
            open_store(Arc::clone(&clusters), &store, NewStore::IsLeft, &SystemRng, START)
                .await
                .expect("found"),
            &store,
            IndexConfig::default(),
            clock(),
            Arc::new(SystemRng),
        );
        index.open_session(CALL).await.expect("a session");
        let keys = raw
            .with_sessions(prefix(format!("run-{number}/n/")), 10, CALL)
            .await
            .expect("a list");
        assert_eq!(keys.len(), 1, "its session is on its cluster");
        if map.choose(&store) == b() {
            there += 1
        } else {
            here += 1
        }
    }
    assert!(there > 0 && here > 0, "{there} and {here}");
}
