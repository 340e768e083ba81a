//! What several test files need: a Mooncake client in a process of its own, and questions to the admin port.
#![allow(dead_code, reason = "each test file uses its part of this")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tensorhold_testkit::{Cluster, Install, Process, ProcessSpec};

const CLIENT: &str = "
import os, sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup('127.0.0.1', os.environ['METADATA'], 0, 64 << 20, 'tcp', '', os.environ['MASTER'])
assert code == 0, f'setup: {code}'
def until(condition, within=30.0):
    'The cluster heals by itself in seconds; a call fails until it has.'
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, 'did not come true in time'
        time.sleep(0.1)
";

/// Runs a piece of Python that has a connected `store`, and gives what it printed.
pub(crate) fn client(cluster: &Cluster, script: &str) -> Result<String> {
    let endpoints = cluster.endpoints();
    let log = tempfile::NamedTempFile::new()?;
    // Leaves without close(): after a failover that call takes half a minute.
    let whole = format!("{CLIENT}{script}\nsys.stdout.flush()\nos._exit(0)\n");
    let mut spec = ProcessSpec::new("client", Install::from_env()?.python()?, log.path())
        .args(["-c", &whole])
        .env("MASTER", &endpoints.master)
        .env("METADATA", &endpoints.metadata);
    for (key, value) in &endpoints.client_env {
        spec = spec.env(key, value);
    }
    let process = Process::spawn(&spec)?;
    let status = process.wait(Duration::from_secs(90))?;
    ensure!(status.success(), "the client failed ({status}):\n{}", process.output());
    Ok(process.output())
}

/// GET of an address, at most for a second.
pub(crate) fn get(url: &str) -> Result<String> {
    let config = ureq::config::Config::builder()
        .timeout_global(Some(Duration::from_secs(1)))
        .build();
    let mut answer = ureq::Agent::from(config)
        .get(url)
        .call()
        .with_context(|| url.to_owned())?;
    Ok(answer.body_mut().read_to_string()?)
}
