//! [`PlacedStore`]: the transactional store of one store, on the cluster where it is.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Clock, Deadline, ErrorKind, Result, Rng, StoreId};
use tensorhold_custody::Version;

use super::locate::{Found, Locator, NewStore};
use super::map::ClusterName;
use super::{Clusters, Place};
use crate::record::layout::Layout;
use crate::store::{
    Condition, History, Limits, Read, Snapshot, StoreSession, Transaction, TxnOutcome, TxnStore, Watch,
};

/// The transactional store of one store, on the cluster where it is.
#[derive(Debug)]
pub struct PlacedStore {
    locator: Locator,
    txn_store: Arc<dyn TxnStore>,
    /// The place, and the condition that the store is there.
    known: Mutex<(Place, Condition)>,
}

impl PlacedStore {
    /// Finds a store; one that is not there yet begins, unless it is to be left.
    ///
    /// # Errors
    /// Those of the clusters; `NotFound` if the store is not there and is to be left; `Unavailable` if none may begin now;
    /// `Corrupt` if what the clusters say of it cannot be read, or if they have another store of this name.
    pub async fn open(
        clusters: Arc<dyn Clusters>,
        store: &StoreId,
        new: NewStore,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        within: Duration,
    ) -> Result<Self> {
        let deadline = Deadline::after(&*clock, within);
        let locator = Locator {
            clusters,
            store: store.clone(),
            layout: Layout::new(store),
            clock,
            rng,
        };
        let Found {
            place,
            txn_store,
            is_here,
        } = locator.locate(new, deadline).await?;
        Ok(Self {
            locator,
            txn_store,
            known: Mutex::new((place, is_here)),
        })
    }

    /// The cluster that the store is on.
    pub fn cluster(&self) -> ClusterName {
        self.known.lock().0.cluster.clone()
    }

    /// The condition that the store is here.
    pub fn is_here(&self) -> Condition {
        self.known.lock().1.clone()
    }

    /// Reads again where the store is, because [`PlacedStore::is_here`] did not hold. After a restore it may begin anew.
    ///
    /// # Errors
    /// As [`PlacedStore::open`]; `Conflict` if it is on another cluster: then it must be opened again.
    pub async fn find_again(&self, within: Duration) -> Result<()> {
        let deadline = Deadline::after(&*self.locator.clock, within);
        let found = self.locator.locate(NewStore::Begins, deadline).await?;
        // By this connection: another etcd may be that cluster now.
        let left = deadline.remaining(&*self.locator.clock);
        let here = self.locator.marked(&found.place, &*self.txn_store, left).await?;
        let mut known = self.known.lock();
        match here.filter(|_| known.0.cluster == found.place.cluster) {
            Some(is_here) => {
                *known = (found.place, is_here);
                Ok(())
            }
            None => {
                let message = "this store is no longer where it was when it was opened, since a cluster was restored or replaced: \
                               open it again";
                let error = self.locator.error(ErrorKind::Conflict, message);
                let error = error.with("was_on", &known.0.cluster);
                Err(error.with("is_on", &found.place.cluster))
            }
        }
    }

    /// Makes sure that the store is here, before something is removed because the store has no record of it.
    ///
    /// # Errors
    /// `Conflict` if the home or this cluster says otherwise; those of either if it cannot be asked.
    pub async fn confirm(&self, within: Duration) -> Result<()> {
        let deadline = Deadline::after(&*self.locator.clock, within);
        let place = self.known.lock().0.clone();
        self.locator.confirm(&place, &*self.txn_store, deadline).await
    }
}

#[async_trait]
impl TxnStore for PlacedStore {
    fn limits(&self) -> Limits {
        self.txn_store.limits()
    }

    fn history(&self) -> History {
        self.txn_store.history()
    }

    fn placed(&self) -> Option<&PlacedStore> {
        Some(self)
    }

    async fn read(&self, reads: &[Read], within: Duration) -> Result<Snapshot> {
        self.txn_store.read(reads, within).await
    }

    async fn count(&self, ranges: &[Range<String>], within: Duration) -> Result<Vec<u64>> {
        self.txn_store.count(ranges, within).await
    }

    async fn transact(&self, transaction: &Transaction, within: Duration) -> Result<TxnOutcome> {
        self.txn_store.transact(transaction, within).await
    }

    async fn transact_and_read(
        &self,
        transaction: &Transaction,
        reads: &[Read],
        within: Duration,
    ) -> Result<(TxnOutcome, Option<Snapshot>)> {
        self.txn_store.transact_and_read(transaction, reads, within).await
    }

    async fn open_session(&self, time_to_live: Duration, within: Duration) -> Result<Box<dyn StoreSession>> {
        self.txn_store.open_session(time_to_live, within).await
    }

    async fn watch(&self, keys: Range<String>, after: Version, within: Duration) -> Result<Box<dyn Watch>> {
        self.txn_store.watch(keys, after, within).await
    }
}
