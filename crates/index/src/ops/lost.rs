//! Telling producers of lost samples: a watch of the records that say so.
//!
//! A sample that is found lost is retired with that reason. Its record is under `l/`, or under `g/` as long as leases on
//! it are left. Both say which session put it, so a producer that watches them learns of its losses without asking.
//!
//! ```text
//!         the watches are open                    both lists are read to their ends
//! begun ───────────────────────▶ reading the lists ──────────────────────────────────▶ watching
//!   ▲                                │ an error                                           │ an error
//!   └────────────────────────────────┴────────────────────────────────────────────────────┘
//! ```
//!
//! The watches are opened before the lists are read, so nothing falls between them. A sample is told at least once: a
//! second time when its record moves from `g/` to `l/`, and after an error, since everything is read anew then. A record
//! is there for `lost_ticks`; a watcher that was away for longer misses what came and went meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Result};
use tensorhold_custody::{Reason, Retired};

use crate::record::codec::decode_versioned;
use crate::record::layout::{Layout, after};
use crate::record::types::{LostSample, SampleRef, Stage, Versioned};
use crate::store::{Change, Entry, Read, Watch};
use crate::txn::TxnCore;
use crate::txn::pages::MOST_BYTES;

/// Keys in one read.
const PAGE: usize = 1000;

/// A watch of the samples that are found lost. It opens itself at the first call of [`LostWatch::next`], and again after
/// an error.
#[derive(Debug)]
pub struct LostWatch {
    core: Arc<TxnCore>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    with_readers: Box<dyn Watch>,
    kept: Box<dyn Watch>,
    /// What is left to read of the lists.
    unread: Vec<Range<String>>,
}

impl LostWatch {
    pub(crate) fn new(core: Arc<TxnCore>) -> Self {
        Self { core, open: None }
    }

    /// The next samples that were found lost, those included whose records are there when the watch is opened. Empty if
    /// there were none within the time. A call that is dropped loses nothing.
    pub async fn next(&mut self, within: Duration) -> Result<Vec<LostSample>> {
        let deadline = Deadline::after(self.core.clock(), within);
        let found = self.find(deadline).await;
        if found.is_err() {
            self.open = None;
        }
        found
    }

    async fn find(&mut self, deadline: Deadline) -> Result<Vec<LostSample>> {
        let open = match self.open.take() {
            Some(open) => open,
            None => begin(&self.core, deadline).await?,
        };
        // A caller that leaves does not close it.
        let open = self.open.insert(open);
        while let Some(range) = open.unread.last_mut() {
            let keys = self.core.read_keys([range.clone()], PAGE, deadline).await?;
            let keys = keys.into_iter().next().unwrap_or_default();
            let (entries, looked_at) = self.core.read_values(&keys, MOST_BYTES, deadline).await?;
            match looked_at.checked_sub(1).map(|last| &keys[last]) {
                Some(last) if looked_at < keys.len() || keys.len() == PAGE => range.start = after(last),
                _ => {
                    open.unread.pop();
                }
            }
            let lost: Vec<LostSample> = entries.iter().filter_map(lost).collect();
            if !lost.is_empty() {
                return Ok(lost);
            }
        }
        loop {
            let left = deadline.remaining(self.core.clock());
            let changes = tokio::time::timeout(left, async {
                tokio::select! {
                    changes = open.with_readers.next() => changes,
                    changes = open.kept.next() => changes,
                }
            });
            let Ok(changes) = changes.await else {
                return Ok(Vec::new());
            };
            let lost: Vec<LostSample> = changes?.into_iter().filter_map(changed).collect();
            if !lost.is_empty() {
                return Ok(lost);
            }
        }
    }
}

async fn begin(core: &TxnCore, deadline: Deadline) -> Result<Open> {
    let (layout, txn_store) = (core.layout(), core.txn_store());
    let left = || deadline.remaining(core.clock());
    let now = txn_store.read(&[Read::Key(layout.clock())], left()).await?.version;
    let (with_readers, kept) = (layout.all_of(Stage::Retired), layout.all_of(Stage::Lost));
    Ok(Open {
        unread: vec![with_readers.clone(), kept.clone()],
        with_readers: txn_store.watch(with_readers, now, left()).await?,
        kept: txn_store.watch(kept, now, left()).await?,
    })
}

fn changed(change: Change) -> Option<LostSample> {
    lost(&Entry {
        key: change.key,
        value: change.value?,
        version: change.version,
    })
}

/// The lost sample that a record is about. None for a record with another reason; and for one that cannot be decoded,
/// which a sweep moves into quarantine.
fn lost(entry: &Entry) -> Option<LostSample> {
    let (sample, generation) = Layout::parse_retired(&entry.key)?;
    let read: Versioned<Retired> = decode_versioned(entry).ok()?;
    (read.record.reason == Reason::Lost).then_some(LostSample {
        sample: SampleRef { sample, generation },
        producer: read.record.producer,
        bytes: read.record.bytes,
    })
}
