//! Clusters in memory, each with an epoch as an etcd has it, and processes that reach them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Clock, Error, ErrorKind, ManualClock, Result, Retry, Rng, SeededRng, StoreId};
use tensorhold_custody::Version;
use tensorhold_index::placement::{Clusters, EPOCH_KEY, NewStore, PlacedStore};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::store::{
    Condition, History, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, Write,
};
use tensorhold_index::{IndexConfig, TxnIndex};

pub(crate) const CALL: Duration = Duration::from_secs(10);
pub(crate) const CLUSTERS: [&str; 3] = ["home", "b", "c"];

/// All etcds; their addresses are their names.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) rng: Arc<SeededRng>,
    etcds: BTreeMap<&'static str, MemoryStore>,
}

impl World {
    pub(crate) async fn new(seed: u64) -> Arc<Self> {
        let clock = Arc::new(ManualClock::new());
        let etcd = |name| (name, MemoryStore::new(Arc::clone(&clock) as Arc<dyn Clock>));
        let world = Self {
            rng: Arc::new(SeededRng::new(seed)),
            etcds: CLUSTERS.map(etcd).into(),
            clock,
        };
        for name in CLUSTERS {
            world.begin_epoch(name).await;
        }
        Arc::new(world)
    }

    pub(crate) fn etcd(&self, name: &str) -> &MemoryStore {
        &self.etcds[name]
    }

    /// What the restore guard does first.
    pub(crate) async fn begin_epoch(&self, name: &str) {
        self.put(name, EPOCH_KEY, &self.rng.next_u64().to_string()).await;
    }

    pub(crate) async fn put(&self, name: &str, key: &str, value: &str) {
        let put = Transaction {
            conditions: Vec::new(),
            writes: vec![Write::put(key, value)],
        };
        self.etcd(name).transact(&put, CALL).await.expect("written");
    }

    /// Another process.
    pub(crate) fn process(self: &Arc<Self>) -> Arc<Process> {
        let client = |(name, store): (&&'static str, &MemoryStore)| (*name, Client::of(store));
        Arc::new(Process {
            world: Arc::clone(self),
            clients: self.etcds.iter().map(client).collect(),
        })
    }

    /// The clusters with keys that begin so, but for these.
    pub(crate) fn with_keys(&self, prefix: &str, but: &[&str]) -> Vec<&'static str> {
        let has = |store: &MemoryStore| {
            let keys = store.dump().into_iter().map(|entry| entry.key);
            keys.filter(|key| key.starts_with(prefix))
                .any(|key| !but.contains(&key.as_str()))
        };
        let found = self.etcds.iter().filter(|(_, store)| has(store));
        found.map(|(name, _)| *name).collect()
    }

    pub(crate) fn value(&self, name: &str, key: &str) -> Option<String> {
        let entry = self.etcd(name).dump().into_iter().find(|entry| entry.key == key)?;
        Some(String::from_utf8_lossy(&entry.value).into_owned())
    }
}

/// A process, with connections of its own.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) world: Arc<World>,
    clients: BTreeMap<&'static str, Client>,
}

impl Process {
    pub(crate) fn client(&self, name: &str) -> &Client {
        &self.clients[name]
    }

    pub(crate) async fn open(self: &Arc<Self>, store: &StoreId, new: NewStore) -> Result<(Arc<PlacedStore>, TxnIndex)> {
        let clock = Arc::clone(&self.world.clock) as Arc<dyn Clock>;
        let rng = Arc::clone(&self.world.rng) as Arc<dyn Rng>;
        let clusters = Arc::clone(self) as Arc<dyn Clusters>;
        let placed = PlacedStore::open(clusters, store, new, Arc::clone(&clock), Arc::clone(&rng), CALL).await?;
        let placed = Arc::new(placed);
        let shared = Arc::clone(&placed) as Arc<dyn TxnStore>;
        let index = TxnIndex::new(shared, store, IndexConfig::default(), clock, rng);
        Ok((placed, index))
    }
}

#[async_trait]
impl Clusters for Process {
    fn home(&self) -> Arc<dyn TxnStore> {
        Arc::new(self.client("home").clone())
    }

    async fn connect(&self, endpoints: &[String], _within: Duration) -> Result<Arc<dyn TxnStore>> {
        Ok(Arc::new(self.client(&endpoints[0]).clone()))
    }
}

/// A client of an etcd, as `EtcdStore` is one: a transaction requires the epoch that this client knows, and the first call that
/// meets another epoch fails.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) store: MemoryStore,
    epoch: Arc<Mutex<Option<Version>>>,
}

impl Client {
    fn of(store: &MemoryStore) -> Self {
        Self {
            store: store.client(),
            epoch: Arc::default(),
        }
    }

    fn saw(&self, epoch: Option<Version>) -> Result<()> {
        let known = std::mem::replace(&mut *self.epoch.lock(), epoch);
        match known {
            Some(_) if known != epoch => Err(Error::new(ErrorKind::Fenced, "test.epoch", "another epoch")),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl TxnStore for Client {
    fn limits(&self) -> Limits {
        self.store.limits()
    }

    fn history(&self) -> History {
        self.store.history()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        let epoch = Read::Key(EPOCH_KEY.to_owned());
        let all: Vec<Read> = reads.iter().cloned().chain([epoch]).collect();
        let mut snapshot = self.store.read(&all, within).await?;
        let epoch = snapshot.entries.pop().and_then(|entries| entries.into_iter().next());
        self.saw(epoch.map(|entry| entry.version))?;
        Ok(snapshot)
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        if self.epoch.lock().is_none() {
            self.read(&[], within).await?;
        }
        let epoch = (*self.epoch.lock()).expect("it was read");
        let mut own = transaction.clone();
        own.conditions.push(Condition::Unchanged(EPOCH_KEY.to_owned(), epoch));
        let outcome = self.store.transact(&own, within).await?;
        if outcome == TxnOutcome::Rejected {
            // Nothing was applied; as with etcd, the answer itself says which epoch it is.
            self.read(&[], within)
                .await
                .map_err(|error| error.with_retry(Retry::Safe))?;
        }
        Ok(outcome)
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.store.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.store.watch(keys, after, within).await
    }
}
