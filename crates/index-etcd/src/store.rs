//! [`EtcdStore`]: reads and transactions.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::GetResponse;
use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry, SystemRng};
use tensorhold_custody::Version;
use tensorhold_index::schema;
use tensorhold_index::store::{
    Condition, History, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, Write, check,
};

use crate::config::EtcdConfig;
use crate::convert::Names;
use crate::dial::Link;
use crate::epoch::{self, Epoch};
use crate::group_commit::GroupCommit;
use crate::group_read::GroupRead;
use crate::pool::{Call, Nature, Pool};
use crate::session::EtcdSession;
use crate::watch::EtcdWatch;

/// etcd's defaults are 128 operations and 1.5 MiB per request. The difference is left for the epoch, and for the
/// framing around keys and values.
const LIMITS: Limits = Limits {
    operations: 127,
    bytes: 1_400_000,
};

/// A transactional store on etcd. A clone shares its connections.
#[derive(Clone, Debug)]
pub struct EtcdStore {
    pool: Arc<Pool>,
    names: Names,
    group_commit: Arc<GroupCommit>,
    group_read: Arc<GroupRead>,
}

impl EtcdStore {
    /// Connects, and makes sure that the keys under the root are an index that this release knows (see
    /// [`tensorhold_index::schema`]).
    ///
    /// # Errors
    /// `Invalid` for settings that cannot work, `Denied` if etcd refuses our credentials, `Unavailable` if no node
    /// answers in time, `Unsupported` if the index was written by a newer release.
    pub async fn open(config: EtcdConfig, clock: Arc<dyn Clock>, within: Duration) -> Result<Self> {
        let deadline = Deadline::after(clock.as_ref(), within);
        let txn_store = Self::open_before_epochs(config, clock, within).await?;
        txn_store.enter_epoch(deadline).await?;
        Ok(txn_store)
    }

    /// Enters the epoch that the index is in. Begins the first epoch if there is none: the index is empty, or was
    /// written before there were epochs.
    async fn enter_epoch(&self, deadline: Deadline) -> Result<()> {
        let clock = self.pool.clock.as_ref();
        let first = Transaction {
            conditions: vec![Condition::Absent(epoch::KEY.to_owned())],
            writes: vec![Write::put(epoch::KEY, Epoch::first(&SystemRng)?)],
        };
        let mut full = None;
        loop {
            let answer = self.read_epoch(deadline).await?;
            if let Some(entry) = answer.kvs().first() {
                self.pool.history.enter(Epoch::read(entry)?, &answer);
                return Ok(());
            }
            // A full etcd has answered, so nothing is in flight: an epoch that is not there now never will be.
            if let Some(error) = full {
                return Err(error);
            }
            match self.transact(&first, deadline.remaining(clock)).await {
                Ok(_) => {}
                Err(error) if error.retry() != Retry::Ambiguous => return Err(error),
                Err(error) if error.kind() == ErrorKind::Capacity => full = Some(error.with_retry(Retry::Safe)),
                Err(_lost) => {}
            }
        }
    }

    async fn read_epoch(&self, deadline: Deadline) -> Result<GetResponse> {
        let key = self.names.full(epoch::KEY);
        let call = self.call("index.open", deadline.remaining(self.pool.clock.as_ref()));
        let request = |mut link: Link, _| {
            let key = key.clone();
            async move { link.kv.get(key, None).await }
        };
        Ok(self.pool.call(call, request).await?.0)
    }

    /// Begins a new epoch; returns its name. See [`crate::restore_guard`].
    pub(crate) async fn declare(&self, deadline: Deadline) -> Result<String> {
        let clock = self.pool.clock.as_ref();
        loop {
            let answer = self.read_epoch(deadline).await?;
            let last = answer.kvs().first();
            let condition = match last {
                Some(entry) => Condition::Unchanged(
                    epoch::KEY.to_owned(),
                    Version(u64::try_from(entry.mod_revision()).unwrap_or(0)),
                ),
                None => Condition::Absent(epoch::KEY.to_owned()),
            };
            let next = Epoch::next(last, &SystemRng)?;
            let transaction = Transaction {
                conditions: vec![condition],
                writes: vec![Write::put(epoch::KEY, next.clone())],
            };
            let done = self.transact(&transaction, deadline.remaining(clock)).await;
            match done {
                Err(error) if error.retry() != Retry::Ambiguous => return Err(error),
                // Applied, or another guard was faster, or the outcome is unknown: read the key.
                _ => {}
            }
            let answer = self.read_epoch(deadline).await?;
            match (answer.kvs().first(), done) {
                (Some(entry), _) if entry.value() == next => {
                    let epoch = Epoch::read(entry)?;
                    self.pool.history.enter(epoch, &answer);
                    return Ok(self.pool.history.told().epoch);
                }
                (_, Err(error)) if error.kind() == ErrorKind::Capacity => return Err(error.with_retry(Retry::Safe)),
                _ => {}
            }
        }
    }

    /// A store that has not read its epoch yet. For the guard.
    pub(crate) async fn open_before_epochs(
        config: EtcdConfig,
        clock: Arc<dyn Clock>,
        within: Duration,
    ) -> Result<Self> {
        let names = Names::new(&config.root);
        let pool = Arc::new(Pool::new(config, Arc::clone(&clock), names.full(epoch::KEY))?);
        let group_commit = Arc::new(GroupCommit::new(Arc::clone(&pool), names.clone(), LIMITS));
        let group_read = Arc::new(GroupRead::new(Arc::clone(&pool), names.clone(), LIMITS));
        let txn_store = Self {
            pool,
            names,
            group_commit,
            group_read,
        };
        schema::check(&txn_store, clock.as_ref(), within).await?;
        Ok(txn_store)
    }

    fn call(&self, operation: &'static str, within: Duration) -> Call {
        Call {
            operation,
            nature: Nature::Repeatable,
            deadline: Deadline::after(self.pool.clock.as_ref(), within),
            patience: self.pool.config.try_timeout,
        }
    }
}

#[async_trait]
impl TxnStore for EtcdStore {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn history(&self) -> History {
        self.pool.history.told()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        check::reads(reads, LIMITS)?;
        let deadline = Deadline::after(self.pool.clock.as_ref(), within);
        self.group_read.read(reads, deadline).await
    }

    async fn count(&self, ranges: &[Range<String>], within: Duration) -> Result<Vec<u64>> {
        let deadline = Deadline::after(self.pool.clock.as_ref(), within);
        let mut counts = Vec::with_capacity(ranges.len());
        for range in ranges {
            if range.start >= range.end {
                counts.push(0);
                continue;
            }
            let (key, options) = self.names.count(range);
            let call = self.call("kv.count", deadline.remaining(self.pool.clock.as_ref()));
            let request = |mut link: Link, _| {
                let (key, options) = (key.clone(), options.clone());
                async move { link.kv.get(key, Some(options)).await }
            };
            let (response, _) = self.pool.call(call, request).await?;
            counts.push(u64::try_from(response.count()).unwrap_or(0));
        }
        Ok(counts)
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        Ok(self.transact_and_read(transaction, &[], within).await?.0)
    }

    async fn transact_and_read(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        within: Duration,
    ) -> Result<(TxnOutcome, Option<Snapshot>)> {
        check::transaction_and_reads(transaction, reads, LIMITS)?;
        let deadline = Deadline::after(self.pool.clock.as_ref(), within);
        self.group_commit.transact(transaction, reads, deadline).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        if time_to_live.is_zero() {
            return Err(Error::invalid("kv.open_session", "a session needs a time to live"));
        }
        let call = self.call("kv.open_session", within);
        Ok(Box::new(
            EtcdSession::open(Arc::clone(&self.pool), time_to_live, call).await?,
        ))
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        if keys.start >= keys.end {
            return Err(Error::invalid("kv.watch", "the range is empty").with("keys", format!("{keys:?}")));
        }
        let call = self.call("kv.watch", within);
        Ok(Box::new(
            EtcdWatch::open(Arc::clone(&self.pool), self.names.clone(), &keys, after, call).await?,
        ))
    }
}
