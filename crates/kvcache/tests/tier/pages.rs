//! The page store when nothing, or only time, goes wrong.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::ErrorKind;
use tensorhold_engine::{Engine, FaultEngine, FaultPlan, MemoryCluster, MemoryConfig};
use tensorhold_kvcache::tier::{CallOptions, FOOTER_BYTES, Hint, Page, PageGot, PagePut, Stop, StoreConfig};

use crate::common::*;

const BYTES: usize = 3000;

fn pages(pool: &Pool, count: u32) -> Vec<Page> {
    (0..count).map(|n| pool.page(n, name(n))).collect()
}

fn fill(pool: &Pool, count: u32) {
    for n in 0..count {
        pool.write(n, &pattern(BYTES, n.into()));
    }
}

fn check(pool: &Pool, count: u32) {
    for n in 0..count {
        assert!(pool.read(n) == pattern(BYTES, n.into()), "page {n}");
    }
}

#[test]
fn pages_come_back_byte_by_byte_and_are_one_object_each() {
    let cluster = cluster(64);
    let engine: Arc<dyn Engine> = cluster.connect();
    let store = store_on(Arc::clone(&engine), small_calls());
    let pool = Pool::new(&*engine, 23, BYTES);
    fill(&pool, 23);
    let put = store.put(&pages(&pool, 23), &all());
    assert!(
        put.pages.iter().all(PagePut::is_stored) && put.settling.is_settled(),
        "{put:?}"
    );
    assert_eq!(cluster.objects().len(), 23);
    pool.spoil();
    let got = store.get(&pages(&pool, 23), &all());
    assert_eq!((got.prefix(), got.settling.is_settled()), (23, true), "{got:?}");
    check(&pool, 23);
    let stats = store.stats();
    assert_eq!((stats.pages_stored, stats.pages_loaded), (23, 23));
    assert_eq!(
        (stats.bytes_stored, stats.bytes_loaded),
        (23 * BYTES as u64, 23 * BYTES as u64)
    );
}

#[test]
fn presence_is_told_with_the_length_and_a_prefix_ends_at_the_first_gap() {
    let engine: Arc<dyn Engine> = cluster(64).connect();
    let store = store_on(Arc::clone(&engine), small_calls());
    let pool = Pool::new(&*engine, 6, BYTES);
    let some: Vec<Page> = [0, 1, 2, 4].iter().map(|n| pool.page(*n, name(*n))).collect();
    assert_eq!(store.put(&some, &all()).prefix(), 4);
    let keys: Vec<_> = (0..6).map(name).collect();
    let there = Hint::Present {
        bytes: BYTES as u64,
        in_dram: true,
    };
    let hints = store.exists(&keys, WITHIN).expect("hints");
    assert_eq!(hints, [there, there, there, Hint::Absent, there, Hint::Absent]);
    let hits = |bytes| store.prefix_hits(&keys, bytes, None, WITHIN).expect("hits");
    assert_eq!((hits(None), hits(Some(BYTES as u64)), hits(Some(1))), (3, 3, 0));
    assert_eq!(
        store.prefix_hits(&keys[3..], None, None, WITHIN).expect("hits"),
        0,
        "the head is missing"
    );
    assert_eq!(store.prefix_hits(&[], None, None, WITHIN).expect("hits"), 0);
}

#[test]
fn a_page_that_is_there_already_is_success_and_one_named_twice_is_put_once_and_got_twice() {
    let cluster = cluster(64);
    let engine: Arc<dyn Engine> = cluster.connect();
    let store = store_on(Arc::clone(&engine), small_calls());
    let pool = Pool::new(&*engine, 4, BYTES);
    pool.write(0, &pattern(BYTES, 0));
    pool.write(1, &pattern(BYTES, 0));
    let twice = [pool.page(0, name(0)), pool.page(1, name(0))];
    assert_eq!(store.put(&twice, &all()).prefix(), 2);
    assert_eq!(store.put(&twice, &all()).prefix(), 2);
    assert_eq!((cluster.objects().len(), store.stats().pages_stored), (1, 2));
    let got = store.get(&[pool.page(2, name(0)), pool.page(3, name(0))], &all());
    assert_eq!(got.prefix(), 2);
    assert!(pool.read(2) == pattern(BYTES, 0) && pool.read(3) == pattern(BYTES, 0));
}

#[test]
fn a_full_engine_makes_room_or_says_so() {
    let config = MemoryConfig {
        segment_bytes: 1 << 20,
        eviction_ratio: 50,
        ..MemoryConfig::default()
    };
    let engine: Arc<dyn Engine> = MemoryCluster::new(config, clock()).connect();
    let config = StoreConfig {
        full_pause: Duration::from_millis(15),
        ..small_calls()
    };
    let store = store_on(Arc::clone(&engine), config);
    const LARGE: usize = 100_000;
    let pool = Pool::new(&*engine, 30, LARGE);
    let pages: Vec<_> = (0..30).map(|n| pool.page(n, name(n))).collect();
    let put = store.put(&pages, &all());
    assert!(put.pages.iter().all(PagePut::is_stored), "old pages make way: {put:?}");
    let got = store.get(&pages, &all());
    let loaded = got.pages.iter().filter(|page| page.is_loaded()).count();
    let missed = got.pages.iter().filter(|page| matches!(page, PageGot::Miss)).count();
    assert_eq!(loaded + missed, 30);
    assert!(loaded > 0 && missed > 0);
    // What was just read is kept by its lease, and there is no room beside it for something this large.
    let huge = Pool::new(&*engine, 1, 2 << 20);
    let put = store.put(&[huge.page(0, key("huge"))], &all());
    assert!(matches!(put.pages[..], [PagePut::Full]), "{put:?}");
}

#[test]
fn only_a_prefix_is_read_if_only_a_prefix_is_wanted() {
    let engine: Arc<dyn Engine> = cluster(64).connect();
    let store = store_on(
        Arc::clone(&engine),
        StoreConfig {
            lanes: 1,
            ..small_calls()
        },
    );
    let pool = Pool::new(&*engine, 20, BYTES);
    fill(&pool, 20);
    let mut stored = pages(&pool, 20);
    stored.remove(5);
    assert_eq!(store.put(&stored, &all()).prefix(), 19);
    let options = CallOptions {
        prefix_only: true,
        ..all()
    };
    let got = store.get(&pages(&pool, 20), &options);
    assert_eq!(got.prefix(), 5);
    assert!(matches!(got.pages[5], PageGot::Miss));
    assert!(got.pages[6].is_loaded(), "of the same call");
    assert!(
        got.pages[8..].iter().all(|page| matches!(page, PageGot::Skipped)),
        "{got:?}"
    );
    let stop = Stop::default();
    stop.stop();
    let options = CallOptions { stop, ..all() };
    let got = store.get(&pages(&pool, 2), &options);
    assert!(got.pages.iter().all(|page| matches!(page, PageGot::Skipped)));
    let put = store.put(&pages(&pool, 2), &options);
    assert!(put.pages.iter().all(|page| matches!(page, PagePut::Skipped)));
}

#[test]
fn what_nobody_could_do_is_refused_page_by_page() {
    let engine: Arc<dyn Engine> = cluster(64).connect();
    let store = store_on(Arc::clone(&engine), small_calls());
    let pool = Pool::new(&*engine, 2, BYTES);
    let other: Arc<dyn Engine> = cluster(64).connect();
    let foreign = Pool::new(&*other, 1, BYTES);
    let empty = Page::new(key("empty"), Vec::new());
    let put = store.put(&[pool.page(0, name(0)), empty.clone()], &all());
    assert!(put.pages[0].is_stored(), "{put:?}");
    let PagePut::Failed(error) = &put.pages[1] else {
        panic!("{put:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(matches!(store.get(&[empty], &all()).pages[..], [PageGot::Failed(_)]));
    let put = store.put(&[foreign.page(0, name(1))], &all());
    assert!(
        matches!(put.pages[..], [PagePut::Failed(_)]),
        "memory of another engine: {put:?}"
    );
    assert!(store.put(&[], &all()).pages.is_empty() && store.get(&[], &all()).pages.is_empty());
    let none = CallOptions::within(Duration::ZERO);
    assert!(matches!(
        store.get(&[pool.page(0, name(0))], &none).pages[..],
        [PageGot::Failed(_)]
    ));
}

#[test]
fn more_pages_under_way_than_footers_is_a_failure_and_no_panic() {
    let engine: Arc<dyn Engine> = cluster(64).connect();
    let config = StoreConfig {
        footer_slots: 4,
        ..small_calls()
    };
    let store = store_on(Arc::clone(&engine), config.clone());
    let pool = Pool::new(&*engine, 8, BYTES);
    let put = store.put(&pages(&pool, 8), &all());
    for page in &put.pages {
        match page {
            PagePut::Stored => {}
            PagePut::Failed(error) => assert_eq!(error.kind(), ErrorKind::Capacity),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(store.put(&pages(&pool, 4), &all()).prefix(), 4, "they are free again");
    assert!(
        tensorhold_kvcache::tier::PageStore::new(
            engine,
            StoreConfig {
                footer_slots: 3,
                ..config
            },
            clock(),
            WITHIN
        )
        .is_err()
    );
}

#[test]
fn lost_replies_fail_and_never_count_as_stored() {
    let cluster = cluster(64);
    let plan = FaultPlan::new(1).with_lost_reply(1000);
    let engine = Arc::new(FaultEngine::new(cluster.connect(), plan, clock()));
    let store = store_on(engine.clone(), small_calls());
    let pool = Pool::new(&*engine, 2, BYTES);
    let put = store.put(&pages(&pool, 2), &all());
    assert!(
        put.pages.iter().all(|page| matches!(page, PagePut::Failed(_))),
        "KV23: {put:?}"
    );
    assert_eq!(cluster.objects().len(), 2, "though they were written");
    engine.pause();
    assert_eq!(store.put(&pages(&pool, 2), &all()).prefix(), 2);
}

#[test]
fn a_late_get_keeps_its_memory_and_says_when_it_lets_go() {
    let wayward = Wayward::new(cluster(64).connect());
    let store = store_on(wayward.clone(), small_calls());
    let pool = Pool::new(&*wayward, 2, BYTES);
    fill(&pool, 2);
    assert_eq!(store.put(&pages(&pool, 2), &all()).prefix(), 2);
    pool.spoil();
    wayward.set(Mode::LateGet);
    let got = store.get(&pages(&pool, 2), &CallOptions::within(SOON));
    assert!(
        got.pages.iter().all(|page| matches!(page, PageGot::Failed(_))),
        "{got:?}"
    );
    assert!(!got.settling.is_settled(), "somebody may still write there");
    assert!(!got.settling.wait(&*clock(), SOON));
    wayward.let_go();
    assert!(got.settling.wait(&*clock(), WITHIN));
    check(&pool, 2);
}

#[test]
fn a_late_get_never_overwrites_a_later_get_into_the_same_pages() {
    let wayward = Wayward::new(cluster(64).connect());
    let store = store_on(wayward.clone(), small_calls());
    // Another store of the same process, whose pages pass through frames.
    let framed = StoreConfig {
        staging_frames: 2,
        ..small_calls()
    };
    let framed = store_on(wayward.clone(), framed);
    let pool = Pool::new(&*wayward, 4, BYTES);
    fill(&pool, 4);
    assert_eq!(store.put(&pages(&pool, 4), &all()).prefix(), 4);
    pool.spoil();
    wayward.set(Mode::LateGet);
    let late = store.get(&pages(&pool, 2), &CallOptions::within(SOON));
    assert!(late.prefix() == 0 && !late.settling.is_settled(), "{late:?}");
    wayward.set(Mode::NoRemove);

    // Pages 2 and 3 into the memory of pages 0 and 1.
    let again = [pool.page(0, name(2)), pool.page(1, name(3))];
    for store in [&store, &framed] {
        let got = store.get(&again, &CallOptions::within(SOON));
        let busy = |page: &PageGot| matches!(page, PageGot::Failed(error) if error.fact("used_by") == Some("kv.get"));
        assert!(got.pages.iter().all(busy), "{got:?}");
        let put = store.put(&again[..1], &CallOptions::within(SOON));
        let PagePut::Failed(error) = &put.pages[0] else {
            panic!("{put:?}")
        };
        assert_eq!(
            (error.kind(), error.fact("which")),
            (ErrorKind::Unavailable, Some("writes")),
            "{error}"
        );
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get(&again, &all()).prefix());
        wayward.let_go();
        assert_eq!(
            waiting.join().expect("no panic"),
            2,
            "its turn comes when the late call has ended"
        );
    });
    assert!(late.settling.is_settled());
    assert!(pool.read(0) == pattern(BYTES, 2) && pool.read(1) == pattern(BYTES, 3));
}

#[test]
fn a_late_put_keeps_its_footer_until_it_is_done() {
    let wayward = Wayward::new(cluster(64).connect());
    let config = StoreConfig {
        footer_slots: 4,
        ..small_calls()
    };
    let store = store_on(wayward.clone(), config);
    let pool = Pool::new(&*wayward, 4, BYTES);
    fill(&pool, 4);
    wayward.set(Mode::LatePut);
    let late = store.put(&pages(&pool, 4), &CallOptions::within(SOON));
    assert!(late.prefix() == 0 && !late.settling.is_settled(), "{late:?}");
    wayward.set(Mode::NoRemove);
    let now = store.put(&[pool.page(0, key("other"))], &all());
    let PagePut::Failed(error) = &now.pages[0] else {
        panic!("{now:?}")
    };
    assert_eq!(error.kind(), ErrorKind::Capacity, "no footer is used twice");
    wayward.let_go();
    assert!(late.settling.wait(&*clock(), WITHIN));
    pool.spoil();
    assert_eq!(store.get(&pages(&pool, 4), &all()).prefix(), 4);
    check(&pool, 4);
}

#[test]
fn an_object_is_the_page_and_its_footer() {
    let engine: Arc<dyn Engine> = cluster(64).connect();
    let store = store_on(Arc::clone(&engine), small_calls());
    let pool = Pool::new(&*engine, 1, BYTES);
    fill(&pool, 1);
    let page = pool.page(0, name(0));
    assert_eq!(page.stored_bytes(), (BYTES + FOOTER_BYTES) as u64);
    assert_eq!(store.put(std::slice::from_ref(&page), &all()).prefix(), 1);
    let raw = raw(&*engine, &name(0), BYTES + FOOTER_BYTES);
    assert!(raw[..BYTES] == pattern(BYTES, 0));
    assert_eq!(&raw[BYTES..BYTES + 8], b"THKVPAGE");
}

#[test]
fn through_frames_pages_come_back_and_a_late_call_never_has_the_callers_memory() {
    let wayward = Wayward::new(cluster(64).connect());
    let config = StoreConfig {
        staging_frames: 3,
        call_bytes: 4 * BYTES as u64,
        ..small_calls()
    };
    let store = store_on(wayward.clone(), config);
    let pool = Pool::new(&*wayward, 23, BYTES);
    fill(&pool, 23);
    assert_eq!(store.put(&pages(&pool, 23), &all()).prefix(), 23);
    pool.spoil();
    assert_eq!(store.get(&pages(&pool, 23), &all()).prefix(), 23);
    check(&pool, 23);
    let raw = raw(&*wayward, &name(0), BYTES + FOOTER_BYTES);
    assert!(raw[..BYTES] == pattern(BYTES, 0), "the object is the same either way");

    pool.spoil();
    wayward.set(Mode::LateGet);
    let got = store.get(&pages(&pool, 4), &CallOptions::within(SOON));
    assert!(got.prefix() == 0 && got.settling.is_settled(), "{got:?}");
    wayward.let_go();
    assert!(pool.read(0) == vec![0xEE; BYTES], "nobody wrote there later");
    assert_eq!(store.get(&pages(&pool, 23), &all()).prefix(), 23, "all frames are back");

    // A page that fits no frame goes from where it lies.
    let large = Pool::new(&*wayward, 1, 40 * BYTES);
    large.write(0, &pattern(40 * BYTES, 5));
    assert_eq!(store.put(&[large.page(0, key("large"))], &all()).prefix(), 1);
    large.spoil();
    assert_eq!(store.get(&[large.page(0, key("large"))], &all()).prefix(), 1);
    assert!(large.read(0) == pattern(40 * BYTES, 5));
}
