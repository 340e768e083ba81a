//! What the tests of this crate share: a real cluster, clients of it, and ways to hurt it.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of this")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test ends by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Error, ObjectKey, Result, SystemClock, poll_until};
use tensorhold_engine::testing::{Backend, Harness, Setup, pattern};
use tensorhold_engine::{Engine, EngineExt, GetOutcome, Presence, PutOptions, PutOutcome, Region};
use tensorhold_engine_mooncake::{MooncakeConfig, MooncakeEngine};
use tensorhold_testkit::{Cluster, ClusterBuilder, Endpoints, Install, Process, ProcessSpec};

/// Enough for anything on a machine that does other things too.
pub const WITHIN: Duration = Duration::from_secs(20);
/// How long a cluster may take to notice a loss and to be whole again: the master forgets a dead client after 10 s.
pub const RECOVERY: Duration = Duration::from_secs(60);

/// An error of the test kit as one of ours, so that harness code can use `?`.
pub fn kit(error: anyhow::Error) -> Error {
    Error::internal("testkit", format!("{error:#}"))
}

pub fn key(text: impl AsRef<str>) -> ObjectKey {
    ObjectKey::new(text).expect("a lawful key")
}

/// The settings of a client of this cluster.
pub fn config(endpoints: &Endpoints) -> MooncakeConfig {
    let mut environment: BTreeMap<_, _> = endpoints.client_env.iter().cloned().collect();
    environment.insert("MC_LOG_LEVEL".to_owned(), "ERROR".to_owned());
    MooncakeConfig {
        master: endpoints.master.clone(),
        metadata: endpoints.metadata.clone(),
        admin: endpoints.admin.clone(),
        environment,
        ..MooncakeConfig::default()
    }
}

pub fn connect(cluster: &Cluster) -> MooncakeEngine {
    MooncakeEngine::connect(config(&cluster.endpoints())).expect("a client of the cluster")
}

/// A cluster without a metadata server, as Tensorhold recommends it.
pub fn plain() -> ClusterBuilder {
    Cluster::builder().p2p_metadata(true)
}

/// Registered memory with a pattern that differs by seed and position.
pub fn filled(engine: &dyn Engine, len: usize, seed: u64) -> Region {
    let region = engine.allocate(len, WITHIN).expect("registered memory");
    region.whole().write(0, &pattern(len, seed)).expect("fits");
    region
}

/// Puts one pinned object.
pub fn store(engine: &dyn Engine, name: &str, from: &Region) {
    let outcome = engine
        .put_one(&key(name), &from.whole(), &PutOptions::default(), WITHIN)
        .expect("an outcome");
    assert!(matches!(outcome, PutOutcome::Stored), "{name}: {outcome:?}");
}

/// Waits until a fresh object goes in and comes out again with its bytes.
pub fn wait_until_it_serves(engine: &dyn Engine, what: &str) {
    let clock = SystemClock::new();
    let (from, into) = (filled(engine, 4096, 77), engine.allocate(4096, WITHIN).expect("memory"));
    let mut turn = 0;
    let served = poll_until(&clock, RECOVERY, Duration::from_millis(200), || {
        turn += 1;
        let key = key(format!("serves/{what}/{turn}"));
        let put = engine
            .put_one(&key, &from.whole(), &PutOptions::default(), WITHIN)
            .ok()?;
        let get = engine.get_one(&key, &into.whole(), WITHIN).ok()?;
        (matches!((put, get), (PutOutcome::Stored, GetOutcome::Loaded))
            && into.whole().to_vec() == from.whole().to_vec())
        .then_some(())
    });
    served.unwrap_or_else(|| panic!("{what}: the same engine value does not serve again within {RECOVERY:?}"));
}

/// Waits until the engine has forgotten all memory.
pub fn wait_until_nothing_is_registered(engine: &dyn Engine) {
    let clock = SystemClock::new();
    let empty = || (engine.registrations().regions == 0).then_some(());
    if poll_until(&clock, WITHIN, Duration::from_millis(10), empty).is_none() {
        panic!("memory is still registered: {:?}", engine.registrations());
    }
}

/// Real clusters for the contract suite.
pub struct RealBackend;

/// One real cluster: a master and separate holder processes.
pub struct RealHarness {
    pub cluster: Cluster,
}

impl Backend for RealBackend {
    fn start(&self, setup: &Setup) -> Result<Box<dyn Harness>> {
        let cluster = plain()
            .segment_mib(setup.segment_mib)
            .holders(setup.holders)
            .lease_ttl(setup.lease_ttl)
            .ssd(setup.ssd)
            .start()
            .map_err(kit)?;
        Ok(Box::new(RealHarness { cluster }))
    }

    fn parallel(&self) -> bool {
        false
    }
}

impl Harness for RealHarness {
    fn connect(&self) -> Result<Arc<dyn Engine>> {
        Ok(Arc::new(MooncakeEngine::connect(config(&self.cluster.endpoints()))?))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock::new())
    }

    /// A writer that is killed while it waits for a holder that does not answer.
    fn abandon_put(&self, key: &ObjectKey, bytes: u64) -> Result<()> {
        const WRITER: &str = "
import json, os, sys
endpoints, key, size = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.environ.update(endpoints['client_env'])
import numpy as np
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup('127.0.0.1', endpoints['metadata'], 0, 1 << 20, 'tcp', '', endpoints['master']) == 0
memory = np.ones(size, dtype=np.uint8)
store.register_buffer(memory.ctypes.data, size)
store.put_from(key, memory.ctypes.data, size)
";
        let watcher = self.connect()?;
        let endpoints = self.cluster.endpoints();
        let holder = self.cluster.holder(0);
        let python = Install::from_env().and_then(|install| install.python()).map_err(kit)?;
        let spec = ProcessSpec::new(
            "abandoned writer",
            python,
            self.cluster.dir().join("abandoned-writer.log"),
        )
        .args([
            "-c",
            WRITER,
            &serde_json::to_string(&endpoints).expect("json"),
            key.as_str(),
            &bytes.to_string(),
        ]);
        holder.stop().map_err(kit)?;
        let writer = Process::spawn(&spec).map_err(kit)?;
        let begun = poll_until(&SystemClock::new(), WITHIN, Duration::from_millis(20), || {
            (watcher.probe_one(key, WITHIN).ok()? == Presence::Unfinished).then_some(())
        });
        writer.kill().map_err(kit)?;
        holder.resume().map_err(kit)?;
        begun.ok_or_else(|| Error::internal("testkit", "the writer never began its put").with("log", writer.output()))
    }

    fn kill_holder(&self, holder: usize) -> Result<()> {
        self.cluster.holder(holder).kill().map_err(kit)
    }

    fn restart_holder(&self, holder: usize) -> Result<()> {
        self.cluster.holder(holder).restart().map_err(kit)
    }

    fn kill_master(&self) -> Result<()> {
        self.cluster.master(0).kill().map_err(kit)
    }

    fn restart_master(&self) -> Result<()> {
        self.cluster.master(0).restart().map_err(kit)
    }
}
