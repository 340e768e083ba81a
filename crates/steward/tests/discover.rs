//! A steward that looks after every store of the index: also one that begins later, and one that cannot be opened.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use common::*;
use tensorhold_core::{Error, Result, StoreId};
use tensorhold_engine::Engine;
use tensorhold_features::Identity;
use tensorhold_index::Index;
use tensorhold_steward::{Connect, Options, OtherStores, Steward};

/// An index that lists the stores that it was told to. Those that begin with `broken` cannot be opened.
struct Listed {
    world: Arc<World>,
    /// None if the index does not answer.
    stores: Mutex<Option<BTreeSet<StoreId>>>,
}

impl Listed {
    fn new(stores: Option<&[&str]>) -> Arc<Self> {
        let listed = Self {
            world: World::in_memory(),
            stores: Mutex::default(),
        };
        listed.list(stores);
        Arc::new(listed)
    }

    fn list(&self, stores: Option<&[&str]>) {
        let stores = stores.map(|names| names.iter().map(|name| store(name)).collect());
        *self.stores.lock().expect("not poisoned") = stores;
    }
}

#[async_trait]
impl Connect for Listed {
    async fn engine(&self, store: &StoreId) -> Result<Arc<dyn Engine>> {
        self.world.engine(store).await
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        if store.as_str().starts_with("broken") {
            return Err(Error::unavailable("test", "its records are of a later release"));
        }
        self.world.index(store, identity).await
    }

    async fn stores(&self, _: Duration) -> Result<Vec<StoreId>> {
        let stores = self.stores.lock().expect("not poisoned").clone();
        let stores = stores.ok_or_else(|| Error::unavailable("test", "etcd does not answer"))?;
        Ok(stores.into_iter().collect())
    }
}

async fn start(connect: Arc<Listed>, named: &[&str]) -> (Steward, SocketAddr) {
    let mut options = Options::new(named.iter().map(|name| store(name)));
    options.others = Some(OtherStores::default());
    options.look_every = Duration::from_millis(50);
    options.http = Some(serde_json::from_str(r#"{"listen":"127.0.0.1:0"}"#).expect("settings"));
    let steward = Steward::start(options, connect).await.expect("a steward");
    let address = steward.address().expect("it listens");
    (steward, address)
}

async fn readyz(address: SocketAddr) -> (u16, String) {
    let answer = Sent::new("get", "/readyz").to(address).await;
    (answer.status, answer.body)
}

fn is_open(steward: &Steward, name: &str) -> bool {
    steward.report().stores.get(name).is_some_and(|store| store.open)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_begins_later_is_looked_after() {
    let listed = Listed::new(Some(&["first"]));
    let (steward, address) = start(listed.clone(), &["named"]).await;
    until("both are open", || {
        is_open(&steward, "first") && is_open(&steward, "named")
    })
    .await;
    assert_eq!(readyz(address).await, (200, "ok\n".to_owned()));
    assert!(!steward.report().stores.contains_key("later"));
    listed.list(Some(&["first", "later", "named"]));
    until("the later one is swept", || {
        steward
            .report()
            .stores
            .get("later")
            .is_some_and(|store| store.on_duty && store.sweeps > 0)
    })
    .await;
    assert_eq!(steward.report().stores.len(), 3, "each once");
    // It has ended. It may begin again, so it is still looked after.
    listed.list(Some(&["first"]));
    let sweeps = steward.report().stores["later"].sweeps;
    until("it is swept on", || {
        steward.report().stores["later"].sweeps > sweeps + 1
    })
    .await;
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_not_ready_while_the_stores_cannot_be_listed() {
    let listed = Listed::new(None);
    let (steward, address) = start(listed.clone(), &["named"]).await;
    until("the listing has failed", || {
        steward
            .report()
            .trouble
            .is_some_and(|why| why.contains("etcd does not answer"))
    })
    .await;
    until("the named one is open", || is_open(&steward, "named")).await;
    let (status, text) = readyz(address).await;
    assert!(status == 503 && text.contains("cannot be listed"), "{status} {text}");
    listed.list(Some(&["named"]));
    until("they are listed", || steward.report().trouble.is_none()).await;
    assert_eq!(readyz(address).await, (200, "ok\n".to_owned()));
    steward.stop(WITHIN).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_found_and_cannot_be_opened_holds_up_no_other() {
    let listed = Listed::new(Some(&["broken", "whole"]));
    let (steward, address) = start(listed.clone(), &[]).await;
    until("one is open, the other was tried", || {
        let stores = steward.report().stores;
        is_open(&steward, "whole") && stores.get("broken").is_some_and(|store| store.trouble.is_some())
    })
    .await;
    let (status, text) = readyz(address).await;
    assert_eq!(status, 200, "{text}");
    assert!(
        text.contains("1 of 2 stores are open") && text.contains("later release"),
        "{text}"
    );
    let told = Sent::new("get", "/v1/stores/broken").to(address).await.json();
    assert_eq!(told["open"], false);
    assert!(
        told["trouble"]
            .as_str()
            .is_some_and(|why| why.contains("later release")),
        "{told}"
    );
    steward.stop(WITHIN).await.expect("stopped");

    // The same store by name: the settings promise it.
    let (steward, address) = start(listed, &["broken"]).await;
    until("one is open, the other was tried", || {
        is_open(&steward, "whole") && steward.report().stores["broken"].trouble.is_some()
    })
    .await;
    assert_eq!(readyz(address).await.0, 503);
    steward.stop(WITHIN).await.expect("stopped");
}
