//! The conductor: starts everything, does the harm, and checks what is left.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Retry, SystemClock, poll_until};
use tensorhold_index::{Index, store::Read, store::TxnStore, store::prefix};
use tensorhold_testkit::{EtcdCluster, Process, ProcessSpec};

use crate::history::{self, Event, Line, Step};
use crate::spec;
use crate::worker::{self, Task, WORKERS};

const PROCESSES: usize = 4;
const SECONDS: u64 = 60;
/// Credits for fewer samples than there are workers, so that they wait for each other.
const BUDGET: u64 = 12 * worker::BYTES;
const KILLED: usize = 1;
const STOPPED: usize = 2;
/// Well past the session's time to live.
const STOP_FOR: Duration = Duration::from_secs(12);

pub fn run() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let etcd = EtcdCluster::start(3).expect("three nodes");
    let endpoints = etcd.endpoints();
    let index = runtime.block_on(worker::index(&endpoints));
    runtime
        .block_on(index.set_budget(BUDGET, Duration::from_secs(10)))
        .expect("a budget");

    let clock = SystemClock::new();
    let begin = clock.now();
    let program = std::env::current_exe().expect("this program");
    let processes: Vec<Process> = (0..PROCESSES)
        .map(|process| {
            let history = etcd.dir().join(format!("history-{process}.jsonl"));
            let task = Task {
                endpoints: endpoints.clone(),
                process,
                seconds: SECONDS,
                history,
            };
            let spec = ProcessSpec::new(
                format!("worker-{process}"),
                &program,
                etcd.dir().join(format!("worker-{process}.log")),
            )
            .env(worker::TASK, serde_json::to_string(&task).expect("json"));
            Process::spawn(&spec).expect("a worker process")
        })
        .collect();

    let at = |second: u64| {
        let moment = Deadline::after(
            &clock,
            Duration::from_secs(second).saturating_sub(clock.now().since(begin)),
        );
        poll_until(
            &clock,
            Duration::from_secs(SECONDS + 30),
            Duration::from_millis(20),
            || moment.passed(&clock).then_some(()),
        )
        .expect("time passes");
    };
    let mut dead = Vec::new();
    let mut kill_leader = |second: u64| {
        at(second);
        let leader = etcd.wait_for_leader(Duration::from_secs(20)).expect("a leader");
        etcd.node(leader).kill().expect("killed");
        println!("{second:>3} s: etcd node {leader}, the leader, is killed");
        dead.push(leader);
        at(second + 4);
        etcd.node(leader).restart().expect("restarted");
    };
    kill_leader(6);
    at(14);
    processes[KILLED].kill().expect("killed");
    println!(" 14 s: worker process {KILLED} is killed");
    kill_leader(20);
    at(28);
    stop_while_it_holds(
        &processes[STOPPED],
        &etcd.dir().join(format!("history-{STOPPED}.jsonl")),
        &clock,
    );
    println!(" 28 s: worker process {STOPPED} is stopped, with a sample in its hands");
    at(30 + STOP_FOR.as_secs());
    processes[STOPPED].resume().expect("resumed");
    println!(" 42 s: worker process {STOPPED} goes on");
    kill_leader(48);
    for (number, process) in processes.iter().enumerate() {
        if number != KILLED {
            let status = process.wait(Duration::from_secs(60)).expect("it ends by itself");
            assert!(
                status.success(),
                "worker process {number}: {status}\n{}",
                process.output()
            );
        }
    }

    let mut lines: Vec<Line> = Vec::new();
    for process in 0..PROCESSES {
        let text = std::fs::read_to_string(etcd.dir().join(format!("history-{process}.jsonl"))).expect("a history");
        // The last line of a killed process may be cut off.
        lines.extend(text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()));
    }
    lines.sort_by_key(|line| line.at);
    drain(&runtime, &index, &clock);
    judge(&lines, &dead);
    runtime.block_on(nothing_is_left(&endpoints));
}

/// Stops a process at a moment when one of its workers has taken a sample and has not answered yet.
fn stop_while_it_holds(process: &Process, history: &Path, clock: &SystemClock) {
    let holds = || {
        let text = std::fs::read_to_string(history).expect("a history");
        let mut latest = BTreeMap::new();
        for line in text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            latest.insert(line.id.0, line.event);
        }
        latest
            .values()
            .any(|event| matches!(event, Event::Told(Step::Leased { .. })))
    };
    let stopped = poll_until(clock, Duration::from_secs(10), Duration::from_millis(5), || {
        if !holds() {
            return None;
        }
        process.stop().expect("stopped");
        if holds() {
            return Some(());
        }
        process.resume().expect("resumed");
        None
    });
    stopped.expect("a worker takes a sample now and then");
}

/// Samples left behind by dead workers are delivered once, to the workers of the last phase.
fn drain(runtime: &tokio::runtime::Runtime, index: &tensorhold_index::TxnIndex, clock: &SystemClock) {
    let within = Duration::from_secs(10);
    runtime.block_on(async {
        let session = index.open_session(within).await.expect("a session");
        let until = Deadline::after(clock, Duration::from_secs(60));
        let mut quiet = 0;
        while quiet < 30 && !until.passed(clock) {
            worker::clear_up(index, &session).await;
            let (group, wait) = (worker::group(), Duration::from_millis(300));
            let held = match index.lease_next(&session, &group, 16, 100, wait).await {
                // Busy: that says nothing about whether a sample is left.
                Err(error) if error.retry() == Retry::Safe => {
                    quiet = 0;
                    continue;
                }
                held => held.expect("leases"),
            };
            for result in index.ack(&session, &held, within).await {
                result.expect("acknowledged");
            }
            quiet = if held.is_empty() { quiet + 1 } else { 0 };
        }
        session.close(within).await.expect("closed");
        // A session of its own clears up after the last ones, until only it is left.
        let last = index.open_session(within).await.expect("a session");
        for _ in 0..5 {
            worker::clear_up(index, &last).await;
        }
        last.close(within).await.expect("closed");
    });
}

fn judge(lines: &[Line], dead: &[usize]) {
    let samples = history::by_sample(lines);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut late = 0;
    for operation in samples.values().flatten() {
        let name = match operation.end {
            None => "unclear",
            Some((_, Step::Reserved { .. })) => "reserved",
            Some((_, Step::Committed { .. })) => "committed",
            Some((_, Step::CommitRefused { .. })) => "commit refused",
            Some((_, Step::Leased { .. })) => "leased",
            Some((_, Step::Acked { .. })) => "acknowledged",
            Some((_, Step::AckRefused { .. })) => {
                late += usize::from(operation.id.0 / WORKERS == STOPPED);
                "acknowledgement refused"
            }
        };
        *counts.entry(name).or_default() += 1;
    }
    let broken: Vec<String> = samples
        .values()
        .filter_map(|operations| spec::check(operations).err())
        .collect();
    println!("operations: {counts:?}, on {} samples", samples.len());
    println!("faults: leaders killed {dead:?}, one worker process killed, one stopped for {STOP_FOR:?}");
    println!("late acknowledgements of the stopped process that were refused: {late}");
    println!(
        "verdict: {}",
        if broken.is_empty() {
            "linearizable"
        } else {
            "NOT linearizable"
        }
    );
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert_eq!(dead.len(), 3);
    assert!(
        late > 0,
        "the stopped process held nothing when it was stopped; nothing was shown about late answers"
    );
    assert!(
        counts.get("acknowledged").copied().unwrap_or(0) > 200,
        "too little was done to mean anything: {counts:?}"
    );
}

/// No record, no list entry, no session is left, and all of the quota is back.
async fn nothing_is_left(endpoints: &[String]) {
    let within = Duration::from_secs(10);
    let mut config = tensorhold_index_etcd::EtcdConfig::new(endpoints.iter().cloned());
    config.root = "chaos".to_owned();
    let clock: std::sync::Arc<dyn Clock> = std::sync::Arc::new(SystemClock::new());
    let txn_store = tensorhold_index_etcd::EtcdStore::open(config, clock, within)
        .await
        .expect("etcd");
    let everything = Read::Range {
        keys: prefix(format!("{}/", worker::STORE)),
        limit: 10_000,
        keys_only: false,
    };
    let snapshot = txn_store.read(&[everything], within).await.expect("a read");
    let mut deposits = 0;
    let mut left = Vec::new();
    for entry in snapshot.entries.into_iter().flatten() {
        let key = entry
            .key
            .trim_start_matches(worker::STORE)
            .trim_start_matches('/')
            .to_owned();
        let bytes = || serde_json::from_slice::<u64>(&entry.value).expect("a number");
        if key.starts_with("b/a/") {
            deposits += bytes();
        } else if !["t", "b/budget"].contains(&key.as_str()) && !key.starts_with("z/") {
            left.push(key);
        }
    }
    println!("quota: {deposits} in deposits, of {BUDGET}; left over: {left:?}");
    // No record is left that could have been paid for.
    assert!(left.is_empty(), "left over: {left:?}");
    assert_eq!(deposits, BUDGET, "the quota does not add up");
}
