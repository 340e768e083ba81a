//! Metrics of this process: counters, gauges and latency histograms, and their text for Prometheus.
//!
//! ```text
//!  engine, index, features ──observe──▶ cells of a store (StoreMetrics)  ─┐
//!  counters that exist anyway, gauges ◀──read at a scrape── Source        ├─▶ Registry ─▶ text()
//!  a source that ends ──its last counts──▶ what has ended                ─┘
//! ```
//!
//! - A **family** ([`Family`]) is a metric with its name, type, labels and meaning. All of Tensorhold's are in [`family`]; the
//!   page `docs/metrics.md` is made from them ([`page()`]).
//! - **Cells** ([`Counter`], [`Histogram`], [`Calls`]) are what hot paths write to: two relaxed additions to atomics, no lock,
//!   no lookup, no allocation but for the first observation of a series.
//! - A **source** ([`Source`]) is read when a process is scraped. So what a part of Tensorhold counts anyway is counted once.
//! - The **registry** ([`registry`]) belongs to the process.
//!
//! # What holds
//! - M1: the number of series is bounded. Labels take values from fixed lists, except for the name of a store, of which
//!   the registry knows at most [`MOST_STORES`]; later ones share the name `other`. No label ever holds a sample, a
//!   session, a host or a message.
//! - M2: a counter does not fall while the process lives: when a source ends, its last counts are kept. Two sources with the
//!   same labels (a store that was opened twice) are added up.
//! - M3: a scrape does no I/O, and waits for nothing but short locks.
//! - M4: a forked child begins with an empty registry. It touches nothing of the parent's, whose locks may be held for ever
//!   on its side of the fork.
//!
//! With `TENSORHOLD_METRICS=off` in the environment of a process, its registry hands out no cells and knows no source:
//! nothing is timed, and the text is empty.

pub mod cells;
pub mod family;
mod outcome;
mod page;
mod process;
mod readings;
mod registry;
mod store;
mod text;

pub use cells::{Buckets, Calls, Counter, Counts, Histogram, LATENCY};
pub use family::{Family, Kind};
pub use outcome::Outcome;
pub use page::page;
pub use process::registry;
pub use readings::{Readings, Source};
pub use registry::{MOST_STORES, Registration, Registry};
pub use store::{
    CAUSES, ENGINE_CALLS, EngineCall, EngineMetrics, INDEX_CALLS, IndexCall, IndexMetrics, OBJECT_OUTCOMES, OPERATIONS,
    READS, StoreMetrics,
};

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
