//! The contract suite: what [`Index`]'s `# Contract` says, as cases that run on every back end.
//!
//! A back end implements [`Backend`] (how to start a store) and [`Harness`] (what can be done to it from outside), and
//! gets one named test per case, under `cargo test` and `cargo nextest` alike:
//!
//! ```no_run
//! # use async_trait::async_trait;
//! # use tensorhold_core::{Error, Result};
//! # use tensorhold_index::testing::{Backend, Harness};
//! struct MyBackend;
//!
//! #[async_trait]
//! impl Backend for MyBackend {
//!     async fn start(&self) -> Result<Box<dyn Harness>> {
//!         // Start an index that no other case uses.
//! #       Err(Error::internal("example", "no index here"))
//!     }
//! }
//!
//! // tests/contract.rs, with `harness = false` in the manifest
//! fn main() {
//!     tensorhold_index::testing::main(MyBackend)
//! }
//! ```
//!
//! Rules of the suite:
//! - A case asks for nothing that the contract does not promise. Where the contract leaves a choice, the case accepts
//!   both and says so.
//! - Every case has a store of its own, every wait is bounded, and ticks and times to live run in the harness's time: a
//!   case that takes 30 s on a real store takes none on a simulated one.
//! - A case does not panic; it returns a [`Failure`] that says what was seen and what should have been.
//! - A case that a back end cannot run (see [`Needs`]) is not in its list.

#[macro_use]
mod check;
mod client;
mod context;
mod lossy;
mod on_memory;
mod records;

mod abort;
mod ack;
mod ahead;
mod ambiguity;
mod batches;
mod commit;
mod concurrency;
mod expiry;
mod free;
mod history;
mod holders;
mod known;
mod known_keys;
mod layout;
mod lease;
mod letters;
mod list;
mod lost;
mod nack;
mod next;
mod office;
mod read;
mod renew;
mod reserve;
mod retire;
mod sessions;
mod sweep;
mod terms;
mod time;
mod times;
mod untake;

pub use self::records::Records;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Clock, Error, Result, StoreId, SystemRng};

use crate::store::TxnStore;
use crate::{Index, IndexConfig, Session, TxnIndex};

pub use client::Client;
pub use context::Context;
pub use lossy::LossyStore;
pub use on_memory::{MemoryBackend, MemoryHarness};
pub use tensorhold_core::testing::{CaseResult, Failure};

/// How long a case may take, whatever it does.
const CASE: Duration = Duration::from_secs(120);

/// A kind of index that the suite can run on.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Starts an index that no other case uses.
    async fn start(&self) -> Result<Box<dyn Harness>>;

    /// Whether the index is a [`TxnIndex`], so that cases may look at its keys and lose its replies. Default: yes.
    fn over_keys(&self) -> bool {
        true
    }

    /// Whether cases may run at the same time in one process. Default: yes. A back end that starts real servers says
    /// no; `--test-threads` on the command line, and nextest with its process per case, go before this.
    fn parallel(&self) -> bool {
        true
    }
}

/// One index, seen from outside. Dropping it ends it.
#[async_trait]
pub trait Harness: Send + Sync {
    /// The store that the case uses.
    fn store(&self) -> &StoreId;

    /// Its settings. Short ones, where time is real: a case lets about thirty ticks pass at most. At least one tick of
    /// grace, and a reservation lasts for 10 to 20 ticks.
    fn settings(&self) -> IndexConfig;

    /// The time in which its ticks and times to live run.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Lets time pass on that clock.
    async fn pass(&self, time: Duration);

    /// The same store, as another process has it.
    async fn connect(&self) -> Result<Arc<dyn Index>> {
        self.index_over(self.txn_store().await?)
    }

    /// Ends a session without telling its holder, as a partition or a long pause would. Returns when the store has
    /// ended it.
    async fn kill_session(&self, session: &Session) -> Result<()>;

    /// Saves the state of the index.
    async fn save(&self) -> Result<()>;

    /// Restores the state that was saved last, as restoring a snapshot does, without telling the index's processes.
    async fn put_back(&self) -> Result<()>;

    /// Declares, as the index's operator, that what is there is the index from now on.
    async fn declare(&self) -> Result<()>;

    /// Another connection to the transactional store under the index. Used only if [`Backend::over_keys`].
    async fn txn_store(&self) -> Result<Arc<dyn TxnStore>>;

    /// The same store over a connection that the case supplies. Used only if [`Backend::over_keys`].
    fn index_over(&self, txn_store: Arc<dyn TxnStore>) -> Result<Arc<dyn Index>> {
        let index = TxnIndex::new(
            txn_store,
            self.store(),
            self.settings(),
            self.clock(),
            Arc::new(SystemRng),
        );
        Ok(Arc::new(index))
    }
}

/// What a case needs of its back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing but the contract.
    Nothing,
    /// An index over a transactional store: [`Backend::over_keys`].
    Keys,
}

/// What a case does, once it is started.
pub type Running<'a> = Pin<Box<dyn Future<Output = CaseResult> + Send + 'a>>;

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name: the group, `::`, and what it shows.
    pub name: &'static str,
    /// The sentence of the contract that it holds up.
    pub about: &'static str,
    /// What it needs.
    pub needs: Needs,
    /// The case itself.
    pub run: for<'a> fn(&'a Context) -> Running<'a>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({})", self.name)
    }
}

/// All cases, in the order of the contract.
pub fn cases() -> Vec<Case> {
    [
        batches::CASES,
        sessions::CASES,
        reserve::CASES,
        abort::CASES,
        commit::CASES,
        ahead::CASES,
        lease::CASES,
        next::CASES,
        list::CASES,
        times::CASES,
        read::CASES,
        renew::CASES,
        ack::CASES,
        nack::CASES,
        untake::CASES,
        terms::CASES,
        retire::CASES,
        expiry::CASES,
        sweep::CASES,
        office::CASES,
        holders::CASES,
        free::CASES,
        letters::CASES,
        letters::kept::CASES,
        known::CASES,
        known_keys::CASES,
        lost::CASES,
        time::CASES,
        concurrency::CASES,
        history::CASES,
        ambiguity::CASES,
        layout::CASES,
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
        let all = async {
            let context = Context::start(backend).await?;
            (case.run)(&context).await
        };
        let too_long = |_| Failure::new(format!("the case took longer than {CASE:?}"));
        tokio::time::timeout(CASE, all).await.map_err(too_long).flatten()
    });
    // What a failed case left running must not hold up the next one.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome.map_err(|failure| format!("{failure}\n  contract: {}", case.about))
}

/// The `main` of a back end's test file: every case is one test, named after it. Takes libtest's arguments, and ends
/// the process with its exit code if a case failed.
pub fn main(backend: impl Backend + 'static) {
    let (parallel, over_keys) = (backend.parallel(), backend.over_keys());
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let cases = cases()
        .into_iter()
        .filter(|case| over_keys || case.needs == Needs::Nothing);
    tensorhold_core::testing::main(
        parallel,
        cases.map(|case| {
            let backend = Arc::clone(&backend);
            (case.name, move || run(backend.as_ref(), &case))
        }),
    );
}

/// The error of a back end that has no keys and is asked for them.
pub fn no_keys() -> Error {
    Error::new(
        tensorhold_core::ErrorKind::Unsupported,
        "testing.txn_store",
        "this index is not over a store of keys",
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_has_a_name_of_its_own_and_a_sentence() {
        let cases = super::cases();
        tensorhold_core::testing::check_list(60, cases.iter().map(|case| (case.name, case.about)));
    }
}
