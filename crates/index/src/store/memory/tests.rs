//! What only this store can do; the contract has its own test suite.

use tensorhold_core::{ErrorKind, ManualClock};

use super::*;
use crate::store::{Write, prefix};

const CALL: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(10);

fn store() -> (Arc<ManualClock>, MemoryStore) {
    let clock = Arc::new(ManualClock::new());
    (Arc::clone(&clock), MemoryStore::new(clock))
}

fn put(key: &str) -> Transaction {
    Transaction {
        writes: vec![Write::put(key, "v")],
        ..Transaction::default()
    }
}

fn put_with(key: &str, session: SessionId) -> Transaction {
    let write = Write::Put {
        key: key.into(),
        value: b"v".to_vec(),
        session: Some(session),
    };
    Transaction {
        writes: vec![write],
        ..Transaction::default()
    }
}

fn keys(txn_store: &MemoryStore) -> Vec<String> {
    txn_store.dump().into_iter().map(|entry| entry.key).collect()
}

#[tokio::test]
async fn a_lost_reply_has_the_fate_that_was_asked_for() {
    let (_, txn_store) = store();
    txn_store.faults().lose_reply(Fate::Applied);
    txn_store.faults().spare();
    txn_store.faults().lose_reply(Fate::NotApplied);
    txn_store.faults().lose_reply(Fate::Later);
    for (key, is_lost) in [("a", true), ("b", false), ("c", true), ("d", true), ("e", false)] {
        let outcome = txn_store.transact(&put(key), CALL).await;
        assert_eq!(
            outcome.as_ref().err().map(Error::retry),
            is_lost.then_some(Retry::Ambiguous),
            "{key}"
        );
    }
    assert_eq!(keys(&txn_store), ["a", "b", "e"]);
    assert_eq!(txn_store.land(), 1);
    assert_eq!(txn_store.land(), 0, "it lands once");
    assert_eq!(keys(&txn_store), ["a", "b", "d", "e"]);
}

#[tokio::test]
async fn an_outage_hits_one_client_for_as_many_calls_as_was_said() {
    let (_, txn_store) = store();
    let other = txn_store.client();
    txn_store.faults().outage(2);
    let failed = txn_store.transact(&put("a"), CALL).await.expect_err("an outage");
    assert_eq!((failed.kind(), failed.retry()), (ErrorKind::Unavailable, Retry::Safe));
    other
        .transact(&put("b"), CALL)
        .await
        .expect("the other client is not hit");
    txn_store.read(&[], CALL).await.expect_err("still out");
    txn_store.transact(&put("c"), CALL).await.expect("over");
    assert_eq!(keys(&txn_store), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_answers_late_or_not_at_all() {
    let (_, txn_store) = store();
    txn_store.faults().slow(Duration::from_millis(300));
    let begun = tokio::time::Instant::now();
    txn_store.transact(&put("a"), CALL).await.expect("slow");
    assert_eq!(begun.elapsed(), Duration::from_millis(300));
    let failed = txn_store
        .transact(&put("b"), Duration::from_millis(200))
        .await
        .expect_err("too slow");
    assert_eq!((failed.kind(), failed.retry()), (ErrorKind::Unavailable, Retry::Safe));
    assert_eq!(begun.elapsed(), Duration::from_millis(500));
    assert_eq!(keys(&txn_store), ["a"]);
}

#[tokio::test]
async fn a_session_whose_keeper_comes_back_in_time_lives() {
    let (clock, txn_store) = store();
    let session = txn_store.open_session(TTL, CALL).await.expect("a session");
    txn_store
        .transact(&put_with("s", session.id()), CALL)
        .await
        .expect("a put");
    clock.advance(TTL * 100);
    assert!(session.is_alive(), "it is kept");
    assert!(txn_store.kept(session.id(), false));
    clock.advance(TTL - Duration::from_nanos(1));
    assert!(txn_store.kept(session.id(), true));
    clock.advance(TTL);
    assert!(session.is_alive());
    assert!(txn_store.kept(session.id(), false));
    clock.advance(TTL);
    assert!(!session.is_alive());
    session.ended().await;
    assert!(keys(&txn_store).is_empty());
    assert!(!txn_store.kept(session.id(), true), "no way back");
}

#[tokio::test]
async fn sessions_die_in_the_order_of_their_deaths_whenever_somebody_looks() {
    let (clock, txn_store) = store();
    let first = txn_store.open_session(TTL * 2, CALL).await.expect("a session");
    let second = txn_store.open_session(TTL, CALL).await.expect("a session");
    for (key, session) in [("first", &first), ("second", &second)] {
        txn_store
            .transact(&put_with(key, session.id()), CALL)
            .await
            .expect("a put");
    }
    let mut watch = txn_store.watch(prefix(""), Version(2), CALL).await.expect("a watch");
    drop((first, second));
    clock.advance(TTL * 9);
    txn_store.settle();
    let gone: Vec<_> = watch
        .next()
        .await
        .expect("changes")
        .into_iter()
        .map(|c| (c.key, c.version.0))
        .collect();
    assert_eq!(gone, [("second".to_owned(), 3), ("first".to_owned(), 4)]);
}

#[tokio::test]
async fn a_key_that_changed_hands_does_not_vanish_with_its_former_session() {
    let (_, txn_store) = store();
    let first = txn_store.open_session(TTL, CALL).await.expect("a session");
    let second = txn_store.open_session(TTL, CALL).await.expect("a session");
    txn_store
        .transact(&put_with("k", first.id()), CALL)
        .await
        .expect("a put");
    txn_store
        .transact(&put_with("k", second.id()), CALL)
        .await
        .expect("a put");
    assert!(txn_store.expire(first.id()));
    assert_eq!(keys(&txn_store), ["k"]);
    assert!(txn_store.expire(second.id()));
    assert!(keys(&txn_store).is_empty());
    assert!(txn_store.sessions().is_empty());
}
