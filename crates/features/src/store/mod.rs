//! The store itself: its parts, and how it opens and closes. Its operations are in [`crate::ops`].

pub(crate) mod check;
mod exposed;
pub(crate) mod health;
pub(crate) mod lease;
pub(crate) mod unreadable;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Rng, TensorSpec};
use tensorhold_engine::{Engine, HostMemory, Region, Span};
use tensorhold_index::{BudgetUse, HoldersSeen, Index, LiveSession, Office, Quarantined};
use tensorhold_metrics::{Outcome, Registration, registry};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use self::check::Checks;
use self::exposed::StoreSource;
use self::health::Health;
use self::lease::{HeldLeases, UnseenLeases};
use self::unreadable::Unreadable;
use crate::audit::told::Inboxes;
use crate::io::Io;
use crate::io::sealed::Seals;
use crate::memory::Memory;
use crate::memory::pool::BufferPool;
use crate::ops::ahead::{self, Ahead};
use crate::ops::unfed::UnfedGroups;
use crate::reclaim::Reclaim;
use crate::reclaim::duty::Sweeping;
use crate::reclaim::worker::Swept;
use crate::runtime::Runtime;
#[cfg(feature = "testing")]
use crate::runtime::blocking::Lags;
use crate::runtime::blocking::Threads;
use crate::runtime::config::FeatureConfig;
use crate::runtime::counters::Counters;
use crate::runtime::inflight_puts::InflightPuts;
use crate::runtime::tasks::{Caller, closed};

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
    /// Dropped before what it reads.
    _metrics: Registration,
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
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) memory: Memory,
    pub(crate) io: Io,
    pub(crate) reclaim: Arc<Reclaim>,
    pub(crate) checks: Checks,
    /// Shared with the leases.
    pub(crate) unseen: Arc<UnseenLeases>,
    /// Shared with the leases.
    pub(crate) held: Arc<HeldLeases>,
    pub(crate) inflight_puts: Arc<InflightPuts>,
    pub(crate) unreadable: Unreadable,
    pub(crate) unfed: UnfedGroups,
    pub(crate) inboxes: Inboxes,
    pub(crate) reserved_ahead: Arc<Ahead>,
    /// Finds out which samples to read ahead.
    pub(crate) ahead: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl Inner {
    pub(crate) fn deadline(&self, within: Duration) -> Deadline {
        self.runtime.deadline(within)
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
        Self::open_on(engine, index, config, clock, rng, Threads::Own).await
    }

    /// As [`FeatureStore::open`], in a simulation: no call blocks the only thread, and each takes as long as this says.
    #[cfg(feature = "testing")]
    pub async fn open_simulated(
        engine: Arc<dyn Engine>,
        index: Arc<dyn Index>,
        config: FeatureConfig,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        lags: Arc<dyn Lags>,
    ) -> Result<Self> {
        Self::open_on(engine, index, config, clock, rng, Threads::Simulated(lags)).await
    }

    async fn open_on(
        engine: Arc<dyn Engine>,
        index: Arc<dyn Index>,
        config: FeatureConfig,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        threads: Threads,
    ) -> Result<Self> {
        const OPERATION: &str = "features.open";
        config.validate()?;
        if index.tick_length().is_zero() {
            return Err(Error::invalid(
                OPERATION,
                "a tick cannot be zero; give the index a longer one",
            ));
        }
        let handle = Handle::try_current().map_err(|error| {
            Error::invalid(OPERATION, "open the store inside a tokio runtime; its tasks run there").caused_by(error)
        })?;
        let runtime = Arc::new(Runtime::new(engine, index, config, clock, rng, handle, threads)?);
        let config = &runtime.config;
        let memory = Memory::new(&runtime);
        let seals = config.keyring.clone().map(|keyring| Seals::new(keyring, config));
        let reclaim = Arc::new(Reclaim::new(Arc::clone(&runtime)));
        let io = Io::new(Arc::clone(&runtime), Arc::clone(&reclaim.queue), seals);
        runtime.sessions.current(OPERATION, runtime.own_deadline()).await?;
        if config.warm_bytes > 0 {
            memory.pool.warm(config.warm_bytes, config.call_within).await?;
        }
        let (stop, stopped) = watch::channel(false);
        let mut workers = reclaim.start(&stopped);
        let reserved_ahead = Arc::new(Ahead::new(Arc::clone(&runtime)));
        workers.push(runtime.tasks.spawn(ahead::keep(Arc::clone(&reserved_ahead), stopped)));
        let inner = Arc::new(Inner {
            checks: Checks::new(Arc::clone(&runtime.index), Arc::clone(&runtime.clock)),
            unseen: Arc::default(),
            held: Arc::default(),
            inflight_puts: Arc::default(),
            unreadable: Unreadable::default(),
            unfed: UnfedGroups::default(),
            inboxes: Inboxes::default(),
            ahead: Mutex::new(None),
            reserved_ahead,
            runtime,
            memory,
            io,
            reclaim,
        });
        Ok(Self(Arc::new(Opened {
            _metrics: registry().register(Arc::new(StoreSource::new(&inner))),
            inner,
            stop,
            workers: Mutex::new(workers),
        })))
    }

    /// Starts a task that ends with the store.
    pub(crate) fn start<F>(&self, task: impl FnOnce(watch::Receiver<bool>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let task = self.inner().runtime.tasks.spawn(task(self.0.stop.subscribe()));
        let mut workers = self.0.workers.lock();
        workers.retain(|worker| !worker.is_finished());
        workers.push(task);
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
        let (inner, runtime) = (Arc::clone(self.inner()), &self.inner().runtime);
        let started = runtime.clock.now();
        let timed = |caller| Arc::clone(runtime).timed(operation, started, act(inner, caller), Outcome::of);
        runtime.tasks.run(operation, timed).await?
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
        let (inner, runtime) = (Arc::clone(self.inner()), &self.inner().runtime);
        let started = runtime.clock.now();
        let outcome = |results: &Vec<Result<T>>| Outcome::of_batch(results);
        let timed = |caller| Arc::clone(runtime).timed(operation, started, act(inner, caller), outcome);
        match runtime.tasks.run(operation, timed).await {
            Ok(results) => results,
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
    }

    /// The settings.
    pub fn config(&self) -> &FeatureConfig {
        &self.inner().runtime.config
    }

    /// The memory that gets receive into. A producer may write there too, and put without another copy. In a sealed
    /// store this memory is not registered with the engine.
    pub fn pool(&self) -> &BufferPool {
        &self.inner().memory.pool
    }

    /// Whether the bytes of a tensor that was got lie in memory that the store allocated for this tensor alone, because
    /// the pool had no room. Registered memory can be put from at any time by many puts at once; private memory is
    /// registered for each put, one at a time.
    pub fn is_private(&self, span: &Span) -> bool {
        self.inner().memory.is_private(span)
    }

    /// Registers memory of the caller for many transfers. It stays registered until the region and all its spans are
    /// dropped. In a sealed store it is not registered with the engine, since it holds plaintext.
    pub async fn register(&self, memory: HostMemory, within: Duration) -> Result<Region> {
        let inner = self.inner();
        inner.memory.register(memory, inner.deadline(within)).await
    }

    /// How many bytes a sample of these tensors counts against the store's budget.
    pub fn estimate_bytes(&self, tensors: &[TensorSpec]) -> u64 {
        let inner = self.inner();
        tensors
            .iter()
            .fold(0, |sum, spec| sum.saturating_add(inner.io.stored_bytes(spec)))
    }

    /// Takes back expired leases, reservations and sessions, and frees the samples that are to be freed. Any process
    /// may call it at any time, several at once.
    pub async fn sweep(&self, within: Duration) -> Result<Swept> {
        self.run("features.sweep", |inner| async move {
            inner.reclaim.sweep(inner.deadline(within)).await
        })
        .await
    }

    /// What this process knows and does about sweeping: who is on duty, and what its last sweep did. It changes with every
    /// sweep.
    pub fn sweeping(&self) -> watch::Receiver<Sweeping> {
        self.inner().reclaim.duty.subscribe()
    }

    /// What this process sees of the engine's holders while it is its turn to look at them (module `holders`); none while it
    /// is another one's. [`FeatureStore::holders_seen`] has what that one saw.
    pub fn watching_holders(&self) -> watch::Receiver<Option<HoldersSeen>> {
        self.inner().reclaim.holders.subscribe()
    }

    /// Whether this process holds an office with the session that it has now, by the index itself. What
    /// [`FeatureStore::sweeping`] tells was so when it was told.
    pub async fn holds(&self, office: Office, within: Duration) -> Result<bool> {
        self.run("features.holds", move |inner| async move {
            let (runtime, deadline) = (&inner.runtime, inner.deadline(within));
            let session = runtime.sessions.current("features.holds", deadline).await?;
            let leaders = runtime.index.leaders(runtime.left(deadline)).await?;
            Ok(leaders.is_held_by(office, session.id()))
        })
        .await
    }

    /// Changes the store's budget, or sets one. One that is smaller than what samples hold is refused (`Capacity`), and the
    /// old one stays in force. Processes that opened the store before its first budget are not bound by it.
    pub async fn set_budget(&self, bytes: u64, within: Duration) -> Result<()> {
        self.run("features.set_budget", move |inner| async move {
            let deadline = inner.deadline(within);
            inner
                .runtime
                .index
                .set_budget(bytes, inner.runtime.left(deadline))
                .await?;
            // Serves the processes that wait for it.
            if let Err(error) = inner.reclaim.sweep(deadline).await {
                tracing::debug!(%error, "the next sweep serves the processes that wait for quota");
            }
            Ok(())
        })
        .await
    }

    /// How the store's budget is used, and who waits for it; none without a budget.
    pub async fn budget_use(&self, within: Duration) -> Result<Option<BudgetUse>> {
        self.inner().runtime.index.budget_use(within).await
    }

    /// What this process has done since it opened the store.
    pub fn counters(&self) -> Counters {
        self.inner().runtime.count.read()
    }

    /// Waits until every sample that was retired here is freed. The error (kind `Timeout`) says which are left.
    pub async fn drain(&self, within: Duration) -> Result<()> {
        let inner = self.inner();
        let drained = inner.reclaim.queue.drain(inner.deadline(within));
        self.unless_closed("features.drain", drained).await
    }

    /// How the store is doing in this process. Values that engine or index do not report within the time are left out.
    pub async fn health(&self, within: Duration) -> Health {
        let inner = self.inner();
        let engine = Arc::clone(&inner.runtime.engine);
        let call = move |within| engine.usage(within);
        let (usage, budget) = tokio::join!(
            inner
                .runtime
                .blocking
                .run("features.health", inner.deadline(within), call),
            inner.runtime.index.budget_use(within)
        );
        let (leases, oldest_lease) = inner.held.told(inner.runtime.clock.now());
        Health {
            session: inner.runtime.sessions.known().map(|session| session.id()),
            sessions_opened: inner.runtime.sessions.opened(),
            index: inner.runtime.index.history(),
            operations: inner.runtime.tasks.running(),
            calls: inner.runtime.blocking.under_way(),
            pool: inner.memory.pool.usage(),
            pending_frees: inner.reclaim.queue.pending(),
            suspected: inner.reclaim.losses.suspected(),
            registrations: inner.runtime.engine.registrations(),
            usage: usage.ok(),
            free_budget: budget.ok().flatten().map(|used| used.free),
            leases,
            oldest_lease,
            clock: inner.runtime.index.seen_clock(),
            passed_over: inner.runtime.index.passed_over(),
            counters: inner.runtime.count.read(),
        }
    }

    /// Sends the spans that are queued. Those that are not sent in time are sent in the background.
    async fn close_traces(&self, deadline: Deadline) {
        let runtime = Arc::clone(&self.inner().runtime);
        if runtime.tracer.is_none() {
            return;
        }
        let time = runtime.left(deadline).max(Duration::from_millis(100));
        let close = move || runtime.tracer.as_ref().is_none_or(|tracer| tracer.close(time));
        if !matches!(self.inner().runtime.threads.spawn(close).await, Ok(true)) {
            tracing::warn!("not every span was sent before the store was closed");
        }
    }

    /// The sessions of this store that are alive, and what their processes say of themselves.
    pub async fn sessions(&self, within: Duration) -> Result<Vec<LiveSession>> {
        self.inner().runtime.index.sessions(within).await
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
        self.inner().runtime.index.quarantined(after, limit, within).await
    }

    /// The bytes of a record in quarantine, unchanged.
    pub async fn quarantined_bytes(&self, which: &Quarantined, within: Duration) -> Result<Vec<u8>> {
        self.inner().runtime.index.quarantined_bytes(which, within).await
    }

    /// Waits for something that is no operation of the store, until the store begins to close.
    pub async fn unless_closed<T>(&self, operation: &'static str, wait: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            ended = wait => ended,
            () = self.inner().runtime.tasks.closing() => Err(closed(operation)),
        }
    }

    /// Ends this process's membership: accepts no more operations, ends the waits of the
    /// operations in flight (their callers get an error that says so, and no sample), waits for those whose bytes move,
    /// returns the leases that their holders have not looked at, frees the samples that were retired here, stops the
    /// workers, and ends the session. The error says what was not done in time; the sweeps of other processes will do it.
    pub async fn close(&self, within: Duration) -> Result<()> {
        const OPERATION: &str = "features.close";
        let inner = self.inner();
        let deadline = inner.deadline(within);
        let left = inner.runtime.tasks.close(&*inner.runtime.clock, deadline).await;
        inner.unseen.give_back();
        let drained = inner.reclaim.queue.drain(deadline).await;
        // On a second close no worker listens any more.
        self.0.stop.send_replace(true);
        let workers = std::mem::take(&mut *self.0.workers.lock());
        for mut worker in workers {
            let time = inner.runtime.left(deadline).max(Duration::from_millis(100));
            if tokio::time::timeout(time, &mut worker).await.is_err() {
                worker.abort();
            }
        }
        let ahead = inner.ahead.lock().take();
        if let Some(ahead) = ahead {
            ahead.abort();
            // It was told to end; whether it panicked before does not matter any more.
            drop(ahead.await);
        }
        let prefetch = Arc::clone(&inner.runtime.prefetch);
        let ended = inner.runtime.threads.spawn(move || prefetch.close());
        let time = inner.runtime.left(deadline).max(Duration::from_millis(100));
        if tokio::time::timeout(time, ended).await.is_err() {
            tracing::warn!("a read ahead has not returned yet; its thread ends by itself");
        }
        let closed = inner.runtime.sessions.close(deadline).await;
        self.close_traces(deadline).await;
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
}
