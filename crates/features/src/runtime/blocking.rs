//! Engine calls and checksum computations, on threads of their own.
//!
//! The engine's calls block, and a checksum of many bytes is as good as blocking; neither may block the threads that
//! drive the async code. So both run on the runtime's blocking threads, never more than a set number at once, and each
//! is awaited by the task that made it. A call that finds all slots taken waits for one, within its deadline. If it
//! gets none, nothing was done, and it is safe to retry.
//!
//! A task that stops waiting (its future is dropped) leaves the call running; what the call owns lives until it
//! returns.
//!
//! In a simulation (feature `testing`) there is one thread for everything. A call is made there by a task, after a while
//! that the simulation names, and its answer is told after another: [`Lags`].

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Error, Result};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// How long simulated calls take.
#[cfg(feature = "testing")]
pub trait Lags: Send + Sync + std::fmt::Debug {
    /// How long it takes until the next call is made, and then until its answer is told.
    fn next(&self) -> (Duration, Duration);
}

/// Where blocking calls are made.
#[derive(Clone, Debug, Default)]
pub(crate) enum Threads {
    /// On the runtime's blocking threads.
    #[default]
    Own,
    /// On the only thread of a simulation.
    #[cfg(feature = "testing")]
    Simulated(Arc<dyn Lags>),
}

impl Threads {
    pub(crate) fn spawn<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        match self {
            Self::Own => tokio::task::spawn_blocking(call),
            #[cfg(feature = "testing")]
            Self::Simulated(lags) => {
                let (before, after) = lags.next();
                tokio::spawn(async move {
                    tokio::time::sleep(before).await;
                    let answer = call();
                    tokio::time::sleep(after).await;
                    answer
                })
            }
        }
    }
}

/// Runs blocking calls.
#[derive(Clone, Debug)]
pub(crate) struct BlockingCalls {
    places: Arc<Semaphore>,
    most: usize,
    clock: Arc<dyn Clock>,
    threads: Threads,
}

impl BlockingCalls {
    pub(crate) fn new(most: usize, clock: Arc<dyn Clock>, threads: Threads) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(most)),
            most,
            clock,
            threads,
        }
    }

    /// How many calls are in flight.
    pub(crate) fn under_way(&self) -> usize {
        self.most - self.places.available_permits()
    }

    /// Runs `call` with the time that is left when it starts.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        deadline: Deadline,
        call: impl FnOnce(Duration) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let left = deadline.remaining(&*self.clock);
        let place = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => tokio::time::timeout(left, Arc::clone(&self.places).acquire_owned())
                .await
                .map_err(|_| self.all_taken(operation))?
                .map_err(|_| Error::internal(operation, "the semaphore for engine calls is closed; this is a bug"))?,
        };
        let clock = Arc::clone(&self.clock);
        let running = self.threads.spawn(move || {
            let _place = place;
            call(deadline.remaining(&*clock))
        });
        running
            .await
            .map_err(|failure| Error::internal(operation, "a blocking call panicked").caused_by(failure))?
    }

    fn all_taken(&self, operation: &'static str) -> Error {
        Error::unavailable(
            operation,
            "every slot for an engine call was taken until the deadline; nothing was done (raise max_in_flight, or ask \
             for less at once)",
        )
        .with("max_in_flight", self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    use tensorhold_core::{ErrorKind, Retry, SystemClock};

    #[tokio::test]
    async fn a_call_waits_for_a_place_until_its_deadline() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let calls = BlockingCalls::new(1, Arc::clone(&clock), Threads::Own);
        let after = |millis| Deadline::after(&*clock, Duration::from_millis(millis));
        let (release, hang) = mpsc::channel::<()>();
        let first = tokio::spawn({
            let (calls, deadline) = (calls.clone(), after(10_000));
            async move { calls.run("test", deadline, move |_| Ok(hang.recv().is_ok())).await }
        });
        while calls.under_way() == 0 {
            tokio::task::yield_now().await;
        }
        let error = calls.run("test", after(20), |_| Ok(())).await.expect_err("no place");
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Safe));
        release.send(()).expect("the call waits");
        assert!(first.await.expect("no panic").expect("an answer"));
        calls
            .run("test", after(10_000), |_| Ok(()))
            .await
            .expect("a place again");
    }

    #[tokio::test]
    async fn a_call_that_panics_is_an_error_and_gives_its_place_back() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let calls = BlockingCalls::new(1, Arc::clone(&clock), Threads::Own);
        let deadline = Deadline::after(&*clock, Duration::from_secs(10));
        let error = calls
            .run::<()>("test", deadline, |_| panic!("on purpose"))
            .await
            .expect_err("a panic");
        assert_eq!((error.kind(), calls.under_way()), (ErrorKind::Internal, 0));
    }
}
