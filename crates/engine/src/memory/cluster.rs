//! The shared part of a memory cluster, its controls, and inspection methods for tests.

use std::sync::Arc;

use parking_lot::Mutex;
use tensorhold_core::{Clock, ObjectKey};

use super::config::MemoryConfig;
use super::engine::MemoryEngine;
use super::state::{Entry, State};
use crate::types::Capabilities;

/// A master, its holders and their SSDs. Clients come from [`MemoryCluster::connect`]; the other methods inject
/// failures, or inspect the cluster without side effects.
#[derive(Debug)]
pub struct MemoryCluster {
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    state: Mutex<State>,
}

impl MemoryCluster {
    /// A running cluster with no objects.
    pub fn new(config: MemoryConfig, clock: Arc<dyn Clock>) -> Arc<Self> {
        let capabilities = Capabilities {
            engine: "memory",
            max_batch: config.max_batch,
            ssd: config.ssd.is_some(),
            probe: true,
            list: true,
        };
        let state = Mutex::new(State::new(config, clock.now()));
        Arc::new(Self {
            clock,
            capabilities,
            state,
        })
    }

    /// A new client. It works again by itself once the dead servers are back.
    pub fn connect(self: &Arc<Self>) -> Arc<MemoryEngine> {
        Arc::new(MemoryEngine::new(self.clone(), self.capabilities.clone()))
    }

    /// The state, caught up to now.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        state.settle(self.clock.now());
        act(&mut state)
    }

    /// A put whose producer dies half-way: the key is taken, `bytes` of space are held, nothing is ever readable. False
    /// if the put did not even begin (no room, the key is taken, no master).
    pub fn abandon_put(&self, key: &ObjectKey, bytes: u64) -> bool {
        self.with(|state| state.master_up && state.abandon(key, bytes))
    }

    /// Kills a holder: its DRAM is lost at once, and the master notices after [`MemoryConfig::holder_loss_after`].
    /// False if there is no such holder, or it does not run.
    pub fn kill_holder(&self, which: usize) -> bool {
        self.with(|state| state.kill_holder(which))
    }

    /// Restarts a holder on the same SSD; kills it first if it runs. The objects on its SSD are on the master's list
    /// again, removed or not. False if there is no such holder.
    pub fn restart_holder(&self, which: usize) -> bool {
        self.with(|state| state.restart_holder(which))
    }

    /// Kills the master: until it is restarted, no call is answered. False if it was dead already.
    pub fn kill_master(&self) -> bool {
        self.with(State::kill_master)
    }

    /// Restarts the master; kills it first if it runs. It knows the objects on the SSDs of the running holders, and
    /// nothing else.
    pub fn restart_master(&self) {
        self.with(State::restart_master);
    }

    /// Whether a read lease keeps this object from eviction now.
    pub fn leased(&self, key: &ObjectKey) -> bool {
        self.with(
            |state| matches!(state.entries.get(key), Some(Entry::Readable(object)) if object.lease_until > state.now),
        )
    }

    /// Every key that the master knows, in order, including the keys of unfinished puts.
    pub fn objects(&self) -> Vec<ObjectKey> {
        self.with(|state| state.entries.keys().cloned().collect())
    }

    /// Every key in a holder's SSD bucket, in order, whether the master knows it or not.
    pub fn bucket(&self, holder: usize) -> Vec<ObjectKey> {
        self.with(|state| {
            let holder = state.holders.get(holder);
            holder.map_or_else(Vec::new, |holder| holder.bucket.keys().cloned().collect())
        })
    }
}
