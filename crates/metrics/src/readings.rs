//! What a scrape reads, added up by family and labels.

use std::collections::BTreeMap;

use crate::cells::{Buckets, Histogram};
use crate::family::{Family, Kind};

/// Something whose values are read when the process is scraped.
///
/// Reading must not wait for anything but short locks, and must not do I/O.
pub trait Source: Send + Sync {
    /// Tells its values.
    fn read(&self, readings: &mut Readings);
}

#[derive(Clone, Debug)]
pub(crate) enum Value {
    Count(u64),
    Gauge(f64),
    Histogram {
        buckets: &'static Buckets,
        counts: Vec<u64>,
        sum: u64,
    },
}

/// The series of one family, by the values of their labels.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) family: &'static Family,
    pub(crate) values: BTreeMap<Vec<String>, Value>,
}

/// Values, by family and labels. Counts, sums and gauges of the same labels are added up.
#[derive(Clone, Debug, Default)]
pub struct Readings(BTreeMap<&'static str, Series>);

impl Readings {
    /// Tells a count.
    pub fn counter(&mut self, family: &'static Family, labels: &[&str], count: u64) {
        debug_assert!(matches!(family.kind, Kind::Counter), "{}", family.name);
        self.add(family, labels, Value::Count(count));
    }

    /// Tells a gauge.
    pub fn gauge(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        debug_assert!(matches!(family.kind, Kind::Gauge | Kind::Greatest), "{}", family.name);
        self.add(family, labels, Value::Gauge(value));
    }

    /// Tells a histogram.
    pub fn histogram(&mut self, family: &'static Family, labels: &[&str], histogram: &Histogram) {
        debug_assert!(matches!(family.kind, Kind::Histogram), "{}", family.name);
        let value = Value::Histogram {
            buckets: histogram.buckets(),
            counts: histogram.counts().collect(),
            sum: histogram.sum(),
        };
        self.add(family, labels, value);
    }

    fn add(&mut self, family: &'static Family, labels: &[&str], value: Value) {
        debug_assert_eq!(family.labels.len(), labels.len(), "{}", family.name);
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        self.merge(family, labels, value);
    }

    fn merge(&mut self, family: &'static Family, labels: Vec<String>, value: Value) {
        let series = self.0.entry(family.name).or_insert_with(|| Series {
            family,
            values: BTreeMap::new(),
        });
        let Some(known) = series.values.get_mut(&labels) else {
            series.values.insert(labels, value);
            return;
        };
        match (known, value) {
            (Value::Count(known), Value::Count(more)) => *known = known.wrapping_add(more),
            (Value::Gauge(known), Value::Gauge(more)) => {
                *known = match family.kind {
                    Kind::Greatest => known.max(more),
                    _ => *known + more,
                };
            }
            (
                Value::Histogram { counts, sum, .. },
                Value::Histogram {
                    counts: more, sum: by, ..
                },
            ) => {
                for (known, more) in counts.iter_mut().zip(more) {
                    *known = known.wrapping_add(more);
                }
                *sum = sum.wrapping_add(by);
            }
            // A family has one kind.
            (_, _) => {}
        }
    }

    /// Adds the counts and histograms of a source that has ended; its gauges end with it.
    pub(crate) fn keep(&mut self, last: Self) {
        for (_, series) in last.0 {
            for (labels, value) in series.values {
                if !matches!(value, Value::Gauge(_)) {
                    self.merge(series.family, labels, value);
                }
            }
        }
    }

    pub(crate) fn series(&self) -> impl Iterator<Item = &Series> {
        self.0.values()
    }
}
