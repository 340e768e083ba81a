//! Threads of ours inside the Python interpreter, and its end.
//!
//! CPython up to 3.13 ends every thread that asks for its lock once the interpreter is ending, by unwinding its stack.
//! A thread that called from Rust into Python code (a listener of asyncio, a function of Mooncake's module) must not be
//! inside at that moment: its frames cannot be unwound that way, and the C library aborts the process.
//!
//! So every thread of ours enters through [`attach`], which counts it, and [`end`] is called before the interpreter
//! ends: from then on no thread enters, and `end` returns when the last one has left.
//!
//! ```text
//! open ──end()──▶ ending: attach() answers None ──the last thread leaves──▶ the interpreter may end
//! ```
//! - IN1: a thread is counted before it looks whether the interpreter is ending, so `end` sees every thread that goes in.
//! - IN2: no lock is taken before `end` is called. A fork at any moment leaves nothing locked in the child, where
//!   [`after_fork`] forgets the threads that the parent has.
//! - A thread may stay inside for longer than `end` waits (an engine that does not answer): `end` says so. If it comes
//!   back while the interpreter ends, it aborts the process. If it is still inside when the interpreter has ended, the
//!   process ends without the library's destructors (`exit`).
//!
//! A program that embeds the interpreter never ends it; there the process's exit handler calls `end`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use tensorhold_core::{Deadline, SystemClock};

static ENDING: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicUsize = AtomicUsize::new(0);
static LEFT: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// A thread that is inside, until it is dropped.
pub(crate) struct Inside;

impl Inside {
    pub(crate) fn enter() -> Option<Self> {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let inside = Self;
        (!is_ending()).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let was = INSIDE.fetch_sub(1, Ordering::SeqCst);
        if was == 1 && is_ending() {
            let _held = LEFT.0.lock();
            LEFT.1.notify_all();
        }
    }
}

/// Calls `work` with the interpreter's lock held. None if the interpreter is ending, or none is running.
pub fn attach<R>(work: impl for<'py> FnOnce(Python<'py>) -> R) -> Option<R> {
    // Dropped last: the thread has let go of the lock by then.
    let _inside = Inside::enter()?;
    #[cfg(feature = "embed")]
    Python::initialize();
    Python::try_attach(work)
}

/// Whether [`end`] was called.
#[must_use]
pub fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Lets no thread of ours in any more, and waits for those that are inside. The calling thread must not hold the
/// interpreter's lock, which they need. Returns whether all have left.
#[must_use]
pub fn end(within: Duration) -> bool {
    ENDING.store(true, Ordering::SeqCst);
    let clock = SystemClock::new();
    let deadline = Deadline::after(&clock, within);
    let mut held = LEFT.0.lock();
    while INSIDE.load(Ordering::SeqCst) > 0 && !deadline.passed(&clock) {
        LEFT.1.wait_for(&mut held, deadline.remaining(&clock));
    }
    INSIDE.load(Ordering::SeqCst) == 0
}

/// Call it in a forked child: the threads of its parent are not there.
pub fn after_fork() {
    INSIDE.store(0, Ordering::SeqCst);
}
