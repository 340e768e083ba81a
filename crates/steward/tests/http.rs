//! The HTTP interface: who is let in, what is answered, and that its description is true.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::*;
use serde_json::Value;
use tensorhold_core::{Error, ErrorKind, Result, StoreId};
use tensorhold_engine::Engine;
use tensorhold_features::{FeatureConfig, FeatureStore, Identity};
use tensorhold_index::Index;
use tensorhold_steward::http::auth::{TokenEntry, fingerprint};
use tensorhold_steward::http::openapi;
use tensorhold_steward::{Audited, Connect, HttpOptions, Options, Steward};
use tokio_util::sync::CancellationToken;

fn token(name: &str, stores: Option<&str>, write: bool, expires: Option<u64>) -> TokenEntry {
    TokenEntry {
        name: name.to_owned(),
        sha256: fingerprint(&format!("secret of {name}")),
        stores: stores.map(|name| vec![store(name)]),
        write,
        expires,
    }
}

async fn start(tokens: Vec<TokenEntry>, change: impl FnOnce(&mut Options)) -> (Steward, SocketAddr) {
    let mut options = Options::new([store("run/7"), store("other")]);
    options.look_every = Duration::from_millis(100);
    options.http = Some(HttpOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        tokens,
        tls: None,
        within: Duration::from_secs(20),
        most: 16,
    });
    change(&mut options);
    let world = World::in_memory();
    let steward = Steward::start(options, world).await.expect("a steward");
    let address = steward.address().expect("it listens");
    until("its stores are open", || {
        steward.report().stores.values().all(|store| store.open)
    })
    .await;
    (steward, address)
}

struct Asked {
    status: u16,
    body: String,
}

impl Asked {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

async fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Asked {
    let url = format!("http://{address}{path}");
    let (method, headers) = (
        method.to_owned(),
        headers.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())),
    );
    let headers: Vec<(String, String)> = headers.collect();
    let asked = tokio::task::spawn_blocking(move || {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(WITHIN))
            .build();
        let agent = ureq::Agent::new_with_config(config);
        let mut request = ureq::http::Request::builder().method(method.as_str()).uri(&url);
        for (name, value) in &headers {
            request = request.header(name.as_str(), value.as_str());
        }
        let mut answer = agent.run(request.body(()).expect("a request")).expect("an answer");
        Asked {
            status: answer.status().as_u16(),
            body: answer.body_mut().read_to_string().expect("text"),
        }
    });
    asked.await.expect("asked")
}

fn bearer(name: &str) -> String {
    format!("Bearer secret of {name}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_has_the_token_of_the_store_is_let_in() {
    let tokens = vec![
        token("all", None, true, None),
        token("one", Some("run/7"), true, None),
        token("eyes", Some("run/7"), false, None),
        token("old", None, true, Some(1)),
        token("later", None, true, Some(u64::MAX)),
    ];
    let (steward, address) = start(tokens, |_| {}).await;
    let paths = [
        "/metrics",
        "/v1/stores",
        "/v1/stores/run%2F7",
        "/v1/stores/run%2F7/sessions",
        "/v1/etcd",
        "/v1/nowhere",
    ];
    for path in paths {
        assert_eq!(
            ask(address, "GET", path, &[]).await.status,
            401,
            "{path} without a token"
        );
        for wrong in [
            "Bearer nonsense",
            "Bearer",
            "Basic secret of all",
            "Bearer secret of old",
        ] {
            let answer = ask(address, "GET", path, &[("authorization", wrong)]).await;
            assert_eq!(answer.status, 401, "{path} with {wrong}: {}", answer.body);
            assert!(!answer.body.contains("secret"), "{}", answer.body);
        }
    }
    let status = |name: &'static str, method: &'static str, path: &'static str| async move {
        ask(address, method, path, &[("authorization", &bearer(name))])
            .await
            .status
    };
    for name in ["all", "later", "one", "eyes"] {
        assert_eq!(status(name, "GET", "/v1/stores/run%2F7").await, 200, "{name}");
    }
    assert_eq!(status("all", "GET", "/v1/stores/other").await, 200);
    assert_eq!(
        status("one", "GET", "/v1/stores/other").await,
        403,
        "another store's token"
    );
    assert_eq!(
        status("one", "GET", "/v1/stores").await,
        403,
        "what concerns all stores"
    );
    assert_eq!(status("one", "GET", "/metrics").await, 403);
    assert_eq!(status("one", "POST", "/v1/stores/run%2F7/sweep").await, 200);
    assert_eq!(status("one", "POST", "/v1/stores/other/sweep").await, 403);
    assert_eq!(
        status("eyes", "POST", "/v1/stores/run%2F7/sweep").await,
        403,
        "it may only look"
    );
    assert_eq!(status("all", "GET", "/v1/stores/nobody").await, 404);
    for path in ["/healthz", "/readyz", "/v1/openapi.json"] {
        assert_eq!(
            ask(address, "GET", path, &[]).await.status,
            200,
            "{path} is for everybody"
        );
    }
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_path_lets_in_the_tokens_that_the_description_says() {
    let tokens = vec![
        token("all", None, true, None),
        token("one", Some("run/7"), true, None),
        token("eyes", Some("run/7"), false, None),
        token("other", Some("other"), true, None),
    ];
    let (steward, address) = start(tokens, |_| {}).await;
    let document = openapi::document();
    // A stream lasts: `page.rs` reads it.
    for (method, path, ..) in openapi::PATHS.iter().filter(|row| row.1 != "/v1/events") {
        let needs = document["paths"][path][method]["description"].as_str().expect("a text");
        let says = |words: &str| needs.contains(words);
        for (name, is_refused) in [
            (None, !says("no token")),
            (Some("other"), says("for the store") || says("for all stores")),
            (Some("eyes"), says("for all stores") || says("`write`")),
            (Some("one"), says("for all stores")),
            (Some("all"), false),
        ] {
            let secret = name.map(|name| format!("secret of {name}"));
            let request = request_of(method, path, "run%2F7", "nobody").with(secret.as_deref());
            let answer = request.to(address).await;
            let refused = matches!(answer.status, 401 | 403);
            assert_eq!(
                refused, is_refused,
                "{method} {path}, {needs}, {name:?}: {}",
                answer.status
            );
        }
    }
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_path_of_the_description_is_served_and_no_other() {
    let (steward, address) = start(Vec::new(), |_| {}).await;
    let document = ask(address, "GET", "/v1/openapi.json", &[]).await.json();
    assert_eq!(document, openapi::document());
    for (method, path, ..) in openapi::PATHS {
        assert!(document["paths"][path][method].is_object(), "{method} {path}");
        // It lasts: `page.rs` reads it.
        if *path == "/v1/events" {
            continue;
        }
        let request = request_of(method, path, "run%2F7", "nobody");
        // There is no such sample, and the description says that this is 404.
        let expected = if path.ends_with("{sample}") { 404 } else { 200 };
        let path = request.path.clone();
        let answer = request.to(address).await;
        assert_eq!(answer.status, expected, "{method} {path}: {}", answer.body);
        let wrong = if *method == "post" { "GET" } else { "DELETE" };
        assert_eq!(ask(address, wrong, &path, &[]).await.status, 405, "{wrong} {path}");
    }
    // Every schema that is named is there, and every field that is answered is described.
    let text = document.to_string();
    for (named, _) in text.match_indices("#/components/schemas/") {
        let name: String = text[named + 21..]
            .chars()
            .take_while(char::is_ascii_alphabetic)
            .collect();
        assert!(document["components"]["schemas"][&name].is_object(), "{name}");
    }
    for (path, schema) in [
        ("/v1/stores", "Stores"),
        ("/v1/stores/run%2F7", "Store"),
        ("/v1/stores/other/sessions", "Sessions"),
        ("/v1/stores/other/records", "Records"),
        ("/v1/stores/other/budget", "Budget"),
        ("/v1/stores/other/quarantine", "Quarantine"),
        ("/v1/stores/other/history", "History"),
        ("/v1/overview", "Overview"),
    ] {
        let answer = ask(address, "GET", path, &[]).await.json();
        let described = &document["components"]["schemas"][schema]["properties"];
        for field in answer.as_object().expect("an object").keys() {
            assert!(described[field].is_object(), "{field} of {path} is not described");
        }
    }
    assert_eq!(ask(address, "GET", "/v1/nowhere", &[]).await.status, 404);
    let wrong = ask(address, "GET", "/v1/stores/other/sessions?limit=many", &[]).await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_tells_what_it_sees() {
    let world = World::in_memory();
    let mut options = Options::new([store("run/7")]);
    options.look_every = Duration::from_millis(100);
    options.http = Some(serde_json::from_str(r#"{"listen":"127.0.0.1:0"}"#).expect("settings"));
    let user = world.open(FeatureConfig::new(store("run/7"))).await;
    user.set_budget(1 << 20, WITHIN).await.expect("a budget");
    let steward = Steward::start(options, world).await.expect("a steward");
    let address = steward.address().expect("it listens");
    until("it took office and has looked", || {
        let report = &steward.report().stores["run/7"];
        report.on_duty && report.sweeps > 0 && report.users == Some(1) && report.budget.is_some()
    })
    .await;
    let seen = ask(address, "GET", "/v1/stores/run%2F7", &[]).await.json();
    assert_eq!(
        (&seen["budget"]["bytes"], &seen["steward"]["pid"]),
        (&(1 << 20).into(), &std::process::id().into())
    );
    let sessions = ask(address, "GET", "/v1/stores/run%2F7/sessions?limit=1", &[])
        .await
        .json();
    let next = sessions["next"].as_str().expect("there are two").to_owned();
    let rest = ask(
        address,
        "GET",
        &format!("/v1/stores/run%2F7/sessions?after={next}"),
        &[],
    )
    .await
    .json();
    let both: Vec<bool> = [&sessions, &rest]
        .iter()
        .flat_map(|page| page["sessions"].as_array().expect("a list"))
        .map(|session| session["steward"].as_bool().expect("yes or no"))
        .collect();
    assert!(
        both.len() == 2 && both.contains(&true) && both.contains(&false),
        "{both:?}"
    );
    let metrics = ask(address, "GET", "/metrics", &[]).await.body;
    assert!(
        metrics.contains("tensorhold_registered_bytes{store=\"run/7\"}"),
        "what every process says: {metrics}"
    );
    assert!(
        metrics.contains("tensorhold_steward_on_duty{store=\"run/7\"} 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("tensorhold_steward_budget_bytes{store=\"run/7\"} 1048576"),
        "{metrics}"
    );
    steward.stop(WITHIN).await.expect("stopped");
    user.close(WITHIN).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tokens_web_pages_are_refused() {
    let (steward, address) = start(Vec::new(), |_| {}).await;
    assert_eq!(ask(address, "GET", "/v1/stores", &[]).await.status, 200);
    assert_eq!(
        ask(address, "GET", "/v1/stores", &[("host", "evil.example:80")])
            .await
            .status,
        403
    );
    let from_a_page = [("origin", "http://evil.example")];
    assert_eq!(
        ask(address, "POST", "/v1/stores/other/sweep", &from_a_page)
            .await
            .status,
        403
    );
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_to_change_nothing_does_not() {
    let (steward, address) = start(Vec::new(), |options| options.read_only = true).await;
    assert_eq!(ask(address, "POST", "/v1/stores/other/sweep", &[]).await.status, 409);
    assert_eq!(
        ask(address, "POST", "/v1/stores/other/audit?repair=true", &[])
            .await
            .status,
        409
    );
    for (method, path, ..) in openapi::PATHS.iter().filter(|row| row.0 != "get") {
        let answer = request_of(method, path, "other", "nobody").to(address).await;
        // An audit that repairs nothing may be asked of it.
        let expected = if path.ends_with("/audit") { 200 } else { 409 };
        assert_eq!(answer.status, expected, "{method} {path}: {}", answer.body);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let report = steward.report();
    assert!(report.read_only && report.stores.values().all(|store| !store.on_duty && store.sweeps == 0));
    steward.stop(WITHIN).await.expect("stopped");
}

/// Reads the status of an answer.
fn status_of(stream: &mut std::net::TcpStream) -> String {
    stream.set_read_timeout(Some(WITHIN)).expect("set");
    let mut status = [0; 12];
    stream.read_exact(&mut status).expect("an answer");
    String::from_utf8_lossy(&status).into_owned()
}

fn is_closed(stream: &mut std::net::TcpStream) {
    stream.set_read_timeout(Some(WITHIN)).expect("set");
    let left = stream.read(&mut [0]).map_err(|error| error.kind());
    assert!(
        matches!(left, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)),
        "{left:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_keep_nobody_out() {
    let (steward, address) = start(Vec::new(), |options| {
        if let Some(http) = &mut options.http {
            http.most = 4;
        }
    })
    .await;
    let talks = move || {
        let mut stream = std::net::TcpStream::connect(address).expect("a connection");
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .expect("sent");
        stream
    };
    let slow = |_| {
        let mut stream = std::net::TcpStream::connect(address).expect("a connection");
        stream.write_all(b"GET /healthz HTTP/1.1\r\n").expect("sent");
        stream
    };
    let mut asked = talks();
    assert_eq!(status_of(&mut asked), "HTTP/1.1 200");
    let mut silent: Vec<_> = (0..20).map(slow).collect();
    // Each takes the place of a silent one.
    let mut further = Vec::new();
    for _ in 0..3 {
        let mut stream = talks();
        assert_eq!(status_of(&mut stream), "HTTP/1.1 200");
        further.push(stream);
    }
    for stream in &mut silent {
        is_closed(stream);
    }
    // Those that have asked keep their places: there is none for a fifth.
    let mut refused = std::net::TcpStream::connect(address).expect("a connection");
    is_closed(&mut refused);
    further.pop();
    let mut status = 0;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let url = format!("http://{address}/healthz");
        let asked = tokio::task::spawn_blocking(move || ureq::get(&url).call().map(|answer| answer.status().as_u16()));
        if let Ok(code) = asked.await.expect("asked") {
            status = code;
            break;
        }
    }
    assert_eq!(status, 200, "there is room again");
    steward.stop(WITHIN).await.expect("stopped");
}

/// A store that cannot be opened, and one whose task panics.
struct Unlucky(Arc<World>);

#[async_trait]
impl Connect for Unlucky {
    async fn engine(&self, store: &StoreId) -> Result<Arc<dyn Engine>> {
        self.0.engine(store).await
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        match store.as_str() {
            "panics" => panic!("as asked"),
            "closed" => Err(Error::unavailable("test", "hidden-host does not answer")),
            _ => self.0.index(store, identity).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_with_a_token_it_says_which_stores_are_not_open() {
    let mut options = Options::new([store("run"), store("closed")]);
    options.http = Some(serde_json::from_str(r#"{"listen":"127.0.0.1:0"}"#).expect("settings"));
    if let Some(http) = &mut options.http {
        http.tokens = vec![token("all", None, false, None), token("one", Some("run"), true, None)];
    }
    let unlucky = Arc::new(Unlucky(World::in_memory()));
    let steward = Steward::start(options, unlucky).await.expect("a steward");
    let address = steward.address().expect("it listens");
    until("one is open, the other was tried", || {
        let stores = &steward.report().stores;
        stores["run"].open && stores["closed"].trouble.is_some()
    })
    .await;
    let one = bearer("one");
    for headers in [&[][..], &[("authorization", one.as_str())][..]] {
        let answer = ask(address, "GET", "/readyz", headers).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (503, "1 of 2 stores are open or idle\n")
        );
    }
    let answer = ask(address, "GET", "/readyz", &[("authorization", &bearer("all"))]).await;
    assert!(
        answer.status == 503 && answer.body.contains("closed: "),
        "{}",
        answer.body
    );
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_dies_is_noticed() {
    let mut options = Options::new([store("run"), store("panics")]);
    options.http = Some(serde_json::from_str(r#"{"listen":"127.0.0.1:0"}"#).expect("settings"));
    let unlucky = Arc::new(Unlucky(World::in_memory()));
    let mut steward = Steward::start(options.clone(), unlucky.clone())
        .await
        .expect("a steward");
    let error = tokio::time::timeout(WITHIN, steward.broken()).await.expect("noticed");
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    let address = steward.address().expect("it listens");
    until("the other store is open", || steward.report().stores["run"].open).await;
    let answer = ask(address, "GET", "/readyz", &[]).await;
    assert!(
        answer.status == 503 && answer.body.contains("defect"),
        "{}",
        answer.body
    );
    steward.stop(WITHIN).await.expect("stopped");
    let ran = tensorhold_steward::run(options, unlucky, CancellationToken::new());
    let error = tokio::time::timeout(WITHIN, ran)
        .await
        .expect("in time")
        .expect_err("it is told");
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
}

/// Whose audits end when they are told to.
struct Slow {
    world: Arc<World>,
    begun: tokio::sync::Semaphore,
    may_end: tokio::sync::Semaphore,
}

#[async_trait]
impl Connect for Slow {
    async fn engine(&self, store: &StoreId) -> Result<Arc<dyn Engine>> {
        self.world.engine(store).await
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        self.world.index(store, identity).await
    }

    async fn audit(&self, _: &FeatureStore, _: bool, _: Duration) -> Result<Audited> {
        self.begun.add_permits(1);
        self.may_end.acquire().await.expect("open").forget();
        Ok(Audited::default())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_waits_for_is_done_and_told_all_the_same() {
    let slow = Arc::new(Slow {
        world: World::in_memory(),
        begun: tokio::sync::Semaphore::new(0),
        may_end: tokio::sync::Semaphore::new(0),
    });
    let mut options = Options::new([store("run"), store("other")]);
    options.http = Some(serde_json::from_str(r#"{"listen":"127.0.0.1:0","within":"1s"}"#).expect("settings"));
    let steward = Steward::start(options, slow.clone()).await.expect("a steward");
    let address = steward.address().expect("it listens");
    let all_open = || steward.report().stores.values().all(|store| store.open);
    until("its stores are open", all_open).await;
    // The time of the request is over.
    let late = Sent::new("post", "/v1/stores/run/audit").to(address).await;
    assert_eq!(late.status, 504, "{late:?}");
    late.refusal();
    // It goes on, and a second one of the same store would do the same work.
    let second = Sent::new("post", "/v1/stores/run/audit").to(address).await;
    assert_eq!(second.status, 409, "{second:?}");
    assert!(second.refusal().contains("already"), "{second:?}");
    // The client has left.
    let mut stream = std::net::TcpStream::connect(address).expect("a connection");
    let request = "POST /v1/stores/other/audit HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("sent");
    let both = tokio::time::timeout(WITHIN, slow.begun.acquire_many(2)).await;
    drop(both.expect("both have begun"));
    drop(stream);
    let told = || {
        let report = steward.report();
        let actions = report.stores.values().flat_map(|store| &store.actions);
        actions.filter(|one| one.what.starts_with("audited")).count()
    };
    assert_eq!(told(), 0);
    slow.may_end.add_permits(2);
    until("both are told of", || told() == 2).await;
    slow.may_end.add_permits(1);
    let next = Sent::new("post", "/v1/stores/run/audit").to(address).await;
    assert_eq!(next.status, 200, "{next:?}");
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_read_is_cut_off() {
    let (steward, address) = start(Vec::new(), |options| {
        if let Some(http) = &mut options.http {
            (http.most, http.within) = (1, Duration::from_secs(1));
        }
    })
    .await;
    let stream = std::net::TcpStream::connect(address).expect("a connection");
    let deaf = tokio::task::spawn_blocking(move || {
        let request = "GET /v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1000);
        // Writing ends when the server closes, at the latest.
        stream.set_write_timeout(Some(WITHIN)).expect("set");
        while (&stream).write_all(request.as_bytes()).is_ok() {}
        stream
    });
    let _held = tokio::time::timeout(WITHIN, deaf)
        .await
        .expect("cut off")
        .expect("no panic");
    let mut status = 0;
    for _ in 0..100 {
        let url = format!("http://{address}/healthz");
        let asked = tokio::task::spawn_blocking(move || ureq::get(&url).call().map(|answer| answer.status().as_u16()));
        if let Ok(code) = asked.await.expect("asked") {
            status = code;
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status, 200, "there is room again");
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_it_says_who_it_is() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};

    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let folder = tempfile::tempdir().expect("a folder");
    let files = tensorhold_steward::TlsFiles {
        certificate: folder.path().join("certificate.pem"),
        key: folder.path().join("key.pem"),
        client_ca: None,
    };
    std::fs::write(&files.certificate, own.cert.pem()).expect("written");
    std::fs::write(&files.key, own.signing_key.serialize_pem()).expect("written");
    let (steward, address) = start(vec![token("all", None, true, None)], |options| {
        if let Some(http) = &mut options.http {
            http.tls = Some(files);
        }
    })
    .await;
    let connect = |roots: RootCertStore| async move {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    assert!(connect(RootCertStore::empty()).await.is_err(), "nobody vouches for it");
    let mut roots = RootCertStore::empty();
    roots.add(own.cert.der().clone()).expect("a root");
    let mut stream = connect(roots).await.expect("a connection");
    let request = "GET /v1/stores HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer secret of all\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    // A server that closes without saying so is no error here.
    stream.read_to_string(&mut answer).await.ok();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("run/7"),
        "{answer}"
    );
    let plain = tokio::task::spawn_blocking(move || ureq::get(format!("http://{address}/healthz")).call().is_err());
    assert!(plain.await.expect("asked"), "plain HTTP is not answered");
    steward.stop(WITHIN).await.expect("stopped");
}
