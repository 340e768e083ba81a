//! A look at the line on the way: who acknowledges is likely to free next, so it reads who waits along with that.

use std::time::Duration;

use holdfast_core::{Clock, Result, Timestamp};
use holdfast_custody::Version;
use parking_lot::Mutex;

use super::share::HEAD_OF_THE_LINE;
use crate::batch::{Loaded, Moved, QuotaBudget, QuotaChange};
use crate::index::TxnIndex;
use crate::session::Session;
use crate::store::{Read, Snapshot};

/// How many reads a look takes.
const LOOK: usize = 3;

/// What was read along, and when.
#[derive(Debug, Default)]
pub(crate) struct ReadAlong(Mutex<Option<(Timestamp, Snapshot)>>);

impl ReadAlong {
    /// What was read just now. Later than that, others have served those in line, and a look is cheaper than a try that
    /// fails.
    pub(super) fn take(&self, clock: &dyn Clock) -> Option<Snapshot> {
        const GOOD_FOR: Duration = Duration::from_millis(5);
        let (at, snapshot) = self.0.lock().take()?;
        (clock.now().since(at) <= GOOD_FOR).then_some(snapshot)
    }
}

/// Moves nothing, and looks.
pub(crate) struct Peek<'a> {
    index: &'a TxnIndex,
    session: &'a Session,
}

impl TxnIndex {
    /// A look along the way, if somebody is known to wait, and nobody in the house, who is served without a look.
    pub(crate) fn peek<'a>(&'a self, session: &'a Session) -> Option<Peek<'a>> {
        let worth_it = self.hints().somebody_waits() && self.local_queue().is_empty();
        worth_it.then_some(Peek { index: self, session })
    }
}

impl<Item> QuotaChange<Item> for Peek<'_> {
    fn reads(&self) -> Vec<Read> {
        Vec::new()
    }

    fn move_for(&self, _: &[&Item], _: &Loaded, _: QuotaBudget) -> Result<Moved> {
        Ok(Moved::default())
    }

    fn moved(&self, _: Version) {}

    fn operations(&self) -> usize {
        LOOK
    }

    fn reads_along(&self) -> Vec<Read> {
        self.index.look_for(self.session, HEAD_OF_THE_LINE, None)
    }

    fn read_along(&self, snapshot: Snapshot) {
        *self.session.read_along.0.lock() = Some((self.index.clock().now(), snapshot));
    }
}
