//! The waiters of one process: what it frees is reserved for them, whatever goes wrong with that.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, ManualClock, Result, Retry};
use tensorhold_index::SampleRef;
use tensorhold_index::store::memory::Fate;
use tokio::task::JoinHandle;

use crate::world::{Client, SOON, WITHIN, World, ended, kind, waiting};

/// A process in which one session has a sample, the first waiter is in the queue, and another one is behind it.
struct TwoWait {
    world: World,
    clock: Arc<ManualClock>,
    owner: Arc<Client>,
    sample: SampleRef,
    first: Arc<Client>,
    first_wait: JoinHandle<Result<SampleRef>>,
    behind: Arc<Client>,
    behind_wait: JoinHandle<Result<SampleRef>>,
}

impl TwoWait {
    /// The one in the queue waits `first_within` long at most, the one behind it `behind_within`.
    async fn new(first_within: Duration, behind_within: Duration) -> Self {
        let world = World::with_budget(10).await;
        let clock = Arc::new(ManualClock::new());
        let [before, owner, first, behind] = world.process(Arc::clone(&clock)).await;
        let a = before.reserve("a", 10, WITHIN).await.expect("fits");
        let wait = waiting(&owner, "b", 10, WITHIN);
        world.until_waiting(1).await;
        before.use_up(&a).await;
        let sample = ended(wait).await.expect("served");
        let first_wait = waiting(&first, "c", 10, first_within);
        world.until_waiting(1).await;
        let behind_wait = waiting(&behind, "d", 10, behind_within);
        // It has entered the broker before it waits for anything else.
        tokio::task::yield_now().await;
        Self {
            world,
            clock,
            owner,
            sample,
            first,
            first_wait,
            behind,
            behind_wait,
        }
    }

    fn requests(&self) -> Vec<String> {
        self.world.keys_with("/b/w/")
    }

    /// In either order.
    async fn both_are_served(mut self) {
        let reserved = |done: std::result::Result<Result<SampleRef>, tokio::task::JoinError>| {
            done.expect("no panic").expect("served")
        };
        tokio::select! {
            d = &mut self.behind_wait => {
                self.behind.use_up(&reserved(d)).await;
                self.first.use_up(&ended(self.first_wait).await.expect("served")).await;
            }
            c = &mut self.first_wait => {
                self.first.use_up(&reserved(c)).await;
                self.behind.use_up(&ended(self.behind_wait).await.expect("served")).await;
            }
        }
        assert_eq!(self.world.books().paid, 0);
        assert!(self.world.keys_with("/p/").is_empty() && self.world.keys_with("/b/w/").is_empty());
    }
}

#[tokio::test]
async fn what_a_process_frees_is_handed_to_its_own() {
    let two = TwoWait::new(WITHIN, WITHIN).await;
    let before = two.requests();
    assert_eq!(before.len(), 1, "one is behind it, and has no key");
    two.owner.use_up(&two.sample).await;
    let d = ended(two.behind_wait).await.expect("handed");
    assert_eq!(two.world.keys_with("/b/w/"), before, "the queue was not touched");
    assert_eq!(two.world.books().paid, 10);
    two.behind.use_up(&d).await;
    let c = ended(two.first_wait).await.expect("nobody is behind it any more");
    two.first.use_up(&c).await;
    assert_eq!(two.world.books().paid, 0);
    assert!(two.world.keys_with("/h/").is_empty(), "every note was struck out");
}

#[tokio::test]
async fn when_the_first_leaves_the_queue_the_one_behind_it_joins() {
    let two = TwoWait::new(SOON, WITHIN).await;
    let before = two.requests();
    assert_eq!(kind(ended(two.first_wait).await), ErrorKind::Capacity);
    two.world.until_waiting(1).await;
    assert_ne!(two.world.keys_with("/b/w/"), before);
    two.owner.use_up(&two.sample).await;
    let d = ended(two.behind_wait).await.expect("served in the queue");
    two.behind.use_up(&d).await;
    assert_eq!(two.world.books().paid, 0);
}

#[tokio::test]
async fn a_waiter_whose_caller_left_is_reserved_nothing() {
    let two = TwoWait::new(WITHIN, WITHIN).await;
    two.behind_wait.abort();
    assert!(two.behind_wait.await.expect_err("given up").is_cancelled());
    two.owner.use_up(&two.sample).await;
    let c = ended(two.first_wait).await.expect("it was its turn");
    two.first.use_up(&c).await;
    assert_eq!(two.world.books().paid, 0);
    assert!(two.world.keys_with("/p/").is_empty(), "nothing is reserved for it");
}

#[tokio::test]
async fn a_waiter_whose_session_ended_is_reserved_nothing() {
    let two = TwoWait::new(WITHIN, WITHIN).await;
    assert!(two.world.txn_store.expire(two.behind.session.id()));
    two.owner.use_up(&two.sample).await;
    assert_eq!(kind(ended(two.behind_wait).await), ErrorKind::Fenced);
    let c = ended(two.first_wait).await.expect("it was its turn");
    two.first.use_up(&c).await;
    assert_eq!(two.world.books().paid, 0);
}

#[tokio::test]
async fn a_lost_reply_to_handing_over_is_found_out() {
    for fate in [Fate::Applied, Fate::NotApplied] {
        let two = TwoWait::new(WITHIN, WITHIN).await;
        two.owner.commit(&two.sample).await.expect("committed");
        two.owner.consume(&two.sample).await.expect("consumed");
        two.owner.txn_store.faults().lose_reply(fate);
        two.owner.freed(&two.sample).await.expect("freed");
        two.both_are_served().await;
    }
}

/// Whoever frees does not learn in time whether it has handed over. It has, or does so later: the one who waited finds its
/// own reservation.
#[tokio::test]
async fn an_unclear_handing_over_is_found_by_the_one_who_waited() {
    for fate in [Fate::Applied, Fate::Later] {
        let two = TwoWait::new(WITHIN, SOON * 3).await;
        let TwoWait { owner, sample, .. } = &two;
        owner.commit(sample).await.expect("committed");
        owner.consume(sample).await.expect("consumed");
        let faults = owner.txn_store.faults();
        faults.lose_reply(fate);
        faults.slow(SOON);
        // Long enough for the transaction, too short to find out what became of it.
        let freed = tokio::time::timeout(SOON * 3 / 2, owner.freed(sample)).await;
        assert!(freed.is_err(), "{fate:?}: given up");
        faults.slow(Duration::ZERO);
        owner.txn_store.land();
        two.both_are_served().await;
    }
}

/// The same, but it is told that it is unclear, because its time is up.
#[tokio::test]
async fn what_is_unclear_at_the_deadline_is_found_by_the_one_who_waited() {
    let two = TwoWait::new(WITHIN * 100, WITHIN * 100).await;
    let TwoWait { owner, sample, .. } = &two;
    owner.commit(sample).await.expect("committed");
    owner.consume(sample).await.expect("consumed");
    owner.txn_store.faults().lose_reply(Fate::Applied);
    owner.txn_store.faults().slow(SOON);
    let (freed, ()) = tokio::join!(owner.freed(sample), async {
        tokio::time::sleep(SOON * 3 / 2).await;
        two.clock.advance(WITHIN * 2);
    });
    assert_eq!(freed.expect_err("the time is up").retry(), Retry::Ambiguous);
    owner.txn_store.faults().slow(Duration::ZERO);
    two.both_are_served().await;
}

/// Two processes, of which one frees at first and then no more: its waiters join the queue, and are served there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_its_process_cannot_serve_is_served_by_another() {
    let world = World::with_budget(10).await;
    let (first, elsewhere) = (world.join_drawing(1).await, world.join().await);
    let a = first.reserve("a", 10, WITHIN).await.expect("fits");
    let mut all = Vec::new();
    for (number, client) in [first.another().await, first.another().await, elsewhere.another().await]
        .into_iter()
        .enumerate()
    {
        let elsewhere = Arc::clone(&elsewhere);
        all.push(tokio::spawn(async move {
            let sample = client.reserve(&format!("b{number}"), 10, WITHIN).await.expect("served");
            client.commit(&sample).await.expect("committed");
            elsewhere.consume(&sample).await.expect("consumed");
            elsewhere.freed(&sample).await.expect("freed");
        }));
    }
    first.use_up(&a).await;
    for one in all {
        ended(one).await;
    }
    assert_eq!(world.books().paid, 0);
    assert!(world.keys_with("/b/w/").is_empty());
}

/// A waiter that cannot be served, because another producer writes its sample, is told soon, even if the one of its process
/// that is in the shared queue goes on waiting.
#[tokio::test]
async fn a_waiter_behind_another_is_told_that_its_sample_is_taken() {
    let world = World::with_budget(15).await;
    let (process, other) = (world.join().await, world.join().await);
    other.reserve("x", 5, WITHIN).await.expect("fits");
    let a = process.reserve("a", 10, WITHIN).await.expect("fits");
    let large = waiting(&process.another().await, "large", 12, SOON * 20);
    world.until_waiting(1).await;
    let taken = waiting(&process.another().await, "x", 5, WITHIN);
    tokio::task::yield_now().await;
    process.use_up(&a).await;
    let told = tokio::time::timeout(SOON * 10, taken)
        .await
        .expect("soon")
        .expect("no panic");
    assert_eq!(kind(told), ErrorKind::Conflict);
    assert_eq!(kind(ended(large).await), ErrorKind::Capacity, "nothing more was freed");
}
