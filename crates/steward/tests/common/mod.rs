//! What the tests share: an engine in memory, an index in memory or on a real etcd.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of this")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Clock, Result, StoreId, SystemClock, SystemRng};
use tensorhold_engine::{Engine, MemoryCluster, MemoryConfig};
use tensorhold_features::{FeatureConfig, FeatureStore, Identity};
use tensorhold_index::store::TxnStore;
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::{Index, IndexConfig, TxnIndex};
use tensorhold_steward::Connect;

/// Enough for anything on a machine that does other things too.
pub const WITHIN: Duration = Duration::from_secs(30);

/// Stores on an engine in memory.
pub struct World {
    pub clock: Arc<SystemClock>,
    pub cluster: Arc<MemoryCluster>,
    pub txn_store: Arc<dyn TxnStore>,
    pub settings: IndexConfig,
}

impl World {
    /// With the index in memory.
    pub fn in_memory() -> Arc<Self> {
        let clock = Arc::new(SystemClock::new());
        Self::over(Arc::new(MemoryStore::new(clock.clone())), clock)
    }

    pub fn over(txn_store: Arc<dyn TxnStore>, clock: Arc<SystemClock>) -> Arc<Self> {
        Arc::new(Self {
            cluster: MemoryCluster::new(MemoryConfig::default(), clock.clone()),
            clock,
            txn_store,
            settings: IndexConfig::default(),
        })
    }

    pub fn index_of(&self, store: &StoreId, txn_store: Arc<dyn TxnStore>) -> TxnIndex {
        let clock: Arc<dyn Clock> = self.clock.clone();
        TxnIndex::new(txn_store, store, self.settings.clone(), clock, Arc::new(SystemRng))
    }

    /// A process that uses a store.
    pub async fn open(&self, config: FeatureConfig) -> FeatureStore {
        let index = self.index_of(&config.store, Arc::clone(&self.txn_store));
        let opened = FeatureStore::open(
            self.cluster.connect(),
            Arc::new(index),
            config,
            self.clock.clone(),
            Arc::new(SystemRng),
        );
        opened.await.expect("a store")
    }
}

#[async_trait]
impl Connect for World {
    async fn engine(&self, _: &StoreId) -> Result<Arc<dyn Engine>> {
        Ok(self.cluster.connect())
    }

    async fn index(&self, store: &StoreId, identity: Identity) -> Result<Arc<dyn Index>> {
        let index = self.index_of(store, Arc::clone(&self.txn_store));
        Ok(Arc::new(index.with_identity(identity)))
    }
}

pub fn store(name: &str) -> StoreId {
    StoreId::new(name).expect("a name")
}

/// Waits until something is so.
pub async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let begun = clock.now();
    while !so() {
        assert!(clock.now().since(begun) < WITHIN, "it did not come to pass: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// An answer of the HTTP interface.
#[derive(Debug)]
pub struct Answered {
    pub status: u16,
    /// The value of `Content-Type`.
    pub kind: String,
    pub body: String,
}

impl Answered {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Checks that this is a refusal in the form that all refusals have, and returns why.
    pub fn refusal(&self) -> String {
        assert!(self.status >= 400 && self.kind == "application/json", "{self:?}");
        let said = self.json();
        for field in ["error", "why", "do"] {
            assert!(
                said[field].as_str().is_some_and(|text| !text.is_empty()),
                "{field}: {self:?}"
            );
        }
        assert_eq!(said.as_object().expect("an object").len(), 3, "{self:?}");
        said["why"].as_str().unwrap_or_default().to_owned()
    }
}

/// What is sent: the method, the path, the token, and a body of a kind.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    pub method: String,
    pub path: String,
    pub token: Option<String>,
    pub body: Option<(String, String)>,
}

impl Sent {
    pub fn new(method: &str, path: impl Into<String>) -> Self {
        Self {
            method: method.to_uppercase(),
            path: path.into(),
            ..Self::default()
        }
    }

    #[must_use]
    pub fn with(mut self, token: Option<&str>) -> Self {
        self.token = token.map(str::to_owned);
        self
    }

    #[must_use]
    pub fn json(self, body: impl Into<String>) -> Self {
        self.body("application/json", body)
    }

    #[must_use]
    pub fn body(mut self, kind: &str, body: impl Into<String>) -> Self {
        self.body = Some((kind.to_owned(), body.into()));
        self
    }

    pub async fn to(self, address: std::net::SocketAddr) -> Answered {
        let url = format!("http://{address}{}", self.path);
        let asked = tokio::task::spawn_blocking(move || {
            let config = ureq::Agent::config_builder()
                .http_status_as_error(false)
                .timeout_global(Some(WITHIN))
                .build();
            let agent = ureq::Agent::new_with_config(config);
            let mut request = ureq::http::Request::builder().method(self.method.as_str()).uri(&url);
            if let Some(token) = &self.token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let answer = match &self.body {
                Some((kind, body)) => {
                    let request = request.header("content-type", kind.as_str());
                    agent.run(request.body(body.clone()).expect("a request"))
                }
                None => agent.run(request.body(()).expect("a request")),
            };
            let mut answer = answer.unwrap_or_else(|error| panic!("{} {url}: {error}", self.method));
            let kind = answer.headers().get("content-type");
            Answered {
                status: answer.status().as_u16(),
                kind: kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned(),
                body: answer.body_mut().read_to_string().expect("text"),
            }
        });
        asked.await.expect("asked")
    }
}

/// Whether any token will do, and the answer has what the token is for.
pub fn is_for_any_store(path: &str) -> bool {
    matches!(path, "/v1/overview" | "/v1/events")
}

/// A request for a path of the description, with names and a body that fit: in this store, about this sample.
pub fn request_of(method: &str, path: &str, store: &str, sample: &str) -> Sent {
    let sent = Sent::new(method, path.replace("{store}", store).replace("{sample}", sample));
    match (method, path) {
        ("put", "/v1/stores/{store}/budget") => sent.json(r#"{"budget_bytes": 1073741824}"#),
        ("post", path) if path.contains("/dead/") => sent.json(format!(r#"{{"samples": ["{sample}"]}}"#)),
        _ => sent,
    }
}
