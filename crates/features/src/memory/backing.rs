//! Where the memory of tensors comes from: registered with the engine, or private to this process.
//!
//! The engine's ports authenticate no peer: any process that reaches one may read and write all memory that is
//! registered there, by its address. In a plain store tensors lie in registered memory, so that bytes move once. In a
//! sealed store plaintext is never registered: only the stages are (module `sealed`), and they hold ciphertext.
//!
//! Tensors that the pool has no room for lie in private memory in a plain store too, and arrive through a stage.
//!
//! Private memory has an engine id of its own, so an engine refuses it if it is ever given to one.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::Result;
use tensorhold_engine::{Engine, EngineId, HostMemory, Region, Registrar, Span};

/// Turns memory into regions.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Registered with the engine.
    Engine(Arc<dyn Engine>),
    /// Known to this process alone.
    Private(Arc<Nobody>),
}

/// The registrar of private memory: there is nothing to unregister.
#[derive(Debug)]
pub(crate) struct Nobody(EngineId);

impl Registrar for Nobody {
    fn engine(&self) -> EngineId {
        self.0
    }

    fn unregister(&self, memory: HostMemory) {
        drop(memory);
    }
}

impl Backing {
    /// Private memory.
    pub(crate) fn private() -> Self {
        Self::Private(Arc::new(Nobody(EngineId::unique())))
    }

    /// Whether this is private memory that was allocated here.
    pub(crate) fn keeps_private(&self, span: &Span) -> bool {
        matches!(self, Self::Private(nobody) if nobody.0 == span.region().engine())
    }

    /// Makes a region of memory.
    pub(crate) fn region(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        match self {
            Self::Engine(engine) => engine.register(memory, within),
            Self::Private(nobody) => {
                let nobody: Arc<dyn Registrar> = Arc::<Nobody>::clone(nobody);
                Ok(Region::new(memory, nobody))
            }
        }
    }
}
