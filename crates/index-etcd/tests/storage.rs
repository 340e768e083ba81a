//! How full a real etcd is, and making its file smaller.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, SystemClock};
use tensorhold_index::store::{Transaction, TxnStore, Write};
use tensorhold_index_etcd::{EtcdConfig, EtcdStore, defragment, storage};
use tensorhold_testkit::EtcdCluster;

const WITHIN: Duration = Duration::from_secs(20);
const QUOTA: u64 = 4 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_says_how_full_it_is_and_whether_it_refuses_writes() {
    let start = tokio::task::spawn_blocking(|| EtcdCluster::start_with_quota(1, QUOTA));
    let cluster = start.await.expect("run").expect("etcd");
    let config = EtcdConfig::new(cluster.endpoints());
    let first = storage(&config, WITHIN).await.remove(0).expect("it answers");
    assert!(
        first.bytes > 0 && first.used > 0 && first.used <= first.bytes,
        "{first:?}"
    );
    assert!(
        first.leads && !first.full && !first.corrupt && first.version.starts_with("3."),
        "{first:?}"
    );
    assert_eq!(first.endpoint, cluster.endpoints()[0]);

    let kv = EtcdStore::open(config.clone(), Arc::new(SystemClock::new()), WITHIN)
        .await
        .expect("etcd");
    let mut refused = None;
    for _ in 0..100 {
        let put = Transaction {
            writes: vec![Write::put("large", vec![7; 200_000])],
            ..Transaction::default()
        };
        if let Err(error) = kv.transact(&put, WITHIN).await {
            refused = Some(error.kind());
            break;
        }
    }
    assert_eq!(refused, Some(ErrorKind::Capacity));
    let full = storage(&config, WITHIN).await.remove(0).expect("it answers");
    assert!(full.full && full.bytes > first.bytes, "{full:?}");
    // What etcd does by itself from time to time: it forgets what was overwritten.
    let operator = etcd_client::Client::connect(cluster.endpoints(), None).await;
    let mut operator = operator.expect("etcd").kv_client();
    let answer = operator.get("nothing", None).await.expect("an answer");
    let revision = answer.header().expect("a header").revision();
    let whole = etcd_client::CompactionOptions::new().with_physical();
    operator.compact(revision, Some(whole)).await.expect("compacted");
    defragment(&config, &full.endpoint, WITHIN)
        .await
        .expect("a smaller file");
    let after = storage(&config, WITHIN).await.remove(0).expect("it answers");
    assert!(after.bytes < full.bytes / 2, "{after:?}, {full:?}");

    let mut with_a_dead_one = config.clone();
    with_a_dead_one.endpoints.push("http://127.0.0.1:1".to_owned());
    let both = storage(&with_a_dead_one, Duration::from_secs(3)).await;
    assert!(both[0].is_ok() && both[1].is_err(), "{both:?}");
}
