//! What a store counts anyway, told when the process is scraped.

use std::sync::{Arc, Weak};

use tensorhold_metrics::{Readings, Source, family};

use super::Inner;

/// Reads an open store.
pub(crate) struct StoreSource {
    store: String,
    inner: Weak<Inner>,
}

impl StoreSource {
    pub(crate) fn new(inner: &Arc<Inner>) -> Self {
        let label = inner.runtime.metrics.as_ref().map(|metrics| metrics.name().to_owned());
        Self {
            store: label.unwrap_or_default(),
            inner: Arc::downgrade(inner),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn float(value: u64) -> f64 {
    value as f64
}

impl Source for StoreSource {
    fn read(&self, readings: &mut Readings) {
        let Some(inner) = self.inner.upgrade() else { return };
        let (store, runtime) = (self.store.as_str(), &inner.runtime);
        let count = runtime.count.read();
        for (family, count) in [
            (&family::PUT, count.puts),
            (&family::PUT_BYTES, count.bytes_put),
            (&family::PUT_FAILURES, count.failed_puts),
            (&family::PUT_WAITS, count.waits_for_room),
            (&family::TAKEN, count.taken),
            (&family::EMPTY_TAKES, count.empty_takes),
            (&family::GOT, count.gets),
            (&family::GOT_BYTES, count.bytes_got),
            (&family::CORRUPT, count.corrupt),
            (&family::FENCED, count.fenced),
            (&family::UNREADABLE, count.unreadable),
            (&family::LOST, count.lost),
            (&family::ACKED, count.acks),
            (&family::NACKED, count.nacks),
            (&family::FREED, count.freed),
            (&family::FREE_FAILURES, count.failed_frees),
            (&family::LEFT_TO_SWEEPS, count.left_to_sweeps),
            (&family::SWEEPS, count.sweeps),
            (&family::SESSIONS, runtime.sessions.opened()),
        ] {
            readings.counter(family, &[store], count);
        }
        let history = runtime.index.history();
        readings.counter(&family::CUTS, &[store], history.cuts);
        let passed_over = runtime.index.passed_over();
        readings.counter(&family::PASSED_OVER, &[store, "quarantined"], passed_over.quarantined);
        readings.counter(&family::PASSED_OVER, &[store, "later"], passed_over.later);
        let registrations = runtime.engine.registrations();
        let (leases, oldest) = inner.held.told(runtime.clock.now());
        for (family, value) in [
            (&family::OPERATIONS_IN_FLIGHT, runtime.tasks.running() as u64),
            (&family::CALLS_IN_FLIGHT, runtime.blocking.under_way() as u64),
            (&family::PENDING_FREES, inner.reclaim.queue.pending() as u64),
            (&family::SUSPECTED, inner.reclaim.losses.suspected() as u64),
            (&family::LEASES, leases as u64),
            (&family::REGISTERED, registrations.bytes),
            (&family::STUCK, registrations.stuck as u64),
            (&family::REFUSES, u64::from(history.refuses.is_some())),
        ] {
            readings.gauge(family, &[store], float(value));
        }
        let missing = inner
            .reclaim
            .holders
            .borrow()
            .as_ref()
            .map(|seen| seen.missing.len() as u64);
        if let Some(missing) = missing {
            readings.gauge(&family::MISSING_HOLDERS, &[store], float(missing));
        }
        readings.gauge(
            &family::OLDEST_LEASE,
            &[store],
            oldest.unwrap_or_default().as_secs_f64(),
        );
        if let Some((tick, stood)) = runtime.index.seen_clock() {
            readings.gauge(&family::TICK, &[store], float(tick.0));
            readings.gauge(&family::CLOCK_STOOD, &[store], stood.as_secs_f64());
        }
        let pool = inner.memory.pool.usage();
        for (state, bytes) in [("budget", pool.budget), ("taken", pool.taken), ("lent", pool.lent)] {
            readings.gauge(&family::POOL, &[store, state], float(bytes));
        }
        runtime.prefetch.stats().tell(store, readings);
    }
}
