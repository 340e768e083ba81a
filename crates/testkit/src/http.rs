//! Small HTTP requests to the processes that we started, each answered within a second or not at all.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result};
use ureq::Agent;

static AGENT: LazyLock<Agent> = LazyLock::new(|| {
    Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(1)))
        .http_status_as_error(false) // an unhealthy server says why in the body
        .proxy(None) // loopback only
        .max_idle_connections(0) // a kept connection would outlive a restarted server
        .build()
        .into()
});

/// The body of the answer, whatever its status.
pub(crate) fn get(url: &str) -> Result<String> {
    let mut answer = AGENT.get(url).call().with_context(|| format!("no answer from {url}"))?;
    answer
        .body_mut()
        .read_to_string()
        .with_context(|| format!("no answer from {url}"))
}

/// Posts a JSON text and returns the body of the answer.
pub(crate) fn post(url: &str, body: &str) -> Result<String> {
    let request = AGENT.post(url).content_type("application/json");
    let mut answer = request.send(body).with_context(|| format!("no answer from {url}"))?;
    answer
        .body_mut()
        .read_to_string()
        .with_context(|| format!("no answer from {url}"))
}
