//! What the tests share: a world in memory, samples with known bytes, and an engine that can be held up.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of this")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

pub mod device;
pub mod held_up;
pub mod raw;
#[cfg(feature = "embed")]
pub mod servers;
pub mod unclear;

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{
    Clock, DType, ErrorKind, Nonce, ObjectKey, Result, SampleId, StoreId, SystemClock, SystemRng, TensorName,
    TensorSpec,
};
use tensorhold_engine::{Engine, HostMemory, MemoryCluster, MemoryConfig};
use tensorhold_features::{
    AckOutcome, FeatureConfig, FeatureStore, GroupName, Lease, Publication, PutItem, SampleRef, Stored, TensorIn,
    TensorOut, Wanted, object_keys,
};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::{Index, IndexConfig, TxnIndex};

/// Enough for anything on a machine that does other things too.
pub const WITHIN: Duration = Duration::from_secs(20);
/// A deadline that is meant to pass.
pub const SOON: Duration = Duration::from_millis(100);

pub fn id(text: &str) -> SampleId {
    SampleId::new(text).expect("a name")
}

pub fn name(text: &str) -> TensorName {
    TensorName::new(text).expect("a name")
}

/// The keys of a sample's objects, by its description.
pub fn objects_of(store: &StoreId, stored: &Stored) -> Vec<ObjectKey> {
    let description = serde_json::to_vec(&*stored.description).expect("JSON");
    // Only a plan needs the nonce.
    let unused = Nonce::from_u64(0);
    object_keys(store, &stored.reference, unused, Some(&description), "").expect("keys")
}

pub fn trainers() -> GroupName {
    GroupName::new("trainers").expect("a name")
}

pub fn spec(text: &str, bytes: usize) -> TensorSpec {
    TensorSpec::new(name(text), DType::Uint8, [bytes as u64]).expect("a spec")
}

/// Bytes that differ by seed and position.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

/// A vector, lent to the engine.
pub fn lent(bytes: Vec<u8>) -> HostMemory {
    let mut bytes = bytes.into_boxed_slice();
    let (base, len) = (bytes.as_mut_ptr(), bytes.len());
    #[allow(unsafe_code, reason = "lending memory is a promise")]
    // SAFETY: the box is the owner, it does not move its bytes, and no other code has it.
    unsafe { HostMemory::lent(base, len, bytes) }.expect("not empty")
}

/// For `trainers`, three attempts.
pub fn publication() -> Publication {
    Publication {
        groups: vec![trainers()],
        retain: false,
        max_attempts: 3,
    }
}

/// A sample of tensors with these lengths, called `t0`, `t1` and so on, from lent memory.
pub fn item(sample: &str, lens: &[usize], seed: u64) -> PutItem {
    let tensors = lens.iter().enumerate().map(|(n, len)| {
        let spec = spec(&format!("t{n}"), *len);
        if *len == 0 {
            return TensorIn {
                spec,
                bytes: tensorhold_features::Source::Spans(Vec::new()),
            };
        }
        TensorIn::new(spec, lent(pattern(*len, seed + n as u64)))
    });
    PutItem {
        sample: id(sample),
        tensors: tensors.collect(),
        publication: publication(),
    }
}

/// Whether these are all tensors of [`item`], with exactly its bytes.
pub fn check_tensors(tensors: &[TensorOut], lens: &[usize], seed: u64) {
    assert_eq!(tensors.len(), lens.len());
    for (n, (tensor, len)) in tensors.iter().zip(lens).enumerate() {
        assert_eq!(tensor.spec, spec(&format!("t{n}"), *len));
        assert!(
            tensor.to_vec() == pattern(*len, seed + n as u64),
            "tensor {n} has other bytes"
        );
    }
}

/// A store in memory, for several "processes".
pub struct World {
    pub clock: Arc<SystemClock>,
    pub cluster: Arc<MemoryCluster>,
    pub txn_store: MemoryStore,
    pub index_config: IndexConfig,
    store: StoreId,
}

impl World {
    pub fn new() -> Self {
        Self::with(MemoryConfig::default())
    }

    pub fn with(config: MemoryConfig) -> Self {
        let clock = Arc::new(SystemClock::new());
        Self {
            cluster: MemoryCluster::new(config, clock.clone()),
            txn_store: MemoryStore::new(clock.clone()),
            index_config: IndexConfig {
                tick: Duration::from_millis(50),
                lost_ticks: 2,
                ..IndexConfig::default()
            },
            store: StoreId::new("s").expect("a name"),
            clock,
        }
    }

    /// Without a sweeper, so that tests say when; chunks are small.
    pub fn config(&self) -> FeatureConfig {
        FeatureConfig {
            sweep_every: None,
            chunk_bytes: 4096,
            lease_ticks: 1200,
            pool_bytes: 8 << 20,
            call_within: Duration::from_secs(5),
            adopt_prefixes: vec!["x:".to_owned()],
            loss_grace: Duration::from_millis(300),
            ..FeatureConfig::new(self.store.clone())
        }
    }

    pub fn index(&self, txn_store: MemoryStore) -> Arc<dyn Index> {
        self.index_of(&self.store, txn_store)
    }

    /// The index of another store beside this one.
    pub fn index_of(&self, store: &StoreId, txn_store: MemoryStore) -> Arc<dyn Index> {
        let clock: Arc<dyn Clock> = self.clock.clone();
        let config = self.index_config.clone();
        Arc::new(TxnIndex::new(
            Arc::new(txn_store),
            store,
            config,
            clock,
            Arc::new(SystemRng),
        ))
    }

    /// A process of its own on this engine and this client of the index.
    pub async fn open_on(
        &self,
        engine: Arc<dyn Engine>,
        txn_store: MemoryStore,
        config: FeatureConfig,
    ) -> FeatureStore {
        let index = self.index(txn_store);
        FeatureStore::open(engine, index, config, self.clock.clone(), Arc::new(SystemRng))
            .await
            .expect("a store")
    }

    /// A process of its own.
    pub async fn open(&self) -> FeatureStore {
        self.open_on(self.cluster.connect(), self.txn_store.client(), self.config())
            .await
    }

    /// Ends a process's session, as silence would.
    pub async fn end_session(&self, store: &FeatureStore) {
        let session = store.health(WITHIN).await.session.expect("a session");
        assert!(self.txn_store.expire(session));
    }

    /// What is left of samples in the index: records of any kind.
    pub fn records(&self) -> Vec<String> {
        let entries = self.txn_store.dump();
        entries
            .into_iter()
            .map(|entry| entry.key)
            .filter(|key| key.contains("run") || key.contains("/a/~"))
            .collect()
    }

    /// Sweeps until what was lost is kept no longer, and freed.
    pub async fn outlive_lost(&self, store: &FeatureStore) {
        let begun = self.clock.now();
        while !self.records().is_empty() {
            assert!(self.clock.now().since(begun) < WITHIN, "kept: {:?}", self.records());
            tokio::time::sleep(self.index_config.tick).await;
            store.sweep(WITHIN).await.expect("swept");
        }
    }

    /// Nothing is left of any sample, in engine and index.
    pub fn assert_empty(&self) {
        assert_eq!(self.cluster.objects(), [], "objects");
        assert_eq!(self.records(), Vec::<String>::new(), "records");
    }
}

pub async fn put(store: &FeatureStore, item: PutItem) -> Stored {
    store.put(item, WITHIN).await.expect("put")
}

/// Takes one sample for the trainers.
pub async fn take(store: &FeatureStore, stored: &Stored) -> Lease {
    one(store
        .lease(&trainers(), std::slice::from_ref(&stored.reference), WITHIN)
        .await)
    .expect("a lease")
}

/// Takes one sample for reading.
pub async fn read(store: &FeatureStore, reference: &SampleRef) -> Lease {
    one(store.lease_shared(std::slice::from_ref(reference), WITHIN).await).expect("a lease")
}

pub async fn get_all(store: &FeatureStore, lease: &Lease) -> Result<Vec<TensorOut>> {
    store.get(lease, Wanted::All, WITHIN).await
}

pub async fn ack(store: &FeatureStore, lease: &Lease) -> Result<AckOutcome> {
    one(store.ack(std::slice::from_ref(lease), WITHIN).await)
}

pub fn one<T>(mut results: Vec<T>) -> T {
    assert_eq!(results.len(), 1);
    results.pop().expect("one")
}

/// Gets until the sample is declared lost; every get before that says that its bytes are missing. Returns how long it
/// took.
pub async fn until_lost(store: &FeatureStore, lease: &Lease) -> Duration {
    let clock = SystemClock::new();
    let begun = clock.now();
    loop {
        let error = get_all(store, lease).await.expect_err("its bytes are gone");
        let took = clock.now().since(begun);
        if error.fact("reason") == Some("lost") {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            return took;
        }
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(took < 6 * WITHIN, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
