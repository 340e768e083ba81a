//! The index over any [`TxnStore`]: its parts, and opening sessions. Its operations are in [`crate::ops`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, ErrorKind, Result, Retry, Rng, StoreId};
use tensorhold_custody::SessionId;

use crate::quota::Quota;
use crate::ready::ReadyLists;
use crate::record::identity::{Identity, SaidSettings};
use crate::store::metered::metered;
use crate::store::{Transaction, TxnOutcome, TxnStore, Write, is_full};
use crate::txn::session::Session;
use crate::txn::{IndexConfig, TxnCore};

const OPERATION: &str = "index.open_session";

/// The index of one store, over any transactional store.
#[derive(Debug)]
pub struct TxnIndex {
    pub(crate) core: Arc<TxnCore>,
    pub(crate) ready: ReadyLists,
    pub(crate) quota: Arc<Quota>,
    /// Where the next sweep of this process goes on among the grant lists, if the last one did not reach their end.
    pub(crate) swept_to: Mutex<Option<String>>,
    /// The record of a lost sample at which the last sweep of this process ended, if there was more.
    pub(crate) kept_to: Mutex<Option<String>>,
    /// What the sessions say that are alive, if this is a steward: see [`crate::ops::follow`].
    pub(crate) said: Mutex<BTreeMap<SessionId, SaidSettings>>,
    /// Whether it was logged that they differ.
    pub(crate) difference_logged: AtomicBool,
    /// What this process says of itself in its sessions.
    identity: Identity,
}

impl TxnIndex {
    /// The index of `store` in `txn_store`.
    pub fn new(
        txn_store: Arc<dyn TxnStore>,
        store: &StoreId,
        config: IndexConfig,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Self {
        let txn_store = metered(txn_store, store.as_str(), &clock);
        let core = Arc::new(TxnCore::new(txn_store, store, config, clock, rng));
        Self {
            ready: ReadyLists::new(Arc::clone(&core)),
            quota: Arc::new(Quota::new(Arc::clone(&core))),
            core,
            swept_to: Mutex::default(),
            kept_to: Mutex::default(),
            said: Mutex::default(),
            difference_logged: AtomicBool::new(false),
            identity: Identity::of_this_process(""),
        }
    }

    /// The same index; its sessions say this of their process.
    #[must_use]
    pub fn with_identity(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What a session says that is opened now.
    fn says(&self) -> Identity {
        let config = self.core.config();
        let settings = SaidSettings {
            tick_ms: u64::try_from(config.tick.as_micros().div_ceil(1000)).ok(),
            grace_ticks: Some(config.grace_ticks),
            dead_most: u64::try_from(config.dead_most).ok(),
        };
        Identity {
            // A steward's own are not those of the store's processes.
            settings: Some(settings).filter(|_| !self.identity.steward).unwrap_or_default(),
            ..self.identity.opened_at(self.core.clock().wall_ms())
        }
    }

    /// The settings.
    pub fn config(&self) -> &IndexConfig {
        self.core.config()
    }

    /// Opens a session.
    pub(crate) async fn open(&self, within: Duration) -> Result<Session> {
        let deadline = self.core.deadline(within);
        let txn_store = self.core.txn_store();
        let left = deadline.remaining(self.core.clock());
        let session = txn_store.open_session(self.core.config().session_ttl, left).await?;
        self.make_known(session.id(), deadline).await?;
        self.core.doubt_clock();
        let budget = self.quota.begin(deadline).await?;
        Ok(Session::new(session, budget.is_some()))
    }

    /// Writes the keys of a session that was just opened, where the store is.
    async fn make_known(&self, id: SessionId, deadline: Deadline) -> Result<()> {
        let (alive, existed) = (self.core.layout().alive(id), self.core.layout().existed(id));
        // The proof that the session existed outlives it, so that a sweep clears up after it. Writing it twice is
        // harmless.
        let transaction = Transaction {
            conditions: Vec::new(),
            writes: vec![
                Write::Put {
                    key: alive,
                    value: self.says().to_bytes(),
                    session: Some(id),
                },
                Write::put(existed, Vec::new()),
            ],
        };
        loop {
            match self.core.transact_here(&transaction, deadline).await {
                Ok(TxnOutcome::Committed(_)) => return Ok(()),
                // It was read again where the store is.
                Ok(TxnOutcome::Rejected) => {}
                Err(error)
                    if error.kind() == ErrorKind::Unavailable
                        && error.retry() != Retry::Never
                        && !deadline.passed(self.core.clock()) =>
                {
                    tracing::debug!(OPERATION, %error, "trying again");
                }
                // Even if it was applied: no process keeps the session alive, so it ends by its time to live, and a
                // sweep clears up after it.
                Err(error) if is_full(&error) => return Err(error.with_retry(Retry::Safe)),
                Err(error) => return Err(error),
            }
        }
    }
}
