//! A store that nobody uses is ended if that was asked for, and not before its time.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use common::*;
use tensorhold_core::{Clock, DType, Result, StoreId, TensorSpec};
use tensorhold_engine::{Engine, FaultEngine, FaultPlan, MemoryEngine};
use tensorhold_features::{FeatureConfig, FeatureStore, GroupName, Identity, Publication, PutItem, Stage, TensorIn};
use tensorhold_index::Index;
use tensorhold_steward::{Connect, Options, Steward};

const UNUSED: Duration = Duration::from_secs(10);

/// A process that has the store open and has put a sample.
async fn producer(world: &World) -> FeatureStore {
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
    user
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_nobody_uses_is_ended_in_time() {
    let world = World::in_memory();
    let user = producer(&world).await;
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

/// Its engine fails when it is told to.
struct Failing {
    world: Arc<World>,
    engine: Arc<FaultEngine<MemoryEngine>>,
}

#[async_trait]
impl Connect for Failing {
    async fn engine(&self, _: &StoreId) -> Result<Arc<dyn Engine>> {
        Ok(self.engine.clone())
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        self.world.index(store, identity).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_long_to_end_does_not_hold_up_its_report() {
    let world = World::in_memory();
    let producer = producer(&world).await;
    producer.close(WITHIN).await.expect("closed");
    let plan = FaultPlan::new(1).with_lost_request(1000);
    let engine = Arc::new(FaultEngine::new(world.cluster.connect(), plan, world.clock.clone()));
    engine.pause();
    let mut options = Options::new([store("run")]);
    options.look_every = Duration::from_secs(2);
    options.stores[0].end_when_unused = Some(UNUSED);
    let failing = Failing {
        world: Arc::clone(&world),
        engine: engine.clone(),
    };
    let steward = Steward::start(options, Arc::new(failing)).await.expect("a steward");
    until("the store is open", || steward.report().stores["run"].open).await;
    engine.resume();
    let index = world.index_of(&store("run"), Arc::clone(&world.txn_store));
    let begun = world.clock.now();
    while index.counts(WITHIN).await.expect("counts").of(Stage::Live) > 0 {
        assert!(world.clock.now().since(begun) < WITHIN, "its end did not begin");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // No object can be removed, so the end is under way for as long as it may take.
    index.set_budget(1 << 20, WITHIN).await.expect("a budget");
    until("the budget is in the report", || {
        steward.report().stores["run"].budget.is_some()
    })
    .await;
    assert_eq!(world.cluster.objects().len(), 1);
    engine.pause();
    until("it is ended", || {
        let actions = &steward.report().stores["run"].actions;
        actions
            .iter()
            .any(|action| action.what.contains("ended the store: 1 samples"))
    })
    .await;
    assert!(world.cluster.objects().is_empty());
    steward.stop(WITHIN).await.expect("stopped");
}
