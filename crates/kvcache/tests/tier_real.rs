//! The tier on a real master with two holders: 2 GiB of pages out and back, then with everything that can go wrong.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says what it expects, and this one prints what it saw"
)]

#[path = "tier/common.rs"]
mod common;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use tensorhold_core::{Clock, SystemClock};
use tensorhold_engine::{Engine, EngineExt, FaultEngine, FaultPlan, PutOptions};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_kvcache::plan::{Completion, Failure, HostPage, KeyAt, Operation, OperationId, Work};
use tensorhold_kvcache::tier::{
    HostMemoryMap, MemoryCopier, PageGot, PageStore, PartLayout, StoreConfig, Submitted, Tier, TierConfig, TierEvent,
};
use tensorhold_testkit::Cluster;

/// Llama-3-70B in bf16 on eight ranks: 80 layers, keys and values, one head of 128 per rank, pages of 64 tokens.
const PAGE_BYTES: usize = 80 * 2 * 64 * 128 * 2;
/// 2 GiB of them.
const PAGES: u32 = 820;
const PER_OPERATION: u32 = 64;
/// For 2 GiB through one thread, on a machine that others use too.
const BACKUP_WITHIN: Duration = Duration::from_secs(120);
/// After its deadline an operation may take this long to end; more is stuck.
const GRACE: Duration = Duration::from_secs(40);

fn connect(cluster: &Cluster) -> Arc<dyn Engine> {
    let endpoints = cluster.endpoints();
    let mut environment: BTreeMap<_, _> = endpoints.client_env.iter().cloned().collect();
    environment.insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
    let config = MooncakeConfig {
        master: endpoints.master,
        metadata: endpoints.metadata,
        admin: endpoints.admin,
        environment,
        ..MooncakeConfig::default()
    };
    Arc::new(MooncakeEngine::connect(config).expect("a client"))
}

/// Pages whose bytes are cut from one block, each a little further on: all different, and quick to make.
struct Content(Vec<u8>);

impl Content {
    fn new() -> Self {
        Self(pattern(PAGE_BYTES + 8 * PAGES as usize, 42))
    }

    fn page(&self, n: u32) -> &[u8] {
        let from = 8 * n as usize;
        &self.0[from..from + PAGE_BYTES]
    }
}

/// The result of one run.
#[derive(Default)]
struct Outcome {
    operations: usize,
    asked: u32,
    right: u32,
    wrong: u32,
    stuck: usize,
    advised: usize,
    ends: BTreeMap<String, usize>,
    seconds: f64,
}

struct World {
    cluster: Cluster,
    engine: Arc<dyn Engine>,
    pool: Pool,
    content: Content,
    next: u64,
    table: Vec<(String, Outcome)>,
}

impl World {
    fn new() -> Self {
        // A short life for a dead holder's keys would hide what a reader sees of them; it stays at the default.
        let cluster = Cluster::builder()
            .p2p_metadata(true)
            .holders(2)
            .segment_mib(1536)
            .start()
            .expect("a cluster");
        let engine = connect(&cluster);
        let pool = Pool::new(&*engine, PAGES, PAGE_BYTES);
        Self {
            cluster,
            engine,
            pool,
            content: Content::new(),
            next: 0,
            table: Vec::new(),
        }
    }

    fn tier(&self, engine: Arc<dyn Engine>) -> Tier {
        self.tier_with(engine, StoreConfig::default())
    }

    fn tier_with(&self, engine: Arc<dyn Engine>, config: StoreConfig) -> Tier {
        let store = Arc::new(store_on(engine, config));
        let copier = Arc::new(MemoryCopier::new(self.pool.map.clone(), 1));
        Tier::start(store, namespace(), self.pool.map.clone(), copier, TierConfig::default()).expect("a tier")
    }

    fn fill(&self) {
        for n in 0..PAGES {
            self.pool.write(n, self.content.page(n));
        }
    }

    fn spoil(&self) {
        let garbage = vec![0xEE; PAGE_BYTES];
        for n in 0..PAGES {
            self.pool.write(n, &garbage);
        }
    }

    fn submit(&mut self, tier: &Tier, work: Work, within: Duration) -> OperationId {
        let id = OperationId(self.next);
        self.next += 1;
        assert_eq!(tier.submit(Operation { id, work }, within), Submitted::Accepted);
        id
    }

    fn backup(&mut self, tier: &Tier) {
        self.fill();
        for (from, to) in operations() {
            self.submit(tier, Work::Backup(at(from, to)), BACKUP_WITHIN);
        }
        let mut open = operations().count();
        while open > 0 {
            let events = tier.wait(WITHIN);
            assert!(!events.is_empty(), "nothing happens");
            for event in events {
                let stored = matches!(&event, TierEvent::Done(Completion { failure: None, .. }));
                assert!(stored, "everything is stored: {event:?}");
                open -= 1;
            }
        }
    }

    /// Prefetches all pages into overwritten memory and checks every page that is reported as loaded. `meanwhile` is
    /// called for each event first.
    fn prefetch(&mut self, fault: &str, tier: &Tier, within: Duration, mut meanwhile: impl FnMut(&Self, &TierEvent)) {
        self.spoil();
        let clock = SystemClock::new();
        let begun = clock.now();
        let mut outcome = Outcome::default();
        let mut open: HashMap<OperationId, Range<u32>> = HashMap::new();
        for (from, to) in operations() {
            let id = self.submit(tier, Work::Prefetch(at(from, to)), within);
            open.insert(id, from..to);
            outcome.operations += 1;
            outcome.asked += to - from;
        }
        while !open.is_empty() && clock.now().since(begun) < within + GRACE {
            for event in tier.wait(Duration::from_millis(500)) {
                meanwhile(self, &event);
                match &event {
                    TierEvent::TimedOut(id) => {
                        assert!(open.contains_key(id));
                        outcome.advised += 1;
                    }
                    TierEvent::Done(completion) => {
                        let pages = open.remove(&completion.operation).expect("one end for each");
                        for n in pages.take(completion.completed as usize) {
                            if self.pool.read(n) == self.content.page(n) {
                                outcome.right += 1;
                            } else {
                                outcome.wrong += 1;
                            }
                        }
                        let end = completion
                            .failure
                            .map_or("whole".to_owned(), |failure| format!("{failure:?}"));
                        *outcome.ends.entry(end).or_default() += 1;
                    }
                }
            }
        }
        outcome.stuck = open.len();
        outcome.seconds = clock.now().since(begun).as_secs_f64();
        assert_eq!(
            (outcome.wrong, outcome.stuck),
            (0, 0),
            "{fault}: wrong pages, stuck operations"
        );
        self.table.push((fault.to_owned(), outcome));
    }

    fn last(&self) -> &Outcome {
        &self.table.last().expect("a run").1
    }

    fn print(&self) {
        eprintln!(
            "\n{:<34} {:>4} {:>6} {:>6} {:>6} {:>6} {:>8} {:>7}  ends",
            "fault", "ops", "asked", "right", "wrong", "stuck", "advised", "s"
        );
        for (fault, o) in &self.table {
            let ends: Vec<String> = o.ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
            eprintln!(
                "{fault:<34} {:>4} {:>6} {:>6} {:>6} {:>6} {:>8} {:>7.2}  {}",
                o.operations,
                o.asked,
                o.right,
                o.wrong,
                o.stuck,
                o.advised,
                o.seconds,
                ends.join(", ")
            );
        }
    }
}

/// The pages of each operation.
fn operations() -> impl Iterator<Item = (u32, u32)> {
    (0..PAGES)
        .step_by(PER_OPERATION as usize)
        .map(|from| (from, PAGES.min(from + PER_OPERATION)))
}

fn only_done(tier: &Tier) -> Completion {
    let mut waiting = Vec::new();
    while waiting.is_empty() {
        waiting = tier.wait(WITHIN);
        assert!(!waiting.is_empty(), "nothing happens");
    }
    assert_eq!(waiting.len(), 1, "one operation is open: {waiting:?}");
    match waiting.remove(0) {
        TierEvent::Done(completion) => completion,
        TierEvent::TimedOut(id) => panic!("{id} took too long"),
    }
}

#[test]
fn two_gib_of_70b_pages_survive_and_faults_cost_recompute_only() {
    let mut world = World::new();
    let plain = world.tier(Arc::clone(&world.engine));
    let clock = SystemClock::new();
    let begun = clock.now();
    world.backup(&plain);
    eprintln!(
        "backed up {PAGES} pages of {PAGE_BYTES} bytes in {:.2?}",
        clock.now().since(begun)
    );
    let keys = at(0, PAGES)
        .iter()
        .map(|page| KeyAt {
            index: page.index,
            key: page.key,
        })
        .collect();
    world.submit(&plain, Work::Query(keys), WITHIN);
    assert_eq!(only_done(&plain).completed, PAGES, "all of them are there");
    world.prefetch("none", &plain, WITHIN, |_, _| {});
    assert_eq!(world.last().right, PAGES, "byte by byte");
    let staged = StoreConfig {
        staging_frames: 4,
        call_bytes: 32 << 20,
        ..StoreConfig::default()
    };
    let tier = world.tier_with(Arc::clone(&world.engine), staged);
    world.prefetch("none, through frames", &tier, WITHIN, |_, _| {});
    assert_eq!(world.last().right, PAGES, "byte by byte");
    drop(tier);

    let faults = [
        ("short reads (2 %)", FaultPlan::new(1).with_short_read(20), WITHIN),
        ("torn pages (2 %)", FaultPlan::new(2).with_torn_bytes(20), WITHIN),
        (
            "hanging gets (30 % of calls)",
            FaultPlan::new(3).with_delay(300, Duration::from_secs(60)),
            Duration::from_secs(6),
        ),
    ];
    for (fault, plan, within) in faults {
        let faulty = Arc::new(FaultEngine::new(Arc::clone(&world.engine), plan, clock_of()));
        let tier = world.tier(faulty.clone());
        world.prefetch(fault, &tier, within, |_, _| {});
        assert!(
            !faulty.faults().is_empty() && world.last().right < PAGES,
            "{fault} struck"
        );
        drop(tier);
        // Refused pages were removed, and are put again.
        world.backup(&plain);
    }

    let gone: Vec<_> = (0..PAGES).filter(|n| n % 50 == 49).map(name).collect();
    world.engine.remove(&gone, WITHIN).expect("removed");
    let liar = Wayward::new(Arc::clone(&world.engine));
    liar.set(Mode::AllPresent);
    let tier = world.tier(liar);
    let keys = at(0, PAGES)
        .iter()
        .map(|page| KeyAt {
            index: page.index,
            key: page.key,
        })
        .collect();
    world.submit(&tier, Work::Query(keys), WITHIN);
    assert_eq!(only_done(&tier).completed, PAGES, "it says that all are there");
    world.prefetch("misses after exists (2 %)", &tier, WITHIN, |_, _| {});
    assert!(world.last().ends.contains_key("Miss"));
    drop(tier);
    world.backup(&plain);

    world.cluster.holder(0).stop().expect("stopped");
    let mut told = 0;
    world.prefetch(
        "a holder that hangs (SIGSTOP)",
        &plain,
        Duration::from_secs(3),
        |world, event| {
            told += usize::from(matches!(event, TierEvent::TimedOut(_)));
            if told == 1 {
                told += 1;
                world.cluster.holder(0).resume().expect("resumed");
            }
        },
    );
    assert!(world.last().advised > 0, "somebody was told to go on");

    let mut killed = false;
    world.prefetch("a holder that dies (SIGKILL)", &plain, WITHIN, |world, _| {
        if !std::mem::replace(&mut killed, true) {
            world.cluster.holder(1).kill().expect("killed");
        }
    });
    assert!(world.last().right < PAGES, "what it held is lost");
    world.print();
    let wrong: u32 = world.table.iter().map(|(_, outcome)| outcome.wrong).sum();
    let stuck: usize = world.table.iter().map(|(_, outcome)| outcome.stuck).sum();
    eprintln!("wrong pages served: {wrong}, stuck requests: {stuck}");
    eprintln!("{:?}", plain.store().stats());
    assert_eq!((wrong, stuck), (0, 0));
}

fn clock_of() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

#[test]
fn short_objects_are_refused_and_layers_apart_come_back_together() {
    let cluster = Cluster::builder()
        .p2p_metadata(true)
        .segment_mib(512)
        .start()
        .expect("a cluster");
    let engine = connect(&cluster);
    let store: PageStore = store_on(Arc::clone(&engine), StoreConfig::default());
    // Keys and values of each of 80 layers in regions of their own, as a layer-first pool has them: 160 parts a page.
    const COUNT: u32 = 16;
    let slice = PAGE_BYTES / 160;
    let region = engine.allocate(PAGE_BYTES * COUNT as usize, WITHIN).expect("memory");
    let part = |layer: usize| PartLayout {
        region: region.clone(),
        offset: layer * slice * COUNT as usize,
        stride: slice,
        len: slice,
    };
    let map = HostMemoryMap::new(COUNT, (0..160).map(part).collect()).expect("a map");
    let pool = Pool {
        region,
        map,
        page_bytes: PAGE_BYTES,
    };
    let content = Content::new();
    let pages: Vec<_> = (0..COUNT).map(|n| pool.page(n, name(n))).collect();
    for n in 0..COUNT {
        pool.write(n, content.page(n));
    }
    assert_eq!(store.put(&pages, &all()).prefix(), COUNT as usize);

    // Under the key of page 3 an object that is too short, as a plain put of another client leaves it.
    let short = engine.allocate(PAGE_BYTES - 4096, WITHIN).expect("memory");
    short
        .whole()
        .write(0, &content.page(3)[..PAGE_BYTES - 4096])
        .expect("fits");
    engine.remove_one(&name(3), WITHIN).expect("removed");
    engine
        .put_one(&name(3), &short.whole(), &PutOptions::default(), WITHIN)
        .expect("put");
    pool.spoil();
    let got = store.get(&pages, &all());
    for (n, outcome) in (0..COUNT).zip(&got.pages) {
        match outcome {
            PageGot::Loaded => assert!(n != 3 && pool.read(n) == content.page(n), "page {n}"),
            PageGot::WrongLength { stored, .. } => assert_eq!((n, *stored), (3, (PAGE_BYTES - 4096) as u64)),
            other => panic!("page {n}: {other:?}"),
        }
    }
    // It does not block its key.
    pool.write(3, content.page(3));
    assert_eq!(store.put(&pages[3..4], &all()).prefix(), 1);
    pool.spoil();
    assert_eq!(store.get(&pages, &all()).prefix(), COUNT as usize);
    assert!(pool.read(3) == content.page(3));
    assert_eq!(pool.map.parts(HostPage(0)).expect("a page").len(), 160);
    let stats = store.stats();
    assert_eq!((stats.gets_wrong_length, stats.bad_pages_removed), (1, 1));
    let failure = Failure::Corrupt;
    eprintln!("a short object on the real engine is refused (a prefetch ends with {failure:?}): {stats:?}");
}
