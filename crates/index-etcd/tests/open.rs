//! Opening a store: certificates, passwords, tokens that expire, and layouts from the future.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod secured;

use std::time::Duration;

use common::{CALL, START, clock, config, get, open, put_now, raw};
use secured::{PASSWORD, SecuredEtcd, USER};
use tensorhold_core::{ErrorKind, Result};
use tensorhold_index::store::{TxnStore, prefix};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore, Pem, Secret, TlsConfig};
use tensorhold_testkit::EtcdCluster;
use tokio::task::block_in_place;

async fn kind_of_failure(config: EtcdConfig, within: Duration) -> ErrorKind {
    let opened: Result<EtcdStore> = EtcdStore::open(config, clock(), within).await;
    opened.expect_err("it should not open").kind()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_passwords_open_the_door_and_nothing_else_does() {
    let etcd = SecuredEtcd::start().await;
    let good = etcd.config();
    let shown = format!("{good:?}");
    assert!(!shown.contains(PASSWORD) && !shown.contains("BEGIN"), "{shown}");

    let txn_store = EtcdStore::open(good.clone(), clock(), START).await.expect("a store");
    let mut watch = txn_store
        .watch(
            prefix("a"),
            txn_store.read(&[], CALL).await.expect("a read").version,
            CALL,
        )
        .await
        .expect("a watch");
    let version = put_now(&txn_store, "a", "1").await;
    assert_eq!(watch.next().await.expect("a change")[0].version, version);
    let session = txn_store
        .open_session(Duration::from_secs(2), CALL)
        .await
        .expect("a session");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(session.is_alive(), "it is kept");
    session.close(CALL).await.expect("closed");

    let but = |change: fn(&mut EtcdConfig)| {
        let mut config = good.clone();
        change(&mut config);
        config
    };
    let soon = Duration::from_secs(2);
    let wrong_password = but(|c| c.password = Some(Secret::new("wrong")));
    assert_eq!(kind_of_failure(wrong_password, CALL).await, ErrorKind::Denied);
    let unknown_user = but(|c| c.user = Some("nobody".into()));
    assert_eq!(kind_of_failure(unknown_user, CALL).await, ErrorKind::Denied);
    let no_user = but(|c| (c.user, c.password) = (None, None));
    assert_eq!(kind_of_failure(no_user, CALL).await, ErrorKind::Denied);
    let anothers_root = but(|c| c.root = "another".into());
    assert_eq!(kind_of_failure(anothers_root, CALL).await, ErrorKind::Denied);
    let no_certificate = but(|c| {
        let tls = c.tls.get_or_insert_default();
        (tls.certificate, tls.key) = (None, None);
    });
    assert_eq!(kind_of_failure(no_certificate, soon).await, ErrorKind::Unavailable);
    let strangers_ca = but(|c| {
        c.tls = Some(TlsConfig {
            ca: None,
            ..c.tls.clone().unwrap_or_default()
        })
    });
    assert_eq!(kind_of_failure(strangers_ca, soon).await, ErrorKind::Unavailable);
    let wrong_name = but(|c| c.tls.get_or_insert_default().server_name = Some("elsewhere.test".into()));
    assert_eq!(kind_of_failure(wrong_name, soon).await, ErrorKind::Unavailable);
    let missing_file = but(|c| c.tls.get_or_insert_default().ca = Some(Pem::new("/no/such/file")));
    assert_eq!(kind_of_failure(missing_file, soon).await, ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_expired_or_was_forgotten_is_replaced() {
    let mut etcd = SecuredEtcd::start().await;
    let txn_store = EtcdStore::open(etcd.config(), clock(), START).await.expect("a store");
    put_now(&txn_store, "a", "1").await;
    // Tokens of this etcd live for a second.
    tokio::time::sleep(Duration::from_secs(4)).await;
    put_now(&txn_store, "a", "2").await;
    // And it keeps them in memory only.
    block_in_place(|| etcd.restart());
    let version = put_now(&txn_store, "a", "3").await;
    assert_eq!(get(&txn_store, "a").await.expect("there").version, version);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_where_etcd_knows_none_is_told_so() {
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let mut settings = config(&etcd.endpoints(), 0);
    (settings.user, settings.password) = (Some(USER.into()), Some(Secret::new(PASSWORD)));
    settings.allow_plain_password = true;
    let error = EtcdStore::open(settings, clock(), CALL)
        .await
        .expect_err("authentication is not enabled");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("authentication is not enabled"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_from_the_future_is_left_alone() {
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    drop(open(&etcd.endpoints(), 0).await);
    drop(open(&etcd.endpoints(), 0).await); // an equal one is fine
    let mut operator = raw(&etcd.endpoints()[0]).await;
    let written = operator.get("/tensorhold/schema", None).await.expect("a get");
    assert_eq!(written.kvs()[0].value(), b"1");
    operator.put("/tensorhold/schema", "3", None).await.expect("a put");
    let error = EtcdStore::open(config(&etcd.endpoints(), 0), clock(), CALL)
        .await
        .expect_err("newer");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("upgrade"), "{error}");
    let mut other_root = config(&etcd.endpoints(), 0);
    other_root.root = "team/other".into();
    EtcdStore::open(other_root, clock(), CALL)
        .await
        .expect("another root is another index");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_at_home_is_said_in_time() {
    let mut settings = EtcdConfig::new(["http://127.0.0.1:1", "http://127.0.0.1:2"]);
    settings.connect_timeout = Duration::from_millis(200);
    let opened = tokio::time::timeout(
        Duration::from_secs(5),
        kind_of_failure(settings, Duration::from_secs(1)),
    )
    .await;
    assert_eq!(opened.expect("in time"), ErrorKind::Unavailable);
}
