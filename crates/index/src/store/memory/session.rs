//! A session of a [`MemoryStore`]. It is kept alive as long as this handle exists.

use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::Result;
use tensorhold_custody::SessionId;

use super::{LOOK, MemoryStore};
use crate::store::StoreSession;

/// Dropping the handle stops the session's keeper.
#[derive(Debug)]
pub(super) struct MemorySession {
    id: SessionId,
    txn_store: MemoryStore,
}

impl MemorySession {
    pub(super) fn new(id: SessionId, txn_store: MemoryStore) -> Self {
        Self { id, txn_store }
    }
}

#[async_trait]
impl StoreSession for MemorySession {
    fn id(&self) -> SessionId {
        self.id
    }

    async fn ended(&self) {
        let mut changed = self.txn_store.shared.changed.subscribe();
        while self.is_alive() {
            // Both outcomes mean the same: check again. The sender lives as long as the store, which `self` holds.
            tokio::time::timeout(LOOK, changed.changed()).await.ok();
        }
    }

    fn is_alive(&self) -> bool {
        self.txn_store.shared.at_once(|state| state.is_alive(self.id))
    }

    async fn close(&self, within: Duration) -> Result<()> {
        let stopped_at = self.txn_store.shared.clock.now();
        // Whatever becomes of the call, the session is no longer kept alive.
        self.txn_store
            .shared
            .at_once(|state| state.keep(self.id, false, stopped_at));
        self.txn_store.enter("kv.close_session", within).await?;
        self.txn_store.shared.at_once(|state| state.end(self.id));
        Ok(())
    }
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.txn_store.kept(self.id, false);
    }
}
