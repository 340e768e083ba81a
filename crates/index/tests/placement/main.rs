//! Where stores are: what could bring one to two places, or to none, in memory.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test says what it expects"
)]

mod random;
mod world;

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tensorhold_core::{ErrorKind, StoreId};
use tensorhold_index::Index as _;
use tensorhold_index::placement::{
    ClusterName, MAP_KEY, NewStore, add_cluster, check_clusters, close_cluster, read_map, remove_cluster, store_places,
};
use tensorhold_index::store::memory::Fate;
use tensorhold_index::store::{Condition, Read, Transaction, TxnOutcome, TxnStore, Write};
use tensorhold_index::{forget, in_use, schema};

use crate::world::{CALL, Process, World};

pub(crate) fn name(text: &str) -> ClusterName {
    text.parse().expect("a name")
}

fn store(text: &str) -> StoreId {
    StoreId::new(text).expect("a name")
}

async fn add(operator: &Arc<Process>, cluster: &str, again: bool) -> tensorhold_core::Result<()> {
    let (world, name, endpoints) = (&operator.world, name(cluster), [cluster.to_owned()]);
    let added = add_cluster(&**operator, &name, &endpoints, again, &*world.clock, &*world.rng, CALL).await?;
    assert_eq!(added.twice, []);
    Ok(())
}

async fn close(operator: &Arc<Process>, cluster: &str, open: bool) {
    let home = operator.client("home");
    let name = name(cluster);
    let closed = close_cluster(home, &name, open, &*operator.world.clock, CALL);
    closed.await.expect("closed");
}

async fn remove(operator: &Arc<Process>, cluster: &str) -> tensorhold_core::Result<bool> {
    remove_cluster(&**operator, &name(cluster), &*operator.world.clock, CALL).await
}

/// A world in which new stores begin on `b`.
async fn with_b() -> (Arc<World>, Arc<Process>) {
    let world = World::new(7).await;
    let operator = world.process();
    add(&operator, "b", false).await.expect("added");
    close(&operator, "home", false).await;
    (world, operator)
}

#[tokio::test]
async fn a_store_stays_where_it_began_whatever_the_map_says_later() {
    let world = World::new(1).await;
    // It connects before there is another cluster, and opens nothing yet.
    let early = world.process();
    early.client("home").read(&[], CALL).await.expect("connected");
    let (first, _) = early.open(&store("at home"), NewStore::Begins).await.expect("open");
    assert_eq!(first.cluster(), ClusterName::home());
    let operator = world.process();
    add(&operator, "b", false).await.expect("added");
    close(&operator, "home", false).await;
    let late = world.process();
    let (at_b, index) = late.open(&store("at b"), NewStore::Begins).await.expect("open");
    assert_eq!(at_b.cluster(), name("b"));
    let session = index.open_session(CALL).await.expect("a session");
    assert_eq!(world.with_keys("at%20b/n/", &[]), ["b"]);
    // The early one finds it where it is, and its own store where it was.
    let (found, _) = early.open(&store("at b"), NewStore::Begins).await.expect("open");
    assert_eq!(found.cluster(), name("b"));
    let (found, _) = late.open(&store("at home"), NewStore::Begins).await.expect("open");
    assert_eq!(found.cluster(), ClusterName::home());
    close(&operator, "home", true).await;
    close(&operator, "b", false).await;
    let (found, _) = world
        .process()
        .open(&store("at b"), NewStore::Begins)
        .await
        .expect("open");
    assert_eq!(found.cluster(), name("b"), "a closed cluster keeps its stores");
    let error = remove(&operator, "b").await.expect_err("a store is on it");
    assert_eq!(error.fact("one_of_them"), Some("at b"), "{error}");
    let places = store_places(operator.client("home"), &*world.clock, CALL)
        .await
        .expect("a list");
    let on: Vec<_> = places
        .iter()
        .map(|one| (one.store.as_str(), one.cluster.clone()))
        .collect();
    assert_eq!(on, [("at b", Some(name("b"))), ("at home", Some(ClusterName::home()))]);
    session.close(CALL).await.expect("closed");
}

#[tokio::test]
async fn two_processes_that_begin_a_store_at_once_agree() {
    let (world, _) = with_b().await;
    for number in 0..50 {
        let new = store(&format!("new-{number}"));
        let (one, other) = (world.process(), world.process());
        let opened = tokio::join!(one.open(&new, NewStore::Begins), other.open(&new, NewStore::Begins));
        for (_, index) in [opened.0.expect("open"), opened.1.expect("open")] {
            index.open_session(CALL).await.expect("a session");
        }
        assert_eq!(world.with_keys(&format!("{new}/n/"), &[]), ["b"]);
    }
}

#[tokio::test]
async fn a_process_that_connected_before_cannot_open_a_session_where_the_store_is_not() {
    let (world, _) = with_b().await;
    let slept = world.process();
    let (_, index) = slept.open(&store("s"), NewStore::Begins).await.expect("open");
    let session = index.open_session(CALL).await.expect("a session");
    assert!(world.etcd("b").expire(session.id()));
    // While it sleeps, an operator deletes what says that the store is there, and puts it elsewhere.
    let place = world
        .value("home", "s/place")
        .expect("a place")
        .replace("\"b\"", "\"home\"");
    world.put("home", "s/place", &place).await;
    let gone = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::Delete("s/here".to_owned())],
    };
    world.etcd("b").transact(&gone, CALL).await.expect("deleted");
    let error = index.open_session(CALL).await.expect_err("it is not there");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let error = index.set_budget(1 << 20, CALL).await.expect_err("nor a budget");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let error = index.confirm_place(CALL).await.expect_err("nothing may be removed");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(world.with_keys("s/n/", &[]), [""; 0]);
}

#[tokio::test]
async fn nothing_is_removed_while_the_home_cannot_be_asked() {
    let (world, _) = with_b().await;
    let process = world.process();
    let (_, index) = process.open(&store("s"), NewStore::Begins).await.expect("open");
    index.confirm_place(CALL).await.expect("it is here");
    process.client("home").store.faults().outage(1);
    let error = index.confirm_place(CALL).await.expect_err("not known");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    index.confirm_place(CALL).await.expect("it is here");
}

#[tokio::test]
async fn a_home_that_was_restored_begins_no_store_before_every_cluster_was_asked() {
    let (world, operator) = with_b().await;
    let saved = world.etcd("home").save();
    let old = world.process();
    let (_, index) = old.open(&store("s"), NewStore::Begins).await.expect("open");
    index.open_session(CALL).await.expect("a session");
    world.etcd("home").put_back(&saved);
    world.etcd("home").declare();
    world.begin_epoch("home").await;
    close_after_restore(&operator).await;

    let new = world.process();
    let error = new
        .open(&store("s"), NewStore::Begins)
        .await
        .expect_err("not known where it is");
    assert!(error.message().contains("clusters check"), "{error}");
    operator.client("b").store.faults().outage(1);
    let report = check_clusters(&*operator, &*world.clock, CALL).await.expect("a report");
    assert_eq!(report.silent.len(), 1, "{report:?}");
    new.open(&store("other"), NewStore::Begins)
        .await
        .expect_err("b has not answered");
    let error = remove(&operator, "b").await.expect_err("it may have stores");
    assert!(error.message().contains("clusters check"), "{error}");

    let report = check_clusters(&*operator, &*world.clock, CALL).await.expect("a report");
    assert_eq!(report.brought_back, [(store("s"), name("b"))]);
    let (found, index) = new.open(&store("s"), NewStore::Begins).await.expect("open");
    assert_eq!(found.cluster(), name("b"));
    index.open_session(CALL).await.expect("a session");
    assert_eq!(world.with_keys("s/n/", &[]), ["b"]);
    new.open(&store("other"), NewStore::Begins).await.expect("a new one");
}

/// The home is open again, so that a new store would begin there.
async fn close_after_restore(operator: &Arc<Process>) {
    operator
        .client("home")
        .read(&[], CALL)
        .await
        .expect_err("another epoch");
    close(operator, "home", true).await;
    close(operator, "b", false).await;
}

#[tokio::test]
async fn a_store_that_is_there_twice_is_refused_until_one_is_deleted() {
    let (world, operator) = with_b().await;
    let (_, index) = world.process().open(&store("s"), NewStore::Begins).await.expect("open");
    index.open_session(CALL).await.expect("a session");
    // As if the home had been restored and nobody had run the guard.
    world
        .put("home", "s/place", r#"{"cluster":"home","id":"another"}"#)
        .await;
    let report = check_clusters(&*operator, &*world.clock, CALL).await.expect("a report");
    assert_eq!(report.twice, [(store("s"), name("b"))]);
    let error = world
        .process()
        .open(&store("s"), NewStore::Begins)
        .await
        .expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let keys = world.etcd("b").dump().into_iter().map(|entry| entry.key);
    let delete = Transaction {
        conditions: Vec::new(),
        writes: keys.filter(|key| key.starts_with("s/")).map(Write::Delete).collect(),
    };
    world.etcd("b").transact(&delete, CALL).await.expect("deleted");
    let report = check_clusters(&*operator, &*world.clock, CALL).await.expect("a report");
    assert_eq!(report.twice, []);
    let (found, _) = world
        .process()
        .open(&store("s"), NewStore::Begins)
        .await
        .expect("settled");
    assert_eq!(found.cluster(), ClusterName::home());
}

#[tokio::test]
async fn a_store_never_begins_on_the_samples_of_another_one() {
    let world = World::new(2).await;
    let operator = world.process();
    world.put("b", "s/s/theirs", "a sample").await;
    let error = add(&operator, "b", false).await.expect_err("an index of its own");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(world.value("b", MAP_KEY), None, "it is as it was");

    add(&operator, "c", false).await.expect("added");
    close(&operator, "home", false).await;
    for (key, value) in [
        ("x/s/theirs", "a sample"),
        ("y/here", r#"{"id":"another"}"#),
        ("y/s/theirs", ""),
    ] {
        world.put("c", key, value).await;
    }
    world.put("home", "z/s/theirs", "a sample").await;
    for taken in ["x", "y", "z"] {
        let error = world
            .process()
            .open(&store(taken), NewStore::Begins)
            .await
            .expect_err("theirs");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    // A mark alone is of a process that died before there was anything.
    world.put("c", "w/here", r#"{"id":"another"}"#).await;
    let (found, _) = world.process().open(&store("w"), NewStore::Begins).await.expect("open");
    assert_eq!(found.cluster(), name("c"));
    // Nobody can take it for a home.
    let error = read_map(operator.client("c"), CALL).await.expect_err("no home");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// A process dies after each of its calls in turn, or its reply is lost, or its transaction lands later.
#[tokio::test]
async fn a_death_between_two_writes_leaves_a_store_that_opens() {
    for fate in [Fate::Applied, Fate::NotApplied, Fate::Later] {
        for calls in 0..12 {
            let (world, _) = with_b().await;
            let dying = world.process();
            dying.client("home").store.faults().lose_reply(fate);
            dying.client("b").store.faults().lose_reply(fate);
            let begun = store("s");
            let mut opening = Box::pin(dying.open(&begun, NewStore::Begins));
            for _ in 0..calls {
                if opening
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_ready()
                {
                    break;
                }
            }
            drop(opening);
            let other = world.process();
            let (found, index) = other.open(&begun, NewStore::Begins).await.expect("open");
            assert_eq!(found.cluster(), name("b"), "{fate:?}, {calls} calls");
            index.open_session(CALL).await.expect("a session");
            let late = ["home", "b"].map(|etcd| dying.client(etcd).store.land());
            let (_, index) = other.open(&begun, NewStore::Begins).await.expect("open");
            index.open_session(CALL).await.expect("a session");
            assert_eq!(world.with_keys("s/n/", &[]), ["b"], "{fate:?}, {calls} calls, {late:?}");
        }
    }
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_keeps_nobody_from_anything_but_its_stores() {
    let (world, operator) = with_b().await;
    add(&operator, "c", false).await.expect("added");
    close(&operator, "c", false).await;
    operator.client("c").store.faults().outage(usize::MAX);
    store_places(operator.client("home"), &*world.clock, CALL)
        .await
        .expect("a list");
    close(&operator, "b", false).await;
    close(&operator, "b", true).await;
    assert!(!remove(&operator, "c").await.expect("removed"), "it could not be told");
    let (found, _) = world.process().open(&store("s"), NewStore::Begins).await.expect("open");
    assert_eq!(found.cluster(), name("b"));
    operator.client("c").store.faults().outage(0);
    let error = add(&operator, "c", false)
        .await
        .expect_err("it still says that it is one");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    add(&operator, "c", true).await.expect("added");
}

#[tokio::test]
async fn only_a_closed_cluster_without_a_store_is_removed() {
    let (world, operator) = with_b().await;
    let error = remove(&operator, "b").await.expect_err("open");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(
        remove(&operator, "x").await.expect_err("none").kind(),
        ErrorKind::NotFound
    );
    close(&operator, "b", false).await;
    assert!(remove(&operator, "b").await.expect("removed"));
    assert_eq!(world.value("b", MAP_KEY), None, "it was told");
    add(&operator, "b", false).await.expect("it can be used again");
}

/// What a process chose before a cluster was closed is refused after that.
#[tokio::test]
async fn a_store_that_begins_while_its_cluster_is_removed_begins_elsewhere() {
    for calls in 0..8 {
        let (world, operator) = with_b().await;
        let (begun, process) = (store("s"), world.process());
        let mut opening = Box::pin(process.open(&begun, NewStore::Begins));
        for _ in 0..calls {
            if opening
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
            {
                break;
            }
        }
        close(&operator, "b", false).await;
        let removed = remove(&operator, "b").await.is_ok();
        if calls < 8 {
            let (found, _) = world.process().open(&begun, NewStore::Begins).await.expect("open");
            assert_eq!(found.cluster() == ClusterName::home(), removed, "{calls} calls");
        }
    }
}

#[tokio::test]
async fn another_etcd_at_a_clusters_address_is_refused() {
    let (world, operator) = with_b().await;
    world.process().open(&store("s"), NewStore::Begins).await.expect("open");
    let replaced = world.value("b", MAP_KEY).expect("a role");
    let gone = Transaction {
        conditions: Vec::new(),
        writes: vec![Write::Delete(MAP_KEY.to_owned())],
    };
    world.etcd("b").transact(&gone, CALL).await.expect("deleted");
    let error = world
        .process()
        .open(&store("s"), NewStore::Begins)
        .await
        .expect_err("not b");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let error = add(&operator, "b", false).await.expect_err("not b");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    world.put("b", MAP_KEY, &replaced).await;
    add(&operator, "b", false).await.expect("it is b");
    world.process().open(&store("s"), NewStore::Begins).await.expect("open");
}

#[tokio::test]
async fn nothing_lowers_the_number_of_the_layout() {
    let (world, operator) = with_b().await;
    for cluster in ["home", "c"] {
        world.put(cluster, schema::KEY, "9 from 1").await;
    }
    add(&operator, "c", false).await.expect("added");
    close(&operator, "c", false).await;
    for cluster in ["home", "c"] {
        let opened = schema::check(world.etcd(cluster), &*world.clock, CALL).await;
        assert_eq!(opened.expect("known"), 9);
        assert_eq!(world.value(cluster, schema::KEY).as_deref(), Some("9 from 1"));
    }
}

#[tokio::test]
async fn a_record_of_the_place_that_cannot_be_read_is_an_error_and_no_answer() {
    for value in ["", "{}", r#"{"cluster":"B","id":"1"}"#, r#"{"cluster":"b"}"#] {
        let (world, _) = with_b().await;
        let process = world.process();
        let (_, index) = process.open(&store("s"), NewStore::Begins).await.expect("open");
        world.put("home", "s/place", value).await;
        let error = process
            .open(&store("s"), NewStore::Begins)
            .await
            .expect_err("not known");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{value}: {error}");
        index.confirm_place(CALL).await.expect_err("not known");
        world.put("home", MAP_KEY, value).await;
        process
            .open(&store("t"), NewStore::Begins)
            .await
            .expect_err("not known");
    }
}

#[tokio::test]
async fn whoever_only_looks_begins_nothing() {
    let (world, _) = with_b().await;
    let error = world
        .process()
        .open(&store("s"), NewStore::IsLeft)
        .await
        .expect_err("none");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(world.with_keys("s/", &[]), [""; 0]);
    let condition = Condition::Absent("s/place".to_owned());
    let nothing = Transaction {
        conditions: vec![condition],
        writes: Vec::new(),
    };
    let outcome = world.etcd("home").transact(&nothing, CALL).await.expect("an answer");
    assert!(matches!(outcome, TxnOutcome::Committed(_)));
    let read = [Read::Key("s/here".to_owned())];
    let seen = world.etcd("b").read(&read, Duration::from_secs(1)).await.expect("read");
    assert_eq!(seen.entries.concat(), []);
}

#[tokio::test]
async fn a_store_at_home_is_forgotten_with_its_place_and_begins_anew() {
    let (world, operator) = with_b().await;
    close(&operator, "home", true).await;
    close(&operator, "b", false).await;
    let slept = world.process();
    let (_, index) = slept.open(&store("s"), NewStore::Begins).await.expect("open");
    let forgotten = forget(operator.client("home"), &store("s"), &*world.clock, CALL).await;
    assert!(forgotten.expect("it has nothing but its place"));
    assert_eq!(world.with_keys("s/", &[]), [""; 0]);
    // Meanwhile new stores begin elsewhere: the one that slept must not write where it was.
    close(&operator, "b", true).await;
    close(&operator, "home", false).await;
    let (_, other) = world.process().open(&store("s"), NewStore::Begins).await.expect("open");
    let session = other.open_session(CALL).await.expect("a session");
    let error = index.open_session(CALL).await.expect_err("the store is elsewhere now");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(world.with_keys("s/", &["s/place"]), ["b"]);
    session.close(CALL).await.expect("closed");
    // On another cluster it stays, whether that is asked or the home, and counts as in use.
    for etcd in ["home", "b"] {
        let error = forget(operator.client(etcd), &store("s"), &*world.clock, CALL).await;
        assert_eq!(
            error.expect_err("it is not at home").kind(),
            ErrorKind::Unsupported,
            "{etcd}"
        );
    }
    assert_eq!(world.with_keys("s/", &[]), ["b", "home"]);
    let found = in_use(operator.client("home"), &[store("s")], &*world.clock, CALL).await;
    assert_eq!(found.expect("read"), [store("s")]);
}
