//! The contract suite: the `# Contract` of [`Engine`] as cases that run on every back end.
//!
//! A back end implements [`Backend`] (how to start a cluster) and [`Harness`] (what a test can do to it from outside).
//! It gets one named test per case, under `cargo test` and `cargo nextest` alike:
//!
//! ```no_run
//! # use std::time::Duration;
//! # use tensorhold_core::{Error, Result};
//! # use tensorhold_engine::testing::{Backend, Harness, Setup};
//! struct MyBackend;
//!
//! impl Backend for MyBackend {
//!     fn start(&self, setup: &Setup) -> Result<Box<dyn Harness>> {
//!         // Start a cluster that is like `setup`.
//! #       Err(Error::internal("example", format!("no cluster like {setup:?}")))
//!     }
//! }
//!
//! // tests/contract.rs, with `harness = false` in the manifest
//! fn main() {
//!     tensorhold_engine::testing::main(MyBackend)
//! }
//! ```
//!
//! Rules of the suite:
//! - A case asks for nothing that the contract does not promise. Where the contract says *may*, the case accepts both
//!   outcomes and a comment quotes the sentence.
//! - Every case has a cluster of its own, every wait is bounded, and time comes from the harness: a case that takes 30
//!   s on a real cluster takes none on a simulated one.
//! - A case does not panic; it returns a [`Failure`] that says what was seen and what was expected.
//! - The engine must have [`crate::Capabilities::probe`]: many checks need it.

#[macro_use]
mod check;
mod context;

mod batches;
mod concurrency;
mod deadlines;
mod keys;
mod lengths;
mod list;
mod loss;
mod observed;
mod on_memory;
mod pressure;
mod probe;
mod put_get;
mod registration;
mod relocate;
mod remove;
mod ssd;
mod unfinished;

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, ObjectKey, Result};

use crate::Engine;

pub use check::pattern;
pub use context::{Client, Context};
pub use observed::{Calls, Observed};
pub use on_memory::MemoryBackend;
pub use tensorhold_core::testing::{CaseResult, Failure};

/// The cluster that a case needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// DRAM of each holder, in MiB. Default: 64.
    pub segment_mib: u64,
    /// How many holders. Default: 1.
    pub holders: usize,
    /// How long a read lease lasts, where the engine grants one. Default: 5 s.
    pub lease_ttl: Duration,
    /// Whether the holders have an SSD tier. Its heartbeats (offload, promotion) must come about every second and
    /// handle several objects each. Evictable objects get their SSD copy at a heartbeat after the put, not only when
    /// they are evicted. A hit or a `promote` promotes. Default: no.
    pub ssd: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            segment_mib: 64,
            holders: 1,
            lease_ttl: Duration::from_secs(5),
            ssd: false,
        }
    }
}

/// A kind of engine that the suite can run on.
pub trait Backend: Send + Sync {
    /// Starts a cluster that no other case uses. Returns when the cluster accepts puts.
    fn start(&self, setup: &Setup) -> Result<Box<dyn Harness>>;

    /// Whether cases may run at the same time in one process. Default: yes. A back end that starts real servers returns
    /// false. `--test-threads` on the command line, and nextest with its process per case, take precedence.
    fn parallel(&self) -> bool {
        true
    }
}

/// One running cluster, seen from outside. Dropping it stops the cluster; clients are dropped before it.
pub trait Harness {
    /// A new client of the cluster.
    fn connect(&self) -> Result<Arc<dyn Engine>>;

    /// The clock of its leases, heartbeats and deadlines. On a simulated cluster, a sleep on this clock advances it.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Leaves behind a put that began and never ends, as a killed producer does.
    fn abandon_put(&self, key: &ObjectKey, bytes: u64) -> Result<()>;

    /// Kills a holder without a clean shutdown. Holders count from 0.
    fn kill_holder(&self, holder: usize) -> Result<()>;

    /// Starts a killed holder again, with the SSD that it had. Need not wait until it serves.
    fn restart_holder(&self, holder: usize) -> Result<()>;

    /// Kills the master: the process that knows where the objects are.
    fn kill_master(&self) -> Result<()>;

    /// Starts the master again, at the same address. Need not wait until it serves.
    fn restart_master(&self) -> Result<()>;
}

/// One case of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name: the group, `::`, and what it shows.
    pub name: &'static str,
    /// The sentence of the contract that it checks.
    pub about: &'static str,
    /// The cluster that it needs.
    pub setup: fn() -> Setup,
    /// The case itself.
    pub run: fn(&Context) -> CaseResult,
}

/// All cases, in the order of the contract.
pub fn cases() -> Vec<Case> {
    [
        put_get::CASES,
        keys::CASES,
        lengths::CASES,
        batches::CASES,
        registration::CASES,
        remove::CASES,
        probe::CASES,
        list::CASES,
        pressure::CASES,
        unfinished::CASES,
        deadlines::CASES,
        ssd::CASES,
        relocate::CASES,
        loss::CASES,
        concurrency::CASES,
    ]
    .concat()
}

/// Runs one case on a cluster of its own. The error says what the contract promises and what was seen instead.
pub fn run(backend: &dyn Backend, case: &Case) -> Result<(), String> {
    let setup = (case.setup)();
    let outcome = Context::start(backend, case.name, &setup).and_then(|context| (case.run)(&context));
    outcome.map_err(|failure| format!("{failure}\n  contract: {}\n  cluster: {setup:?}", case.about))
}

/// The `main` of a back end's test file: every case is one test, named after it. Takes libtest's arguments, and exits
/// the process with libtest's exit code if a case failed.
pub fn main(backend: impl Backend + 'static) {
    let parallel = backend.parallel();
    let backend: Arc<dyn Backend> = Arc::new(backend);
    tensorhold_core::testing::main(
        parallel,
        cases().into_iter().map(|case| {
            let backend = Arc::clone(&backend);
            (case.name, move || run(backend.as_ref(), &case))
        }),
    );
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_has_a_name_of_its_own_and_a_sentence() {
        let cases = super::cases();
        tensorhold_core::testing::check_list(50, cases.iter().map(|case| (case.name, case.about)));
    }
}
