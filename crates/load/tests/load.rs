//! The load generator on a real etcd, for some seconds: its sums are right, and a rate that cannot be served is seen.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

use std::process::Command;

use serde_json::Value;

/// Runs it and returns its last line.
fn load(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tensorhold-load"))
        .args(arguments)
        .arg("--json")
        .output()
        .expect("the program runs");
    let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let last = out.lines().last().expect("there is a line");
    serde_json::from_str(last).expect("it is JSON")
}

fn count(report: &Value, path: &str) -> u64 {
    let found = report.pointer(path).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no {path} in {report}"))
}

fn figure(report: &Value, path: &str) -> f64 {
    let found = report.pointer(path).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no {path} in {report}"))
}

#[test]
fn every_sample_of_a_short_run_is_accounted_for() {
    let report = load(&["--rate", "60", "--seconds", "5", "--consumers", "4", "--groups", "2"]);
    let counts = ["/due", "/put", "/leased", "/acked", "/freed"].map(|path| count(&report, path));
    assert_eq!(counts, [300, 300, 600, 600, 300]);
    let measured = ["put", "put_call", "delivery", "take", "ack"];
    let measured = measured.map(|step| count(&report, &format!("/latency/{step}/count")));
    assert_eq!(measured, [300, 300, 600, 600, 600]);
    let windows = report["windows"].as_array().expect("a list of windows");
    assert!(windows.len() >= 10, "{windows:?}");
    let in_windows = windows
        .iter()
        .filter_map(|window| window.pointer("/put/count")?.as_u64());
    assert_eq!(in_windows.sum::<u64>(), 300);
    for path in [
        "/etcd_cpu_us_per_sample",
        "/clients_cpu_us_per_sample",
        "/etcd_db_bytes_most",
        "/etcd_received_bytes_per_sample",
        "/etcd_sent_bytes_per_sample",
        "/etcd_log_bytes_per_sample",
    ] {
        assert!(figure(&report, path) > 0.0, "{path}: {report}");
    }
    for path in ["/samples_per_put", "/samples_per_take"] {
        assert!((1.0..=16.0).contains(&figure(&report, path)), "{path}: {report}");
    }
    // Reserve and commit at least, and no more than some requests for each group that takes and answers.
    let requests = figure(&report, "/etcd_requests_per_sample");
    assert!((2.0..40.0).contains(&requests), "{requests}");
}

#[test]
fn a_rate_that_cannot_be_served_is_seen_in_the_latencies() {
    // One put of one sample at a time, and one due every 0.5 ms: no etcd that writes to a disk twice for each keeps up.
    let report = load(&[
        "--rate",
        "2000",
        "--seconds",
        "1",
        "--producers",
        "1",
        "--at-once",
        "1",
        "--batch",
        "1",
    ]);
    let late = figure(&report, "/put_seconds") * 1e3 - 1e3;
    assert!(late > 100.0, "it was served: {report}");
    // The last sample was due at the end of the schedule and put when all were: it waited for all the others. By its call alone it
    // was as fast as they.
    let [from_due, from_call] = ["/latency/put/max_ms", "/latency/put_call/p50_ms"].map(|path| figure(&report, path));
    assert!(from_due > 0.9 * late, "{from_due} of {late}");
    assert!(from_call < from_due / 10.0, "{from_call} and {from_due}");
    let windows = report["windows"].as_array().expect("a list of windows");
    let medians: Vec<f64> = windows
        .iter()
        .filter_map(|window| window.pointer("/put/p50_ms")?.as_f64())
        .collect();
    assert!(medians.first() < medians.last(), "{medians:?}");
}

#[test]
fn killed_workers_cost_no_quota() {
    // Room for 64 samples of the 4 MiB that a record says.
    let mut arguments = vec!["--rate", "200", "--seconds", "6", "--crash-every", "1"];
    arguments.extend(["--budget", "268435456"]);
    let report = load(&arguments);
    // A claim that does not hold ends the run with an error.
    let claims = report["claims"].as_array().expect("a list of claims");
    assert!(
        claims.iter().any(|claim| claim["claim"] == "the quota adds up"),
        "{report}"
    );
    assert!(count(&report, "/killed") >= 4, "{report}");
}

#[test]
fn killed_workers_cost_no_sample() {
    let report = load(&["--rate", "60", "--seconds", "6", "--crash-every", "2"]);
    assert!(count(&report, "/killed") >= 2, "{report}");
    assert_eq!(
        ["/lost", "/left", "/delivered_again_unexplained"].map(|path| count(&report, path)),
        [0; 3]
    );
}

#[test]
fn samples_on_several_clusters_are_all_accounted_for() {
    let mut arguments = vec!["--rate", "200", "--seconds", "4", "--clusters", "3"];
    arguments.extend([
        "--live",
        "300",
        "--sessions",
        "2",
        "--bytes",
        "4096",
        "--budget",
        "4194304",
    ]);
    let report = load(&arguments);
    let requests = report["requests_of_clusters"].as_array().expect("a list of figures");
    let requests: Vec<f64> = requests.iter().filter_map(Value::as_f64).collect();
    let most = requests.iter().copied().fold(0.0, f64::max);
    assert!(
        requests.len() == 3 && requests.iter().all(|one| *one > most / 2.0),
        "{report}"
    );
    assert_eq!(["/put", "/acked", "/freed"].map(|path| count(&report, path)), [800; 3]);
    assert_eq!(
        ["/lost", "/left", "/delivered_again", "/delivered_again_unexplained"].map(|path| count(&report, path)),
        [0; 4]
    );
    assert!(count(&report, "/latency/look/count") > 0, "{report}");
}
