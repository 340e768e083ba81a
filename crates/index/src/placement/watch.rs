//! A watch of a store that may be moved: it ends when the store has left the cluster that it watches.

use std::sync::Arc;

use async_trait::async_trait;
use tensorhold_core::{Error, Result};

use super::locate::Residence;
use super::versions::Versions;
use crate::store::{Change, Watch};

#[derive(Debug)]
pub(super) struct FollowingWatch {
    watch: Box<dyn Watch>,
    versions: Versions,
    moves: tokio::sync::watch::Receiver<Arc<Residence>>,
}

impl FollowingWatch {
    pub(super) fn new(
        watch: Box<dyn Watch>,
        versions: Versions,
        moves: tokio::sync::watch::Receiver<Arc<Residence>>,
    ) -> Self {
        Self { watch, versions, moves }
    }
}

#[async_trait]
impl Watch for FollowingWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        tokio::select! {
            biased;
            // Also if the store was closed: nothing would tell of a move then.
            _ = self.moves.changed() => Err(Error::unavailable(
                "kv.watch",
                "the store was moved to another cluster: read again and watch from there",
            )),
            changes = self.watch.next() => {
                Ok(changes?.into_iter().map(|change| self.versions.change(change)).collect())
            }
        }
    }
}
