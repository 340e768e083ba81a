//! One runtime per process; and what a fork leaves behind.
//!
//! A fork copies memory but no thread. In the child, the parent's runtime, engine and session are unusable: their
//! threads are gone, their locks may be held for ever, their connections belong to the parent. So:
//! - PR1: the runtime belongs to the process that made it; a child makes its own and does not touch the parent's.
//! - PR2: every value that lives on a runtime is wrapped in [`ProcessBound`]: in another process it can be neither used nor
//!   dropped.
//! - PR3: the engine's library starts its own threads on first use and cannot start them again. A child of a process
//!   that has used the library would wait for them for ever, so it is refused instead ([`claim_engine`]).
//!
//! Nothing here takes a lock, since another thread may have held it at the fork.
//!
//! When the interpreter ends, threads can no longer call into Python (`tensorhold_engine_mooncake::interpreter`): from
//! then on, values whose drop might call Python are leaked; the kernel frees everything a moment later.

#![expect(
    unsafe_code,
    reason = "a pointer to the runtime, exchanged without a lock; each block says why it holds"
)]

use std::mem::ManuallyDrop;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use tensorhold_core::{Error, ErrorKind, Result};
use tensorhold_engine_mooncake::interpreter;
use tokio::runtime::{Builder, Runtime};

const THREADS: usize = 2;

struct Home {
    pid: u32,
    runtime: Runtime,
}

static HOME: AtomicPtr<Home> = AtomicPtr::new(ptr::null_mut());
static ENGINE_USED_BY: AtomicU32 = AtomicU32::new(0);

/// The runtime of this process; created when it is first needed.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    let pid = process::id();
    loop {
        let seen = HOME.load(Ordering::Acquire);
        // SAFETY: the target of HOME is never freed (PR1: a child does not touch it), so it is valid for ever.
        if let Some(home) = unsafe { seen.as_ref() }
            && home.pid == pid
        {
            return Ok(&home.runtime);
        }
        let made = Box::into_raw(Box::new(Home { pid, runtime: make()? }));
        let put_up = HOME.compare_exchange(seen, made, Ordering::AcqRel, Ordering::Acquire);
        if put_up.is_err() {
            // SAFETY: no other thread has seen `made`, which came from a Box just now.
            let ours = unsafe { Box::from_raw(made) };
            ours.runtime.shutdown_background();
        }
    }
}

fn make() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("tensorhold")
        .enable_all()
        .build()
        .map_err(|error| Error::unavailable("python.runtime", "the runtime's threads did not start").caused_by(error))
}

/// Must be called before the engine's library is used.
pub(crate) fn claim_engine() -> Result<()> {
    let pid = process::id();
    match ENGINE_USED_BY.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire) {
        Err(user) if user != pid => Err(Error::new(
            ErrorKind::Unsupported,
            "python.open",
            "the engine was in use before this process was forked, and its library cannot be used on both sides of a \
             fork; start workers by spawn or forkserver (for a DataLoader: multiprocessing_context=\"spawn\"), or \
             open the store with lazy=True and use it only after the fork",
        )
        .with("used_by", user)),
        _ => Ok(()),
    }
}

/// A value that can be used and dropped only in the process that made it.
#[derive(Debug)]
pub(crate) struct ProcessBound<T> {
    pid: u32,
    value: ManuallyDrop<T>,
}

impl<T> ProcessBound<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            pid: process::id(),
            value: ManuallyDrop::new(value),
        }
    }

    /// The value. `what` names it in the error message.
    pub(crate) fn get(&self, what: &'static str) -> Result<&T> {
        if self.pid == process::id() {
            return Ok(&self.value);
        }
        Err(Error::new(
            ErrorKind::Fenced,
            "python.fork",
            format!("this {what} belongs to the process that this one was forked from; get another in this process"),
        )
        .with("owner", self.pid))
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.pid == process::id() && !interpreter::is_ending() {
            // SAFETY: the value is dropped only here, and not touched after it.
            unsafe {
                ManuallyDrop::drop(&mut self.value);
            }
        }
    }
}
