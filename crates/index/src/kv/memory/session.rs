//! A session of a [`MemoryKv`]. It is kept alive as long as this handle exists.

use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::Result;
use holdfast_custody::SessionId;

use super::{LOOK, MemoryKv};
use crate::kv::KvSession;

/// Dropping the handle stops the session's keeper.
#[derive(Debug)]
pub(super) struct MemorySession {
    id: SessionId,
    kv: MemoryKv,
}

impl MemorySession {
    pub(super) fn new(id: SessionId, kv: MemoryKv) -> Self {
        Self { id, kv }
    }
}

#[async_trait]
impl KvSession for MemorySession {
    fn id(&self) -> SessionId {
        self.id
    }

    async fn ended(&self) {
        let mut changed = self.kv.shared.changed.subscribe();
        while self.is_alive() {
            // Both outcomes mean the same: check again. The sender lives as long as the store, which `self` holds.
            tokio::time::timeout(LOOK, changed.changed()).await.ok();
        }
    }

    fn is_alive(&self) -> bool {
        self.kv.shared.at_once(|state| state.is_alive(self.id))
    }

    async fn close(&self, within: Duration) -> Result<()> {
        let stopped_at = self.kv.shared.clock.now();
        // Whatever becomes of the call, the session is no longer kept alive.
        self.kv.shared.at_once(|state| state.keep(self.id, false, stopped_at));
        self.kv.enter("kv.close_session", within).await?;
        self.kv.shared.at_once(|state| state.end(self.id));
        Ok(())
    }
}

impl Drop for MemorySession {
    fn drop(&mut self) {
        self.kv.kept(self.id, false);
    }
}
