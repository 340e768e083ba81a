//! A process ends well, with the status that it chose, while calls to a master that is gone are under way.
//!
//! The test starts itself again, as clients of a cluster, and looks at how they end.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{env, fs, thread};

use common::*;
use tensorhold_core::{Retry, SystemClock, poll_until};
use tensorhold_engine::{EngineExt, GetOutcome};
use tensorhold_engine_mooncake::MooncakeEngine;
use tensorhold_testkit::{Cluster, Endpoints, Process, ProcessSpec};

/// How many clients end side by side.
const CLIENTS: usize = 6;
/// How many calls of each are under way.
const CALLERS: usize = 4;
/// The deadline of a call that is left behind.
const PATIENCE: Duration = Duration::from_millis(300);
/// Several interpreters start, and end, at the same time.
const SOON: Duration = Duration::from_secs(90);
const EVERY: Duration = Duration::from_millis(20);

const ENDPOINTS: &str = "TENSORHOLD_TEST_EXIT_ENDPOINTS";
const GO: &str = "TENSORHOLD_TEST_EXIT_GO";
const CALLS: &str = "TENSORHOLD_TEST_EXIT_CALLS";

/// Its callers have left, and so has the engine: calls go on behind them.
const LEFT_BEHIND: &str = "left behind";
/// Its callers wait for their answers.
const AWAITED: &str = "awaited";

/// Runs as a client that ends while its calls are under way; as a test it does nothing.
#[test]
fn as_a_client() {
    let (Ok(endpoints), Ok(go), Ok(calls)) = (env::var(ENDPOINTS), env::var(GO), env::var(CALLS)) else {
        return;
    };
    let endpoints: Endpoints = serde_json::from_str(&endpoints).expect("how to reach the cluster");
    let engine = Arc::new(MooncakeEngine::connect(config(&endpoints)).expect("a client of the cluster"));
    let memory = filled(engine.as_ref(), 4096, 1);
    let object = key(format!("exit/{}", std::process::id()));
    store(engine.as_ref(), object.as_str(), &memory);
    println!("connected");
    let told = poll_until(&SystemClock::new(), SOON, EVERY, || {
        Path::new(&go).exists().then_some(())
    });
    told.expect("the master is gone");

    let left_behind = calls == LEFT_BEHIND;
    let (tell, told) = mpsc::channel();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (engine, object, into, tell) = (Arc::clone(&engine), object.clone(), memory.whole(), tell.clone());
            thread::spawn(move || {
                loop {
                    let within = if left_behind { PATIENCE } else { WITHIN };
                    match engine.get_one(&object, &into, within) {
                        // The process is ending: no call begins any more.
                        Err(error) if error.retry() == Retry::Never => return,
                        Err(_) if left_behind => return,
                        // The first one to a dead master fails at once. Those that follow take seconds.
                        Ok(GetOutcome::Failed(_)) => tell.send(()).unwrap_or_default(),
                        answer => panic!("{answer:?}"),
                    }
                }
            })
        })
        .collect();
    if left_behind {
        for caller in callers {
            caller.join().expect("no panic");
        }
        drop((memory, engine));
    } else {
        for _ in 0..CALLERS {
            told.recv_timeout(SOON).expect("a call that failed");
        }
    }
    println!("ending");
}

fn start_client(cluster: &Cluster, go: &Path, calls: &str, at: usize) -> Process {
    let spec = ProcessSpec::new(
        format!("client-{at} ({calls})"),
        env::current_exe().expect("this program"),
        cluster.dir().join(format!("client-{at}.log")),
    )
    .args(["--exact", "as_a_client", "--nocapture"])
    .env(
        ENDPOINTS,
        serde_json::to_string(&cluster.endpoints()).expect("endpoints as JSON"),
    )
    .env(GO, go)
    .env(CALLS, calls);
    Process::spawn(&spec).expect("a client")
}

/// Starts clients whose calls are of these kinds in turn, takes the master away, and requires that all end well.
fn clients_end_well(kinds: &[&str], take_away: impl FnOnce(&Cluster)) {
    let cluster = plain().segment_mib(64).start().expect("a cluster");
    let go = cluster.dir().join("go");
    let clients: Vec<_> = kinds
        .iter()
        .cycle()
        .take(CLIENTS)
        .enumerate()
        .map(|(at, calls)| start_client(&cluster, &go, calls, at))
        .collect();
    // On one processor the test harness begins that line with the name of the test.
    let says = |client: &Process, what: &str| client.output().lines().any(|line| line.ends_with(what));
    for client in &clients {
        let connected = poll_until(&SystemClock::new(), SOON, EVERY, || {
            assert!(client.is_running(), "{}: {}", client.name(), client.output());
            says(client, "connected").then_some(())
        });
        connected.unwrap_or_else(|| panic!("{}: {}", client.name(), client.output()));
    }
    take_away(&cluster);
    fs::write(&go, "").expect("a file");
    for client in &clients {
        let status = client.wait(SOON).expect("it ends in time");
        assert!(
            status.success() && says(client, "ending"),
            "{} ended with {status}: {}",
            client.name(),
            client.output()
        );
    }
}

#[test]
fn while_calls_to_a_killed_master_are_under_way() {
    const ROUNDS: usize = 3;
    for _ in 0..ROUNDS {
        clients_end_well(&[AWAITED, LEFT_BEHIND], |cluster| {
            cluster.master(0).kill().expect("killed");
        });
    }
}

/// It makes calls hang for longer than the end of a process waits for them.
#[test]
fn while_calls_to_a_stopped_master_are_under_way() {
    clients_end_well(&[LEFT_BEHIND], |cluster| cluster.master(0).stop().expect("stopped"));
}
