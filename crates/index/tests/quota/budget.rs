//! The budget: what is spent, what comes back, and where it lies.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, ObjectKey, Retry};
use tensorhold_custody::Reason;
use tensorhold_index::store::Write;
use tensorhold_index::store::memory::Fate;
use tensorhold_index::{Index, Reserve};

use crate::world::{Books, Client, SOON, WITHIN, World, ended, kind, waiting, wish};

#[tokio::test]
async fn a_budget_is_not_exceeded_and_comes_back() {
    let world = World::with_budget(100).await;
    let client = world.join().await;
    let a = client.reserve("a", 60, WITHIN).await.expect("fits");
    client.reserve("b", 40, WITHIN).await.expect("fits");
    assert_eq!(kind(client.reserve("c", 1, SOON).await), ErrorKind::Capacity);
    assert_eq!((world.books().deposits, world.books().paid), (0, 100));
    assert!(world.keys_with("/b/w/").is_empty(), "nobody is left in the queue");
    client.use_up(&a).await;
    assert_eq!(world.books().paid, 40);
    client.reserve("c", 60, WITHIN).await.expect("came back");
    let never = client
        .reserve("d", 101, WITHIN)
        .await
        .expect_err("larger than the budget");
    assert_eq!((never.kind(), never.retry()), (ErrorKind::Capacity, Retry::Never));
}

#[tokio::test]
async fn deposits_of_other_processes_are_used() {
    let world = World::with_budget(10).await;
    let (rich, poor) = (world.join().await, world.join().await);
    let a = rich.reserve("a", 10, WITHIN).await.expect("fits");
    rich.use_up(&a).await;
    let idle = Books { deposits: 10, paid: 0 };
    assert_eq!(world.books(), idle, "idle, and of another process");
    poor.reserve("b", 7, WITHIN)
        .await
        .expect("taken from where it lay idle");
    assert_eq!(world.books().paid, 7);
    rich.reserve("c", 3, WITHIN).await.expect("what is left");
    assert_eq!(kind(rich.reserve("d", 1, SOON).await), ErrorKind::Capacity);
    world.books();
}

#[tokio::test]
async fn many_small_deposits_are_enough_together() {
    const OWNERS: u64 = 80;
    let world = World::with_budget(OWNERS).await;
    let mut owners = Vec::new();
    for owner in 0..OWNERS {
        let client = world.join().await;
        let sample = client.reserve(&format!("{owner}"), 1, WITHIN).await.expect("fits");
        owners.push((client, sample));
    }
    for (client, sample) in &owners {
        client.use_up(sample).await;
    }
    assert_eq!(world.keys_with("/b/a/").len(), 80);
    let poor = world.join().await;
    poor.reserve("all", OWNERS, WITHIN).await.expect("all of it");
    assert_eq!(world.books().paid, OWNERS);
}

#[tokio::test]
async fn a_dead_session_gives_back_what_it_had_not_spent_and_then_the_rest() {
    let world = World::with_budget(16).await;
    let (dead, sweeper) = (world.join().await, world.join().await);
    let a = dead.reserve("a", 4, WITHIN).await.expect("fits");
    dead.reserve("b", 4, WITHIN).await.expect("fits");
    dead.use_up(&a).await;
    assert_eq!((world.books().deposits, world.books().paid), (12, 4));
    assert!(world.txn_store.expire(dead.session.id()));
    assert_eq!(sweeper.sweep().await.abandoned, 1);
    assert_eq!(
        (world.books().deposits, world.books().paid),
        (12, 4),
        "its samples are not freed yet"
    );
    let tasks = sweeper.index.to_free(None, 10, WITHIN).await.expect("a list").tasks;
    assert_eq!(tasks.len(), 1);
    assert_eq!(tasks[0].record.record.reason, Reason::Abandoned);
    sweeper.freed(&tasks[0].sample).await.expect("freed");
    sweeper
        .freed(&tasks[0].sample)
        .await
        .expect("freed twice is freed once");
    assert_eq!((world.books().deposits, world.books().paid), (16, 0), "all of it");
    sweeper.sweep().await;
    let named = world.keys_with(&format!("{:016x}", dead.session.id().0));
    let deposits = |key: &String| key.contains("/b/a/");
    assert!(named.iter().all(deposits), "only deposits keep its name: {named:?}");
}

/// Other processes spend a process's deposits between its reservations. What it remembers of them must not come back.
#[tokio::test]
async fn a_deposit_that_another_process_spent_is_not_spent_again() {
    let world = World::with_budget(40).await;
    let (owner, other) = (world.join().await, world.join().await);
    let mut samples = Vec::new();
    for name in ["a", "b", "c", "d"] {
        samples.push(owner.reserve(name, 10, WITHIN).await.expect("fits"));
    }
    for sample in &samples[1..] {
        owner.use_up(sample).await;
    }
    let e = owner.reserve("e", 10, WITHIN).await.expect("came back");
    owner.use_up(&e).await;
    other.reserve("f", 10, WITHIN).await.expect("lay idle with the owner");
    for name in ["g", "h"] {
        owner.reserve(name, 10, WITHIN).await.expect("still there");
        world.books();
    }
    assert_eq!(world.books().paid, 40);
}

#[tokio::test]
async fn a_batch_is_cut_and_each_item_has_its_own_result() {
    let world = World::with_budget(40).await;
    let (client, other) = (world.join().await, world.join().await);
    other.reserve("taken", 1, WITHIN).await.expect("fits");
    let mut wishes: Vec<_> = (0..12).map(|n| wish(&format!("s{n}"), 3)).collect();
    wishes[3] = wish("taken", 3);
    wishes[5] = wish("s4", 3);
    let results = client.index.reserve(&client.session, &wishes, WITHIN).await;
    for (at, result) in results.iter().enumerate() {
        match at {
            3 | 5 => assert_eq!(kind(result.clone()), ErrorKind::Conflict, "{at}"),
            _ => assert!(result.is_ok(), "{at}: {result:?}"),
        }
    }
    assert_eq!(world.books().paid, 31);
}

/// Sessions of before the budget neither pay nor get anything back for what they have not paid.
#[tokio::test]
async fn what_was_reserved_before_there_was_a_budget_gives_nothing_back() {
    let world = World::with_budget(10).await;
    let txn_store =
        tensorhold_index::store::memory::MemoryStore::new(std::sync::Arc::new(tensorhold_core::SystemClock::new()));
    let index = world.index(
        txn_store.clone(),
        std::sync::Arc::new(tensorhold_core::SeededRng::new(1)),
    );
    let session = index.open_session(WITHIN).await.expect("a session");
    let index = Arc::new(index);
    let old = Client {
        txn_store,
        index,
        session,
    };
    let before = old.reserve("before", 70, WITHIN).await.expect("no budget");
    old.index.set_budget(10, WITHIN).await.expect("a budget");
    let session = old.index.open_session(WITHIN).await.expect("a session");
    let paid = old
        .index
        .reserve(&session, &[wish("after", 10)], WITHIN)
        .await
        .remove(0);
    let after = crate::world::sample("after", paid.expect("fits"));
    old.use_up(&before).await;
    let later = old.index.reserve(&session, &[wish("later", 1)], SOON).await.remove(0);
    assert_eq!(kind(later), ErrorKind::Capacity, "nothing came back");
    let abort = old
        .index
        .abort(&session, std::slice::from_ref(&after), WITHIN)
        .await
        .remove(0);
    abort.expect("aborted");
    old.freed(&after).await.expect("freed by the old session");
    let later = old
        .index
        .reserve(&session, &[wish("later", 10)], WITHIN)
        .await
        .remove(0);
    later.expect("all of it came back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_producers_on_a_small_budget_all_get_through() {
    many_producers_all_get_through(24).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_producers_of_one_process_all_get_through() {
    many_producers_all_get_through(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_producers_of_a_few_processes_all_get_through() {
    many_producers_all_get_through(4).await;
}

async fn many_producers_all_get_through(processes: usize) {
    const PRODUCERS: u64 = 24;
    const ROUNDS: usize = 10;
    let world = World::with_budget(60).await;
    let mut producers = Vec::new();
    let mut members: Vec<Arc<Client>> = Vec::new();
    for producer in 0..PRODUCERS {
        let client = match members.len() < processes {
            true => world.join_drawing(producer).await,
            false => members[members.len() % processes].another().await,
        };
        members.push(Arc::clone(&client));
        producers.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let name = format!("{producer}/{round}");
                let sample = client.reserve(&name, 10, WITHIN).await.expect("in the end");
                client.use_up(&sample).await;
            }
            client
        }));
    }
    let mut clients = Vec::new();
    for producer in producers {
        let ended = tokio::time::timeout(Duration::from_secs(60), producer).await;
        clients.push(ended.expect("in time").expect("no panic"));
    }
    assert_eq!(world.books().paid, 0);
    assert!(world.keys_with("/b/w/").is_empty());
    let notes = world.keys_with("/h/");
    assert!(notes.is_empty(), "every note was struck out: {notes:?}");
}

#[tokio::test]
async fn a_budget_grows_and_shrinks_while_samples_exist() {
    let mut world = World::with_budget(20).await;
    let client = world.join().await;
    let a = client.reserve("a", 15, WITHIN).await.expect("fits");
    assert_eq!(kind(client.reserve("b", 10, SOON).await), ErrorKind::Capacity);
    world.set_budget(&client, 30).await.expect("grows");
    let b = client.reserve("b", 10, WITHIN).await.expect("fits now");
    let error = world.set_budget(&client, 10).await.expect_err("25 are held");
    assert_eq!((error.kind(), error.fact("held")), (ErrorKind::Capacity, Some("25")));
    let unchanged = (world.books().deposits, world.books().paid);
    assert_eq!(unchanged, (5, 25), "all or nothing");
    client.use_up(&a).await;
    world.set_budget(&client, 12).await.expect("shrinks");
    assert_eq!((world.books().deposits, world.books().paid), (2, 10));
    client.use_up(&b).await;
    let index = world.index(
        world.txn_store.client(),
        std::sync::Arc::new(tensorhold_core::SeededRng::new(1)),
    );
    assert_eq!(
        index.ensure_budget(99, WITHIN).await.expect("a budget"),
        12,
        "the one in force"
    );
    client.reserve("all", 12, WITHIN).await.expect("all of it");
}

/// One transaction takes the deposits away, however many there are, and leaves the rest.
#[tokio::test]
async fn a_budget_shrinks_by_many_small_deposits_at_once() {
    const OWNERS: u64 = 80;
    let mut world = World::with_budget(OWNERS).await;
    let mut owners = Vec::new();
    for owner in 0..OWNERS {
        let client = world.join().await;
        let sample = client.reserve(&format!("{owner}"), 1, WITHIN).await.expect("fits");
        owners.push((client, sample));
    }
    let (client, _held) = owners.pop().expect("an owner");
    for (client, sample) in &owners {
        client.use_up(sample).await;
    }
    assert!(world.keys_with("/b/a/").len() > 64, "many deposits");
    let error = world.set_budget(&client, 0).await.expect_err("1 is held");
    assert_eq!((error.kind(), error.fact("held")), (ErrorKind::Capacity, Some("1")));
    assert_eq!((world.books().deposits, world.books().paid), (OWNERS - 1, 1));
    world.set_budget(&client, 3).await.expect("shrinks");
    assert_eq!((world.books().deposits, world.books().paid), (2, 1));
}

/// A budget that grows serves a process that waits: here, when the next sweep looks.
#[tokio::test]
async fn a_budget_that_grows_serves_those_who_wait() {
    let mut world = World::with_budget(10).await;
    let (client, other) = (world.join().await, world.join().await);
    client.reserve("a", 10, WITHIN).await.expect("fits");
    let wait = crate::world::waiting(&other, "b", 5, WITHIN);
    world.until_waiting(1).await;
    world.set_budget(&client, 20).await.expect("grows");
    client.sweep().await;
    crate::world::ended(wait).await.expect("served");
    assert_eq!((world.books().deposits, world.books().paid), (5, 15));
}

/// What an earlier release wrote: the free bytes under one key, and those of sessions under theirs.
#[tokio::test]
async fn the_books_of_an_earlier_release_are_taken_over() {
    use tensorhold_index::store::{Transaction, TxnStore as _, Write};
    let world = World::with_budget(30).await;
    let deposit = world.keys_with("/b/a/").remove(0);
    let writes = vec![
        Write::Delete(deposit),
        Write::put("quota/b/free", "20"),
        Write::put("quota/b/a/00000000000000aa", "10"),
    ];
    let conditions = Vec::new();
    let earlier = Transaction { conditions, writes };
    world.txn_store.transact(&earlier, WITHIN).await.expect("written");
    let client = world.join().await;
    client.reserve("all", 30, WITHIN).await.expect("all of it");
    assert_eq!(world.books().paid, 30);
}

/// A session that was opened before the budget grew may reserve more than the budget was then.
#[tokio::test]
async fn a_sample_larger_than_the_budget_was_fits_into_the_one_that_grew() {
    let mut world = World::with_budget(20).await;
    let (client, other) = (world.join().await, world.join().await);
    let refused = client.reserve("large", 30, WITHIN).await.expect_err("too large");
    assert_eq!((refused.kind(), refused.retry()), (ErrorKind::Capacity, Retry::Never));
    world.set_budget(&other, 40).await.expect("grows");
    client.reserve("large", 30, WITHIN).await.expect("fits now");
}

/// Claims take room in a transaction, too: a batch is cut so that each part has room for its own.
#[tokio::test]
async fn a_batch_with_many_claims_is_cut_and_one_sample_with_too_many_is_refused() {
    let world = World::with_budget(1000).await;
    let client = world.join().await;
    let with_claims = |name: &str, claims: usize| Reserve {
        claims: (0..claims)
            .map(|claim| ObjectKey::new(format!("{name}:{claim}")).expect("a key"))
            .collect(),
        ..wish(name, 1)
    };
    let wishes: Vec<Reserve> = (0..40).map(|n| with_claims(&format!("s{n}"), 4)).collect();
    let results = client.index.reserve(&client.session, &wishes, WITHIN).await;
    assert!(results.iter().all(Result::is_ok), "{:?}", results[0]);
    assert_eq!(world.books().paid, 40);
    let too_many = [with_claims("many", 500)];
    let refused = client.index.reserve(&client.session, &too_many, WITHIN).await.remove(0);
    assert_eq!(kind(refused), ErrorKind::Invalid, "it can never be reserved");
}

/// A request that has become larger than the whole budget keeps nobody behind it waiting, in its own process and elsewhere.
#[tokio::test]
async fn a_budget_that_shrinks_below_a_request_does_not_stop_the_queue() {
    let mut world = World::with_budget(12).await;
    let (owner, large, small) = (world.join().await, world.join().await, world.join().await);
    let behind = large.another().await;
    let a = owner.reserve("a", 8, WITHIN).await.expect("fits");
    let large_wait = waiting(&large, "b", 10, WITHIN);
    world.until_waiting(1).await;
    let behind_wait = waiting(&behind, "c", 4, WITHIN);
    let small_wait = waiting(&small, "d", 4, WITHIN);
    world.until_waiting(2).await;
    world.set_budget(&owner, 8).await.expect("nothing holds the rest");
    owner.use_up(&a).await;
    let d = ended(small_wait).await.expect("not behind the large one");
    let error = ended(large_wait).await.expect_err("never");
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Capacity, Retry::Never),
        "{error}"
    );
    let c = ended(behind_wait).await.expect("not behind the large one");
    small.use_up(&d).await;
    behind.use_up(&c).await;
    assert_eq!(world.books().paid, 0);
}

#[tokio::test]
async fn what_another_client_wrote_in_place_of_an_earlier_releases_books_keeps_no_session_out() {
    let world = World::with_budget(10).await;
    world.write(Write::put("quota/b/free", "garbage")).await;
    let client = world.join().await;
    client.reserve("a", 10, WITHIN).await.expect("fits");
    assert!(world.keys_with("b/free").iter().all(|key| key.contains("/x/")));
}

#[tokio::test]
async fn a_lost_reply_to_a_new_budget_is_found_out() {
    for fate in [Fate::Applied, Fate::NotApplied] {
        let mut world = World::with_budget(10).await;
        let client = world.join().await;
        client.txn_store.faults().lose_reply(fate);
        world.set_budget(&client, 30).await.expect("set");
        client.reserve("a", 30, WITHIN).await.expect("fits");
    }
}
