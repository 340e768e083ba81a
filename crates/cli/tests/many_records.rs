//! Commands that look answer at once however much a store holds: the first page of `ls`, `why` and `status`, on a real
//! master and etcd with as many live records as TENSORHOLD_RECORDS says (100,000 if it says nothing; a million takes a minute
//! to write).
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]
#![allow(clippy::print_stdout, reason = "it says what it measured")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Shell;
use futures_util::stream::{self, TryStreamExt as _};
use tensorhold_core::{Clock, DType, SystemClock, SystemRng, TensorSpec};
use tensorhold_engine::{MemoryCluster, MemoryConfig};
use tensorhold_features::{FeatureConfig, FeatureStore, GroupName, Publication, PutItem, TensorIn};
use tensorhold_index::placement::NewStore;
use tensorhold_index::store::{Read, Transaction, TxnStore as _, Write};
use tensorhold_index::{IndexConfig, TxnIndex};
use tensorhold_index_etcd::{EtcdClusters, EtcdConfig, EtcdStore, open_store};
use tensorhold_testkit::Cluster;

const WITHIN: Duration = Duration::from_secs(60);
/// What each command may take.
const AT_ONCE: Duration = Duration::from_secs(1);
/// etcd takes at most 128 writes in a transaction.
const IN_TRANSACTION: usize = 100;
const TRANSACTIONS_AT_ONCE: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_takes_less_than_a_second() {
    let records = std::env::var("TENSORHOLD_RECORDS").map_or(100_000, |count| count.parse().expect("a number"));
    let cluster = tokio::task::block_in_place(|| {
        let builder = Cluster::builder().p2p_metadata(true).holders(1).segment_mib(64);
        builder.etcd_nodes(1).start().expect("a cluster")
    });
    let endpoints = cluster.endpoints();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let config = EtcdConfig::new(endpoints.etcd.clone());
    let etcd = EtcdStore::open(config.clone(), Arc::clone(&clock), WITHIN);
    let etcd = etcd.await.expect("etcd");
    put_one(&etcd, &config, &clock).await;
    multiply(&etcd, records).await;

    let shell = Shell::at(&endpoints);
    let last = format!("sample-{:07}", records - 1);
    for arguments in [&["status"][..], &["ls"], &["why", &last]] {
        let begun = clock.now();
        let ran = tokio::task::block_in_place(|| shell.run(&[arguments, &["--json"]].concat()));
        let took = clock.now().since(begun);
        println!("{} of {records} records: {} ms", arguments[0], took.as_millis());
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(took < AT_ONCE, "{} took {took:?}", arguments[0]);
        let answer: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
        match arguments[0] {
            "status" => assert_eq!(answer["items"][0]["samples"]["live"], records, "{answer}"),
            "ls" => assert_eq!(answer["items"].as_array().map(Vec::len), Some(50), "{answer}"),
            _ => assert_eq!(answer["items"][0]["state"], "live", "{answer}"),
        }
    }
}

/// A sample as any process puts it, on an engine in memory.
async fn put_one(etcd: &EtcdStore, config: &EtcdConfig, clock: &Arc<dyn Clock>) {
    let name = "run-7".parse().expect("a name");
    let clusters = EtcdClusters::new(etcd.clone(), config.clone(), Arc::clone(clock));
    let opened = open_store(Arc::new(clusters), &name, NewStore::Begins, Arc::new(SystemRng), WITHIN).await;
    let index = TxnIndex::new(
        opened.expect("the store"),
        &name,
        IndexConfig::default(),
        Arc::clone(clock),
        Arc::new(SystemRng),
    );
    let engine = MemoryCluster::new(MemoryConfig::default(), Arc::clone(clock)).connect();
    let config = FeatureConfig {
        sweep_every: None,
        ..FeatureConfig::new(name)
    };
    let store = FeatureStore::open(engine, Arc::new(index), config, Arc::clone(clock), Arc::new(SystemRng));
    let store = store.await.expect("a store");
    let spec = TensorSpec::new("hidden".parse().expect("a name"), DType::Uint8, [64]).expect("a spec");
    let memory = store.pool().buffer(64, WITHIN).await.expect("memory");
    let item = PutItem {
        sample: "sample-0000000".parse().expect("a name"),
        tensors: vec![TensorIn::new(spec, memory)],
        publication: Publication {
            groups: vec![GroupName::new("trainers").expect("a name")],
            retain: false,
            max_attempts: 3,
        },
    };
    store.put(item, WITHIN).await.expect("put");
    store.close(WITHIN).await.expect("closed");
}

/// Copies its record until there are so many.
async fn multiply(etcd: &EtcdStore, records: usize) {
    let key = |number: usize| format!("run-7/s/sample-{number:07}");
    let snapshot = etcd.read(&[Read::Key(key(0))], WITHIN).await.expect("read");
    let record = snapshot.entries.concat().pop().expect("the record").value;
    let parts: Vec<Vec<usize>> = (1..records)
        .collect::<Vec<_>>()
        .chunks(IN_TRANSACTION)
        .map(<[usize]>::to_vec)
        .collect();
    let written = stream::iter(parts.into_iter().map(Ok)).try_for_each_concurrent(TRANSACTIONS_AT_ONCE, |part| {
        let writes = part.into_iter().map(|number| Write::put(key(number), record.clone()));
        let transaction = Transaction {
            conditions: Vec::new(),
            writes: writes.collect(),
        };
        async move { etcd.transact(&transaction, WITHIN).await.map(drop) }
    });
    written.await.expect("written");
}
