//! Operations run as tasks of the store, not of their callers.
//!
//! An operation that stopped half-way would leave a sample half put, or a lease that no caller knows of. So each
//! operation is a task that runs to its own end, and closing the store waits for all of them. But it knows whether its
//! caller is still there ([`Caller`]). A caller leaves by a dropped future, a cancelled request, or a `select!` that
//! took another branch.
//!
//! ```text
//!  called ──▶ under way ──────────────────────────▶ done ──the caller takes the result──▶ (its own)
//!                │ the caller left                    │ the caller left
//!                ▼                                    ▼
//!              waits end at once; an uncommitted      the result is dropped: a lease or an announcement that no caller
//!              put is undone                          has looked at is given back, memory goes back to the pool
//! ```
//!
//! Results undo themselves when they are dropped (modules `lease` and `adopt`), wherever that is: at every moment a
//! result either belongs to the caller or is undone.
//!
//! A store that closes ends the waits of all operations ([`Caller::waits_end`]), and their callers get an error that says
//! so: a take returns no sample, since its caller could not answer for it any more. Bytes that move are not waits: a put
//! whose reservation is made is completed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorhold_core::{Clock, Deadline, Error, Result, Retry};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The caller of an operation, as the operation sees it.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Cancelled when the caller has left.
    left: CancellationToken,
    /// Cancelled when the caller has left, and when the store begins to close.
    waits: CancellationToken,
    /// Cancelled when the store begins to close.
    closing: CancellationToken,
}

impl Caller {
    /// Whether the caller has stopped waiting for the result.
    pub(crate) fn is_gone(&self) -> bool {
        self.left.is_cancelled()
    }

    /// Pends until the caller has left.
    pub(crate) async fn left(&self) {
        self.left.cancelled().await;
    }

    /// Whether the operation may wait for others, or begin something new: its caller is there, and the store is not closing.
    pub(crate) fn may_wait(&self) -> bool {
        !self.waits.is_cancelled()
    }

    /// Pends until the operation may not wait any longer.
    pub(crate) async fn waits_end(&self) {
        self.waits.cancelled().await;
    }

    /// Cancelled when the operation may not wait any longer, for calls to the index that wait.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.waits
    }

    /// An error if the store is closing.
    pub(crate) fn store_is_open(&self, operation: &'static str) -> Result<()> {
        match self.closing.is_cancelled() {
            true => Err(closed(operation)),
            false => Ok(()),
        }
    }

    /// Why an operation ended that may not wait any longer: the store is closing, or else `left` says what the caller left.
    pub(crate) fn ended(&self, operation: &'static str, left: &str) -> Error {
        let is_open = self.store_is_open(operation);
        is_open.err().unwrap_or_else(|| Error::unavailable(operation, left))
    }
}

/// The error of a call to a store that is closed, or closing.
pub(crate) fn closed(operation: &'static str) -> Error {
    Error::unavailable(operation, "this store is closed; open another").with_retry(Retry::Never)
}

#[derive(Debug)]
pub(crate) struct Tasks {
    runtime: Handle,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    running: AtomicUsize,
    closing: CancellationToken,
    ended: Notify,
}

/// Decrements the count when a task ends, however it ends.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

impl Tasks {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self {
            runtime,
            shared: Arc::default(),
        }
    }

    /// Runs a worker of the store. Its owner ends it.
    pub(crate) fn spawn(&self, worker: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(worker)
    }

    /// How many operations run now.
    pub(crate) fn running(&self) -> usize {
        self.shared.running.load(Ordering::Acquire)
    }

    /// Runs an operation to its end and returns its result. A caller that drops this future has left.
    pub(crate) async fn run<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        operation: &'static str,
        act: impl FnOnce(Caller) -> F,
    ) -> Result<T> {
        self.shared.running.fetch_add(1, Ordering::AcqRel);
        let running = Running(Arc::clone(&self.shared));
        if self.is_closing() {
            return Err(closed(operation));
        }
        let closing = self.shared.closing.clone();
        let (left, waits) = (CancellationToken::new(), closing.child_token());
        let _here = (left.clone().drop_guard(), waits.clone().drop_guard());
        let future = act(Caller { left, waits, closing });
        // A result that the caller does not take is dropped before the task counts as ended: closing waits for what
        // that undoes.
        let task = self.runtime.spawn(async move { (future.await, running) });
        let ended = task.await;
        let (result, _running) = ended.map_err(|failure| {
            Error::internal(operation, "the operation panicked or was cancelled").caused_by(failure)
        })?;
        Ok(result)
    }

    /// Whether the store is closing, or closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.shared.closing.is_cancelled()
    }

    /// Pends until the store begins to close.
    pub(crate) async fn closing(&self) {
        self.shared.closing.cancelled().await;
    }

    /// Accepts no more operations, ends the waits of those that run, and waits until the deadline for their ends. Returns
    /// how many are left.
    pub(crate) async fn close(&self, clock: &dyn Clock, deadline: Deadline) -> usize {
        self.shared.closing.cancel();
        loop {
            let mut ended = std::pin::pin!(self.shared.ended.notified());
            ended.as_mut().enable();
            let left = deadline.remaining(clock);
            let running = self.running();
            if running == 0 || left.is_zero() || tokio::time::timeout(left, ended).await.is_err() {
                return self.running();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use tensorhold_core::{ErrorKind, SystemClock};
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn an_operation_ends_although_nobody_waits_for_it_and_knows() {
        let tasks = Arc::new(Tasks::new(Handle::current()));
        let (begin, begun) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let caller = tokio::spawn({
            let tasks = Arc::clone(&tasks);
            async move {
                tasks
                    .run("test", |caller| async move {
                        let went_on = begun.await.is_ok();
                        tell.send(went_on && caller.is_gone())
                    })
                    .await
            }
        });
        while tasks.running() == 0 {
            tokio::task::yield_now().await;
        }
        caller.abort();
        assert!(caller.await.is_err(), "the caller is gone");
        let clock = SystemClock::new();
        let soon = Deadline::after(&clock, Duration::from_millis(20));
        assert_eq!(tasks.close(&clock, soon).await, 1, "it still runs");
        begin.send(()).expect("it waits");
        assert!(told.await.expect("it ends"));
        let later = Deadline::after(&clock, Duration::from_secs(10));
        assert_eq!(tasks.close(&clock, later).await, 0);
        let error = tasks.run("test", |_| async {}).await.expect_err("closed");
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Never));
    }
}
