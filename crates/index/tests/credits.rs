//! Credits: a budget that is never exceeded, waits that end in order, and books that always balance.
#![allow(clippy::expect_used, reason = "a test ends by panicking")]

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Clock, ErrorKind, Generation, Nonce, SampleId, SeededRng, StoreId, SystemClock};
use holdfast_custody::{GroupName, Publication, Reason};
use holdfast_index::kv::Kv;
use holdfast_index::kv::memory::MemoryKv;
use holdfast_index::{Commit, Held, Index, IndexConfig, KvIndex, Reserve, SampleRef, Session};

const WITHIN: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(100);

struct World {
    kv: MemoryKv,
    store: StoreId,
}

impl World {
    /// A store with a budget, in real time.
    async fn with_budget(bytes: u64) -> Self {
        let world = Self {
            kv: MemoryKv::new(Arc::new(SystemClock::new())),
            store: StoreId::new("credits").expect("a name"),
        };
        world.index().set_budget(bytes, WITHIN).await.expect("a budget");
        world
    }

    fn index(&self) -> KvIndex {
        let config = IndexConfig {
            session_ttl: Duration::from_secs(2),
            tick: Duration::from_millis(50),
            ..IndexConfig::default()
        };
        let kv: Arc<dyn Kv> = Arc::new(self.kv.client());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        KvIndex::new(kv, &self.store, config, clock, Arc::new(SeededRng::new(1)))
    }

    /// Free, granted and outstanding bytes, as the store of keys has them.
    fn books(&self) -> (u64, u64, u64) {
        let (mut free, mut granted, mut outstanding) = (0, 0, 0);
        for entry in self.kv.dump() {
            if entry.key.ends_with("/b/free") {
                free = String::from_utf8(entry.value).expect("text").parse().expect("a number");
            } else if entry.key.contains("/b/a/") {
                let account: holdfast_custody::Account = serde_json::from_slice(&entry.value).expect("an account");
                granted += account.granted;
                outstanding += account.outstanding;
            }
        }
        (free, granted, outstanding)
    }
}

fn want(name: &str, bytes: u64) -> Reserve {
    Reserve {
        sample: SampleId::new(name).expect("a name"),
        nonce: Nonce::from_u64(1),
        bytes,
        plan: String::new(),
    }
}

async fn reserve(
    index: &KvIndex,
    session: &Session,
    name: &str,
    bytes: u64,
    within: Duration,
) -> holdfast_core::Result<Generation> {
    index.reserve(session, &[want(name, bytes)], within).await.remove(0)
}

/// Commits, takes, acknowledges and frees a reserved sample.
async fn use_up(index: &KvIndex, session: &Session, name: &str, generation: Generation) {
    let group = GroupName::new("g").expect("a name");
    let sample = SampleRef {
        sample: SampleId::new(name).expect("a name"),
        generation,
    };
    let publication = Publication {
        groups: vec![group.clone()],
        retain: false,
        max_attempts: 3,
    };
    let commit = Commit {
        sample: sample.clone(),
        publication,
        description: b"d".to_vec(),
    };
    index
        .commit(session, &[commit], WITHIN)
        .await
        .remove(0)
        .expect("committed");
    let held: Vec<Held> = vec![
        index
            .lease(session, &group, std::slice::from_ref(&sample), 50, WITHIN)
            .await
            .remove(0)
            .expect("leased"),
    ];
    index.ack(session, &held, WITHIN).await.remove(0).expect("acknowledged");
    index.freed(session, &[sample], WITHIN).await.remove(0).expect("freed");
}

#[tokio::test]
async fn a_budget_is_not_exceeded_and_comes_back() {
    let world = World::with_budget(100).await;
    let index = world.index();
    let session = index.open_session(WITHIN).await.expect("a session");
    let a = reserve(&index, &session, "a", 60, WITHIN).await.expect("fits");
    let _b = reserve(&index, &session, "b", 40, WITHIN).await.expect("fits");
    let error = reserve(&index, &session, "c", 1, SOON).await.expect_err("spent");
    assert_eq!(error.kind(), ErrorKind::Capacity);
    assert_eq!(world.books(), (0, 100, 100));
    use_up(&index, &session, "a", a).await;
    assert_eq!(world.books(), (0, 100, 40));
    reserve(&index, &session, "c", 60, WITHIN).await.expect("came back");
    let never = reserve(&index, &session, "d", 101, WITHIN)
        .await
        .expect_err("larger than the budget");
    assert_eq!(
        (never.kind(), never.retry()),
        (ErrorKind::Capacity, holdfast_core::Retry::Never)
    );
}

#[tokio::test]
async fn what_comes_back_wakes_whoever_waits_longest() {
    let world = World::with_budget(10).await;
    let (first, second, third) = (
        Arc::new(world.index()),
        Arc::new(world.index()),
        Arc::new(world.index()),
    );
    let owner = first.open_session(WITHIN).await.expect("a session");
    let generation = reserve(&first, &owner, "a", 10, WITHIN).await.expect("fits");
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for (name, index) in [("b", &second), ("c", &third)] {
        let (index, order) = (Arc::clone(index), Arc::clone(&order));
        let session = index.open_session(WITHIN).await.expect("a session");
        waiters.push(tokio::spawn(async move {
            let generation = reserve(&index, &session, name, 10, WITHIN).await.expect("in the end");
            order.lock().push(name);
            use_up(&index, &session, name, generation).await;
        }));
        // The next one comes only when this one stands in line.
        let in_line = waiters.len();
        while world
            .kv
            .dump()
            .iter()
            .filter(|entry| entry.key.contains("/b/w/"))
            .count()
            < in_line
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    use_up(&first, &owner, "a", generation).await;
    for waiter in waiters {
        tokio::time::timeout(WITHIN, waiter)
            .await
            .expect("in time")
            .expect("no panic");
    }
    assert_eq!(*order.lock(), ["b", "c"]);
    let (free, granted, outstanding) = world.books();
    assert_eq!((free + granted, outstanding), (10, 0));
    assert!(
        !world.kv.dump().iter().any(|entry| entry.key.contains("/b/w/")),
        "nobody is left in line"
    );
}

#[tokio::test]
async fn credits_that_lie_idle_elsewhere_are_used() {
    let world = World::with_budget(10).await;
    let (rich, poor) = (world.index(), world.index());
    let owner = rich.open_session(WITHIN).await.expect("a session");
    let generation = reserve(&rich, &owner, "a", 10, WITHIN).await.expect("fits");
    use_up(&rich, &owner, "a", generation).await;
    assert_eq!(world.books(), (0, 10, 0), "idle, and somebody else's");
    let other = poor.open_session(WITHIN).await.expect("a session");
    reserve(&poor, &other, "b", 7, WITHIN)
        .await
        .expect("taken from where it lay idle");
    assert_eq!(world.books(), (0, 10, 7));
    reserve(&rich, &owner, "c", 3, WITHIN).await.expect("what is left");
    let error = reserve(&rich, &owner, "d", 1, SOON).await.expect_err("spent");
    assert_eq!(error.kind(), ErrorKind::Capacity);
}

#[tokio::test]
async fn a_dead_session_gives_back_what_it_had_not_spent_and_then_the_rest() {
    let world = World::with_budget(10).await;
    let index = world.index();
    let dead = index.open_session(WITHIN).await.expect("a session");
    reserve(&index, &dead, "a", 4, WITHIN).await.expect("fits");
    let sweeper = index.open_session(WITHIN).await.expect("a session");
    let dead_id = dead.id();
    assert!(world.kv.expire(dead_id));
    let report = index.sweep(&sweeper, 100, WITHIN).await.expect("swept");
    assert_eq!(report.abandoned, 1);
    let (free, granted, outstanding) = world.books();
    assert_eq!((free, granted, outstanding), (6, 4, 4));
    let tasks = index.to_free(10, WITHIN).await.expect("a list");
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0].record.record.reason, Reason::Abandoned);
    index
        .freed(&sweeper, &[tasks[0].sample.clone()], WITHIN)
        .await
        .remove(0)
        .expect("freed");
    assert_eq!(world.books(), (10, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_producers_on_a_small_budget_all_get_through() {
    const PRODUCERS: usize = 24;
    const ROUNDS: usize = 10;
    let world = World::with_budget(60).await;
    let mut producers = Vec::new();
    for producer in 0..PRODUCERS {
        let index = world.index();
        producers.push(tokio::spawn(async move {
            let session = index.open_session(WITHIN).await.expect("a session");
            for round in 0..ROUNDS {
                let name = format!("{producer}/{round}");
                let generation = reserve(&index, &session, &name, 10, WITHIN).await.expect("in the end");
                use_up(&index, &session, &name, generation).await;
            }
            session
        }));
    }
    let mut sessions = Vec::new();
    for producer in producers {
        sessions.push(
            tokio::time::timeout(Duration::from_secs(60), producer)
                .await
                .expect("in time")
                .expect("no panic"),
        );
    }
    let (free, granted, outstanding) = world.books();
    assert_eq!((free + granted, outstanding), (60, 0));
}

/// Others change a session's account between its reservations. What it remembers of the account must not come back.
#[tokio::test]
async fn what_was_taken_from_an_account_is_not_written_back_by_its_owner() {
    let world = World::with_budget(40).await;
    let (owner, other) = (world.index(), world.index());
    let session = owner.open_session(WITHIN).await.expect("a session");
    let elsewhere = other.open_session(WITHIN).await.expect("a session");
    let mut generations = Vec::new();
    for name in ["a", "b", "c", "d"] {
        generations.push(reserve(&owner, &session, name, 10, WITHIN).await.expect("fits"));
    }
    for (name, generation) in ["b", "c", "d"].into_iter().zip(&generations[1..]) {
        use_up(&owner, &session, name, *generation).await;
    }
    let e = reserve(&owner, &session, "e", 10, WITHIN).await.expect("came back");
    use_up(&owner, &session, "e", e).await;
    reserve(&other, &elsewhere, "f", 10, WITHIN)
        .await
        .expect("lay idle with the owner");
    for name in ["g", "h"] {
        reserve(&owner, &session, name, 10, WITHIN).await.expect("still there");
        let (free, granted, _) = world.books();
        assert_eq!(free + granted, 40, "after {name}");
    }
}
