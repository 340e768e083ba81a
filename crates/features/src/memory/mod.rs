//! Memory that tensors lie in: where it comes from, who may touch it, and when it may be used again.

pub(crate) mod backing;
pub(crate) mod claims;
pub(crate) mod pool;
pub(crate) mod spans;
pub(crate) mod tensors;

use std::ops::Range;
use std::sync::Arc;

use holdfast_core::{Clock, Deadline, Result};
use holdfast_engine::busy::Waiting;
use holdfast_engine::{Access, Busy, Claim, HostMemory, Region, Span};

use self::backing::Backing;
use self::pool::BufferPool;
use self::tensors::Source;
use crate::runtime::Runtime;
use crate::runtime::blocking::BlockingCalls;

/// The memory of a store.
#[derive(Debug)]
pub(crate) struct Memory {
    blocking: BlockingCalls,
    clock: Arc<dyn Clock>,
    pub(crate) pool: BufferPool,
    /// The kind of memory that tensors lie in: registered, or private in a sealed store.
    pub(crate) backing: Backing,
    /// Private memory, for tensors that the pool has no room for.
    pub(crate) private: Backing,
    /// Stages that gets receive objects into that do not arrive at their destination: sealed objects, and those of
    /// tensors in private memory.
    pub(crate) incoming: BufferPool,
    sealed: bool,
}

impl Memory {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        let (config, private) = (&runtime.config, Backing::private());
        let sealed = config.keyring.is_some();
        let backing = match sealed {
            true => private.clone(),
            false => Backing::Engine(Arc::clone(&runtime.engine)),
        };
        Self {
            blocking: runtime.blocking.clone(),
            clock: Arc::clone(&runtime.clock),
            pool: pool(runtime, backing.clone(), config.pool_bytes),
            backing,
            private,
            incoming: stage(runtime),
            sealed,
        }
    }

    /// Whether the engine does not know this memory although tensors of this store lie in registered memory.
    pub(crate) fn is_private(&self, span: &Span) -> bool {
        !self.sealed && self.private.keeps_private(span)
    }

    /// Registers memory; in a sealed store, not with the engine.
    pub(crate) async fn register(&self, memory: HostMemory, deadline: Deadline) -> Result<Region> {
        let backing = self.backing.clone();
        let call = move |within| backing.region(memory, within);
        self.blocking.run("features.register", deadline, call).await
    }

    /// The spans of this memory, registered now if they were not; in a plain store, with the engine.
    pub(crate) async fn registered(&self, source: Source, deadline: Deadline) -> Result<Vec<Span>> {
        let spans = match source {
            Source::Lent(memory) => return Ok(vec![self.register(memory, deadline).await?.whole()]),
            Source::Spans(spans) => spans,
        };
        if !spans.iter().any(|span| self.is_private(span)) {
            return Ok(spans);
        }
        // Private memory that an earlier get has returned: it is registered with the engine for this transfer.
        let mut known = Vec::with_capacity(spans.len());
        for span in spans {
            known.push(match self.is_private(&span) {
                true => self.register(span.lent_again()?, deadline).await?.whole(),
                false => span,
            });
        }
        Ok(known)
    }

    /// Claims all of this memory at once, as soon as no other operation and no late call uses it. `Unavailable` at the
    /// deadline.
    pub(crate) async fn claim(
        &self,
        operation: &'static str,
        access: Access,
        ranges: Vec<Range<usize>>,
        deadline: Deadline,
    ) -> Result<Arc<Claim>> {
        let waiting = Busy::process().claim(operation, access, ranges)?;
        self.granted(waiting, deadline).await.map(Arc::new)
    }

    /// Waits until a queued claim is granted. `Unavailable` at the deadline.
    pub(crate) async fn granted(&self, mut waiting: Waiting, deadline: Deadline) -> Result<Claim> {
        let left = deadline.remaining(&*self.clock);
        match tokio::time::timeout(left, &mut waiting).await {
            Ok(claim) => Ok(claim),
            Err(_) => Err(waiting.refusal()),
        }
    }
}

fn pool(runtime: &Runtime, backing: Backing, bytes: u64) -> BufferPool {
    BufferPool::new(backing, runtime.blocking.clone(), Arc::clone(&runtime.clock), bytes)
}

/// A stage: registered memory that objects pass through. It allocates nothing before it is used.
pub(crate) fn stage(runtime: &Runtime) -> BufferPool {
    pool(
        runtime,
        Backing::Engine(Arc::clone(&runtime.engine)),
        runtime.config.stage_bytes,
    )
}
