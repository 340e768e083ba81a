//! Audits: what no record owns is found and removed, and nothing else; what the engine lost is found without a reader.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::held_up::{HeldUp, Mode};
use common::*;
use tensorhold_core::{Clock, ErrorKind, ObjectKey, StoreId};
use tensorhold_engine::{EngineExt, MemoryConfig, PutOptions, PutOutcome, SsdConfig};
use tensorhold_features::{
    FeatureConfig, FeatureStore, LossAudit, LossScope, LostSample, OrphanAudit, OrphanReason, OrphanReport, Stored,
};
use tokio::sync::mpsc::Receiver;

const LENS: [usize; 2] = [100, 10_000];

fn repair() -> OrphanAudit {
    OrphanAudit {
        read_only: false,
        ..OrphanAudit::default()
    }
}

/// Holders with an SSD each, which keeps what is removed until they are started again.
fn with_ssd(holders: usize) -> World {
    World::with(MemoryConfig {
        holders,
        ssd: Some(SsdConfig {
            heartbeat: Duration::from_millis(5),
            ..SsdConfig::default()
        }),
        ..MemoryConfig::default()
    })
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).expect("a key")
}

/// Puts an object as any program may.
fn put_raw(world: &World, name: &str) {
    let engine = world.cluster.connect();
    let memory = engine.allocate(100, WITHIN).expect("memory");
    let outcome = engine.put_one(&key(name), &memory.whole(), &PutOptions::default(), WITHIN);
    assert!(matches!(outcome.expect("an outcome"), PutOutcome::Stored), "{name}");
}

async fn put_many(store: &FeatureStore, from: usize, count: usize) -> Vec<Stored> {
    let mut all = Vec::new();
    for n in from..from + count {
        all.push(put(store, item(&format!("run/{n}"), &LENS, n as u64)).await);
    }
    all
}

async fn consume(store: &FeatureStore, samples: &[Stored]) {
    for stored in samples {
        let lease = take(store, stored).await;
        ack(store, &lease).await.expect("acked");
    }
    store.drain(WITHIN).await.expect("freed");
}

async fn on_ssd(world: &World, objects: usize) {
    let begun = world.clock.now();
    while world.cluster.bucket(0).len() < objects {
        assert!(world.clock.now().since(begun) < WITHIN, "not on SSD");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn found(report: &OrphanReport) -> (u64, u64, u64, u64) {
    (report.objects, report.orphans, report.removed, report.failed)
}

/// Keys that are none of this store's, however much they look like it.
const OTHERS: [&str; 8] = [
    "a key that another program chose",
    "x:adopted",
    "kv/model/page/1",
    "s/not of our form",
    "other/run%2F1/g1-00000000000000aa/t0",
    "s/run%2F1/g01-00000000000000aa/t0",
    "s/run%2F1/g1-00000000000000AA/t0",
    "s/run%2F1/g1-00000000000000aa/t0/01",
];

#[tokio::test]
async fn what_ssd_brings_back_is_removed_and_nothing_else() {
    let world = with_ssd(1);
    let store = world.open().await;
    let gone = put_many(&store, 0, 20).await;
    put_many(&store, 20, 25).await;
    OTHERS.iter().for_each(|name| put_raw(&world, name));
    let all = world.cluster.objects().len();
    on_ssd(&world, all).await;
    consume(&store, &gone).await;
    let left = world.cluster.objects();
    assert!(world.cluster.restart_holder(0));
    assert_eq!(
        world.cluster.objects().len(),
        all,
        "all are back, so this shows something"
    );

    // To look changes nothing.
    let report = store
        .audit_orphans(OrphanAudit::default(), WITHIN)
        .await
        .expect("a report");
    let objects = (all - OTHERS.len()) as u64;
    let orphans = (all - left.len()) as u64;
    assert_eq!(found(&report), (objects, orphans, 0, 0), "{report:?}");
    assert_eq!(
        (report.complete, report.ahead, report.other_keys),
        (true, 0, 4),
        "{report:?}"
    );
    assert!(
        report.bytes > 0 && report.refused.is_none() && !report.examples.is_empty(),
        "{report:?}"
    );
    assert!(
        report
            .examples
            .iter()
            .all(|example| example.reason == OrphanReason::NoRecord)
    );
    assert_eq!(world.cluster.objects().len(), all);

    let report = store.audit_orphans(repair(), WITHIN).await.expect("a report");
    assert_eq!(found(&report), (objects, orphans, orphans, 0), "{report:?}");
    assert_eq!(world.cluster.objects(), left, "exactly the orphans are gone");
    let report = store.audit_orphans(repair(), WITHIN).await.expect("a report");
    assert_eq!(report.orphans, 0, "{report:?}");
}

#[tokio::test]
async fn what_a_record_owns_is_left_wherever_the_record_is() {
    let world = World::new();
    let engine = HeldUp::new(world.cluster.connect());
    let writer = world
        .open_on(engine.clone(), world.txn_store.client(), world.config())
        .await;
    let store = world.open().await;
    // Live; with a reader after its end; replaced by a later generation that is read; being put.
    let live = put(&store, item("run/live", &LENS, 1)).await;
    let ended = put(&store, item("run/ended", &LENS, 2)).await;
    let lease = take(&store, &ended).await;
    for outcome in store.abort(&[id("run/ended")], WITHIN).await {
        outcome.expect("retired");
    }
    engine.set(Mode::HangAfterPut);
    let writing = tokio::spawn({
        let writer = writer.clone();
        async move { writer.put(item("run/written", &LENS, 3), WITHIN).await }
    });
    while !engine.holds_one_up() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let before = world.cluster.objects();
    let report = store.audit_orphans(repair(), WITHIN).await;
    let after = world.cluster.objects();
    engine.let_go();
    let report = report.expect("a report");
    assert_eq!(found(&report), (before.len() as u64, 0, 0, 0), "{report:?}");
    assert_eq!(after, before);
    let written = writing.await.expect("no panic").expect("committed");
    drop(lease);
    for stored in [&live, &written] {
        let lease = take(&store, stored).await;
        ack(&store, &lease).await.expect("acked");
    }
}

#[tokio::test]
async fn an_index_that_is_not_the_one_removes_nothing() {
    let world = World::new();
    let store = world.open().await;
    let all = put_many(&store, 0, 30).await;
    let objects = world.cluster.objects();
    // Another etcd, which knows nothing. Its versions are smaller than those of the objects.
    let other = World::new();
    let wrong = other
        .open_on(world.cluster.connect(), other.txn_store.client(), other.config())
        .await;
    let report = wrong.audit_orphans(repair(), WITHIN).await.expect("a report");
    let count = objects.len() as u64;
    assert_eq!(found(&report), (count, count, 0, 0), "{report:?}");
    assert!(report.ahead > 0, "{report:?}");
    let why = report.refused.expect("refused");
    assert!(why.contains("another index") && why.contains("force"), "{why}");
    // It has given out more versions by now, and still knows none of them.
    for n in 0..200 {
        let stored = put(&wrong, item(&format!("run/other-{n}"), &[10], 1)).await;
        consume(&wrong, &[stored]).await;
    }
    let report = wrong.audit_orphans(repair(), WITHIN).await.expect("a report");
    assert_eq!((report.ahead, report.removed), (0, 0), "{report:?}");
    assert!(report.refused.expect("refused").contains("share"));
    assert_eq!(world.cluster.objects(), objects, "all are there");
    // Nothing but `force` says that this is the one.
    let forced = OrphanAudit {
        force: true,
        ..repair()
    };
    let report = wrong.audit_orphans(forced, WITHIN).await.expect("a report");
    assert_eq!(found(&report), (count, count, count, 0), "{report:?}");
    drop(all);
}

#[tokio::test]
async fn a_restored_index_removes_nothing_until_it_is_declared() {
    let world = World::new();
    let store = world.open().await;
    put_many(&store, 0, 5).await;
    let saved = world.txn_store.save();
    put_many(&store, 5, 5).await;
    world.txn_store.put_back(&saved);
    let objects = world.cluster.objects();
    let error = store.audit_orphans(repair(), WITHIN).await.expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(world.cluster.objects(), objects);
    world.txn_store.declare();
    let kept = objects.len() / 2;
    let cut_off = objects.len() - kept;
    // Some of the five that were cut off were put under reservations that were made ahead, and are saved: a sweep gives
    // those up. The audit finds the others.
    let swept = store.sweep(WITHIN).await.expect("swept");
    let report = store.audit_orphans(repair(), WITHIN).await.expect("a report");
    assert_eq!((report.failed, report.orphans), (0, report.removed), "{report:?}");
    let left = world.cluster.objects();
    assert_eq!(
        (left.len(), objects.len() - left.len()),
        (kept, cut_off),
        "swept {swept:?}, audited {report:?}"
    );
}

#[tokio::test]
async fn limits_rates_and_callers_are_kept() {
    let world = World::new();
    let store = world.open().await;
    put_many(&store, 0, 20).await;
    for n in 0..12 {
        put_raw(&world, &format!("s/late/g1-{n:016x}/t0"));
    }
    let limited = OrphanAudit { limit: 5, ..repair() };
    let report = store.audit_orphans(limited, WITHIN).await.expect("a report");
    assert_eq!(
        (report.orphans, report.removed, report.complete),
        (12, 5, false),
        "{report:?}"
    );
    let slow = OrphanAudit {
        rate: Some(20),
        ..repair()
    };
    let begun = world.clock.now();
    let report = store.audit_orphans(slow, WITHIN).await.expect("a report");
    assert_eq!(
        (report.orphans, report.removed, report.complete),
        (7, 7, true),
        "{report:?}"
    );
    assert!(
        world.clock.now().since(begun) >= Duration::from_millis(300),
        "seven at 20 per second"
    );
    let strange = OrphanAudit {
        most_share: 1.5,
        ..repair()
    };
    let error = store.audit_orphans(strange, WITHIN).await.expect_err("no share");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    // A put that never ended stays until the engine's own timeout.
    assert!(world.cluster.abandon_put(&key("s/late/g1-00000000000000ff/t0"), 100));
    let report = store.audit_orphans(repair(), WITHIN).await.expect("a report");
    assert_eq!(
        (report.orphans, report.unfinished, report.removed),
        (1, 1, 0),
        "{report:?}"
    );
}

/// All samples that are told of, until there are so many.
async fn told(losses: &mut Receiver<LostSample>, count: usize) -> Vec<LostSample> {
    let mut all = Vec::new();
    while all.len() < count {
        let next = tokio::time::timeout(WITHIN, losses.recv()).await;
        all.push(
            next.unwrap_or_else(|_| panic!("{} of {count} told", all.len()))
                .expect("open"),
        );
    }
    all
}

async fn nothing_told(losses: &mut Receiver<LostSample>) {
    let more = tokio::time::timeout(SOON, losses.recv()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test]
async fn losses_are_found_without_a_reader_and_their_producers_are_told() {
    let world = World::new();
    let (producer, auditor, other) = (world.open().await, world.open().await, world.open().await);
    let mut mine = producer.losses(LossScope::Own);
    let mut everybody = auditor.losses(LossScope::Store);
    let before = put_many(&producer, 0, 20).await;
    // The producer was cut off, and has another session now; what it put before is still its own.
    world.end_session(&producer).await;
    let after = put_many(&producer, 20, 5).await;
    assert_eq!(producer.health(WITHIN).await.sessions_opened, 2);
    let others = put_many(&other, 25, 5).await;
    let lease = take(&other, &others[0]).await;
    let looked = auditor
        .audit_losses(LossAudit::default(), WITHIN)
        .await
        .expect("a report");
    assert_eq!(
        (looked.samples, looked.objects, looked.missing),
        (30, 30 * 4, 0),
        "{looked:?}"
    );

    world.cluster.restart_master();
    let looked = auditor
        .audit_losses(LossAudit::default(), WITHIN)
        .await
        .expect("a report");
    assert_eq!(
        (looked.missing, looked.suspected, looked.lost),
        (30, 0, 0),
        "{looked:?}"
    );
    let options = LossAudit {
        read_only: false,
        wait: true,
        ..LossAudit::default()
    };
    // Two at once do each verdict once.
    let (one, two) = tokio::join!(
        auditor.audit_losses(options.clone(), WITHIN),
        other.audit_losses(options, WITHIN)
    );
    let (one, two) = (one.expect("a report"), two.expect("a report"));
    assert!(one.complete && two.complete, "{one:?} {two:?}");
    assert_eq!(one.lost + two.lost, 30, "{one:?} {two:?}");
    let ids: Vec<_> = [&before[..], &after, &others]
        .concat()
        .iter()
        .map(|stored| stored.reference.sample.clone())
        .collect();
    let live = producer
        .find(&ids, WITHIN)
        .await
        .expect("found")
        .iter()
        .flatten()
        .count();
    assert_eq!(live, 0);
    // Each is told once, with or without readers.
    let mut all: Vec<_> = told(&mut mine, 25).await.into_iter().map(|lost| lost.sample).collect();
    all.sort();
    let mut put: Vec<_> = [&before[..], &after]
        .concat()
        .into_iter()
        .map(|stored| stored.reference)
        .collect();
    put.sort();
    assert_eq!(all, put, "its own, of both sessions");
    assert_eq!(told(&mut everybody, 30).await.len(), 30);
    drop(lease);
    other.drain(WITHIN).await.expect("let go of");
    nothing_told(&mut mine).await;
    nothing_told(&mut everybody).await;
    // The channel ends with its store.
    producer.close(WITHIN).await.expect("closed");
    assert!(mine.recv().await.is_none());
}

#[tokio::test]
async fn what_comes_back_after_an_audit_is_not_lost() {
    let world = with_ssd(2);
    let store = world.open().await;
    let stored = put(&store, item("run/1", &LENS, 1)).await;
    let all = world.cluster.objects().len();
    let begun = world.clock.now();
    while world.cluster.bucket(0).len() + world.cluster.bucket(1).len() < all {
        assert!(world.clock.now().since(begun) < WITHIN, "not on SSD");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.cluster.restart_master();
    assert!(world.cluster.kill_holder(0) && world.cluster.kill_holder(1));
    world.cluster.restart_master();
    let options = LossAudit {
        read_only: false,
        ..LossAudit::default()
    };
    let report = store.audit_losses(options, WITHIN).await.expect("a report");
    assert_eq!((report.missing, report.suspected, report.lost), (1, 1, 0), "{report:?}");
    assert!(world.cluster.restart_holder(0) && world.cluster.restart_holder(1));
    let begun = world.clock.now();
    while store.health(WITHIN).await.suspected > 0 {
        assert!(world.clock.now().since(begun) < WITHIN, "still suspected");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(store.health(WITHIN).await.counters.lost, 0);
    let lease = take(&store, &stored).await;
    check_tensors(&get_all(&store, &lease).await.expect("bytes"), &LENS, 1);
}

#[tokio::test]
async fn a_producer_that_is_not_heard_for_long_is_told_after_its_watch_broke() {
    let world = World::new();
    let (producer, auditor) = (world.open().await, world.open().await);
    let mut mine = producer.losses(LossScope::Own);
    put_many(&producer, 0, 3).await;
    nothing_told(&mut mine).await;
    // Its watch ends: the index was restored, and declared.
    let saved = world.txn_store.save();
    world.txn_store.put_back(&saved);
    world.txn_store.declare();
    let begun = world.clock.now();
    while producer.sweep(WITHIN).await.is_err() || auditor.sweep(WITHIN).await.is_err() {
        assert!(world.clock.now().since(begun) < WITHIN, "still fenced");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.cluster.restart_master();
    let options = LossAudit {
        read_only: false,
        wait: true,
        ..LossAudit::default()
    };
    auditor.audit_losses(options, WITHIN).await.expect("a report");
    assert_eq!(told(&mut mine, 3).await.len(), 3);
}

#[tokio::test]
async fn a_store_whose_name_begins_alike_is_another_store() {
    let world = World::new();
    let store = world.open().await;
    let other = StoreId::new("s/2").expect("a name");
    let config = FeatureConfig {
        store: other.clone(),
        ..world.config()
    };
    let index = world.index_of(&other, world.txn_store.client());
    let beside = FeatureStore::open(
        world.cluster.connect(),
        index,
        config,
        world.clock.clone(),
        Arc::new(tensorhold_core::SystemRng),
    )
    .await
    .expect("a store");
    put_many(&beside, 0, 3).await;
    let before = world.cluster.objects();
    let report = store
        .audit_orphans(
            OrphanAudit {
                force: true,
                ..repair()
            },
            WITHIN,
        )
        .await
        .expect("a report");
    assert_eq!(found(&report), (0, 0, 0, 0), "{report:?}");
    assert_eq!(world.cluster.objects(), before);
}
