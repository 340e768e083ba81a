//! A store with a budget, its clients, and its books.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{
    Clock, Deadline, Error, Generation, ManualClock, Nonce, Result, Rng, SampleId, SeededRng, StoreId, SystemClock,
};
use tensorhold_custody::{GroupName, Live, Publication, Reserved, Retired, invariants};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::store::{Transaction, TxnStore, Write};
use tensorhold_index::{Commit, Index, IndexConfig, LeaseGrant, Reserve, SampleRef, Session, TxnIndex};

pub(crate) const WITHIN: Duration = Duration::from_secs(10);
pub(crate) const SOON: Duration = Duration::from_millis(100);

/// Where the bytes of the budget are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Books {
    pub(crate) deposits: u64,
    pub(crate) paid: u64,
}

pub(crate) struct World {
    pub(crate) txn_store: MemoryStore,
    store: StoreId,
    budget: u64,
}

/// A session, in a process that has its own connection and index.
pub(crate) struct Client {
    pub(crate) txn_store: MemoryStore,
    pub(crate) index: Arc<TxnIndex>,
    pub(crate) session: Session,
}

/// Draws the first in the queue, always.
#[derive(Debug)]
struct InOrder;

impl Rng for InOrder {
    fn next_u64(&self) -> u64 {
        0
    }
}

/// Draws the last one, always: those of the process rather than the queue.
#[derive(Debug)]
struct TheLast;

impl Rng for TheLast {
    fn next_u64(&self) -> u64 {
        u64::MAX
    }
}

impl World {
    /// A store in real time, without a budget.
    pub(crate) fn without_budget() -> Self {
        Self {
            txn_store: MemoryStore::new(Arc::new(SystemClock::new())),
            store: StoreId::new("quota").expect("a name"),
            budget: 0,
        }
    }

    /// A store with a budget, in real time.
    pub(crate) async fn with_budget(budget: u64) -> Self {
        let world = Self {
            budget,
            ..Self::without_budget()
        };
        let index = world.index(world.txn_store.client(), Arc::new(InOrder));
        index.set_budget(budget, WITHIN).await.expect("a budget");
        world
    }

    pub(crate) fn index(&self, txn_store: MemoryStore, rng: Arc<dyn Rng>) -> TxnIndex {
        self.index_at(txn_store, rng, Arc::new(SystemClock::new()))
    }

    fn index_at(&self, txn_store: MemoryStore, rng: Arc<dyn Rng>, clock: Arc<dyn Clock>) -> TxnIndex {
        let config = IndexConfig {
            session_ttl: Duration::from_secs(2),
            tick: Duration::from_millis(50),
            reserve_ticks: 80,
            ..IndexConfig::default()
        };
        let txn_store: Arc<dyn TxnStore> = Arc::new(txn_store);
        TxnIndex::new(txn_store, &self.store, config, clock, rng)
    }

    /// A process that serves the queue in order.
    pub(crate) async fn join(&self) -> Arc<Client> {
        self.join_with(Arc::new(InOrder)).await
    }

    pub(crate) async fn join_drawing(&self, seed: u64) -> Arc<Client> {
        self.join_with(Arc::new(SeededRng::new(seed))).await
    }

    async fn join_with(&self, rng: Arc<dyn Rng>) -> Arc<Client> {
        let txn_store = self.txn_store.client();
        let index = Arc::new(self.index(txn_store.clone(), rng));
        Client::of(txn_store, index).await
    }

    /// Several sessions of one process, for which time stands still: what has just happened has always just happened.
    pub(crate) async fn process<const SESSIONS: usize>(&self, clock: Arc<ManualClock>) -> [Arc<Client>; SESSIONS] {
        let txn_store = self.txn_store.client();
        let index = Arc::new(self.index_at(txn_store.clone(), Arc::new(TheLast), clock));
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(Client::of(txn_store.clone(), Arc::clone(&index)).await);
        }
        sessions
            .try_into()
            .unwrap_or_else(|_| unreachable!("as many as were asked for"))
    }

    /// The bytes of deposits, and those that records were paid with. They must be the budget (LC5).
    pub(crate) fn books(&self) -> Books {
        let (mut deposits, mut paid) = (Vec::new(), Vec::new());
        for entry in self.txn_store.dump() {
            let key = entry.key.trim_start_matches("quota/");
            let record = entry.value.split(|byte| *byte == 0).next().expect("a first part");
            let number = || serde_json::from_slice::<u64>(record).expect("a number");
            match key.split('/').collect::<Vec<_>>()[..] {
                ["b", "a", _] => deposits.push(number()),
                ["p", ..] => paid.push(serde_json::from_slice::<Reserved>(record).expect("a record").paid),
                ["s", ..] => paid.push(serde_json::from_slice::<Live>(record).expect("a record").paid),
                ["g" | "f", ..] => paid.push(serde_json::from_slice::<Retired>(record).expect("a record").paid),
                _ => {}
            }
        }
        assert!(
            invariants::budget_is_accounted_for(self.budget, deposits.iter().copied(), paid.iter().copied()),
            "{:?} of {}: deposits {deposits:?}, paid {paid:?}",
            invariants::LC5,
            self.budget,
        );
        assert!(!deposits.contains(&0), "an empty deposit is none");
        Books {
            deposits: deposits.iter().sum(),
            paid: paid.iter().sum(),
        }
    }

    pub(crate) async fn set_budget(&mut self, by: &Client, bytes: u64) -> Result<()> {
        by.index.set_budget(bytes, WITHIN).await?;
        self.budget = bytes;
        self.books();
        Ok(())
    }

    /// The keys that have this in them.
    pub(crate) fn keys_with(&self, part: &str) -> Vec<String> {
        let keys = self.txn_store.dump().into_iter().map(|entry| entry.key);
        keys.filter(|key| key.contains(part)).collect()
    }

    /// The shared clock moves on, by a sweep.
    pub(crate) async fn tick(&self, by: &Client) {
        let now = || {
            let dump = self.txn_store.dump();
            dump.into_iter()
                .find(|entry| entry.key == "quota/t")
                .map(|entry| entry.version)
        };
        let (clock, before) = (SystemClock::new(), now());
        let deadline = Deadline::after(&clock, WITHIN);
        while now() == before {
            assert!(!deadline.passed(&clock), "the clock stands still");
            by.sweep().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Another client writes something.
    pub(crate) async fn write(&self, write: Write) {
        let transaction = Transaction {
            conditions: Vec::new(),
            writes: vec![write],
        };
        let written = self.txn_store.client().transact(&transaction, WITHIN).await;
        written.expect("written");
    }

    /// Until so many wait.
    pub(crate) async fn until_waiting(&self, count: usize) {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, WITHIN);
        while self.keys_with("/b/w/").len() != count {
            assert!(
                !deadline.passed(&clock),
                "{count} should wait: {:?}",
                self.keys_with("/b/w/")
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

pub(crate) fn wish(name: &str, bytes: u64) -> Reserve {
    Reserve {
        sample: SampleId::new(name).expect("a name"),
        nonce: Nonce::from_u64(1),
        bytes,
        plan: format!("plan of {name}"),
        claims: Vec::new(),
    }
}

impl Client {
    async fn of(txn_store: MemoryStore, index: Arc<TxnIndex>) -> Arc<Self> {
        let session = index.open_session(WITHIN).await.expect("a session");
        Arc::new(Self {
            txn_store,
            index,
            session,
        })
    }

    /// Another session of the same process.
    pub(crate) async fn another(&self) -> Arc<Self> {
        Self::of(self.txn_store.clone(), Arc::clone(&self.index)).await
    }

    pub(crate) async fn reserve(&self, name: &str, bytes: u64, within: Duration) -> Result<SampleRef> {
        let wish = wish(name, bytes);
        let generation = self
            .index
            .reserve(&self.session, std::slice::from_ref(&wish), within)
            .await
            .remove(0)?;
        Ok(SampleRef {
            sample: wish.sample,
            generation,
        })
    }

    pub(crate) async fn commit(&self, sample: &SampleRef) -> Result<()> {
        let publication = Publication {
            groups: vec![GroupName::new("g").expect("a name")],
            retain: false,
            max_attempts: 3,
        };
        let commit = Commit {
            becomes: None,
            sample: sample.clone(),
            publication,
            description: b"d".to_vec(),
        };
        self.index
            .commit(&self.session, &[commit], WITHIN)
            .await
            .remove(0)
            .map(drop)
    }

    /// Takes and acknowledges a committed sample, so that only freeing it is left.
    pub(crate) async fn consume(&self, sample: &SampleRef) -> Result<()> {
        let group = GroupName::new("g").expect("a name");
        let samples = std::slice::from_ref(sample);
        let leased = self.index.lease(&self.session, &group, samples, 50, WITHIN).await;
        let held: Vec<LeaseGrant> = leased.into_iter().collect::<Result<_>>()?;
        self.index.ack(&self.session, &held, WITHIN).await.remove(0).map(drop)
    }

    pub(crate) async fn freed(&self, sample: &SampleRef) -> Result<bool> {
        self.index
            .freed(&self.session, std::slice::from_ref(sample), WITHIN)
            .await
            .remove(0)
    }

    /// Commits, takes, acknowledges and frees a reserved sample.
    pub(crate) async fn use_up(&self, sample: &SampleRef) {
        self.commit(sample).await.expect("committed");
        self.consume(sample).await.expect("consumed");
        self.freed(sample).await.expect("freed");
    }

    pub(crate) async fn sweep(&self) -> tensorhold_index::SweepReport {
        self.index.sweep(&self.session, 100, WITHIN).await.expect("swept")
    }
}

/// A reservation that is being waited for.
pub(crate) fn waiting(
    client: &Arc<Client>,
    name: &str,
    bytes: u64,
    within: Duration,
) -> tokio::task::JoinHandle<Result<SampleRef>> {
    let (client, name) = (Arc::clone(client), name.to_owned());
    tokio::spawn(async move { client.reserve(&name, bytes, within).await })
}

pub(crate) async fn ended<T>(task: tokio::task::JoinHandle<T>) -> T {
    let ended = tokio::time::timeout(WITHIN * 2, task).await;
    ended.expect("in time").expect("no panic")
}

pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T>) -> tensorhold_core::ErrorKind {
    let error: Error = result.expect_err("an error");
    error.kind()
}

pub(crate) fn sample(name: &str, generation: Generation) -> SampleRef {
    SampleRef {
        sample: SampleId::new(name).expect("a name"),
        generation,
    }
}
