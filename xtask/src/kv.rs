//! `cargo xtask bench kv`: the KV tier against SGLang's own Mooncake back end, and the planner under load.
//!
//! | program | what it gives |
//! |---|---|
//! | `python/bench/kv.py` | sets and gets of 64 pages, ours and SGLang's taking turns on one master |
//! | `plan_bench` of `tensorhold-kvcache` | matches in an index of 1 M and 10 M pages, memory per page, the time of a step |
//!
//! The figures of both.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

use crate::features::{build_package, last_line, python_bench};

pub(crate) fn figures(quick: bool, json: bool) -> Result<Map<String, Value>> {
    build_package()?;
    let (mut figures, ended_well) = last_line(&mut python_bench("kv.py", quick, json)?, json)?;
    ensure!(ended_well, "the benchmark of the pages failed");
    let (planner, ended_well) = last_line(&mut plan_bench(), json)?;
    ensure!(ended_well, "the benchmark of the planner failed");
    figures.extend(planner);
    // The larger of the two.
    let bytes = ["bytes_per_page_1m", "bytes_per_page_10m"].map(|name| figures.get(name).and_then(Value::as_f64));
    let bytes = bytes.into_iter().flatten().reduce(f64::max);
    let bytes = bytes.context("the planner's benchmark tells no bytes per page")?;
    figures.insert("bytes_per_page".to_owned(), bytes.into());
    Ok(figures)
}

fn plan_bench() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args([
            "run",
            "--locked",
            "--quiet",
            "--release",
            "--package",
            "tensorhold-kvcache",
            "--example",
            "plan_bench",
        ])
        .current_dir(crate::repository());
    command
}
