//! The page: its files, the overview and the stream of events that it reads, and who may see what.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects and what it saw"
)]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use serde_json::Value;
use tensorhold_core::{Clock, DType, SystemClock, TensorSpec};
use tensorhold_engine::HostMemory;
use tensorhold_features::{FeatureConfig, FeatureStore, GroupName, Identity, Publication, PutItem, TensorIn};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};
use tensorhold_steward::http::auth::{TokenEntry, fingerprint};
use tensorhold_steward::{HttpOptions, Options, Steward};
use tensorhold_testkit::EtcdCluster;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const BYTES: usize = 4096;

fn group() -> GroupName {
    GroupName::new("trainers").expect("a name")
}

fn item(name: &str, bytes: usize) -> PutItem {
    let memory = HostMemory::allocate(bytes).expect("memory");
    let spec = TensorSpec::new("t".parse().expect("a name"), DType::Uint8, [bytes as u64]).expect("a spec");
    PutItem {
        sample: name.parse().expect("a name"),
        tensors: vec![TensorIn::new(spec, memory)],
        publication: Publication {
            groups: vec![group()],
            retain: false,
            max_attempts: 1,
        },
    }
}

async fn put(store: &FeatureStore, name: &str) {
    store.put(item(name, BYTES), WITHIN).await.expect("put");
}

fn http(tokens: Vec<TokenEntry>) -> HttpOptions {
    HttpOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        tokens,
        tls: None,
        within: Duration::from_secs(20),
        most: 16,
    }
}

async fn start(world: &Arc<World>, change: impl FnOnce(&mut Options)) -> (Steward, SocketAddr) {
    let mut options = Options::new([store("run/7"), store("other")]);
    options.http = Some(http(Vec::new()));
    change(&mut options);
    let steward = Steward::start(options, world.clone()).await.expect("a steward");
    let address = steward.address().expect("it listens");
    until("its stores are open", || {
        steward.report().stores.values().all(|store| store.open)
    })
    .await;
    (steward, address)
}

/// An answer whose body is read piece by piece.
struct Answer {
    status: u16,
    head: String,
    stream: TcpStream,
    /// What was read of the body, chunks put together.
    body: Vec<u8>,
    raw: Vec<u8>,
}

impl Answer {
    async fn of(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let mut request = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            request.push_str(&format!("host: {address}\r\n"));
        }
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut raw = Vec::new();
        let end = loop {
            if let Some(end) = raw.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            let read = tokio::time::timeout(WITHIN, stream.read_buf(&mut raw)).await;
            assert!(read.expect("in time").expect("read") > 0, "it closed before its head");
        };
        let rest = raw.split_off(end + 4);
        let head = String::from_utf8(raw).expect("text").to_lowercase();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Self {
            status: status.expect("a status"),
            head,
            stream,
            body: Vec::new(),
            raw: rest,
        }
    }

    /// Reads some more. False at the end.
    async fn more(&mut self) -> bool {
        loop {
            if self.head.contains("transfer-encoding: chunked") {
                if let Some(at) = self.raw.windows(2).position(|two| two == b"\r\n") {
                    let size = std::str::from_utf8(&self.raw[..at]).expect("a size");
                    let size = usize::from_str_radix(size, 16).expect("a size");
                    if self.raw.len() >= at + 2 + size + 2 {
                        self.body.extend(&self.raw[at + 2..at + 2 + size]);
                        self.raw.drain(..at + 2 + size + 2);
                        return size > 0;
                    }
                }
            } else if !self.raw.is_empty() {
                self.body.append(&mut self.raw);
                return true;
            }
            let read = tokio::time::timeout(WITHIN, self.stream.read_buf(&mut self.raw)).await;
            if read.expect("in time").expect("read") == 0 {
                return false;
            }
        }
    }

    async fn text(mut self) -> String {
        while self.more().await {}
        String::from_utf8(self.body).expect("text")
    }

    async fn json(self) -> Value {
        let text = self.text().await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The next event that is an overview; none at the end.
    async fn event(&mut self) -> Option<Value> {
        loop {
            let text = String::from_utf8_lossy(&self.body).into_owned();
            if let Some((event, rest)) = text.split_once("\n\n") {
                self.body = rest.as_bytes().to_vec();
                if let Some(data) = event.strip_prefix("event: overview\ndata: ") {
                    return Some(serde_json::from_str(data).expect("JSON"));
                }
                continue;
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// Reads events until one is so.
    async fn until(&mut self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        let all = async {
            while let Some(event) = self.event().await {
                if so(&event) {
                    return event;
                }
            }
            panic!("the stream ended before: {what}");
        };
        let found = tokio::time::timeout(WITHIN, all).await;
        found.unwrap_or_else(|_| panic!("it did not come: {what}"))
    }
}

async fn overview(address: SocketAddr) -> Value {
    Answer::of(address, "/v1/overview", &[]).await.json().await
}

fn named<'a>(overview: &'a Value, name: &str) -> &'a Value {
    let stores = overview["stores"].as_array().expect("stores");
    let found = stores.iter().find(|store| store["store"] == name);
    found.unwrap_or(&Value::Null)
}

fn samples(store: &Value, state: &str) -> u64 {
    let states = store["states"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = states.iter().find(|one| one["state"] == state);
    found.and_then(|one| one["samples"].as_u64()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_files_come_from_the_steward_alone_and_may_do_little() {
    let secret = TokenEntry {
        name: "all".to_owned(),
        sha256: fingerprint("secret"),
        stores: None,
        write: false,
        expires: None,
    };
    let (steward, address) = start(&World::in_memory(), |options| options.http = Some(http(vec![secret]))).await;
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let answer = Answer::of(address, path, &[]).await;
        assert_eq!(answer.status, 200, "{path} is for everybody: it asks for the token");
        for header in [
            &format!("content-type: {kind}"),
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "x-frame-options: deny",
        ] {
            assert!(answer.head.contains(header), "{path} has no {header}: {}", answer.head);
        }
        assert!(!answer.head.contains("unsafe"), "{}", answer.head);
        let text = answer.text().await;
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for wrong in [
            "http:",
            "https:",
            "//cdn",
            "innerHTML",
            "eval(",
            "style=\"",
            "onclick",
            "run/7",
        ] {
            assert!(!text.contains(wrong), "{path} has {wrong}");
        }
        assert!(!text.contains("<script>"), "{path} has a script of its own");
    }
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_overview_says_what_a_store_holds_and_who_waits() {
    let cluster = tokio::task::spawn_blocking(|| EtcdCluster::start(1))
        .await
        .expect("run")
        .expect("etcd");
    let clock = Arc::new(SystemClock::new());
    let etcd = EtcdStore::open(EtcdConfig::new(cluster.endpoints()), clock.clone(), WITHIN);
    let world = World::over(Arc::new(etcd.await.expect("etcd")), clock.clone());
    // The budget is there before the store is opened: it binds the sessions that are opened after it.
    let first = world.open(FeatureConfig::new(store("run/7"))).await;
    first.set_budget(12 * BYTES as u64, WITHIN).await.expect("a budget");
    first.close(WITHIN).await.expect("closed");
    let (steward, address) = start(&world, |options| {
        options.look_every = Duration::from_millis(500);
        let reach = EtcdConfig::new(cluster.endpoints());
        options.etcd = Some(tensorhold_steward::EtcdOptions::new(reach));
    })
    .await;
    let index = world.index_of(&store("run/7"), Arc::clone(&world.txn_store));
    let index = index.with_identity(Identity {
        role: "<img src=x onerror=alert(1)>".to_owned(),
        ..Identity::of_this_process("")
    });
    let worker = FeatureStore::open(
        world.cluster.connect(),
        Arc::new(index),
        FeatureConfig::new(store("run/7")),
        clock.clone(),
        Arc::new(tensorhold_core::SystemRng),
    );
    let worker = worker.await.expect("a store");
    for n in 0..8 {
        put(&worker, &format!("sample-{n}")).await;
    }
    let mut leases = worker.lease_next(&group(), 3, WITHIN).await.expect("leases");
    // One attempt is all there is: handed back, it is a dead letter. One is used up, one stays leased.
    let dead = leases.pop().expect("a lease");
    worker.nack(&[dead], WITHIN).await.remove(0).expect("handed back");
    let used = leases.pop().expect("a lease");
    worker.ack(&[used], WITHIN).await.remove(0).expect("used");
    let waiting = tokio::spawn({
        let worker = worker.clone();
        async move { worker.put(item("too-large-for-now", 10 * BYTES), WITHIN).await }
    });
    let mut stream = Answer::of(address, "/v1/events", &[]).await;
    let seen = stream
        .until("everything is seen", |seen| {
            let store = named(seen, "run/7");
            samples(store, "live") == 6
                && samples(store, "dead") == 1
                // Those of the dead letter are freed a moment later.
                && store["states"][5]["bytes"] == 0
                && store["budget"]["waiting"] == 1
                && store["leases"].as_array().is_some_and(|leases| leases.len() == 1)
                && store["groups"][0]["waiting_per_s"].is_number()
                && seen["attention"].as_array().is_some_and(|all| !all.is_empty())
                && seen["etcd"]["nodes"].as_array().is_some_and(|nodes| nodes.len() == 1)
        })
        .await;
    eprintln!("an overview has {} bytes", seen.to_string().len());
    let store = named(&seen, "run/7");
    assert_eq!(store["open"], true);
    assert_eq!(store["look_trouble"], serde_json::json!([]), "all could be read");
    assert_eq!(store["states"][1]["state"], "live");
    assert_eq!(store["states"][1]["bytes"], 6 * BYTES);
    assert_eq!(store["states"][1]["exact"], true);
    let lease = &store["leases"][0];
    assert_eq!((&lease["group"], &lease["attempts"]), (&"trainers".into(), &1.into()));
    assert_eq!(
        lease["held_by"]["role"], "<img src=x onerror=alert(1)>",
        "it is passed on as it is"
    );
    assert_eq!(lease["held_by"]["pid"], std::process::id());
    let age = now_ms(&clock).saturating_sub(lease["since_ms"].as_u64().expect("since when"));
    assert!(age < 60_000, "held for {age} ms");
    assert!(lease["ends_in_s"].as_u64().is_some_and(|left| left > 0), "{lease}");
    assert_eq!(store["leases_complete"], true);
    assert_eq!(store["groups"][0]["waiting"], 5);
    assert_eq!(store["groups"][0]["leased"], 1);
    let oldest = store["groups"][0]["oldest_ms"].as_u64().expect("since when it waits");
    assert!(now_ms(&clock).saturating_sub(oldest) < 60_000, "{store}");
    assert!(
        store["states"][1]["samples_per_s"].is_number() && store["change_over_s"].is_number(),
        "{store}"
    );
    let attention = &seen["attention"][0];
    assert_eq!(
        (&attention["store"], &attention["alert"], &attention["runbook"]),
        (
            &"run/7".into(),
            &"TensorholdDeadLetters".into(),
            &"docs/runbook.md#tensorholddeadletters".into()
        ),
        "{seen}"
    );
    let metrics = Answer::of(address, "/metrics", &[]).await.text().await;
    let line = "tensorhold_steward_backlog_samples{store=\"run/7\",group=\"trainers\"} 5\n";
    assert!(metrics.contains(line), "{metrics}");
    assert!(
        metrics.contains("tensorhold_steward_backlog_oldest_seconds{store=\"run/7\",group=\"trainers\"}"),
        "{metrics}"
    );
    assert_eq!(store["budget"]["bytes"], 12 * BYTES);
    assert_eq!(store["budget"]["first"][0]["wants"], 10 * BYTES);
    assert_eq!(store["budget"]["first"][0]["who"]["alive"], true);
    assert_eq!(store["dead"][0]["groups"][0], "trainers");
    assert_eq!(store["states"][5]["state"], "dead");
    assert_eq!(store["states"][5]["bytes"], 0, "its bytes were freed");
    assert_eq!(store["sessions"], 2, "the worker and the steward");
    assert_eq!(store["holders"][0]["name"], "holder-0");
    assert!(
        store["holders"][0]["dram_used"]
            .as_u64()
            .is_some_and(|used| used >= 6 * BYTES as u64)
    );
    let pressure = &store["pressure"][0];
    assert_eq!(
        (&pressure["what"], &pressure["level"]),
        (&"budget of the store".into(), &"full".into())
    );
    assert!(
        seen["etcd"]["pressure"][0]["used"]
            .as_u64()
            .is_some_and(|used| used > 0),
        "{seen}"
    );
    // The rest is used up: what waits gets room, and what was freed is told.
    for lease in leases {
        worker.ack(&[lease], WITHIN).await.remove(0).expect("used");
    }
    for lease in worker.lease_next(&group(), 8, WITHIN).await.expect("leases") {
        worker.ack(&[lease], WITHIN).await.remove(0).expect("used");
    }
    waiting.await.expect("no panic").expect("put");
    let seen = stream
        .until("one sample is left", |seen| {
            let store = named(seen, "run/7");
            samples(store, "live") == 1 && store["leases"] == serde_json::json!([]) && store["budget"]["waiting"] == 0
        })
        .await;
    assert_eq!(named(&seen, "run/7")["states"][1]["bytes"], 10 * BYTES);
    // What it held over time.
    let history = Answer::of(address, "/v1/stores/run%2F7/history", &[])
        .await
        .json()
        .await;
    let points = history["points"].as_array().expect("points");
    let live = history["columns"]
        .as_array()
        .expect("columns")
        .iter()
        .position(|name| name == "bytes_live");
    let live = live.expect("a column");
    assert!(points.iter().any(|point| point[live] == 6 * BYTES), "{history}");
    let last = points.last().expect("a point")[0].as_u64().expect("a time");
    let newer = Answer::of(address, &format!("/v1/stores/run%2F7/history?after={last}"), &[])
        .await
        .json()
        .await;
    assert!(
        newer["points"]
            .as_array()
            .is_some_and(|newer| newer.len() < points.len()),
        "{newer}"
    );
    assert_eq!(Answer::of(address, "/v1/stores/nobody/history", &[]).await.status, 404);
    assert_eq!(
        Answer::of(address, "/v1/stores/other/history?after=x", &[])
            .await
            .status,
        400
    );
    worker.close(WITHIN).await.expect("closed");
    steward.stop(WITHIN).await.expect("stopped");
}

fn now_ms(clock: &Arc<SystemClock>) -> u64 {
    clock.wall_ms()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_watches_is_told_of_a_change_within_two_seconds() {
    let world = World::in_memory();
    // The look of every minute is not what tells.
    let (steward, address) = start(&world, |options| options.look_every = Duration::from_secs(60)).await;
    let worker = world.open(FeatureConfig::new(store("run/7"))).await;
    let mut stream = Answer::of(address, "/v1/events", &[]).await;
    assert_eq!(stream.status, 200);
    assert!(
        stream.head.contains("content-type: text/event-stream"),
        "{}",
        stream.head
    );
    assert!(stream.head.contains("cache-control: no-store"), "{}", stream.head);
    let clock = SystemClock::new();
    for n in 1..=3 {
        put(&worker, &format!("sample-{n}")).await;
        let begun = clock.now();
        let so = |seen: &Value| samples(named(seen, "run/7"), "live") == n;
        stream.until("the sample is seen", so).await;
        let took = clock.now().since(begun);
        eprintln!("sample {n} was told of after {took:?}");
        assert!(took < Duration::from_secs(2), "it took {took:?}");
    }
    // Nobody watches: nobody looks.
    drop(stream);
    put(&worker, "sample-4").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let seen = overview(address).await;
    assert!(samples(named(&seen, "run/7"), "live") <= 4, "{seen}");
    let looked = named(&seen, "run/7")["looked_ms"].clone();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(
        named(&overview(address).await, "run/7")["looked_ms"],
        looked,
        "it is not looked at"
    );
    worker.close(WITHIN).await.expect("closed");
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_sees_its_stores_and_nobody_else_sees_any() {
    let token = |name: &str, stores: Option<&str>, expires| TokenEntry {
        name: name.to_owned(),
        sha256: fingerprint(&format!("secret of {name}")),
        stores: stores.map(|name| vec![store(name)]),
        write: false,
        expires,
    };
    let tokens = vec![
        token("all", None, None),
        token("one", Some("run/7"), None),
        token("gone", Some("nowhere"), None),
        token("old", None, Some(1)),
    ];
    let (steward, address) = start(&World::in_memory(), |options| options.http = Some(http(tokens))).await;
    let bearer = |name: &str| format!("Bearer secret of {name}");
    for path in ["/v1/overview", "/v1/events", "/v1/stores/run%2F7/history"] {
        for headers in [
            &[][..],
            &[("authorization", bearer("old").as_str())],
            &[("authorization", "Bearer x")],
        ] {
            let answer = Answer::of(address, path, headers).await;
            assert_eq!(answer.status, 401, "{path}");
        }
    }
    let names = |seen: &Value| -> Vec<String> {
        let stores = seen["stores"].as_array().expect("stores").iter();
        stores
            .map(|store| store["store"].as_str().expect("a name").to_owned())
            .collect()
    };
    for (name, expected) in [("all", &["other", "run/7"][..]), ("one", &["run/7"]), ("gone", &[])] {
        let authorization = bearer(name);
        let headers = [("authorization", authorization.as_str())];
        let seen = Answer::of(address, "/v1/overview", &headers).await.json().await;
        assert_eq!(names(&seen), expected, "{name}");
        assert_eq!(
            seen["etcd"].is_null(),
            name != "all",
            "what concerns all stores: {seen}"
        );
        let mut stream = Answer::of(address, "/v1/events", &headers).await;
        let event = stream.event().await.expect("an event");
        assert_eq!(names(&event), expected, "{name}");
        let history = Answer::of(address, "/v1/stores/other/history", &headers).await.status;
        assert_eq!(history, if name == "all" { 200 } else { 403 }, "{name}");
    }
    let one = bearer("one");
    let seen = Answer::of(address, "/v1/overview", &[("authorization", &one)])
        .await
        .json()
        .await;
    assert_eq!(
        named(&seen, "run/7")["holders"],
        serde_json::json!([]),
        "the engine's holders serve all stores"
    );
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_sites_get_nothing() {
    let (steward, address) = start(&World::in_memory(), |_| {}).await;
    let status = |path: &'static str, header: (&'static str, &'static str)| async move {
        Answer::of(address, path, &[header]).await.status
    };
    for path in ["/v1/overview", "/v1/events", "/v1/stores"] {
        for header in [
            ("origin", "http://evil.example"),
            ("host", "evil.example"),
            ("sec-fetch-site", "cross-site"),
            // Another port of this machine.
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(status(path, header).await, 403, "{path} with {header:?}");
        }
        for header in [("sec-fetch-site", "same-origin"), ("sec-fetch-site", "none")] {
            assert_eq!(status(path, header).await, 200, "{path} with {header:?}");
        }
    }
    assert_eq!(status("/", ("sec-fetch-site", "cross-site")).await, 200, "a link to it");
    assert_eq!(
        status("/", ("host", "evil.example")).await,
        403,
        "another name for this machine"
    );
    steward.stop(WITHIN).await.expect("stopped");
}

/// The memory of this process that is in use.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .expect("pages");
    4096 * pages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_nobody_reads_are_few_and_hold_nobody_up() {
    let world = World::in_memory();
    let (steward, address) = start(&world, |options| {
        options.look_every = Duration::from_millis(100);
        if let Some(http) = &mut options.http {
            (http.most, http.within) = (16, Duration::from_secs(2));
        }
    })
    .await;
    let worker = world.open(FeatureConfig::new(store("run/7"))).await;
    let mut deaf = Vec::new();
    for _ in 0..8 {
        deaf.push(Answer::of(address, "/v1/events", &[]).await);
    }
    assert!(deaf.iter().all(|answer| answer.status == 200));
    let ninth = Answer::of(address, "/v1/events", &[]).await;
    assert_eq!(ninth.status, 503, "half of the places are for others");
    let before = resident();
    let clock = SystemClock::new();
    for n in 0..40 {
        put(&worker, &format!("sample-{n}")).await;
        let begun = clock.now();
        assert_eq!(samples(named(&overview(address).await, "other"), "live"), 0);
        let took = clock.now().since(begun);
        assert!(took < Duration::from_secs(1), "an overview took {took:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let grown = resident().saturating_sub(before);
    eprintln!("grown by {} KiB", grown >> 10);
    assert!(grown < 32 << 20, "grown by {grown} bytes");
    // Streams end, read or not: there is room again.
    let begun = clock.now();
    loop {
        let mut answer = Answer::of(address, "/v1/events", &[]).await;
        if answer.status == 200 {
            assert!(answer.event().await.is_some());
            while answer.event().await.is_some() {}
            break;
        }
        assert!(
            clock.now().since(begun) < Duration::from_secs(10),
            "no stream has ended"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    worker.close(WITHIN).await.expect("closed");
    steward.stop(WITHIN).await.expect("stopped");
}
