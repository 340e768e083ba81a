//! An etcd whose quota runs out under load: no caller gets a false refusal, and when there is room again every caller
//! goes on.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects"
)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::{CALL, commit, index, wish};
use tensorhold_core::{Error, ErrorKind, Retry, SampleId};
use tensorhold_custody::GroupName;
use tensorhold_index::{Index, LeaseGrant, SampleRef, Session, TxnIndex};
use tensorhold_testkit::EtcdCluster;
use tokio::task::block_in_place;

/// Small enough to be used up in a second.
const QUOTA: u64 = 16 << 20;
const SESSIONS: usize = 24;
/// etcd answers no request while it is defragmented, and this machine does other things too.
const TIME_TO_LIVE: Duration = Duration::from_secs(30);
/// Transactions in flight of each session. A third one would wait and share a request with others.
const EACH: usize = 2;
/// Whether etcd applies what it refuses depends on what is under way when its file grows: not every time.
const ROUNDS: usize = 3;

struct Process {
    index: Arc<TxnIndex>,
    session: Session,
}

async fn process(etcd: &EtcdCluster) -> Process {
    let index = index(&etcd.endpoints(), "full", TIME_TO_LIVE).await;
    let session = index.open_session(CALL).await.expect("a session");
    Process { index, session }
}

fn start() -> EtcdCluster {
    block_in_place(|| EtcdCluster::start_with_quota(1, QUOTA)).expect("etcd")
}

/// Reserves until a call fails. Returns the reserved samples, and the error of the last call.
async fn reserve_until_full(process: &Process, name: &str) -> (Vec<SampleId>, SampleId, Error) {
    let mut reserved = Vec::new();
    for n in 0..10_000 {
        let item = wish(&format!("{name}-{n}"), 50_000);
        let sample = item.sample.clone();
        match process.index.reserve(&process.session, &[item], CALL).await.pop() {
            Some(Ok(_)) => reserved.push(sample),
            Some(Err(error)) => return (reserved, sample, error),
            None => panic!("one item, no result"),
        }
    }
    panic!("the quota of {QUOTA} bytes was never used up");
}

const RESERVED: &str = "/tensorhold/full/p/";

/// All that is reserved.
fn reserved(etcd: &EtcdCluster) -> BTreeSet<String> {
    let keys = block_in_place(|| etcd.etcdctl(&["get", "--prefix", "--keys-only", RESERVED])).expect("a look");
    let names = keys.lines().filter_map(|line| line.strip_prefix(RESERVED));
    names.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_never_says_no_to_a_reserve_that_it_made_and_wedges_no_session() {
    let etcd = start();
    let mut processes = Vec::new();
    for _ in 0..SESSIONS {
        processes.push(Arc::new(process(&etcd).await));
    }
    for round in 0..ROUNDS {
        fill_up(&etcd, &processes, round).await;
        make_room(&etcd);
        let mut wedged = Vec::new();
        for (n, process) in processes.iter().enumerate() {
            assert!(process.session.is_alive(), "keep-alives work under the alarm");
            for m in 0..3 {
                let again = [wish(&format!("again-{round}-{n}-{m}"), 10)];
                for result in process.index.reserve(&process.session, &again, CALL).await {
                    wedged.extend(result.err().map(|error| format!("session {n}: {error}")));
                }
            }
        }
        assert_eq!(wedged, Vec::<String>::new(), "sessions that are of no use any more");
    }
}

/// All reserve until etcd is full. No caller may get a false answer.
async fn fill_up(etcd: &EtcdCluster, processes: &[Arc<Process>], round: usize) {
    let mut tasks = Vec::new();
    for (n, process) in processes.iter().enumerate() {
        for m in 0..EACH {
            let (process, name) = (Arc::clone(process), format!("{round}-{n}-{m}"));
            tasks.push(tokio::spawn(async move { reserve_until_full(&process, &name).await }));
        }
    }
    let (mut made, mut refused, mut lied, mut unclear) = (Vec::new(), 0, Vec::new(), 0);
    let mut last = Vec::new();
    for task in tasks {
        let (reserved, sample, error) = task.await.expect("a task");
        made.extend(reserved);
        last.push((sample, error));
    }
    let there = reserved(etcd);
    for sample in &made {
        assert!(there.contains(sample.as_str()), "{sample} was reported as reserved");
    }
    for (sample, error) in last {
        assert_eq!(error.kind(), ErrorKind::Capacity, "{error:?}");
        match error.retry() {
            Retry::Ambiguous => unclear += 1,
            _ if there.contains(sample.as_str()) => lied.push(format!("{sample}: {error}")),
            _ => refused += 1,
        }
    }
    eprintln!(
        "round {round}: {} reserved, {refused} refused rightly, {unclear} unclear, {} refused that were made",
        made.len(),
        lied.len()
    );
    assert_eq!(lied, Vec::<String>::new(), "reported as refused, but made");
}

fn make_room(etcd: &EtcdCluster) {
    let made = block_in_place(|| {
        etcd.etcdctl(&["del", "--prefix", RESERVED])?;
        etcd.make_room()
    });
    made.expect("room");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_the_alarm_reads_work_changes_are_refused_and_nothing_is_lost() {
    let etcd = start();
    let producer = process(&etcd).await;
    let group = GroupName::new("train").expect("a name");
    let mut committed = Vec::new();
    for n in 0..3 {
        let item = wish(&format!("kept-{n}"), 10);
        let sample = item.sample.clone();
        let reserved = producer.index.reserve(&producer.session, &[item], CALL).await;
        let generation = reserved.into_iter().next().expect("a result").expect("reserved");
        let sample = SampleRef { sample, generation };
        let done = producer
            .index
            .commit(&producer.session, &[commit(&sample, &group)], CALL)
            .await;
        done.into_iter().next().expect("a result").expect("committed");
        committed.push(sample);
    }
    let held: LeaseGrant = producer
        .index
        .lease(&producer.session, &group, &committed[..1], 1000, CALL)
        .await
        .pop()
        .expect("a result")
        .expect("leased");
    reserve_until_full(&producer, "full").await;
    // The alarm is in force from the entry of etcd's log that raises it on: a moment later.
    let alarm = block_in_place(|| {
        tensorhold_testkit::poll(CALL, Duration::from_millis(50), || {
            etcd.etcdctl(&["alarm", "list"])
                .ok()
                .filter(|alarms| alarms.contains("NOSPACE"))
        })
    });
    assert!(alarm.is_some(), "there is an alarm");

    let names: Vec<SampleId> = committed.iter().map(|sample| sample.sample.clone()).collect();
    let seen = producer.index.look(&names, CALL).await.expect("a look");
    assert!(seen.iter().all(Option::is_some), "what is committed is seen");
    let good = producer
        .index
        .check(&producer.session, std::slice::from_ref(&held), CALL)
        .await;
    assert_eq!(good.expect("a check"), [true], "a lease is still good");

    let full = |error: Error| {
        assert_eq!(
            (error.kind(), error.retry()),
            (ErrorKind::Capacity, Retry::Safe),
            "{error:?}"
        )
    };
    full(
        producer
            .index
            .reserve(&producer.session, &[wish("no", 10)], CALL)
            .await
            .remove(0)
            .expect_err("no room"),
    );
    full(
        producer
            .index
            .ack(&producer.session, std::slice::from_ref(&held), CALL)
            .await
            .remove(0)
            .expect_err("no room"),
    );
    full(producer.index.open_session(CALL).await.expect_err("no room"));

    make_room(&etcd);
    let acked = producer.index.ack(&producer.session, &[held], CALL).await;
    acked
        .into_iter()
        .next()
        .expect("a result")
        .expect("the same lease, later");
    producer.index.sweep(&producer.session, 100, CALL).await.expect("swept");
}
