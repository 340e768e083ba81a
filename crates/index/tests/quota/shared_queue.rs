//! The shared queue: who is served, in which order, and what ends a wait.

use std::sync::Arc;

use tensorhold_core::{ErrorKind, ObjectKey};
use tensorhold_index::{Index, Reserve};

use crate::world::{SOON, WITHIN, World, ended, kind, waiting, wish};

#[tokio::test]
async fn what_comes_back_serves_the_longest_waiter() {
    let world = World::with_budget(10).await;
    let (owner, first, second) = (world.join().await, world.join().await, world.join().await);
    let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for (name, client) in [("b", first), ("c", second)] {
        let order = Arc::clone(&order);
        waiters.push(tokio::spawn(async move {
            let sample = client.reserve(name, 10, WITHIN).await.expect("in the end");
            order.lock().push(name);
            client.use_up(&sample).await;
        }));
        // The next one comes only when this one is in the queue.
        world.until_waiting(waiters.len()).await;
    }
    owner.use_up(&a).await;
    for waiter in waiters {
        ended(waiter).await;
    }
    assert_eq!(*order.lock(), ["b", "c"]);
    assert_eq!(world.books().paid, 0);
    assert!(world.keys_with("/b/w/").is_empty(), "nobody is left in the queue");
}

#[tokio::test]
async fn a_batch_that_is_freed_serves_as_many_as_it_is_enough_for() {
    let world = World::with_budget(12).await;
    let owner = world.join().await;
    let wishes: Vec<_> = (0..4).map(|n| wish(&format!("s{n}"), 3)).collect();
    let generations = owner.index.reserve(&owner.session, &wishes, WITHIN).await;
    let samples: Vec<_> = wishes
        .iter()
        .zip(generations)
        .map(|(wish, generation)| crate::world::sample(wish.sample.as_str(), generation.expect("fits")))
        .collect();
    let mut waiters = Vec::new();
    for n in 0..3 {
        let client = world.join().await;
        waiters.push(waiting(&client, &format!("w{n}"), 4, WITHIN));
        world.until_waiting(n + 1).await;
    }
    for sample in &samples {
        owner.commit(sample).await.expect("committed");
        owner.consume(sample).await.expect("consumed");
    }
    let freed = owner.index.freed(&owner.session, &samples, WITHIN).await;
    assert!(freed.iter().all(Result::is_ok), "{freed:?}");
    for waiter in waiters {
        ended(waiter).await.expect("served");
    }
    assert_eq!(world.books().paid, 12);
}

#[tokio::test]
async fn what_is_too_little_for_the_first_is_kept_for_it() {
    let world = World::with_budget(12).await;
    let (owner, large, small) = (world.join().await, world.join().await, world.join().await);
    let mut samples = Vec::new();
    for name in ["a", "b", "c"] {
        samples.push(owner.reserve(name, 4, WITHIN).await.expect("fits"));
    }
    let large = waiting(&large, "large", 8, WITHIN);
    world.until_waiting(1).await;
    owner.use_up(&samples[0]).await;
    assert_eq!(world.books().deposits, 4, "not enough yet");
    let small_wait = waiting(&small, "small", 2, WITHIN);
    world.until_waiting(2).await;
    owner.use_up(&samples[1]).await;
    ended(large).await.expect("served");
    world.until_waiting(1).await;
    owner.use_up(&samples[2]).await;
    ended(small_wait).await.expect("served");
    let books = world.books();
    assert_eq!((books.deposits, books.paid), (2, 10));
}

/// The one in front of a smaller want leaves: what was kept for it serves the next.
#[tokio::test]
async fn a_process_that_leaves_the_queue_serves_the_next() {
    let world = World::with_budget(12).await;
    let (owner, large, small) = (world.join().await, world.join().await, world.join().await);
    let a = owner.reserve("a", 4, WITHIN).await.expect("fits");
    owner.reserve("b", 8, WITHIN).await.expect("fits");
    let large = waiting(&large, "large", 8, SOON * 4);
    world.until_waiting(1).await;
    owner.use_up(&a).await;
    let small = waiting(&small, "small", 3, WITHIN);
    world.until_waiting(2).await;
    assert_eq!(kind(ended(large).await), ErrorKind::Capacity);
    ended(small).await.expect("served by the one who left");
    assert_eq!((world.books().deposits, world.books().paid), (1, 11));
}

/// The one in front dies: nobody of its own accord, but the next sweep.
#[tokio::test]
async fn a_sweep_serves_the_next_after_a_death_in_the_queue() {
    let world = World::with_budget(12).await;
    let (owner, dead, small) = (world.join().await, world.join().await, world.join().await);
    let a = owner.reserve("a", 4, WITHIN).await.expect("fits");
    owner.reserve("b", 8, WITHIN).await.expect("fits");
    let large = waiting(&dead, "large", 8, WITHIN);
    world.until_waiting(1).await;
    owner.use_up(&a).await;
    let small = waiting(&small, "small", 3, WITHIN);
    world.until_waiting(2).await;
    assert!(world.txn_store.expire(dead.session.id()));
    assert_eq!(kind(ended(large).await), ErrorKind::Fenced);
    assert_eq!(
        world.keys_with("/b/w/").len(),
        1,
        "the dead one's went with its session"
    );
    owner.sweep().await;
    ended(small).await.expect("served by the sweep");
    assert_eq!((world.books().deposits, world.books().paid), (1, 11));
}

/// One that dies between its want and what it is given leaves a reservation that a sweep finds.
#[tokio::test]
async fn what_was_given_to_one_who_died_comes_back() {
    let world = World::with_budget(10).await;
    let (owner, dead) = (world.join().await, world.join().await);
    let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
    let wait = waiting(&dead, "b", 10, WITHIN);
    world.until_waiting(1).await;
    owner.use_up(&a).await;
    assert_eq!(world.keys_with("/p/b").len(), 1, "reserved by the one who freed");
    assert!(world.txn_store.expire(dead.session.id()));
    // It may have been told in time; then it is fenced when it commits.
    if let Ok(sample) = ended(wait).await {
        assert_eq!(kind(dead.commit(&sample).await), ErrorKind::Fenced);
    }
    assert_eq!(owner.sweep().await.abandoned, 1);
    let tasks = owner.index.to_free(None, 10, WITHIN).await.expect("a list").tasks;
    assert_eq!(tasks[0].record.record.plan, "plan of b");
    owner.freed(&tasks[0].sample).await.expect("freed");
    assert_eq!(world.books().paid, 0);
    owner.reserve("c", 10, WITHIN).await.expect("all of it");
}

/// Two wait for the same sample: when the first has it, the second cannot be served any more. It is told so, and what else
/// it wanted goes on.
#[tokio::test]
async fn a_want_of_what_another_writes_is_refused_and_the_others_of_its_batch_go_on() {
    let world = World::with_budget(40).await;
    let (owner, first, second) = (world.join().await, world.join().await, world.join().await);
    let a = owner.reserve("a", 36, WITHIN).await.expect("fits");
    let b = owner.reserve("b", 4, WITHIN).await.expect("fits");
    let first_wait = waiting(&first, "x", 5, WITHIN);
    world.until_waiting(1).await;
    let batch = {
        let second = Arc::clone(&second);
        let wishes = [wish("x", 5), wish("y", 5)];
        tokio::spawn(async move { second.index.reserve(&second.session, &wishes, WITHIN).await })
    };
    world.until_waiting(2).await;
    owner.use_up(&b).await;
    owner.use_up(&a).await;
    let x = ended(first_wait).await.expect("served");
    let results = ended(batch).await;
    assert_eq!(kind(results[0].clone()), ErrorKind::Conflict);
    let y = crate::world::sample("y", *results[1].as_ref().expect("tried again"));
    assert_eq!(world.books().paid, 10);
    first.use_up(&x).await;
    second.use_up(&y).await;
    assert_eq!(world.books().paid, 0);
}

/// A reservation whose caller went away half-way leaves a want; the session's next wait takes it out of the queue.
#[tokio::test]
async fn a_want_that_nobody_waits_for_is_taken_out_of_the_queue() {
    let world = World::with_budget(10).await;
    let (owner, waiter) = (world.join().await, world.join().await);
    let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
    let gone = waiting(&waiter, "gone", 10, WITHIN);
    world.until_waiting(1).await;
    gone.abort();
    assert!(gone.await.expect_err("given up").is_cancelled());
    let next = waiting(&waiter, "next", 10, WITHIN);
    let queued = || {
        let wants = world
            .txn_store
            .dump()
            .into_iter()
            .filter(|entry| entry.key.contains("/b/w/"));
        wants
            .map(|entry| String::from_utf8_lossy(&entry.value).into_owned())
            .collect::<String>()
    };
    while !queued().contains("next") {
        tokio::task::yield_now().await;
    }
    owner.use_up(&a).await;
    let next = ended(next).await.expect("served");
    assert!(world.keys_with("/p/gone").is_empty());
    waiter.use_up(&next).await;
    assert_eq!(world.books().paid, 0);
}

/// The watch of one who waits breaks, because its history was forgotten: it is opened again.
#[tokio::test]
async fn a_second_wait_goes_on_when_the_history_was_forgotten() {
    let world = World::with_budget(10).await;
    let (owner, waiter) = (world.join().await, world.join().await);
    for round in 0..3 {
        let a = owner.reserve(&format!("a{round}"), 10, WITHIN).await.expect("fits");
        let wait = waiting(&waiter, &format!("b{round}"), 10, WITHIN);
        world.until_waiting(1).await;
        let now = tensorhold_index::store::TxnStore::read(&world.txn_store, &[], WITHIN)
            .await
            .expect("a read")
            .version;
        world.txn_store.compact(now);
        owner.use_up(&a).await;
        let b = ended(wait).await.expect("served");
        waiter.use_up(&b).await;
        world.books();
    }
}

#[tokio::test]
async fn who_waits_with_claims_is_served_with_them_or_told_that_another_has_them() {
    let world = World::with_budget(10).await;
    let (owner, first, second) = (world.join().await, world.join().await, world.join().await);
    let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
    let key = ObjectKey::new("x:1").expect("a key");
    let mut waiters = Vec::new();
    for (name, client) in [("b", first), ("c", second)] {
        let wish = Reserve {
            claims: vec![key.clone()],
            ..wish(name, 5)
        };
        waiters.push(tokio::spawn(async move {
            let mut generations = client.index.reserve(&client.session, &[wish], WITHIN).await;
            generations.pop().expect("an answer")
        }));
        world.until_waiting(waiters.len()).await;
    }
    owner.use_up(&a).await;
    let mut answers = Vec::new();
    for waiter in waiters {
        answers.push(ended(waiter).await);
    }
    let generation = *answers[0].as_ref().expect("the first is served");
    assert_eq!(kind(answers.remove(1)), ErrorKind::Conflict);
    let owners = owner.index.owners(&[key], WITHIN).await.expect("owners");
    assert_eq!(owners, [Some(crate::world::sample("b", generation))]);
}

/// The claim that a free gives up is the one that a waiter wants: not in one transaction.
#[tokio::test]
async fn a_free_and_a_waiter_with_the_same_claim_do_not_meet_in_one_transaction() {
    let mut world = World::without_budget();
    // A session that was there before the budget needs no quota.
    let free = world.join().await;
    world.set_budget(&free, 10).await.expect("a budget");
    let (owner, waiter) = (world.join().await, world.join().await);
    let claimed = |name, bytes| Reserve {
        claims: vec![ObjectKey::new("x:1").expect("a key")],
        ..wish(name, bytes)
    };
    let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
    let wait = tokio::spawn({
        let (waiter, want) = (std::sync::Arc::clone(&waiter), claimed("b", 10));
        async move { waiter.index.reserve(&waiter.session, &[want], WITHIN).await.remove(0) }
    });
    world.until_waiting(1).await;
    let reserved = free.index.reserve(&free.session, &[claimed("c", 10)], WITHIN).await;
    let c = crate::world::sample("c", *reserved[0].as_ref().expect("without quota"));
    for (client, sample) in [(&owner, &a), (&free, &c)] {
        client.commit(sample).await.expect("committed");
        client.consume(sample).await.expect("consumed");
    }
    // One that remembers neither reads both, and frees them in one transaction.
    let other = world.join().await;
    let freed = other.index.freed(&other.session, &[a, c], WITHIN).await;
    assert!(freed.iter().all(|freed| matches!(freed, Ok(true))), "{freed:?}");
    // It was told that another sample has its claim, or it is served when that is free.
    if let Err(error) = ended(wait).await {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
}

/// Two in the queue want samples that other producers began to write since. Both are told, and neither is forgotten for the
/// other.
#[tokio::test]
async fn two_that_cannot_be_served_are_both_told() {
    let mut world = World::without_budget();
    let free = world.join().await;
    world.set_budget(&free, 10).await.expect("a budget");
    let (owner, first, second) = (world.join().await, world.join().await, world.join().await);
    let a = owner.reserve("a", 10, WITHIN).await.expect("fits");
    let first_wait = waiting(&first, "x", 10, WITHIN);
    world.until_waiting(1).await;
    let second_wait = waiting(&second, "y", 10, WITHIN);
    world.until_waiting(2).await;
    for name in ["x", "y"] {
        free.reserve(name, 10, WITHIN).await.expect("without quota");
    }
    owner.use_up(&a).await;
    for wait in [first_wait, second_wait] {
        assert_eq!(kind(ended(wait).await), ErrorKind::Conflict);
    }
    owner.reserve("b", 10, WITHIN).await.expect("all is back");
}

#[tokio::test]
async fn two_samples_of_a_batch_with_the_same_claim_are_not_reserved_together() {
    let world = World::with_budget(100).await;
    let client = world.join().await;
    let claimed = |name| Reserve {
        claims: vec![ObjectKey::new("x:1").expect("a key")],
        ..wish(name, 10)
    };
    let wishes = [claimed("a"), claimed("b"), wish("c", 10)];
    let results = client.index.reserve(&client.session, &wishes, WITHIN).await;
    let kinds: Vec<_> = results
        .iter()
        .map(|result| result.as_ref().map(drop).map_err(tensorhold_core::Error::kind))
        .collect();
    assert_eq!(kinds, [Ok(()), Err(ErrorKind::Conflict), Ok(())]);
}
