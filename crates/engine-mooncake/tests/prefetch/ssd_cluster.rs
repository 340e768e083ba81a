//! A real cluster of two holders with an SSD folder each, and more objects than their DRAM holds.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ObjectKey, SystemClock, poll_until};
use tensorhold_engine::testing::{Observed, pattern};
use tensorhold_engine::{Engine, EngineExt, Pin, Presence, PutOptions, PutOutcome};
use tensorhold_engine_mooncake::MooncakeEngine;
use tensorhold_testkit::{Cluster, master_figure};

use crate::bare::MIB;
use crate::common::{WITHIN, connect, key, plain};

pub(crate) struct SsdCluster {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) cluster: Cluster,
    observed: Arc<Observed<MooncakeEngine>>,
    keys: Vec<ObjectKey>,
}

impl SsdCluster {
    /// 128 MiB of DRAM, and this many objects of 1 MiB, all of them with a copy on SSD.
    pub(crate) fn start(objects: usize) -> Self {
        let cluster = plain()
            .holders(2)
            .segment_mib(64)
            .lease_ttl(Duration::from_secs(1))
            .ssd(true)
            .start()
            .expect("a cluster");
        let clock = SystemClock::new();
        let observed = Arc::new(Observed::new(Arc::new(connect(&cluster)), Arc::new(clock)));
        let engine: Arc<dyn Engine> = Arc::clone(&observed) as Arc<dyn Engine>;
        let keys: Vec<ObjectKey> = (0..objects).map(|n| key(format!("kv/ssd/{n}"))).collect();
        let from = engine.allocate(MIB, WITHIN).expect("memory");
        let options = PutOptions {
            pin: Pin::Evictable,
            ..PutOptions::default()
        };
        for (n, key) in keys.iter().enumerate() {
            from.whole().write(0, &pattern(MIB, n as u64)).expect("fits");
            let put = || match engine.put_one(key, &from.whole(), &options, WITHIN) {
                Ok(PutOutcome::Stored) => Some(()),
                Ok(PutOutcome::Full) => None,
                other => panic!("{key}: {other:?}"),
            };
            poll_until(&clock, WITHIN, Duration::from_millis(10), put).expect("room");
        }
        let ssd = Self {
            engine,
            cluster,
            observed,
            keys,
        };
        let all_on_ssd = || {
            let found = ssd.look();
            let there = |one: &Presence| matches!(one, Presence::Present { ssd: 1.., .. });
            found.iter().all(there).then_some(())
        };
        poll_until(&clock, WITHIN, Duration::from_millis(100), all_on_ssd).expect("every object gets a copy on SSD");
        ssd
    }

    fn look(&self) -> Vec<Presence> {
        self.engine.probe(&self.keys, WITHIN).expect("answers")
    }

    pub(crate) fn seed(&self, key: &ObjectKey) -> u64 {
        let at = self.keys.iter().position(|one| one == key).expect("one of ours");
        at as u64
    }

    fn which(&self, wanted: fn(&Presence) -> bool) -> Vec<ObjectKey> {
        let found = self.look();
        let chosen = self.keys.iter().zip(&found).filter(|(_, one)| wanted(one));
        chosen.map(|(key, _)| key.clone()).collect()
    }

    /// Objects that are on SSD only.
    pub(crate) fn cold(&self, count: usize) -> Vec<ObjectKey> {
        let mut cold = self.which(|one| matches!(one, Presence::Present { dram: 0, ssd: 1.., .. }));
        assert!(cold.len() >= count, "{} objects are on SSD only", cold.len());
        cold.truncate(count);
        cold
    }

    /// Any objects.
    pub(crate) fn any(&self, count: usize) -> Vec<ObjectKey> {
        self.keys.iter().take(count).cloned().collect()
    }

    /// How many objects are on SSD only.
    pub(crate) fn cold_count(&self) -> usize {
        self.which(|one| matches!(one, Presence::Present { dram: 0, ssd: 1.., .. }))
            .len()
    }

    /// What is on SSD only now, if the master answers.
    pub(crate) fn cold_now(&self) -> Option<Vec<ObjectKey>> {
        let found = self.engine.probe(&self.keys, WITHIN).ok()?;
        let cold = self.keys.iter().zip(&found);
        let cold = cold.filter(|(_, one)| matches!(one, Presence::Present { dram: 0, ssd: 1.., .. }));
        Some(cold.map(|(key, _)| key.clone()).take(16).collect())
    }

    /// Objects with a copy in DRAM, at most this many.
    pub(crate) fn in_dram(&self, most: usize) -> Vec<ObjectKey> {
        let mut hot = self.which(|one| matches!(one, Presence::Present { dram: 1.., .. }));
        hot.truncate(most);
        hot
    }

    /// Requests to the master's admin port so far.
    pub(crate) fn probes(&self) -> usize {
        self.observed.calls().probes.len()
    }

    /// One of the master's own figures.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        master_figure(&self.cluster.endpoints().admin[0], name).expect("the master's figures")
    }
}
