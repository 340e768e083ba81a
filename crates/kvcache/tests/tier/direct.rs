//! Puts that bypass the frames.

use std::sync::Arc;

use tensorhold_engine::Engine;
use tensorhold_kvcache::tier::{CallOptions, Page, PageDefect, PageGot, PageStore, StoreConfig};

use crate::common::*;

const BYTES: usize = 3000;
const PAGES: u32 = 9;

fn store(engine: Arc<dyn Engine>, direct_put_bytes: usize) -> PageStore {
    let config = StoreConfig {
        staging_frames: 2,
        call_bytes: 4 * BYTES as u64,
        direct_put_bytes: Some(direct_put_bytes),
        ..small_calls()
    };
    store_on(engine, config)
}

fn filled(engine: &dyn Engine) -> (Pool, Vec<Page>) {
    let pool = Pool::new(engine, PAGES, BYTES);
    (0..PAGES).for_each(|n| pool.write(n, &pattern(BYTES, n.into())));
    let pages = (0..PAGES).map(|n| pool.page(n, name(n))).collect();
    (pool, pages)
}

fn come_back(store: &PageStore, pool: &Pool, pages: &[Page]) {
    assert_eq!(store.put(pages, &all()).prefix(), pages.len());
    pool.spoil();
    assert_eq!(store.get(pages, &all()).prefix(), pages.len());
    for n in 0..PAGES {
        assert!(pool.read(n) == pattern(BYTES, n.into()), "page {n}");
    }
}

#[test]
fn pages_put_past_the_frames_come_back_through_them() {
    let wayward = Wayward::new(cluster(64).connect());
    let store = store(wayward.clone(), BYTES / 2);
    let (pool, pages) = filled(&*wayward);
    come_back(&store, &pool, &pages);

    // The engine never gets the caller's memory for a get, however puts are done.
    pool.spoil();
    wayward.set(Mode::LateGet);
    let late = store.get(&pages[..4], &CallOptions::within(SOON));
    assert!(late.prefix() == 0 && late.settling.is_settled(), "{late:?}");
    wayward.let_go();
    assert!(pool.read(0) == vec![0xEE; BYTES], "nobody wrote there later");
}

#[test]
fn memory_that_is_used_again_under_a_late_put_is_never_served() {
    let wayward = Wayward::new(cluster(64).connect());
    let store = store(wayward.clone(), BYTES / 2);
    let (pool, pages) = filled(&*wayward);
    wayward.set(Mode::LatePut);
    let late = store.put(&pages[..2], &CallOptions::within(SOON));
    assert!(
        late.prefix() == 0 && !late.settling.is_settled(),
        "the engine has it: {late:?}"
    );
    pool.spoil();
    wayward.let_go();
    assert!(late.settling.wait(&*clock(), WITHIN));
    wayward.set(Mode::Pass);
    let got = store.get(&pages[..2], &all());
    assert!(
        got.pages
            .iter()
            .all(|page| matches!(page, PageGot::Corrupt(PageDefect::Bytes))),
        "{got:?}"
    );
    (0..PAGES).for_each(|n| pool.write(n, &pattern(BYTES, n.into())));
    come_back(&store, &pool, &pages);
}

#[test]
fn short_parts_and_memory_that_the_engine_does_not_know_go_through_frames() {
    let wayward = Wayward::new(cluster(64).connect());
    let short = store(wayward.clone(), BYTES / 2 + 1);
    let (pool, pages) = filled(&*wayward);
    wayward.set(Mode::LatePut);
    let late = short.put(&pages[..2], &CallOptions::within(SOON));
    assert!(
        late.prefix() == 0 && late.settling.is_settled(),
        "it has a frame: {late:?}"
    );
    wayward.let_go();
    wayward.set(Mode::Pass);
    come_back(&short, &pool, &pages);

    let direct = store(cluster(64).connect(), 1);
    let (pool, pages) = filled(&*cluster(64).connect());
    come_back(&direct, &pool, &pages);
}
