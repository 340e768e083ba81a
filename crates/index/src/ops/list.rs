//! What a store has, in pages: never the whole table in one read.

use holdfast_core::{Deadline, Result};

use crate::index::TxnIndex;
use crate::ops::look::view;
use crate::record::codec::unreadable;
use crate::record::identity::{Identity, LiveSession};
use crate::record::layout::{Layout, after};
use crate::record::types::{ListPlace, LiveList};
use crate::store::Entry;
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
            let (entries, looked_at) = self.core.read_values(&keys, MOST_BYTES, deadline).await?;
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

    pub(crate) async fn do_live(&self, from: Option<&ListPlace>, limit: usize, deadline: Deadline) -> Result<LiveList> {
        let mut range = self.core.layout().all_live();
        if let Some(ListPlace(last)) = from {
            range.start = after(last);
        }
        let keys = self.core.read_keys([range], limit, deadline).await?;
        let keys = keys.into_iter().next().unwrap_or_default();
        let (entries, looked_at) = self.core.read_values(&keys, MOST_BYTES, deadline).await?;
        let is_all = looked_at == keys.len() && keys.len() < limit;
        let last = looked_at.checked_sub(1).map(|last| ListPlace(keys[last].clone()));
        let read = |entry: &Entry| {
            let sample =
                Layout::sample_of(&entry.key).ok_or_else(|| unreadable(&entry.key, "its key names no sample"))?;
            Ok(view(&sample, entry)?.sample)
        };
        let sorted = self.core.sort_out(entries, read, deadline).await?;
        Ok(LiveList {
            samples: sorted.good,
            next: last.filter(|_| !is_all),
            later: sorted.later,
        })
    }
}
