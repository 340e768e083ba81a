//! A session of a [`MemoryKv`]: its keeper is the fact that somebody holds it.

use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::Result;
use holdfast_custody::SessionId;

use super::{LOOK, MemoryKv};
use crate::kv::KvSession;

/// Dropping it stops its keeper.
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
            // Both outcomes mean the same: look again. The sender lives as long as the store, which we hold.
            tokio::time::timeout(LOOK, changed.changed()).await.ok();
        }
    }

    fn is_alive(&self) -> bool {
        self.kv.shared.at_once(|state| state.is_alive(self.id))
    }

    async fn close(&self, within: Duration) -> Result<()> {
        let stopped_at = self.kv.shared.clock.now();
        // Whatever becomes of the call, nobody keeps it any more.
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
