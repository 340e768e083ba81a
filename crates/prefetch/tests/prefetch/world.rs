//! A small cluster whose time moves only by hand, with a prefetcher whose workers are the test itself.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, ManualClock, ObjectKey, Timestamp};
use tensorhold_engine::testing::Observed;
use tensorhold_engine::{
    Engine, EngineExt, GetOutcome, MemoryCluster, MemoryConfig, MemoryEngine, Pin, Presence, PutOptions, PutOutcome,
    Region, SsdConfig,
};
use tensorhold_prefetch::{PrefetchConfig, PrefetchEngine, Route};

pub(crate) const LEN: usize = 16 << 10;
pub(crate) const OBJECTS: usize = 24;
pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) cluster: Arc<MemoryCluster>,
    pub(crate) observed: Arc<Observed<MemoryEngine>>,
    pub(crate) engine: PrefetchEngine,
    pub(crate) config: PrefetchConfig,
    pub(crate) keys: Vec<ObjectKey>,
    pub(crate) region: Region,
}

pub(crate) fn pattern(n: usize) -> Vec<u8> {
    (0..LEN)
        .map(|at| u8::try_from((n * 31 + at / 7) % 251).unwrap_or(0))
        .collect()
}

/// Short times, a buffer for four objects, and no threads.
pub(crate) fn config(route: Route) -> PrefetchConfig {
    PrefetchConfig {
        route,
        buffer_bytes: 4 * LEN,
        keep: 10 * SECOND,
        workers: usize::MAX,
        queue: 12,
        batch_objects: 3,
        begin_within: 2 * SECOND,
        within: 5 * SECOND,
        remember: SECOND,
        cool_down: SECOND / 2,
        look_every: SECOND / 40,
        wait_for_prefetch: Duration::ZERO,
        ..PrefetchConfig::default()
    }
}

impl World {
    pub(crate) fn new(route: Route) -> Self {
        Self::with(config(route))
    }

    /// A cluster with its objects on SSD only, and its DRAM empty.
    pub(crate) fn with(config: PrefetchConfig) -> Self {
        Self::named("kv/o", config)
    }

    /// The same, with keys that begin like this.
    pub(crate) fn named(prefix: &str, config: PrefetchConfig) -> Self {
        let clock = Arc::new(ManualClock::new());
        let cluster = MemoryCluster::new(
            MemoryConfig {
                segment_bytes: (OBJECTS * LEN * 2) as u64,
                ssd: Some(SsdConfig {
                    heartbeat: SECOND / 4,
                    promote_per_heartbeat: 2,
                    ..SsdConfig::default()
                }),
                lease_ttl: SECOND,
                ..MemoryConfig::default()
            },
            Arc::clone(&clock) as Arc<dyn Clock>,
        );
        let below = cluster.connect();
        let region = below.allocate(LEN, SECOND).expect("memory");
        let evictable = PutOptions {
            pin: Pin::Evictable,
            ..PutOptions::default()
        };
        let put = |key: &ObjectKey, bytes: &[u8]| {
            region.whole().write(0, bytes).expect("fits");
            for _ in 0..100 {
                match below.put_one(key, &region.whole(), &evictable, SECOND).expect("lawful") {
                    PutOutcome::Stored => return,
                    _ => clock.advance(SECOND / 100),
                }
            }
            panic!("no room for {key}");
        };
        let keys: Vec<ObjectKey> = (0..OBJECTS)
            .map(|n| ObjectKey::new(format!("{prefix}/{n}")).expect("a key"))
            .collect();
        for (n, key) in keys.iter().enumerate() {
            put(key, &pattern(n));
        }
        clock.advance(SECOND);
        // Others crowd them out.
        let mut crowd = Vec::new();
        while below.probe(&keys, SECOND).expect("lawful").iter().any(in_dram) {
            let key = ObjectKey::new(format!("crowd/{}", crowd.len())).expect("a key");
            put(&key, &pattern(99));
            crowd.push(key);
            clock.advance(SECOND / 4);
            assert!(crowd.len() < 2000, "the objects stay in DRAM");
        }
        for chunk in crowd.chunks(1000) {
            below.remove(chunk, SECOND).expect("lawful");
        }
        let observed = Arc::new(Observed::new(below, Arc::clone(&clock) as Arc<dyn Clock>));
        let engine = PrefetchEngine::new(
            Arc::clone(&observed) as Arc<dyn Engine>,
            config.clone(),
            Arc::clone(&clock) as Arc<dyn Clock>,
        )
        .expect("lawful settings");
        Self {
            clock,
            cluster,
            observed,
            engine,
            config,
            keys,
            region,
        }
    }

    /// The bytes of an object, read through the prefetcher; `None` if it is a miss.
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Vec<u8>> {
        self.region.whole().write(0, &[0xEE; LEN]).expect("fits");
        match self.engine.get_one(key, &self.region.whole(), SECOND).expect("lawful") {
            GetOutcome::Loaded => Some(self.region.whole().to_vec()),
            GetOutcome::Miss => None,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn steps(&self) {
        while self.engine.step() {}
    }

    /// How many objects reads named so far, and promotions.
    pub(crate) fn read_and_promoted(&self) -> [usize; 2] {
        let calls = self.observed.calls();
        [calls.gets, calls.promotes].map(|calls| calls.iter().map(|(_, objects)| objects).sum())
    }

    /// The times of all probes.
    pub(crate) fn probes(&self) -> Vec<Timestamp> {
        self.observed.calls().probes.into_iter().map(|(at, _)| at).collect()
    }
}

pub(crate) fn in_dram(presence: &Presence) -> bool {
    matches!(presence, Presence::Present { dram: 1.., .. })
}
