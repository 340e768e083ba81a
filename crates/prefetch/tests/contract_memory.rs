//! The contract suite on a prefetching engine over the memory engine: reading ahead changes nothing that the contract
//! promises.

use std::sync::Arc;

use tensorhold_core::{Clock, ObjectKey, Result};
use tensorhold_engine::Engine;
use tensorhold_engine::testing::{Backend, Harness, MemoryBackend, Setup};
use tensorhold_prefetch::{PrefetchConfig, PrefetchEngine, Priority};

struct Prefetching(MemoryBackend);

impl Backend for Prefetching {
    fn start(&self, setup: &Setup) -> Result<Box<dyn Harness>> {
        Ok(Box::new(Over(self.0.start(setup)?)))
    }
}

struct Over(Box<dyn Harness>);

impl Harness for Over {
    fn connect(&self) -> Result<Arc<dyn Engine>> {
        let engine = PrefetchEngine::new(self.0.connect()?, PrefetchConfig::default(), self.0.clock())?;
        // Before its first prefetch it hands every call on.
        drop(engine.prefetch(&[ObjectKey::new("nothing")?], Priority::Guess));
        Ok(Arc::new(engine))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }

    fn abandon_put(&self, key: &ObjectKey, bytes: u64) -> Result<()> {
        self.0.abandon_put(key, bytes)
    }

    fn kill_holder(&self, holder: usize) -> Result<()> {
        self.0.kill_holder(holder)
    }

    fn restart_holder(&self, holder: usize) -> Result<()> {
        self.0.restart_holder(holder)
    }

    fn kill_master(&self) -> Result<()> {
        self.0.kill_master()
    }

    fn restart_master(&self) -> Result<()> {
        self.0.restart_master()
    }
}

fn main() {
    tensorhold_engine::testing::main(Prefetching(MemoryBackend));
}
