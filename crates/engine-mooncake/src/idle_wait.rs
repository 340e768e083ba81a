//! Idle-priority waits: the threads that move the bytes run before the threads that wait for them.
//!
//! The engine waits for a transfer by polling whether it is done. A polling thread competes for a processor like any
//! other, and where processors are few it takes one from the threads that move the bytes: on two cores a transfer of
//! 128 MiB takes half as long again. The kernel has a scheduling class for such work, behind all other threads
//! (`SCHED_IDLE`): a processor on which only such a thread runs counts as free, and is given up at once.
//!
//! On a host whose processors are all busy, a thread at idle priority may not run at all, for a second and more; and it
//! may hold the interpreter's lock. So no thread stays at idle priority unattended. The caller, which waits for the
//! answer anyway, watches the thread. A thread that got no processor is returned to normal priority for a moment, so
//! that it can see whether the transfer is done:
//!
//! ```text
//!            begin()                    the call runs for a while                   end()
//! (queued) ──────────▶ InLine ────────────────────────────────────────▶ Behind ──────────▶ Over
//!                        ▲                                                 │
//!                        └── no processor since the last check, ───────────┘
//!                            or the caller leaves
//! ```
//!
//! A get does little else than wait, so its thread goes to idle priority at once. A put first asks the master for room,
//! and at last reports the end to the master. It is slower if it does that at idle priority (one of 4 MiB: 4.2 ms
//! instead of 2.3, with the wheel alone). So its thread goes to idle priority only once the put has run for a while.
//!
//! Invariants:
//! - CY1: a thread is at idle priority only while a caller watches it, and is at normal priority again before it begins
//!   anything else.
//! - CY2: a thread at idle priority goes without a processor for no longer than two check intervals. The interval is a
//!   quarter of the time that its call has taken so far, between 1 and 8 ms: an answer is noticed at most that much
//!   later.
//! - CY3: a process that may not return its threads to normal priority (the kernel wants `CAP_SYS_NICE`), or that does
//!   not want this ([`IdleWaits::Off`](crate::IdleWaits::Off)), sends none to idle priority.

use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, SystemClock, Timestamp};

use crate::priority::{self, Thread};

/// The shortest interval between checks, and how long a put runs before the first check. A put that ends sooner has
/// little to wait for.
const SHORTEST: Duration = Duration::from_millis(1);
/// The longest interval between checks. It bounds how late an answer is noticed (CY2).
const LONGEST: Duration = Duration::from_millis(8);
/// How long a get runs before the first check, approximately. Its thread has begun by then.
const AT_ONCE: Duration = Duration::from_micros(100);

/// When the thread of a call goes to idle priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleWait {
    Never,
    AfterAWhile,
    AtOnce,
}

/// The scheduling state of the thread of one call.
#[derive(Debug, Default)]
pub(crate) struct CallThread {
    thread: OnceLock<Thread>,
    standing: Mutex<Standing>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Standing {
    #[default]
    InLine,
    Behind {
        /// The thread's processor time at the last check.
        ran: Duration,
    },
    Over,
}

impl CallThread {
    /// The calling thread begins the call.
    pub(crate) fn begin(&self) {
        if let Some(thread) = Thread::current() {
            self.thread.get_or_init(|| thread);
        }
    }

    /// The calling thread has ended the call.
    pub(crate) fn end(&self) {
        let Some(me) = self.thread.get() else { return };
        // First the priority, then the lock: a caller must not wait for a lock whose holder gets no processor. A
        // refusal by the kernel is noticed below.
        if Thread::current_is_behind() {
            me.restore();
        }
        let mut standing = self.standing.lock();
        standing.call_back(*me);
        *standing = Standing::Over;
    }
}

impl Standing {
    fn call_back(&mut self, thread: Thread) {
        if let Self::Behind { .. } = *self {
            if !thread.restore() {
                tracing::error!("the kernel keeps an engine thread at idle priority; it runs on idle processors only");
            }
            *self = Self::InLine;
        }
    }

    fn look(&mut self, thread: Thread) {
        match (*self, thread.ran()) {
            (Self::InLine, Some(ran)) => {
                if thread.demote() {
                    *self = Self::Behind { ran };
                }
            }
            (Self::Behind { ran }, Some(now)) if now > ran => *self = Self::Behind { ran: now },
            (Self::Behind { .. }, _) => self.call_back(thread),
            (Self::InLine | Self::Over, _) => {}
        }
    }
}

/// A caller's watch over the thread of its call. Its drop returns the thread to normal priority.
#[derive(Debug)]
pub(crate) struct SchedWatch<'a> {
    clock: SystemClock,
    begun: Timestamp,
    idle_wait: IdleWait,
    turn: &'a CallThread,
}

impl<'a> SchedWatch<'a> {
    /// Begins to watch a call. `None` if its thread may not go to idle priority at all.
    pub(crate) fn new(turn: &'a CallThread, idle_wait: IdleWait) -> Option<Self> {
        let clock = SystemClock::new();
        (idle_wait != IdleWait::Never && priority::may_restore()).then(|| Self {
            begun: clock.now(),
            clock,
            idle_wait,
            turn,
        })
    }

    /// How long to wait before the next check.
    pub(crate) fn until_next(&self) -> Duration {
        let passed = self.clock.now().since(self.begun);
        if self.idle_wait == IdleWait::AtOnce && passed < SHORTEST && self.is_in_line() {
            return AT_ONCE;
        }
        (passed / 4).clamp(SHORTEST, LONGEST)
    }

    fn is_in_line(&self) -> bool {
        let standing = self.turn.standing.try_lock();
        standing.is_some_and(|standing| matches!(*standing, Standing::InLine))
    }

    /// Checks the thread once.
    pub(crate) fn look(&self) {
        // The thread takes this lock only while it ends the call; there is nothing to check then.
        if let Some(thread) = self.turn.thread.get()
            && let Some(mut standing) = self.turn.standing.try_lock()
        {
            standing.look(*thread);
        }
    }
}

impl Drop for SchedWatch<'_> {
    fn drop(&mut self) {
        if let Some(thread) = self.turn.thread.get() {
            self.turn.standing.lock().call_back(*thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;

    use tensorhold_core::poll_until;

    use crate::calls::{CallPool, Effect};

    const LONG: Duration = Duration::from_secs(20);
    const OFTEN: Duration = Duration::from_micros(50);

    /// Keeps the processor until the calling thread is at idle priority. Returns whether that happened.
    fn spin_until_behind() -> bool {
        let clock = SystemClock::new();
        let begun = clock.now();
        while !Thread::current_is_behind() {
            if clock.now().since(begun) > LONG {
                return false;
            }
        }
        true
    }

    #[test]
    fn a_transfer_waits_behind_others_and_its_thread_begins_the_next_call_in_line() {
        let pool = CallPool::new(1);
        let transfer = || {
            let began_in_line = !Thread::current_is_behind();
            (began_in_line, !priority::may_restore() || spin_until_behind())
        };
        for idle_wait in [IdleWait::AfterAWhile, IdleWait::AtOnce, IdleWait::AtOnce] {
            let answer = pool.run_transfer("test", Effect::Repeatable, LONG, idle_wait, transfer);
            assert_eq!(answer.expect("answer"), (true, true));
        }
        let after = pool.run("test", Effect::Repeatable, LONG, Thread::current_is_behind);
        assert!(!after.expect("answer"), "in line again");
    }

    #[test]
    fn a_thread_whose_caller_leaves_is_in_line_again() {
        // A check may have returned it to normal priority just before, but hardly every time.
        for _ in 0..5 {
            let pool = CallPool::new(1);
            let left = Arc::new(AtomicBool::new(false));
            let (tell, told) = mpsc::channel();
            let theirs = Arc::clone(&left);
            let transfer = move || {
                let clock = SystemClock::new();
                let begun = clock.now();
                while !theirs.load(Ordering::SeqCst) && clock.now().since(begun) < LONG {}
                tell.send(!Thread::current_is_behind())
            };
            let within = Duration::from_millis(50);
            let answer = pool.run_transfer("test", Effect::Repeatable, within, IdleWait::AtOnce, transfer);
            assert!(answer.is_err(), "the deadline");
            left.store(true, Ordering::SeqCst);
            assert!(told.recv_timeout(LONG).expect("the thread goes on"), "in line");
            assert_eq!(pool.finish(LONG), 0);
        }
    }

    #[test]
    fn who_goes_back_at_once_is_looked_at_soon_and_then_like_others() {
        let turn = CallThread::default();
        let next = |idle_wait| SchedWatch::new(&turn, idle_wait).map(|watch| watch.until_next());
        assert_eq!(next(IdleWait::Never), None);
        if priority::may_restore() {
            assert_eq!(next(IdleWait::AfterAWhile), Some(SHORTEST));
            assert_eq!(next(IdleWait::AtOnce), Some(AT_ONCE));
            *turn.standing.lock() = Standing::Behind { ran: Duration::ZERO };
            assert_eq!(next(IdleWait::AtOnce), Some(SHORTEST), "it has gone back");
        }
    }

    /// A thread that does `work` between the beginning and the end of its turn, until it is told to end.
    fn with_a_thread_that(work: fn(&mpsc::Receiver<()>), look: impl FnOnce(&CallThread)) {
        let turn = CallThread::default();
        let (end, ended) = mpsc::channel();
        let (begin, begun) = mpsc::channel();
        thread::scope(|scope| {
            let turn = &turn;
            let theirs = scope.spawn(move || {
                turn.begin();
                begin.send(()).expect("somebody listens");
                work(&ended);
                turn.end();
                Thread::current_is_behind()
            });
            begun.recv_timeout(LONG).expect("it begins");
            look(turn);
            drop(end);
            assert!(!theirs.join().expect("no panic"), "it ends in line");
        });
    }

    fn is_behind(turn: &CallThread) -> bool {
        matches!(*turn.standing.lock(), Standing::Behind { .. })
    }

    #[test]
    fn a_thread_that_gets_no_processor_is_called_back_for_a_moment() {
        with_a_thread_that(
            |ended| assert!(ended.recv().is_err(), "only told by the end of it"),
            |turn| {
                let Some(watch) = SchedWatch::new(turn, IdleWait::AfterAWhile) else {
                    return assert!(!priority::may_restore(), "CY3");
                };
                // The thread may still be on its way to sleep, so it may run between two checks, but not for ever.
                let called_back = poll_until(&SystemClock::new(), LONG, OFTEN, || {
                    watch.look();
                    let once = is_behind(turn);
                    watch.look();
                    (once && !is_behind(turn)).then_some(())
                });
                assert!(called_back.is_some());
                watch.look();
                assert!(is_behind(turn), "and sent back after it");
            },
        );
    }

    #[test]
    fn a_thread_that_runs_stays_behind_and_dropping_the_lookout_calls_it_back() {
        with_a_thread_that(
            |ended| while !matches!(ended.try_recv(), Err(mpsc::TryRecvError::Disconnected)) {},
            |turn| {
                let Some(watch) = SchedWatch::new(turn, IdleWait::AfterAWhile) else {
                    return assert!(!priority::may_restore(), "CY3");
                };
                watch.look();
                let Standing::Behind { ran } = *turn.standing.lock() else {
                    panic!("it should be behind");
                };
                let thread = turn.thread.get().expect("it has begun");
                let ran_since = poll_until(&SystemClock::new(), LONG, OFTEN, || {
                    thread.ran().filter(|now| *now > ran)
                });
                assert!(ran_since.is_some(), "nobody else wants this processor for so long");
                watch.look();
                assert!(is_behind(turn));
                drop(watch);
                assert!(!is_behind(turn));
            },
        );
    }
}
