//! `cargo xtask cluster`: up, status and down, as a person or a script uses them.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tensorhold_testkit::poll;

/// Runs the program as a script would, and gives its standard output.
fn xtask(args: &[&str], state_dir: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("cluster")
        .args(args)
        .arg("--state-dir")
        .arg(state_dir)
        .output()
        .expect("the program runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} failed: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(args: &[&str], state_dir: &Path) -> Value {
    serde_json::from_str(&xtask(&[args, &["--json"]].concat(), state_dir)).expect("JSON")
}

fn pids(report: &Value) -> Vec<u64> {
    let processes = report["processes"].as_array().expect("a list");
    processes
        .iter()
        .map(|process| process["pid"].as_u64().expect("a pid"))
        .collect()
}

/// Takes the cluster down even when the test fails.
struct TakenDownAtTheEnd<'a>(&'a Path);

impl Drop for TakenDownAtTheEnd<'_> {
    fn drop(&mut self) {
        xtask(&["down"], self.0);
    }
}

#[test]
fn a_cluster_outlives_the_command_and_goes_down_when_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    assert_eq!(json(&["status"], dir)["state"], "down");
    assert!(xtask(&["status"], dir).contains("No cluster is up"));

    let _guard = TakenDownAtTheEnd(dir);
    let up = json(
        &["up", "--segment-mib", "16", "--etcd", "1", "--lease-ttl", "500ms"],
        dir,
    );
    assert_eq!(up["state"], "up");
    assert_eq!(pids(&up).len(), 3, "{up}");

    let again = json(&["up"], dir);
    assert_eq!(again["state"], "already-up");
    assert_eq!((pids(&again), &again["endpoints"]), (pids(&up), &up["endpoints"]));
    let text = xtask(&["up"], dir);
    assert!(
        text.contains("up already") && text.contains("export TENSORHOLD_MASTER="),
        "{text}"
    );

    let status = json(&["status"], dir);
    assert_eq!(status["state"], "up");
    assert!(
        status["processes"]
            .as_array()
            .expect("a list")
            .iter()
            .all(|process| process["running"] == true)
    );
    assert!(xtask(&["status"], dir).contains("holder-0"));

    let down = json(&["down"], dir);
    assert_eq!(down["state"], "taken-down");
    assert_eq!(pids(&down).len(), 3);
    for pid in pids(&up) {
        let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(line.is_empty() || line.contains(") Z "), "{pid} still runs: {line}");
    }
    assert_eq!(json(&["status"], dir)["state"], "down");
    assert_eq!(json(&["down"], dir)["state"], "down");
}

#[test]
fn a_state_file_that_names_somebody_elses_process_kills_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let me = std::process::id(); // our pid, but not our start time
    let identity = format!(r#"{{"pid":{me},"start_ticks":1,"boot":"another"}}"#);
    let record = format!(r#"{{"endpoints":null,"processes":[{{"name":"x","identity":{identity},"log":"x.log"}}]}}"#);
    std::fs::write(folder.path().join("state.json"), record).expect("written");
    assert_eq!(json(&["status"], folder.path())["state"], "broken");
    let down = json(&["down"], folder.path());
    assert!(pids(&down).is_empty(), "and this test still runs");
}

/// A held cluster; the guard ends the command even when the test fails.
struct Held {
    command: Child,
    report: Value,
}

impl Held {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .args(["cluster", "hold", "--segment-mib", "16"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut line = String::new();
        let out = command.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let report = serde_json::from_str(&line).expect("JSON on one line");
        Self { command, report }
    }

    fn all_run(&self) -> bool {
        pids(&self.report).into_iter().all(is_running)
    }

    fn wait_until_nothing_runs(&self) {
        let gone = || (!pids(&self.report).into_iter().any(is_running)).then_some(());
        poll(Duration::from_secs(20), Duration::from_millis(20), gone).expect("the cluster has ended");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.command.kill().ok();
        self.command.wait().ok();
    }
}

fn is_running(pid: u64) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !line.is_empty() && !line.contains(") Z ")
}

#[test]
fn held_clusters_stand_side_by_side_and_end_with_their_holder_however_it_ends() {
    let mut by_line = Held::start(&["--etcd", "1", "--lease-ttl", "500ms", "--master-flag=--client_ttl=3"]);
    let mut by_end_of_input = Held::start(&["--holders", "2"]);
    let mut by_kill = Held::start(&[]);
    assert_eq!(pids(&by_line.report).len(), 3, "{}", by_line.report);
    assert_eq!(pids(&by_end_of_input.report).len(), 3, "{}", by_end_of_input.report);
    assert_eq!(pids(&by_kill.report).len(), 2, "{}", by_kill.report);
    let endpoints = &by_line.report["endpoints"];
    assert!(
        endpoints["etcd"][0]
            .as_str()
            .expect("an address")
            .starts_with("http://")
    );
    assert_ne!(endpoints["master"], by_kill.report["endpoints"]["master"]);
    let master_log = by_line.report["processes"][0]["log"].as_str().expect("a path");
    assert!(
        std::fs::read_to_string(master_log)
            .expect("a log")
            .contains("client_ttl=3")
    );

    let mut input = by_line.command.stdin.take().expect("a pipe");
    writeln!(input, "enough").expect("written");
    assert!(by_line.command.wait().expect("an end").success());
    by_line.wait_until_nothing_runs();
    drop(input);
    assert!(by_end_of_input.all_run() && by_kill.all_run(), "the others go on");

    drop(by_end_of_input.command.stdin.take());
    assert!(by_end_of_input.command.wait().expect("an end").success());
    by_end_of_input.wait_until_nothing_runs();

    by_kill.command.kill().expect("killed");
    by_kill.wait_until_nothing_runs();
}

#[test]
fn a_cluster_that_cannot_start_says_why() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["cluster", "hold", "--etcd", "2"])
        .stdin(Stdio::null())
        .output()
        .expect("the program runs");
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("1 or 3 nodes"), "{errors}");
}
