//! What only this store can do; the contract has its own test suite.

use holdfast_core::{ErrorKind, ManualClock};

use super::*;
use crate::kv::{Write, prefix};

const CALL: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(10);

fn store() -> (Arc<ManualClock>, MemoryKv) {
    let clock = Arc::new(ManualClock::new());
    (Arc::clone(&clock), MemoryKv::new(clock))
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

fn keys(kv: &MemoryKv) -> Vec<String> {
    kv.dump().into_iter().map(|entry| entry.key).collect()
}

#[tokio::test]
async fn a_lost_reply_has_the_fate_that_was_asked_for() {
    let (_, kv) = store();
    kv.faults().lose_reply(Fate::Applied);
    kv.faults().spare();
    kv.faults().lose_reply(Fate::NotApplied);
    kv.faults().lose_reply(Fate::Later);
    for (key, is_lost) in [("a", true), ("b", false), ("c", true), ("d", true), ("e", false)] {
        let outcome = kv.transact(&put(key), CALL).await;
        assert_eq!(
            outcome.as_ref().err().map(Error::retry),
            is_lost.then_some(Retry::Ambiguous),
            "{key}"
        );
    }
    assert_eq!(keys(&kv), ["a", "b", "e"]);
    assert_eq!(kv.land(), 1);
    assert_eq!(kv.land(), 0, "it lands once");
    assert_eq!(keys(&kv), ["a", "b", "d", "e"]);
}

#[tokio::test]
async fn an_outage_hits_one_client_for_as_many_calls_as_was_said() {
    let (_, kv) = store();
    let other = kv.client();
    kv.faults().outage(2);
    let failed = kv.transact(&put("a"), CALL).await.expect_err("an outage");
    assert_eq!((failed.kind(), failed.retry()), (ErrorKind::Unavailable, Retry::Safe));
    other
        .transact(&put("b"), CALL)
        .await
        .expect("the other client is not hit");
    kv.read(&[], CALL).await.expect_err("still out");
    kv.transact(&put("c"), CALL).await.expect("over");
    assert_eq!(keys(&kv), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_answers_late_or_not_at_all() {
    let (_, kv) = store();
    kv.faults().slow(Duration::from_millis(300));
    let begun = tokio::time::Instant::now();
    kv.transact(&put("a"), CALL).await.expect("slow");
    assert_eq!(begun.elapsed(), Duration::from_millis(300));
    let failed = kv
        .transact(&put("b"), Duration::from_millis(200))
        .await
        .expect_err("too slow");
    assert_eq!((failed.kind(), failed.retry()), (ErrorKind::Unavailable, Retry::Safe));
    assert_eq!(begun.elapsed(), Duration::from_millis(500));
    assert_eq!(keys(&kv), ["a"]);
}

#[tokio::test]
async fn a_session_whose_keeper_comes_back_in_time_lives() {
    let (clock, kv) = store();
    let session = kv.open_session(TTL, CALL).await.expect("a session");
    kv.transact(&put_with("s", session.id()), CALL).await.expect("a put");
    clock.advance(TTL * 100);
    assert!(session.is_alive(), "it is kept");
    assert!(kv.kept(session.id(), false));
    clock.advance(TTL - Duration::from_nanos(1));
    assert!(kv.kept(session.id(), true));
    clock.advance(TTL);
    assert!(session.is_alive());
    assert!(kv.kept(session.id(), false));
    clock.advance(TTL);
    assert!(!session.is_alive());
    session.ended().await;
    assert!(keys(&kv).is_empty());
    assert!(!kv.kept(session.id(), true), "no way back");
}

#[tokio::test]
async fn sessions_die_in_the_order_of_their_deaths_whenever_somebody_looks() {
    let (clock, kv) = store();
    let first = kv.open_session(TTL * 2, CALL).await.expect("a session");
    let second = kv.open_session(TTL, CALL).await.expect("a session");
    for (key, session) in [("first", &first), ("second", &second)] {
        kv.transact(&put_with(key, session.id()), CALL).await.expect("a put");
    }
    let mut watch = kv.watch(prefix(""), Version(2), CALL).await.expect("a watch");
    drop((first, second));
    clock.advance(TTL * 9);
    kv.settle();
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
    let (_, kv) = store();
    let first = kv.open_session(TTL, CALL).await.expect("a session");
    let second = kv.open_session(TTL, CALL).await.expect("a session");
    kv.transact(&put_with("k", first.id()), CALL).await.expect("a put");
    kv.transact(&put_with("k", second.id()), CALL).await.expect("a put");
    assert!(kv.expire(first.id()));
    assert_eq!(keys(&kv), ["k"]);
    assert!(kv.expire(second.id()));
    assert!(keys(&kv).is_empty());
    assert!(kv.sessions().is_empty());
}
