//! An etcd that is restored from a snapshot, or replaced by an empty one, under processes that go on running: what they
//! report, what they refuse, and that they go on by themselves when the operator has run the restore guard.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects"
)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{CALL, START, clock, commit, config, get, index, open, put_now, wish};
use tensorhold_core::{Error, ErrorKind, Retry, SampleId};
use tensorhold_custody::{GroupName, Reason};
use tensorhold_index::store::{Condition, Transaction, TxnOutcome, TxnStore, Write};
use tensorhold_index::{Index, LeaseGrant, SampleRef, Session, TxnIndex};
use tensorhold_index_etcd::restore_guard;
use tensorhold_testkit::{EtcdCluster, Revisions};
use tokio::task::block_in_place;

fn start() -> EtcdCluster {
    block_in_place(|| EtcdCluster::start(1)).expect("etcd")
}

async fn guard(etcd: &EtcdCluster) -> String {
    restore_guard(config(&etcd.endpoints(), 0), clock(), START)
        .await
        .expect("the guard")
        .epoch
}

fn group() -> GroupName {
    GroupName::new("train").expect("a name")
}

/// One process: its index, and the session that it has now.
struct Process {
    index: Arc<TxnIndex>,
    session: Session,
}

impl Process {
    async fn start(etcd: &EtcdCluster) -> Self {
        let index = index(&etcd.endpoints(), "s", Duration::from_secs(3)).await;
        let session = index.open_session(CALL).await.expect("a session");
        Self { index, session }
    }

    /// What a process does when its session has ended; nothing is restarted.
    async fn open_another_session(&mut self) {
        self.session = self.index.open_session(CALL).await.expect("another session");
    }

    async fn reserve(&self, name: &str) -> Result<SampleRef, Error> {
        let item = wish(name, 10);
        let sample = item.sample.clone();
        let reserved = self.index.reserve(&self.session, &[item], CALL).await.remove(0);
        reserved.map(|generation| SampleRef { sample, generation })
    }

    async fn publish(&self, name: &str) -> SampleRef {
        let sample = self.reserve(name).await.expect("reserved");
        let committed = self
            .index
            .commit(&self.session, &[commit(&sample, &group())], CALL)
            .await;
        for done in committed {
            done.expect("committed");
        }
        sample
    }

    async fn lease(&self, sample: &SampleRef) -> Result<LeaseGrant, Error> {
        let (group, sample) = (group(), std::slice::from_ref(sample));
        let leased = self.index.lease(&self.session, &group, sample, 1000, CALL).await;
        leased.into_iter().next().expect("a result")
    }

    async fn is_live(&self, name: &str) -> Option<SampleRef> {
        let name = SampleId::new(name).expect("a name");
        let seen = self.index.look(&[name], CALL).await.expect("a look");
        seen.into_iter().next().flatten().map(|view| view.sample)
    }

    /// Everything is refused, and it is said why and what to do.
    async fn is_fenced(&self, says: &str) {
        let told = |error: Error| {
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error:?}");
            error.to_string()
        };
        let refused = self.reserve("refused").await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused:?}");
        let message = told(self.index.open_session(CALL).await.expect_err("no session"));
        assert!(message.contains(says) && message.contains("restore guard"), "{message}");
        told(
            self.index
                .look(&[SampleId::new("kept").expect("a name")], CALL)
                .await
                .expect_err("no look"),
        );
        assert!(!self.session.is_alive(), "its session has ended");
        let history = self.index.history();
        assert!(history.refuses.is_some_and(|why| why.contains(says)), "health tells");
        assert!(history.cuts >= 1);
    }

    /// The shared clock moves, samples are reserved, committed, leased, acknowledged and freed.
    async fn works(&self, name: &str) {
        let sample = self.publish(name).await;
        let held = self.lease(&sample).await.expect("leased");
        let acked = self.index.ack(&self.session, &[held], CALL).await.remove(0);
        acked.expect("acknowledged");
        let freed = self.index.freed(&self.session, &[sample], CALL).await.remove(0);
        freed.expect("freed");
        let before = self.index.tick(CALL).await.expect("a tick");
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            self.index.sweep(&self.session, 100, CALL).await.expect("swept");
            if self.index.tick(CALL).await.expect("a tick") > before {
                return;
            }
        }
        panic!("the shared clock stands at {before}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_etcd_is_refused_until_the_guard_was_run_and_then_everybody_goes_on() {
    let etcd = start();
    let mut busy = Process::start(&etcd).await;
    let mut idle = Process::start(&etcd).await;
    let kept = busy.publish("kept").await;
    busy.index.sweep(&busy.session, 10, CALL).await.expect("swept");
    let snapshot = block_in_place(|| etcd.snapshot()).expect("a snapshot");
    let mut gone = Vec::new();
    for n in 0..20 {
        gone.push(busy.publish(&format!("gone-{n}")).await);
    }
    let held = busy.lease(&gone[0]).await.expect("leased");
    tokio::time::sleep(Duration::from_millis(300)).await;
    busy.index.sweep(&busy.session, 10, CALL).await.expect("swept");
    assert!(idle.is_live("gone-0").await.is_some(), "it has seen what is gone later");

    block_in_place(|| etcd.restore(&snapshot, Revisions::Repeat)).expect("restored");
    busy.is_fenced("went back from revision").await;
    // Without a call of its own, its keeper finds out.
    tokio::time::timeout(CALL, idle.session.ended())
        .await
        .expect("it is told");
    idle.is_fenced("went back from revision").await;

    let epoch = guard(&etcd).await;
    for process in [&mut busy, &mut idle] {
        process.open_another_session().await;
        let history = process.index.history();
        assert_eq!((history.refuses, history.epoch), (None, epoch.clone()), "health tells");
    }
    assert_eq!(
        busy.is_live("kept").await,
        Some(kept.clone()),
        "what the snapshot has is there"
    );
    for sample in &gone {
        assert_eq!(
            idle.is_live(sample.sample.as_str()).await,
            None,
            "{sample:?} is gone, and said to be"
        );
    }
    busy.works("again").await;
    idle.works("again-idle").await;
    // The same names, with other content; revisions repeat, references do not.
    for old in &gone {
        let new = idle.publish(old.sample.as_str()).await;
        assert!(new.generation > old.generation, "{new:?} after {old:?}");
        assert_eq!(busy.lease(old).await.expect_err("gone").kind(), ErrorKind::Fenced);
    }
    let good = busy.index.check(&busy.session, std::slice::from_ref(&held), CALL).await;
    assert_eq!(good.expect("a check"), [false], "a lease on what is gone");
    let late = busy.index.ack(&busy.session, &[held], CALL).await.remove(0);
    late.expect_err("an answer for what is gone");
    busy.lease(&kept).await.expect("what was kept can be leased");
    let retired = busy
        .index
        .retire(&busy.session, &[kept], Reason::Aborted, CALL)
        .await
        .remove(0);
    retired.expect("and retired");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_bumped_revisions_nothing_stale_is_matched_before_the_guard_either() {
    let etcd = start();
    let mut process = Process::start(&etcd).await;
    let kept = process.publish("kept").await;
    let snapshot = block_in_place(|| etcd.snapshot()).expect("a snapshot");
    let gone = process.publish("gone").await;
    let held = process.lease(&gone).await.expect("leased");
    block_in_place(|| etcd.restore(&snapshot, Revisions::Bumped)).expect("restored");

    // The same cluster, and a larger revision. What is gone is not found, and what is held of it is not.
    assert_eq!(process.is_live("gone").await, None);
    let acked = process.index.ack(&process.session, &[held], CALL).await.remove(0);
    acked.expect_err("an answer for what is gone");
    // The session is in the snapshot, but not what it wrote since: it is not wedged, it has ended.
    let refused = process.reserve("in-the-old-session").await.expect_err("fenced");
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused:?}");
    assert!(!process.session.is_alive());
    process.open_another_session().await;
    let other = process.publish("gone").await;
    assert!(other.generation > gone.generation, "{other:?} after {gone:?}");
    assert_eq!(process.lease(&gone).await.expect_err("gone").kind(), ErrorKind::Fenced);

    // The guard fences every process.
    guard(&etcd).await;
    process.reserve("refused").await.expect_err("another epoch");
    assert!(!process.session.is_alive(), "its session has ended");
    assert_eq!(process.index.history().cuts, 1);
    process.open_another_session().await;
    assert_eq!(process.is_live("kept").await, Some(kept));
    assert_eq!(process.is_live("gone").await, Some(other.clone()));
    process.works("again").await;
    let newest = process.publish("gone").await;
    assert!(newest.generation > other.generation);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_etcd_in_its_place_is_refused_until_the_guard_was_run() {
    let etcd = start();
    let mut process = Process::start(&etcd).await;
    for n in 0..20 {
        process.publish(&format!("gone-{n}")).await;
    }
    process.index.sweep(&process.session, 10, CALL).await.expect("swept");
    block_in_place(|| etcd.replace()).expect("replaced");
    process.is_fenced("went back from revision").await;
    // A process that starts now has nothing to compare with. It makes an index of its own, in an epoch of its own.
    let newcomer = Process::start(&etcd).await;
    for n in 0..40 {
        newcomer.publish(&format!("new-{n}")).await;
    }
    process.is_fenced("went back from revision").await;

    guard(&etcd).await;
    process.open_another_session().await;
    assert_eq!(process.is_live("gone-0").await, None, "what was in the old one is gone");
    assert!(process.is_live("new-0").await.is_some());
    process.works("again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_was_replaced_and_has_overtaken_us_is_known_by_its_epoch() {
    let etcd = start();
    let process = Process::start(&etcd).await;
    process.publish("gone").await;
    block_in_place(|| etcd.node(0).stop()).expect("stopped");
    // No call is made while it is away.
    block_in_place(|| etcd.replace()).expect("replaced");
    let newcomer = open(&etcd.endpoints(), 0).await;
    for n in 0..50 {
        put_now(&newcomer, "filler", &n.to_string()).await;
    }
    let refused = process.reserve("refused").await.expect_err("another etcd");
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused:?}");
    assert!(!process.session.is_alive());
    process.index.open_session(CALL).await.expect_err("not told yet");
    guard(&etcd).await;
    process.index.open_session(CALL).await.expect("told");
}

/// Its connection broke with the old etcd, and is not made again under a store that has no session whose keeper would find
/// out: the first transaction after the restore is not sent before the new etcd has shown what it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_to_a_restored_etcd_before_the_guard_was_run() {
    let etcd = start();
    let txn_store = open(&etcd.endpoints(), 0).await;
    put_now(&txn_store, "a", "kept").await;
    let snapshot = block_in_place(|| etcd.snapshot()).expect("a snapshot");
    let gone = put_now(&txn_store, "b", "gone").await;
    block_in_place(|| etcd.restore(&snapshot, Revisions::Repeat)).expect("restored");
    let late = Transaction {
        writes: vec![Write::put("c", "late")],
        ..Transaction::default()
    };
    for _ in 0..3 {
        let error = txn_store
            .transact(&late, CALL)
            .await
            .expect_err("not the etcd that it knows");
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error:?}");
        assert_ne!(error.retry(), Retry::Ambiguous, "it was not sent: {error:?}");
    }
    assert_eq!(txn_store.history().cuts, 1);
    // A newcomer has nothing to compare with.
    let newcomer = open(&etcd.endpoints(), 0).await;
    assert_eq!(get(&newcomer, "b").await, None);
    assert_eq!(get(&newcomer, "c").await, None, "it would have the version {gone}, too");
    guard(&etcd).await;
    let version = put_now(&txn_store, "c", "now").await;
    assert!(version > gone, "{version} after {gone}");
}

/// The interleaving that was measured: a condition on a version that is given out again, for other content.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_condition_never_holds_on_other_content() {
    let etcd = start();
    let txn_store = open(&etcd.endpoints(), 0).await;
    put_now(&txn_store, "a", "kept").await;
    let snapshot = block_in_place(|| etcd.snapshot()).expect("a snapshot");
    let gone = put_now(&txn_store, "b", "gone").await;
    put_now(&txn_store, "b", "gone too").await;
    block_in_place(|| etcd.restore(&snapshot, Revisions::Repeat)).expect("restored");
    guard(&etcd).await;
    // Another process fills the revision that `gone` had with other content.
    let other = open(&etcd.endpoints(), 0).await;
    for n in 0..10 {
        let version = put_now(&other, "b", &n.to_string()).await;
        assert!(version > gone, "{version} after {gone}");
        let stale = Transaction {
            conditions: vec![Condition::Unchanged("b".to_owned(), gone)],
            writes: vec![Write::put("b", "overwritten")],
        };
        match txn_store.transact(&stale, CALL).await {
            Ok(applied) => assert_eq!(applied, TxnOutcome::Rejected),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Fenced, "{error:?}"),
        }
    }
    assert_eq!(get(&other, "b").await.expect("there").value, b"9");
    assert!(
        txn_store.history().cuts == 1 && txn_store.history().refuses.is_none(),
        "{:?}",
        txn_store.history()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_that_runs_again_or_without_need_costs_sessions_and_nothing_else() {
    let etcd = start();
    let mut process = Process::start(&etcd).await;
    let before = process.publish("kept").await;
    let (first, second) = (guard(&etcd).await, guard(&etcd).await);
    assert_ne!(first, second);
    tokio::time::timeout(CALL, process.session.ended())
        .await
        .expect("it is told");
    process.open_another_session().await;
    assert_eq!(process.index.history().epoch, second);
    assert_eq!(process.is_live("kept").await, Some(before));
    process.works("again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_from_before_there_were_epochs_gets_its_first_one() {
    let etcd = start();
    let process = Process::start(&etcd).await;
    let kept = process.publish("kept").await;
    drop(process);
    block_in_place(|| etcd.etcdctl(&["del", "/tensorhold/epoch"])).expect("as before");
    let process = Process::start(&etcd).await;
    assert_eq!(process.is_live("kept").await, Some(kept));
    assert!(process.index.history().epoch.starts_with("0-"));
    process.works("again").await;
}
