//! A steward beside a real etcd that does not compact by itself.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use tensorhold_core::SystemClock;
use tensorhold_index_etcd::{Compacted, EtcdConfig, EtcdStore, compact, head};
use tensorhold_steward::report::CompactionReport;
use tensorhold_steward::{Compact, EtcdOptions, Options, Steward};
use tensorhold_testkit::EtcdCluster;

/// The shortest that there may be.
const EVERY: Duration = Duration::from_secs(10);

struct Beside {
    etcd: EtcdCluster,
    world: Arc<World>,
}

impl Beside {
    async fn start() -> Self {
        let start = tokio::task::spawn_blocking(|| EtcdCluster::start_uncompacted(1));
        let etcd = start.await.expect("run").expect("etcd");
        let clock = Arc::new(SystemClock::new());
        let opened = EtcdStore::open(EtcdConfig::new(etcd.endpoints()), clock.clone(), WITHIN).await;
        let world = World::over(Arc::new(opened.expect("etcd")), clock);
        Self { etcd, world }
    }

    fn reach(&self) -> EtcdConfig {
        EtcdConfig::new(self.etcd.endpoints())
    }

    async fn steward(&self, compact: Compact, read_only: bool) -> Steward {
        let mut options = Options::new([store("run")]);
        options.read_only = read_only;
        options.etcd = Some(EtcdOptions {
            compact,
            compact_every: EVERY,
            ..EtcdOptions::new(self.reach())
        });
        Steward::start(options, self.world.clone()).await.expect("a steward")
    }

    fn run(&self, arguments: &[&str]) {
        let ran = tokio::task::block_in_place(|| self.etcd.etcdctl(arguments));
        ran.expect("etcdctl");
    }
}

fn told(steward: &Steward) -> CompactionReport {
    steward.report().compaction.expect("an etcd is watched")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_with_no_other_keys_is_compacted() {
    let beside = Beside::start().await;
    let begun = head(&beside.reach(), WITHIN).await.expect("a revision").revision;
    let steward = beside.steward(Compact::Auto, false).await;
    until("it has compacted", || told(&steward).done > 0).await;
    let report = told(&steward);
    assert!(report.revision.is_some_and(|revision| revision >= begun), "{report:?}");
    assert!(report.last_ms.is_some() && report.why_not.is_none(), "{report:?}");
    let again = compact(&beside.reach(), report.revision.expect("a revision"), WITHIN).await;
    assert_eq!(again.expect("an answer"), Compacted::Already, "etcd has done it");
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_others_use_is_left_alone_unless_it_was_asked_for() {
    let beside = Beside::start().await;
    beside.run(&["put", "/another/program", "1"]);
    let begun = head(&beside.reach(), WITHIN).await.expect("a revision").revision;
    let steward = beside.steward(Compact::Auto, false).await;
    until("it has looked", || told(&steward).why_not.is_some()).await;
    // Another interval, in which it would have compacted.
    tokio::time::sleep(EVERY + Duration::from_secs(2)).await;
    let report = told(&steward);
    assert_eq!(
        (report.done, report.failed, report.revision),
        (0, 0, None),
        "{report:?}"
    );
    assert!(
        report
            .why_not
            .as_ref()
            .is_some_and(|why| why.contains("outside of this index's root")),
        "{report:?}"
    );
    steward.stop(WITHIN).await.expect("stopped");
    let first = compact(&beside.reach(), begun, WITHIN).await;
    assert_eq!(first.expect("an answer"), Compacted::Now, "nobody has done it before");

    let steward = beside.steward(Compact::On, false).await;
    until("it has compacted", || told(&steward).done > 0).await;
    assert_eq!(told(&steward).why_not, None);
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steward_that_is_to_leave_etcd_alone_says_why() {
    let beside = Beside::start().await;
    for (compact, read_only, why) in [(Compact::Off, false, "settings"), (Compact::On, true, "read_only")] {
        let steward = beside.steward(compact, read_only).await;
        let report = told(&steward);
        assert!(
            report.why_not.as_ref().is_some_and(|said| said.contains(why)),
            "{report:?}"
        );
        steward.stop(WITHIN).await.expect("stopped");
    }
}
