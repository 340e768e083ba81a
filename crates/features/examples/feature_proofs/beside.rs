//! The same work without Tensorhold, for comparison: programs in `python/bench` that run on a cluster of their own.
//!
//! Their environment tells them where the cluster is and how long they may take, and they write one JSON object to a
//! file. What they cannot do is part of their result. If they do not end in time, or fail, the proof says so and goes
//! on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Map, Value};
use tensorhold_testkit::{Cluster, Endpoints, Install, Process, ProcessSpec};

/// Where such a program finds its task.
const TASK: &str = "TENSORHOLD_BESIDE";
/// What loading the frameworks and starting processes may take.
const START_WITHIN: Duration = Duration::from_secs(150);
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/bench");

/// The size of the work.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Amount {
    /// How many samples, for those that count them.
    pub(crate) samples: u64,
    /// How many bytes an object has, for those that have one.
    pub(crate) len: usize,
    /// For how long.
    pub(crate) seconds: u64,
}

#[derive(Serialize)]
struct Task {
    #[serde(flatten)]
    endpoints: Endpoints,
    #[serde(flatten)]
    amount: Amount,
    result: PathBuf,
}

/// Runs one of the programs.
pub(crate) fn run(cluster: &Cluster, program: &str, amount: Amount) -> Result<Map<String, Value>> {
    let result = cluster.dir().join(format!("{program}.json"));
    let task = Task {
        endpoints: cluster.endpoints(),
        amount,
        result: result.clone(),
    };
    let python = Install::from_env()?.python()?;
    let spec = ProcessSpec::new(program, python, cluster.dir().join(format!("{program}.log")))
        .arg(Path::new(FOLDER).join(format!("{program}.py")))
        .env(TASK, serde_json::to_string(&task)?);
    let process = Process::spawn(&spec)?;
    let status = process.wait(START_WITHIN + Duration::from_secs(amount.seconds))?;
    ensure!(status.success(), "{program} ended with {status}:\n{}", process.output());
    let text = std::fs::read(&result).with_context(|| format!("{program} told nothing"))?;
    Ok(serde_json::from_slice(&text)?)
}
