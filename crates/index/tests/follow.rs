//! A steward sweeps by the settings that the sessions of a store say, and not by its own.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ManualClock, SeededRng, StoreId};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::store::{Transaction, TxnStore, Write};
use tensorhold_index::{Identity, Index, IndexConfig, Session, TxnIndex};

const WITHIN: Duration = Duration::from_secs(60);
/// The steward's own tick.
const OWN: Duration = Duration::from_millis(200);

struct World {
    clock: Arc<ManualClock>,
    store: MemoryStore,
    steward: TxnIndex,
    session: Session,
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let store = MemoryStore::new(clock.clone());
        let steward = index(&clock, &store, OWN).with_identity(Identity {
            steward: true,
            ..Identity::of_this_process("steward")
        });
        let session = steward.open_session(WITHIN).await.expect("a session");
        Self {
            clock,
            store,
            steward,
            session,
        }
    }

    /// A process that uses the store.
    async fn process(&self, tick: Duration) -> Session {
        let index = index(&self.clock, &self.store, tick);
        index.open_session(WITHIN).await.expect("a session")
    }

    /// A session that says this of itself.
    async fn saying(&self, id: u64, said: &str) {
        let put = Transaction {
            writes: vec![Write::put(format!("s/n/{id:016x}"), said)],
            ..Transaction::default()
        };
        self.store.transact(&put, WITHIN).await.expect("a put");
    }

    async fn sweep(&self) -> Duration {
        self.steward.sweep(&self.session, 100, WITHIN).await.expect("swept");
        self.steward.tick_length()
    }

    /// How many ticks pass in this time while the steward sweeps every 100 ms.
    async fn ticks_in(&self, time: Duration) -> u64 {
        const EVERY: Duration = Duration::from_millis(100);
        self.sweep().await;
        let before = self.steward.tick(WITHIN).await.expect("the clock");
        for _ in 0..time.as_millis() / EVERY.as_millis() {
            self.clock.advance(EVERY);
            self.sweep().await;
        }
        self.steward.tick(WITHIN).await.expect("the clock").0 - before.0
    }
}

fn index(clock: &Arc<ManualClock>, store: &MemoryStore, tick: Duration) -> TxnIndex {
    let settings = IndexConfig {
        tick,
        session_ttl: Duration::from_secs(100_000),
        ..IndexConfig::default()
    };
    let store_id = StoreId::new("s").expect("a name");
    let rng = Arc::new(SeededRng::new(1));
    TxnIndex::new(Arc::new(store.client()), &store_id, settings, clock.clone(), rng)
}

#[tokio::test]
async fn the_clock_goes_by_the_longest_tick_that_a_live_session_says() {
    let world = World::new().await;
    assert_eq!(
        world.ticks_in(Duration::from_secs(4)).await,
        20,
        "no other is there: its own"
    );
    let slow = world.process(Duration::from_secs(2)).await;
    let _fast = world.process(Duration::from_secs(1)).await;
    let ticks = world.ticks_in(Duration::from_secs(20)).await;
    assert!((9..=10).contains(&ticks), "{ticks} ticks of 2 s in 20 s");
    slow.close(WITHIN).await.expect("closed");
    let ticks = world.ticks_in(Duration::from_secs(20)).await;
    assert!((19..=20).contains(&ticks), "{ticks} ticks of 1 s in 20 s");
}

#[tokio::test]
async fn sessions_of_an_earlier_release_say_nothing_and_nonsense_is_bounded() {
    let world = World::new().await;
    world.saying(1, "").await;
    world
        .saying(
            2,
            r#"{"host":"h","pid":7,"program":"p","version":"0.1.0","role":"","started_ms":5}"#,
        )
        .await;
    world.saying(3, r#"{"settings":{"tick_ms":-1}}"#).await;
    assert_eq!(world.sweep().await, OWN, "none says a tick");
    world.saying(4, r#"{"settings":{"tick_ms":0}}"#).await;
    assert_eq!(world.sweep().await, Duration::from_millis(1));
    world.saying(5, r#"{"settings":{"tick_ms":300,"later":true}}"#).await;
    assert_eq!(world.sweep().await, Duration::from_millis(300));
    world
        .saying(6, r#"{"settings":{"tick_ms":18446744073709551615}}"#)
        .await;
    assert_eq!(world.sweep().await, Duration::from_secs(60));
}

#[tokio::test]
async fn a_process_that_is_no_steward_goes_by_its_own_settings() {
    let world = World::new().await;
    let _slow = world.process(Duration::from_secs(2)).await;
    let process = index(&world.clock, &world.store, OWN);
    let session = process.open_session(WITHIN).await.expect("a session");
    process.sweep(&session, 100, WITHIN).await.expect("swept");
    assert_eq!(process.tick_length(), OWN);
}

#[tokio::test]
async fn a_steward_says_no_settings_of_its_own() {
    let world = World::new().await;
    let _quick = world.process(OWN / 2).await;
    assert_eq!(world.sweep().await, OWN / 2);
}

/// Each sweep would otherwise read all of them: a thousand sessions are a megabyte in four sweeps.
#[tokio::test]
async fn what_a_session_says_is_read_once() {
    let world = World::new().await;
    world.saying(1, r#"{"settings":{"tick_ms":300}}"#).await;
    assert_eq!(world.sweep().await, Duration::from_millis(300));
    world.saying(1, r#"{"settings":{"tick_ms":400}}"#).await;
    assert_eq!(world.sweep().await, Duration::from_millis(300));
}
