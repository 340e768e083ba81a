//! Small HTTP requests to the processes that we started, each answered within a bound or not at all.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result};
use ureq::Agent;

/// For questions that are asked again and again until the answer is the wanted one.
const SHORT: Duration = Duration::from_secs(1);

static AGENT: LazyLock<Agent> = LazyLock::new(|| {
    Agent::config_builder()
        .timeout_global(Some(SHORT))
        .http_status_as_error(false) // an unhealthy server says why in the body
        .proxy(None) // loopback only
        .max_idle_connections(0) // a kept connection would outlive a restarted server
        .build()
        .into()
});

/// The body of the answer, whatever its status.
pub(crate) fn get(url: &str) -> Result<String> {
    get_within(url, SHORT)
}

/// [`get`], of a server that may be busy.
pub(crate) fn get_within(url: &str, within: Duration) -> Result<String> {
    let request = AGENT.get(url).config().timeout_global(Some(within)).build();
    let mut answer = request.call().with_context(|| format!("no answer from {url}"))?;
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
