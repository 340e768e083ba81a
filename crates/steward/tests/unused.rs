//! A store that nobody uses is ended if that was asked for, and not before its time.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::time::Duration;

use common::*;
use holdfast_core::{Clock, DType, TensorSpec};
use holdfast_features::{FeatureConfig, GroupName, Publication, PutItem, TensorIn};
use holdfast_steward::{Options, Steward};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_nobody_uses_is_ended_in_time() {
    const UNUSED: Duration = Duration::from_secs(10);
    let world = World::in_memory();
    let config = FeatureConfig {
        pool_bytes: 1 << 20,
        ..FeatureConfig::new(store("run"))
    };
    let user = world.open(config).await;
    let memory = user.pool().buffer(6, WITHIN).await.expect("memory");
    memory.write(0, b"hidden").expect("written");
    let spec = TensorSpec::new("h".parse().expect("a name"), DType::Uint8, [6]).expect("a spec");
    let item = PutItem {
        sample: "1".parse().expect("a name"),
        tensors: vec![TensorIn::new(spec, memory)],
        publication: Publication {
            groups: vec![GroupName::new("g").expect("a name")],
            retain: false,
            max_attempts: 3,
        },
    };
    user.put(item, WITHIN).await.expect("put");
    let mut options = Options::new([store("run"), store("kept")]);
    // A look that comes late begins the time anew, and the machine may be busy.
    options.look_every = Duration::from_secs(2);
    options.stores[0].end_when_unused = Some(UNUSED);
    let steward = Steward::start(options, world.clone()).await.expect("a steward");
    until("it sees the user", || steward.report().stores["run"].users == Some(1)).await;
    user.close(WITHIN).await.expect("closed");
    let closed = world.clock.now();
    assert_eq!(world.cluster.objects().len(), 1, "a committed sample has no owner");
    until("the store is ended", || world.cluster.objects().is_empty()).await;
    let after = world.clock.now().since(closed);
    assert!(after >= UNUSED, "it was ended after {after:?}");
    until("it says so", || {
        let report = &steward.report().stores["run"];
        report
            .actions
            .iter()
            .any(|action| action.what.contains("ended the store: 1 samples"))
    })
    .await;
    steward.stop(WITHIN).await.expect("stopped");
}
