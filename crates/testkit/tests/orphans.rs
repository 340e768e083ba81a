//! No process is left behind, however the test process ends.
//!
//! The test starts itself again, as a process that holds a cluster and then ends badly, and looks for survivors.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

use std::path::Path;
use std::time::Duration;
use std::{env, fs, process};

use anyhow::{Context, Result};
use tensorhold_testkit::{Cluster, Process, ProcessIdentity, ProcessSpec, poll};

const SOON: Duration = Duration::from_secs(60);
const EVERY: Duration = Duration::from_millis(50);
const MODE: &str = "TENSORHOLD_ORPHAN_TEST_MODE";
const REPORT: &str = "TENSORHOLD_ORPHAN_TEST_REPORT";

/// Runs in the process that ends badly.
fn hold_a_cluster_and_end(mode: &str) -> Result<()> {
    let cluster = Cluster::builder().segment_mib(16).etcd_nodes(1).start()?;
    let all = cluster
        .nodes()
        .map(tensorhold_testkit::Node::identity)
        .collect::<Vec<_>>();
    let report = env::var(REPORT)?;
    fs::write(format!("{report}.new"), serde_json::to_string(&all)?)?;
    fs::rename(format!("{report}.new"), &report)?;
    match mode {
        "panic" => panic!("as asked"),
        "abort" => process::abort(),
        "thread" => std::thread::spawn(move || drop(cluster))
            .join()
            .ok()
            .context("the thread panicked"),
        _ => loop {
            std::thread::park(); // until killed
        },
    }
}

fn start_holder_of_a_cluster(test: &str, mode: &str, folder: &Path) -> Result<Process> {
    let log = folder.join(format!("{mode}.log"));
    let spec = ProcessSpec::new(mode, env::current_exe()?, log)
        .args(["--exact", test, "--nocapture"])
        .env(MODE, mode)
        .env(REPORT, folder.join(mode));
    Process::spawn(&spec)
}

fn reported(folder: &Path, mode: &str) -> Option<Vec<ProcessIdentity>> {
    serde_json::from_str(&fs::read_to_string(folder.join(mode)).ok()?).ok()
}

#[test]
fn no_process_outlives_a_test_that_ends_badly() {
    if let Ok(mode) = env::var(MODE) {
        return hold_a_cluster_and_end(&mode).expect("a cluster");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let name = "no_process_outlives_a_test_that_ends_badly";
    let modes = ["panic", "abort", "thread", "sigkill"];
    let holders = modes.map(|mode| start_holder_of_a_cluster(name, mode, folder.path()).expect("started"));
    for (mode, holder) in modes.iter().zip(&holders) {
        let ids = poll(SOON, EVERY, || reported(folder.path(), mode)).unwrap_or_else(|| panic!("{}", holder.output()));
        assert_eq!(ids.len(), 3, "master, holder, etcd");
        if *mode == "sigkill" {
            assert!(ids.iter().all(ProcessIdentity::is_alive));
            holder.kill().expect("killed");
        }
        let status = holder.wait(SOON).expect("it ends");
        assert_eq!(status.success(), *mode == "thread", "{mode}: {}", holder.output());
        poll(SOON, EVERY, || {
            (!ids.iter().any(ProcessIdentity::is_alive)).then_some(())
        })
        .unwrap_or_else(|| panic!("{mode} left processes behind: {ids:?}"));
    }
    assert!(
        holders[0].output().contains("===== master-0"),
        "a panic shows the logs: {}",
        holders[0].output()
    );
}

#[test]
fn a_child_outlives_the_thread_that_asked_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let spec = ProcessSpec::new("cat", "cat", folder.path().join("cat.log"));
    let cat = std::thread::spawn(move || Process::spawn(&spec))
        .join()
        .expect("no panic")
        .expect("started");
    assert!(cat.is_running());
    assert!(
        cat.finish(SOON).expect("it ends when its input does").success(),
        "the end of a thread did not kill it"
    );
}
