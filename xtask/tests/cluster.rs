//! `cargo xtask cluster`: up, status and down, as a person or a script uses them.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;

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
        text.contains("up already") && text.contains("export HOLDFAST_MASTER="),
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
