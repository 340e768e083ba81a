//! An operation under way: begun by one call from Python, waited for by another.
//!
//! ```text
//! Python calls ─▶ Under way ────────────────▶ Done ──wait(), result()──▶ Taken
//!                  │ Ctrl-C, cancelled          │ nobody came for it
//!                  └─▶ goes on to its end ──────┴─▶ dropped: leases are let go of, memory goes back to the pool
//! ```
//!
//! Both faces of the package are built on this: the plain one waits ([`Operation::wait`]), the asyncio one asks to be
//! told ([`Operation::on_done`]). The store owns the operation itself, so that a waiter who leaves stops nothing
//! half-way. Every operation has a deadline of its own; a waiter goes by it, with some patience for the last step.
//!
//! Waiting is done without the interpreter's lock, in slices, so that signals are seen.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Deadline, Error, Result, SystemClock};
use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;

use crate::errors::exception;
use crate::process::{AtHome, runtime};

/// How long a signal may go unseen.
const SLICE: Duration = Duration::from_millis(50);
/// How much later than its deadline an operation may end before its waiter gives up on it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Makes a Python object of what came out.
type Deliver = Box<dyn for<'py> FnOnce(Python<'py>, bool) -> PyResult<Py<PyAny>> + Send>;

#[derive(Default)]
enum State {
    #[default]
    UnderWay,
    Done(Deliver, bool),
    Taken,
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

/// An operation under way.
#[pyclass(frozen, module = "holdfast._holdfast")]
pub(crate) struct Operation {
    shared: AtHome<Arc<Shared>>,
}

/// Ends the operation, with an error if it was not ended otherwise: its task panicked, or was dropped.
struct Ender(Option<Arc<Shared>>);

impl Ender {
    fn end(mut self, deliver: Deliver) {
        if let Some(shared) = self.0.take() {
            shared.finish(deliver);
        }
    }
}

impl Drop for Ender {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            let error = Error::internal("python.operation", "an operation did not end as it should");
            shared.finish(Box::new(move |py, late| Err(exception(py, &error, late))));
        }
    }
}

impl Shared {
    fn finish(self: Arc<Self>, deliver: Deliver) {
        let late = self.deadline.passed(&self.clock);
        let old = std::mem::replace(&mut *self.state.lock(), State::Done(deliver, late));
        drop(old);
        self.done.notify_all();
        let Some(listener) = self.listener.lock().take() else {
            return;
        };
        // Where waiting for the interpreter's lock keeps nobody from working.
        let told = runtime().map(|runtime| runtime.spawn_blocking(move || tell(listener)));
        if let Err(error) = told {
            tracing::error!(%error, "nobody can be told that an operation has ended");
        }
    }
}

fn tell(listener: Py<PyAny>) {
    let told = Python::try_attach(|py| {
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
    /// Begins an operation; `deliver` makes a Python object of its result, and is told whether that was late.
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
        let ender = Ender(Some(Arc::clone(&shared)));
        runtime()?.spawn(async move {
            let result = work.await;
            ender.end(Box::new(move |py, late| match result {
                Ok(value) => deliver(py, value, late),
                Err(error) => Err(exception(py, &error, late)),
            }));
        });
        Ok(Self {
            shared: AtHome::new(shared),
        })
    }

    fn shared(&self, py: Python<'_>) -> PyResult<&Arc<Shared>> {
        self.shared
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
        };
        Err(exception(py, &Error::invalid("python.operation", misuse), false))
    }
}

#[pymethods]
impl Operation {
    /// Waits for the end and returns the result, once. Signals are handled meanwhile.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let shared = self.shared(py)?;
        loop {
            let ended = py.detach(|| {
                let mut state = shared.state.lock();
                if matches!(*state, State::UnderWay) {
                    shared.done.wait_for(&mut state, SLICE);
                }
                !matches!(*state, State::UnderWay)
            });
            if ended {
                return Self::take(shared, py);
            }
            py.check_signals()?;
            if shared.patience.passed(&shared.clock) {
                let error = Error::unavailable(
                    "python.operation",
                    "an operation has not ended long after its deadline; it goes on in the background",
                );
                return Err(exception(py, &error.with_retry(holdfast_core::Retry::Ambiguous), true));
            }
        }
    }

    /// The result of an operation that has ended, once.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Self::take(self.shared(py)?, py)
    }

    /// Has `listener` called, without arguments and on some thread, when the operation has ended. At most one.
    fn on_done(&self, py: Python<'_>, listener: Py<PyAny>) -> PyResult<()> {
        let shared = self.shared(py)?;
        *shared.listener.lock() = Some(listener);
        // It may have ended before the listener was there to be seen.
        if !matches!(*shared.state.lock(), State::UnderWay)
            && let Some(listener) = shared.listener.lock().take()
        {
            listener.call0(py)?;
        }
        Ok(())
    }
}
