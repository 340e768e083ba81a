//! A store on one of several clusters: where it begins, and moving it while it is in use, whatever dies in between.
#![allow(clippy::expect_used, reason = "a test says what it expects")]

mod clusters;
mod compacted;
mod fuse;
mod opening;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tensorhold_core::{Clock, ErrorKind, Result, SampleId, StoreId, SystemRng};
use tensorhold_custody::GroupName;
use tensorhold_index::placement::{
    ClusterAddress, ClusterMap, ClusterName, Move, MoveStep, move_store, place, read_map, write_map,
};
use tensorhold_index::store::memory::{Fate, MemoryStore};
use tensorhold_index::store::{Transaction, TxnStore, Write, prefix};
use tensorhold_index::testing::Client;
use tensorhold_index::{Index, IndexConfig, LeaseGrant, TxnIndex, schema};

use crate::clusters::{CALL, MemoryClusters, name};
use crate::fuse::{Fused, Mishap};

/// Longer than a mover is waited for, and shorter than the time to live of a session.
const MOVER_IS_GONE: Duration = Duration::from_secs(6);
/// Those who use the samples.
const GROUPS: &[&str] = &["trainers"];

fn store() -> StoreId {
    StoreId::new("run/7").expect("a name")
}

/// What a mover is asked for.
fn move_to_b() -> Move {
    Move {
        store: store(),
        to: name("b"),
        longest_linger: Duration::ZERO,
    }
}

/// A change to a cluster that is made when its client is told to ([`MemoryStore::land`]).
async fn change_when_told(cluster: &MemoryStore, key: &str, value: &str) -> MemoryStore {
    let client = cluster.client();
    client.faults().lose_reply(Fate::Later);
    let change = Transaction {
        writes: vec![Write::put(key, value)],
        ..Transaction::default()
    };
    client.transact(&change, CALL).await.expect_err("not yet");
    client
}

fn group() -> GroupName {
    GroupName::new(GROUPS[0]).expect("a name")
}

/// The index of the store, as one process has it.
fn index(clusters: &MemoryClusters, txn_store: Arc<dyn TxnStore>) -> Arc<dyn Index> {
    let clock = Arc::clone(&clusters.clock) as Arc<dyn Clock>;
    let settings = IndexConfig::default();
    Arc::new(TxnIndex::new(txn_store, &store(), settings, clock, Arc::new(SystemRng)))
}

/// A process that uses the store, wherever it is.
async fn open_process(clusters: &Arc<MemoryClusters>) -> Client {
    let following = clusters.open(&store()).await.expect("the store");
    Client::open(index(clusters, Arc::new(following)))
        .await
        .expect("a session")
}

async fn take(process: &Client) -> Result<Option<LeaseGrant>> {
    process.next_one(&group(), Duration::from_millis(200)).await
}

/// The keys of the store on a cluster, but for those that say where it is.
fn keys(clusters: &MemoryClusters, cluster: &str) -> Vec<String> {
    let all = clusters.store(cluster).dump().into_iter().map(|entry| entry.key);
    let of_store = all.filter(|key| key.starts_with("run%2F7/") && !key.starts_with("run%2F7/m/"));
    of_store.collect()
}

/// A process in the middle of things: one sample reserved, one ready, one taken. Then a mover to whom something happens.
/// Whatever it is, the process goes on as if nothing had, and the next move succeeds.
async fn something_happens(mishap: Mishap, at: usize) -> bool {
    let clusters = MemoryClusters::new();
    let process = open_process(&clusters).await;
    process.publish("taken", GROUPS).await.expect("a sample");
    let taken = take(&process).await.expect("a take").expect("a sample");
    process.publish("ready", GROUPS).await.expect("a sample");
    let reserved = process.reserve("reserved").await.expect("a reservation");

    let fused = Fused::new(&clusters, mishap, at);
    let asked = move_to_b();
    let mut told = |_| {};
    let moving = move_store(&fused, &asked, &*clusters.clock, &SystemRng, CALL, &mut told);
    let moved = fused.run(moving).await;
    let has_burnt = fused.has_burnt();
    if moved.is_none() {
        clusters.clock.advance(MOVER_IS_GONE);
        clusters.stores.values().for_each(|store| store.settle());
    }
    let context = format!("{mishap:?} at call {at}");

    process.commit(&reserved, GROUPS).await.expect(&context);
    process.ack_and_free(&taken).await.expect(&context);
    fused.land().await;
    let mut found = Vec::new();
    while let Some(next) = take(&process).await.expect(&context) {
        found.push(next.sample.sample.to_string());
        process.ack_and_free(&next).await.expect(&context);
    }
    found.sort();
    assert_eq!(found, ["ready", "reserved"], "{context}");
    assert!(process.session().is_alive(), "{context}");

    process.publish("last", GROUPS).await.expect(&context);
    // A mover that did not die has resigned; the one before may have.
    clusters.move_to(&store(), "c").await.expect(&context);
    let last = take(&process).await.expect(&context).expect(&context);
    process.ack_and_free(&last).await.expect(&context);
    assert_eq!(keys(&clusters, "home"), [""; 0], "{context}");
    assert_eq!(keys(&clusters, "b"), [""; 0], "{context}");
    let counts = process.index().counts(CALL).await.expect(&context);
    assert_eq!(
        (counts.records.iter().sum::<u64>(), counts.sessions),
        (0, 1),
        "{context}"
    );
    has_burnt
}

#[tokio::test]
async fn whatever_happens_to_a_mover_nothing_is_lost() {
    // They mostly wait, so many run at once.
    const AT_ONCE: usize = 16;
    for mishap in [
        Mishap::DiesBefore,
        Mishap::DiesAfter,
        Mishap::LostRequest,
        Mishap::LostReply,
        Mishap::LandsLater,
    ] {
        let mut first = 1;
        loop {
            let some = (first..first + AT_ONCE).map(|at| something_happens(mishap, at));
            let has_burnt = futures_util::future::join_all(some).await;
            first += AT_ONCE;
            if !has_burnt.into_iter().all(|has_burnt| has_burnt) {
                break;
            }
        }
        assert!(first > 30, "only {first} calls");
    }
}

/// A mover stops before a call, another brings the store back meanwhile, and the first one goes on.
async fn another_comes_between(at: usize) -> bool {
    let clusters = MemoryClusters::new();
    let process = open_process(&clusters).await;
    process.publish("taken", GROUPS).await.expect("a sample");
    let taken = take(&process).await.expect("a take").expect("a sample");
    process.publish("ready", GROUPS).await.expect("a sample");
    let context = format!("stopped before call {at}");

    let fused = Fused::new(&clusters, Mishap::Stops, at);
    let asked = move_to_b();
    let mut told = |_| {};
    let moving = move_store(&fused, &asked, &*clusters.clock, &SystemRng, CALL, &mut told);
    let mut moving = std::pin::pin!(moving);
    if fused.run(&mut moving).await.is_none() {
        // Refused while the first one has the lock.
        clusters.move_to(&store(), "home").await.ok();
        fused.go_on();
        // It may find that it came too late.
        moving.await.ok();
    }
    process.ack_and_free(&taken).await.expect(&context);
    let ready = take(&process).await.expect(&context).expect(&context);
    process.ack_and_free(&ready).await.expect(&context);
    process.publish("last", GROUPS).await.expect(&context);
    clusters.move_to(&store(), "c").await.expect(&context);
    let last = take(&process).await.expect(&context).expect(&context);
    process.ack_and_free(&last).await.expect(&context);
    fused.has_burnt()
}

#[tokio::test]
async fn a_mover_that_is_overtaken_by_another_harms_nothing() {
    let mut at = 1;
    while another_comes_between(at).await {
        at += 1;
    }
    assert!(at > 30, "only {at} calls");
}

async fn a_session_is_closed(at: usize) -> bool {
    let clusters = MemoryClusters::new();
    let process = open_process(&clusters).await;
    process.publish("s", GROUPS).await.expect("a sample");
    let id = process.session().id();
    let fused = Fused::new(&clusters, Mishap::Stops, at);
    let asked = move_to_b();
    let mut told = |_| {};
    let moving = move_store(&fused, &asked, &*clusters.clock, &SystemRng, CALL, &mut told);
    let mut moving = std::pin::pin!(moving);
    if fused.run(&mut moving).await.is_none() {
        let close = process.session().close(CALL);
        let go_on = async {
            fused.go_on();
            moving.await.expect("a move");
        };
        // In this order: the session is closed while the mover stands still.
        tokio::join!(async { close.await.expect("closed") }, go_on);
    } else {
        process.session().close(CALL).await.expect("closed");
    }
    // What is left where the store was ends by its time to live; nobody asks there any more.
    let alive = clusters.store("b").sessions();
    assert!(!alive.contains(&id), "closed before call {at}");
    fused.has_burnt()
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_closed_during_a_move_has_ended() {
    let mut at = 1;
    while a_session_is_closed(at).await {
        at += 1;
    }
    assert!(at > 30, "only {at} calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_moved_under_load_loses_nothing_and_gives_nothing_twice() {
    const EACH: usize = 150;
    const PRODUCERS: usize = 3;
    let clusters = MemoryClusters::new();
    let used: Arc<parking_lot::Mutex<BTreeMap<String, usize>>> = Arc::default();
    let count = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for producer in 0..PRODUCERS {
        let process = open_process(&clusters).await;
        tasks.spawn(async move {
            for number in 0..EACH {
                process
                    .publish(&format!("{producer}-{number}"), GROUPS)
                    .await
                    .expect("a put");
            }
        });
        let (process, used, count) = (open_process(&clusters).await, Arc::clone(&used), Arc::clone(&count));
        tasks.spawn(async move {
            while count.load(Ordering::Relaxed) < PRODUCERS * EACH {
                if let Some(grant) = take(&process).await.expect("a take") {
                    process.ack_and_free(&grant).await.expect("an answer");
                    *used.lock().entry(grant.sample.sample.to_string()).or_default() += 1;
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    let mut moves = 0;
    let mut targets = ["b", "c", "home"].into_iter().cycle();
    while count.load(Ordering::Relaxed) < PRODUCERS * EACH {
        let to = targets.next().expect("a cycle");
        clusters.move_to(&store(), to).await.expect("a move");
        moves += 1;
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no process fails");
    }
    assert!(moves >= 3, "{moves} moves");
    let used = used.lock();
    assert_eq!(used.len(), PRODUCERS * EACH, "each sample was used");
    assert!(used.values().all(|count| *count == 1), "once");
}

#[tokio::test]
async fn what_would_break_a_store_is_refused() {
    let clusters = MemoryClusters::new();
    let follows = open_process(&clusters).await;
    follows.publish("s", GROUPS).await.expect("a sample");

    let stays = Client::open(index(&clusters, Arc::new(clusters.store("home").client())))
        .await
        .expect("a session");
    let error = clusters
        .move_to(&store(), "b")
        .await
        .expect_err("a process that does not notice");
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert_eq!(
        error.fact("pid"),
        Some(std::process::id().to_string().as_str()),
        "{error}"
    );
    stays.session().close(CALL).await.expect("closed");

    let foreign = Transaction {
        writes: vec![Write::put("run%2F7/t", "7")],
        ..Transaction::default()
    };
    clusters
        .store("b")
        .transact(&foreign, CALL)
        .await
        .expect("another store of this name");
    let error = clusters
        .move_to(&store(), "b")
        .await
        .expect_err("another store of this name");
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");

    let store = store();
    let (one, other) = tokio::join!(clusters.move_to(&store, "c"), clusters.move_to(&store, "c"));
    let refused = [one, other].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert_eq!(refused.len(), 1, "one of two movers");
    assert_eq!(refused[0].kind(), ErrorKind::Conflict, "{}", refused[0]);
    assert!(take(&follows).await.expect("a take").is_some());
}

/// A watch that says nothing is no sign that nothing has changed: its node may be gone, or behind.
#[tokio::test(start_paused = true)]
async fn a_store_is_not_frozen_before_a_late_watch_has_told_what_has_changed() {
    let clusters = MemoryClusters::new();
    let process = open_process(&clusters).await;
    process.publish("s", GROUPS).await.expect("a sample");
    let change = change_when_told(clusters.store("home"), "run%2F7/changed", "late").await;
    let fused = Fused::new(&clusters, Mishap::LateWatches, 0);
    let (mut made, mut applied, mut applied_in_use) = (0, 0, None);
    let mut told = |step: MoveStep| match step {
        MoveStep::Copied(_) => made += change.land(),
        MoveStep::Applied(so_far) => applied = so_far,
        MoveStep::Frozen => applied_in_use = Some(applied),
        _ => {}
    };
    let moved = move_store(&fused, &move_to_b(), &*clusters.clock, &SystemRng, CALL, &mut told).await;
    moved.expect("a move");
    assert_eq!(made, 1, "it came during the copy");
    assert!(applied_in_use.is_some_and(|applied| applied > 0), "{applied_in_use:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_does_not_answer_is_told_soon_however_long_a_move_may_take() {
    let asked = move_to_b();
    for (within, told_within) in [(3600, 15), (2, 2)] {
        let clusters = MemoryClusters::new();
        clusters.store("home").faults().slow(Duration::MAX);
        let (within, began) = (Duration::from_secs(within), tokio::time::Instant::now());
        let error = move_store(&*clusters, &asked, &*clusters.clock, &SystemRng, within, &mut |_| {})
            .await
            .expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        // A timer ends at a whole millisecond.
        let told_within = Duration::from_secs(told_within) + Duration::from_millis(1);
        assert!(began.elapsed() <= told_within, "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_record_of_the_place_that_cannot_be_read_is_an_error_and_no_answer() {
    for value in [
        "",
        "{}",
        r#"{"by":"1","why":"exploded","to":"b"}"#,
        r#"{"by":"1","why":"moved","to":"B"}"#,
    ] {
        let clusters = MemoryClusters::new();
        let process = open_process(&clusters).await;
        let poison = Transaction {
            writes: vec![Write::put("run%2F7/m/away/first", value)],
            ..Transaction::default()
        };
        clusters.store("home").transact(&poison, CALL).await.expect("written");
        let sample = SampleId::new("s").expect("a name");
        let error = process.index().look(&[sample], CALL).await.expect_err("not known");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{value}: {error}");
        process.publish("s", GROUPS).await.expect_err("not known");
        clusters.open(&store()).await.expect_err("not known");
    }
    let clusters = MemoryClusters::new();
    let lost = Transaction {
        writes: vec![Write::put(
            "run%2F7/m/away/first",
            r#"{"by":"1","why":"moved","to":"b"}"#,
        )],
        ..Transaction::default()
    };
    clusters.store("home").transact(&lost, CALL).await.expect("written");
    let error = clusters.open(&store()).await.expect_err("the cluster does not have it");
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[tokio::test]
async fn a_new_store_begins_where_the_map_says_and_an_old_one_stays() {
    let clusters = MemoryClusters::new();
    let home = clusters.store("home");
    assert_eq!(read_map(home, CALL).await.expect("read"), None);
    let map = write_map(home, &*clusters.clock, CALL, |map: &mut ClusterMap| {
        map.home = false;
        for cluster in ["b", "c"] {
            let address = ClusterAddress {
                endpoints: vec![format!("http://{cluster}")],
                open: true,
            };
            map.clusters.insert(name(cluster), address);
        }
        Ok(())
    });
    let map = map.await.expect("written");
    assert_eq!(read_map(home, CALL).await.expect("read"), Some(map.clone()));
    let schema = home
        .dump()
        .into_iter()
        .find(|entry| entry.key == schema::KEY)
        .expect("a schema");
    assert_eq!(schema.value, b"2", "releases that know nothing of maps refuse it");

    // Two processes at once, many times.
    for number in 0..20 {
        let new = StoreId::new(format!("new-{number}")).expect("a name");
        let begin = || place(&*clusters, &map, &new, &*clusters.clock, &SystemRng, CALL);
        let (one, other) = tokio::join!(begin(), begin());
        one.expect("placed");
        other.expect("placed");
        let opened = clusters.open(&new).await.expect("the store");
        assert_eq!(opened.cluster(), map.choose(&new));
    }
    // A store that was there before there was a map.
    let process = open_process(&clusters).await;
    process.publish("s", GROUPS).await.expect("a sample");
    place(&*clusters, &map, &store(), &*clusters.clock, &SystemRng, CALL)
        .await
        .expect("placed");
    assert_eq!(
        clusters.open(&store()).await.expect("the store").cluster(),
        ClusterName::home()
    );
    // With a map that has changed, too.
    let none = ClusterMap::default();
    let new = StoreId::new("new-3").expect("a name");
    place(&*clusters, &none, &new, &*clusters.clock, &SystemRng, CALL)
        .await
        .expect("placed");
    assert_eq!(
        clusters.open(&new).await.expect("the store").cluster(),
        map.choose(&new)
    );
}

#[tokio::test]
async fn after_it_is_open_nothing_but_its_own_cluster_is_asked() {
    let clusters = MemoryClusters::new();
    let process = open_process(&clusters).await;
    clusters.move_to(&store(), "b").await.expect("a move");
    process.publish("s", GROUPS).await.expect("a sample");
    // It is kept alive there: a session that was only made known there would have ended.
    clusters.clock.advance(10 * MOVER_IS_GONE);
    clusters.stores.values().for_each(|store| store.settle());
    assert!(process.session().is_alive());
    let before = clusters.connected.load(Ordering::Relaxed);
    for cluster in ["home", "c"] {
        clusters.store(cluster).faults().outage(usize::MAX);
    }
    let grant = take(&process).await.expect("a take").expect("a sample");
    process.ack_and_free(&grant).await.expect("an answer");
    assert_eq!(clusters.connected.load(Ordering::Relaxed), before);
    for cluster in ["home", "c"] {
        clusters.store(cluster).faults().outage(0);
    }
    // The home says directly where it is, after two moves too. Whoever watches is told to read again.
    let watched = clusters.open(&store()).await.expect("the store");
    let seen = watched.read(&[], CALL).await.expect("a read").version;
    let mut watch = watched.watch(prefix("run%2F7/q/"), seen, CALL).await.expect("a watch");
    clusters.move_to(&store(), "c").await.expect("a move");
    let told = tokio::time::timeout(Duration::from_secs(10), watch.next())
        .await
        .expect("soon");
    assert_eq!(told.expect_err("it ends").kind(), ErrorKind::Unavailable);
    let error = watched
        .watch(prefix("run%2F7/q/"), seen, CALL)
        .await
        .expect_err("of another stay");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    clusters.store("b").faults().outage(usize::MAX);
    assert_eq!(clusters.open(&store()).await.expect("the store").cluster(), name("c"));
}
