//! Lost samples are kept for a while after they were retired.
//!
//! A sample is declared lost when the engine has not had its objects for long. But a process that held them and was
//! away for longer may still bring them back. So the record of a lost sample, and the quota that it holds, stay for
//! `lost_ticks` outside the list of samples to be freed (under `l/`, ordered by the tick at which their time is over).
//! The process that declares the sample lost removes what is left of its objects at once. When the time is over, a
//! sweep moves the record to the list (`f/`), and the reclaimer removes the objects a second time.
//!
//! The list is walked in parts, as all lists are ([`crate::ops::sweep`]): a record that stays in it, because only a later
//! release can decode it, does not keep a sweep from the records behind it.

use tensorhold_core::{Deadline, Result};
use tensorhold_custody::{Retired, Tick};

use crate::index::TxnIndex;
use crate::record::codec::unreadable;
use crate::record::layout::{Layout, after};
use crate::record::refusal::is_about_one_record;
use crate::record::types::Versioned;
use crate::txn::batch::{Intent, Loaded};
use crate::txn::decision::Decision;
use crate::txn::session::Session;

const OPERATION: &str = "index.sweep";

impl TxnIndex {
    /// Moves lost samples that were kept until a tick before this one to the list of samples to be freed, starting
    /// after the record at which the last sweep ended. Returns whether there may be more.
    pub(crate) async fn end_keeping(
        &self,
        session: &Session,
        tick: Tick,
        limit: usize,
        deadline: Deadline,
    ) -> Result<bool> {
        let mut range = self.core.layout().kept_before(tick);
        if let Some(last) = &*self.kept_to.lock() {
            range.start = after(last);
        }
        let due = self
            .core
            .read_keys([range], limit, deadline)
            .await?
            .pop()
            .unwrap_or_default();
        let ended_at = due.last().filter(|_| due.len() == limit).cloned();
        let keys = |key: &String| vec![key.clone()];
        let decide = |key: &String, loaded: &Loaded| {
            let Some(kept): Option<Versioned<Retired>> = loaded.record(key)? else {
                return Ok(Decision::nothing(()));
            };
            let (sample, _) = Layout::parse_retired(key)
                .filter(|(sample, _)| self.core.layout().retired_home(sample, &kept.record).ok().as_ref() == Some(key))
                .ok_or_else(|| unreadable(key, "this record is not the one that belongs under its key"))?;
            let after = kept.record.clone().kept_no_longer();
            self.core.replace_retired(&sample, &kept, &after, ())
        };
        let intent = Intent::new(OPERATION, &keys, &decide);
        let mut looked_at_all = true;
        for result in self.core.batch(session, &due, intent, None, deadline).await {
            match result {
                Ok(()) => {}
                Err(error) if is_about_one_record(&error) => {
                    tracing::debug!(%error, "the record of a lost sample cannot be read by this release; it stays");
                }
                Err(error) => {
                    tracing::warn!(%error, "a lost sample stays kept; the next sweep tries again");
                    looked_at_all = false;
                }
            }
        }
        let more = ended_at.is_some();
        if looked_at_all {
            *self.kept_to.lock() = ended_at;
        }
        Ok(more)
    }
}
