//! Memory that gets receive into: registered, warm, and reused.
//!
//! Fresh memory is the largest avoidable cost of a get: the kernel clears each page when it is first written. So memory
//! is taken from the system in *slabs*, registered and touched once, and lent out in blocks.
//!
//! ```text
//!        buffer()                the last clone of the block's span is gone
//! free ───────────▶ lent (guarded) ────────────────────────────────────────▶ free
//!   ▲ no room: a new slab, within the budget                    │
//!   │          idle slabs make way for one that fits            └ the caller's, and those of transfers under way
//!   └ else wait for a block to come back, until the deadline: `Capacity`
//! ```
//!
//! An operation asks for all its blocks at once, and operations are served in the order in which they asked: only the
//! first in the queue takes anything. So none holds some blocks while it waits for others, and a large request is not
//! starved by small ones that would fit before it. A request that fits into an empty pool is served at the latest when
//! every other block is back: then all slabs make way for one that holds the whole request.
//!
//! In a sealed store the memory is private instead of registered (module `backing`); everything else is the same.
//!
//! A block is a guarded span ([`tensorhold_engine::guarded`]): a call that ran out of time keeps a clone of its span until the engine
//! has returned. So a block that the engine may still write to is not free, whatever its reader has been told.
//!
//! Invariants: PL1 … PL3 of the module `space`, and
//! - PL4: the slabs, including those being made, never have more bytes than the budget.
//! - PL5: blocks are lent in the order of the queue, and all blocks of a request at once.

mod space;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry};
use tensorhold_engine::{HostMemory, Region, Span};
use tokio::sync::Notify;

use self::space::{Block, GRAIN, Space, rounded};
use crate::memory::backing::Backing;
use crate::memory::device::Device;
use crate::runtime::blocking::BlockingCalls;

const OPERATION: &str = "features.pool";
/// The usual size of a slab. A larger block gets a slab of its own.
const SLAB: usize = 64 << 20;

/// Memory that is lent out and comes back: registered, or private in a sealed store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct BufferPool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    backing: Backing,
    calls: BlockingCalls,
    clock: Arc<dyn Clock>,
    budget: usize,
    /// Where the memory of new slabs comes from, if not from the system.
    device: Mutex<Option<Arc<dyn Device>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    space: Space,
    slabs: HashMap<u64, Region>,
    /// Bytes of slabs that are being made.
    coming: usize,
    /// Requests in the order in which they came. Each is notified when it is the first and something came back.
    line: VecDeque<Arc<Notify>>,
}

impl State {
    /// The memory of each block.
    fn with_slabs(&mut self, blocks: Vec<Option<Block>>) -> Result<Vec<(Span, Block)>> {
        let of = |block: &Block| self.slabs.get(&block.slab).map(|slab| (slab.whole(), *block));
        let found: Option<Vec<(Span, Block)>> = blocks.iter().map(|block| block.as_ref().and_then(of)).collect();
        found.ok_or_else(|| {
            for block in blocks.into_iter().flatten() {
                self.space.give_back(block);
            }
            Error::internal(OPERATION, "a slab has no memory; this is a bug")
        })
    }

    /// Notifies the first in the queue: something came back, or it has just become the first.
    fn tell_first(&self) {
        if let Some(first) = self.line.front() {
            first.notify_one();
        }
    }
}

/// How much of a pool is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// The most bytes that the pool may allocate.
    pub budget: u64,
    /// The bytes that it has allocated and registered.
    pub taken: u64,
    /// The part of those that is lent out.
    pub lent: u64,
}

/// Gives a block back when nothing can touch it any more.
struct Lent {
    pool: Arc<Shared>,
    block: Block,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.space.give_back(self.block);
        state.tell_first();
    }
}

/// Bytes of a slab that is being made. They stop counting as such when the slab is there, or could not be made.
struct Coming<'a> {
    pool: &'a Shared,
    len: usize,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.coming -= self.len;
        state.tell_first();
    }
}

/// A request's place in the queue. Dropping it makes the next request the first.
struct InLine<'a> {
    pool: &'a Shared,
    told: Arc<Notify>,
}

impl<'a> InLine<'a> {
    fn new(pool: &'a Shared) -> Self {
        let told = Arc::new(Notify::new());
        pool.state.lock().line.push_back(Arc::clone(&told));
        Self { pool, told }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        state.line.retain(|other| !Arc::ptr_eq(other, &self.told));
        state.tell_first();
    }
}

/// What a request does next.
enum Next<'a> {
    /// A block for each length, in order, each with its slab.
    Have(Vec<(Span, Block)>),
    /// Make a slab; the slabs that have to make way are dropped first.
    Make(Coming<'a>, Vec<Region>),
    Wait,
}

impl BufferPool {
    pub(crate) fn new(backing: Backing, calls: BlockingCalls, clock: Arc<dyn Clock>, budget: u64) -> Self {
        Self(Arc::new(Shared {
            backing,
            calls,
            clock,
            budget: usize::try_from(budget).unwrap_or(usize::MAX),
            device: Mutex::new(None),
            state: Mutex::default(),
        }))
    }

    /// From now on, new slabs are in memory that this device copies fast, and idle ones make way for them. The first device
    /// decides.
    pub(crate) fn allocate_for(&self, device: &Arc<dyn Device>) {
        {
            let mut known = self.0.device.lock();
            if known.is_some() {
                return;
            }
            *known = Some(Arc::clone(device));
        }
        let mut state = self.0.state.lock();
        let idle = state.space.drop_idle(usize::MAX);
        let idle: Vec<Region> = idle.iter().filter_map(|id| state.slabs.remove(id)).collect();
        drop(state);
        drop(idle); // it unregisters them
    }

    /// Memory of exactly `len` bytes. It returns to the pool when the last clone of the span is dropped, by the caller
    /// and by the engine. Its content is unspecified. Waits for memory to come back if all of it is lent; `Capacity` if
    /// none does within the time.
    pub async fn buffer(&self, len: usize, within: Duration) -> Result<Span> {
        self.take(len, Deadline::after(&*self.0.clock, within)).await
    }

    /// Allocates and touches memory ahead of its use, until the pool has `bytes` in all.
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

    /// How much of the pool is in use.
    pub fn usage(&self) -> PoolUse {
        let state = self.0.state.lock();
        PoolUse {
            budget: self.0.budget as u64,
            taken: state.space.total() as u64,
            lent: state.space.lent() as u64,
        }
    }

    /// [`BufferPool::buffer`] for several buffers at once: all of them, or none.
    pub async fn buffers(&self, lens: &[usize], within: Duration) -> Result<Vec<Span>> {
        self.take_all(lens, Deadline::after(&*self.0.clock, within)).await
    }

    /// [`BufferPool::buffers`] without waiting for memory to come back; none if that would take waiting.
    pub async fn free_buffers(&self, lens: &[usize], within: Duration) -> Result<Option<Vec<Span>>> {
        self.take_free(lens, Deadline::after(&*self.0.clock, within)).await
    }

    pub(crate) async fn take(&self, len: usize, deadline: Deadline) -> Result<Span> {
        let missing = || Error::internal(OPERATION, "a request for one buffer got none; this is a bug");
        self.take_all(&[len], deadline).await?.pop().ok_or_else(missing)
    }

    pub(crate) async fn take_all(&self, lens: &[usize], deadline: Deadline) -> Result<Vec<Span>> {
        let taken = self.take_if(lens, deadline, true).await?;
        taken.ok_or_else(|| self.0.exhausted(lens))
    }

    /// Whether a buffer of this length fits into an empty pool.
    pub(crate) fn ever_fits(&self, len: usize) -> bool {
        self.0.wants(&[len]).is_ok()
    }

    /// Whether this is more than half of the pool.
    pub(crate) fn is_large(&self, lens: &[usize]) -> bool {
        let blocks = lens.iter().map(|len| rounded(*len).unwrap_or(usize::MAX));
        blocks.fold(0, usize::saturating_add) > self.0.budget / 2
    }

    /// Memory that is available without waiting for other operations to give theirs back; none if there is none, or
    /// others wait.
    pub(crate) async fn take_free(&self, lens: &[usize], deadline: Deadline) -> Result<Option<Vec<Span>>> {
        self.take_if(lens, deadline, false).await
    }

    async fn take_if(&self, lens: &[usize], deadline: Deadline, patient: bool) -> Result<Option<Vec<Span>>> {
        let pool = &*self.0;
        let wants = match pool.wants(lens) {
            Err(_never) if !patient => return Ok(None),
            wants => wants?,
        };
        let place = InLine::new(pool);
        loop {
            match pool.next(&wants, &place)? {
                Next::Have(blocks) => return self.lent(lens, blocks).map(Some),
                Next::Make(coming, make_way) => {
                    drop(make_way);
                    pool.make(coming, deadline).await?;
                }
                Next::Wait => {
                    let left = deadline.remaining(&*pool.clock);
                    let told = place.told.notified();
                    if !patient || left.is_zero() || tokio::time::timeout(left, told).await.is_err() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Wraps blocks in spans that give them back.
    fn lent(&self, lens: &[usize], blocks: Vec<(Span, Block)>) -> Result<Vec<Span>> {
        // Each gives its block back, whatever becomes of the others.
        let guarded: Vec<(Span, Lent)> = blocks
            .into_iter()
            .map(|(slab, block)| {
                let pool = Arc::clone(&self.0);
                (slab, Lent { pool, block })
            })
            .collect();
        let lend_one = |((slab, back), len): ((Span, Lent), &usize)| {
            let from = back.block.at + slab.address() - slab.region().address();
            slab.region().span(from..from + len)?.guarded(back)
        };
        guarded.into_iter().zip(lens).map(lend_one).collect()
    }
}

/// The length of a slab for a block of `want` bytes, if there is `room` for one.
fn slab_len(want: usize, room: usize) -> Option<usize> {
    let usual = SLAB.min(room / GRAIN * GRAIN);
    let len = want.max(usual);
    (len > 0 && len <= room).then_some(len)
}

impl Shared {
    /// The block lengths for these buffers. `Capacity` if together they can never fit.
    fn wants(&self, lens: &[usize]) -> Result<Vec<usize>> {
        let blocks: Option<Vec<usize>> = lens.iter().map(|len| rounded(*len).filter(|_| *len > 0)).collect();
        let total = |blocks: &[usize]| blocks.iter().try_fold(0_usize, |sum, block| sum.checked_add(*block));
        let fits = |blocks: &Vec<usize>| total(blocks).is_some_and(|total| total <= self.budget);
        blocks.filter(fits).ok_or_else(|| {
            Error::new(
                ErrorKind::Capacity,
                OPERATION,
                "buffers of this length do not fit into the pool; raise pool_bytes, or receive into memory of your own",
            )
            .with_retry(Retry::Never)
            .with("len", lens.iter().fold(0_usize, |sum, len| sum.saturating_add(*len)))
            .with("pool_bytes", self.budget)
        })
    }

    fn next(&self, wants: &[usize], place: &InLine<'_>) -> Result<Next<'_>> {
        let mut state = self.state.lock();
        if !state.line.front().is_some_and(|first| Arc::ptr_eq(first, &place.told)) {
            return Ok(Next::Wait);
        }
        let others = state.space.lent();
        // The longest first: the shorter ones find room in the rest.
        let mut order: Vec<usize> = (0..wants.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(wants[*at]));
        let mut blocks: Vec<Option<Block>> = vec![None; wants.len()];
        let mut missing = None;
        for at in order {
            blocks[at] = state.space.take(wants[at]);
            if blocks[at].is_none() {
                missing = Some(wants[at]);
                break;
            }
        }
        let Some(missing) = missing else {
            return state.with_slabs(blocks).map(Next::Have);
        };
        // Slabs that hold the other blocks of this request are not idle: they do not make way.
        let next = self.make_room(&mut state, missing);
        for block in blocks.into_iter().flatten() {
            state.space.give_back(block);
        }
        if let Some((len, make_way)) = next {
            return Ok(Next::Make(Coming { pool: self, len }, make_way));
        }
        if others > 0 || state.coming > 0 {
            return Ok(Next::Wait);
        }
        // Nothing is lent, and the request does not fit the slabs that exist: one slab for all of it replaces them.
        let total: usize = wants.iter().sum();
        let gone = state.space.drop_idle(usize::MAX);
        let make_way = gone.iter().filter_map(|id| state.slabs.remove(id)).collect();
        state.coming += total;
        Ok(Next::Make(Coming { pool: self, len: total }, make_way))
    }

    /// Makes room for a slab with a block of `want` bytes, if possible; returns its length, and the slabs that make
    /// way.
    fn make_room(&self, state: &mut State, want: usize) -> Option<(usize, Vec<Region>)> {
        let mut room = self.budget.saturating_sub(state.space.total() + state.coming);
        let mut make_way = Vec::new();
        if room < want && room + state.space.idle_bytes() >= want {
            for id in state.space.drop_idle(want - room) {
                make_way.extend(state.slabs.remove(&id));
            }
            room = self.budget.saturating_sub(state.space.total() + state.coming);
        }
        let len = slab_len(want, room)?;
        state.coming += len;
        Some((len, make_way))
    }

    /// Makes a slab: allocates memory, registers it, touches every page.
    async fn make(&self, coming: Coming<'_>, deadline: Deadline) -> Result<()> {
        let (backing, len) = (self.backing.clone(), coming.len);
        let device = self.device.lock().clone();
        let region = self
            .calls
            .run(OPERATION, deadline, move |within| {
                let memory = match device {
                    Some(device) => device.stage(len)?,
                    None => HostMemory::allocate(len)?,
                };
                let region = backing.region(memory, within)?;
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

    fn exhausted(&self, lens: &[usize]) -> Error {
        let (lent, waiting) = {
            let state = self.state.lock();
            (state.space.lent(), state.line.len())
        };
        Error::new(
            ErrorKind::Capacity,
            OPERATION,
            "all buffers are lent out; drop tensors that are no longer needed, or raise pool_bytes",
        )
        .with("len", lens.iter().sum::<usize>())
        .with("lent", lent)
        .with("waiting", waiting)
        .with("pool_bytes", self.budget)
    }
}

#[cfg(test)]
mod tests;
