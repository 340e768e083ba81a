//! The sessions of a store, read in pages.

use tensorhold_core::{Deadline, Result};

use crate::index::TxnIndex;
use crate::record::identity::{Identity, LiveSession};
use crate::record::layout::{Layout, after};
use crate::txn::pages::MOST_BYTES;

/// Keys in one read.
const PAGE: usize = 1000;

impl TxnIndex {
    pub(crate) async fn do_sessions(&self, deadline: Deadline) -> Result<Vec<LiveSession>> {
        let mut range = self.core.layout().all_alive();
        let mut sessions = Vec::new();
        loop {
            let keys = self.core.read_keys([range.clone()], PAGE, deadline).await?;
            let keys = keys.into_iter().next().unwrap_or_default();
            let (entries, looked_at) = self.core.read_run(&keys, MOST_BYTES, deadline).await?;
            sessions.extend(entries.iter().filter_map(|entry| {
                Some(LiveSession {
                    id: Layout::session_of(&entry.key)?,
                    identity: Identity::from_bytes(&entry.value),
                })
            }));
            match looked_at.checked_sub(1).map(|last| &keys[last]) {
                Some(last) if looked_at < keys.len() || keys.len() == PAGE => range.start = after(last),
                _ => return Ok(sessions),
            }
        }
    }
}
