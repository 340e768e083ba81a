//! The contract suite of `Index` on a store that is moved from cluster to cluster all the time.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

#[path = "placement/clusters.rs"]
mod clusters;

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Clock, Result, StoreId};
use tensorhold_index::placement::FollowingStore;
use tensorhold_index::store::TxnStore;
use tensorhold_index::testing::{Backend, Harness, MemoryHarness};
use tensorhold_index::{IndexConfig, Session};
use tokio::task::JoinHandle;

use crate::clusters::MemoryClusters;

/// How often a store is moved in one case. Its time stands still while it waits, so a consumer that is woken by each move
/// would wait for ever.
const MOVES: usize = 20;
/// How long a store stays where it is, at least: with less, its clients do little but follow it.
const BETWEEN_MOVES: Duration = Duration::from_millis(2);

fn main() {
    tensorhold_index::testing::main(MovingBackend);
}

struct MovingBackend;

struct MovingHarness {
    /// All clusters, from outside.
    memory: MemoryHarness,
    clusters: Arc<MemoryClusters>,
    opened: Arc<Mutex<Vec<Weak<FollowingStore>>>>,
    /// Held during a move, and by what must not happen during one.
    still: Arc<tokio::sync::Mutex<()>>,
    mover: Mutex<Option<JoinHandle<()>>>,
}

#[async_trait]
impl Backend for MovingBackend {
    /// A watch may end with an error, and does when the store is moved: whoever watches reads again. These cases hold one
    /// watch from beginning to end; the first one uses a connection for two stores, of which only one is moved.
    fn leaves_out(&self) -> &'static [&'static str] {
        &[
            "layout::a_store_next_door_is_not_touched",
            "lost::many_at_once_are_all_told",
            "lost::every_watch_is_told_with_the_producer",
            "lost::what_was_lost_before_the_watch_began_is_told",
            "office::a_watch_begins_where_the_reading_ended",
            "office::a_watch_tells_of_every_change",
            "office::it_ends_with_a_session_that_was_cut_off",
        ]
    }

    async fn start(&self) -> Result<Box<dyn Harness>> {
        let (store, clusters) = (StoreId::new("contract/moving")?, MemoryClusters::new());
        let others = ["b", "c"].map(|cluster| clusters.store(cluster).clone()).to_vec();
        let (clock, home) = (Arc::clone(&clusters.clock), clusters.store("home").clone());
        let harness = MovingHarness {
            memory: MemoryHarness::over(store.clone(), clock, home, others),
            clusters: Arc::clone(&clusters),
            opened: Arc::default(),
            still: Arc::default(),
            mover: Mutex::default(),
        };
        let (opened, still) = (Arc::clone(&harness.opened), Arc::clone(&harness.still));
        let mover = tokio::spawn(async move {
            for to in ["b", "c", "home"].into_iter().cycle().take(MOVES) {
                let turn = still.lock().await;
                // It may be refused while a session is half open; the next one moves it then.
                if clusters.move_to(&store, to).await.is_ok() {
                    arrived(&opened, to).await;
                }
                drop(turn);
                tokio::time::sleep(BETWEEN_MOVES).await;
            }
        });
        *harness.mover.lock() = Some(mover);
        Ok(Box::new(harness))
    }
}

/// Waits until every client has followed, by itself. Otherwise a case that lets time pass would end their sessions.
async fn arrived(opened: &Mutex<Vec<Weak<FollowingStore>>>, to: &str) {
    loop {
        let stores: Vec<_> = opened.lock().iter().filter_map(Weak::upgrade).collect();
        if stores.iter().all(|store| store.cluster().as_str() == to) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl MovingHarness {
    /// Ends the moves: what follows is about one history.
    async fn stop(&self) {
        let _turn = self.still.lock().await;
        if let Some(mover) = self.mover.lock().take() {
            mover.abort();
        }
    }
}

impl Drop for MovingHarness {
    fn drop(&mut self) {
        if let Some(mover) = self.mover.lock().take() {
            mover.abort();
        }
    }
}

#[async_trait]
impl Harness for MovingHarness {
    fn store(&self) -> &StoreId {
        self.memory.store()
    }

    fn settings(&self) -> IndexConfig {
        self.memory.settings()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.memory.clock()
    }

    async fn pass(&self, time: Duration) {
        let _turn = self.still.lock().await;
        self.memory.pass(time).await;
    }

    async fn kill_session(&self, session: &Session) -> Result<()> {
        let _turn = self.still.lock().await;
        self.memory.kill_session(session).await
    }

    async fn save(&self) -> Result<()> {
        self.stop().await;
        self.memory.save().await
    }

    async fn put_back(&self) -> Result<()> {
        self.memory.put_back().await
    }

    async fn declare(&self) -> Result<()> {
        self.memory.declare().await
    }

    async fn txn_store(&self) -> Result<Arc<dyn TxnStore>> {
        let _turn = self.still.lock().await;
        let store = Arc::new(self.clusters.open(self.store()).await?);
        self.opened.lock().push(Arc::downgrade(&store));
        Ok(store)
    }
}
