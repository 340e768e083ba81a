//! The threads of a tier, and its public interface. The states of an operation are drawn in [`super`].

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result};
use tensorhold_metrics::{Readings, Registration, Source, registry};

use super::copier::DeviceCopier;
use super::exposed;
use super::host::HostMemoryMap;
use super::inflight::Settling;
use super::run::Backend;
use super::store::PageStore;
use super::table::{Cancelled, Job, Lane, Submitted, Table, TierEvent, TierStats};
use crate::plan::{Completion, Failure, Namespace, Operation, OperationId};

/// The threads and the limit of one kind of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneConfig {
    /// How many operations are carried out at once.
    pub threads: usize,
    /// The most open operations, including those whose end the caller has not fetched yet; one more is refused.
    pub most: usize,
}

/// The settings of a tier. Kinds of operations do not share threads: a store that hangs does not hold up copies to the
/// device, and backups do not hold up prefetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierConfig {
    /// Queries. Default: one thread, 16,384 operations.
    pub query: LaneConfig,
    /// Prefetches. Default: two threads, 16,384 operations.
    pub prefetch: LaneConfig,
    /// Backups. Default: one thread, 16,384 operations.
    pub backup: LaneConfig,
    /// Load-backs and write-backs. Default: one thread, 16,384 operations.
    pub copy: LaneConfig,
    /// How long dropping the tier waits for its threads. Default: 10 s.
    pub close_within: Duration,
}

impl Default for TierConfig {
    fn default() -> Self {
        let lane = |threads| LaneConfig { threads, most: 16_384 };
        Self {
            query: lane(1),
            prefetch: lane(2),
            backup: lane(1),
            copy: lane(1),
            close_within: Duration::from_secs(10),
        }
    }
}

impl TierConfig {
    const fn lane(&self, lane: Lane) -> LaneConfig {
        match lane {
            Lane::Query => self.query,
            Lane::Prefetch => self.prefetch,
            Lane::Backup => self.backup,
            Lane::Copy => self.copy,
        }
    }
}

/// Carries out a planner's operations, off the scheduling path. None of its methods blocks except [`Tier::wait`] and
/// [`Tier::close`], and those no longer than the given time.
pub struct Tier {
    /// Dropped before what it reads.
    _metrics: Registration,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    close_within: Duration,
}

struct Shared {
    means: Backend,
    clock: Arc<dyn Clock>,
    table: Mutex<Table>,
    /// Notified when a lane has work, one for each lane.
    work: [Condvar; Lane::ALL.len()],
    /// Notified when there is an event to fetch, or a thread has ended.
    news: Condvar,
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Tier {
    /// Starts the tier's threads. `names` names pages, and `host` says where they lie; its regions are registered with
    /// the store's engine.
    pub fn start(
        store: Arc<PageStore>,
        names: Namespace,
        host: HostMemoryMap,
        copier: Arc<dyn DeviceCopier>,
        config: TierConfig,
    ) -> Result<Self> {
        names.validate()?;
        if Lane::ALL.iter().any(|lane| config.lane(*lane).threads == 0) {
            return Err(Error::invalid(
                "kv.tier",
                "every kind of operations needs at least one thread",
            ));
        }
        let shared = Arc::new(Shared {
            clock: Arc::clone(store.clock()),
            means: Backend {
                store,
                names,
                host,
                copier,
            },
            table: Mutex::new(Table::new(Lane::ALL.map(|lane| config.lane(lane).most))),
            work: Default::default(),
            news: Condvar::new(),
        });
        let tier = Self {
            _metrics: registry().register(Arc::new(TierSource(Arc::downgrade(&shared)))),
            shared,
            threads: Mutex::default(),
            close_within: config.close_within,
        };
        for lane in Lane::ALL {
            for _ in 0..config.lane(lane).threads {
                let shared = Arc::clone(&tier.shared);
                let started = thread::Builder::new()
                    .name(format!("tensorhold-kvcache-{lane:?}").to_lowercase())
                    .spawn(move || shared.serve(lane));
                // If this fails, dropping the tier ends the threads that were started.
                let thread = started.map_err(|error| {
                    Error::new(ErrorKind::Unavailable, "kv.tier", "no thread could be started").caused_by(error)
                })?;
                tier.threads.lock().push(thread);
            }
        }
        Ok(tier)
    }

    /// Accepts an operation, to be done within this time. Returns at once.
    pub fn submit(&self, operation: Operation, within: Duration) -> Submitted {
        let lane = super::table::Lane::of(&operation.work);
        let now = self.shared.clock.now();
        let submitted = self.shared.table.lock().submit(operation, within, now);
        if submitted == Submitted::Accepted {
            self.shared.work[lane as usize].notify_one();
        }
        submitted
    }

    /// Asks for an operation to end early. Its pages stay its own until its terminal event.
    pub fn cancel(&self, operation: OperationId) -> Cancelled {
        let cancelled = self.shared.table.lock().cancel(operation);
        self.shared.news.notify_all();
        cancelled
    }

    /// The events since the last call. Returns at once.
    pub fn poll(&self) -> Vec<TierEvent> {
        let mut table = self.shared.table.lock();
        table.expire(self.shared.clock.now());
        table.drain()
    }

    /// Like [`Tier::poll`], but waits for an event, up to `within`.
    pub fn wait(&self, within: Duration) -> Vec<TierEvent> {
        let clock = &*self.shared.clock;
        let deadline = Deadline::after(clock, within);
        let mut table = self.shared.table.lock();
        loop {
            let now = clock.now();
            table.expire(now);
            let left = deadline.remaining(clock);
            if table.has_news() || left.is_zero() {
                return table.drain();
            }
            let next = table.next_deadline().map_or(left, |next| next.since(now).min(left));
            self.shared.news.wait_for(&mut table, next);
        }
    }

    /// Counters, and how many operations are open.
    pub fn stats(&self) -> TierStats {
        self.shared.table.lock().stats()
    }

    /// Whether any operation is open, or an end has not been fetched yet (KV24).
    pub fn has_pending(&self) -> bool {
        self.stats().open > 0
    }

    /// The store under it.
    pub fn store(&self) -> &Arc<PageStore> {
        &self.shared.means.store
    }

    /// Refuses new operations, ends those that were not begun, stops those in flight, and waits for the tier's threads,
    /// up to `within`. Returns how many threads are still in a call that does not return; the memory that they use
    /// stays alive until it does. Ends can still be fetched afterwards.
    pub fn close(&self, within: Duration) -> usize {
        let clock = &*self.shared.clock;
        let deadline = Deadline::after(clock, within);
        let mut table = self.shared.table.lock();
        table.close();
        for work in &self.shared.work {
            work.notify_all();
        }
        self.shared.news.notify_all();
        let mut threads = self.threads.lock();
        loop {
            let left = deadline.remaining(clock);
            if left.is_zero() || threads.iter().all(JoinHandle::is_finished) {
                break;
            }
            // A thread reports its end a moment before it has ended.
            self.shared
                .news
                .wait_for(&mut table, left.min(Duration::from_millis(5)));
        }
        drop(table);
        let (ended, stuck): (Vec<_>, Vec<_>) = threads.drain(..).partition(JoinHandle::is_finished);
        for thread in ended {
            if thread.join().is_err() {
                tracing::error!("a thread of the KV tier panicked");
            }
        }
        let left = stuck.len();
        *threads = stuck;
        left
    }
}

impl Drop for Tier {
    fn drop(&mut self) {
        let left = self.close(self.close_within);
        if left > 0 {
            tracing::warn!(
                threads = left,
                "threads of the KV tier are still in engine calls or copies that do not return"
            );
        }
    }
}

/// Tells the counters of a tier to a scrape.
struct TierSource(Weak<Shared>);

impl Source for TierSource {
    fn read(&self, readings: &mut Readings) {
        let Some(shared) = self.0.upgrade() else { return };
        let stats = shared.table.lock().stats();
        exposed::tier(&stats, readings);
    }
}

impl Shared {
    /// The loop of a thread: carries out operations of its lane until the tier is closed.
    fn serve(self: &Arc<Self>, lane: Lane) {
        let mut table = self.table.lock();
        loop {
            if let Some(job) = table.next(lane, self.clock.now()) {
                drop(table);
                self.carry_out(&job);
                table = self.table.lock();
            } else if table.is_closing() {
                self.news.notify_all();
                return;
            } else {
                // An operation that ended in the queue is an event to fetch.
                self.news.notify_all();
                self.work[lane as usize].wait(&mut table);
            }
        }
    }

    fn carry_out(self: &Arc<Self>, job: &Job) {
        let settling = Settling::default();
        let completion = catch_unwind(AssertUnwindSafe(|| self.means.carry_out(job, &settling)));
        let completion = completion.unwrap_or_else(|_| {
            tracing::error!(operation = %job.id, "an operation panicked; it is reported as failed");
            Completion {
                operation: job.id,
                completed: 0,
                failure: Some(Failure::Failed),
            }
        });
        let id = completion.operation;
        self.table.lock().returned(completion);
        // A weak reference: a call that never returns must not keep the tier's engine alive through its own memory.
        let shared: Weak<Self> = Arc::downgrade(self);
        settling.when_settled(move || {
            if let Some(shared) = shared.upgrade() {
                shared.table.lock().landed(id);
                shared.news.notify_all();
            }
        });
    }
}
