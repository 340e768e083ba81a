//! What a steward tells of audits, dead letters and the quarantine.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::*;
use tensorhold_core::{DType, Error, ErrorKind, Result, StoreId, TensorSpec};
use tensorhold_engine::Engine;
use tensorhold_features::{FeatureConfig, FeatureStore, GroupName, Identity, Publication, PutItem, TensorIn};
use tensorhold_index::Index;
use tensorhold_steward::{Audited, Connect, Options, Steward};

/// Its first audit fails, its second one is refused, and all later ones are what they are.
struct Flaky {
    world: Arc<World>,
    audits: AtomicU32,
}

#[async_trait]
impl Connect for Flaky {
    async fn engine(&self, store: &StoreId) -> Result<Arc<dyn Engine>> {
        self.world.engine(store).await
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        self.world.index(store, identity).await
    }

    async fn audit(&self, store: &FeatureStore, read_only: bool, within: Duration) -> Result<Audited> {
        match self.audits.fetch_add(1, Ordering::Relaxed) {
            0 => Err(Error::new(ErrorKind::Unavailable, "audit", "the engine is away")),
            1 => Ok(Audited {
                orphans: 40,
                refused: Some("too many".to_owned()),
                complete: true,
                ..Audited::default()
            }),
            _ => self.world.audit(store, read_only, within).await,
        }
    }
}

/// Its audits do not end.
struct Endless {
    world: Arc<World>,
    begun: AtomicU32,
}

#[async_trait]
impl Connect for Endless {
    async fn engine(&self, store: &StoreId) -> Result<Arc<dyn Engine>> {
        self.world.engine(store).await
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        self.world.index(store, identity).await
    }

    async fn audit(&self, _: &FeatureStore, _: bool, _: Duration) -> Result<Audited> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_does_not_hold_up_the_report() {
    let world = World::in_memory();
    let endless = Arc::new(Endless {
        world: Arc::clone(&world),
        begun: AtomicU32::new(0),
    });
    let mut options = Options::new([store("run")]);
    options.look_every = Duration::from_millis(50);
    options.stores[0].audit_every = Some(Duration::from_millis(100));
    let steward = Steward::start(options, endless.clone()).await.expect("a steward");
    until("an audit has begun", || endless.begun.load(Ordering::Relaxed) > 0).await;
    let user = world.open(FeatureConfig::new(store("run"))).await;
    until("the user is in the report", || {
        steward.report().stores["run"].users == Some(1)
    })
    .await;
    assert_eq!(endless.begun.load(Ordering::Relaxed), 1, "one at a time");
    // Nor does it hold up the end.
    steward.stop(Duration::from_secs(5)).await.expect("stopped");
    user.close(WITHIN).await.expect("closed");
}

/// A group takes a sample and gives it back unused: it had one attempt.
async fn make_dead(user: &FeatureStore) {
    let memory = user.pool().buffer(6, WITHIN).await.expect("memory");
    memory.write(0, b"hidden").expect("written");
    let spec = TensorSpec::new("h".parse().expect("a name"), DType::Uint8, [6]).expect("a spec");
    let group = GroupName::new("g").expect("a name");
    let item = PutItem {
        sample: "1".parse().expect("a name"),
        tensors: vec![TensorIn::new(spec, memory)],
        publication: Publication {
            groups: vec![group.clone()],
            retain: false,
            max_attempts: 1,
        },
    };
    user.put(item, WITHIN).await.expect("put");
    let lease = user
        .lease_next(&group, 1, WITHIN)
        .await
        .expect("a lease")
        .pop()
        .expect("one");
    let answered = user.nack(&[lease], WITHIN).await;
    assert!(answered.iter().all(Result::is_ok), "{answered:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_counted_once_for_the_page_and_the_report() {
    let world = World::in_memory();
    let user = world.open(FeatureConfig::new(store("run"))).await;
    make_dead(&user).await;
    let mut options = Options::new([store("run")]);
    options.http = Some(serde_json::from_str(r#"{"listen":"127.0.0.1:0"}"#).expect("settings"));
    let steward = Steward::start(options, world).await.expect("a steward");
    let address = steward.address().expect("it listens");
    until("the report has it", || {
        steward.report().stores["run"].dead_letters == Some(1)
    })
    .await;
    let shown = Sent::new("get", "/v1/overview").to(address).await.json();
    let states = shown["stores"][0]["states"].as_array().expect("states");
    let dead = states.iter().find(|state| state["state"] == "dead").expect("a state");
    assert_eq!(dead["samples"], 1, "{shown}");
    steward.stop(WITHIN).await.expect("stopped");
    user.close(WITHIN).await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audits_and_dead_letters_are_told() {
    let world = World::in_memory();
    let config = FeatureConfig {
        pool_bytes: 1 << 20,
        ..FeatureConfig::new(store("run"))
    };
    let user = world.open(config).await;
    let mut options = Options::new([store("run")]);
    options.look_every = Duration::from_millis(50);
    options.stores[0].audit_every = Some(Duration::from_millis(300));
    let flaky = Flaky {
        world,
        audits: AtomicU32::new(0),
    };
    let steward = Steward::start(options, Arc::new(flaky)).await.expect("a steward");
    let told = || steward.report().stores["run"].clone();
    until("it has looked", || told().dead_letters == Some(0)).await;

    until("an audit has failed", || told().audits.failed == 1).await;
    let audits = told().audits;
    assert!(
        audits.ended > 0 || audits.trouble.is_some_and(|why| why.contains("away")),
        "what failed is told until the next one"
    );
    until("an audit was refused", || told().audits.refused == 1).await;
    until("an audit was well", || told().audits.ended >= 2).await;
    let audits = told().audits;
    assert_eq!((audits.failed, audits.orphans, audits.trouble), (1, 40, None));
    assert!(audits.last_ended_ms.is_some());

    make_dead(&user).await;
    until("the dead letter is counted", || told().dead_letters == Some(1)).await;
    assert_eq!(told().quarantined, Some(0));
    steward.stop(WITHIN).await.expect("stopped");
    user.close(WITHIN).await.expect("closed");
}
