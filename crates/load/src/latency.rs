//! Latencies in windows of the run: histograms that a worker prints and the conductor merges.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::now_us;
use crate::worker::Line;

/// No run is longer than this by much; what is longer counts as this long.
const LONGEST_US: u64 = 3_600_000_000;
/// A value is off by a thousandth at most.
const DIGITS: u8 = 3;

/// What takes its time: see the table of the crate's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Put,
    PutCall,
    Delivery,
    Take,
    Ack,
    Open,
    Look,
}

/// The latencies of each step, in microseconds.
pub(crate) type Latencies = BTreeMap<Step, Histogram<u64>>;

/// What is told of a histogram, and the histogram itself in HdrHistogram's own format.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) count: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    pub(crate) max_ms: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    histogram: Option<String>,
}

impl Summary {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let ms = |us: u64| us as f64 / 1e3;
        let at = |q| ms(histogram.value_at_quantile(q));
        Self {
            count: histogram.len(),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            max_ms: ms(histogram.max()),
            histogram: None,
        }
    }

    fn with_histogram(histogram: &Histogram<u64>) -> Result<Self> {
        let mut bytes = Vec::new();
        let written = V2Serializer::new().serialize(histogram, &mut bytes);
        written.context("a histogram cannot be written")?;
        Ok(Self {
            histogram: Some(BASE64_STANDARD.encode(bytes)),
            ..Self::of(histogram)
        })
    }

    fn histogram(&self) -> Result<Histogram<u64>> {
        let text = self.histogram.as_ref().context("a worker printed no histogram")?;
        let bytes = BASE64_STANDARD.decode(text)?;
        let read = Deserializer::new().deserialize(&mut bytes.as_slice());
        read.context("a worker's histogram cannot be read")
    }
}

/// Adds what a worker printed of one window.
pub(crate) fn merge(into: &mut Latencies, printed: &BTreeMap<Step, Summary>) -> Result<()> {
    for (step, summary) in printed {
        add(into, *step, &summary.histogram()?)?;
    }
    Ok(())
}

pub(crate) fn add(into: &mut Latencies, step: Step, histogram: &Histogram<u64>) -> Result<()> {
    Ok(histogram_of(into, step)?.add(histogram)?)
}

fn histogram_of(latencies: &mut Latencies, step: Step) -> Result<&mut Histogram<u64>> {
    use std::collections::btree_map::Entry;
    Ok(match latencies.entry(step) {
        Entry::Occupied(there) => there.into_mut(),
        Entry::Vacant(place) => place.insert(Histogram::new_with_bounds(1, LONGEST_US, DIGITS)?),
    })
}

/// A worker's latencies of the current window. A latency belongs to the window in which its step ended.
pub(crate) struct Recorder {
    start_us: u64,
    window_us: u64,
    current: Mutex<(u64, Latencies)>,
}

impl Recorder {
    pub(crate) fn new(start_us: u64, window_us: u64) -> Self {
        Self {
            start_us,
            window_us,
            current: Mutex::default(),
        }
    }

    /// A step of `count` samples that began at `since_us` has ended now. Prints the window before if this is the first step of
    /// another.
    pub(crate) fn ended(&self, step: Step, since_us: u64, count: usize) -> Result<()> {
        let now = now_us();
        let window = now.saturating_sub(self.start_us) / self.window_us;
        let mut current = self.current.lock();
        if current.0 != window {
            print(&mut current)?;
            current.0 = window;
        }
        let histogram = histogram_of(&mut current.1, step)?;
        histogram.saturating_record_n(now.saturating_sub(since_us), count as u64);
        Ok(())
    }

    /// Prints what is left.
    pub(crate) fn finish(&self) -> Result<()> {
        print(&mut self.current.lock())
    }
}

fn print((window, latencies): &mut (u64, Latencies)) -> Result<()> {
    let latencies = std::mem::take(latencies);
    if latencies.is_empty() {
        return Ok(());
    }
    let summaries = latencies
        .iter()
        .map(|(step, histogram)| Ok((*step, Summary::with_histogram(histogram)?)))
        .collect::<Result<_>>()?;
    Line::Window {
        window: *window,
        latencies: summaries,
    }
    .print()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_histogram_is_merged_as_it_was() {
        let mut before = Latencies::new();
        let histogram = histogram_of(&mut before, Step::Put).expect("it is well-formed");
        for us in [900, 1_000, 2_000, 400_000] {
            histogram.record(us).expect("it is well-formed");
        }
        let printed = BTreeMap::from([(
            Step::Put,
            Summary::with_histogram(histogram).expect("it is well-formed"),
        )]);
        let text = serde_json::to_string(&printed).expect("it is well-formed");
        let mut merged = Latencies::new();
        for _ in 0..2 {
            merge(&mut merged, &serde_json::from_str(&text).expect("it is well-formed")).expect("it is well-formed");
        }
        let merged = &merged[&Step::Put];
        assert_eq!(merged.len(), 8);
        assert_eq!(merged.max(), before[&Step::Put].max());
        assert_eq!(merged.value_at_quantile(0.5), before[&Step::Put].value_at_quantile(0.5));
    }
}
