//! Certificates and passwords change while a client runs: it goes on with the new ones.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod secured;

use std::time::Duration;

use common::{CALL, START, clock, get, put, put_now};
use secured::{SecuredEtcd, USER};
use tensorhold_core::ErrorKind;
use tensorhold_index::store::{TxnStore, prefix};
use tensorhold_index_etcd::EtcdStore;
use tokio::task::block_in_place;

/// Longer than etcd takes to start again on a busy machine.
const TTL: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_outlives_the_rotation_of_its_password_and_certificates() {
    let mut etcd = SecuredEtcd::start().await;
    let by_files = EtcdStore::open(etcd.config_by_files(), clock(), START)
        .await
        .expect("a store");
    // It has no session and no watch, whose end would tell it that its connection is of no more use.
    let quiet = EtcdStore::open(etcd.config_by_files(), clock(), START)
        .await
        .expect("a store");
    let by_texts = EtcdStore::open(etcd.config(), clock(), START).await.expect("a store");
    put_now(&by_files, "a", "1").await;
    put_now(&quiet, "q", "1").await;
    put_now(&by_texts, "a", "2").await;
    let session = by_files.open_session(TTL, CALL).await.expect("a session");
    let now = by_files.read(&[], CALL).await.expect("a read").version;
    let mut watch = by_files.watch(prefix("w"), now, CALL).await.expect("a watch");

    // The password: first etcd gets the new one, a while later the file does. Callers notice nothing but the delay.
    let mut operator = etcd.operator().await;
    operator
        .user_change_password(USER, "the-next-password")
        .await
        .expect("changed");
    let (during, late) = (by_files.clone(), Duration::from_millis(700));
    let written = tokio::spawn(async move { during.transact(&put("a", "3"), CALL).await });
    tokio::time::sleep(late).await;
    std::fs::write(etcd.file("password"), "the-next-password").expect("written");
    written
        .await
        .expect("no panic")
        .expect("written when the file had it, too");
    let error = by_texts
        .transact(&put("a", "x"), Duration::from_secs(2))
        .await
        .expect_err("the old password");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    // The certificates: another authority, and every connection is dropped.
    etcd.rotate_certificates();
    block_in_place(|| etcd.restart());
    put_now(&quiet, "q", "2").await;
    let version = put_now(&by_files, "w/1", "4").await;
    assert_eq!(
        watch.next().await.expect("a change")[0].version,
        version,
        "the watch went on"
    );
    assert_eq!(get(&by_files, "a").await.expect("there").value, b"3");
    let error = by_texts
        .transact(&put("a", "x"), Duration::from_secs(2))
        .await
        .expect_err("the old authority");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");

    // Longer than the session lives without being kept.
    tokio::time::sleep(TTL + Duration::from_secs(1)).await;
    assert!(session.is_alive(), "it was kept through all of it");
    session.close(CALL).await.expect("closed");
}
