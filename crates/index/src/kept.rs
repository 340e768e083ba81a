//! Lost samples are kept for a while after they were retired.
//!
//! A sample is called lost when the engine has not had its objects for long; but a holder that was away for longer may
//! still bring them back. So the record of a lost sample, and the credits that it holds, stay for `lost_ticks` beside the
//! list of what is to be freed (`l/`, in the order in which their time is over). The process that called it lost removes what is left
//! of its objects at once; a sweep moves the record to the list (`f/`) when its time is over, and the process that frees it removes
//! them a second time.

use holdfast_core::{Deadline, Result};
use holdfast_custody::{Retired, Tick};

use crate::batch::{Intent, Loaded};
use crate::decision::Decision;
use crate::index::KvIndex;
use crate::kv::Read;
use crate::layout::Layout;
use crate::record::unreadable;
use crate::session::Session;
use crate::types::Versioned;

const OPERATION: &str = "index.sweep";

impl KvIndex {
    /// What was kept until a tick before this one is to be freed. Returns whether there may be more.
    pub(crate) async fn end_keeping(
        &self,
        session: &Session,
        tick: Tick,
        limit: usize,
        deadline: Deadline,
    ) -> Result<bool> {
        let read = Read::Range {
            keys: self.layout().kept_before(tick),
            limit,
            keys_only: true,
        };
        let snapshot = self.kv().read(&[read], deadline.remaining(self.clock())).await?;
        let due: Vec<String> = snapshot.entries.into_iter().flatten().map(|entry| entry.key).collect();
        if due.is_empty() {
            return Ok(false);
        }
        let keys = |key: &String| vec![key.clone()];
        let decide = |key: &String, loaded: &Loaded| {
            let Some(kept): Option<Versioned<Retired>> = loaded.record(key)? else {
                return Ok(Decision::nothing(()));
            };
            let (sample, _) = Layout::parse_retired(key)
                .filter(|(sample, _)| self.layout().retired_home(sample, &kept.record).ok().as_ref() == Some(key))
                .ok_or_else(|| unreadable(key, "this record is not the one that belongs under its key"))?;
            let after = kept.record.clone().kept_no_longer();
            self.drain(&sample, &kept, &after, ())
        };
        let intent = Intent {
            operation: OPERATION,
            keys: &keys,
            decide: &decide,
            sets_deadlines: false,
            credits: None,
        };
        for result in self.batch(session, &due, intent, None, deadline).await {
            if let Err(error) = result {
                tracing::warn!(%error, "a lost sample stays kept; the next sweep tries again");
            }
        }
        Ok(due.len() == limit)
    }
}
