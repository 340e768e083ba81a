//! What a sweep costs the store: ranges and keys read, counted one by one, whether alone or in a transaction.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{ManualClock, Result, SeededRng, StoreId};
use tensorhold_custody::Version;
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::store::{Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, Write};
use tensorhold_index::{Index, IndexConfig, Session, SweepReport, TxnIndex};

const WITHIN: Duration = Duration::from_secs(60);
/// The most ranges and keys that a sweep with nothing to do may read, whatever the store holds.
const MOST: usize = 24;

#[derive(Debug)]
struct Counting {
    inner: MemoryStore,
    ranges: AtomicUsize,
}

#[async_trait]
impl TxnStore for Counting {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.ranges.fetch_add(reads.len(), Ordering::Relaxed);
        self.inner.read(reads, within).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        // A real store reads to check a condition.
        self.ranges.fetch_add(transaction.conditions.len(), Ordering::Relaxed);
        self.inner.transact(transaction, within).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.inner.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.inner.watch(keys, after, within).await
    }
}

struct World {
    store: Arc<Counting>,
    clock: Arc<ManualClock>,
    index: TxnIndex,
    session: Session,
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let store = Arc::new(Counting {
            inner: MemoryStore::new(clock.clone()),
            ranges: AtomicUsize::new(0),
        });
        let index = TxnIndex::new(
            Arc::clone(&store) as Arc<dyn TxnStore>,
            &StoreId::new("s").expect("a name"),
            IndexConfig {
                session_ttl: Duration::from_secs(100_000),
                ..IndexConfig::default()
            },
            clock.clone(),
            Arc::new(SeededRng::new(1)),
        );
        let session = index.open_session(WITHIN).await.expect("a session");
        Self {
            store,
            clock,
            index,
            session,
        }
    }

    async fn write(&self, keys: impl IntoIterator<Item = String>) {
        let keys: Vec<String> = keys.into_iter().collect();
        for chunk in keys.chunks(100) {
            let put = Transaction {
                writes: chunk.iter().map(|key| Write::put(format!("s/{key}"), "{}")).collect(),
                ..Transaction::default()
            };
            self.store.inner.transact(&put, WITHIN).await.expect("a put");
        }
    }

    /// Sessions that live, each with so many grant lists that end far in the future.
    async fn living(&self, sessions: u64, lists: u64) {
        for id in 0..sessions {
            let session = 0x1000 + id;
            let known = [format!("n/{session:016x}"), format!("z/{session:016x}")];
            let held = (0..lists).map(|n| format!("h/{session:016x}/{:016x}/{session:016x}-{n:x}", 1_000_000 + n));
            self.write(known.into_iter().chain(held)).await;
        }
    }

    /// Sweeps once. Also returns how many ranges and keys that has read.
    async fn sweep(&self) -> (SweepReport, usize) {
        self.store.ranges.store(0, Ordering::Relaxed);
        let report = self.index.sweep(&self.session, 1000, WITHIN).await.expect("swept");
        (report, self.store.ranges.load(Ordering::Relaxed))
    }

    async fn tick(&self) {
        self.clock.advance(Duration::from_secs(1));
        self.sweep().await;
    }

    fn keys(&self, under: &str) -> usize {
        let dump = self.store.inner.dump();
        dump.iter().filter(|entry| entry.key.starts_with(under)).count()
    }
}

#[tokio::test]
async fn a_thousand_sessions_cost_as_little_as_one() {
    let world = World::new().await;
    let (_, alone) = world.sweep().await;
    world.living(1000, 3).await;
    let (report, many) = world.sweep().await;
    assert_eq!(report, SweepReport::default());
    assert!(
        many <= alone + 2 && many <= MOST,
        "{alone} alone, {many} with a thousand"
    );
}

#[tokio::test]
async fn what_is_due_is_found_between_what_is_not() {
    let world = World::new().await;
    world.living(300, 30).await;
    // The first and the last session by their ids, one in the middle, and one that no list of sessions names.
    for session in [0x0fff_u64, 0x1080, 0x2000, 0x1_0000] {
        if session != 0x1_0000 {
            world
                .write([format!("n/{session:016x}"), format!("z/{session:016x}")])
                .await;
        }
        world.write([format!("h/{session:016x}/{:016x}/x-0", 2)]).await;
    }
    world.tick().await;
    let (report, _) = world.sweep().await;
    assert_eq!(
        (report.more, world.keys("s/h/")),
        (false, 9004),
        "not before its grace: {report:?}"
    );
    // Until tick 5: two ticks of grace after tick 2.
    for _ in 0..5 {
        world.tick().await;
    }
    let (report, cost) = world.sweep().await;
    assert_eq!((report.more, world.keys("s/h/")), (false, 9000), "{report:?}");
    assert!(cost <= MOST, "{cost}");
}

#[tokio::test]
async fn dead_sessions_are_cleared_wherever_they_are() {
    let world = World::new().await;
    world.living(200, 20).await;
    let dead: Vec<u64> = (0..150).map(|n| 0x0f80 + 5 * n).collect();
    let gone = |session: &u64| {
        let session = *session;
        let known = format!("z/{session:016x}");
        let held = (0..(session % 3)).map(move |n| format!("h/{session:016x}/{:016x}/x-{n}", 500_000 + n));
        std::iter::once(known).chain(held)
    };
    let outside = dead.iter().filter(|id| !(0x1000..0x1000 + 200).contains(*id));
    let outside: Vec<u64> = outside.copied().collect();
    world.write(outside.iter().flat_map(gone)).await;
    let held = world.keys("s/h/");
    let (report, _) = world.sweep().await;
    let empty = outside.iter().filter(|id| **id % 3 == 0).count();
    assert_eq!(report.sessions_cleared, empty, "those that held nothing: {report:?}");
    assert!(
        held > 4000 && world.keys("s/h/") == 4000,
        "what the others held is taken back"
    );
    let (report, _) = world.sweep().await;
    assert_eq!(report.sessions_cleared, outside.len() - empty, "{report:?}");
    assert_eq!(world.keys("s/z/"), 201, "the living, and the sweeper");
}

#[tokio::test]
async fn a_huge_table_is_walked_in_parts_that_cost_the_same() {
    let world = World::new().await;
    world.living(40, 1500).await;
    let last = 0xffff_u64;
    world
        .write([format!("z/{last:016x}"), format!("h/{last:016x}/{:016x}/x-0", 9)])
        .await;
    let mut sweeps = 0;
    while world.keys(&format!("s/h/{last:016x}")) > 0 {
        let (report, cost) = world.sweep().await;
        sweeps += 1;
        assert!(cost <= 2 * MOST, "{cost} ranges in sweep {sweeps}");
        assert!(report.looked_at <= 1 && sweeps < 10, "{report:?}");
    }
    assert!(sweeps > 1, "it was walked in parts");
    // Around again, and what came meanwhile is found.
    let first = 0x0fff_u64;
    world
        .write([format!("z/{first:016x}"), format!("h/{first:016x}/{:016x}/x-0", 9)])
        .await;
    for _ in 0..2 * sweeps {
        world.sweep().await;
    }
    assert_eq!(world.keys("s/h/"), 60_000);
    assert_eq!(world.keys("s/z/"), 41, "both are cleared");
}

#[tokio::test]
async fn a_session_with_very_many_grant_lists_is_passed_over_quickly() {
    let world = World::new().await;
    world.living(2, 30_000).await;
    let last = 0xffff_u64;
    world
        .write([format!("z/{last:016x}"), format!("h/{last:016x}/{:016x}/x-0", 9)])
        .await;
    let (report, cost) = world.sweep().await;
    assert!(cost <= MOST && !report.more, "{cost}, {report:?}");
    assert_eq!(world.keys("s/h/"), 60_000);
}
