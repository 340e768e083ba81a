//! Two tenants at one etcd, with the least roles: each has a whole store, and none of the other's. The roles are made by the
//! commands of `docs/security.md`, as they stand there.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;
mod secured;

use std::sync::Arc;
use std::time::Duration;

use common::{CALL, START, clock};
use etcd_client::PutOptions;
use futures_util::future::join_all;
use secured::{SecuredEtcd, TENANTS};
use tensorhold_core::{ErrorKind, Nonce, ObjectKey, SampleId, StoreId, SystemRng};
use tensorhold_custody::{GroupName, Publication};
use tensorhold_index::placement::NewStore;
use tensorhold_index::store::{Read, Transaction, TxnStore, Write, prefix};
use tensorhold_index::{Commit, Index, IndexConfig, Reserve, SampleRef, TxnIndex};
use tensorhold_index_etcd::{EtcdClusters, EtcdConfig, EtcdStore, has_other_keys, head, open_store};
use tokio::task::block_in_place;

const DOCS: &str = include_str!("../../../docs/security.md");
const PASSWORD: &str = "a-tenants-password";

/// The commands of a section of the page.
fn commands(section: &str) -> &'static str {
    let after = DOCS.split_once(section).expect("the section").1;
    let block = after.split_once("```sh\n").expect("commands").1;
    block.split_once("```").expect("an end").0
}

async fn with_tenants() -> SecuredEtcd {
    let etcd = SecuredEtcd::start().await;
    block_in_place(|| {
        etcd.run_as_operator(commands("### Once for each root"), &[]);
        for tenant in TENANTS {
            let variables = [("TENANT", tenant), ("STORE", tenant), ("PASSWORD", PASSWORD)];
            etcd.run_as_operator(commands("### For each tenant"), &variables);
        }
    });
    etcd
}

async fn open(config: EtcdConfig) -> EtcdStore {
    EtcdStore::open(config, clock(), START).await.expect("a store")
}

fn index(txn_store: &EtcdStore, store: &str) -> TxnIndex {
    TxnIndex::new(
        Arc::new(txn_store.clone()),
        &StoreId::new(store).expect("a name"),
        IndexConfig::default(),
        clock(),
        Arc::new(SystemRng),
    )
}

/// As a process opens a store.
async fn placed(home: &EtcdStore, config: EtcdConfig, store: &str) -> tensorhold_core::Result<TxnIndex> {
    let clusters = Arc::new(EtcdClusters::new(home.clone(), config, clock()));
    let store = StoreId::new(store)?;
    let txn_store = open_store(clusters, &store, NewStore::Begins, Arc::new(SystemRng), CALL).await?;
    let settings = IndexConfig::default();
    Ok(TxnIndex::new(txn_store, &store, settings, clock(), Arc::new(SystemRng)))
}

fn only<T>(mut all: Vec<tensorhold_core::Result<T>>) -> tensorhold_core::Result<T> {
    assert_eq!(all.len(), 1);
    all.pop().expect("one")
}

/// A whole life: session, budget, reserve, commit, take, answer, free, sweep.
async fn live(index: &TxnIndex) {
    index.set_budget(1 << 20, CALL).await.expect("a budget");
    let session = index.open_session(CALL).await.expect("a session");
    let group = GroupName::new("trainers").expect("a name");
    let reserve = Reserve {
        sample: SampleId::new("run/1").expect("a name"),
        nonce: Nonce::from_u64(7),
        bytes: 100,
        plan: "t:1".to_owned(),
        claims: vec![ObjectKey::new("theirs").expect("a key")],
    };
    let sample = reserve.sample.clone();
    let generation = only(index.reserve(&session, &[reserve], CALL).await).expect("a generation");
    let commit = Commit {
        becomes: None,
        sample: SampleRef { sample, generation },
        publication: Publication {
            groups: vec![group.clone()],
            retain: false,
            max_attempts: 3,
        },
        description: b"{}".to_vec(),
    };
    let sample = commit.sample.clone();
    only(index.commit(&session, &[commit], CALL).await).expect("committed");
    let held = index.lease_next(&session, &group, 1, 60, CALL).await.expect("a lease");
    assert_eq!(held.len(), 1);
    assert_eq!(index.check(&session, &held, CALL).await.expect("an answer"), [true]);
    only(index.ack(&session, &held, CALL).await).expect("acknowledged");
    index.sweep(&session, 100, CALL).await.expect("swept");
    let tasks = index.to_free(None, 10, CALL).await.expect("tasks").tasks;
    assert_eq!(tasks.len(), 1);
    only(index.freed(&session, std::slice::from_ref(&sample), CALL).await).expect("freed");
    let gone = index
        .look(std::slice::from_ref(&sample.sample), CALL)
        .await
        .expect("a look");
    assert!(gone.iter().all(Option::is_none));
    session.close(CALL).await.expect("closed");
}

fn denied<T: std::fmt::Debug>(what: &str, outcome: Result<T, etcd_client::Error>) {
    let error = outcome.expect_err(what).to_string();
    assert!(error.contains("permission denied"), "{what}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_have_a_whole_store_each_and_nothing_of_the_others() {
    let etcd = with_tenants().await;
    let [a, b] = TENANTS;
    let (kv_a, kv_b) = (
        open(etcd.config_of(a, Some(PASSWORD))).await,
        // Its certificate is in its name: that is enough.
        open(etcd.config_of(b, None)).await,
    );
    live(
        &placed(&kv_a, etcd.config_of(a, Some(PASSWORD)), a)
            .await
            .expect("a's store"),
    )
    .await;
    live(&placed(&kv_b, etcd.config_of(b, None), b).await.expect("b's store")).await;

    // Through Tensorhold, with a's identity, at b's store.
    let error = placed(&kv_a, etcd.config_of(a, Some(PASSWORD)), b)
        .await
        .expect_err("another's store");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let theirs = index(&kv_a, b);
    let error = theirs.open_session(CALL).await.expect_err("another's store");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let read = Read::Range {
        keys: prefix("b/"),
        limit: 10,
        keys_only: true,
    };
    assert_eq!(
        kv_a.read(&[read], CALL).await.expect_err("read").kind(),
        ErrorKind::Denied
    );
    // One that is refused spoils none of those that are asked for at the same time.
    let reads: Vec<_> = (0..32)
        .map(|n| format!("{}/missing-{n}", if n == 20 { b } else { a }))
        .map(|key| [Read::Key(key)])
        .collect();
    let answers = join_all(reads.iter().map(|read| kv_a.read(read, CALL))).await;
    for (n, answer) in answers.into_iter().enumerate() {
        let refused = answer.err().map(|error| error.kind());
        assert_eq!(refused, (n == 20).then_some(ErrorKind::Denied), "{n}");
    }
    let write = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::put("schema", "9")],
    };
    let error = kv_a.transact(&write, CALL).await.expect_err("the schema");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    // A tenant that would compact etcd learns that it does not know who else uses it.
    let own = etcd.config_of(a, Some(PASSWORD));
    let error = has_other_keys(&own, CALL).await.expect_err("all keys");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    head(&own, CALL).await.expect("the key of the epoch is enough");

    // Around Tensorhold, with a's identity.
    let session = index(&kv_b, b).open_session(CALL).await.expect("a session of b");
    let lease = i64::try_from(session.id().0).expect("an id");
    let mut raw = etcd.raw(a, Some((a, PASSWORD))).await;
    denied("read", raw.get("/tensorhold/b/t", None).await);
    denied("write", raw.put("/tensorhold/b/t", "9", None).await);
    denied("delete", raw.delete("/tensorhold/b/t", None).await);
    let attached = PutOptions::new().with_lease(lease);
    denied("attach", raw.put("/tensorhold/a/x", "", Some(attached)).await);
    denied("revoke", raw.lease_revoke(lease).await);
    // What etcd requires no permission for, as the page says.
    let listed = raw.leases().await.expect("etcd lists leases to every client");
    assert!(listed.leases().iter().any(|one| one.id() == lease));
    raw.lease_keep_alive(lease)
        .await
        .expect("etcd keeps leases for every client");
    assert!(session.is_alive());
    index(&kv_b, b).sweep(&session, 10, CALL).await.expect("b goes on");
    session.close(CALL).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_certificate_nobody_reaches_etcd_at_all() {
    let etcd = with_tenants().await;
    let mut config = etcd.config_of(TENANTS[0], Some(PASSWORD));
    let tls = config.tls.get_or_insert_default();
    (tls.certificate, tls.key) = (None, None);
    let opened = EtcdStore::open(config, clock(), Duration::from_secs(2)).await;
    assert_eq!(opened.expect_err("no certificate").kind(), ErrorKind::Unavailable);
}
