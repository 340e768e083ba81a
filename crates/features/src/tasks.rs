//! Operations run as tasks of the store, not of whoever called.
//!
//! A caller that goes away (a cancelled request, a `select!` that was decided otherwise) must not leave a sample half
//! put, or a lease that nobody knows of. So each operation is a task: it runs to its end whether or not somebody still
//! waits, and closing the store waits for all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use holdfast_core::{Clock, Deadline, Error, Result, Retry};
use tokio::runtime::Handle;
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Tasks {
    runtime: Handle,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    running: AtomicUsize,
    closed: AtomicBool,
    ended: Notify,
}

/// Counts a task down when it ends, however it does.
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

    /// How many run now.
    pub(crate) fn running(&self) -> usize {
        self.shared.running.load(Ordering::Acquire)
    }

    /// Runs an operation to its end and returns what came of it.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        self.shared.running.fetch_add(1, Ordering::AcqRel);
        let running = Running(Arc::clone(&self.shared));
        if self.shared.closed.load(Ordering::Acquire) {
            return Err(Error::unavailable(operation, "this store is closed; open another").with_retry(Retry::Never));
        }
        let task = self.runtime.spawn(async move {
            let _running = running;
            future.await
        });
        task.await
            .map_err(|failure| Error::internal(operation, "an operation did not end as it should").caused_by(failure))
    }

    /// Takes no more operations, and waits for those that run until the deadline. Returns how many are left.
    pub(crate) async fn close(&self, clock: &dyn Clock, deadline: Deadline) -> usize {
        self.shared.closed.store(true, Ordering::Release);
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

    use holdfast_core::{ErrorKind, SystemClock};
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn an_operation_ends_although_nobody_waits_for_it() {
        let tasks = Arc::new(Tasks::new(Handle::current()));
        let (begin, begun) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        let caller = tokio::spawn({
            let tasks = Arc::clone(&tasks);
            async move {
                tasks
                    .run("test", async move {
                        let went_on = begun.await.is_ok();
                        tell.send(went_on)
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
        let error = tasks.run("test", async {}).await.expect_err("closed");
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Never));
    }
}
