//! A tier with a key, and an attacker at the engine: pages that were planted, altered, cut or moved are misses, and
//! counted.

use std::sync::Arc;

use tensorhold_core::ErrorKind;
use tensorhold_engine::{Engine, MemoryCluster};
use tensorhold_kvcache::tier::{FOOTER_BYTES, Hint, PageDefect, PageGot, PageSeal, PageStore, StoreConfig};

use crate::common::*;

const BYTES: usize = 3000;

fn seal(first: u8) -> PageSeal {
    let key = std::array::from_fn(|n| first.wrapping_add(u8::try_from(n * 5).expect("small")));
    PageSeal::new(&key).expect("a seal")
}

struct World {
    cluster: Arc<MemoryCluster>,
    engine: Arc<dyn Engine>,
    store: PageStore,
    pool: Pool,
}

/// A sealed store with two good pages, under keys 0 and 1.
fn world() -> World {
    let cluster = cluster(64);
    let engine: Arc<dyn Engine> = cluster.connect();
    let store = store_on(Arc::clone(&engine), config(Some(seal(1))));
    let pool = Pool::new(&*engine, 2, BYTES);
    let world = World {
        cluster,
        engine,
        store,
        pool,
    };
    world.put();
    world
}

fn config(seal: Option<PageSeal>) -> StoreConfig {
    StoreConfig {
        staging_frames: 3,
        // In a plain store these puts would bypass the frames.
        direct_put_bytes: Some(1),
        seal,
        ..small_calls()
    }
}

impl World {
    fn put(&self) {
        for n in 0..2 {
            self.pool.write(n, &pattern(BYTES, u64::from(n)));
        }
        let pages = [self.pool.page(0, name(0)), self.pool.page(1, name(1))];
        assert_eq!(self.store.put(&pages, &all()).prefix(), 2);
    }

    fn get_from(&self, store: &PageStore) -> PageGot {
        self.pool.spoil();
        let got = store.get(&[self.pool.page(0, name(0))], &all()).pages.remove(0);
        let expected = if got.is_loaded() {
            pattern(BYTES, 0)
        } else {
            vec![0xEE; BYTES]
        };
        assert!(
            self.pool.read(0) == expected,
            "bytes that were not authenticated are nowhere"
        );
        got
    }

    fn get(&self) -> PageGot {
        self.get_from(&self.store)
    }

    /// The objects of the two pages.
    fn objects(&self) -> [tensorhold_core::ObjectKey; 2] {
        [0, 1].map(|n| seal(1).name(&name(n)).expect("a name"))
    }

    fn stored(&self, n: usize) -> Vec<u8> {
        raw(&*self.engine, &self.objects()[n], BYTES + FOOTER_BYTES)
    }
}

#[test]
fn pages_come_back_and_neither_bytes_nor_names_show() {
    let world = world();
    assert!(world.get().is_loaded());
    let mut objects = world.cluster.objects();
    objects.sort();
    let mut expected = world.objects();
    expected.sort();
    assert_eq!(objects, expected, "nothing else, and no name that anybody could guess");
    let plain = pattern(BYTES, 0);
    assert!(!world.stored(0).windows(16).any(|window| window == &plain[100..116]));
    let keys = [name(0), name(1), name(2)];
    assert_eq!(
        world
            .store
            .prefix_hits(&keys, Some(BYTES as u64), None, WITHIN)
            .expect("hits"),
        2
    );
    let hints = world.store.exists(&keys, WITHIN).expect("hints");
    assert!(hints[0].is_present(Some(BYTES as u64)) && hints[2] == Hint::Absent);
    // Another member with the key, and stores without it.
    assert!(
        world
            .get_from(&store_on(world.cluster.connect(), config(Some(seal(1)))))
            .is_loaded()
    );
    for stranger in [None, Some(seal(2))] {
        let theirs = store_on(world.cluster.connect(), config(stranger));
        assert!(matches!(world.get_from(&theirs), PageGot::Miss));
    }
}

#[test]
fn planted_altered_cut_and_moved_pages_are_refused_counted_and_removed() {
    let world = world();
    let (whole, other) = (world.stored(0), world.stored(1));
    let object = &world.objects()[0];
    // A page that a plain store would accept: the attacker knows name and tokens, and makes the checksum fit.
    let planted = {
        let plain = cluster(64).connect();
        let store = store_on(plain.clone(), small_calls());
        let pool = Pool::new(&*plain, 1, BYTES);
        pool.write(0, &pattern(BYTES, 7));
        assert_eq!(store.put(&[pool.page(0, object.clone())], &all()).prefix(), 1);
        raw(&*plain, object, BYTES + FOOTER_BYTES)
    };
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let attacks: [(&str, Vec<u8>, Option<PageDefect>); 8] = [
        ("planted", planted, Some(PageDefect::NotAPage)),
        ("altered at the start", flipped(0), Some(PageDefect::Seal)),
        ("altered at the end", flipped(BYTES - 1), Some(PageDefect::Seal)),
        ("another salt", flipped(BYTES + 30), Some(PageDefect::Seal)),
        ("another tag", flipped(BYTES + 45), Some(PageDefect::Seal)),
        ("another page's", other, Some(PageDefect::Seal)),
        ("cut", whole[..BYTES].to_vec(), None),
        ("nothing", vec![0; whole.len()], Some(PageDefect::NotAPage)),
    ];
    let (mut corrupt, mut wrong_length) = (0, 0);
    for (what, bytes, flaw) in attacks {
        replace(&*world.engine, object, &bytes);
        let got = world.get();
        match (&got, flaw) {
            (PageGot::Corrupt(found), Some(flaw)) if *found == flaw => corrupt += 1,
            (PageGot::WrongLength { .. }, None) => wrong_length += 1,
            _ => panic!("{what}: {got:?}"),
        }
        let stats = world.store.stats();
        assert_eq!(
            (stats.gets_corrupt, stats.gets_wrong_length),
            (corrupt, wrong_length),
            "{what}"
        );
        assert!(matches!(world.get(), PageGot::Miss), "{what}: it was removed");
        world.put();
        assert!(world.get().is_loaded(), "{what}: it was put anew");
    }
}

#[test]
fn without_frames_or_in_too_small_ones_nothing_is_sealed() {
    let engine = cluster(64).connect();
    let bare = StoreConfig {
        staging_frames: 0,
        ..config(Some(seal(1)))
    };
    let refused = PageStore::new(engine.clone(), bare, clock(), WITHIN).expect_err("no frames");
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    let small = StoreConfig {
        call_bytes: 1000,
        ..config(Some(seal(1)))
    };
    let store = store_on(engine.clone(), small);
    let pool = Pool::new(&*engine, 1, 20_000);
    let put = store.put(&[pool.page(0, name(0))], &all()).pages.remove(0);
    assert!(matches!(put, tensorhold_kvcache::tier::PagePut::Failed(_)), "{put:?}");
    let got = store.get(&[pool.page(0, name(0))], &all()).pages.remove(0);
    assert!(matches!(got, PageGot::Failed(_)), "{got:?}");
    assert_eq!(format!("{:?}", store.config().seal), "Some(PageSeal(hidden))");
}
