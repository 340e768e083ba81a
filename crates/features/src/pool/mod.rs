//! Memory that gets receive into: registered, warm, and used again.
//!
//! Fresh memory is the largest avoidable cost of a get: the kernel clears each page when it is first written. So memory
//! is taken from the system in *slabs*, registered and touched once, and lent out in blocks.
//!
//! ```text
//!        buffer()                the last clone of the block's span is gone
//! free ───────────▶ lent (a loan) ─────────────────────────────────────────▶ free
//!   ▲ no room: a new slab, within the budget                    │
//!   │          idle slabs make way for one that fits            └ the caller's, and those of transfers under way
//!   └ else wait for a block to come back, until the deadline: `Capacity`
//! ```
//!
//! In a sealed store the memory is private instead of registered (module `backing`), and everything else is the same.
//!
//! A block is a loan (module `loan`): a call that ran out of time keeps a clone of its span until the engine has
//! returned, so a block that somebody may still write to is not free, whatever its reader has been told.
//!
//! Invariants: PL1 … PL3 of the module `space`, and
//! - PL4: the slabs, those being made included, never have more bytes than the budget.

mod space;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Clock, Deadline, Error, ErrorKind, Result, Retry};
use holdfast_engine::{HostMemory, Region, Span};
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::space::{Block, GRAIN, Space, rounded};
use crate::backing::Backing;
use crate::calls::Calls;
use crate::loan::lend;

const OPERATION: &str = "features.pool";
/// The usual size of a slab. Larger blocks get one of their own.
const SLAB: usize = 64 << 20;

/// Memory that is lent out and comes back: registered, or private in a sealed store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BufferPool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    backing: Backing,
    calls: Calls,
    clock: Arc<dyn Clock>,
    budget: usize,
    state: Mutex<State>,
    /// Told whenever something came back or a slab came in.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    space: Space,
    slabs: HashMap<u64, Region>,
    /// Bytes of slabs that are being made.
    coming: usize,
}

/// How much of a pool is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// The most bytes that it may take.
    pub budget: u64,
    /// The bytes that it has taken and registered.
    pub taken: u64,
    /// Those of them that are lent out.
    pub lent: u64,
}

/// Gives a block back when nobody can touch it any more.
struct Lent {
    pool: Arc<Shared>,
    block: Block,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.state.lock().space.give_back(self.block);
        self.pool.changed.notify_waiters();
    }
}

/// Bytes of a slab that is being made; they stop counting as such when it is there, or was not to be had.
struct Coming<'a> {
    pool: &'a Shared,
    len: usize,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.pool.state.lock().coming -= self.len;
        self.pool.changed.notify_waiters();
    }
}

/// What is to be done for a block that is wanted.
enum Next<'a> {
    Have(Span, Block),
    /// Make a slab; those that had to make way are dropped first.
    Make(Coming<'a>, Vec<Region>),
    Wait,
}

impl BufferPool {
    pub(crate) fn new(backing: Backing, calls: Calls, clock: Arc<dyn Clock>, budget: u64) -> Self {
        Self(Arc::new(Shared {
            backing,
            calls,
            clock,
            budget: usize::try_from(budget).unwrap_or(usize::MAX),
            state: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Memory of exactly `len` bytes. It comes back when the last clone of the span is dropped, by the caller and by the
    /// engine. What is in it is unspecified. Waits for memory to come back if all of it is lent; `Capacity` if none does
    /// within the time.
    pub async fn buffer(&self, len: usize, within: Duration) -> Result<Span> {
        self.take(len, Deadline::after(&*self.0.clock, within)).await
    }

    /// Takes and touches memory ahead of its use, until there are `bytes` in all.
    pub async fn warm(&self, bytes: u64, within: Duration) -> Result<()> {
        let pool = &*self.0;
        let deadline = Deadline::after(&*pool.clock, within);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(pool.budget);
        loop {
            let coming = {
                let mut state = pool.state.lock();
                let have = state.space.total() + state.coming;
                let len = slab_len(bytes.saturating_sub(have).min(SLAB), pool.budget.saturating_sub(have));
                let Some(len) = len.filter(|_| have < bytes) else {
                    return Ok(());
                };
                state.coming += len;
                Coming { pool, len }
            };
            pool.make(coming, deadline).await?;
        }
    }

    /// How much of it is in use.
    pub fn usage(&self) -> PoolUse {
        let state = self.0.state.lock();
        PoolUse {
            budget: self.0.budget as u64,
            taken: state.space.total() as u64,
            lent: state.space.lent() as u64,
        }
    }

    pub(crate) async fn take(&self, len: usize, deadline: Deadline) -> Result<Span> {
        let pool = &*self.0;
        let want = rounded(len)
            .filter(|want| len > 0 && *want <= pool.budget)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Capacity,
                    OPERATION,
                    "no buffer of this length fits into the pool; raise pool_bytes, or receive into memory of your own",
                )
                .with_retry(Retry::Never)
                .with("len", len)
                .with("pool_bytes", pool.budget)
            })?;
        loop {
            // Listen first, then look: what comes back in between is not missed.
            let mut changed = std::pin::pin!(pool.changed.notified());
            changed.as_mut().enable();
            match pool.next(want)? {
                Next::Have(slab, block) => {
                    let from = block.at + slab.address() - slab.region().address();
                    let span = slab.region().span(from..from + len)?;
                    let back = Lent {
                        pool: Arc::clone(&self.0),
                        block,
                    };
                    return lend(span, back);
                }
                Next::Make(coming, make_way) => {
                    drop(make_way);
                    pool.make(coming, deadline).await?;
                }
                Next::Wait => {
                    let left = deadline.remaining(&*pool.clock);
                    if left.is_zero() || tokio::time::timeout(left, changed).await.is_err() {
                        return Err(pool.exhausted(len));
                    }
                }
            }
        }
    }
}

/// The length of a slab for a block of `want` bytes, if there is `room` for one.
fn slab_len(want: usize, room: usize) -> Option<usize> {
    let usual = SLAB.min(room / GRAIN * GRAIN);
    let len = want.max(usual);
    (len > 0 && len <= room).then_some(len)
}

impl Shared {
    fn next(&self, want: usize) -> Result<Next<'_>> {
        let mut state = self.state.lock();
        if let Some(block) = state.space.take(want) {
            let Some(slab) = state.slabs.get(&block.slab) else {
                state.space.give_back(block);
                return Err(Error::internal(OPERATION, "a slab has no memory"));
            };
            return Ok(Next::Have(slab.whole(), block));
        }
        let mut room = self.budget.saturating_sub(state.space.total() + state.coming);
        let mut make_way = Vec::new();
        if room < want && room + state.space.idle_bytes() >= want {
            for id in state.space.drop_idle(want - room) {
                make_way.extend(state.slabs.remove(&id));
            }
            room = self.budget.saturating_sub(state.space.total() + state.coming);
        }
        let Some(len) = slab_len(want, room) else {
            return Ok(Next::Wait);
        };
        state.coming += len;
        Ok(Next::Make(Coming { pool: self, len }, make_way))
    }

    /// Makes a slab: takes memory, registers it, touches every page.
    async fn make(&self, coming: Coming<'_>, deadline: Deadline) -> Result<()> {
        let (backing, len) = (self.backing.clone(), coming.len);
        let region = self
            .calls
            .run(OPERATION, deadline, move |within| {
                let region = backing.region(HostMemory::allocate(len)?, within)?;
                let whole = region.whole();
                for page in (0..len).step_by(GRAIN) {
                    whole.write(page, &[0])?;
                }
                Ok(region)
            })
            .await?;
        let mut state = self.state.lock();
        let id = state.space.add(len);
        state.slabs.insert(id, region);
        drop(state);
        drop(coming);
        Ok(())
    }

    fn exhausted(&self, len: usize) -> Error {
        let lent = self.state.lock().space.lent();
        Error::new(
            ErrorKind::Capacity,
            OPERATION,
            "all buffers are lent out; drop tensors that are no longer needed, or raise pool_bytes",
        )
        .with("len", len)
        .with("lent", lent)
        .with("pool_bytes", self.budget)
    }
}

#[cfg(test)]
mod tests;
