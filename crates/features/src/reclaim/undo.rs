//! Undoing a put that failed, as soon as the engine has let go of its memory.

use std::sync::Arc;

use parking_lot::Mutex;

use super::queue::{Job, ReclaimQueue};

/// Knows when the engine has let go of a sample's memory, and what is to be done then if the put has failed.
#[derive(Debug)]
pub(crate) struct UndoGuard {
    frees: Arc<ReclaimQueue>,
    undo: Mutex<Option<Job>>,
}

impl UndoGuard {
    pub(crate) fn new(frees: Arc<ReclaimQueue>) -> Self {
        Self {
            frees,
            undo: Mutex::new(None),
        }
    }

    /// Sets the job to run when nothing touches the memory any more.
    pub(crate) fn undo(&self, job: Job) {
        self.frees.engine_holds(true);
        *self.undo.lock() = Some(job);
    }
}

impl Drop for UndoGuard {
    fn drop(&mut self) {
        if let Some(job) = self.undo.get_mut().take() {
            self.frees.push(job);
            self.frees.engine_holds(false);
        }
    }
}
