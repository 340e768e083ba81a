//! Who sweeps: one alone without delay, two of many, none beside a steward; and others when those are gone.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::*;
use tensorhold_core::{Clock, Error, Result, SystemRng};
use tensorhold_custody::Version;
use tensorhold_features::{FeatureConfig, FeatureStore, Office};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::store::{Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch};
use tensorhold_index::{Index, TxnIndex};

const EVERY: Duration = Duration::from_millis(40);

/// Counts what a process reads, and fails its sweeps on demand, or makes them panic.
#[derive(Debug)]
struct Watched {
    inner: MemoryStore,
    reads: AtomicUsize,
    fails: AtomicBool,
    /// The samples to be freed cannot be listed.
    cannot_free: AtomicBool,
    panics: AtomicBool,
    /// Writes wait while it is true.
    holds: tokio::sync::watch::Sender<bool>,
    held: AtomicUsize,
}

#[async_trait]
impl TxnStore for Watched {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.reads.fetch_add(reads.len(), Ordering::Relaxed);
        let sweeps = |read: &Read| matches!(read, Read::Range { keys, .. } if keys.start.contains("/z/"));
        if self.fails.load(Ordering::Relaxed) && reads.iter().any(sweeps) {
            return Err(Error::unavailable("test", "sweeps fail here"));
        }
        let frees = |read: &Read| matches!(read, Read::Range { keys, .. } if keys.start.contains("/f/"));
        if self.cannot_free.load(Ordering::Relaxed) && reads.iter().any(frees) {
            return Err(Error::unavailable("test", "frees fail here"));
        }
        assert!(
            !self.panics.load(Ordering::Relaxed) || !reads.iter().any(sweeps),
            "sweeps panic here"
        );
        self.inner.read(reads, within).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        let mut holds = self.holds.subscribe();
        if *holds.borrow() {
            self.held.fetch_add(1, Ordering::Relaxed);
            holds.wait_for(|holds| !holds).await.expect("its sender lives");
        }
        self.inner.transact(transaction, within).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.inner.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.inner.watch(keys, after, within).await
    }
}

struct Member {
    store: FeatureStore,
    kv: Arc<Watched>,
}

impl Member {
    async fn join(world: &World, steward: bool) -> Self {
        Self::join_every(world, steward, EVERY).await
    }

    async fn join_every(world: &World, steward: bool, every: Duration) -> Self {
        let kv = Arc::new(Watched {
            inner: world.txn_store.client(),
            reads: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            cannot_free: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            holds: tokio::sync::watch::Sender::new(false),
            held: AtomicUsize::new(0),
        });
        let config = FeatureConfig {
            sweep_every: Some(every),
            steward,
            ..world.config()
        };
        let index: Arc<dyn Index> = Arc::new(TxnIndex::new(
            Arc::clone(&kv) as Arc<dyn TxnStore>,
            &config.store,
            world.index_config.clone(),
            world.clock.clone(),
            Arc::new(SystemRng),
        ));
        let engine = world.cluster.connect();
        let store = FeatureStore::open(engine, index, config, world.clock.clone(), Arc::new(SystemRng)).await;
        Self {
            store: store.expect("a store"),
            kv,
        }
    }

    fn office(&self) -> Option<Office> {
        self.store.sweeping().borrow().office
    }

    fn is_on_duty(&self) -> bool {
        self.store.sweeping().borrow().on_duty
    }

    async fn is(&self, what: &str, so: impl FnMut(&tensorhold_features::Sweeping) -> bool) {
        let mut told = self.store.sweeping();
        let waited = tokio::time::timeout(WITHIN, told.wait_for(so)).await;
        drop(
            waited
                .unwrap_or_else(|_| panic!("it did not come to pass: {what}"))
                .expect("open"),
        );
    }

    async fn close(self) {
        self.store.close(WITHIN).await.expect("closed");
    }
}

#[tokio::test]
async fn one_process_alone_sweeps() {
    let world = World::new();
    let alone = Member::join(&world, false).await;
    alone.is("it sweeps", |told| told.sweeps > 2).await;
    assert_eq!(alone.office(), Some(Office::Sweeper));
    let other = world.open().await;
    put(&other, item("a", &[10], 1)).await;
    let lease = one(other.lease_next(&trainers(), 1, WITHIN).await.expect("a lease"));
    // A process that dies: nothing of it is closed.
    assert!(
        world
            .txn_store
            .expire(other.health(WITHIN).await.session.expect("a session"))
    );
    alone
        .is("what a dead process held is taken back", |told| {
            told.total.taken_back == 1
        })
        .await;
    drop(lease);
}

#[tokio::test]
async fn two_of_many_sweep_and_others_follow_them() {
    let world = World::new();
    let mut members = Vec::new();
    for _ in 0..6 {
        members.push(Member::join(&world, false).await);
    }
    for office in [Office::Sweeper, Office::Deputy] {
        members[5]
            .is("both are taken", |told| told.leaders.of(office).is_some())
            .await;
    }
    let on_duty = |members: &[Member]| members.iter().filter(|member| member.is_on_duty()).count();
    assert_eq!(on_duty(&members), 2);
    for left in (1..6).rev() {
        let at = members.iter().position(Member::is_on_duty).expect("one sweeps");
        let gone = members.remove(at);
        let session = gone.store.health(WITHIN).await.session.expect("a session");
        assert!(world.txn_store.expire(session), "it dies");
        gone.store.close(Duration::from_millis(200)).await.ok();
        let last = &members[left - 1];
        let taken = |told: &tensorhold_features::Sweeping| {
            let held = |office| told.leaders.of(office).map(|leader| leader.session);
            let holders = [held(Office::Sweeper), held(Office::Deputy)];
            let count = holders.iter().flatten().filter(|holder| **holder != session).count();
            count == left.min(2) && !holders.contains(&Some(session))
        };
        last.is("others have taken over", taken).await;
    }
}

#[tokio::test]
async fn beside_a_steward_nobody_sweeps_and_without_it_they_do_again() {
    let world = World::new();
    let (one, two) = (Member::join(&world, false).await, Member::join(&world, false).await);
    one.is("it sweeps at first", |told| told.on_duty && told.sweeps > 0)
        .await;
    let steward = Member::join(&world, true).await;
    steward
        .is("it took office", |told| told.on_duty && told.sweeps > 0)
        .await;
    let next = Member::join(&world, true).await;
    for member in [&one, &two] {
        member
            .is("it rests", |told| !told.on_duty && told.office.is_some())
            .await;
    }
    assert!(!next.is_on_duty(), "there is one steward");
    steward.close().await;
    next.is("the next steward takes office", |told| told.on_duty && told.sweeps > 0)
        .await;
    let session = next.store.health(WITHIN).await.session.expect("a session");
    assert!(world.txn_store.expire(session), "it dies");
    // It would take office again, in a new session.
    next.store.close(Duration::from_millis(200)).await.ok();
    for member in [&one, &two] {
        member.is("it sweeps again", |told| told.on_duty).await;
    }
}

#[tokio::test]
async fn who_is_not_on_duty_reads_nothing() {
    let world = World::new();
    let (first, second) = (Member::join(&world, false).await, Member::join(&world, false).await);
    for member in [&first, &second] {
        member.is("it sweeps", |told| told.on_duty).await;
    }
    let idle = Member::join(&world, false).await;
    idle.is("both are taken", |told| {
        told.leaders.of(Office::Sweeper).is_some() && told.leaders.of(Office::Deputy).is_some()
    })
    .await;
    let before = first.store.sweeping().borrow().sweeps;
    idle.kv.reads.store(0, Ordering::Relaxed);
    first.is("some sweeps", |told| told.sweeps >= before + 10).await;
    assert_eq!(idle.kv.reads.load(Ordering::Relaxed), 0);
    assert!(second.kv.reads.load(Ordering::Relaxed) > 0);
}

#[tokio::test]
async fn who_cannot_sweep_leaves_it_to_others() {
    let world = World::new();
    let broken = Member::join(&world, false).await;
    broken
        .is("it is the sweeper", |told| told.office == Some(Office::Sweeper))
        .await;
    let deputy = Member::join(&world, false).await;
    deputy
        .is("it is the deputy", |told| told.office == Some(Office::Deputy))
        .await;
    broken.kv.fails.store(true, Ordering::Relaxed);
    let third = Member::join(&world, false).await;
    third
        .is("it is the sweeper now", |told| told.office == Some(Office::Sweeper))
        .await;
    third.is("and it sweeps", |told| told.sweeps > 0).await;
    assert!(broken.store.sweeping().borrow().failed >= 3);
}

#[tokio::test]
async fn who_cannot_free_leaves_it_to_others() {
    let world = World::new();
    let broken = Member::join(&world, true).await;
    broken.is("it sweeps", |told| told.on_duty && told.sweeps > 0).await;
    let other = Member::join(&world, true).await;
    broken.kv.cannot_free.store(true, Ordering::Relaxed);
    other.is("it took office", |told| told.on_duty && told.sweeps > 0).await;
    assert_eq!(broken.store.sweeping().borrow().failed, 0, "its sweeps were well");
}

#[tokio::test]
async fn a_sweeper_that_panics_does_not_keep_its_office() {
    let world = World::new();
    let broken = Member::join(&world, true).await;
    broken.is("it sweeps", |told| told.on_duty && told.sweeps > 0).await;
    assert!(broken.store.holds(Office::Steward, WITHIN).await.expect("an answer"));
    let other = Member::join(&world, true).await;
    assert!(!other.store.holds(Office::Steward, WITHIN).await.expect("an answer"));
    broken.kv.panics.store(true, Ordering::Relaxed);
    other.is("the other one takes over", |told| told.on_duty).await;
    assert!(!broken.store.holds(Office::Steward, WITHIN).await.expect("an answer"));
    let told = broken.store.sweeping().borrow().clone();
    assert!(told.broken && !told.on_duty && told.last_error.is_some(), "{told:?}");
    // Its session is the same one: the office did not just end with it.
    assert_eq!(broken.store.sessions(WITHIN).await.expect("sessions").len(), 2);
    broken.close().await;
    other.close().await;
}

#[tokio::test]
async fn a_store_does_not_end_under_a_process_that_opens_it_meanwhile() {
    let world = World::new();
    let ender = Member::join_every(&world, false, Duration::from_secs(3600)).await;
    ender.is("it took an office", |told| told.office.is_some()).await;
    for n in 0..300 {
        put(&ender.store, item(&format!("run/{n}"), &[10], n)).await;
    }
    ender.kv.holds.send_replace(true);
    let ending = tokio::spawn({
        let store = ender.store.clone();
        async move { store.end(false, WITHIN).await }
    });
    while ender.kv.held.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The first page is being retired.
    let user = world.open().await;
    ender.kv.holds.send_replace(false);
    let error = ending.await.expect("no panic").expect_err("a process uses it");
    assert_eq!(error.kind(), tensorhold_core::ErrorKind::Conflict, "{error}");
    assert_eq!(error.fact("ended"), Some("256"), "{error}");
    let ids: Vec<_> = (0..300).map(|n| id(&format!("run/{n}"))).collect();
    let left = user.find(&ids, WITHIN).await.expect("an answer");
    assert_eq!(left.iter().flatten().count(), 44);
}

#[tokio::test]
async fn a_store_ends_beside_its_steward() {
    let world = World::new();
    let identity = tensorhold_features::Identity {
        steward: true,
        ..tensorhold_features::Identity::of_this_process("steward")
    };
    let config = world.config();
    let index = TxnIndex::new(
        Arc::new(world.txn_store.client()),
        &config.store,
        world.index_config.clone(),
        world.clock.clone(),
        Arc::new(SystemRng),
    );
    let index = index.with_identity(identity);
    let steward = FeatureStore::open(
        world.cluster.connect(),
        Arc::new(index),
        config,
        world.clock.clone(),
        Arc::new(SystemRng),
    );
    let steward = steward.await.expect("a store");
    let user = world.open().await;
    put(&user, item("a", &[10], 1)).await;
    assert_eq!(user.end(false, WITHIN).await.expect("nobody else uses it"), 1);
    let error = steward.end(false, WITHIN).await.expect_err("a process uses it");
    assert_eq!(error.kind(), tensorhold_core::ErrorKind::Conflict);
}

/// With pauses at random, a tick of one sweeper would last half as long again: 13 instead of 20.
#[tokio::test]
async fn one_sweeper_keeps_the_clock_on_time() {
    let mut world = World::new();
    world.index_config.tick = Duration::from_millis(200);
    let alone = Member::join_every(&world, false, Duration::from_millis(200)).await;
    alone.is("it sweeps", |told| told.sweeps > 0).await;
    let tick = || {
        let clock = world.txn_store.dump().into_iter().find(|entry| entry.key == "s/t");
        let text = String::from_utf8(clock.expect("a clock").value).expect("text");
        text.parse::<u64>().expect("a number")
    };
    let (before, begun) = (tick(), world.clock.now());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let passed = world.clock.now().since(begun).as_millis() / 200;
    let ticks = u128::from(tick() - before);
    assert!(ticks <= passed + 1, "{ticks} in the time of {passed}");
    assert!(ticks * 100 >= passed * 85, "{ticks} in the time of {passed}");
}
