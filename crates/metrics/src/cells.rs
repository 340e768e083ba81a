//! What hot paths write to.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::outcome::{OUTCOMES, Outcome};

/// A count that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts `n` more.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts one more.
    pub fn one(&self) {
        self.add(1);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The buckets of a histogram, in whole units of what is observed.
#[derive(Debug)]
pub struct Buckets {
    /// The upper limits, in order; a further bucket has none.
    pub limits: &'static [u64],
    /// How many units of what is observed are one unit of what is exposed.
    pub units: f64,
}

/// Latencies, observed in nanoseconds and exposed in seconds: from 10 µs, below which no call to a server ends, to a
/// minute.
pub static LATENCY: Buckets = Buckets {
    limits: &[
        10_000,
        25_000,
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        500_000_000,
        1_000_000_000,
        2_500_000_000,
        5_000_000_000,
        10_000_000_000,
        30_000_000_000,
        60_000_000_000,
    ],
    units: 1e9,
};

/// Sizes of batches.
pub(crate) static SIZES: Buckets = Buckets {
    limits: &[1, 2, 4, 8, 16, 32, 64, 128],
    units: 1.0,
};

/// How often something was how large.
#[derive(Debug)]
pub struct Histogram {
    buckets: &'static Buckets,
    /// One for each limit and one more. They are not cumulative, so that an observation changes one of them.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new(buckets: &'static Buckets) -> Self {
        Self {
            buckets,
            counts: (0..=buckets.limits.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Counts one value.
    pub fn observe(&self, value: u64) {
        let at = self.buckets.limits.partition_point(|limit| *limit < value);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Counts one latency.
    pub fn took(&self, time: Duration) {
        self.observe(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn buckets(&self) -> &'static Buckets {
        self.buckets
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }
}

/// Latencies of calls, by name and outcome. A series exists from its first observation.
#[derive(Debug)]
pub struct Calls {
    names: &'static [&'static str],
    cells: Box<[OnceLock<Histogram>]>,
}

impl Calls {
    /// No call yet, of these names.
    pub fn new(names: &'static [&'static str]) -> Self {
        let cells = names.len() * OUTCOMES;
        Self {
            names,
            cells: (0..cells).map(|_| OnceLock::new()).collect(),
        }
    }

    /// A call ended: the position of its name, how it ended, and how long it took. Nothing for a position that is none.
    pub fn ended(&self, name: usize, outcome: Outcome, took: Duration) {
        if let Some(cell) = self.cells.get(name * OUTCOMES + outcome.index()) {
            cell.get_or_init(|| Histogram::new(&LATENCY)).took(took);
        }
    }

    /// As [`Calls::ended`], by name.
    pub fn ended_by_name(&self, name: &str, outcome: Outcome, took: Duration) {
        if let Some(at) = self.names.iter().position(|known| *known == name) {
            self.ended(at, outcome, took);
        }
    }

    /// Every series so far: name, outcome, latencies.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, Outcome, &Histogram)> {
        let places = self
            .names
            .iter()
            .flat_map(|name| Outcome::all().map(move |outcome| (*name, outcome)));
        let cells = places.zip(&self.cells);
        cells.filter_map(|((name, outcome), cell)| Some((name, outcome, cell.get()?)))
    }
}

/// Counters by two names out of fixed lists. A series is exposed once it is not zero.
#[derive(Debug)]
pub struct Counts {
    rows: &'static [&'static str],
    columns: &'static [&'static str],
    cells: Box<[Counter]>,
}

impl Counts {
    /// All zero.
    pub fn new(rows: &'static [&'static str], columns: &'static [&'static str]) -> Self {
        let cells = rows.len() * columns.len();
        Self {
            rows,
            columns,
            cells: (0..cells).map(|_| Counter::new()).collect(),
        }
    }

    /// Counts `n` more. Nothing for a position that is none.
    pub fn add(&self, row: usize, column: usize, n: u64) {
        if let Some(cell) = self.cells.get(row * self.columns.len() + column) {
            cell.add(n);
        }
    }

    /// Every counter that is not zero: its two names, and the count.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let places = self
            .rows
            .iter()
            .flat_map(|row| self.columns.iter().map(move |column| (*row, *column)));
        let cells = places
            .zip(&self.cells)
            .map(|((row, column), cell)| (row, column, cell.get()));
        cells.filter(|(_, _, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorhold_core::{Error, ErrorKind};

    #[test]
    fn a_value_counts_in_the_first_bucket_whose_limit_it_does_not_exceed() {
        let histogram = Histogram::new(&SIZES);
        for value in [0, 1, 2, 3, 128, 129] {
            histogram.observe(value);
        }
        assert_eq!(histogram.counts().collect::<Vec<_>>(), [2, 1, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!(histogram.sum(), 263);
    }

    #[test]
    fn calls_are_told_by_name_and_outcome_and_unknown_names_are_not() {
        let calls = Calls::new(&["put", "get"]);
        let took = Duration::from_millis(3);
        let fenced = Outcome::of(&Err::<(), _>(Error::new(ErrorKind::Fenced, "test", "")));
        calls.ended_by_name("get", fenced, took);
        calls.ended(0, Outcome::OK, took);
        calls.ended(7, Outcome::OK, took);
        calls.ended_by_name("none", Outcome::OK, took);
        let told: Vec<_> = calls.each().map(|(name, outcome, _)| (name, outcome.name())).collect();
        assert_eq!(told, [("put", "ok"), ("get", "fenced")]);
    }
}
