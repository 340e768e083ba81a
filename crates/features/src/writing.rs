//! Samples that are being written here: giving them up, and knowing when the engine has let go of their memory.
//!
//! ```text
//!           may_commit              the put ends
//! Writing ──────────────▶ Committing ───────────▶ Ended
//!    │ give_up                 └ give_up waits for the end; then there is something to retire, or nothing
//!    ▼
//! Aborted ──the put ends, uncommitted──▶ Ended
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_core::SampleId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::free::{Frees, Job};

/// The samples that this process is writing now.
#[derive(Debug, Default)]
pub(crate) struct Writing(Mutex<HashMap<SampleId, Arc<WritingSample>>>);

/// One of them.
#[derive(Debug, Default)]
struct WritingSample {
    state: Mutex<WritingState>,
    ended: Notify,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WritingState {
    #[default]
    Writing,
    Aborted,
    Committing,
    Ended,
}

/// Takes a sample off the list when its put ends, however it does.
#[derive(Debug)]
pub(crate) struct Written<'a> {
    list: &'a Writing,
    sample: SampleId,
    entry: Arc<WritingSample>,
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        let mut list = self.list.0.lock();
        if list
            .get(&self.sample)
            .is_some_and(|entry| Arc::ptr_eq(entry, &self.entry))
        {
            list.remove(&self.sample);
        }
        drop(list);
        *self.entry.state.lock() = WritingState::Ended;
        self.entry.ended.notify_waiters();
    }
}

impl Written<'_> {
    /// Whether it may be committed; from then on it can no longer be given up here.
    pub(crate) fn may_commit(&self) -> bool {
        let mut state = self.entry.state.lock();
        let may = *state == WritingState::Writing;
        if may {
            *state = WritingState::Committing;
        }
        may
    }
}

impl Writing {
    pub(crate) fn begin(&self, sample: &SampleId) -> Written<'_> {
        let entry = Arc::new(WritingSample::default());
        self.0.lock().insert(sample.clone(), Arc::clone(&entry));
        Written {
            list: self,
            sample: sample.clone(),
            entry,
        }
    }

    /// Gives a sample up that is being written here. If it is being committed already, waits for that to end. True if
    /// it will not be committed.
    pub(crate) async fn give_up(&self, sample: &SampleId) -> bool {
        let Some(entry) = self.0.lock().get(sample).cloned() else {
            return false;
        };
        loop {
            let mut ended = std::pin::pin!(entry.ended.notified());
            ended.as_mut().enable();
            {
                let mut state = entry.state.lock();
                match *state {
                    WritingState::Writing | WritingState::Aborted => {
                        *state = WritingState::Aborted;
                        return true;
                    }
                    WritingState::Ended => return false,
                    WritingState::Committing => {}
                }
            }
            ended.await;
        }
    }
}

/// Knows when the engine has let go of a sample's memory, and what is to be done then if the put has failed.
#[derive(Debug)]
pub(crate) struct Witness {
    frees: Arc<Frees>,
    undo: Mutex<Option<Job>>,
}

impl Witness {
    pub(crate) fn new(frees: Arc<Frees>) -> Self {
        Self {
            frees,
            undo: Mutex::new(None),
        }
    }

    /// Sets what is to be done when nobody touches the memory any more.
    pub(crate) fn undo(&self, job: Job) {
        self.frees.engine_holds(true);
        *self.undo.lock() = Some(job);
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if let Some(job) = self.undo.get_mut().take() {
            self.frees.push(job);
            self.frees.engine_holds(false);
        }
    }
}
