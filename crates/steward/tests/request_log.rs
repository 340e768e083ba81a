//! The log of requests names the token and not the secret, at any level, for every path and every caller.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::fmt::{Debug, Write};
use std::sync::Arc;

use common::*;
use parking_lot::Mutex;
use tensorhold_steward::http::auth::{TokenEntry, fingerprint};
use tensorhold_steward::http::openapi;
use tensorhold_steward::{Options, Steward};
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
    let mut http: tensorhold_steward::HttpOptions =
        serde_json::from_str(r#"{"listen":"127.0.0.1:0"}"#).expect("settings");
    let entry = |name: &str, secret: &str| TokenEntry {
        name: name.to_owned(),
        sha256: fingerprint(secret),
        stores: None,
        write: false,
        expires: None,
    };
    http.tokens.push(entry("anna", "th_sesame"));
    http.tokens.push(TokenEntry {
        write: true,
        ..entry("olga", "th_writes")
    });
    http.tokens.push(TokenEntry {
        expires: Some(1),
        ..entry("igor", "th_expired")
    });
    http.tokens.push(TokenEntry {
        stores: Some(vec![store("another")]),
        ..entry("otto", "th_another")
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
    assert_eq!(ask("th_sesame").await.expect("asked").expect("let in"), 200);
    assert!(ask("th_guess").await.expect("asked").is_err());
    // Every path, by everybody, with values in the query and in headers that nobody is to read.
    let mut asked = 2;
    for (method, path, _, _, _, parameters) in openapi::PATHS {
        for secret in [
            None,
            Some("th_sesame"),
            Some("th_writes"),
            Some("th_expired"),
            Some("th_another"),
            Some("th_guess"),
        ] {
            // It lasts if it is let in.
            if *path == "/v1/events" && !matches!(secret, None | Some("th_expired" | "th_guess")) {
                continue;
            }
            let mut request = request_of(method, path, "eagle", "dog").with(secret);
            request.path.push_str("?note=private&after=1%2Fhidden-place");
            for name in parameters.iter().filter(|name| **name != "after") {
                request.path.push_str(&format!("&{name}=hidden-{name}"));
            }
            request.to(address).await;
            asked += 1;
        }
    }
    // What a change says is in its own line, a token that is put elsewhere is not.
    let sent = Sent::new("put", "/v1/stores/eagle/budget?token=th_sesame").with(Some("th_writes"));
    assert_eq!(sent.json(r#"{"budget_bytes": 5000}"#).to(address).await.status, 200);
    let basic = tokio::task::spawn_blocking(move || {
        let request = ureq::get(format!("http://{address}/v1/stores"));
        let request = request
            .header("authorization", "Basic aGZfc2VzYW1l")
            .header("x-token", "th_sesame");
        let request = request
            .header("cookie", "session=th_sesame")
            .header("referer", "http://private");
        request.call().is_err()
    });
    assert!(basic.await.expect("asked"));
    asked += 2;
    steward.stop(WITHIN).await.expect("stopped");
    let log = kept.0.lock().clone();
    let requests: Vec<&str> = log.lines().filter(|line| line.contains("message=request")).collect();
    assert_eq!(requests.len(), asked, "{log}");
    assert!(
        requests[0].contains("path=\"/v1/stores/eagle\"") && requests[0].contains("token=\"anna\""),
        "{requests:?}"
    );
    assert!(requests[1].contains("status=401"), "{requests:?}");
    let budget = log.lines().find(|line| line.contains("set the budget to 5000 bytes"));
    let budget = budget.unwrap_or_else(|| panic!("{log}"));
    assert!(
        budget.contains("token=\"olga\"") && budget.contains("it was asked for over HTTP"),
        "{budget}"
    );
    let secrets = ["th_", "sesame", "aGZf", "private", "hidden", "note="];
    for secret in secrets.into_iter().chain([fingerprint("th_sesame").as_str()]) {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
}
