//! Memory in use: the ranges of this process's memory that an operation works on, or that an engine may still touch.
//!
//! A call into an engine cannot be cancelled. Its caller leaves at the deadline, but the engine may still write into
//! the memory of a get, or read the memory of a put. Memory in flight is busy, whatever owns it: a pool, a view of a
//! tensor, lent or registered memory, a page. So an operation *claims* its ranges before it touches them. The claim
//! travels with the engine call, inside the spans that the engine keeps until the call has returned.
//!
//! ```text
//!          claim()           nothing in its way                 the operation has ended, and
//! caller ──────────▶ Waiting ──────────────────▶ Held ──────────────────────────────────────────▶ free
//!                       │                         ▲            every engine call has returned       │
//!                       │ deadline, or dropped    └── granted in the order of asking ◀── wakes ─────┘
//!                       ▼
//!                     gone: nothing was touched (`Unavailable`, names the holder of the memory)
//! ```
//!
//! Invariants, checked by a property test over module `table` and by a model of every interleaving:
//! - B1: of two claims that are held and overlap, neither writes.
//! - B2: all ranges of a claim are granted at once. A waiting claim holds nothing.
//! - B3: conflicting claims are granted in the order in which they were requested, so none starves.
//! - B4: a claim is granted as soon as no other claim blocks it, and its waiter is woken then. No waiter polls.
//!
//! An operation makes one claim, and no second one while it holds the first; so no two operations wait for each other.
//! An operation that holds a claim may wait for other resources (memory of a pool, a frame, a turn). No operation that
//! waits for a claim holds one of those: claims come first.
//!
//! # One table per process
//! [`Busy::process`] is the one table of this process. Addresses mean the same to all engines of a process: two stores,
//! or a store and a KV tier, may be given the same tensor. With a table for each, their calls could use it at the same
//! time.
//!
//! # What if…
//! - *…the caller leaves?* The claim stays with the engine call. A waiter that leaves is taken out of the queue.
//! - *…the engine never returns?* The memory stays busy until the process ends, and every operation that wants it gets
//!   an error that says so.
//! - *…the memory goes away?* It does not: the spans that hold the claim also hold the memory's owner (module
//!   `region`).
//! - *…the process forks?* The table is the parent's: engines cannot be used in the child, so it makes no claims.

mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tensorhold_core::{Clock, Deadline, Error, Result};

use self::lock::Lock;
use self::table::{Ranges, Table};

/// How an operation uses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads the memory, as a put does. Several operations may read at once.
    Read,
    /// It writes the memory, as a get does. No other operation may use it.
    Write,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "reads",
            Self::Write => "writes",
        })
    }
}

/// Ranges of memory in use. See the module documentation. A clone is the same table.
#[derive(Clone, Debug, Default)]
pub struct Busy(Arc<Lock<Table>>);

static PROCESS: LazyLock<Busy> = LazyLock::new(Busy::default);

impl Busy {
    /// The table of this process.
    pub fn process() -> &'static Self {
        &PROCESS
    }

    /// Requests all of these ranges at once. `Invalid` if two of them overlap and are to be written.
    pub fn claim(
        &self,
        operation: &'static str,
        access: Access,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Waiting> {
        let ranges = Ranges::new(ranges);
        if access == Access::Write
            && let Some(address) = ranges.twice()
        {
            return Err(Error::invalid(
                operation,
                "two tensors would be written to the same memory; give each memory of its own",
            )
            .with("address", format!("{address:#x}")));
        }
        // An empty claim conflicts with nothing, so the table need not know it.
        let id = (!ranges.is_empty()).then(|| self.0.with(|table| table.ask(operation, access, ranges)));
        Ok(Waiting {
            operation,
            claim: Some(Claim { busy: self.clone(), id }),
        })
    }

    /// [`Busy::claim`], waiting on this thread until the deadline.
    pub fn claim_blocking(
        &self,
        operation: &'static str,
        access: Access,
        ranges: impl IntoIterator<Item = Range<usize>>,
        clock: &dyn Clock,
        deadline: Deadline,
    ) -> Result<Claim> {
        let mut waiting = self.claim(operation, access, ranges)?;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(claim) = Pin::new(&mut waiting).poll(&mut context) {
                return Ok(claim);
            }
            let left = deadline.remaining(clock);
            if left.is_zero() {
                return Err(waiting.refusal());
            }
            thread::park_timeout(left);
        }
    }

    /// Refuses memory that is being written, or may be: its content may change at any moment.
    pub fn check_readable(&self, operation: &'static str, range: Range<usize>) -> Result<()> {
        let wanted = Ranges::new([range]);
        match self.0.with(|table| table.writer_of(&wanted)) {
            None => Ok(()),
            Some(holder) => Err(refusal(operation, Some(holder))),
        }
    }
}

/// The claim that blocks another one.
#[derive(Clone, Debug)]
struct Holder {
    operation: &'static str,
    access: Access,
    range: Range<usize>,
}

fn refusal(operation: &'static str, holder: Option<Holder>) -> Error {
    let error = Error::unavailable(
        operation,
        "this memory is in use by an earlier transfer, which the engine has not ended yet, whatever its caller was told; \
         nothing was done: try again when that has ended, or give other memory",
    );
    match holder {
        None => error,
        Some(holder) => error
            .with("used_by", holder.operation)
            .with("which", holder.access)
            .with("address", format!("{:#x}", holder.range.start))
            .with("bytes", holder.range.len()),
    }
}

/// Memory that is held. Dropping the last owner of the claim frees the memory for the next waiter in the queue.
#[derive(Debug)]
pub struct Claim {
    busy: Busy,
    id: Option<u64>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let next = self.busy.0.with(|table| table.end(id));
            // Outside the lock: a waker may run any code.
            next.into_iter().for_each(Waker::wake);
        }
    }
}

/// A claim that is not granted yet. It has its place in the queue from the moment it was made; dropped, it leaves the
/// queue.
#[derive(Debug)]
#[must_use = "a claim that is never awaited holds nothing"]
pub struct Waiting {
    operation: &'static str,
    claim: Option<Claim>,
}

impl Waiting {
    /// The error for a caller whose deadline has passed. It names the claim that blocks this one.
    pub fn refusal(&self) -> Error {
        let id = self.claim.as_ref().and_then(|claim| claim.id);
        let holder = match (&self.claim, id) {
            (Some(claim), Some(id)) => claim.busy.0.with(|table| table.in_the_way_of(id)),
            _ => None,
        };
        refusal(self.operation, holder)
    }
}

impl Future for Waiting {
    type Output = Claim;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Claim> {
        let granted = match &self.claim {
            Some(Claim { busy, id: Some(id) }) => busy.0.with(|table| table.is_granted(*id, context.waker())),
            _ => true,
        };
        match self.claim.take_if(|_| granted) {
            Some(claim) => Poll::Ready(claim),
            // Also if it is polled again after it was ready.
            None => Poll::Pending,
        }
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The lock of the table. The tests of this crate use one that can try every interleaving.
mod lock {
    #[derive(Debug, Default)]
    #[cfg(not(test))]
    pub(super) struct Lock<T>(parking_lot::Mutex<T>);

    #[cfg(not(test))]
    impl<T> Lock<T> {
        pub(super) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
            act(&mut self.0.lock())
        }
    }

    #[cfg(test)]
    #[derive(Debug)]
    pub(super) struct Lock<T>(loom::sync::Mutex<T>);

    #[cfg(test)]
    impl<T: Default> Default for Lock<T> {
        fn default() -> Self {
            Self(loom::sync::Mutex::new(T::default()))
        }
    }

    #[cfg(test)]
    impl<T> Lock<T> {
        pub(super) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
            act(&mut self.0.lock().expect("no panic under the lock"))
        }
    }
}
