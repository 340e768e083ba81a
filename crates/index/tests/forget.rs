//! Which stores are idle, and forgetting one of them.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{ErrorKind, ManualClock, Nonce, SampleId, SeededRng, StoreId};
use tensorhold_custody::Version;
use tensorhold_index::store::memory::{Fate, MemoryStore};
use tensorhold_index::store::{Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, Write};
use tensorhold_index::{Identity, Index, IndexConfig, Reserve, TxnIndex, forget, in_use};

const WITHIN: Duration = Duration::from_secs(60);

struct World {
    clock: Arc<ManualClock>,
    store: MemoryStore,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        Self {
            store: MemoryStore::new(clock.clone()),
            clock,
        }
    }

    fn index(&self, name: &str) -> TxnIndex {
        let rng = Arc::new(SeededRng::new(1));
        let settings = IndexConfig::default();
        TxnIndex::new(
            Arc::new(self.store.clone()),
            &id(name),
            settings,
            self.clock.clone(),
            rng,
        )
    }

    /// A run that has set a budget, has swept, and has ended.
    async fn ended(&self, name: &str) {
        let index = self.index(name);
        index.set_budget(1000, WITHIN).await.expect("a budget");
        let session = index.open_session(WITHIN).await.expect("a session");
        index.sweep(&session, 10, WITHIN).await.expect("swept");
        session.close(WITHIN).await.expect("closed");
    }

    async fn in_use(&self, names: &[&str]) -> Vec<String> {
        let stores: Vec<StoreId> = names.iter().map(|name| id(name)).collect();
        let found = in_use(&self.store, &stores, &*self.clock, WITHIN).await.expect("read");
        found.iter().map(ToString::to_string).collect()
    }

    async fn forget(&self, name: &str) -> tensorhold_core::Result<bool> {
        forget(&self.store, &id(name), &*self.clock, WITHIN).await
    }

    fn keys(&self, name: &str) -> Vec<String> {
        let of_store = |key: &String| key.starts_with(&format!("{name}/"));
        self.store
            .dump()
            .into_iter()
            .map(|entry| entry.key)
            .filter(of_store)
            .collect()
    }
}

fn id(name: &str) -> StoreId {
    StoreId::new(name).expect("a name")
}

fn reserve(name: &str) -> Reserve {
    Reserve {
        sample: SampleId::new(name).expect("a name"),
        nonce: Nonce::from_u64(1),
        bytes: 10,
        plan: String::new(),
        claims: Vec::new(),
    }
}

#[tokio::test]
async fn a_store_whose_run_has_ended_is_idle_without_a_session() {
    let world = World::new();
    world.ended("over").await;
    world.ended("other").await;
    assert!(
        !world.keys("over").iter().all(|key| !key.contains("/z/")),
        "its session is not cleared"
    );
    assert_eq!(world.in_use(&["over", "other", "nobody"]).await, [""; 0]);
    assert!(
        world.keys("over").iter().all(|key| !key.contains("/z/")),
        "and now it is"
    );
}

#[tokio::test]
async fn a_store_with_a_process_or_something_held_is_in_use() {
    let world = World::new();
    let index = world.index("run");
    let session = index.open_session(WITHIN).await.expect("a session");
    assert_eq!(world.in_use(&["run"]).await, ["run"], "a process has it open");
    for reserved in index.reserve(&session, &[reserve("1")], WITHIN).await {
        reserved.expect("reserved");
    }
    session.close(WITHIN).await.expect("closed");
    assert_eq!(world.in_use(&["run"]).await, ["run"], "a reservation is to be given up");
    let steward = world.index("run").with_identity(Identity {
        steward: true,
        ..Identity::of_this_process("steward")
    });
    let sweeper = steward.open_session(WITHIN).await.expect("a session");
    assert_eq!(world.in_use(&["run"]).await, ["run"], "still");
    let swept = steward.sweep(&sweeper, 10, WITHIN).await.expect("swept");
    assert_eq!(swept.abandoned, 1);
    steward.sweep(&sweeper, 10, WITHIN).await.expect("swept");
    assert!(
        !world.keys("run").iter().any(|key| key.contains("/h/")),
        "nothing is held"
    );
    assert_eq!(world.in_use(&["run"]).await, ["run"], "its objects are to be removed");
    for task in steward.to_free(None, 10, WITHIN).await.expect("listed").tasks {
        for freed in steward.freed(&sweeper, &[task.sample], WITHIN).await {
            freed.expect("freed");
        }
    }
    assert_eq!(world.in_use(&["run"]).await, [""; 0], "only a steward is there");
}

#[tokio::test]
async fn of_a_forgotten_store_nothing_stays() {
    let world = World::new();
    world.ended("over").await;
    world.ended("other").await;
    let refused = world.forget("over").await.expect_err("its session is not cleared");
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert_eq!(world.in_use(&["over", "other"]).await, [""; 0]);
    let others = world.keys("other");
    assert!(world.forget("over").await.expect("forgotten"));
    assert_eq!(world.keys("over"), [""; 0]);
    assert_eq!(world.keys("other"), others);
    assert!(!world.forget("over").await.expect("there is none"));
}

#[tokio::test]
async fn a_store_that_is_used_or_holds_something_is_refused_and_left_alone() {
    let world = World::new();
    let index = world.index("run");
    let session = index.open_session(WITHIN).await.expect("a session");
    let before = world.keys("run");
    let refused = world.forget("run").await.expect_err("it is in use");
    assert!(
        refused.to_string().contains("sessions") && refused.kind() == ErrorKind::Conflict,
        "{refused}"
    );
    assert_eq!(world.keys("run"), before);
    session.close(WITHIN).await.expect("closed");
    for (key, what) in [
        ("s/1", "samples"),
        ("d/1/1", "dead letters"),
        ("x/i/s/1/1", "quarantine"),
    ] {
        let put = |write| Transaction {
            conditions: Vec::new(),
            writes: vec![write],
        };
        let key = format!("run/{key}");
        world.in_use(&["run"]).await;
        world
            .store
            .transact(&put(Write::put(key.clone(), "{}")), WITHIN)
            .await
            .expect("put");
        let refused = world.forget("run").await.expect_err("it holds something");
        assert!(refused.to_string().contains(what), "{refused}");
        world
            .store
            .transact(&put(Write::Delete(key)), WITHIN)
            .await
            .expect("deleted");
    }
    world.ended("run").await;
    world.in_use(&["run"]).await;
    assert!(world.forget("run").await.expect("nothing is in the way"));
}

#[tokio::test]
async fn a_store_with_many_keys_is_whole_until_it_is_gone() {
    let world = World::new();
    world.ended("over").await;
    world.in_use(&["over"]).await;
    let deposits = (0..150).map(|n| Write::put(format!("over/b/a/{n:016x}-1"), "7"));
    let leftovers = (0..150).map(|n| Write::put(format!("over/k/object-{n}"), "gone"));
    for write in deposits.chain(leftovers) {
        let put = Transaction {
            conditions: Vec::new(),
            writes: vec![write],
        };
        world.store.transact(&put, WITHIN).await.expect("put");
    }
    let free = world
        .index("over")
        .budget_use(WITHIN)
        .await
        .expect("read")
        .expect("a budget")
        .free;
    // Each reply is lost until the deposits are few; then the process dies.
    world.store.faults().lose_reply(Fate::Applied);
    world.store.faults().lose_reply(Fate::Applied);
    world.store.faults().lose_reply(Fate::Applied);
    world.store.faults().lose_reply(Fate::Applied);
    let over = id("over");
    let step = forget(&world.store, &over, &*world.clock, WITHIN);
    tokio::select! {
        biased;
        forgotten = step => assert!(forgotten.expect("forgotten")),
        () = async { for _ in 0..9 { tokio::task::yield_now().await } } => {
            let now = world.index("over").budget_use(WITHIN).await.expect("read").expect("a budget");
            assert_eq!((now.bytes, now.free), (1000, free), "the store goes on as it was");
        }
    }
    assert!(world.forget("over").await.expect("forgotten"));
    assert_eq!(world.keys("over"), [""; 0]);
}

/// Wherever the opening of a session falls between the steps of forgetting, the store is forgotten before it, or not at all.
#[tokio::test]
async fn a_session_that_is_opened_meanwhile_finds_a_whole_store() {
    for steps in 0..30 {
        let world = World::new();
        world.ended("run").await;
        world.in_use(&["run"]).await;
        let process = world.index("run");
        let opening = async {
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
            process.open_session(WITHIN).await.expect("a session")
        };
        let (forgotten, session) = tokio::join!(world.forget("run"), opening);
        let budget = process.budget_use(WITHIN).await.expect("read");
        match forgotten {
            Ok(_) => assert_eq!(budget, None, "after {steps}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Conflict, "after {steps}: {error}");
                let budget = budget.expect("its budget is there");
                assert_eq!((budget.bytes, budget.free), (1000, 1000), "after {steps}");
            }
        }
        let reserved = process.reserve(&session, &[reserve("1")], WITHIN).await;
        reserved.into_iter().next().expect("one").expect("it can be used");
    }
}

/// Another process writes a key after forgetting has looked, and before it deletes.
#[derive(Debug)]
struct Meanwhile {
    store: MemoryStore,
    written: Mutex<Option<String>>,
}

#[async_trait]
impl TxnStore for Meanwhile {
    fn limits(&self) -> Limits {
        self.store.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> tensorhold_core::Result<Snapshot> {
        self.store.read(reads, within).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> tensorhold_core::Result<TxnOutcome> {
        let written = self.written.lock().take();
        if let Some(key) = written {
            self.store.transact(&put(key), within).await?;
        }
        self.store.transact(transaction, within).await
    }

    async fn open_session(
        &self,
        time_to_live: Duration,
        within: Duration,
    ) -> tensorhold_core::Result<Box<dyn StoreSession>> {
        self.store.open_session(time_to_live, within).await
    }

    async fn watch(
        &self,
        keys: Range<String>,
        after: Version,
        within: Duration,
    ) -> tensorhold_core::Result<Box<dyn Watch>> {
        self.store.watch(keys, after, within).await
    }
}

fn put(key: String) -> Transaction {
    Transaction {
        conditions: Vec::new(),
        writes: vec![Write::put(key, "{}")],
    }
}

#[tokio::test]
async fn what_comes_between_the_look_and_the_deletion_is_kept() {
    for key in ["n/1", "s/1", "f/1/1", "d/1/1"] {
        let world = World::new();
        world.ended("run").await;
        world.in_use(&["run"]).await;
        let before = world.keys("run");
        let written = format!("run/{key}");
        let meanwhile = Meanwhile {
            store: world.store.clone(),
            written: Mutex::new(Some(written.clone())),
        };
        let refused = forget(&meanwhile, &id("run"), &*world.clock, WITHIN).await;
        assert_eq!(
            refused.expect_err("it is not empty").kind(),
            ErrorKind::Conflict,
            "{key}"
        );
        let mut all = before;
        all.push(written);
        all.sort();
        assert_eq!(world.keys("run"), all);
    }
}

/// A process that was without a session while its store was forgotten does not go by the old clock.
#[tokio::test]
async fn a_clock_that_is_gone_is_not_gone_by() {
    let world = World::new();
    let process = world.index("run");
    let session = process.open_session(WITHIN).await.expect("a session");
    for _ in 0..5 {
        process.sweep(&session, 10, WITHIN).await.expect("swept");
        world.clock.advance(Duration::from_secs(2));
    }
    assert!(process.tick(WITHIN).await.expect("the clock").0 > 3);
    session.close(WITHIN).await.expect("closed");
    world.in_use(&["run"]).await;
    assert!(world.forget("run").await.expect("forgotten"));
    process.open_session(WITHIN).await.expect("another session");
    assert_eq!(process.tick(WITHIN).await.expect("the clock").0, 1);
}
