//! The memory engine as a back end of the suite: a cluster on a clock that a sleep advances.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Error, ManualClock, ObjectKey, Result};

use super::{Backend, Harness, Setup};
use crate::Engine;
use crate::memory::{MemoryCluster, MemoryConfig, SsdConfig};

/// Starts a [`MemoryCluster`] for each case.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryBackend;

impl Backend for MemoryBackend {
    fn start(&self, setup: &Setup) -> Result<Box<dyn Harness>> {
        let config = MemoryConfig {
            holders: setup.holders,
            segment_bytes: setup.segment_mib << 20,
            lease_ttl: setup.lease_ttl,
            ssd: setup.ssd.then(|| SsdConfig {
                heartbeat: Duration::from_secs(1),
                promote_per_heartbeat: 16,
                ..SsdConfig::default()
            }),
            ..MemoryConfig::default()
        };
        let clock = Arc::new(ManualClock::new());
        Ok(Box::new(Cluster {
            cluster: MemoryCluster::new(config, clock.clone()),
            clock,
        }))
    }
}

struct Cluster {
    cluster: Arc<MemoryCluster>,
    clock: Arc<ManualClock>,
}

fn done(did: bool, what: &str) -> Result<()> {
    if did {
        return Ok(());
    }
    Err(Error::internal("testing.memory", format!("could not {what}")))
}

impl Harness for Cluster {
    fn connect(&self) -> Result<Arc<dyn Engine>> {
        Ok(self.cluster.connect())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn abandon_put(&self, key: &ObjectKey, bytes: u64) -> Result<()> {
        done(self.cluster.abandon_put(key, bytes), "begin the put")
    }

    fn kill_holder(&self, holder: usize) -> Result<()> {
        done(self.cluster.kill_holder(holder), "kill the holder")
    }

    fn restart_holder(&self, holder: usize) -> Result<()> {
        done(self.cluster.restart_holder(holder), "restart the holder")
    }

    fn kill_master(&self) -> Result<()> {
        done(self.cluster.kill_master(), "kill the master")
    }

    fn restart_master(&self) -> Result<()> {
        self.cluster.restart_master();
        Ok(())
    }
}
