//! Sessions that are opened while the store is moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tensorhold_core::{Clock, ErrorKind};
use tensorhold_index::placement::{ClusterName, Clusters, FollowingStore};
use tensorhold_index::store::TxnStore;
use tensorhold_index::testing::{CaseResult, Client};

use crate::clusters::{CALL, MemoryClusters};
use crate::fuse::{Fused, Mishap};
use crate::{GROUPS, index, store};

/// A process that stops at one of the calls that open a session.
struct Stopping {
    clusters: Arc<MemoryClusters>,
    fused: Arc<Fused>,
    following: Arc<FollowingStore>,
}

impl Stopping {
    /// The first call finds the store: it must be a later one.
    async fn at(mishap: Mishap, at: usize) -> Self {
        let clusters = MemoryClusters::new();
        let fused = Arc::new(Fused::new(&clusters, mishap, at));
        let clock = Arc::clone(&clusters.clock) as Arc<dyn Clock>;
        let (store, home) = (store(), ClusterName::home());
        let fused_clusters = Arc::clone(&fused) as Arc<dyn Clusters>;
        let found = fused.run(FollowingStore::open(&store, &home, fused_clusters, clock, CALL));
        let found = found.await.expect("it does not stop yet");
        Self {
            clusters,
            fused,
            following: Arc::new(found.expect("the store")),
        }
    }

    async fn open(&self) -> CaseResult<Client> {
        let following = Arc::clone(&self.following) as Arc<dyn TxnStore>;
        Client::open(index(&self.clusters, following)).await
    }
}

/// Meanwhile the store is moved, and the process follows. Returns whether there is such a call.
async fn is_opened_around_moves(mishap: Mishap, at: usize, targets: &[&str]) -> bool {
    let context = format!("{mishap:?} at call {at}, moved to {targets:?}");
    let it = Stopping::at(mishap, at).await;
    let mut opening = std::pin::pin!(it.open());
    if let Some(opened) = it.fused.run(&mut opening).await {
        opened.expect(&context);
        return false;
    }
    for to in targets {
        it.clusters.move_to(&store(), to).await.expect(&context);
        // With every session that it knows of.
        it.following.read(&[], CALL).await.expect(&context);
        assert_eq!(it.following.cluster().as_str(), *to, "{context}");
    }
    it.fused.go_on();
    let process = opening.await.expect(&context);
    assert!(process.session().is_alive(), "{context}");
    process.publish("s", GROUPS).await.expect(&context);
    true
}

#[tokio::test]
async fn a_session_that_a_move_leaves_behind_is_replaced() {
    for mishap in [Mishap::Stops, Mishap::IsToldLater] {
        // The last one brings the store back to where the session is still known.
        for targets in [&["b"][..], &["b", "home"]] {
            let mut at = 2;
            while is_opened_around_moves(mishap, at, targets).await {
                at += 1;
            }
            assert!(at >= 6, "only {at} calls");
        }
    }
}

#[tokio::test]
async fn in_an_index_that_was_restored_no_session_is_opened() {
    let mut at = 2;
    loop {
        let it = Stopping::at(Mishap::Stops, at).await;
        let index = index(&it.clusters, Arc::clone(&it.following) as Arc<dyn TxnStore>);
        let mut opening = std::pin::pin!(index.open_session(CALL));
        if it.fused.run(&mut opening).await.is_some() {
            break;
        }
        let home = it.clusters.store("home");
        home.put_back(&home.save());
        it.fused.go_on();
        let error = opening.await.expect_err("it is not declared valid yet");
        assert_eq!(error.kind(), ErrorKind::Fenced, "at call {at}: {error}");
        at += 1;
    }
    assert!(at >= 6, "only {at} calls");
}

#[tokio::test]
async fn sessions_can_be_opened_all_the_time_while_the_store_is_moved() {
    const PROCESSES: usize = 8;
    const MOVES: usize = 6;
    let clusters = MemoryClusters::new();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..PROCESSES {
        let following = clusters.open(&store()).await.expect("the store");
        let (index, stop) = (index(&clusters, Arc::new(following)), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut opened = 0;
            while !stop.load(Ordering::Relaxed) {
                let session = index.open_session(CALL).await.expect("a session");
                assert!(session.is_alive());
                session.close(CALL).await.expect("closed");
                opened += 1;
                // Without it, eight busy processes write more than one mover copies.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            opened
        });
    }
    for to in ["b", "c", "home"].into_iter().cycle().take(MOVES) {
        clusters.move_to(&store(), to).await.expect("a move");
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(opened) = tasks.join_next().await {
        let opened: usize = opened.expect("no process fails");
        assert!(opened > 0, "no session");
    }
}
