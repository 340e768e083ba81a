//! The end of the process while calls are under way.
//!
//! In the first `setup` of a process, Mooncake's library registers an exit handler. That handler destroys every client
//! of the process, also one that another thread is calling; the library's static objects are destroyed after it. A call
//! to a master that does not answer lasts for seconds. So a process that ended meanwhile could crash (SIGSEGV) when all
//! its work was done.
//!
//! Exit handlers run in the reverse order of their registration. So this crate registers one of its own after the
//! library's, and that one waits first:
//!
//! ```text
//!            no thread is inside the module any more
//! exit() ──▶ waits ─────────────────────────────────▶ the library's handler and destructors run
//!              │ CALLS_RETURN_WITHIN has passed
//!              ▼
//!            _exit() with the same status: no further handler or destructor runs
//! ```
//!
//! Invariants:
//! - EX1: once the handler runs, no thread enters the module any more ([`interpreter::end`]).
//! - EX2: no handler that was registered before ours, and no destructor of the library's, runs while a thread is inside
//!   the module.
//!
//! A forked child has its parent's handlers and none of its threads: the library's handler would wait for them, or crash.
//! So in a child of the process that registered the handler, ours ends the child at once by `_exit`, with the same status.
//!
//! After `_exit`, the master learns of the end as it learns of a crash: by the client's silence.
//!
//! What is not covered:
//! - A static object that the library makes for the first time in a call, and so after our registration, is destroyed
//!   before our handler runs. Setting up a client makes those that are known. For others the handler is registered
//!   again whenever a caller leaves a call behind.
//! - An interpreter that ends before the process does (a Python program): see [`interpreter`].
//! - Threads of other code that call the same client. Whoever brings a client ([`crate::MooncakeEngine::adopt`]) ends
//!   their own calls.

#![expect(
    unsafe_code,
    reason = "the FFI edge: exit handlers are the C library's; each block says why it holds"
)]

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use crate::interpreter;

/// How long the end of the process waits for calls under way. A call to a dead master returns after 4.3 s.
const CALLS_RETURN_WITHIN: Duration = Duration::from_secs(5);

/// The most registrations in one process. They cannot be taken back, so a process that leaves calls behind for days
/// must not add to them for ever. By then the library has made all that it makes.
const MOST_REGISTRATIONS: usize = 1024;

// SAFETY: this is the declaration in glibc's <stdlib.h>. Mooncake's wheel needs glibc, so it is there.
unsafe extern "C" {
    /// Like `atexit`, for a handler that is told the exit status.
    fn on_exit(
        handler: extern "C" fn(status: libc::c_int, argument: *mut libc::c_void),
        argument: *mut libc::c_void,
    ) -> libc::c_int;
}

/// The process that registered the handler last.
static REGISTERED_BY: AtomicU32 = AtomicU32::new(0);

/// Registers the handler. It runs before all that has been registered in this process so far.
pub(crate) fn register() {
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    if TIMES.fetch_add(1, Ordering::Relaxed) >= MOST_REGISTRATIONS {
        return;
    }
    REGISTERED_BY.store(process::id(), Ordering::SeqCst);
    // SAFETY: the handler is a function with that signature, it takes no argument of ours, and its code stays loaded:
    // neither a program nor CPython unloads it.
    let refused = unsafe { on_exit(at_exit, ptr::null_mut()) };
    if refused != 0 {
        tracing::warn!("no exit handler could be registered; a process that ends while a call is under way may crash");
    }
}

/// Nothing is logged here: the thread-local values of the thread that ends the process are gone, and a subscriber may
/// need them.
extern "C" fn at_exit(status: libc::c_int, _argument: *mut libc::c_void) {
    if REGISTERED_BY.load(Ordering::SeqCst) != process::id() {
        // SAFETY: it takes a number, touches no memory and does not return.
        unsafe { libc::_exit(status) }
    }
    // If it was called before, it has waited, and the interpreter may be gone: a thread that comes back to it now
    // would abort the process.
    let within = if interpreter::is_ending() {
        Duration::ZERO
    } else {
        CALLS_RETURN_WITHIN
    };
    if !interpreter::end(within) {
        // SAFETY: it takes a number, touches no memory and does not return.
        unsafe { libc::_exit(status) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::process::{Command, Stdio};
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use tensorhold_core::{Clock, SystemClock, poll_until};

    use crate::calls::{CallPool, Effect};
    use crate::interpreter::Inside;

    const LONG: Duration = Duration::from_secs(60);
    /// Longer than it takes to begin a call on a busy machine.
    const SHORT: Duration = Duration::from_millis(500);
    const OFTEN: Duration = Duration::from_millis(1);
    /// Tells a copy of this program that it is the process that ends, and how.
    const MODE: &str = "TENSORHOLD_TEST_EXIT";
    /// The status that the process ends with.
    const STATUS: i32 = 7;
    /// The status that the library's handler, when it may run, makes of that.
    const CLEANED_UP: i32 = 9;

    static UNDER_WAY: AtomicBool = AtomicBool::new(false);

    /// In place of the library's exit handler, which does not bear a call under way.
    extern "C" fn clean_up() {
        if UNDER_WAY.load(Ordering::SeqCst) {
            process::abort();
        }
        // SAFETY: it takes a number, touches no memory and does not return.
        unsafe { libc::_exit(CLEANED_UP) }
    }

    fn library_registers() {
        // SAFETY: the handler is a function of this program and touches nothing but a static value.
        let refused = unsafe { libc::atexit(clean_up) };
        assert_eq!(refused, 0);
    }

    fn begin_a_call() -> Inside {
        let inside = Inside::enter().expect("the process is not ending");
        UNDER_WAY.store(true, Ordering::SeqCst);
        inside
    }

    /// Leaves a call behind that never returns.
    fn leave_a_call_behind() {
        let pool = CallPool::new(1);
        let left = pool.run::<()>("test", Effect::Repeatable, SHORT, || {
            let _inside = begin_a_call();
            loop {
                thread::park();
            }
        });
        assert!(left.is_err(), "the deadline");
        let begun = poll_until(&SystemClock::new(), LONG, OFTEN, || {
            UNDER_WAY.load(Ordering::SeqCst).then_some(())
        });
        assert!(begun.is_some(), "the call begins");
    }

    /// Runs in the process that ends; as a test it does nothing.
    #[test]
    fn as_the_process_that_ends() {
        let Ok(mode) = env::var(MODE) else { return };
        match mode.as_str() {
            "a call that returns" => {
                library_registers();
                register();
                let inside = begin_a_call();
                thread::spawn(move || {
                    let ending = || interpreter::is_ending().then_some(());
                    if poll_until(&SystemClock::new(), LONG, OFTEN, ending).is_some() {
                        UNDER_WAY.store(false, Ordering::SeqCst);
                    }
                    drop(inside);
                });
            }
            "a call that hangs" => {
                register();
                library_registers();
                leave_a_call_behind();
            }
            "a call that was waited for" => {
                library_registers();
                leave_a_call_behind();
                assert!(!interpreter::end(Duration::ZERO), "it never returns");
            }
            "a forked child" => {
                library_registers();
                register();
                // SAFETY: the child does nothing but end; the status is a local value of this process.
                let ended = unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        process::exit(STATUS);
                    }
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    status
                };
                assert!(libc::WIFEXITED(ended), "status {ended}");
                // SAFETY: it takes a number, touches no memory and does not return.
                unsafe { libc::_exit(libc::WEXITSTATUS(ended)) }
            }
            _ => panic!("an unknown way to end: {mode}"),
        }
        process::exit(STATUS);
    }

    /// The exit code of a process that ends in this way, if no signal ended it; and how long that took.
    fn end(mode: &str) -> (Option<i32>, Duration) {
        let clock = SystemClock::new();
        let begun = clock.now();
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "exit::tests::as_the_process_that_ends", "--nocapture"])
            .env(MODE, mode)
            .stdout(Stdio::null())
            .spawn()
            .expect("a process");
        let status = poll_until(&clock, LONG, OFTEN, || child.try_wait().expect("its status"));
        let took = clock.now().since(begun);
        if status.is_none() {
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
        (status.expect("it ends in time").code(), took)
    }

    #[test]
    fn a_call_that_returns_is_waited_for_and_the_library_cleans_up() {
        assert_eq!(end("a call that returns").0, Some(CLEANED_UP));
    }

    #[test]
    fn under_a_call_that_hangs_nothing_is_destroyed_and_the_status_stays() {
        let (code, took) = end("a call that hangs");
        assert_eq!(code, Some(STATUS));
        assert!(took >= CALLS_RETURN_WITHIN, "{took:?}");
    }

    #[test]
    fn a_forked_child_ends_without_the_handlers_of_its_parents_library() {
        assert_eq!(end("a forked child").0, Some(STATUS));
    }

    #[test]
    fn calls_that_were_waited_for_are_not_waited_for_again() {
        let (code, took) = end("a call that was waited for");
        assert_eq!(code, Some(STATUS));
        assert!(took < CALLS_RETURN_WITHIN, "{took:?}");
    }
}
