//! One bad record harms one record: a record that cannot be decoded is quarantined, one that a later release wrote is
//! left alone.
#![allow(clippy::expect_used, clippy::panic, reason = "a test says what it expects")]

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, Generation, Nonce, Result, SampleId, StoreId, SystemClock, SystemRng};
use tensorhold_custody::{GroupName, Publication, Reason};
use tensorhold_index::store::memory::MemoryStore;
use tensorhold_index::store::{Transaction, TxnStore, Write};
use tensorhold_index::{Commit, Index, IndexConfig, Quarantined, Reserve, SampleRef, Session, TxnIndex, Unreadable};

const CALL: Duration = Duration::from_secs(5);
/// Enough for one whole look at the ready list, on a machine that others use too.
const SOON: Duration = Duration::from_secs(1);

struct World {
    txn_store: MemoryStore,
    index: TxnIndex,
    session: Session,
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(SystemClock::new());
        let txn_store = MemoryStore::new(clock.clone());
        let store = StoreId::new("s").expect("a name");
        let index = TxnIndex::new(
            Arc::new(txn_store.client()),
            &store,
            IndexConfig::default(),
            clock.clone(),
            Arc::new(SystemRng),
        );
        let session = index.open_session(CALL).await.expect("a session");
        Self {
            txn_store,
            index,
            session,
        }
    }

    /// Writes what any client of the transactional store can write.
    async fn write(&self, key: &str, value: impl Into<Vec<u8>>) {
        let put = Transaction {
            writes: vec![Write::put(format!("s/{key}"), value)],
            ..Transaction::default()
        };
        self.txn_store.transact(&put, CALL).await.expect("a put");
    }

    async fn reserve(&self, name: &str) -> Result<SampleRef> {
        let item = Reserve {
            sample: id(name),
            nonce: Nonce::draw(&SystemRng),
            bytes: 10,
            plan: String::new(),
            claims: Vec::new(),
        };
        let generation = one(self.index.reserve(&self.session, &[item], CALL).await)?;
        Ok(SampleRef {
            sample: id(name),
            generation,
        })
    }

    async fn publish(&self, name: &str) -> SampleRef {
        let sample = self.reserve(name).await.expect("reserved");
        let commit = Commit {
            becomes: None,
            sample: sample.clone(),
            publication: Publication {
                groups: vec![group()],
                retain: false,
                max_attempts: 3,
            },
            description: b"{}".to_vec(),
        };
        one(self.index.commit(&self.session, &[commit], CALL).await).expect("committed");
        sample
    }

    async fn quarantined(&self) -> Vec<Quarantined> {
        self.index.quarantined(None, 1000, CALL).await.expect("a list")
    }

    async fn keys_in_quarantine(&self) -> Vec<String> {
        let all = self.quarantined().await;
        all.into_iter().map(|one| one.key).collect()
    }
}

fn id(name: &str) -> SampleId {
    SampleId::new(name).expect("a name")
}

fn group() -> GroupName {
    GroupName::new("g").expect("a name")
}

fn one<T>(mut results: Vec<T>) -> T {
    assert_eq!(results.len(), 1);
    results.pop().expect("one")
}

fn retired(generation: u64, more: &str) -> String {
    format!(
        r#"{{"generation":{generation},"nonce":5,"producer":1,"bytes":1,"readers":[],"reason":"Aborted","failed_frees":0{more}}}"#
    )
}

#[tokio::test]
async fn what_cannot_be_read_is_set_aside_and_everything_else_goes_on() {
    let world = World::new().await;
    let good = world.publish("good").await;
    let other = world.publish("other").await;
    one(world
        .index
        .retire(&world.session, std::slice::from_ref(&other), Reason::Aborted, CALL)
        .await)
    .expect("retired");
    let bad = [
        ("f/a/0000000000000001", "garbage".to_owned()),
        ("f/b/0000000000000001", retired(2, "")),
        ("f/no-generation", "{}".to_owned()),
        ("f/z/0000000000000001", r#"{"generation":1}"#.to_owned()),
        ("h/00000000000000aa/0000000000000001/x", "[1]".to_owned()),
        ("q/g/00/0000000000000001/nobody", "{".to_owned()),
    ];
    // A dead session, so that a sweep reads its grant lists.
    world.write("z/00000000000000aa", "").await;
    for (key, value) in &bad {
        world.write(key, value.as_bytes()).await;
    }
    let report = world.index.sweep(&world.session, 100, CALL).await.expect("swept");
    assert_eq!(report.quarantined, 1, "the note: {report:?}");
    let list = world.index.to_free(None, 100, CALL).await.expect("a list");
    assert_eq!((list.quarantined, list.later, list.next), (4, 0, None));
    let samples: Vec<SampleRef> = list.tasks.into_iter().map(|task| task.sample).collect();
    assert_eq!(samples, [other]);
    let held = world.index.lease_next(&world.session, &group(), 5, 10, CALL).await;
    assert_eq!(one(held.expect("taken")).sample, good);
    let expected: Vec<String> = bad.iter().map(|(key, _)| format!("s/{key}")).collect();
    assert_eq!(world.keys_in_quarantine().await, expected);
    for (which, (_, value)) in world.quarantined().await.iter().zip(&bad) {
        let bytes = world.index.quarantined_bytes(which, CALL).await.expect("kept");
        assert_eq!((bytes.as_slice(), which.bytes), (value.as_bytes(), value.len() as u64));
        assert!(!which.why.is_empty() && !which.in_place, "{which:?}");
    }
    assert_eq!(world.index.passed_over().quarantined, bad.len() as u64);
    // In parts, as well.
    let all = world.quarantined().await;
    let rest = world.index.quarantined(Some(&all[2]), 2, CALL).await.expect("a part");
    assert_eq!(rest, all[3..5]);
}

#[tokio::test]
async fn a_name_is_not_blocked_by_what_cannot_be_read_under_it() {
    let world = World::new().await;
    world.write("p/x", "garbage").await;
    world.write("s/x", "garbage").await;
    let sample = world.publish("x").await;
    assert_eq!(world.keys_in_quarantine().await, ["s/p/x", "s/s/x"]);
    world.write("s/x", "garbage again").await;
    let looked = world.index.look(&[id("x"), id("y")], CALL).await.expect("a look");
    assert_eq!(looked, [None, None], "what is in quarantine is not live");
    // The ready entry of that record is a stray now, and consumers must not try it for ever.
    let none = world.index.lease_next(&world.session, &group(), 1, 10, SOON).await;
    assert_eq!(none.expect("nothing waits").len(), 0);
    let error = one(world
        .index
        .retire(&world.session, &[sample], Reason::Aborted, CALL)
        .await);
    assert_eq!(error.expect_err("gone").kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn what_a_later_release_wrote_is_left_where_it_is() {
    let world = World::new().await;
    let sample = world.publish("good").await;
    let later = [
        ("f/a/0000000000000001", retired(1, r#","v":3"#)),
        ("p/x", r#"{"v":9,"all":"new"}"#.to_owned()),
        ("s/y", r#"{"v":9}"#.to_owned()),
    ];
    for (key, value) in &later {
        world.write(key, value.as_bytes()).await;
    }
    let report = world.index.sweep(&world.session, 100, CALL).await.expect("swept");
    assert_eq!(report.quarantined, 0);
    for _ in 0..2 {
        let list = world.index.to_free(None, 100, CALL).await.expect("a list");
        assert_eq!((list.tasks.len(), list.quarantined, list.later), (0, 0, 1));
    }
    let error = world.reserve("x").await.expect_err("of a later release");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = world
        .index
        .look(&[id("y")], CALL)
        .await
        .expect_err("of a later release");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let held = world.index.lease_next(&world.session, &group(), 1, 10, CALL).await;
    assert_eq!(one(held.expect("taken")).sample, sample);
    assert_eq!(world.quarantined().await, []);
    let left: Vec<String> = world.txn_store.dump().into_iter().map(|entry| entry.key).collect();
    for (key, _) in later {
        assert!(left.contains(&format!("s/{key}")), "{key} is left");
    }
    assert_eq!(world.index.passed_over().later, 1, "told of once");
}

#[tokio::test]
async fn a_take_looks_behind_what_only_a_later_release_can_take() {
    let world = World::new().await;
    let index = &world.index;
    // So many that the first read of every shard shows nothing else.
    let mut copies = Vec::new();
    for n in 1..=1500_u64 {
        let sample = world.publish(&format!("later-{n}")).await;
        copies.push(sample);
    }
    for entry in world.txn_store.dump() {
        if entry.key.starts_with("s/q/") || entry.key.starts_with("s/s/") {
            let text = String::from_utf8(entry.value).expect("text");
            let later = text.replacen('{', r#"{"v":3,"#, 1);
            world.write(entry.key.strip_prefix("s/").expect("ours"), later).await;
        }
    }
    let good = world.publish("good").await;
    let held = index.lease_next(&world.session, &group(), 1, 10, CALL).await;
    assert_eq!(one(held.expect("taken")).sample, good);
    let none = index.lease_next(&world.session, &group(), 1, 10, SOON).await;
    assert_eq!(none.expect("nothing else can be taken").len(), 0);
    assert_eq!(world.quarantined().await, []);
}

#[tokio::test]
async fn notes_that_stay_do_not_keep_sweeps_from_those_behind_them() {
    let world = World::new().await;
    let index = &world.index;
    // Ten reservations of a later release, each with a grant list, and one of ours behind them, all of a dead
    // session.
    world.write("z/00000000000000aa", "").await;
    for n in 0..10 {
        world.write(&format!("p/later-{n}"), r#"{"v":3}"#).await;
        let note = format!(r#"{{"reserved":["later-{n}"]}}"#);
        world.write(&format!("h/00000000000000aa/{n:016x}/a"), note).await;
    }
    world
        .write(
            "p/ours",
            r#"{"generation":7,"nonce":5,"session":170,"bytes":1,"until":1,"plan":""}"#,
        )
        .await;
    world
        .write("h/00000000000000aa/00000000000000ff/a", r#"{"reserved":["ours"]}"#)
        .await;
    let mut abandoned = 0;
    for _ in 0..6 {
        let report = index.sweep(&world.session, 3, CALL).await.expect("swept");
        assert!(report.looked_at <= 3, "{report:?}");
        abandoned += report.abandoned;
    }
    assert_eq!(abandoned, 1);
    assert_eq!(world.quarantined().await, []);
    let notes = world
        .txn_store
        .dump()
        .into_iter()
        .filter(|entry| entry.key.starts_with("s/h/"));
    assert_eq!(notes.count(), 10, "for processes of the later release");
}

#[tokio::test]
async fn lost_samples_of_a_later_release_do_not_keep_sweeps_from_those_behind_them() {
    let world = World::new().await;
    let index = &world.index;
    world.write("t", "100").await;
    for n in 1..=10 {
        let later = retired(n, &format!(r#","kept":{n},"v":3"#));
        world.write(&format!("l/{n:016x}/later/{n:016x}"), later).await;
    }
    world
        .write("l/0000000000000014/ours/000000000000000b", retired(11, r#","kept":20"#))
        .await;
    let mut sweeps = 0;
    loop {
        sweeps += 1;
        let report = index.sweep(&world.session, 3, CALL).await.expect("swept");
        if !report.more {
            break;
        }
        assert!(sweeps < 10, "sweeps end when all was looked at");
    }
    assert_eq!(sweeps, 4, "three at a time");
    let list = index.to_free(None, 100, CALL).await.expect("a list");
    assert_eq!(one(list.tasks).sample.sample, id("ours"));
    let kept = world
        .txn_store
        .dump()
        .into_iter()
        .filter(|entry| entry.key.starts_with("s/l/"));
    assert_eq!(kept.count(), 10, "for processes of the later release");
}

#[tokio::test]
async fn the_list_of_quarantine_ends_whatever_lies_in_it() {
    let world = World::new().await;
    let info = r#"{"why":"planted","bytes":1}"#;
    // The version is not written as we write it; the second is of no record.
    for key in ["x/i/s/a/7", "x/i/s/b", "x/i/s/c/0000000000000009", "x/i/s/d/+8"] {
        world.write(key, info).await;
    }
    let mut listed: Vec<Quarantined> = Vec::new();
    for _ in 0..10 {
        let part = world.index.quarantined(listed.last(), 1, CALL).await.expect("a part");
        if part.is_empty() {
            break;
        }
        listed.extend(part);
    }
    assert_eq!(one(listed).key, "s/s/c");
}

#[tokio::test]
async fn what_is_too_long_to_be_moved_is_marked_and_passed() {
    let world = World::new().await;
    let sample = world.publish("good").await;
    let long = world.txn_store.limits().bytes - 40;
    world.write("f/a/0000000000000001", vec![b'x'; long]).await;
    for _ in 0..2 {
        let list = world.index.to_free(None, 100, CALL).await.expect("a list");
        assert_eq!((list.tasks.len(), list.next), (0, None));
    }
    let marked = one(world.quarantined().await);
    assert!(marked.in_place, "{marked:?}");
    let bytes = world.index.quarantined_bytes(&marked, CALL).await.expect("kept");
    assert_eq!(bytes.len(), long);
    let held = world.index.lease_next(&world.session, &group(), 1, 10, CALL).await;
    assert_eq!(one(held.expect("taken")).sample, sample);
}

#[tokio::test]
async fn a_list_of_long_records_comes_in_parts() {
    let world = World::new().await;
    for n in 1..=40_u64 {
        let mut value = retired(n, "").into_bytes();
        value.push(0);
        value.extend(vec![b'd'; 1_000_000]);
        world.write(&format!("f/a{n:02}/{n:016x}"), value).await;
    }
    let (mut place, mut seen, mut parts) = (None, 0, 0);
    loop {
        let list = world.index.to_free(place.as_ref(), 1000, CALL).await.expect("a part");
        let bytes: usize = list
            .tasks
            .iter()
            .filter_map(|task| task.description.as_ref())
            .map(Vec::len)
            .sum();
        assert!(bytes <= 16_000_000, "{bytes} bytes at once");
        (seen, parts) = (seen + list.tasks.len(), parts + 1);
        place = list.next;
        if place.is_none() {
            break;
        }
    }
    assert_eq!(seen, 40);
    assert!(parts > 2, "{parts} parts");
}

#[tokio::test]
async fn samples_whose_description_cannot_be_read_are_set_aside_as_a_whole() {
    let world = World::new().await;
    let (live, retired) = (world.publish("live").await, world.publish("retired").await);
    one(world
        .index
        .retire(&world.session, std::slice::from_ref(&retired), Reason::Aborted, CALL)
        .await)
    .expect("retired");
    let why = "its description makes no sense".to_owned();
    let unreadable = |sample: &SampleRef| Unreadable {
        sample: sample.clone(),
        why: why.clone(),
    };
    let older = SampleRef {
        sample: id("live"),
        generation: Generation::new(1).expect("not zero"),
    };
    let items = [unreadable(&live), unreadable(&retired), unreadable(&older)];
    let moved: Vec<bool> = world
        .index
        .quarantine(&items, CALL)
        .await
        .into_iter()
        .map(|moved| moved.expect("an answer"))
        .collect();
    assert_eq!(moved, [true, true, false]);
    let listed = world.quarantined().await;
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|one| one.why == why));
    let none = world.index.lease_next(&world.session, &group(), 1, 10, SOON).await;
    assert_eq!(none.expect("nothing waits").len(), 0);
    assert_eq!(world.index.to_free(None, 10, CALL).await.expect("a list").tasks, []);
}

#[tokio::test]
async fn a_request_or_a_deposit_that_cannot_be_read_does_not_stop_the_quota() {
    let world = World::new().await;
    world.index.set_budget(100, CALL).await.expect("a budget");
    let session = world.index.open_session(CALL).await.expect("a session");
    for key in [
        "b/w/nobody",
        "b/w/0000000000000007",
        "b/a/nobody",
        "b/a/0000000000000008",
    ] {
        world.write(key, "garbage").await;
    }
    let report = world.index.sweep(&session, 100, CALL).await.expect("swept");
    assert_eq!(report.quarantined, 4, "{report:?}");
    let item = Reserve {
        sample: id("x"),
        nonce: Nonce::draw(&SystemRng),
        bytes: 60,
        plan: String::new(),
        claims: Vec::new(),
    };
    let generation = one(world.index.reserve(&session, std::slice::from_ref(&item), CALL).await).expect("reserved");
    let sample = SampleRef {
        sample: id("x"),
        generation,
    };
    one(world.index.abort(&session, std::slice::from_ref(&sample), CALL).await).expect("aborted");
    one(world.index.freed(&session, &[sample], CALL).await).expect("freed");
    one(world.index.reserve(&session, &[item], CALL).await).expect("reserved again");
}

/// Any client can write deposits: many bytes are no more than all bytes. And a request in the queue that is larger than any
/// of ours keeps neither the others nor the sweep from going on.
#[tokio::test]
async fn foreign_deposits_and_requests_do_not_stop_the_quota() {
    let world = World::new().await;
    world.index.set_budget(100, CALL).await.expect("a budget");
    let session = world.index.open_session(CALL).await.expect("a session");
    for number in 0..3 {
        world
            .write(&format!("b/a/foreign-{number}"), u64::MAX.to_string())
            .await;
    }
    let samples: Vec<String> = (0..500)
        .map(|n| format!(r#"{{"sample":"huge-{n}","nonce":1,"bytes":0}}"#))
        .collect();
    let huge = format!(r#"{{"samples":[{}]}}"#, samples.join(","));
    world.write("b/w/0000000000000009", huge).await;
    world.index.sweep(&session, 100, CALL).await.expect("swept");
    let item = |name: &str, bytes| Reserve {
        sample: id(name),
        nonce: Nonce::draw(&SystemRng),
        bytes,
        plan: String::new(),
        claims: Vec::new(),
    };
    one(world.index.reserve(&session, &[item("x", 90)], CALL).await).expect("reserved");
    one(world.index.reserve(&session, &[item("y", 90)], CALL).await).expect("from what others wrote");
}

/// Requests that no process of ours writes: for a session that has ended, with a sample twice, under two names of one
/// session, with a plan that no transaction holds. None stops a sweep, a free or a reservation.
#[tokio::test]
async fn foreign_requests_that_could_never_be_served_do_not_stop_the_quota() {
    let world = World::new().await;
    world.index.set_budget(100, CALL).await.expect("a budget");
    let session = world.index.open_session(CALL).await.expect("a session");
    let item = |name: &str, bytes| Reserve {
        sample: id(name),
        nonce: Nonce::draw(&SystemRng),
        bytes,
        plan: String::new(),
        claims: Vec::new(),
    };
    let want = |name: &str, plan: &str| format!(r#"{{"sample":"{name}","nonce":1,"bytes":0,"plan":"{plan}"}}"#);
    let request = |samples: &[String]| format!(r#"{{"samples":[{}]}}"#, samples.join(","));
    let alive = session.id().0;
    let foreign = [
        ("b/w/0000000000000009".to_owned(), request(&[want("dead", "")])),
        ("b/w/9".to_owned(), request(&[want("short", "")])),
        (
            format!("b/w/{alive:016x}"),
            request(&[want("twice", ""), want("twice", "")]),
        ),
        (
            "b/w/000000000000000a".to_owned(),
            request(&[want("long", &"x".repeat(900_000))]),
        ),
        ("b/w/000000000000000b".to_owned(), request(&[])),
    ];
    for (key, value) in [
        (
            "b/w/000000000000000c",
            request(&[want("one", "").replace(":0,", ":10,")]),
        ),
        (
            "b/w/000000000000000d",
            request(&[want("two", "").replace(":0,", ":10,")]),
        ),
    ] {
        world.write(key, value).await;
    }
    let sweep = world.index.sweep(&session, 100, CALL);
    assert_eq!(sweep.await.expect("swept").quarantined, 2, "two at once");
    for (key, value) in &foreign {
        let generation = one(world.index.reserve(&session, &[item("x", 60)], CALL).await).expect("reserved");
        let sample = SampleRef {
            sample: id("x"),
            generation,
        };
        one(world.index.abort(&session, std::slice::from_ref(&sample), CALL).await).expect("aborted");
        world.write(key, value.clone()).await;
        one(world.index.freed(&session, &[sample], CALL).await).expect("freed");
        let report = world.index.sweep(&session, 100, CALL).await.expect("swept");
        assert_eq!(report.quarantined, 1, "{key}: {report:?}");
    }
}
