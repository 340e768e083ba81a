//! A thousand sessions on one store, on a real etcd: what sweeping costs, and how quickly the page's requests are answered.
//!
//! Counted between index and etcd: every range and key that is read, alone or in a transaction, and every condition, for
//! which etcd reads, too. Nothing but sweeping (and collecting) does that here, since no process uses the store meanwhile.
//! Beside it etcd's own count (`etcd_debugging_mvcc_range_total`), which has the keep-alives in it: each of them looks
//! whether this is still the same etcd.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects and what it saw"
)]

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::*;
use tensorhold_core::{Clock, Result, SystemClock};
use tensorhold_custody::Version;
use tensorhold_features::{FeatureConfig, FeatureStore};
use tensorhold_index::store::{Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
use tensorhold_steward::{Options, Steward};
use tensorhold_testkit::{EtcdCluster, quantile};

const SESSIONS: usize = 1000;
/// What is allowed of sweeping, in ranges per second.
const GOAL: f64 = 50.0;
const MEASURED: Duration = Duration::from_secs(20);
/// What the page may ask for: so often, and so quickly answered.
const REQUESTS: usize = 200;
const QUICK_MS: f64 = 200.0;

/// A number of etcd's own.
async fn metric(etcd: &str, name: &'static str) -> f64 {
    let url = format!("{etcd}/metrics");
    let text = tokio::task::spawn_blocking(move || {
        let request = ureq::get(&url).config().timeout_global(Some(WITHIN)).build();
        let mut answer = request.call().expect("etcd's metrics");
        answer.body_mut().read_to_string().expect("text")
    });
    let text = text.await.expect("asked");
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
    let value = line.and_then(|line| line.split(' ').nth(1)).expect("the metric");
    value.parse().expect("a number")
}

/// Ranges per second: of sweeping, and by etcd's own count.
async fn ranges_per_second(etcd: &str, counted: &AtomicUsize) -> (f64, f64) {
    const TOTAL: &str = "etcd_debugging_mvcc_range_total";
    let clock = SystemClock::new();
    let (begun, before) = (clock.now(), metric(etcd, TOTAL).await);
    counted.store(0, Ordering::Relaxed);
    tokio::time::sleep(MEASURED).await;
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let sweeping = counted.load(Ordering::Relaxed) as f64;
    let after = metric(etcd, TOTAL).await;
    let seconds = clock.now().since(begun).as_secs_f64();
    (sweeping / seconds, (after - before) / seconds)
}

/// Counts what is read.
#[derive(Debug)]
struct Counting {
    inner: EtcdStore,
    ranges: Arc<AtomicUsize>,
}

#[async_trait]
impl TxnStore for Counting {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.ranges.fetch_add(reads.len(), Ordering::Relaxed);
        self.inner.read(reads, within).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        self.ranges.fetch_add(transaction.conditions.len(), Ordering::Relaxed);
        self.inner.transact(transaction, within).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.inner.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.inner.watch(keys, after, within).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_sessions_cost_at_most_fifty_ranges_a_second() {
    let cluster = tokio::task::spawn_blocking(|| EtcdCluster::start(1))
        .await
        .expect("run")
        .expect("etcd");
    let endpoint = cluster.endpoints().remove(0);
    let clock = Arc::new(SystemClock::new());
    let connect = || EtcdStore::open(EtcdConfig::new(cluster.endpoints()), clock.clone(), WITHIN);
    // A few connections, as a few processes have; every store has a session of its own.
    let counted = Arc::new(AtomicUsize::new(0));
    let mut worlds = Vec::new();
    for _ in 0..4 {
        let counting = Counting {
            inner: connect().await.expect("etcd"),
            ranges: Arc::clone(&counted),
        };
        worlds.push(World::over(Arc::new(counting), clock.clone()));
    }
    let config = || FeatureConfig {
        pool_bytes: 1 << 20,
        ..FeatureConfig::new(store("many"))
    };
    let mut members: Vec<FeatureStore> = Vec::new();
    while members.len() < SESSIONS {
        let more = (0..50).map(|n| worlds[n % worlds.len()].open(config()));
        members.extend(futures_of(more).await);
    }
    let on_duty = || {
        members
            .iter()
            .filter(|member| member.sweeping().borrow().on_duty)
            .count()
    };
    until("two of them sweep", || on_duty() == 2).await;
    let (alone, alone_etcd) = ranges_per_second(&endpoint, &counted).await;
    let steward = Steward::start(Options::new([store("many")]), worlds[0].clone())
        .await
        .expect("a steward");
    until("the steward sweeps", || {
        steward.report().stores["many"].on_duty && on_duty() == 0
    })
    .await;
    let (with_steward, with_steward_etcd) = ranges_per_second(&endpoint, &counted).await;
    let sessions = members[0].sessions(WITHIN).await.expect("the sessions").len();
    eprintln!(
        "{sessions} sessions: sweeping reads {alone:.1} ranges/s without a steward, {with_steward:.1} with one; etcd counts \
         {alone_etcd:.1} and {with_steward_etcd:.1}, keep-alives included"
    );
    assert_eq!(sessions, SESSIONS + 1);
    assert!(with_steward <= GOAL, "{with_steward} ranges a second with a steward");
    assert!(alone <= 2.0 * GOAL, "{alone} ranges a second without one");
    assert!(with_steward > 1.0, "it sweeps, and this counts it");
    page_requests_are_quick(&worlds[1]).await;
    // It goes, and the store's own processes go on.
    steward.stop(WITHIN).await.expect("stopped");
    until("two of them sweep again", || on_duty() == 2).await;
    let before = clock.now();
    drop(members);
    drop(worlds);
    eprintln!("dropped in {:?}", clock.now().since(before));
}

/// The page's requests, while a viewer watches. The steward that answers them stands by: that is no part of the figures above.
async fn page_requests_are_quick(world: &Arc<World>) {
    let mut options = Options::new([store("many")]);
    options.http = Some(serde_json::from_str(r#"{"listen":"127.0.0.1:0","within":"12s"}"#).expect("settings"));
    let steward = Steward::start(options, world.clone()).await.expect("a steward");
    let address = steward.address().expect("it listens");
    until("it has the store open", || steward.report().stores["many"].open).await;
    let asked = tokio::task::spawn_blocking(move || {
        let get = |agent: &ureq::Agent, path: &str| agent.get(format!("http://{address}{path}")).call();
        let agent = || -> ureq::Agent {
            let config = ureq::Agent::config_builder().timeout_global(Some(WITHIN));
            config.build().into()
        };
        // A stream that is open, and read.
        let watcher = agent();
        let mut watched = get(&watcher, "/v1/events").expect("a stream");
        let watching = std::thread::spawn(move || {
            // It ends by itself.
            watched
                .body_mut()
                .read_to_string()
                .map_or(0, |text| text.matches("event: overview").count())
        });
        let clock = SystemClock::new();
        let agent = agent();
        for path in [
            "/",
            "/v1/overview",
            "/v1/stores/many/sessions",
            "/v1/stores/many/history",
        ] {
            let mut took = Vec::with_capacity(REQUESTS);
            let mut bytes = 0;
            for _ in 0..REQUESTS {
                let begun = clock.now();
                let text = get(&agent, path).expect("an answer").body_mut().read_to_string();
                bytes = text.expect("text").len();
                took.push(1e3 * clock.now().since(begun).as_secs_f64());
            }
            let (half, most) = (quantile(&mut took, 0.5), quantile(&mut took, 0.99));
            eprintln!("{path}: {bytes} bytes, p50 {half:.1} ms, p99 {most:.1} ms of {REQUESTS} requests");
            assert!(most <= QUICK_MS, "{path}: p99 is {most} ms");
        }
        watching.join().expect("no panic")
    });
    let told = asked.await.expect("asked");
    eprintln!("meanwhile {told} overviews were told");
    assert!(told > 0, "nothing was told");
    steward.stop(WITHIN).await.expect("stopped");
}

/// All of them, at the same time.
async fn futures_of<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    futures_util::future::join_all(all).await
}
