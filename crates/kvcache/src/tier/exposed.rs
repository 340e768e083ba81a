//! What page stores and tiers count anyway, told when the process is scraped.

use std::sync::{Arc, Weak};

use tensorhold_metrics::{Readings, Source, family};
use tensorhold_prefetch::PrefetchEngine;

use super::quarantine::Quarantine;
use super::stats::Counters;
use super::table::TierStats;

/// The value of the label `store` for KV pages: the first part of their keys, which no feature store can have.
pub(super) const LABEL: &str = "kv";

/// Reads a page store. It does not keep the engine alive.
pub(super) struct PageSource {
    count: Arc<Counters>,
    bad: Arc<Quarantine>,
    prefetch: Weak<PrefetchEngine>,
}

impl PageSource {
    pub(super) fn new(count: &Arc<Counters>, bad: &Arc<Quarantine>, prefetch: &Arc<PrefetchEngine>) -> Self {
        Self {
            count: Arc::clone(count),
            bad: Arc::clone(bad),
            prefetch: Arc::downgrade(prefetch),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn float(value: u64) -> f64 {
    value as f64
}

impl Source for PageSource {
    fn read(&self, readings: &mut Readings) {
        let count = self.count.snapshot(self.bad.len());
        for (outcome, pages) in [
            ("stored", count.pages_stored),
            ("full", count.puts_full),
            ("failed", count.puts_failed),
        ] {
            readings.counter(&family::PAGES_PUT, &[outcome], pages);
        }
        for (outcome, pages) in [
            ("loaded", count.pages_loaded),
            ("missed", count.gets_missed),
            ("wrong_length", count.gets_wrong_length),
            ("corrupt", count.gets_corrupt),
            ("failed", count.gets_failed),
        ] {
            readings.counter(&family::PAGES_GOT, &[outcome], pages);
        }
        readings.counter(&family::PAGE_BYTES, &["out"], count.bytes_stored);
        readings.counter(&family::PAGE_BYTES, &["in"], count.bytes_loaded);
        let absent = count.keys_probed.saturating_sub(count.keys_present);
        readings.counter(&family::PAGE_KEYS, &["yes"], count.keys_present);
        readings.counter(&family::PAGE_KEYS, &["no"], absent);
        readings.counter(&family::BAD_PAGES, &[], count.bad_pages_removed);
        readings.gauge(&family::BAD_PAGES_WAITING, &[], float(count.bad_pages_waiting));
        if let Some(prefetch) = self.prefetch.upgrade() {
            prefetch.stats().tell(LABEL, readings);
        }
    }
}

/// Tells the counters of a tier.
pub(super) fn tier(stats: &TierStats, readings: &mut Readings) {
    for (outcome, operations) in stats.by_outcome() {
        readings.counter(&family::TIER_OPERATIONS, &[outcome], operations);
    }
    readings.gauge(&family::TIER_OPEN, &[], float(stats.open));
}
