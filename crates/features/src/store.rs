//! The store itself: its parts, and how it opens and closes.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Clock, Deadline, Error, ErrorKind, Result, Rng, SampleId, TensorSpec};
use holdfast_engine::{Engine, HostMemory, Region, Span};
use holdfast_index::{Index, Quarantined, SampleRef};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backing::Backing;
use crate::blocking::BlockingCalls;
use crate::check::Checks;
use crate::collect::{self, Walk};
use crate::config::FeatureConfig;
use crate::free::ReclaimQueue;
use crate::health::{Counting, Health};
use crate::inflight_puts::InflightPuts;
use crate::lease::UnseenLeases;
use crate::loss::{self, Losses};
use crate::pool::BufferPool;
use crate::sealed::Seals;
use crate::sessions::Sessions;
use crate::tasks::{Caller, Tasks};
use crate::unreadable::Unreadable;
use crate::worker::{self, Swept};

/// A feature store, as this process sees it. A clone is the same store.
///
/// [`FeatureStore::close`] it when it is no longer needed. If the last clone is dropped without that, its workers stop
/// where they are, and its session ends when its time to live runs out. That is the same as if the process had died:
/// nothing is lost, but other processes have to clear up.
#[derive(Clone, Debug)]
pub struct FeatureStore(Arc<Opened>);

/// The part of a store that its workers do not hold, so that dropping the last clone ends them.
#[derive(Debug)]
struct Opened {
    inner: Arc<Inner>,
    stop: watch::Sender<bool>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        for worker in self.workers.lock().drain(..) {
            worker.abort();
        }
    }
}

/// The state that all operations share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) config: FeatureConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    pub(crate) sessions: Sessions,
    pub(crate) blocking: BlockingCalls,
    pub(crate) pool: BufferPool,
    /// The kind of memory that tensors lie in: registered, or private in a sealed store.
    pub(crate) backing: Backing,
    /// Private memory, for tensors that the pool has no room for.
    pub(crate) private: Backing,
    /// Stages that gets receive objects into that do not arrive at their destination: sealed objects, and those of
    /// tensors in private memory.
    pub(crate) incoming: BufferPool,
    /// The keys of a sealed store, and the state that sealing needs.
    pub(crate) seals: Option<Seals>,
    pub(crate) checks: Checks,
    /// Shared with the leases and transfers that outlive an operation.
    pub(crate) reclaim: Arc<ReclaimQueue>,
    /// Shared with the leases.
    pub(crate) unseen: Arc<UnseenLeases>,
    /// One collect of this process runs at a time.
    pub(crate) walk: tokio::sync::Mutex<Walk>,
    pub(crate) inflight_puts: Arc<InflightPuts>,
    pub(crate) unreadable: Unreadable,
    pub(crate) losses: Losses,
    pub(crate) count: Counting,
    pub(crate) tasks: Tasks,
}

impl Inner {
    pub(crate) fn deadline(&self, within: Duration) -> Deadline {
        Deadline::after(&*self.clock, within)
    }

    pub(crate) fn max_batch(&self) -> usize {
        self.engine.capabilities().max_batch.max(1)
    }
}

impl FeatureStore {
    /// Opens a store: opens a session with the index, and starts the workers. Call it inside a tokio runtime whose
    /// timers are enabled; the store's tasks run there.
    pub async fn open(
        engine: Arc<dyn Engine>,
        index: Arc<dyn Index>,
        config: FeatureConfig,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Result<Self> {
        const OPERATION: &str = "features.open";
        config.validate()?;
        let runtime = Handle::try_current().map_err(|error| {
            Error::invalid(OPERATION, "open the store inside a tokio runtime; its tasks run there").caused_by(error)
        })?;
        let calls = BlockingCalls::new(config.max_in_flight, Arc::clone(&clock));
        let registered = Backing::Engine(Arc::clone(&engine));
        let private = Backing::private();
        let backing = match &config.keyring {
            Some(_) => private.clone(),
            None => registered.clone(),
        };
        let pool_of =
            |backing: &Backing, bytes| BufferPool::new(backing.clone(), calls.clone(), Arc::clone(&clock), bytes);
        let pool = pool_of(&backing, config.pool_bytes);
        // A stage allocates no memory before it is used.
        let stage = || pool_of(&registered, config.stage_bytes);
        let (keyring, incoming) = (config.keyring.clone(), stage());
        let seals = keyring.map(|keyring| Seals::new(keyring, &config, stage()));
        let inner = Arc::new(Inner {
            sessions: Sessions::new(Arc::clone(&index), Arc::clone(&clock)),
            checks: Checks::new(Arc::clone(&index), Arc::clone(&clock)),
            reclaim: Arc::new(ReclaimQueue::new(Arc::clone(&clock), config.free_queue)),
            unseen: Arc::default(),
            walk: tokio::sync::Mutex::default(),
            inflight_puts: Arc::default(),
            unreadable: Unreadable::default(),
            losses: Losses::new(Arc::clone(&clock)),
            count: Counting::default(),
            tasks: Tasks::new(runtime.clone()),
            engine,
            index,
            clock,
            rng,
            blocking: calls,
            pool,
            backing,
            private,
            incoming,
            seals,
            config,
        });
        let within = inner.config.call_within;
        inner.sessions.current(OPERATION, inner.deadline(within)).await?;
        if inner.config.warm_bytes > 0 {
            inner.pool.warm(inner.config.warm_bytes, within).await?;
        }
        let (stop, stopped) = watch::channel(false);
        let mut workers = vec![
            runtime.spawn(worker::remove(Arc::clone(&inner), stopped.clone())),
            runtime.spawn(worker::index_worker(Arc::clone(&inner), stopped.clone())),
            runtime.spawn(loss::watch(Arc::clone(&inner), stopped.clone())),
            runtime.spawn(collect::collect(Arc::clone(&inner), stopped.clone())),
        ];
        if let Some(every) = inner.config.sweep_every {
            workers.push(runtime.spawn(worker::sweep(Arc::clone(&inner), every, stopped)));
        }
        Ok(Self(Arc::new(Opened {
            inner,
            stop,
            workers: Mutex::new(workers),
        })))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0.inner
    }

    /// Runs an operation as a task of the store.
    pub(crate) async fn run<T, F>(&self, operation: &'static str, act: impl FnOnce(Arc<Inner>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.run_for(operation, |inner, _| act(inner)).await
    }

    /// As [`FeatureStore::run`], for an operation that needs to know whether its caller is still there.
    pub(crate) async fn run_for<T, F>(
        &self,
        operation: &'static str,
        act: impl FnOnce(Arc<Inner>, Caller) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let inner = Arc::clone(self.inner());
        self.inner().tasks.run(operation, |caller| act(inner, caller)).await?
    }

    /// As [`FeatureStore::run`], for a batch of `count` items.
    pub(crate) async fn run_batch<T, F>(
        &self,
        operation: &'static str,
        count: usize,
        act: impl FnOnce(Arc<Inner>) -> F,
    ) -> Vec<Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Vec<Result<T>>> + Send + 'static,
    {
        self.run_batch_for(operation, count, |inner, _| act(inner)).await
    }

    /// As [`FeatureStore::run_batch`], for an operation that needs to know whether its caller is still there.
    pub(crate) async fn run_batch_for<T, F>(
        &self,
        operation: &'static str,
        count: usize,
        act: impl FnOnce(Arc<Inner>, Caller) -> F,
    ) -> Vec<Result<T>>
    where
        T: Send + 'static,
        F: Future<Output = Vec<Result<T>>> + Send + 'static,
    {
        let inner = Arc::clone(self.inner());
        match self.inner().tasks.run(operation, |caller| act(inner, caller)).await {
            Ok(results) => results,
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
    }

    /// The settings.
    pub fn config(&self) -> &FeatureConfig {
        &self.inner().config
    }

    /// The memory that gets receive into. A producer may write there too, and put without another copy. In a sealed
    /// store this memory is not registered with the engine.
    pub fn pool(&self) -> &BufferPool {
        &self.inner().pool
    }

    /// Whether the bytes of a tensor that was got lie in memory that the store allocated for this tensor alone, because
    /// the pool had no room. Registered memory can be put from at any time by many puts at once; private memory is
    /// registered for each put, one at a time.
    pub fn is_private(&self, span: &Span) -> bool {
        let inner = self.inner();
        inner.seals.is_none() && inner.private.keeps_private(span)
    }

    /// Registers memory of the caller for many transfers. It stays registered until the region and all its spans are
    /// dropped. In a sealed store it is not registered with the engine, since it holds plaintext.
    pub async fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        let inner = self.inner();
        let backing = inner.backing.clone();
        let call = move |within| backing.region(memory, within);
        inner
            .blocking
            .run("features.register", inner.deadline(within), call)
            .await
    }

    /// How many bytes a sample of these tensors counts against the store's budget.
    pub fn estimate_bytes(&self, tensors: &[TensorSpec]) -> u64 {
        let inner = self.inner();
        tensors
            .iter()
            .fold(0, |sum, spec| sum.saturating_add(inner.stored_bytes(spec)))
    }

    /// Takes back expired leases, reservations and sessions, and frees the samples that are to be freed. Any process
    /// may call it at any time, several at once.
    pub async fn sweep(&self, within: Duration) -> Result<Swept> {
        self.run("features.sweep", |inner| async move {
            inner.sweep(inner.deadline(within)).await
        })
        .await
    }

    /// Waits until every sample that was retired here is freed. The error (kind `Timeout`) says which are left.
    pub async fn drain(&self, within: Duration) -> Result<()> {
        let inner = self.inner();
        inner.reclaim.drain(inner.deadline(within)).await
    }

    /// Starts another epoch for retained samples: every group that was done with them gets them again.
    pub async fn reopen(&self, samples: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        const OPERATION: &str = "features.reopen";
        let samples = samples.to_vec();
        self.run_batch(OPERATION, samples.len(), |inner| async move {
            let deadline = inner.deadline(within);
            match inner.sessions.current(OPERATION, deadline).await {
                Ok(session) => {
                    inner
                        .index
                        .reopen(&session, &samples, deadline.remaining(&*inner.clock))
                        .await
                }
                Err(error) => vec![Err(error); samples.len()],
            }
        })
        .await
    }

    /// How the store is doing in this process. Values that the engine does not report within the time are left out.
    pub async fn health(&self, within: Duration) -> Health {
        let inner = self.inner();
        let engine = Arc::clone(&inner.engine);
        let call = move |within| engine.usage(within);
        let usage = inner
            .blocking
            .run("features.health", inner.deadline(within), call)
            .await;
        Health {
            session: inner.sessions.known().map(|session| session.id()),
            sessions_opened: inner.sessions.opened(),
            index: inner.index.history(),
            operations: inner.tasks.running(),
            calls: inner.blocking.under_way(),
            pool: inner.pool.usage(),
            pending_frees: inner.reclaim.pending(),
            suspected: inner.losses.suspected(),
            registrations: inner.engine.registrations(),
            usage: usage.ok(),
            passed_over: inner.index.passed_over(),
            counters: inner.count.read(),
        }
    }

    /// Records of this store that no process could read, up to `limit`, in the order of their keys: after this one, or
    /// from the start. They harm nothing. The operator looks at them ([`FeatureStore::quarantined_bytes`]), and deletes
    /// them or puts them back where they were.
    pub async fn quarantined(
        &self,
        after: Option<&Quarantined>,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Quarantined>> {
        self.inner().index.quarantined(after, limit, within).await
    }

    /// The bytes of a record in quarantine, unchanged.
    pub async fn quarantined_bytes(&self, which: &Quarantined, within: Duration) -> Result<Vec<u8>> {
        self.inner().index.quarantined_bytes(which, within).await
    }

    /// Ends this process's membership: accepts no more operations, waits for those in flight, returns the leases that
    /// their holders have not looked at, frees the samples that were retired here, stops the workers, and ends the
    /// session. The error says what was not done in time; the sweeps of other processes will do it.
    pub async fn close(&self, within: Duration) -> Result<()> {
        const OPERATION: &str = "features.close";
        let inner = self.inner();
        let deadline = inner.deadline(within);
        let left = inner.tasks.close(&*inner.clock, deadline).await;
        inner.unseen.give_back();
        let drained = inner.reclaim.drain(deadline).await;
        // On a second close no worker listens any more.
        self.0.stop.send_replace(true);
        let workers = std::mem::take(&mut *self.0.workers.lock());
        for mut worker in workers {
            let time = deadline.remaining(&*inner.clock).max(Duration::from_millis(100));
            if tokio::time::timeout(time, &mut worker).await.is_err() {
                worker.abort();
            }
        }
        let closed = inner.sessions.close(deadline).await;
        drained?;
        closed?;
        if left > 0 {
            return Err(Error::new(
                ErrorKind::Timeout,
                OPERATION,
                "operations were still in flight at the deadline; they end by themselves, without a session",
            )
            .with("operations", left));
        }
        Ok(())
    }

    /// Takes samples out of circulation, whichever process put them and whichever reads them: gets of their readers
    /// fail from now on. Every put of these samples that this process has begun is given up instead of committed
    /// (`Fenced`), whatever it waits for. A sample that is neither live nor being put here is `NotFound`.
    pub async fn abort(&self, samples: &[SampleId], within: Duration) -> Vec<Result<()>> {
        let samples = samples.to_vec();
        self.run_batch("features.abort", samples.len(), |inner| async move {
            inner.abort(&samples, inner.deadline(within)).await
        })
        .await
    }
}
