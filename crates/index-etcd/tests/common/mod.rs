//! What the tests share: a store on a real etcd, and a raw client to look behind it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Nonce, SampleId, StoreId, SystemClock, SystemRng};
use tensorhold_custody::{GroupName, Publication, Version};
use tensorhold_index::store::{Entry, Read, Transaction, TxnOutcome, TxnStore, Write};
use tensorhold_index::{Commit, IndexConfig, Reserve, SampleRef, TxnIndex};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore};

/// How long a call may take while nodes die: what an index would give it.
pub(crate) const CALL: Duration = Duration::from_secs(10);
/// How long a start may take on a machine that compiles beside it.
pub(crate) const START: Duration = Duration::from_secs(30);

pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

/// Settings that begin with `first`.
pub(crate) fn config(endpoints: &[String], first: usize) -> EtcdConfig {
    let mut endpoints = endpoints.to_vec();
    endpoints.rotate_left(first);
    let mut config = EtcdConfig::new(endpoints);
    config.spread = false;
    config
}

pub(crate) async fn open(endpoints: &[String], first: usize) -> EtcdStore {
    EtcdStore::open(config(endpoints, first), clock(), START)
        .await
        .expect("a store")
}

pub(crate) fn put(key: &str, value: &str) -> Transaction {
    Transaction {
        conditions: Vec::new(),
        writes: vec![Write::put(key, value)],
    }
}

pub(crate) async fn put_now(txn_store: &dyn TxnStore, key: &str, value: &str) -> Version {
    match txn_store.transact(&put(key, value), CALL).await.expect("a put") {
        TxnOutcome::Committed(version) => version,
        TxnOutcome::Rejected => panic!("no conditions, not applied"),
    }
}

pub(crate) async fn get(txn_store: &dyn TxnStore, key: &str) -> Option<Entry> {
    let snapshot = txn_store
        .read(&[Read::Key(key.to_owned())], CALL)
        .await
        .expect("a read");
    snapshot.entries.concat().into_iter().next()
}

/// An etcd client of another make, to do what an operator would.
pub(crate) async fn raw(endpoint: &str) -> etcd_client::Client {
    etcd_client::Client::connect([endpoint], None)
        .await
        .expect("a raw client")
}

/// An index on a real etcd, as a process of its own has it.
pub(crate) async fn index(endpoints: &[String], store: &str, session_ttl: Duration) -> Arc<TxnIndex> {
    let txn_store = Arc::new(open(endpoints, 0).await);
    let store = StoreId::new(store).expect("a name");
    let settings = IndexConfig {
        session_ttl,
        tick: Duration::from_millis(200),
        ..IndexConfig::default()
    };
    Arc::new(TxnIndex::new(txn_store, &store, settings, clock(), Arc::new(SystemRng)))
}

/// A sample to be reserved, with a plan of so many bytes.
pub(crate) fn wish(name: &str, plan: usize) -> Reserve {
    Reserve {
        sample: SampleId::new(name).expect("a name"),
        nonce: Nonce::draw(&SystemRng),
        bytes: 1,
        plan: "x".repeat(plan),
        claims: Vec::new(),
    }
}

/// The commit of a sample for one group.
pub(crate) fn commit(sample: &SampleRef, group: &GroupName) -> Commit {
    Commit {
        becomes: None,
        sample: sample.clone(),
        publication: Publication {
            groups: vec![group.clone()],
            max_attempts: 3,
            retain: false,
        },
        description: b"as it was written".to_vec(),
    }
}
