//! Random operations on an engine with every fault there is: no wrong page is ever said to be loaded, and every
//! operation ends exactly once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tensorhold_core::{Clock, SystemClock};
use tensorhold_engine::{EngineExt, FaultEngine, FaultPlan};
use tensorhold_kvcache::plan::{HostPage, HostPageAt, Operation, OperationId, Work};
use tensorhold_kvcache::tier::{LaneConfig, MemoryCopier, StoreConfig, Submitted, Tier, TierConfig, TierEvent};

use crate::common::*;

const BYTES: usize = 512;
const KEYS: u32 = 12;
/// Pages that no operation names at the same time.
const SLOTS: u32 = 8;
const PER_SLOT: u32 = 6;
const SHORT: Duration = Duration::from_millis(30);

#[derive(Clone, Debug)]
enum Step {
    Backup {
        first: u32,
        count: u32,
    },
    Prefetch {
        first: u32,
        count: u32,
        hurried: bool,
    },
    Cancel(u64),
    /// Alters an object directly in the engine: cut to so many bytes, one byte flipped, or another key's object.
    Damage {
        key: u32,
        how: u8,
    },
    Late(bool),
    Poll,
}

fn step() -> impl Strategy<Value = Step> {
    let pages = (0..KEYS, 1..=PER_SLOT);
    prop_oneof![
        4 => pages.clone().prop_map(|(first, count)| Step::Backup { first, count }),
        6 => (pages, prop::bool::weighted(0.2))
            .prop_map(|((first, count), hurried)| Step::Prefetch { first, count, hurried }),
        1 => (0_u64..40).prop_map(Step::Cancel),
        3 => (0..KEYS, 0_u8..3).prop_map(|(key, how)| Step::Damage { key, how }),
        1 => any::<bool>().prop_map(Step::Late),
        4 => Just(Step::Poll),
    ]
}

struct Run {
    wayward: Arc<Wayward>,
    tier: Tier,
    pool: Pool,
    /// Which slot of pages each open operation has, and what it does with it.
    open: HashMap<OperationId, (u32, Vec<HostPageAt>, bool)>,
    free: Vec<u32>,
    next: u64,
    loaded: u32,
}

impl Run {
    fn new(seed: u64) -> Self {
        let plan = FaultPlan::new(seed)
            .with_all(60)
            .with_delay(100, Duration::from_millis(3));
        let faulty = FaultEngine::new(cluster(64).connect(), plan, clock());
        let wayward = Wayward::new(Arc::new(faulty));
        let pool = Pool::new(&*wayward, SLOTS * PER_SLOT, BYTES);
        let config = StoreConfig {
            // Half of the runs go through frames.
            staging_frames: if seed.is_multiple_of(2) { 6 } else { 0 },
            ..small_calls()
        };
        let store = Arc::new(store_on(wayward.clone(), config));
        let copier = Arc::new(MemoryCopier::new(pool.map.clone(), 1));
        let config = TierConfig {
            backup: LaneConfig { threads: 2, most: 4 },
            ..TierConfig::default()
        };
        let tier = Tier::start(store, namespace(), pool.map.clone(), copier, config).expect("a tier");
        Self {
            wayward,
            tier,
            pool,
            open: HashMap::new(),
            free: (0..SLOTS).collect(),
            next: 0,
            loaded: 0,
        }
    }

    fn submit(&mut self, first: u32, count: u32, backup: bool, within: Duration) {
        let Some(slot) = self.free.pop() else { return };
        let page = |n: u32| HostPageAt {
            index: first + n,
            key: page_key((first + n) % KEYS),
            host: HostPage(slot * PER_SLOT + n),
        };
        let pages: Vec<HostPageAt> = (0..count).map(page).collect();
        for page in &pages {
            let seed = if backup { u64::from(page.index % KEYS) } else { 999 };
            self.pool.write(page.host.0, &pattern(BYTES, seed));
        }
        let id = OperationId(self.next);
        self.next += 1;
        let work = if backup {
            Work::Backup(pages.clone())
        } else {
            Work::Prefetch(pages.clone())
        };
        match self.tier.submit(Operation { id, work }, within) {
            Submitted::Accepted => drop(self.open.insert(id, (slot, pages, backup))),
            Submitted::Refused(completion) => {
                assert_eq!(completion.operation, id);
                self.free.push(slot);
            }
            Submitted::AlreadyOpen => panic!("{id} is new"),
        }
    }

    fn see(&mut self, events: Vec<TierEvent>) {
        for event in events {
            match event {
                TierEvent::TimedOut(id) => assert!(self.open.contains_key(&id), "{id} is not open"),
                TierEvent::Done(completion) => {
                    let open = self.open.remove(&completion.operation);
                    let (slot, pages, backup) = open.expect("KV3: one terminal event for each");
                    assert_eq!(
                        completion.failure.is_none(),
                        completion.completed as usize == pages.len()
                    );
                    for page in pages.iter().take(completion.completed as usize).filter(|_| !backup) {
                        let right = pattern(BYTES, u64::from(page.index % KEYS));
                        assert!(self.pool.read(page.host.0) == right, "a wrong page was served");
                        self.loaded += 1;
                    }
                    self.free.push(slot);
                }
            }
        }
    }

    fn damage(&self, key: u32, how: u8) {
        let (victim, other) = (name(key), name((key + 1) % KEYS));
        let len = BYTES + tensorhold_kvcache::tier::FOOTER_BYTES;
        let Ok(region) = self.wayward.allocate(len, WITHIN) else {
            return;
        };
        let from = if how == 2 { &other } else { &victim };
        let whole = region.whole();
        // If a step fails here, that is fine: then nothing, or something else, is damaged.
        drop(self.wayward.get_one(from, &whole, SHORT));
        if how == 1 {
            drop(whole.write(BYTES / 3, &[0xFF]));
        }
        drop(self.wayward.remove_one(&victim, SHORT));
        let cut = region.span(0..if how == 0 { len / 2 } else { len }).expect("inside");
        drop(
            self.wayward
                .put_one(&victim, &cut, &tensorhold_engine::PutOptions::default(), SHORT),
        );
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Backup { first, count } => self.submit(first, count, true, WITHIN),
            Step::Prefetch { first, count, hurried } => {
                // A late get sleeps until its deadline, so no operation gets a long one.
                self.submit(first, count, false, if hurried { SHORT } else { SHORT * 4 });
            }
            Step::Cancel(id) => drop(self.tier.cancel(OperationId(id))),
            Step::Damage { key, how } => self.damage(key, how),
            Step::Late(true) => self.wayward.set(Mode::LateGet),
            Step::Late(false) => self.wayward.let_go(),
            Step::Poll => {
                let events = self.tier.wait(Duration::from_millis(2));
                self.see(events);
            }
        }
    }

    fn finish(&mut self) {
        self.wayward.let_go();
        let clock = SystemClock::new();
        let begun = clock.now();
        while !self.open.is_empty() {
            assert!(clock.now().since(begun) < 2 * WITHIN, "stuck: {:?}", self.open.keys());
            // Late calls began with the deadline of their operation; they are let go as they come.
            self.wayward.let_go();
            let events = self.tier.wait(Duration::from_millis(50));
            self.see(events);
        }
        assert!(self.tier.poll().is_empty() && !self.tier.has_pending());
        assert_eq!(self.free.len(), SLOTS as usize, "KV4: every page is back");
        assert_eq!(self.tier.close(WITHIN), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_wrong_page_is_served_and_every_operation_ends_once(
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 10..60),
    ) {
        let mut run = Run::new(seed);
        for step in steps {
            run.take(step);
        }
        run.finish();
    }
}

#[test]
fn the_random_test_does_load_pages() {
    let mut run = Run::new(1);
    for round in 0..20 {
        run.submit(round % KEYS, 4, true, WITHIN);
        run.take(Step::Poll);
        run.submit(round % KEYS, 2, false, WITHIN);
        run.take(Step::Poll);
    }
    run.finish();
    assert!(run.loaded > 0, "or it would show nothing");
}
