//! Stores that nobody uses cost next to nothing, are opened again when they are used, and are forgotten in the end.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects and what it saw"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::*;
use tensorhold_core::{Clock, Result, StoreId, SystemClock};
use tensorhold_engine::Engine;
use tensorhold_features::{FeatureConfig, Identity};
use tensorhold_index::store::{Transaction, TxnStore, Write};
use tensorhold_index::{Index, forget, in_use, stores};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
use tensorhold_steward::{Connect, Options, OtherStores, Steward};
use tensorhold_testkit::EtcdCluster;

/// A world whose stores are listed and looked at.
struct Listed {
    world: Arc<World>,
    /// How often a store was opened.
    opened: AtomicUsize,
    /// How often idle stores were looked at.
    looks: AtomicUsize,
}

impl Listed {
    fn new(world: &Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(world),
            opened: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
        })
    }
}

#[async_trait]
impl Connect for Listed {
    async fn engine(&self, store: &StoreId) -> Result<Arc<dyn Engine>> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.world.engine(store).await
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        self.world.index(store, identity).await
    }

    async fn stores(&self, within: Duration) -> Result<Vec<StoreId>> {
        stores(&*self.world.txn_store, None, 10_000, &*self.world.clock, within).await
    }

    async fn in_use(&self, stores: &[StoreId], within: Duration) -> Result<Vec<StoreId>> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        in_use(&*self.world.txn_store, stores, &*self.world.clock, within).await
    }

    async fn forget(&self, store: &StoreId, within: Duration) -> Result<bool> {
        forget(&*self.world.txn_store, store, &*self.world.clock, within).await
    }
}

fn options(look_every: Duration) -> Options {
    let mut options = Options::new([]);
    options.others = Some(OtherStores::default());
    options.look_every = look_every;
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_left_alone_when_its_run_has_ended_and_opened_when_it_is_used() {
    let world = World::in_memory();
    let open = || {
        world.open(FeatureConfig {
            pool_bytes: 1 << 20,
            ..FeatureConfig::new(store("run"))
        })
    };
    let user = open().await;
    let listed = Listed::new(&world);
    let connect = Arc::clone(&listed);
    let steward = Steward::start(options(Duration::from_millis(200)), connect)
        .await
        .expect("a steward");
    let is = |what: fn(&tensorhold_steward::report::StoreReport) -> bool| {
        steward.report().stores.get("run").is_some_and(what)
    };
    until("it is on duty", || is(|store| store.on_duty)).await;
    user.close(WITHIN).await.expect("closed");
    until("the store is left alone", || is(|store| store.idle && !store.open)).await;
    let index = world.index_of(&store("run"), Arc::clone(&world.txn_store));
    assert!(
        index.sessions(WITHIN).await.expect("listed").is_empty(),
        "it has no session there"
    );
    let (opened, looks) = (
        listed.opened.load(Ordering::Relaxed),
        listed.looks.load(Ordering::Relaxed),
    );
    until("it is looked at", || listed.looks.load(Ordering::Relaxed) >= looks + 5).await;
    assert_eq!(
        listed.opened.load(Ordering::Relaxed),
        opened,
        "it is not opened for that"
    );
    let user = open().await;
    until("it is on duty again", || is(|store| store.on_duty && !store.idle)).await;
    user.close(WITHIN).await.expect("closed");
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_store_is_forgotten_in_time() {
    let world = World::in_memory();
    let user = world
        .open(FeatureConfig {
            pool_bytes: 1 << 20,
            ..FeatureConfig::new(store("run"))
        })
        .await;
    user.close(WITHIN).await.expect("closed");
    let mut options = options(Duration::from_secs(1));
    options.others = Some(OtherStores {
        forget_after: Some(Duration::from_secs(10)),
        ..OtherStores::default()
    });
    let steward = Steward::start(options, Listed::new(&world)).await.expect("a steward");
    until("it is left alone", || {
        steward.report().stores.get("run").is_some_and(|store| store.idle)
    })
    .await;
    until("it is forgotten", || steward.report().forgotten == 1).await;
    assert!(steward.report().stores.is_empty());
    let left = stores(&*world.txn_store, None, 10, &*world.clock, WITHIN)
        .await
        .expect("listed");
    assert_eq!(left, []);
    steward.stop(WITHIN).await.expect("stopped");
}

/// How many seconds of a processor etcd has used.
fn processor_seconds(etcd: &EtcdCluster) -> f64 {
    let text = tokio::task::block_in_place(|| etcd.metrics()).expect("etcd's metrics");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("process_cpu_seconds_total "));
    line.and_then(|value| value.parse().ok()).expect("the metric")
}

/// A thousand stores whose runs have ended, a steward, and a real etcd: less than 5 % of a core, of etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_stores_cost_etcd_less_than_a_twentieth_of_a_core() {
    const STORES: usize = 1000;
    const MEASURED: Duration = Duration::from_secs(60);
    let etcd = tokio::task::block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let clock = Arc::new(SystemClock::new());
    let endpoint = etcd.endpoints()[0].clone();
    let opened = EtcdStore::open(EtcdConfig::new([endpoint]), clock.clone(), WITHIN)
        .await
        .expect("a store");
    for part in 0..STORES / 20 {
        let writes = (0..20).flat_map(|one| {
            let name = format!("run-{part:03}-{one:02}");
            // Its clock, its budget, a sample that nobody took, and a session that has ended.
            [
                ("t", "700"),
                ("b/budget", "1000"),
                ("b/a/0000000000000001-1", "1000"),
                ("z/0000000000000007", ""),
            ]
            .map(|(key, value)| Write::put(format!("{name}/{key}"), value))
        });
        let begun = Transaction {
            conditions: Vec::new(),
            writes: writes.collect(),
        };
        opened.transact(&begun, WITHIN).await.expect("written");
    }
    let world = World::over(Arc::new(opened), clock.clone());
    let steward = Steward::start(options(Duration::from_secs(15)), Listed::new(&world))
        .await
        .expect("a steward");
    let begun = clock.now();
    while steward
        .report()
        .stores
        .values()
        .filter(|store| store.idle && store.unused_seconds.is_some())
        .count()
        < STORES
    {
        assert!(clock.now().since(begun) < 4 * WITHIN, "they are not all idle");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let before = processor_seconds(&etcd);
    tokio::time::sleep(MEASURED).await;
    let share = (processor_seconds(&etcd) - before) / MEASURED.as_secs_f64();
    eprintln!("{STORES} idle stores cost etcd {:.2} % of a core", 100.0 * share);
    assert!(share < 0.05, "{:.2} % of a core", 100.0 * share);
    steward.stop(WITHIN).await.expect("stopped");
}
