//! Producers are told which of their samples were found lost, by whichever process, without asking.
//!
//! ```text
//!  losses() ──▶ a task of the store ──▶ the index's watch of lost samples ──▶ is it ours? ──▶ the caller's channel
//!                      ▲  an error: a pause, then everything is read anew │
//!                      └──────────────────────────────────────────────────┘
//! ```
//!
//! - The task starts with the call and ends when its receiver is dropped or the store is closed.
//! - *Whose sample?* The record names the session that put it. A store that had to open another session (it was cut off
//!   for a while) counts the samples of all its sessions as its own: the process that put them is still there to make
//!   them again. A program that was started again is another producer; it can listen to the losses of the whole store
//!   ([`LossScope::Store`]).
//! - *How often?* Once, as long as this process remembers what it has told ([`MOST_REMEMBERED`]); again after that, if the
//!   record is still there when the watch has to begin anew. So making a sample again must be harmless if it is there.
//! - *A receiver that does not keep up* holds up its own task only. The index keeps the record of a lost sample for
//!   `lost_ticks`; a listener that is further behind than that, or cut off for longer, misses what came and went.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::Result;
use tensorhold_index::{LostSample, SampleRef};
use tokio::sync::{mpsc, watch};

use crate::runtime::Runtime;
use crate::runtime::tasks::closed;
use crate::store::FeatureStore;

const OPERATION: &str = "features.lost";
/// Lost samples that wait for their receiver.
const WAITING: usize = 1024;
/// The most samples that a task remembers as told. It bounds memory.
const MOST_REMEMBERED: usize = 65_536;
/// How long one call to the watch lasts.
const LOOK: Duration = Duration::from_secs(60);
/// The pause after an error.
const PAUSE: Duration = Duration::from_millis(500);

/// Of whose losses to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossScope {
    /// Of samples that this store value has put, in any of its sessions.
    #[default]
    Own,
    /// Of all samples of the store.
    Store,
}

impl FeatureStore {
    /// Tells from now on which samples were found lost, by any process, including those of the last `lost_ticks`. The
    /// channel ends when the store is closed. Each call is told separately.
    pub fn losses(&self, scope: LossScope) -> mpsc::Receiver<LostSample> {
        let (tell, told) = mpsc::channel(WAITING);
        let runtime = Arc::clone(&self.inner().runtime);
        self.start(|stop| tell_losses(runtime, scope, tell, stop));
        told
    }
}

/// The channels of callers that ask from time to time, each opened when it is first asked.
#[derive(Debug, Default)]
pub(crate) struct Inboxes {
    own: tokio::sync::Mutex<Option<mpsc::Receiver<LostSample>>>,
    store: tokio::sync::Mutex<Option<mpsc::Receiver<LostSample>>>,
}

impl FeatureStore {
    /// The samples that were found lost since the last call, as [`FeatureStore::losses`] tells them. Waits for the first
    /// one; empty if there was none within the time. Callers share one channel for each scope: each sample is told to one
    /// of them.
    pub async fn lost(&self, scope: LossScope, within: Duration) -> Result<Vec<LostSample>> {
        let inboxes = &self.inner().inboxes;
        let inbox = match scope {
            LossScope::Own => &inboxes.own,
            LossScope::Store => &inboxes.store,
        };
        let waiting = async {
            let mut inbox = inbox.lock().await;
            let mut lost = Vec::new();
            let told = inbox.get_or_insert_with(|| self.losses(scope));
            // A caller that leaves takes nothing with it.
            match told.recv_many(&mut lost, WAITING).await {
                0 => Err(closed(OPERATION)),
                _ => Ok(lost),
            }
        };
        let waiting = async {
            tokio::time::timeout(within, waiting)
                .await
                .unwrap_or_else(|_| Ok(Vec::new()))
        };
        self.unless_closed(OPERATION, waiting).await
    }
}

async fn tell_losses(
    runtime: Arc<Runtime>,
    scope: LossScope,
    tell: mpsc::Sender<LostSample>,
    mut stop: watch::Receiver<bool>,
) {
    let mut lost = runtime.index.watch_lost();
    let mut told = Told::default();
    while !*stop.borrow() {
        let found = tokio::select! {
            _ = stop.changed() => return,
            () = tell.closed() => return,
            found = lost.next(LOOK) => found,
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "the watch of lost samples begins anew");
                tokio::select! {
                    _ = stop.changed() => return,
                    () = tell.closed() => return,
                    () = tokio::time::sleep(PAUSE) => continue,
                }
            }
        };
        for sample in found {
            let is_ours = scope == LossScope::Store || runtime.sessions.was_ours(sample.producer);
            if !is_ours || !told.is_new(&sample.sample) {
                continue;
            }
            tokio::select! {
                _ = stop.changed() => return,
                sent = tell.send(sample) => if sent.is_err() { return },
            }
        }
    }
}

/// The samples that were told last.
#[derive(Debug, Default)]
struct Told {
    known: HashSet<SampleRef>,
    order: VecDeque<SampleRef>,
}

impl Told {
    fn is_new(&mut self, sample: &SampleRef) -> bool {
        if !self.known.insert(sample.clone()) {
            return false;
        }
        self.order.push_back(sample.clone());
        if self.order.len() > MOST_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}
