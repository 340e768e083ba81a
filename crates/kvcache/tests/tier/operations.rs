//! The tier: operations in, exactly one terminal event each out, whatever the engine does.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, SystemClock};
use tensorhold_engine::{Engine, EngineExt};
use tensorhold_kvcache::plan::{
    Completion, CopyAt, DevicePage, Failure, HostPage, KeyAt, Operation, OperationId, Work,
};
use tensorhold_kvcache::tier::{
    Cancelled, Copied, DeviceCopier, LaneConfig, MemoryCopier, Submitted, Tier, TierConfig, TierEvent,
};

use crate::common::*;

const BYTES: usize = 3000;
const PAGES: u32 = 24;

struct World {
    wayward: Arc<Wayward>,
    pool: Pool,
    device: Arc<MemoryCopier>,
    tier: Tier,
}

fn world_with(config: TierConfig) -> World {
    let wayward = Wayward::new(cluster(64).connect());
    let store = Arc::new(store_on(wayward.clone(), small_calls()));
    let pool = Pool::new(&*wayward, PAGES, BYTES);
    for n in 0..PAGES {
        pool.write(n, &pattern(BYTES, n.into()));
    }
    let device = Arc::new(MemoryCopier::new(pool.map.clone(), 8));
    let tier = Tier::start(store, namespace(), pool.map.clone(), device.clone(), config).expect("a tier");
    World {
        wayward,
        pool,
        device,
        tier,
    }
}

fn world() -> World {
    world_with(TierConfig::default())
}

fn operation(id: u64, work: Work) -> Operation {
    Operation {
        id: OperationId(id),
        work,
    }
}

fn done(id: u64, completed: u32, failure: Option<Failure>) -> TierEvent {
    TierEvent::Done(Completion {
        operation: OperationId(id),
        completed,
        failure,
    })
}

impl World {
    fn submit(&self, id: u64, work: Work) {
        self.submit_within(id, work, WITHIN);
    }

    fn submit_within(&self, id: u64, work: Work, within: Duration) {
        assert_eq!(self.tier.submit(operation(id, work), within), Submitted::Accepted);
    }

    /// The next event; fails if none comes.
    fn next(&self) -> TierEvent {
        let mut events = self.tier.wait(WITHIN);
        assert_eq!(events.len(), 1, "{events:?}");
        events.remove(0)
    }

    fn run(&self, id: u64, work: Work) -> TierEvent {
        self.submit(id, work);
        self.next()
    }

    fn back_up(&self) {
        assert_eq!(self.run(1000, Work::Backup(at(0, PAGES))), done(1000, PAGES, None));
        self.pool.spoil();
    }

    fn is_right(&self, pages: std::ops::Range<u32>) {
        for n in pages {
            assert!(self.pool.read(n) == pattern(BYTES, n.into()), "page {n}");
        }
    }
}

fn keys(to: u32) -> Vec<KeyAt> {
    at(0, to)
        .iter()
        .map(|page| KeyAt {
            index: page.index,
            key: page.key,
        })
        .collect()
}

fn copies(pages: &[(u32, u32)]) -> Vec<CopyAt> {
    let copy = |(index, (host, device)): (u32, &(u32, u32))| CopyAt {
        index,
        key: page_key(index),
        host: HostPage(*host),
        device: DevicePage(*device),
    };
    (0..).zip(pages).map(copy).collect()
}

#[test]
fn backup_query_and_prefetch_come_round() {
    let world = world();
    assert_eq!(world.run(1, Work::Query(keys(PAGES))), done(1, 0, Some(Failure::Miss)));
    world.back_up();
    assert_eq!(world.run(2, Work::Query(keys(PAGES))), done(2, PAGES, None));
    assert_eq!(world.run(3, Work::Prefetch(at(0, PAGES))), done(3, PAGES, None));
    world.is_right(0..PAGES);
    assert!(!world.tier.has_pending());
    assert_eq!(world.tier.stats().done_whole, 3);
}

#[test]
fn pages_travel_between_device_and_host() {
    let world = world();
    world.device.set_page(5, pattern(BYTES, 77)).expect("a page");
    assert_eq!(world.run(1, Work::WriteBack(copies(&[(3, 5)]))), done(1, 1, None));
    assert!(world.pool.read(3) == pattern(BYTES, 77));
    assert_eq!(
        world.run(2, Work::LoadBack(copies(&[(3, 6), (4, 7)]))),
        done(2, 2, None)
    );
    assert_eq!(world.device.page(6), world.device.page(5));
    assert_eq!(
        world.run(3, Work::LoadBack(copies(&[(3, 0), (4, 99), (5, 1)]))),
        done(3, 1, Some(Failure::Failed)),
        "no such page on the device"
    );
}

#[test]
fn a_backup_puts_what_the_store_has_not() {
    let world = world();
    world.back_up();
    let stored = world.tier.store().stats().pages_stored;
    world.wayward.remove_one(&name(3), WITHIN).expect("removed");
    replace(&*world.wayward, &name(5), b"short");
    for n in [3, 5] {
        world.pool.write(n, &pattern(BYTES, u64::from(n)));
    }
    assert_eq!(world.run(1, Work::Backup(at(0, PAGES))), done(1, PAGES, None));
    assert_eq!(world.tier.store().stats().pages_stored, stored + 2);
    assert_eq!(world.run(2, Work::Prefetch(at(0, PAGES))), done(2, PAGES, None));
    world.is_right(0..PAGES);
}

#[test]
fn kv15_a_head_that_is_missing_makes_the_tail_worthless() {
    let world = world();
    world.back_up();
    world.wayward.remove_one(&name(0), WITHIN).expect("removed");
    assert_eq!(world.run(1, Work::Prefetch(at(0, 8))), done(1, 0, Some(Failure::Miss)));
    world.wayward.remove_one(&name(5), WITHIN).expect("removed");
    assert_eq!(world.run(2, Work::Prefetch(at(1, 8))), done(2, 4, Some(Failure::Miss)));
    world.is_right(1..5);
    assert_eq!(world.tier.stats().missed, 2);
}

#[test]
fn a_short_object_ends_the_prefix_and_is_put_anew() {
    let world = world();
    world.back_up();
    replace(&*world.wayward, &name(2), &pattern(BYTES, 2)[..BYTES - 1]);
    assert_eq!(
        world.run(1, Work::Prefetch(at(0, 8))),
        done(1, 2, Some(Failure::Corrupt))
    );
    world.pool.write(2, &pattern(BYTES, 2));
    assert_eq!(world.run(2, Work::Backup(at(2, 3))), done(2, 1, None));
    world.pool.spoil();
    assert_eq!(world.run(3, Work::Prefetch(at(0, 8))), done(3, 8, None));
    world.is_right(0..8);
}

#[test]
fn kv19_a_late_get_is_told_at_its_deadline_and_done_when_its_memory_is_free() {
    let world = world();
    world.back_up();
    world.wayward.set(Mode::LateGet);
    let clock = SystemClock::new();
    let begun = clock.now();
    world.submit_within(1, Work::Prefetch(at(0, 4)), SOON);
    assert_eq!(world.next(), TierEvent::TimedOut(OperationId(1)));
    assert!(clock.now().since(begun) >= SOON);
    assert!(world.tier.wait(SOON).is_empty(), "the engine still has the memory");
    assert_eq!(world.tier.cancel(OperationId(1)), Cancelled::Cancelling);
    assert_eq!((world.tier.stats().quarantined, world.tier.has_pending()), (1, true));
    assert!(world.tier.poll().is_empty());
    world.wayward.let_go();
    assert_eq!(world.next(), done(1, 0, Some(Failure::TimedOut)));
    assert!(world.tier.wait(SOON).is_empty(), "and only once");
    assert_eq!(world.tier.cancel(OperationId(1)), Cancelled::Nothing);
}

#[test]
fn a_late_put_keeps_its_pages_too() {
    let world = world();
    world.wayward.set(Mode::LatePut);
    world.submit_within(1, Work::Backup(at(0, 4)), SOON);
    assert_eq!(world.next(), TierEvent::TimedOut(OperationId(1)));
    assert!(world.tier.wait(SOON).is_empty());
    world.wayward.let_go();
    assert_eq!(world.next(), done(1, 0, Some(Failure::TimedOut)), "KV23");
}

#[test]
fn an_engine_that_never_returns_holds_up_neither_waiters_nor_other_kinds() {
    let world = world_with(TierConfig {
        prefetch: LaneConfig { threads: 1, most: 3 },
        ..TierConfig::default()
    });
    world.back_up();
    world.wayward.set(Mode::HangingGet);
    world.submit_within(1, Work::Prefetch(at(0, 4)), SOON);
    world.submit_within(2, Work::Prefetch(at(4, 8)), SOON);
    world.submit_within(3, Work::Prefetch(at(8, 9)), WITHIN);
    let refused = world.tier.submit(operation(4, Work::Prefetch(at(9, 10))), WITHIN);
    let Submitted::Refused(completion) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((completion.completed, completion.failure), (0, Some(Failure::Refused)));
    assert_eq!(
        world.tier.submit(operation(3, Work::Query(Vec::new())), WITHIN),
        Submitted::AlreadyOpen
    );
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(world.tier.wait(WITHIN));
    }
    assert_eq!(
        events,
        [TierEvent::TimedOut(OperationId(1)), done(2, 0, Some(Failure::TimedOut))],
        "one is under way, the other was never begun"
    );
    assert_eq!(
        world.run(5, Work::Query(keys(4))),
        done(5, 4, None),
        "other kinds go on"
    );
    assert_eq!(world.run(6, Work::LoadBack(copies(&[(3, 6)]))), done(6, 1, None));
    assert_eq!(world.tier.cancel(OperationId(3)), Cancelled::NotBegun);
    assert_eq!(world.next(), done(3, 0, Some(Failure::Cancelled)));
    world.wayward.let_go();
    let TierEvent::Done(completion) = world.next() else {
        panic!("the end of it")
    };
    assert_eq!(
        (completion.operation, completion.completed),
        (OperationId(1), 4),
        "late, but whole"
    );
    world.is_right(0..4);
}

#[test]
fn a_cancel_begins_nothing_more_and_ends_with_what_is_done() {
    let world = world();
    world.back_up();
    world.wayward.set(Mode::HangingGet);
    // Six calls, one at a time.
    world.submit(1, Work::Prefetch(at(0, PAGES)));
    world.wayward.wait_for_a_call();
    assert_eq!(world.tier.cancel(OperationId(1)), Cancelled::Cancelling);
    assert!(world.tier.poll().is_empty(), "the second phase is not over");
    world.wayward.let_go();
    match world.next() {
        TierEvent::Done(completion) => {
            assert!(
                (4..=8).contains(&completion.completed),
                "what was begun: {completion:?}"
            );
            assert_eq!(completion.failure, Some(Failure::Cancelled));
            world.is_right(0..completion.completed);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_panic_below_is_a_failure_of_its_operation() {
    let world = world();
    world.back_up();
    world.wayward.set(Mode::Panics);
    assert_eq!(
        world.run(1, Work::Prefetch(at(0, 1))),
        done(1, 0, Some(Failure::Failed))
    );
    world.wayward.let_go();
    assert_eq!(world.run(2, Work::Prefetch(at(0, 1))), done(2, 1, None));
}

#[test]
fn pages_that_do_not_exist_are_a_failure() {
    let world = world();
    let mut pages = at(0, 2);
    pages[1].host = HostPage(PAGES);
    assert_eq!(world.run(1, Work::Prefetch(pages)), done(1, 0, Some(Failure::Failed)));
    assert_eq!(
        world.run(2, Work::Backup(Vec::new())),
        done(2, 0, None),
        "nothing to do is done"
    );
}

#[test]
fn closing_ends_what_was_not_begun_and_joins_the_threads() {
    let world = world_with(TierConfig {
        prefetch: LaneConfig { threads: 1, most: 9 },
        close_within: Duration::ZERO,
        ..TierConfig::default()
    });
    world.back_up();
    world.wayward.set(Mode::HangingGet);
    for id in 1..4 {
        world.submit(id, Work::Prefetch(at(0, 1)));
    }
    world.wayward.wait_for_a_call();
    assert_eq!(
        world.tier.close(SOON),
        1,
        "one thread is in a call that does not return"
    );
    let refused = world.tier.submit(operation(9, Work::Query(Vec::new())), WITHIN);
    assert!(matches!(refused, Submitted::Refused(_)));
    assert_eq!(world.tier.poll().len(), 2, "those that were not begun");
    world.wayward.let_go();
    assert_eq!(world.tier.close(WITHIN), 0);
    assert_eq!(world.tier.poll().len(), 1);
    assert!(!world.tier.has_pending());
    let (registered, wayward) = (world.wayward.registrations().regions, Arc::clone(&world.wayward));
    drop(world);
    assert_eq!(
        (registered, wayward.registrations().regions),
        (2, 0),
        "all memory is given back"
    );
}

#[derive(Debug)]
struct Slow;

impl DeviceCopier for Slow {
    fn load_back(&self, pages: &[CopyAt], within: Duration) -> Copied {
        SystemClock::new().sleep(within + SOON);
        Copied {
            pages: u32::try_from(pages.len()).expect("few"),
            error: None,
        }
    }

    fn write_back(&self, pages: &[CopyAt], within: Duration) -> Copied {
        self.load_back(pages, within)
    }
}

#[test]
fn a_slow_copy_is_told_at_its_deadline_and_ends_when_it_ends() {
    let engine: Arc<dyn Engine> = cluster(64).connect();
    let pool = Pool::new(&*engine, 2, BYTES);
    let store = Arc::new(store_on(engine, small_calls()));
    let tier = Tier::start(
        store,
        namespace(),
        pool.map.clone(),
        Arc::new(Slow),
        TierConfig::default(),
    )
    .expect("a tier");
    tier.submit(operation(1, Work::WriteBack(copies(&[(0, 0)]))), SOON);
    assert_eq!(tier.wait(WITHIN), [TierEvent::TimedOut(OperationId(1))]);
    assert_eq!(tier.wait(WITHIN), [done(1, 1, None)]);
}
