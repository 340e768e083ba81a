//! An operation in flight: started by one call from Python, waited for by another.
//!
//! ```text
//! Python calls ─▶ In flight ────────────────▶ Done ──wait(), result()──▶ Taken
//!                  │ Ctrl-C, cancelled,         │ the same
//!                  │ last reference dropped     │
//!                  └─▶ Cancelled ◀──────────────┘ the result, if there is one, is dropped here
//! ```
//!
//! Both faces of the package are built on this: the blocking one waits ([`Operation::wait`]), the asyncio one registers
//! a callback ([`Operation::on_done`]). Every operation has its own deadline; a waiter goes by it, with some patience
//! for the last step.
//!
//! # Callers that leave
//! Cancelling drops the future that waits for the store; the store sees that its caller has left, and ends the
//! operation in good order (crate `tensorhold-features`, module `tasks`). A result goes to exactly one place, decided
//! under one lock: to Python (*taken*), or it is dropped (*cancelled*) and undoes itself: leases are returned as if
//! never taken, memory returns to the pool. A result that Python takes and loses before any code looks at it (Ctrl-C
//! between two byte codes) is undone the same way, because a lease that was never looked at does not count.
//!
//! Waiting is done without the interpreter's lock, in slices, so that signals are seen.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;
use tensorhold_core::{Deadline, Error, Result, SystemClock};
use tensorhold_engine_mooncake::interpreter;
use tokio::task::AbortHandle;

use crate::errors::exception;
use crate::process::{ProcessBound, runtime};

/// How long a signal may go unnoticed.
const SLICE: Duration = Duration::from_millis(50);
/// One deadline for all the steps of a call: each step has the time that the others left.
#[derive(Debug)]
pub(crate) struct Until {
    clock: SystemClock,
    deadline: Deadline,
}

impl Until {
    pub(crate) fn after(within: Duration) -> Self {
        let clock = SystemClock::new();
        let deadline = Deadline::after(&clock, within);
        Self { clock, deadline }
    }

    pub(crate) fn left(&self) -> Duration {
        self.deadline.remaining(&self.clock)
    }
}

/// How long after its deadline an operation may end before its waiter gives up on it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Makes a Python object of the result.
type Deliver = Box<dyn for<'py> FnOnce(Python<'py>, bool) -> PyResult<Py<PyAny>> + Send>;

#[derive(Default)]
enum State {
    #[default]
    UnderWay,
    Done(Deliver, bool),
    Taken,
    Cancelled,
}

struct Shared {
    state: Mutex<State>,
    done: Condvar,
    listener: Mutex<Option<Py<PyAny>>>,
    deadline: Deadline,
    /// When a waiter gives up on it.
    patience: Deadline,
    clock: SystemClock,
}

/// An operation in flight. Dropping it cancels it.
#[pyclass(frozen, module = "tensorhold._tensorhold")]
pub(crate) struct Operation {
    begun: ProcessBound<Begun>,
}

struct Begun {
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Begun {
    /// The caller has left. A result that was not taken is dropped; afterwards there is none.
    fn cancel(&self) {
        let left = {
            let mut state = self.shared.state.lock();
            match *state {
                State::UnderWay | State::Done(..) => std::mem::replace(&mut *state, State::Cancelled),
                State::Taken | State::Cancelled => return,
            }
        };
        self.task.abort();
        let listener = self.shared.listener.lock().take();
        drop((left, listener));
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Ends the operation with an error if it did not end otherwise: its task panicked, or was dropped.
struct CompletionGuard(Option<Arc<Shared>>);

impl CompletionGuard {
    fn end(mut self, deliver: Deliver) {
        if let Some(shared) = self.0.take() {
            shared.finish(deliver);
        }
    }
}

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            let error = Error::internal("python.operation", "the operation's task panicked or was cancelled");
            shared.finish(Box::new(move |py, late| Err(exception(py, &error, late))));
        }
    }
}

impl Shared {
    fn finish(self: Arc<Self>, deliver: Deliver) {
        let late = self.deadline.passed(&self.clock);
        {
            let mut state = self.state.lock();
            if !matches!(*state, State::UnderWay) {
                // The caller has left: the result is dropped, but not under the lock.
                drop(state);
                return drop(deliver);
            }
            *state = State::Done(deliver, late);
        }
        self.done.notify_all();
        let Some(listener) = self.listener.lock().take() else {
            return;
        };
        // On a thread where waiting for the interpreter's lock blocks no other work.
        let told = runtime().map(|runtime| runtime.spawn_blocking(move || tell(listener)));
        if let Err(error) = told {
            tracing::error!(%error, "the listener of an ended operation cannot be called");
        }
    }
}

fn tell(listener: Py<PyAny>) {
    let told = interpreter::attach(|py| {
        if let Err(error) = listener.call0(py) {
            error.write_unraisable(py, Some(listener.bind(py)));
        }
        drop(listener);
    });
    if told.is_none() {
        tracing::debug!("an operation ended after the interpreter");
    }
}

impl Operation {
    /// Starts an operation; `deliver` makes a Python object of its result, and is told whether it was late.
    pub(crate) fn begin<T: Send + 'static>(
        within: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
        deliver: impl for<'py> FnOnce(Python<'py>, T, bool) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Result<Self> {
        let clock = SystemClock::new();
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            done: Condvar::new(),
            listener: Mutex::new(None),
            deadline: Deadline::after(&clock, within),
            patience: Deadline::after(&clock, within.saturating_add(PATIENCE)),
            clock,
        });
        let ender = CompletionGuard(Some(Arc::clone(&shared)));
        let task = runtime()?.spawn(async move {
            let result = work.await;
            ender.end(Box::new(move |py, late| match result {
                Ok(value) => deliver(py, value, late),
                Err(error) => Err(exception(py, &error, late)),
            }));
        });
        let task = task.abort_handle();
        Ok(Self {
            begun: ProcessBound::new(Begun { shared, task }),
        })
    }

    /// As [`Operation::begin`], for work that is completed even if no caller waits for it any more.
    pub(crate) fn begin_to_the_end<T: Send + 'static>(
        within: Duration,
        work: impl Future<Output = Result<T>> + Send + 'static,
        deliver: impl for<'py> FnOnce(Python<'py>, T, bool) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Result<Self> {
        let task = runtime()?.spawn(work);
        let work = async move {
            let lost =
                |failure| Error::internal("python.operation", "the task panicked or was cancelled").caused_by(failure);
            task.await.map_err(lost)?
        };
        Self::begin(within, work, deliver)
    }

    fn begun(&self, py: Python<'_>) -> PyResult<&Begun> {
        self.begun
            .get("operation")
            .map_err(|error| exception(py, &error, false))
    }

    fn take(shared: &Shared, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = {
            let mut state = shared.state.lock();
            match &*state {
                State::UnderWay => State::UnderWay,
                _ => std::mem::replace(&mut *state, State::Taken),
            }
        };
        let misuse = match state {
            State::Done(deliver, late) => return deliver(py, late),
            State::UnderWay => "this operation has not ended yet",
            State::Taken => "the result of this operation was taken already",
            State::Cancelled => "this operation was cancelled",
        };
        Err(exception(py, &Error::invalid("python.operation", misuse), false))
    }
}

#[pymethods]
impl Operation {
    /// Waits for the end and returns the result, once. Signals are handled meanwhile.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let begun = self.begun(py)?;
        let shared = &begun.shared;
        loop {
            let ended = py.detach(|| {
                let mut state = shared.state.lock();
                if matches!(*state, State::UnderWay) {
                    shared.done.wait_for(&mut state, SLICE);
                }
                !matches!(*state, State::UnderWay)
            });
            // Before the result is taken: a caller that is interrupted now does not get it.
            if let Err(interrupt) = py.check_signals() {
                begun.cancel();
                return Err(interrupt);
            }
            if ended {
                return Self::take(shared, py);
            }
            if shared.patience.passed(&shared.clock) {
                let error = Error::unavailable(
                    "python.operation",
                    "the operation has not ended long after its deadline; it was given up, and ends in the background",
                );
                begun.cancel();
                return Err(exception(
                    py,
                    &error.with_retry(tensorhold_core::Retry::Ambiguous),
                    true,
                ));
            }
        }
    }

    /// The result of an operation that has ended, once.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Self::take(&self.begun(py)?.shared, py)
    }

    /// The caller has left: the store ends the operation, and undoes results that no caller will get. Idempotent.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let begun = self.begun(py)?;
        py.detach(|| begun.cancel());
        Ok(())
    }

    /// Registers `listener`, which is called without arguments and on some thread when the operation has ended. At most
    /// one.
    fn on_done(&self, py: Python<'_>, listener: Py<PyAny>) -> PyResult<()> {
        let shared = &self.begun(py)?.shared;
        *shared.listener.lock() = Some(listener);
        // The operation may have ended before the listener was registered.
        if !matches!(*shared.state.lock(), State::UnderWay)
            && let Some(listener) = shared.listener.lock().take()
        {
            listener.call0(py)?;
        }
        Ok(())
    }
}
