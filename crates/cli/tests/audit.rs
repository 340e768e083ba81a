//! `audit`, on a real etcd and an engine in memory.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use common::{Shell, golden};
use tensorhold_core::{ObjectKey, SystemClock};
use tensorhold_engine::{Engine, EngineExt as _, MemoryCluster, MemoryConfig, PutOptions, PutOutcome};
use tensorhold_testkit::EtcdCluster;

const WITHIN: Duration = Duration::from_secs(10);

#[test]
fn an_object_that_no_record_owns_is_shown_and_removed_when_forced() {
    let etcd = EtcdCluster::start(1).expect("an etcd");
    let cluster = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new()));
    // The command looks whether a master listens before it connects an engine.
    let master = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let mut shell = Shell::new();
    shell.set("TENSORHOLD_ETCD", &etcd.endpoints().join(","));
    shell.set(
        "TENSORHOLD_MASTER",
        &master.local_addr().expect("an address").to_string(),
    );
    let connected = Arc::clone(&cluster);
    shell.host.connect = Some(Arc::new(move |_, _| Ok(connected.connect() as Arc<dyn Engine>)));
    assert_eq!(shell.run(&["budget", "set", "1GiB", "--store", "a"]).code, 0);
    let clean = shell.run(&["audit"]);
    assert_eq!(clean.code, 0, "{clean:?}");

    let engine = cluster.connect();
    let memory = engine.allocate(100, WITHIN).expect("memory");
    let key = ObjectKey::new("a/run/g999999999-00000000000000aa/t0").expect("a key");
    let put = engine.put_one(&key, &memory.whole(), &PutOptions::default(), WITHIN);
    assert!(matches!(put.expect("an outcome"), PutOutcome::Stored));
    let mut ran = vec![
        clean,
        shell.run(&["audit"]),
        shell.run(&["audit", "--json"]),
        shell.run(&["audit", "--force"]),
        shell.run(&["audit", "--repair"]),
    ];
    assert_eq!(
        cluster.objects().len(),
        1,
        "this index has not given out that generation"
    );
    let forced = shell.run(&["audit", "--repair", "--force"]);
    assert_eq!(forced.code, 0, "{forced:?}");
    assert!(cluster.objects().is_empty());
    assert_eq!(ran.iter().map(|ran| ran.code).collect::<Vec<_>>(), [0, 1, 1, 2, 1]);
    ran.push(forced);
    golden("audit", &ran);
}
