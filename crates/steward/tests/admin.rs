//! The admin interface on a real master, holder and etcd: who may do what, what it tells of records, and what it changes.
//!
//! One test, because each test is a process of its own and would start a cluster of its own.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects and what it saw"
)]

mod common;
mod real;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{Answered, Sent, is_for_any_store, request_of, store, until};
use real::{Reach, item};
use serde_json::Value;
use tensorhold_core::{SystemClock, SystemRng};
use tensorhold_features::{FeatureConfig, FeatureStore, GroupName, Identity};
use tensorhold_index::IndexConfig;
use tensorhold_index::store::{Transaction, TxnOutcome, TxnStore, Write};
use tensorhold_steward::http::auth::{TokenEntry, fingerprint};
use tensorhold_steward::http::openapi;
use tensorhold_steward::{HttpOptions, Options, Steward};
use tensorhold_testkit::Cluster;
use tokio::task::block_in_place;

const WITHIN: Duration = Duration::from_secs(60);
/// How long a request may take: short, so that what cannot be reached is told soon.
const REQUEST: Duration = Duration::from_secs(4);
const RUN: &str = "/v1/stores/run%2F7";

fn token(name: &str, stores: Option<&str>, write: bool, expires: Option<u64>) -> TokenEntry {
    TokenEntry {
        name: name.to_owned(),
        sha256: fingerprint(&format!("secret of {name}")),
        stores: stores.map(|name| vec![store(name)]),
        write,
        expires,
    }
}

async fn steward(reach: &Reach, read_only: bool) -> (Steward, SocketAddr) {
    let mut options = Options::new([store("run/7"), store("other")]);
    options.look_every = Duration::from_millis(500);
    options.read_only = read_only;
    options.http = Some(HttpOptions {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        tokens: vec![
            token("all", None, true, None),
            token("one", Some("run/7"), true, None),
            token("eyes", Some("run/7"), false, None),
            token("other", Some("other"), true, None),
            token("old", None, true, Some(1)),
        ],
        tls: None,
        within: REQUEST,
        most: 32,
    });
    let started = Steward::start(options, Arc::new(reach.clone())).await;
    let steward = started.expect("a steward");
    let address = steward.address().expect("it listens");
    let all_open = || steward.report().stores.values().all(|store| store.open);
    until("its stores are open", all_open).await;
    (steward, address)
}

async fn open(reach: &Reach, name: &str) -> FeatureStore {
    // Dead letters keep their bytes for as long as the test takes.
    let settings = IndexConfig {
        dead_ticks: 3600,
        ..IndexConfig::default()
    };
    let identity = Identity::of_this_process("a test");
    let index = reach.connect_index_with(&store(name), identity, settings).await;
    let config = FeatureConfig {
        sweep_every: None,
        pool_bytes: 8 << 20,
        ..FeatureConfig::new(store(name))
    };
    let clock = Arc::new(SystemClock::new());
    let opened = FeatureStore::open(reach.connect_engine(), index, config, clock, Arc::new(SystemRng));
    opened.await.expect("a store")
}

async fn ask(address: SocketAddr, name: &str, method: &str, path: &str) -> Answered {
    let secret = format!("secret of {name}");
    Sent::new(method, path).with(Some(&secret)).to(address).await
}

async fn tell(address: SocketAddr, name: &str, method: &str, path: &str, body: &str) -> Answered {
    let secret = format!("secret of {name}");
    Sent::new(method, path).with(Some(&secret)).json(body).to(address).await
}

/// A group takes a sample and gives it back unused: it had one attempt.
async fn make_dead(user: &FeatureStore, sample: &str) {
    let group = GroupName::new("trainers").expect("a name");
    let found = user
        .find(&[sample.parse().expect("a name")], WITHIN)
        .await
        .expect("found");
    let reference = found[0].as_ref().expect("it is live").reference.clone();
    let leases = user.lease(&group, &[reference], WITHIN).await;
    let leases: Vec<_> = leases.into_iter().map(|lease| lease.expect("a lease")).collect();
    for answer in user.nack(&leases, WITHIN).await {
        answer.expect("given back");
    }
}

fn names(page: &Value) -> Vec<&str> {
    let items = page["items"].as_array().expect("a list");
    items
        .iter()
        .map(|one| one["sample"].as_str().expect("a name"))
        .collect()
}

/// Every path, by everybody who may not.
async fn only_who_may_is_let_in(address: SocketAddr) {
    let mut asked = 0;
    for (method, path, _, needs_token, ..) in openapi::PATHS {
        if !needs_token {
            continue;
        }
        let is_of_store = path.contains("{store}") || is_for_any_store(path);
        let refused = [(None, 401), (Some("nonsense"), 401), (Some("secret of old"), 401)];
        let of_another = (!is_for_any_store(path)).then_some((Some("secret of other"), 403));
        let looks = (*method != "get" || !is_of_store).then_some((Some("secret of eyes"), 403));
        for (secret, status) in refused.into_iter().chain(of_another).chain(looks) {
            let request = request_of(method, path, "run%2F7", "dead-1").with(secret);
            let answer = request.to(address).await;
            assert_eq!(answer.status, status, "{method} {path} with {secret:?}: {answer:?}");
            assert!(!answer.refusal().contains("secret"), "{answer:?}");
            asked += 1;
        }
    }
    assert!(asked > 60, "{asked}");
    // What was refused was not done.
    let dead = ask(address, "eyes", "get", &format!("{RUN}/dead")).await.json();
    assert_eq!(names(&dead), ["dead-1", "dead-2"]);
    let budget = ask(address, "eyes", "get", &format!("{RUN}/budget")).await.json();
    assert_eq!(budget["budget_bytes"], Value::Null);
}

/// Pages, and each of the conditions.
async fn records_are_listed(address: SocketAddr, producer: &str) {
    let list = |query: String| async move {
        let answer = ask(address, "eyes", "get", &format!("{RUN}/records{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
        answer.json()
    };
    let (mut seen, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = list(format!("?limit=2{after}")).await;
        assert!(names(&page).len() <= 2, "{page}");
        seen.extend(names(&page).into_iter().map(str::to_owned));
        pages += 1;
        assert!(pages < 20, "the pages end");
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", escaped(next)),
            None => break,
        }
    }
    let expected = ["dead-1", "dead-2", "live/1", "live/2", "live/3"];
    assert_eq!(
        seen.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        expected.into()
    );
    assert_eq!(seen.len(), expected.len(), "each once: {seen:?}");
    for (query, count) in [
        ("?state=live".to_owned(), 3),
        ("?state=dead".to_owned(), 2),
        ("?state=to_free".to_owned(), 0),
        ("?group=trainers".to_owned(), 5),
        ("?group=nobody".to_owned(), 0),
        (format!("?session={producer}"), 5),
        ("?session=1".to_owned(), 0),
        ("?older_than=0ms".to_owned(), 5),
        ("?older_than=7d".to_owned(), 0),
        (
            format!("?state=live&group=trainers&session={producer}&older_than=0ms&limit=2"),
            2,
        ),
        ("?after=".to_owned(), 5),
        ("?after=%ff%00~".to_owned(), 0),
    ] {
        let page = list(query.clone()).await;
        assert_eq!(names(&page).len(), count, "{query}: {page}");
    }
    let live = list("?state=live&limit=1".to_owned()).await;
    let one = &live["items"][0];
    assert_eq!(
        (&one["sample"], &one["bytes"], &one["state"]),
        (&"live/1".into(), &4096.into(), &"live".into())
    );
    assert_eq!(one["producer"]["session"], producer);
    assert_eq!(
        (&one["producer"]["alive"], &one["producer"]["pid"]),
        (&true.into(), &std::process::id().into())
    );
    assert_eq!(one["groups"][0]["progress"], "waiting");
    let long = "x".repeat(5000);
    for query in [
        "?limit=0",
        "?limit=1001",
        "?limit=-1",
        "?limit=many",
        "?limit=1&limit=2",
        "?state=asleep",
        "?state=",
        "?group=a%2Fb",
        "?group=",
        "?session=xyz",
        "?session=%2B1",
        "?older_than=soon",
        "?older_than=5",
        "?colour=red",
        &format!("?after={long}"),
    ] {
        for path in ["records", "dead", "quarantine"] {
            let answer = ask(address, "eyes", "get", &format!("{RUN}/{path}{query}")).await;
            assert_eq!(answer.status, 400, "{path}{query}: {answer:?}");
            answer.refusal();
        }
    }
}

/// Names that no sample and no store can have, and such that only look so.
async fn strange_names_are_not_found(address: SocketAddr) {
    let long = "x".repeat(20_000);
    let strange = [
        "nobody",
        "a%2Fb",
        "%2F",
        "%2e%2e%2f",
        "%25",
        "100%",
        "%zz",
        "%",
        "%ff",
        "%00",
        "%0a",
        "%7f",
        "%1b%5b31m",
        "%+a",
        "..",
        "%f0%9f%98%80",
        "a;b",
        "a,b",
        "*",
        "{store}",
        "'\"",
        long.as_str(),
    ];
    for name in strange {
        let paths = [
            format!("{RUN}/records/{name}"),
            format!("/v1/stores/{name}/records"),
            format!("/v1/stores/{name}"),
        ];
        for path in paths {
            // ureq would tidy such a path up, or refuse to send it.
            let answer = raw(address, "GET", &path, "").await;
            assert_eq!(answer.status, 404, "{path:.100}: {answer:?}");
            answer.refusal();
        }
        let path = format!("/v1/stores/{name}/budget");
        let answer = raw(address, "PUT", &path, r#"{"budget_bytes": 5}"#).await;
        assert_eq!(answer.status, 404, "{path:.100}: {answer:?}");
    }
    let found = ask(address, "eyes", "get", &format!("{RUN}/records/live%2F2")).await;
    assert_eq!(found.status, 200, "{found:?}");
    assert_eq!(names(&found.json()), ["live/2"]);
}

/// A request whose path is sent as it stands.
async fn raw(address: SocketAddr, method: &str, path: &str, body: &str) -> Answered {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("a connection");
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer secret of all\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: "));
    Answered {
        status: status.expect("a status"),
        kind: kind.unwrap_or_default().to_owned(),
        body: body.to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

async fn dead_letters_come_back_and_go(address: SocketAddr, user: &FeatureStore) {
    let requeue = format!("{RUN}/dead/requeue");
    let drop_path = format!("{RUN}/dead/drop");
    for (body, status) in [
        ("", 400),
        ("[]", 400),
        ("{", 400),
        (r#"{"samples": []}"#, 400),
        (r#"{"samples": "dead-1"}"#, 400),
        (r#"{"samples": [1]}"#, 400),
        (r#"{"samples": ["dead-1"], "force": true}"#, 400),
        (&format!(r#"{{"samples": [{}"x"]}}"#, r#""x","#.repeat(100)), 400),
        (&format!(r#"{{"samples": ["{}"]}}"#, "x".repeat(70_000)), 413),
    ] {
        let answer = tell(address, "one", "post", &requeue, body).await;
        assert_eq!(answer.status, status, "{body:.100}: {answer:?}");
        answer.refusal();
    }
    let secret = Some("secret of one");
    let kindless = Sent::new("post", &requeue).with(secret);
    let plain = kindless.clone().body("text/plain", r#"{"samples": ["dead-1"]}"#);
    for request in [kindless, plain] {
        assert_eq!(request.to(address).await.status, 415);
    }
    let outcomes = |answer: &Answered| -> Vec<(String, String)> {
        assert_eq!(answer.status, 200, "{answer:?}");
        let items = answer.json()["items"].as_array().expect("a list").clone();
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        items
            .iter()
            .map(|one| (text(&one["sample"]), text(&one["outcome"])))
            .collect()
    };
    let pair = |sample: &str, outcome: &str| (sample.to_owned(), outcome.to_owned());
    let asked = r#"{"samples": ["dead-1", "live/1", "nobody", "a\nb", "", "dead-1"]}"#;
    let answer = tell(address, "one", "post", &requeue, asked).await;
    let mut got = outcomes(&answer);
    got.sort();
    let mut expected = vec![
        pair("dead-1", "requeued"),
        pair("live/1", "not_found"),
        pair("nobody", "not_found"),
        pair("a\nb", "not_found"),
        pair("", "not_found"),
    ];
    expected.sort();
    assert_eq!(got, expected);
    let record = ask(address, "one", "get", &format!("{RUN}/records/dead-1"))
        .await
        .json();
    assert_eq!(record["items"][0]["state"], "live", "{record}");
    let group = GroupName::new("trainers").expect("a name");
    let again = user
        .find(&["dead-1".parse().expect("a name")], WITHIN)
        .await
        .expect("found");
    let again = again[0].as_ref().expect("live again").reference.clone();
    let leases = user.lease(&group, &[again], WITHIN).await;
    let leases: Vec<_> = leases.into_iter().map(|lease| lease.expect("a lease")).collect();
    user.nack(&leases, WITHIN)
        .await
        .pop()
        .expect("an answer")
        .expect("given back");
    let both = r#"{"samples": ["dead-1", "dead-2"]}"#;
    let answer = tell(address, "one", "post", &drop_path, both).await;
    assert_eq!(
        outcomes(&answer),
        [pair("dead-1", "dropped"), pair("dead-2", "dropped")]
    );
    let answer = tell(address, "one", "post", &drop_path, both).await;
    assert_eq!(
        outcomes(&answer),
        [pair("dead-1", "not_found"), pair("dead-2", "not_found")]
    );
    let left = ask(address, "one", "get", &format!("{RUN}/dead")).await.json();
    assert_eq!(names(&left), Vec::<&str>::new());
}

async fn the_budget_is_set(address: SocketAddr, reach: &Reach) {
    let path = format!("{RUN}/budget");
    for body in [
        r#"{"budget_bytes": 0}"#,
        r#"{"budget_bytes": -1}"#,
        r#"{"budget_bytes": 1.5}"#,
        r#"{"budget_bytes": 9007199254740992}"#,
        r#"{"budget_bytes": 99999999999999999999}"#,
        r#"{"budget_bytes": "1GiB"}"#,
        r#"{"budget_bytes": null}"#,
        r#"{"bytes": 5}"#,
        "{}",
        "5",
    ] {
        let answer = tell(address, "one", "put", &path, body).await;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        answer.refusal();
    }
    let answer = tell(address, "one", "put", &path, r#"{"budget_bytes": 1048576}"#).await;
    assert_eq!(
        (answer.status, &answer.json()["budget_bytes"]),
        (200, &1_048_576.into()),
        "{answer:?}"
    );
    // Only who opens the store from now on is bound by it.
    let bound = open(reach, "run/7").await;
    bound.put(item("paid", 9, 3), WITHIN).await.expect("put");
    let answer = tell(address, "one", "put", &path, r#"{"budget_bytes": 1}"#).await;
    assert_eq!(answer.status, 409, "{answer:?}");
    assert!(answer.refusal().contains("samples hold more"), "{answer:?}");
    let now = ask(address, "eyes", "get", &path).await.json();
    let (all, used) = (&now["budget_bytes"], &now["used_bytes"]);
    assert_eq!(
        (all, used),
        (&1_048_576.into(), &4096.into()),
        "nothing has changed: {now}"
    );
    let answer = tell(address, "one", "put", &path, r#"{"budget_bytes": 9007199254740991}"#).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    bound.close(WITHIN).await.expect("closed");
}

async fn the_quarantine_has_pages(address: SocketAddr, reach: &Reach) {
    // A place in a list is the key of a record: beside it, others write what is no record.
    let page = ask(address, "one", "get", &format!("{RUN}/records?state=live&limit=1"))
        .await
        .json();
    let key = page["next"].as_str().expect("there are more");
    let writes = (0..3).map(|n| Write::put(format!("{key}{n}"), "nonsense"));
    let transaction = Transaction {
        conditions: Vec::new(),
        writes: writes.collect(),
    };
    let etcd = reach.connect_etcd().await;
    let written = etcd.transact(&transaction, WITHIN).await.expect("written");
    assert!(matches!(written, TxnOutcome::Committed(_)));
    let listed = ask(address, "one", "get", &format!("{RUN}/records?state=live")).await;
    assert_eq!(listed.status, 200, "{listed:?}");
    let (mut keys, mut after) = (Vec::new(), String::new());
    for left in [2, 1, 0] {
        let path = format!("{RUN}/quarantine?limit=1{after}");
        let page = ask(address, "eyes", "get", &path).await.json();
        let items = page["items"].as_array().expect("a list");
        assert_eq!(items.len(), 1, "{page}");
        keys.push(items[0]["key"].as_str().expect("a key").to_owned());
        assert_eq!(items[0]["bytes"], 8);
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", escaped(next)),
            None => assert_eq!(left, 0, "{page}"),
        }
        assert_eq!(page["next"].is_null(), left == 0, "{page}");
    }
    let expected: Vec<String> = (0..3).map(|n| format!("{key}{n}")).collect();
    assert_eq!(keys, expected);
}

/// Without etcd: what needs it is 503 within the time of a request, what is known is told.
async fn what_cannot_be_reached_is_503(address: SocketAddr) {
    let begun = tokio::time::Instant::now();
    let mut asked = Vec::new();
    for (method, path, ..) in openapi::PATHS {
        // The steward itself knows what a store held, and for a while who had it open.
        let is_known = path.ends_with("/history") || path.ends_with("/sessions");
        let is_needed = path.starts_with("/v1/stores/{store}/") && !is_known;
        let request = request_of(method, path, "run%2F7", "live%2F1").with(Some("secret of all"));
        asked.push((method, path, is_needed, tokio::spawn(request.to(address))));
    }
    for (method, path, is_needed, answer) in asked {
        let answer = answer.await.expect("asked");
        if is_needed {
            assert!(matches!(answer.status, 503 | 504), "{method} {path}: {answer:?}");
            answer.refusal();
        } else {
            assert!(matches!(answer.status, 200 | 503), "{method} {path}: {answer:?}");
        }
    }
    let took = begun.elapsed();
    assert!(took < REQUEST + Duration::from_secs(3), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_interface_on_a_real_cluster() {
    let builder = Cluster::builder().p2p_metadata(true).segment_mib(64).etcd_nodes(1);
    let cluster = block_in_place(|| builder.start()).expect("a cluster");
    let reach = Reach::of(&cluster.endpoints());
    let user = open(&reach, "run/7").await;
    for sample in ["live/1", "live/2", "live/3"] {
        user.put(item(sample, 1, 3), WITHIN).await.expect("put");
    }
    for sample in ["dead-1", "dead-2"] {
        user.put(item(sample, 2, 1), WITHIN).await.expect("put");
        make_dead(&user, sample).await;
    }
    let (steward, address) = steward(&reach, false).await;
    let producer = user.health(WITHIN).await.session.expect("a session");
    let producer = format!("{:016x}", producer.0);

    only_who_may_is_let_in(address).await;
    records_are_listed(address, &producer).await;
    strange_names_are_not_found(address).await;
    dead_letters_come_back_and_go(address, &user).await;
    the_budget_is_set(address, &reach).await;
    the_quarantine_has_pages(address, &reach).await;
    let swept = ask(address, "one", "post", &format!("{RUN}/sweep")).await;
    assert_eq!(swept.status, 200, "{swept:?}");
    let audited = ask(address, "all", "post", &format!("{RUN}/audit?repair=true")).await;
    assert_eq!(
        (audited.status, &audited.json()["orphans"]),
        (200, &0.into()),
        "{audited:?}"
    );

    // Every change is in the report, with its reason and who asked.
    let report = ask(address, "eyes", "get", RUN).await.json();
    let actions = report["actions"].as_array().expect("a list");
    let noted = |what: &str, who: &str| {
        let why = format!("it was asked for over HTTP, with the token {who}");
        actions
            .iter()
            .any(|one| one["what"].as_str().is_some_and(|text| text.contains(what)) && one["why"] == why.as_str())
    };
    for what in [
        "requeued 1 dead letters",
        "dropped 2 dead letters",
        "set the budget to 1048576 bytes",
        "swept",
    ] {
        assert!(noted(what, "one"), "{what}: {report}");
    }
    assert!(noted("audited", "all"), "{report}");

    // One that is to change nothing, on the same stores.
    let (looks_only, its_address) = self::steward(&reach, true).await;
    for (method, path, ..) in openapi::PATHS.iter().filter(|row| row.0 != "get") {
        let mut request = request_of(method, path, "run%2F7", "live/1").with(Some("secret of all"));
        if path.ends_with("/audit") {
            request.path.push_str("?repair=true");
        }
        let answer = request.to(its_address).await;
        assert_eq!(answer.status, 409, "{method} {path}: {answer:?}");
        answer.refusal();
    }
    looks_only.stop(WITHIN).await.expect("stopped");

    cluster.etcd(0).stop().expect("stopped");
    what_cannot_be_reached_is_503(address).await;
    cluster.etcd(0).resume().expect("it goes on");
    drop(user.close(WITHIN).await);
    drop(steward.stop(WITHIN).await);
}
