//! Replies that are lost: of joining the queue, of serving one who waits, of leaving the queue. Whatever is unclear is found
//! out, and the books balance at every step.

use tensorhold_core::{ErrorKind, Retry};
use tensorhold_index::Index;
use tensorhold_index::store::Write;
use tensorhold_index::store::memory::Fate;

use crate::world::{SOON, WITHIN, World, ended, kind, waiting};

const FATES: [Fate; 2] = [Fate::Applied, Fate::NotApplied];

#[tokio::test]
async fn a_lost_reply_to_joining_the_queue_is_found_out() {
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
async fn a_lost_reply_to_leaving_the_queue_is_found_out() {
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
        // On a busy machine it may have left before it is seen.
        while world.keys_with("/b/w/").is_empty() && !wait.is_finished() {
            tokio::task::yield_now().await;
        }
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
                // On a busy machine, before the quota was looked at.
                let kinds = [ErrorKind::Capacity, ErrorKind::Unavailable];
                assert!(kinds.contains(&error.kind()), "{error}");
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

/// Another process moves the shared clock. A process that does not sweep learns of it and is served all the same, from what
/// is there.
#[tokio::test]
async fn a_clock_that_another_process_moves_does_not_make_a_reservation_wait() {
    let world = World::with_budget(40).await;
    let (producer, sweeper) = (world.join().await, world.join().await);
    producer.reserve("a", 10, WITHIN).await.expect("fits");
    for name in ["b", "c", "d"] {
        world.tick(&sweeper).await;
        producer.reserve(name, 10, SOON * 5).await.expect("fits, too");
        assert!(world.keys_with("/b/w/").is_empty(), "it did not wait");
    }
    assert_eq!(world.books().paid, 40);
}

/// A waiter is taken out to be served, and the task ends because no other one waits. The transaction was refused.
#[tokio::test]
async fn the_last_waiter_is_looked_after_when_its_transaction_is_refused() {
    let world = World::with_budget(20).await;
    let (owner, elsewhere) = (world.join().await, world.join().await);
    let (first, behind) = (owner.another().await, owner.another().await);
    let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
    let b = elsewhere.reserve("b", 10, WITHIN).await.expect("fits");
    owner.commit(&a).await.expect("committed");
    owner.consume(&a).await.expect("consumed");
    let first_wait = waiting(&first, "c", 10, WITHIN);
    world.until_waiting(1).await;
    let behind_wait = waiting(&behind, "d", 10, WITHIN);
    tokio::task::yield_now().await;
    // What the owner sends is refused, because the clock has moved; it hears of that when the first has been served.
    world.tick(&elsewhere).await;
    owner.txn_store.faults().lose_reply(Fate::ToldAfter(SOON * 4));
    let free = tokio::spawn({
        let owner = std::sync::Arc::clone(&owner);
        async move { owner.freed(&a).await }
    });
    tokio::time::sleep(SOON).await;
    elsewhere.use_up(&b).await;
    let c = ended(first_wait).await.expect("served");
    assert!(ended(free).await.expect("freed"));
    let d = ended(behind_wait).await.expect("served, too");
    first.use_up(&c).await;
    behind.use_up(&d).await;
    assert_eq!(world.books().paid, 0);
}

/// A caller leaves while it is being served, and the transaction is refused: nothing is reserved for it later.
#[tokio::test]
async fn a_caller_that_left_is_not_served_by_a_second_try() {
    let world = World::with_budget(10).await;
    let (producer, sweeper) = (world.join().await, world.join().await);
    let a = producer.reserve("a", 10, WITHIN).await.expect("fits");
    producer.use_up(&a).await;
    world.tick(&sweeper).await;
    producer.txn_store.faults().lose_reply(Fate::ToldAfter(SOON * 3));
    let wait = waiting(&producer, "b", 10, WITHIN);
    tokio::time::sleep(SOON).await;
    wait.abort();
    assert!(wait.await.expect_err("it left").is_cancelled());
    tokio::time::sleep(SOON * 5).await;
    assert!(world.keys_with("/p/").is_empty(), "{:?}", world.keys_with("/p/"));
    assert_eq!(world.books().paid, 0);
}

/// Nothing says that the quota is spent before the index has said so.
#[tokio::test]
async fn an_index_that_does_not_answer_is_not_a_spent_budget() {
    let world = World::with_budget(10).await;
    let producer = world.join().await;
    producer.txn_store.faults().slow(SOON * 5);
    let error = producer.reserve("a", 10, SOON).await.expect_err("no answer in time");
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Unavailable, Retry::Safe),
        "{error}"
    );
}

/// Another client takes a request out of the queue and writes something in place of an answer. That stops neither the waiter
/// nor those behind it.
#[tokio::test]
async fn an_answer_that_cannot_be_read_is_none() {
    let world = World::with_budget(10).await;
    let (owner, waiter) = (world.join().await, world.join().await);
    let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
    let wait = waiting(&waiter, "b", 10, WITHIN);
    world.until_waiting(1).await;
    let request = world.keys_with("/b/w/").remove(0);
    world
        .write(Write::put(request.replace("/b/w/", "/b/t/"), "garbage"))
        .await;
    world.write(Write::Delete(request)).await;
    owner.use_up(&a).await;
    let b = ended(wait).await.expect("served in the end");
    waiter.use_up(&b).await;
    assert_eq!(world.books().paid, 0);
}
