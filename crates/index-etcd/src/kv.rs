//! [`EtcdKv`]: reads and transactions.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{Txn, TxnOp};
use holdfast_core::{Clock, Deadline, Error, Result};
use holdfast_custody::Version;
use holdfast_index::kv::{Applied, Kv, KvSession, Limits, Read, Snapshot, Transaction, Watch, check};
use holdfast_index::schema;

use crate::config::EtcdConfig;
use crate::convert::{self, Names};
use crate::pool::{Call, Nature, Pool};
use crate::session::EtcdSession;
use crate::together::Together;
use crate::watch::EtcdWatch;

/// etcd's defaults are 128 operations and 1.5 MiB; what is left of those is for the frame around keys and values.
const LIMITS: Limits = Limits {
    operations: 128,
    bytes: 1_400_000,
};

/// A transactional store of keys on etcd. A clone shares its connections.
#[derive(Clone, Debug)]
pub struct EtcdKv {
    pool: Arc<Pool>,
    names: Names,
    together: Arc<Together>,
}

impl EtcdKv {
    /// Connects, and makes sure that what lies under the root is an index that this program knows (see
    /// [`holdfast_index::schema`]).
    ///
    /// # Errors
    /// `Invalid` for settings that cannot be, `Denied` if etcd does not let us in, `Unavailable` if no node answers in
    /// time, `Unsupported` if the index was written by a newer program.
    pub async fn open(config: EtcdConfig, clock: Arc<dyn Clock>, within: Duration) -> Result<Self> {
        let names = Names::new(&config.root);
        let pool = Arc::new(Pool::new(config, Arc::clone(&clock), names.full(schema::KEY))?);
        let together = Together::new(Arc::clone(&pool), names.clone(), LIMITS);
        let kv = Self {
            pool,
            names,
            together: Arc::new(together),
        };
        schema::check(&kv, clock.as_ref(), within).await?;
        Ok(kv)
    }

    fn call(&self, operation: &'static str, within: Duration) -> Call {
        Call {
            operation,
            nature: Nature::Repeatable,
            deadline: Deadline::after(self.pool.clock.as_ref(), within),
            patience: self.pool.config.try_timeout,
        }
    }

    async fn read_one(&self, read: &Read, call: Call) -> Result<Snapshot> {
        let (key, options) = self.names.get(read);
        let request = |mut link: crate::dial::Link| {
            let (key, options) = (key.clone(), options.clone());
            async move { link.kv.get(key, options).await }
        };
        let response = self.pool.call(call, request).await?;
        let version = convert::version(response.header())?;
        Ok(Snapshot {
            version,
            entries: vec![self.names.entries(response)?],
        })
    }

    /// Several reads are one transaction without conditions, so that they see one moment.
    async fn read_all(&self, reads: &[Read], call: Call) -> Result<Snapshot> {
        let operations = reads
            .iter()
            .map(|read| self.names.get(read))
            .map(|(key, options)| TxnOp::get(key, options));
        let transaction = Txn::new().and_then(operations.collect::<Vec<_>>());
        let request = |mut link: crate::dial::Link| {
            let transaction = transaction.clone();
            async move { link.kv.txn(transaction).await }
        };
        let response = self.pool.call(call, request).await?;
        self.names.snapshot(&response, reads.len())
    }
}

#[async_trait]
impl Kv for EtcdKv {
    fn limits(&self) -> Limits {
        LIMITS
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        check::reads(reads, LIMITS)?;
        let call = self.call("kv.read", within);
        match reads {
            [read] => self.read_one(read, call).await,
            reads => self.read_all(reads, call).await,
        }
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<Applied> {
        Ok(self.transact_and_read(transaction, &[], within).await?.0)
    }

    async fn transact_and_read(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        within: Duration,
    ) -> Result<(Applied, Option<Snapshot>)> {
        check::transaction_and_reads(transaction, reads, LIMITS)?;
        let deadline = Deadline::after(self.pool.clock.as_ref(), within);
        self.together.transact(transaction, reads, deadline).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn KvSession>> {
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
