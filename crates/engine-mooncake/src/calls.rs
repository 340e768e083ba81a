//! Deadlines for calls that cannot be cancelled.
//!
//! A call into the wheel blocks until the engine answers, and an engine that hangs (a stopped master, a holder behind a
//! broken link) may never answer. So no caller runs a call itself. It hands the call to a thread of this pool and waits
//! for the answer until its own deadline.
//!
//! ```text
//!          run()                 a thread takes it              it returns
//! caller ───────▶ Queued ───────────────────────────▶ Running ─────────────▶ the caller has its answer
//!                   │ deadline                          │ deadline
//!                   ▼                                   ▼
//!                 taken out: never sent,              Abandoned: the caller leaves with an error, the thread stays
//!                 safe to repeat                      until the engine answers, then drops what the call held
//! ```
//!
//! Invariants:
//! - CP1: the values that a call owns (spans, so registrations, so memory) are dropped only after the call has returned
//!   or if it was never begun.
//! - CP2: there are never more than `most` threads. A call that finds none free waits in the queue, within its
//!   deadline.
//! - CP3: a call that panics takes down neither its thread nor the pool.
//! - CP4: the pool ends by waiting for its calls, but no longer than the given time; it then reports how many are left.
//!   The end of the process waits for those that are left (`exit`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorhold_core::{Deadline, Error, ErrorKind, Result, Retry, SystemClock};

use crate::exit;
use crate::idle_wait::{CallThread, IdleWait, SchedWatch};

/// Runs a call and returns a closure that delivers its answer. The two are separate so that the thread counts as free
/// again before the caller has the answer: the caller may call again at once.
type Work = Box<dyn FnOnce() -> Deliver + Send>;
type Deliver = Box<dyn FnOnce() + Send>;

/// Whether a call may be repeated after its answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The call changes nothing, or is idempotent.
    Repeatable,
    /// The call may have taken effect: its outcome is ambiguous, so check before repeating it.
    Changes,
}

/// Threads that run calls. See the module documentation.
#[derive(Debug)]
pub(crate) struct CallPool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    settled: Condvar,
    clock: SystemClock,
    most: usize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        write!(
            f,
            "{} threads, {} busy, {} queued",
            state.threads.len(),
            state.busy.len(),
            state.queue.len()
        )
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<(u64, Work)>,
    busy: Vec<thread::ThreadId>,
    idle: usize,
    threads: Vec<thread::ThreadId>,
    next: u64,
    closing: bool,
}

/// Where the answer of one call appears.
struct Slot<T> {
    answer: Mutex<Option<thread::Result<T>>>,
    ready: Condvar,
    turn: CallThread,
}

impl CallPool {
    /// A pool of at most `most` threads, started on demand.
    pub(crate) fn new(most: usize) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            settled: Condvar::new(),
            clock: SystemClock::new(),
            most: most.max(1),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Runs `call` on a thread of the pool and waits for it, but no longer than `within`.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        effect: Effect,
        within: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        self.run_transfer(operation, effect, within, IdleWait::Never, call)
    }

    /// Like [`CallPool::run`], for a call that moves bytes and whose thread [waits at idle priority](crate::idle_wait).
    pub(crate) fn run_transfer<T: Send + 'static>(
        &self,
        operation: &'static str,
        effect: Effect,
        within: Duration,
        idle_wait: IdleWait,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let deadline = Deadline::after(&self.shared.clock, within);
        let slot = Arc::new(Slot {
            answer: Mutex::new(None),
            ready: Condvar::new(),
            turn: CallThread::default(),
        });
        let theirs = Arc::clone(&slot);
        let ticket = self.submit(operation, move || {
            theirs.turn.begin();
            let answer = catch_unwind(AssertUnwindSafe(call));
            theirs.turn.end();
            Box::new(move || {
                *theirs.answer.lock() = Some(answer);
                theirs.ready.notify_one();
            })
        })?;

        let watch = SchedWatch::new(&slot.turn, idle_wait);
        let mut answer = slot.answer.lock();
        loop {
            match answer.take() {
                Some(Ok(value)) => return Ok(value),
                Some(Err(_)) => return Err(Error::internal(operation, "the call into the engine's module panicked")),
                None => {}
            }
            let left = deadline.remaining(&self.shared.clock);
            if left.is_zero() {
                break;
            }
            let nap = watch.as_ref().map_or(left, |watch| left.min(watch.until_next()));
            if slot.ready.wait_for(&mut answer, nap).timed_out()
                && let Some(watch) = &watch
            {
                watch.look();
            }
        }
        drop((answer, watch));
        Err(self.give_up(operation, effect, ticket, within))
    }

    /// Queues `call` for a thread of the pool and does not wait for it. Only [`CallPool::finish`] waits.
    pub(crate) fn post(&self, operation: &'static str, call: impl FnOnce() + Send + 'static) -> Result<()> {
        self.submit(operation, move || {
            if catch_unwind(AssertUnwindSafe(call)).is_err() {
                tracing::error!(operation, "a call into the engine's module panicked");
            }
            Box::new(|| ())
        })
        .map(|_ticket| ())
    }

    fn submit(&self, operation: &'static str, work: impl FnOnce() -> Deliver + Send + 'static) -> Result<u64> {
        let mut state = self.shared.state.lock();
        if state.closing {
            return Err(Error::unavailable(operation, "this engine is being closed").with_retry(Retry::Never));
        }
        let ticket = state.next;
        state.next += 1;
        state.queue.push_back((ticket, Box::new(work)));
        if state.idle >= state.queue.len() {
            self.shared.work.notify_one();
        } else if state.threads.len() < self.shared.most {
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new()
                .name("tensorhold-engine".to_owned())
                .spawn(move || shared.serve());
            match started {
                Ok(thread) => {
                    state.threads.push(thread.thread().id());
                    state.idle += 1;
                }
                // Other threads are at work: the call waits for one of them.
                Err(_) if !state.threads.is_empty() => {}
                Err(error) => {
                    state.queue.retain(|(queued, _)| *queued != ticket);
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        operation,
                        "no thread could be started for the call",
                    )
                    .caused_by(error));
                }
            }
        }
        Ok(ticket)
    }

    fn give_up(&self, operation: &'static str, effect: Effect, ticket: u64, within: Duration) -> Error {
        let mut state = self.shared.state.lock();
        let queued = state
            .queue
            .iter()
            .position(|(queued, _)| *queued == ticket)
            .and_then(|at| state.queue.remove(at));
        let busy = state.busy.len();
        drop(state);
        let error = match queued {
            Some(_never_begun) => Error::unavailable(
                operation,
                "every call thread was busy until the deadline; nothing was sent (the engine hangs, or max_calls is too low)",
            ),
            None => {
                // What the library has made in this call so far must not be destroyed before the call has returned.
                exit::register();
                Error::unavailable(operation, "the engine did not answer within the deadline").with_retry(
                    if effect == Effect::Changes {
                        Retry::Ambiguous
                    } else {
                        Retry::Safe
                    },
                )
            }
        };
        error
            .with("within_ms", within.as_millis())
            .with("calls_under_way", busy)
    }

    /// Refuses new calls, and waits until the queued and running ones are done, but no longer than `within`. Returns
    /// how many are left; they keep their threads and all that they own until the engine answers.
    pub(crate) fn finish(&self, within: Duration) -> usize {
        let deadline = Deadline::after(&self.shared.clock, within);
        // The last owner of an engine can be one of its own calls, and the thread of that call must not wait for
        // itself.
        let me = thread::current().id();
        let mut state = self.shared.state.lock();
        state.closing = true;
        self.shared.work.notify_all();
        loop {
            let others = |threads: &[thread::ThreadId]| threads.iter().filter(|thread| **thread != me).count();
            let time = deadline.remaining(&self.shared.clock);
            if others(&state.threads) == 0 || time.is_zero() {
                return state.queue.len() + others(&state.busy);
            }
            self.shared.settled.wait_for(&mut state, time);
        }
    }
}

impl Drop for CallPool {
    /// Lets the threads end as soon as their calls are done. A caller that wants to wait uses [`CallPool::finish`].
    fn drop(&mut self) {
        self.shared.state.lock().closing = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    /// The loop of a pool thread: runs calls until the pool is closed and the queue is empty.
    fn serve(&self) {
        let me = thread::current().id();
        let mut state = self.state.lock();
        loop {
            if let Some((_, work)) = state.queue.pop_front() {
                state.idle -= 1;
                state.busy.push(me);
                drop(state);
                let deliver = work();
                state = self.state.lock();
                state.busy.retain(|thread| *thread != me);
                state.idle += 1;
                drop(state);
                deliver();
                state = self.state.lock();
            } else if state.closing {
                state.idle -= 1;
                state.threads.retain(|thread| *thread != me);
                self.settled.notify_all();
                return;
            } else {
                self.work.wait(&mut state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn answers_come_back_and_threads_are_used_again() {
        let pool = CallPool::new(4);
        for n in 0..100 {
            assert_eq!(
                pool.run("test", Effect::Repeatable, LONG, move || n * 2)
                    .expect("answer"),
                n * 2
            );
        }
        assert_eq!(pool.shared.state.lock().threads.len(), 1);
    }

    #[test]
    fn a_call_that_hangs_costs_its_caller_the_deadline_and_keeps_what_it_owns() {
        let pool = CallPool::new(4);
        let owned = Arc::new(());
        let watch = Arc::downgrade(&owned);
        let (release, hang) = mpsc::channel::<()>();
        let error = pool
            .run("test", Effect::Changes, SHORT, move || {
                let _owned = owned;
                hang.recv().ok()
            })
            .expect_err("the deadline");
        assert_eq!(
            (error.kind(), error.retry()),
            (ErrorKind::Unavailable, Retry::Ambiguous)
        );
        assert!(watch.upgrade().is_some(), "the call still owns it");
        assert_eq!(pool.finish(SHORT), 1, "it is still under way");
        release.send(()).expect("the call waits");
        assert_eq!(pool.finish(LONG), 0);
        assert!(watch.upgrade().is_none(), "dropped after the call returned");
    }

    #[test]
    fn a_call_that_was_never_begun_is_taken_out_and_safe_to_repeat() {
        let pool = CallPool::new(1);
        let (release, hang) = mpsc::channel::<()>();
        let held = pool
            .run("test", Effect::Changes, SHORT, move || hang.recv().ok())
            .expect_err("hangs");
        assert_eq!(held.retry(), Retry::Ambiguous);
        let (tell, told) = mpsc::channel::<()>();
        let error = pool
            .run("test", Effect::Changes, SHORT, move || tell.send(()).ok())
            .expect_err("no thread");
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Safe));
        release.send(()).expect("the call waits");
        assert_eq!(pool.finish(LONG), 0);
        assert!(told.try_recv().is_err(), "it never ran");
    }

    #[test]
    fn a_panic_is_an_error_of_that_call_only() {
        let pool = CallPool::new(1);
        let error = pool
            .run::<()>("test", Effect::Repeatable, LONG, || panic!("on purpose"))
            .expect_err("panic");
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(pool.run("test", Effect::Repeatable, LONG, || 7).expect("answer"), 7);
    }

    #[test]
    fn many_callers_share_the_threads_and_all_are_served() {
        let pool = Arc::new(CallPool::new(3));
        let callers: Vec<_> = (0..64)
            .map(|n| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || pool.run("test", Effect::Repeatable, LONG, move || n))
            })
            .collect();
        for (n, caller) in callers.into_iter().enumerate() {
            assert_eq!(caller.join().expect("no panic").expect("answer"), n);
        }
        assert!(pool.shared.state.lock().threads.len() <= 3);
        assert_eq!(pool.finish(LONG), 0);
        assert!(pool.run("test", Effect::Repeatable, LONG, || ()).is_err(), "closed");
    }
}
