//! Spans arrive at a collector as OTLP asks for, and nothing waits for one that does not answer.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tensorhold_core::{Clock, ErrorKind, Generation, Nonce, SampleId, StoreId, SystemClock};
use tensorhold_trace::{Incarnation, Step, TraceId, Tracer};

const WITHIN: Duration = Duration::from_secs(20);

/// Takes one request, answers it, and returns its body.
fn collect_one(listener: TcpListener) -> Value {
    let (mut connection, _) = listener.accept().expect("a request");
    let (mut request, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            assert!(head.starts_with("POST /v1/traces "), "{head}");
            let length = head
                .to_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(usize::MAX) {
                connection
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                    .expect("answered");
                return serde_json::from_str(body).expect("JSON");
            }
        }
        let count = connection.read(&mut part).expect("more");
        assert!(count > 0, "{text}");
        request.extend_from_slice(&part[..count]);
    }
}

#[test]
fn spans_of_a_sample_share_a_trace_and_hang_below_the_first() {
    let (store, sample) = (
        StoreId::new("s").expect("a name"),
        SampleId::new("run/1").expect("a name"),
    );
    let of = |nonce| Incarnation {
        store: &store,
        sample: &sample,
        generation: Generation::new(1).expect("not zero"),
        nonce: Some(Nonce::from_u64(nonce)),
    };
    assert_eq!(TraceId::of(&of(1)), TraceId::of(&of(1)));
    assert_ne!(TraceId::of(&of(1)), TraceId::of(&of(2)));

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let collector = std::thread::spawn(move || collect_one(listener));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let tracer = Tracer::new(&endpoint, &clock).expect("a tracer");
    let step = |name, is_first, error| Step {
        name,
        is_first,
        started: tracer.now(),
        error,
    };
    tracer.ended(&of(1), &step("put", true, None));
    tracer.ended(&of(1), &step("get", false, Some(ErrorKind::Corrupt)));
    assert!(tracer.close(WITHIN), "sent");
    assert_eq!(tracer.lost(), 0);

    let body = collector.join().expect("a body");
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
        .as_array()
        .expect("spans");
    assert_eq!(spans.len(), 2);
    let (put, get) = (&spans[0], &spans[1]);
    assert_eq!(put["traceId"], TraceId::of(&of(1)).to_string());
    assert_eq!(put["traceId"], get["traceId"]);
    assert_eq!(
        (&put["parentSpanId"], &get["parentSpanId"]),
        (&Value::Null, &put["spanId"])
    );
    assert_eq!(
        (put["status"]["code"].as_u64(), get["status"]["code"].as_u64()),
        (Some(1), Some(2))
    );
    let nanos = |span: &Value, at: &str| span[at].as_str().expect("text").parse::<u64>().expect("a number");
    assert!(nanos(put, "startTimeUnixNano") <= nanos(put, "endTimeUnixNano"));
    assert!(
        nanos(put, "startTimeUnixNano") > 1_700_000_000_000_000_000,
        "since 1970"
    );
}

#[test]
fn a_collector_that_is_not_there_costs_spans_and_no_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let tracer = Tracer::new(&endpoint, &clock).expect("a tracer");
    let (store, sample) = (StoreId::new("s").expect("a name"), SampleId::new("a").expect("a name"));
    let of = Incarnation {
        store: &store,
        sample: &sample,
        generation: Generation::new(1).expect("not zero"),
        nonce: None,
    };
    let begun = clock.now();
    for _ in 0..10_000 {
        tracer.ended(
            &of,
            &Step {
                name: "put",
                is_first: true,
                started: tracer.now(),
                error: None,
            },
        );
    }
    assert!(
        clock.now().since(begun) < Duration::from_secs(5),
        "nothing waits for a collector"
    );
    assert!(tracer.close(WITHIN), "the thread ends");
    assert_eq!(tracer.lost(), 10_000);
    tracer.ended(
        &of,
        &Step {
            name: "put",
            is_first: true,
            started: tracer.now(),
            error: None,
        },
    );
    assert_eq!(tracer.lost(), 10_001, "it is closed");
}

#[test]
fn it_is_off_unless_asked_for_and_takes_no_other_scheme() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    assert!(Tracer::from_environment(&clock).expect("no error").is_none());
    let error = Tracer::new("https://127.0.0.1:4318", &clock).expect_err("no TLS");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
