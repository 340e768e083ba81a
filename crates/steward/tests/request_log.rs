//! The log of requests names the token and not the secret.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::fmt::{Debug, Write};
use std::sync::Arc;

use common::*;
use holdfast_steward::http::auth::{TokenEntry, fingerprint};
use holdfast_steward::{Options, Steward};
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps every event as text.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<String>>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").expect("text");
    }
}

impl Subscriber for Kept {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = self.0.lock();
        write!(text, "{} ", event.metadata().target()).expect("text");
        event.record(&mut Line(&mut text));
        text.push('\n');
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_has_names_and_no_secrets() {
    let kept = Kept::default();
    tracing::subscriber::set_global_default(kept.clone()).expect("the first");
    let mut options = Options::new([store("eagle")]);
    let mut http: holdfast_steward::HttpOptions =
        serde_json::from_str(r#"{"listen":"127.0.0.1:0"}"#).expect("settings");
    http.tokens.push(TokenEntry {
        name: "anna".to_owned(),
        sha256: fingerprint("hf_sesame"),
        stores: None,
        write: false,
        expires: None,
    });
    options.http = Some(http);
    let steward = Steward::start(options, World::in_memory()).await.expect("a steward");
    let address = steward.address().expect("it listens");
    until("its store is open", || steward.report().stores["eagle"].open).await;
    let ask = |token: &'static str| {
        let url = format!("http://{address}/v1/stores/eagle?note=private");
        tokio::task::spawn_blocking(move || {
            let request = ureq::get(&url).header("authorization", format!("Bearer {token}"));
            request.call().map(|answer| answer.status().as_u16())
        })
    };
    assert_eq!(ask("hf_sesame").await.expect("asked").expect("let in"), 200);
    assert!(ask("hf_guess").await.expect("asked").is_err());
    steward.stop(WITHIN).await.expect("stopped");
    let log = kept.0.lock().clone();
    let requests: Vec<&str> = log.lines().filter(|line| line.contains("message=request")).collect();
    assert_eq!(requests.len(), 2, "{log}");
    assert!(
        requests[0].contains("path=\"/v1/stores/eagle\"") && requests[0].contains("token=\"anna\""),
        "{requests:?}"
    );
    assert!(requests[1].contains("status=401"), "{requests:?}");
    for secret in ["sesame", "hf_guess", "private", &fingerprint("hf_sesame")] {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
}
