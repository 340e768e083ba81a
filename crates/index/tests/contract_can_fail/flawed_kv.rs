//! A transactional store under an index that writes too much, too little, or on the wrong conditions.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Error, Result, Retry};
use tensorhold_custody::Version;
use tensorhold_index::store::{
    Change, Condition, Entry, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch, Write,
};

use crate::flaw::Flaw;

#[derive(Debug)]
pub(crate) struct FlawedKv {
    pub(crate) inner: Arc<dyn TxnStore>,
    pub(crate) flaw: Flaw,
}

impl FlawedKv {
    fn keeps(&self, condition: &Condition) -> bool {
        let key = match condition {
            Condition::Unchanged(key, _) | Condition::Absent(key) | Condition::Present(key) => key,
            Condition::NoneIn(keys) => &keys.start,
        };
        let forgotten = match self.flaw {
            Flaw::IgnoresVersions => key.contains("/s/"),
            Flaw::ReservesOver => key.contains("/p/"),
            Flaw::HasNoSlots => key.contains("/o/"),
            Flaw::IgnoresSessions => key.contains("/n/"),
            Flaw::IgnoresTheClock => key.ends_with("/t"),
            Flaw::LeadsOver => key.contains("/e/"),
            _ => false,
        };
        !forgotten
    }

    fn writes(&self, write: Write) -> Option<Write> {
        match write {
            Write::Put { key, .. } if self.flaw == Flaw::TakesNoNotes && key.contains("/h/") => None,
            Write::Delete(key) if self.flaw == Flaw::LeavesReadyEntries && key.contains("/q/") => None,
            Write::Put { key, value, .. } if self.flaw == Flaw::LeadsForEver && key.contains("/e/") => {
                Some(Write::put(key, value))
            }
            // Otherwise the store itself would refuse it.
            Write::Put { key, value, .. } if self.flaw == Flaw::IgnoresSessions && key.contains("/o/") => {
                Some(Write::put(key, value))
            }
            write => Some(write),
        }
    }
}

#[async_trait]
impl TxnStore for FlawedKv {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        let mut snapshot = self.inner.read(reads, within).await?;
        if self.flaw == Flaw::IgnoresSessions {
            for (read, entries) in reads.iter().zip(&mut snapshot.entries) {
                if let Read::Key(key) = read
                    && key.contains("/n/")
                    && entries.is_empty()
                {
                    entries.push(Entry {
                        key: key.clone(),
                        value: Vec::new(),
                        version: Version(1),
                    });
                }
            }
        }
        Ok(snapshot)
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        let conditions = transaction.conditions.iter().filter(|condition| self.keeps(condition));
        let writes = transaction.writes.iter().cloned();
        let flawed = Transaction {
            conditions: conditions.cloned().collect(),
            writes: writes.filter_map(|write| self.writes(write)).collect(),
        };
        match self.inner.transact(&flawed, within).await {
            Err(error) if self.flaw == Flaw::TakesLostForRefused && error.retry() == Retry::Ambiguous => {
                Ok(TxnOutcome::Rejected)
            }
            outcome => outcome,
        }
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        let session = self.inner.open_session(time_to_live, within).await?;
        if self.flaw == Flaw::IgnoresSessions {
            return Ok(Box::new(Immortal(session)));
        }
        Ok(session)
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        if self.flaw == Flaw::NeverWakes {
            return Ok(Box::new(Asleep));
        }
        self.inner.watch(keys, after, within).await
    }
}

/// A session whose holder never learns that it has ended.
#[derive(Debug)]
struct Immortal(Box<dyn StoreSession>);

#[async_trait]
impl StoreSession for Immortal {
    fn id(&self) -> tensorhold_custody::SessionId {
        self.0.id()
    }

    async fn ended(&self) {
        std::future::pending().await
    }

    fn is_alive(&self) -> bool {
        true
    }

    async fn close(&self, within: Duration) -> Result<()> {
        self.0.close(within).await
    }
}

#[derive(Debug)]
struct Asleep;

#[async_trait]
impl Watch for Asleep {
    async fn next(&mut self) -> Result<Vec<Change>, Error> {
        std::future::pending().await
    }
}
