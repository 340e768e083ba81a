//! Replies that are lost: of joining the queue, of serving one who waits, of leaving the queue. Whatever is unclear is found
//! out, and the books balance at every step.

use holdfast_core::{ErrorKind, Retry};
use holdfast_index::Index;
use holdfast_index::store::memory::Fate;

use crate::world::{SOON, WITHIN, World, ended, kind, waiting};

const FATES: [Fate; 2] = [Fate::Applied, Fate::NotApplied];

#[tokio::test]
async fn a_lost_reply_to_joining_the_line_is_found_out() {
    for fate in FATES {
        let world = World::with_budget(10).await;
        let (owner, waiter) = (world.join().await, world.join().await);
        let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
        // It has waited before, so joining is the first thing that it sends.
        assert_eq!(kind(waiter.reserve("b", 10, SOON).await), ErrorKind::Capacity);
        waiter.txn_store.faults().lose_reply(fate);
        let wait = waiting(&waiter, "b", 10, WITHIN);
        world.until_waiting(1).await;
        owner.use_up(&a).await;
        let b = ended(wait).await.expect("served");
        waiter.use_up(&b).await;
        assert_eq!(world.books().paid, 0, "{fate:?}");
    }
}

#[tokio::test]
async fn a_lost_reply_to_serving_is_found_out() {
    for fate in FATES {
        let world = World::with_budget(10).await;
        let (owner, waiter) = (world.join().await, world.join().await);
        let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
        let wait = waiting(&waiter, "b", 10, WITHIN);
        world.until_waiting(1).await;
        owner.commit(&a).await.expect("committed");
        owner.consume(&a).await.expect("consumed");
        // The first try does not know that a process waits, and is refused; the second one serves.
        owner.txn_store.faults().spare();
        owner.txn_store.faults().lose_reply(fate);
        owner.freed(&a).await.expect("freed, whatever became of the reply");
        let b = ended(wait).await.expect("served");
        assert_eq!(world.books().paid, 10, "served once");
        waiter.use_up(&b).await;
        assert_eq!(world.books().paid, 0, "{fate:?}");
    }
}

#[tokio::test]
async fn a_lost_reply_to_leaving_the_line_is_found_out() {
    for fate in FATES {
        let world = World::with_budget(10).await;
        let (owner, waiter) = (world.join().await, world.join().await);
        let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
        let wait = waiting(&waiter, "b", 10, SOON * 2);
        world.until_waiting(1).await;
        waiter.txn_store.faults().lose_reply(fate);
        assert_eq!(kind(ended(wait).await), ErrorKind::Capacity, "{fate:?}");
        assert!(world.keys_with("/b/w/").is_empty(), "it has left the queue");
        owner.use_up(&a).await;
        assert!(world.keys_with("/p/").is_empty(), "nothing is reserved for it");
        assert_eq!(world.books().paid, 0);
    }
}

/// It leaves the queue at the very moment at which it is served. Either comes first; both is impossible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_and_being_served_meet() {
    let (mut served, mut left) = (0, 0);
    for round in 0..40 {
        let world = World::with_budget(10).await;
        let (owner, waiter) = (world.join().await, world.join().await);
        let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
        owner.commit(&a).await.expect("committed");
        owner.consume(&a).await.expect("consumed");
        let patience = std::time::Duration::from_millis(20);
        let wait = waiting(&waiter, "b", 10, patience);
        world.until_waiting(1).await;
        tokio::time::sleep(patience - std::time::Duration::from_millis(round % 4)).await;
        owner.freed(&a).await.expect("freed");
        match ended(wait).await {
            Ok(b) => {
                served += 1;
                assert_eq!(world.books().paid, 10);
                waiter.use_up(&b).await;
            }
            Err(error) => {
                left += 1;
                assert_eq!(error.kind(), ErrorKind::Capacity);
            }
        }
        assert_eq!(world.books().paid, 0);
        assert!(world.keys_with("/b/w/").is_empty());
    }
    assert_eq!(served + left, 40, "{served} were served, {left} left");
}

/// What joins the queue when nobody waits for it any more is a want like any other, until its session's next wait.
#[tokio::test]
async fn a_want_that_lands_late_does_no_harm() {
    let world = World::with_budget(10).await;
    let (owner, waiter) = (world.join().await, world.join().await);
    let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
    assert_eq!(kind(waiter.reserve("b", 10, SOON).await), ErrorKind::Capacity);
    waiter.txn_store.faults().lose_reply(Fate::Later);
    // Nothing gets through until the deadline.
    waiter.txn_store.faults().slow(SOON / 4);
    let wait = waiting(&waiter, "late", 10, SOON / 2);
    let late = ended(wait).await.expect_err("no reply");
    waiter.txn_store.faults().slow(std::time::Duration::ZERO);
    assert!(
        late.retry() == Retry::Ambiguous || late.kind() == ErrorKind::Capacity,
        "{late:?}"
    );
    waiter.txn_store.land();
    let next = waiting(&waiter, "next", 10, WITHIN);
    while !world
        .txn_store
        .dump()
        .iter()
        .any(|entry| entry.key.contains("/b/w/") && String::from_utf8_lossy(&entry.value).contains("next"))
    {
        tokio::task::yield_now().await;
    }
    waiter.txn_store.land();
    owner.use_up(&a).await;
    let next = ended(next).await.expect("served");
    waiter.use_up(&next).await;
    assert_eq!(world.books().paid, 0);
    assert!(world.keys_with("/p/").is_empty());
}

#[tokio::test]
async fn a_reply_lost_while_spending_a_deposit_costs_nothing() {
    for fate in FATES {
        let world = World::with_budget(800).await;
        let client = world.join().await;
        client.reserve("a", 10, WITHIN).await.expect("fits");
        assert!(world.books().deposits > 10, "drawn in advance");
        client.txn_store.faults().lose_reply(fate);
        client.reserve("b", 10, WITHIN).await.expect("reserved");
        assert_eq!(world.books().paid, 20, "{fate:?}");
        client.reserve("c", 10, WITHIN).await.expect("reserved");
        assert_eq!(world.books().paid, 30, "{fate:?}");
        let abort = client.index.sweep(&client.session, 10, WITHIN).await;
        abort.expect("swept");
    }
}
