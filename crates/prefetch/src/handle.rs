//! A prefetch in the hands of its caller.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline};

use crate::shared::Shared;
use crate::throttle::{Outcome, TicketId};

/// How far a prefetch is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Objects that it was asked for.
    pub objects: usize,
    /// Objects that have ended, by the name of their outcome.
    pub ended: HashMap<&'static str, usize>,
    /// Objects on their way.
    pub pending: usize,
}

/// A prefetch that was begun: what became of each object, and a way to wait for it. Dropping it stops nothing.
pub struct Prefetch {
    /// Not the engine: what a caller keeps must not keep that open.
    pub(crate) shared: Arc<Shared>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ticket: TicketId,
}

impl fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prefetch").field("progress", &self.progress()).finish()
    }
}

impl Prefetch {
    /// The outcomes so far, in the order of the keys; `None` for what is on its way.
    pub fn outcomes(&self) -> Vec<Option<Outcome>> {
        self.wait(Duration::ZERO)
    }

    /// Waits until every object has ended, but not longer than `within`. Returns the outcomes so far.
    pub fn wait(&self, within: Duration) -> Vec<Option<Outcome>> {
        let deadline = Deadline::after(&*self.clock, within);
        self.shared.wait(self.ticket, &*self.clock, deadline)
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let outcomes = self.outcomes();
        let mut progress = Progress {
            objects: outcomes.len(),
            ..Progress::default()
        };
        for outcome in outcomes {
            match outcome {
                Some(outcome) => *progress.ended.entry(outcome.name()).or_default() += 1,
                None => progress.pending += 1,
            }
        }
        progress
    }

    /// Gives up what was not begun, unless another caller asked for it too. What is in flight ends by itself.
    pub fn cancel(&self) {
        let now = self.clock.now();
        self.shared.with(|throttle| throttle.cancel(self.ticket, now));
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.shared.with(|throttle| throttle.leave(self.ticket));
    }
}
