//! Memory that tensors lie in: where it comes from, who may touch it, and when it may be used again.

pub(crate) mod backing;
pub(crate) mod claims;
pub(crate) mod device;
pub(crate) mod pool;
pub(crate) mod spans;
pub(crate) mod tensors;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry};
use tensorhold_engine::busy::Waiting;
use tensorhold_engine::{Access, Busy, Claim, HostMemory, Region, Span};

use self::backing::Backing;
use self::device::DeviceBytes;
use self::pool::BufferPool;
use self::tensors::{Source, TensorMemory};
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

    /// Registers what is lent among the memory of several tensors, with one blocking call: a wait for each would cost as much
    /// again as the registration.
    pub(crate) async fn register_all(&self, memory: Vec<Source>, deadline: Deadline) -> Result<Vec<TensorMemory>> {
        let (backing, clock) = (self.backing.clone(), Arc::clone(&self.clock));
        let any_lent = memory.iter().any(|one| matches!(one, Source::Lent(_)));
        let register = move |one| {
            Ok(match one {
                Source::Spans(spans) => TensorMemory::Host(spans),
                Source::Lent(memory) => {
                    TensorMemory::Host(vec![backing.region(memory, deadline.remaining(&*clock))?.whole()])
                }
                Source::Device(bytes) => TensorMemory::Device(bytes),
            })
        };
        let all = move |_| memory.into_iter().map(register).collect();
        match any_lent {
            true => self.blocking.run("features.register", deadline, all).await,
            false => all(Duration::ZERO),
        }
    }

    /// The same memory, registered now if it was not; in a plain store, with the engine.
    pub(crate) async fn registered(&self, spans: Vec<Span>, deadline: Deadline) -> Result<Vec<Span>> {
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

/// Memory that objects pass through which do not move straight between tensor and engine: sealed ones, those of tensors
/// in private memory, and those of tensors on a device. It allocates nothing before it is used.
#[derive(Debug)]
pub(crate) struct Stages {
    /// Puts send from here. Apart from those of gets: a put that waits for room in the engine keeps its stage, and gets make
    /// that room.
    pub(crate) outgoing: BufferPool,
    /// Gets arrive here.
    pub(crate) incoming: BufferPool,
    /// Private memory, for the plaintext of tensors on a device in a sealed store. It is the last memory that an operation
    /// asks for, and none waits for anything while it has some.
    pub(crate) plain: BufferPool,
}

impl Stages {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        let stage = |backing| pool(runtime, backing, runtime.config.stage_bytes);
        let registered = || stage(Backing::Engine(Arc::clone(&runtime.engine)));
        Self {
            outgoing: registered(),
            incoming: registered(),
            plain: stage(Backing::private()),
        }
    }

    /// Checks that a tensor on a device can pass in objects of this size. From now on, new stages are in memory that its
    /// device copies fast.
    pub(crate) fn prepare_for(
        &self,
        operation: &'static str,
        bytes: &dyn DeviceBytes,
        object_bytes: u64,
    ) -> Result<()> {
        let object = usize::try_from(object_bytes).unwrap_or(usize::MAX).min(bytes.len());
        if !self.outgoing.ever_fits(object) {
            return Err(Error::new(
                ErrorKind::Capacity,
                operation,
                "an object of a tensor on a device does not fit into a stage; raise stage_bytes, or put in smaller chunks \
                 (chunk_bytes)",
            )
            .with_retry(Retry::Never)
            .with("object_bytes", object)
            .with("stage_bytes", self.outgoing.usage().budget));
        }
        for pool in [&self.outgoing, &self.incoming, &self.plain] {
            pool.allocate_for(&bytes.device());
        }
        Ok(())
    }
}
