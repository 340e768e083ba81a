//! A request with a deadline, to a master's admin port or to etcd's health page.
//!
//! No proxy is asked: these ports are inside a cluster.

use std::time::Duration;

/// The most of an answer that is read.
const MOST_BYTES: u64 = 64 << 20;

/// A status and a body.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Asks; the error says why there was no answer.
pub(crate) fn get(url: &str, within: Duration) -> Result<Reply, String> {
    read(agent(within).get(url).call())
}

/// Posts JSON; the error says why there was no answer.
pub(crate) fn post(url: &str, body: &serde_json::Value, within: Duration) -> Result<Reply, String> {
    let request = agent(within).post(url).header("Content-Type", "application/json");
    read(request.send(body.to_string()))
}

fn agent(within: Duration) -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .timeout_global(Some(within.max(Duration::from_millis(1))))
        .build()
        .new_agent()
}

fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Reply, String> {
    let mut answer = answer.map_err(|error| error.to_string())?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(MOST_BYTES).read_to_string();
    Ok(Reply {
        status,
        body: body.map_err(|error| error.to_string())?,
    })
}
