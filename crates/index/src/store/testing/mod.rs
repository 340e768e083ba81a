//! The contract suite of [`TxnStore`]: what its `# Contract` says, as cases that run on every store.
//!
//! A store implements [`Backend`] (how to start one) and [`Harness`] (what can be done to it from outside), and gets one
//! named test per case, under `cargo test` and `cargo nextest` alike:
//!
//! ```no_run
//! # use async_trait::async_trait;
//! # use tensorhold_core::{Error, Result};
//! # use tensorhold_index::store::testing::{Backend, Harness};
//! struct MyStore;
//!
//! #[async_trait]
//! impl Backend for MyStore {
//!     async fn start(&self) -> Result<Box<dyn Harness>> {
//!         // Start an empty store.
//! #       Err(Error::internal("example", "no store"))
//!     }
//! }
//!
//! // tests/kv.rs, with `harness = false` in the manifest
//! fn main() {
//!     tensorhold_index::store::testing::main(MyStore)
//! }
//! ```
//!
//! Rules of the suite:
//! - A case asks for nothing that the contract does not promise. Where the contract says *may*, the case accepts both.
//! - Every case has a store of its own, every wait is bounded, and time passes by [`Harness::pass`]: a case that waits
//!   for a session's death takes no time on a simulated store.
//! - A case does not panic; it returns a [`Failure`] that says what was seen and what should have been.

#[macro_use]
mod check;
mod context;

mod concurrency;
mod conditions;
mod deadlines;
mod history;
mod on_memory;
mod ranges;
mod reads;
mod sessions;
mod transactions;
mod watches;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Error, Result};
use tensorhold_custody::{SessionId, Version};

use super::TxnStore;

pub use context::Context;
pub use on_memory::MemoryBackend;
pub use tensorhold_core::testing::{CaseResult, Failure};

/// No case may take longer, on whatever store.
const CASE: Duration = Duration::from_secs(120);

/// A kind of store that the suite can run on.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Starts an empty store that no other case uses. Returns when it takes transactions.
    async fn start(&self) -> Result<Box<dyn Harness>>;

    /// Whether cases may run at the same time in one process. Default: yes. A back end that starts real servers says
    /// no; `--test-threads` on the command line, and nextest with its process per case, go before this.
    fn parallel(&self) -> bool {
        true
    }
}

/// One running store, seen from outside. Dropping it stops the store; clients are dropped before it.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A new client of it.
    async fn connect(&self) -> Result<Arc<dyn TxnStore>>;

    /// Lets time pass: for sessions, and for whatever the store does on its own.
    async fn pass(&self, time: Duration);

    /// Ends a session from outside, without its holder's doing.
    async fn end_session(&self, session: SessionId) -> Result<()>;

    /// Makes the store forget the history of changes up to `version`. Returns whether it can.
    async fn compact(&self, version: Version) -> Result<bool>;

    /// Saves the state of the store.
    async fn save(&self) -> Result<()>;

    /// Restores the state that was saved last, as restoring a snapshot does, without telling the store's clients.
    async fn put_back(&self) -> Result<()>;

    /// Declares, as the store's operator, that what is there is the store from now on.
    async fn declare(&self) -> Result<()>;

    /// The shortest time to live that the store does not lengthen. Default: 2 s.
    fn shortest_time_to_live(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// How much later than its time to live a session may vanish. Default: 10 s, for a loaded machine.
    fn slack(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// The result of running a case.
pub type Running<'a> = Pin<Box<dyn Future<Output = CaseResult> + Send + 'a>>;

/// One case of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name: the group, `::`, and what it shows.
    pub name: &'static str,
    /// The sentence of the contract that it holds up.
    pub about: &'static str,
    /// The case itself.
    pub run: for<'a> fn(&'a Context) -> Running<'a>,
}

/// All cases, in the order of the contract.
pub fn cases() -> Vec<Case> {
    [
        reads::CASES,
        ranges::CASES,
        transactions::CASES,
        conditions::CASES,
        sessions::CASES,
        watches::CASES,
        history::CASES,
        deadlines::CASES,
        concurrency::CASES,
    ]
    .concat()
}

/// Runs one case on a store of its own. The error says what the contract promises and what was seen instead.
pub fn run(backend: &dyn Backend, case: &Case) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let outcome = runtime.block_on(async {
        let case = async {
            let context = Context::start(backend).await?;
            (case.run)(&context).await
        };
        tokio::time::timeout(CASE, case).await
    });
    // A task that a case left behind must not keep the process: the store goes away with the case.
    runtime.shutdown_timeout(Duration::from_secs(5));
    let outcome = outcome.unwrap_or_else(|_| Err(Error::unavailable("kv.testing", "the case took too long").into()));
    outcome.map_err(|failure| format!("{failure}\n  contract: {}", case.about))
}

/// The `main` of a store's test file: every case is one test, named after it. Takes libtest's arguments, and ends the
/// process with its exit code if a case failed.
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
        tensorhold_core::testing::check_list(40, cases.iter().map(|case| (case.name, case.about)));
    }
}
