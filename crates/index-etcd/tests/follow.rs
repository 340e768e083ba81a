//! A steward whose settings are not those of a store, on a real etcd.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects"
)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{CALL, clock, commit, open, wish};
use tensorhold_core::{Clock, StoreId, SystemClock, SystemRng};
use tensorhold_custody::GroupName;
use tensorhold_index::{Identity, Index, IndexConfig, SampleRef, TxnIndex};
use tensorhold_testkit::EtcdCluster;
use tokio::task::block_in_place;

const TICK: Duration = Duration::from_secs(2);
const TICKS: u64 = 3;

async fn index(endpoints: &[String], tick: Duration) -> TxnIndex {
    let settings = IndexConfig {
        tick,
        ..IndexConfig::default()
    };
    let store = StoreId::new("slow").expect("a name");
    let txn_store = Arc::new(open(endpoints, 0).await);
    TxnIndex::new(txn_store, &store, settings, clock(), Arc::new(SystemRng))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_lives_as_long_as_its_holder_expects_beside_a_steward_with_a_shorter_tick() {
    let etcd = block_in_place(|| EtcdCluster::start(1)).expect("etcd");
    let steward = index(&etcd.endpoints(), Duration::from_millis(200)).await;
    let steward = steward.with_identity(Identity {
        steward: true,
        ..Identity::of_this_process("steward")
    });
    let office = steward.open_session(CALL).await.expect("a session");
    // It has swept before the process comes.
    steward.sweep(&office, 100, CALL).await.expect("swept");
    let process = index(&etcd.endpoints(), TICK).await;
    let session = process.open_session(CALL).await.expect("a session");
    let group = GroupName::new("trainers").expect("a name");
    let wish = wish("a", 10);
    let sample = wish.sample.clone();
    let reserved = process.reserve(&session, &[wish], CALL).await.remove(0);
    let sample = SampleRef {
        sample,
        generation: reserved.expect("reserved"),
    };
    let committed = process
        .commit(&session, &[commit(&sample, &group)], CALL)
        .await
        .remove(0);
    committed.expect("committed");
    let leased = process.lease(&session, &group, &[sample], TICKS, CALL).await.remove(0);
    let (held, clock) = (leased.expect("a lease"), SystemClock::new());
    let begun = clock.now();
    let lived = loop {
        steward.sweep(&office, 100, CALL).await.expect("swept");
        let is_good = process.check(&session, std::slice::from_ref(&held), CALL).await;
        let lived = clock.now().since(begun);
        if !is_good.expect("an answer")[0] {
            break lived;
        }
        assert!(lived < Duration::from_secs(60), "it was never taken back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let expected = TICK * u32::try_from(TICKS).expect("few");
    eprintln!("a lease of {TICKS} ticks of {TICK:?} lived for {lived:?}");
    assert!(lived >= expected, "{lived:?} instead of {expected:?}");
    // Its grace of two ticks, the tick in which it was granted, and what a busy machine adds.
    assert!(lived < expected + 6 * TICK, "{lived:?} instead of {expected:?}");
}
