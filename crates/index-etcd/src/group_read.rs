//! Sends several reads of one process as one request ([`crate::sharing`] says when).
//!
//! The reads of a request see one moment, which is after each of them was asked for, as if each had been sent by itself. Only
//! reads of keys share a request: a range may be long, and would hold up the others.

use std::sync::Arc;

use etcd_client::TxnOp;
use futures_util::future::join_all;
use tensorhold_core::{Clock, Deadline, Error, Result};
use tensorhold_index::store::{Limits, Read, Snapshot};

use crate::convert::{self, Names};
use crate::dial::Link;
use crate::pool::{Call, Nature, Pool};
use crate::sharing::{Kind, Queued, Sharing, is_spoilt, latest};

const OPERATION: &str = "kv.read";

/// More keys than this are read at once, by themselves: sharing a request would save little.
const SMALL: usize = 24;

/// Sends a process's reads.
#[derive(Debug)]
pub(crate) struct GroupRead(Sharing<Reads>);

#[derive(Debug)]
pub(crate) struct Reads {
    pool: Arc<Pool>,
    names: Names,
    limits: Limits,
}

impl GroupRead {
    pub(crate) fn new(pool: Arc<Pool>, names: Names, limits: Limits) -> Self {
        Self(Sharing::new(Reads { pool, names, limits }))
    }

    pub(crate) async fn read(&self, reads: &[Read], deadline: Deadline) -> Result<Snapshot> {
        let alone = self.0.kind().read(reads, deadline);
        let is_of_keys = reads.iter().all(|read| matches!(read, Read::Key(_)));
        if reads.len() > SMALL || !is_of_keys {
            return alone.await;
        }
        self.0.call(deadline, alone, || reads.to_vec()).await
    }
}

impl Kind for Reads {
    type Work = Vec<Read>;
    type Answer = Snapshot;

    fn choose<'a>(&self, waiting: impl Iterator<Item = &'a Vec<Read>>) -> Vec<bool> {
        let mut operations = 0;
        waiting
            .map(|reads| {
                let fits = operations + reads.len() <= self.limits.operations;
                operations += if fits { reads.len() } else { 0 };
                fits
            })
            .collect()
    }

    async fn send(&self, calls: Vec<Queued<Self>>) {
        let (Some(latest), [_, _, ..]) = (latest(&calls, self.clock()), &*calls) else {
            return self.read_each(calls).await;
        };
        let all: Vec<Read> = calls.iter().flat_map(|call| call.work.iter().cloned()).collect();
        match self.read(&all, latest).await {
            Ok(Snapshot { version, entries }) => {
                let mut entries = entries.into_iter();
                for call in calls {
                    let entries = entries.by_ref().take(call.work.len()).collect();
                    call.tell(Ok(Snapshot { version, entries }));
                }
            }
            Err(error) if is_spoilt(&error) => self.read_each(calls).await,
            Err(error) => calls.into_iter().for_each(|call| call.tell(Err(error.clone()))),
        }
    }

    fn unclear(&self, message: &str) -> Error {
        Error::unavailable(OPERATION, message)
    }

    fn clock(&self) -> &dyn Clock {
        self.pool.clock.as_ref()
    }
}

impl Reads {
    async fn read(&self, reads: &[Read], deadline: Deadline) -> Result<Snapshot> {
        let call = Call {
            operation: OPERATION,
            nature: Nature::Repeatable,
            deadline,
            patience: self.pool.config.try_timeout,
        };
        match reads {
            [read] => self.read_one(read, call).await,
            reads => self.read_all(reads, call).await,
        }
    }

    async fn read_one(&self, read: &Read, call: Call) -> Result<Snapshot> {
        let (key, options) = self.names.get(read);
        let request = |mut link: Link, _| {
            let (key, options) = (key.clone(), options.clone());
            async move { link.kv.get(key, options).await }
        };
        let (response, since) = self.pool.call(call, request).await?;
        let version = convert::version(response.header(), &since.epoch)?;
        Ok(Snapshot {
            version,
            entries: vec![self.names.entries(response, &since.epoch)?],
        })
    }

    /// Several reads are one transaction without conditions, so that they see one moment.
    async fn read_all(&self, reads: &[Read], call: Call) -> Result<Snapshot> {
        let operations = reads
            .iter()
            .map(|read| self.names.get(read))
            .map(|(key, options)| TxnOp::get(key, options));
        let transaction = etcd_client::Txn::new().and_then(operations.collect::<Vec<_>>());
        let request = |mut link: Link, _| {
            let transaction = transaction.clone();
            async move { link.kv.txn(transaction).await }
        };
        let (response, since) = self.pool.call(call, request).await?;
        self.names.snapshot(&response, reads.len(), 0, &since.epoch)
    }

    async fn read_each(&self, calls: Vec<Queued<Self>>) {
        let send = async |call: Queued<Self>| {
            let answer = self.read(&call.work, call.deadline).await;
            call.tell(answer);
        };
        join_all(calls.into_iter().map(send)).await;
    }
}
