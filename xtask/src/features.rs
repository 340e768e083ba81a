//! `cargo xtask bench features`: the feature store against the bare engine and against SpecForge's own store.
//!
//! Three programs, one after the other, and the figures of all of them:
//!
//! | program | what it gives |
//! |---|---|
//! | `python/bench/features.py` | the ratios; on its own cluster, the contenders taking turns |
//! | `prove ttl --quick` | the time from the last acknowledgement until the bytes are free |
//! | `prove torn --quick` | how many reads had wrong bytes |
//!
//! The Python package is built in release mode first. A proof whose claims do not hold still reports its figures.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};
use tensorhold_testkit::quantile;

/// The figures that are taken from the proofs: the proof, its figure, and the name that it has here.
const FROM_PROOFS: [(&str, &str, &str); 4] = [
    ("ttl", "reclaim_p50_ms", "reclaim_p50_ms"),
    ("ttl", "reclaim_p99_ms", "reclaim_p99_ms"),
    ("torn", "reads_torn", "torn_reads"),
    ("torn", "reads", "torn_reads_of"),
];

pub(crate) fn figures(quick: bool, json: bool) -> Result<Map<String, Value>> {
    build_package()?;
    let mut bench = python_bench("features.py", quick, json)?;
    let (mut figures, ended_well) = last_line(&mut bench, json)?;
    ensure!(ended_well, "the benchmark failed");
    for proof in ["ttl", "torn"] {
        let (found, holds) = last_line(&mut proof_command(proof), json)?;
        for (_, theirs, ours) in FROM_PROOFS.iter().filter(|(of, _, _)| *of == proof) {
            let value = found
                .get(*theirs)
                .with_context(|| format!("{proof} tells no {theirs}"))?;
            figures.insert((*ours).to_owned(), value.clone());
        }
        figures.insert(format!("{proof}_holds"), holds.into());
    }
    Ok(figures)
}

/// `cargo xtask bench reclaim`: how the p99 of the time from the last acknowledgement until the bytes are free differs from run
/// to run of `prove ttl --quick`, each on a cluster of its own.
pub(crate) fn reclaim(runs: usize) -> Result<Map<String, Value>> {
    ensure!(runs > 0, "at least one run is needed: --runs 50");
    let mut each = Vec::new();
    for run in 1..=runs {
        // A p99 over the goal is a claim that does not hold; here it is a figure like any other.
        let (found, _) = last_line(proof_command("ttl").arg("--alone"), true)?;
        let p99 = found.get("reclaim_p99_ms").and_then(Value::as_f64);
        let p99 = p99.context("ttl tells no reclaim_p99_ms")?;
        eprintln!("reclaim: run {run} of {runs}: p99 {p99:.1} ms");
        each.push(p99);
    }
    let above = |millis: f64| each.iter().filter(|p99| **p99 > millis).count();
    let mut figures = Map::from_iter([
        ("reclaim_runs".to_owned(), runs.into()),
        ("reclaim_p99_above_50_ms".to_owned(), above(50.0).into()),
        ("reclaim_p99_above_100_ms".to_owned(), above(100.0).into()),
        ("reclaim_p99_ms_each".to_owned(), each.clone().into()),
    ]);
    for (name, q) in [("fastest", 0.0), ("median", 0.5), ("p90", 0.9), ("slowest", 1.0)] {
        figures.insert(format!("reclaim_p99_ms_{name}"), quantile(&mut each, q).into());
    }
    Ok(figures)
}

/// Builds the Python package in release mode, into its source folder.
pub(crate) fn build_package() -> Result<()> {
    let mut build = Command::new(crate::repository().join(".venv/bin/maturin"));
    build
        .args(["develop", "--release", "--quiet", "--skip-install", "-m"])
        .arg(crate::repository().join("python/Cargo.toml"));
    // maturin's output is for people, not for the JSON on standard output.
    let built = build.current_dir(crate::repository()).stdout(Stdio::null()).status();
    let built = built.context("maturin could not be started; has .ci/setup been run?")?;
    ensure!(built.success(), "building the Python package ended with {built}");
    Ok(())
}

/// A program of `python/bench`.
pub(crate) fn python_bench(program: &str, quick: bool, json: bool) -> Result<Command> {
    let python = crate::repository().join("python");
    let path = std::env::join_paths(["", "tests", "bench"].map(|folder| python.join(folder)))?;
    let mut bench = Command::new(crate::repository().join(".venv/bin/python"));
    bench
        .arg(python.join("bench").join(program))
        .args(quick.then_some("--quick"))
        .args(json.then_some("--json"))
        .env("PYTHONPATH", path)
        .env("TENSORHOLD_XTASK", std::env::current_exe()?);
    Ok(bench)
}

/// `cargo xtask prove storm`: callers of both faces of the Python package that leave at random moments.
pub(crate) fn storm(quick: bool, json: bool, rest: &[String]) -> Result<()> {
    build_package()?;
    let status = python_bench("storm.py", quick, json)?.args(rest).status();
    let status = status.context("the storm could not be started")?;
    ensure!(status.success(), "the storm ended with {status}");
    Ok(())
}

fn proof_command(proof: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let package = [
        "run",
        "--locked",
        "--quiet",
        "--release",
        "--package",
        "tensorhold-features",
        "--all-features",
    ];
    let program = ["--example", "feature_proofs", "--", proof, "--quick"];
    command
        .args(package.iter().chain(&program).map(OsStr::new))
        .current_dir(crate::repository());
    command
}

/// Runs a program whose last line is a JSON object, and prints the lines before it unless only JSON is requested. Also
/// returns whether the program succeeded.
pub(crate) fn last_line(command: &mut Command, json: bool) -> Result<(Map<String, Value>, bool)> {
    let started = command.stdout(Stdio::piped()).spawn();
    let program = started.with_context(|| format!("{command:?} could not be started"))?;
    let output = program.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (before, last) = text.trim_end().rsplit_once('\n').unwrap_or(("", text.trim_end()));
    if !json && !before.is_empty() {
        println!("{before}\n");
    }
    let figures = serde_json::from_str(last)
        .with_context(|| format!("{command:?} ended with {} and without a line of JSON", output.status))?;
    Ok((figures, output.status.success()))
}
