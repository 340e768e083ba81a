//! Objects under a page's key that are not the page: refused, removed, and put again.

use std::sync::Arc;

use tensorhold_engine::{FaultEngine, FaultPlan};
use tensorhold_kvcache::tier::{FOOTER_BYTES, Hint, PageDefect, PageGot, PagePut, PageStore, StoreConfig};

use crate::common::*;

const BYTES: usize = 3000;
/// Directly from the pages' memory, and through frames.
const WAYS: [usize; 2] = [0, 3];

struct World {
    wayward: Arc<Wayward>,
    store: PageStore,
    pool: Pool,
}

/// A store with one good page, under key 0.
fn world(staging_frames: usize) -> World {
    let wayward = Wayward::new(cluster(64).connect());
    let config = StoreConfig {
        staging_frames,
        ..small_calls()
    };
    let store = store_on(wayward.clone(), config);
    let pool = Pool::new(&*wayward, 2, BYTES);
    pool.write(0, &pattern(BYTES, 0));
    assert_eq!(store.put(&[pool.page(0, name(0))], &all()).prefix(), 1);
    World { wayward, store, pool }
}

impl World {
    fn get(&self) -> PageGot {
        self.pool.spoil();
        self.store.get(&[self.pool.page(0, name(0))], &all()).pages.remove(0)
    }

    fn put(&self) -> PagePut {
        self.pool.write(0, &pattern(BYTES, 0));
        self.store.put(&[self.pool.page(0, name(0))], &all()).pages.remove(0)
    }

    fn is_good(&self) {
        assert!(self.put().is_stored());
        assert!(self.get().is_loaded());
        assert!(self.pool.read(0) == pattern(BYTES, 0));
    }

    fn stored(&self) -> Vec<u8> {
        raw(&*self.wayward, &name(0), BYTES + FOOTER_BYTES)
    }
}

#[test]
fn a_short_object_is_refused_and_makes_way() {
    for frames in WAYS {
        a_short_object_is_refused_and_makes_way_by(&world(frames));
    }
}

#[test]
fn a_short_object_that_only_a_probe_has_seen_makes_way() {
    let world = world(0);
    let whole = world.stored();
    let hits = || world.store.prefix_hits(&[name(0)], Some(BYTES as u64), None, WITHIN);
    assert_eq!(hits().expect("an answer"), 1);
    replace(&*world.wayward, &name(0), &whole[..whole.len() - 64]);
    assert_eq!(hits().expect("an answer"), 0, "it does not count");
    assert!(world.put().is_stored());
    assert_eq!(hits().expect("an answer"), 1, "it was put anew");
    assert!(world.get().is_loaded() && world.pool.read(0) == pattern(BYTES, 0));
}

/// The caller may be the one that is wrong.
#[test]
fn a_caller_that_expects_another_length_harms_no_page() {
    let world = world(0);
    world.stored();
    let hits = |bytes: usize| world.store.prefix_hits(&[name(0)], Some(bytes as u64), None, WITHIN);
    assert_eq!(hits(BYTES - 1).expect("an answer"), 0);
    assert_eq!(hits(BYTES).expect("an answer"), 1);
    assert!(world.store.exists(&[name(0)], WITHIN).expect("an answer")[0].is_present(None));
    assert!(world.put().is_stored());
    assert_eq!(world.store.stats().bad_pages_removed, 0);
    assert!(world.get().is_loaded() && world.pool.read(0) == pattern(BYTES, 0));
}

fn a_short_object_is_refused_and_makes_way_by(world: &World) {
    let whole = world.stored();
    for len in [1, FOOTER_BYTES, BYTES - 1, BYTES, BYTES + FOOTER_BYTES - 1] {
        replace(&*world.wayward, &name(0), &whole[..len]);
        let got = world.get();
        let PageGot::WrongLength { stored, expected } = got else {
            panic!("{len}: {got:?}")
        };
        assert_eq!((stored, expected), (len as u64, (BYTES + FOOTER_BYTES) as u64));
        assert!(matches!(world.get(), PageGot::Miss), "it was removed");
        world.is_good();
    }
    assert_eq!(
        (
            world.store.stats().gets_wrong_length,
            world.store.stats().bad_pages_removed
        ),
        (5, 5)
    );
}

#[test]
fn flipped_bytes_anywhere_are_refused() {
    for frames in WAYS {
        flipped_bytes_anywhere_are_refused_by(&world(frames));
    }
}

fn flipped_bytes_anywhere_are_refused_by(world: &World) {
    let whole = world.stored();
    for at in [
        0,
        1,
        BYTES / 2 - 1,
        BYTES / 2,
        BYTES - 1,
        BYTES,
        BYTES + 9,
        BYTES + 30,
        BYTES + 45,
        BYTES + 63,
    ] {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        replace(&*world.wayward, &name(0), &flipped);
        let got = world.get();
        assert!(matches!(got, PageGot::Corrupt(_)), "byte {at}: {got:?}");
        world.is_good();
    }
    let nothing = vec![0; whole.len()];
    replace(&*world.wayward, &name(0), &nothing);
    assert!(matches!(world.get(), PageGot::Corrupt(PageDefect::NotAPage)));
    assert_eq!(world.store.stats().gets_corrupt, 11);
}

#[test]
fn a_good_page_under_another_key_is_refused() {
    for frames in WAYS {
        a_good_page_under_another_key_is_refused_by(&world(frames));
    }
}

fn a_good_page_under_another_key_is_refused_by(world: &World) {
    world.pool.write(1, &pattern(BYTES, 1));
    assert_eq!(world.store.put(&[world.pool.page(1, name(1))], &all()).prefix(), 1);
    let other = raw(&*world.wayward, &name(1), BYTES + FOOTER_BYTES);
    replace(&*world.wayward, &name(0), &other);
    let got = world.get();
    assert!(matches!(got, PageGot::Corrupt(PageDefect::OtherKey)), "{got:?}");
    // Page 1's bytes with page 0's footer.
    world.is_good();
    let mut mixed = other;
    mixed[BYTES..].copy_from_slice(&world.stored()[BYTES..]);
    replace(&*world.wayward, &name(0), &mixed);
    let got = world.get();
    assert!(matches!(got, PageGot::Corrupt(PageDefect::Bytes)), "{got:?}");
    world.is_good();
}

#[test]
fn an_engine_that_says_loaded_and_brings_nothing_is_not_believed() {
    for frames in WAYS {
        an_engine_that_says_loaded_and_brings_nothing_is_not_believed_by(&world(frames));
    }
}

fn an_engine_that_says_loaded_and_brings_nothing_is_not_believed_by(world: &World) {
    // The right bytes are in the memory, and the right footer was there a moment ago.
    assert!(world.get().is_loaded());
    world.wayward.set(Mode::LoadsNothing);
    let got = world.store.get(&[world.pool.page(0, name(0))], &all());
    assert!(matches!(got.pages[..], [PageGot::Corrupt(_)]), "{got:?}");
}

#[test]
fn a_miss_after_a_hint_is_a_miss() {
    for frames in WAYS {
        a_miss_after_a_hint_is_a_miss_by(&world(frames));
    }
}

fn a_miss_after_a_hint_is_a_miss_by(world: &World) {
    world.wayward.set(Mode::AllPresent);
    let keys = [name(0), name(1)];
    assert_eq!(
        world
            .store
            .prefix_hits(&keys, Some(BYTES as u64), None, WITHIN)
            .expect("hints"),
        2
    );
    let pages = [world.pool.page(0, name(0)), world.pool.page(1, name(1))];
    let got = world.store.get(&pages, &all());
    assert!(got.prefix() == 1 && matches!(got.pages[1], PageGot::Miss), "{got:?}");
}

#[test]
fn a_wrong_page_that_cannot_be_removed_blocks_its_key_only_as_long_as_that() {
    for frames in WAYS {
        a_wrong_page_that_cannot_be_removed_blocks_its_key_only_as_long_as_that_by(&world(frames));
    }
}

fn a_wrong_page_that_cannot_be_removed_blocks_its_key_only_as_long_as_that_by(world: &World) {
    replace(&*world.wayward, &name(0), b"not a page");
    world.wayward.set(Mode::NoRemove);
    assert!(matches!(world.get(), PageGot::WrongLength { .. }));
    assert_eq!(world.store.stats().bad_pages_waiting, 1);
    assert_eq!(
        world.store.exists(&[name(0)], WITHIN).expect("hints"),
        [Hint::Absent],
        "it does not count"
    );
    let put = world.put();
    assert!(matches!(put, PagePut::Failed(_)), "nothing would be written: {put:?}");
    world.wayward.set(Mode::Pass);
    world.is_good();
    assert_eq!(world.store.stats().bad_pages_waiting, 0);
}

#[test]
fn short_reads_and_torn_bytes_on_the_way_are_refused() {
    let cluster = cluster(64);
    let plan = FaultPlan::new(3).with_short_read(300).with_torn_bytes(300);
    let engine = Arc::new(FaultEngine::new(cluster.connect(), plan, clock()));
    let store = store_on(engine.clone(), small_calls());
    let pool = Pool::new(&*engine, 40, BYTES);
    let pages: Vec<_> = (0..40).map(|n| pool.page(n, name(n))).collect();
    for n in 0..40 {
        pool.write(n, &pattern(BYTES, n.into()));
    }
    assert_eq!(store.put(&pages, &all()).prefix(), 40);
    pool.spoil();
    let got = store.get(&pages, &all());
    let mut seen = [0; 3];
    for (n, outcome) in (0..).zip(&got.pages) {
        match outcome {
            PageGot::Loaded => assert!(pool.read(n) == pattern(BYTES, n.into()), "page {n}"),
            PageGot::WrongLength { .. } => {}
            PageGot::Corrupt(_) => {}
            other => panic!("{other:?}"),
        }
        seen[match outcome {
            PageGot::Loaded => 0,
            PageGot::WrongLength { .. } => 1,
            _ => 2,
        }] += 1;
    }
    assert!(seen.iter().all(|count| *count > 3), "{seen:?}");
    assert_eq!(engine.faults().len(), seen[1] + seen[2], "each fault was noticed");
}
