//! A watch of a [`MemoryStore`](super::MemoryStore): a position in the history.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use tensorhold_core::Result;
use tensorhold_custody::Version;

use super::{LOOK, Shared};
use crate::store::{Change, Watch};

#[derive(Debug)]
pub(super) struct MemoryWatch {
    shared: Arc<Shared>,
    keys: Range<String>,
    after: Version,
    changed: tokio::sync::watch::Receiver<Version>,
}

impl MemoryWatch {
    pub(super) fn new(
        shared: Arc<Shared>,
        keys: Range<String>,
        after: Version,
        changed: tokio::sync::watch::Receiver<Version>,
    ) -> Self {
        Self {
            shared,
            keys,
            after,
            changed,
        }
    }
}

#[async_trait]
impl Watch for MemoryWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        loop {
            let (changes, version) = self.shared.at_once(|state| {
                let changes = state.changes(&self.keys, self.after)?;
                Ok::<_, tensorhold_core::Error>((changes, state.version()))
            })?;
            self.after = self.after.max(version);
            if !changes.is_empty() {
                return Ok(changes);
            }
            // Both outcomes mean the same: check again. The sender lives as long as the store, which `self` holds.
            tokio::time::timeout(LOOK, self.changed.changed()).await.ok();
        }
    }
}
