//! What a case works with: a client, helper methods, and bounded waits.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::testing::{CaseResult, Failure, ensure, ensure_eq};
use tensorhold_core::{Error, ErrorKind};
use tensorhold_custody::{SessionId, Version};

use super::{Backend, Harness};
use crate::store::{
    Change, Condition, Entry, Read, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, Write, prefix,
};

/// How long a call of a healthy store may take. Generous: other tests compile and run beside this one.
pub(super) const CALL: Duration = Duration::from_secs(10);
/// How long a change may take to be delivered, and a call to come back after its deadline.
pub(super) const SOON: Duration = Duration::from_secs(20);

const STEP: Duration = Duration::from_millis(100);

/// The case's store, with one client of it.
pub struct Context {
    // Declared before the harness, because clients are dropped before the store.
    txn_store: Arc<dyn TxnStore>,
    harness: Box<dyn Harness>,
}

impl Context {
    pub(super) async fn start(backend: &dyn Backend) -> CaseResult<Self> {
        let harness = backend.start().await?;
        Ok(Self {
            txn_store: harness.connect().await?,
            harness,
        })
    }

    /// The client.
    pub fn txn_store(&self) -> &Arc<dyn TxnStore> {
        &self.txn_store
    }

    /// The store from outside.
    pub fn harness(&self) -> &dyn Harness {
        self.harness.as_ref()
    }

    /// Applies a transaction, if its conditions hold.
    pub async fn transact(&self, conditions: Vec<Condition>, writes: Vec<Write>) -> CaseResult<TxnOutcome> {
        Ok(self
            .txn_store
            .transact(&Transaction { conditions, writes }, CALL)
            .await?)
    }

    /// The error of a transaction that must fail.
    pub async fn refused(&self, conditions: Vec<Condition>, writes: Vec<Write>) -> CaseResult<Error> {
        let transaction = Transaction { conditions, writes };
        match self.txn_store.transact(&transaction, CALL).await {
            Err(error) => Ok(error),
            Ok(outcome) => Err(Failure::new(format!(
                "{transaction:?} should have been refused; it gave {outcome:?}"
            ))),
        }
    }

    /// Writes without conditions.
    pub async fn write(&self, writes: Vec<Write>) -> CaseResult<Version> {
        match self.transact(Vec::new(), writes).await? {
            TxnOutcome::Committed(version) => Ok(version),
            TxnOutcome::Rejected => Err(Failure::new("a transaction without conditions was not applied")),
        }
    }

    /// Puts one key.
    pub async fn put(&self, key: &str, value: &str) -> CaseResult<Version> {
        self.write(vec![Write::put(key, value)]).await
    }

    /// Puts one key that vanishes with a session.
    pub async fn put_with(&self, key: &str, session: SessionId) -> CaseResult<Version> {
        self.write(vec![with_session(key, session)]).await
    }

    /// Reads one thing.
    pub async fn read(&self, read: Read) -> CaseResult<Vec<Entry>> {
        let snapshot = self.txn_store.read(&[read], CALL).await?;
        snapshot
            .entries
            .into_iter()
            .next()
            .ok_or_else(|| Failure::new("one read, no answer"))
    }

    /// Reads one key.
    pub async fn get(&self, key: &str) -> CaseResult<Option<Entry>> {
        Ok(self.read(Read::Key(key.to_owned())).await?.into_iter().next())
    }

    /// The value under a key, as text.
    pub async fn value(&self, key: &str) -> CaseResult<Option<String>> {
        let entry = self.get(key).await?;
        Ok(entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()))
    }

    /// The keys that begin with `start`, in the order in which they came.
    pub async fn keys(&self, start: &str) -> CaseResult<Vec<String>> {
        let entries = self
            .read(Read::Range {
                keys: prefix(start),
                limit: 1000,
                keys_only: true,
            })
            .await?;
        Ok(entries.into_iter().map(|entry| entry.key).collect())
    }

    /// The store's version.
    pub async fn version(&self) -> CaseResult<Version> {
        Ok(self
            .txn_store
            .read(&[Read::Key("anything".to_owned())], CALL)
            .await?
            .version)
    }

    /// A session with the shortest time to live.
    pub async fn session(&self) -> CaseResult<Box<dyn StoreSession>> {
        Ok(self.txn_store.open_session(self.time_to_live(), CALL).await?)
    }

    /// The shortest time to live.
    pub fn time_to_live(&self) -> Duration {
        self.harness.shortest_time_to_live()
    }

    /// A watch of all keys that begin with `start`.
    pub async fn watch(&self, start: &str, after: Version) -> CaseResult<Box<dyn Watch>> {
        Ok(self.txn_store.watch(prefix(start), after, CALL).await?)
    }

    /// Waits until a key is gone, at most a time to live and the store's slack. Returns how long that took.
    pub async fn until_gone(&self, key: &str) -> CaseResult<Duration> {
        let most = self.time_to_live() + self.harness.slack();
        let mut waited = Duration::ZERO;
        while self.get(key).await?.is_some() {
            ensure!(waited < most, "{key} is still there after {waited:?}");
            self.harness.pass(STEP).await;
            waited += STEP;
        }
        Ok(waited)
    }
}

/// A put that vanishes with a session.
pub(super) fn with_session(key: &str, session: SessionId) -> Write {
    Write::Put {
        key: key.to_owned(),
        value: b"alive".to_vec(),
        session: Some(session),
    }
}

/// The next `count` changes of a watch, in order: the key, `+` or `-`, and the version.
pub(super) async fn changes(watch: &mut dyn Watch, count: usize) -> CaseResult<Vec<Change>> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let next = tokio::time::timeout(SOON, watch.next()).await;
        let next = next.map_err(|_| Failure::new(format!("{count} changes were due, only these came: {seen:?}")))??;
        ensure!(!next.is_empty(), "a watch told of no changes at all");
        seen.extend(next);
    }
    ensure_eq!(seen.len(), count, "too many changes: {seen:?}");
    Ok(seen)
}

/// Changes in short: `+key=value` or `-key`.
pub(super) fn in_short(changes: &[Change]) -> Vec<String> {
    let short = |change: &Change| match &change.value {
        Some(value) => format!("+{}={}", change.key, String::from_utf8_lossy(value)),
        None => format!("-{}", change.key),
    };
    changes.iter().map(short).collect()
}

/// Fails unless an error is of a kind.
pub(super) fn is_kind(error: &Error, kind: ErrorKind) -> CaseResult {
    ensure_eq!(error.kind(), kind, "the wrong kind of error, {error:?}");
    Ok(())
}
