//! A look at the line on the way: who acknowledges is likely to free next, so it reads who waits along with that.

use holdfast_core::Result;
use holdfast_custody::Version;

use super::Quota;
use super::share::HEAD_OF_THE_LINE;
use crate::store::{Read, Snapshot};
use crate::txn::batch::{Loaded, Moved, QuotaBudget, QuotaChange};
use crate::txn::session::Session;

/// How many reads a look takes.
const LOOK: usize = 3;

/// Moves nothing, and looks.
pub(crate) struct Peek<'a> {
    quota: &'a Quota,
    session: &'a Session,
}

impl Quota {
    /// A look along the way, if somebody is known to wait, and nobody in the house, who is served without a look.
    pub(crate) fn peek<'a>(&'a self, session: &'a Session) -> Option<Peek<'a>> {
        let worth_it = self.hints().somebody_waits() && self.local_queue().is_empty();
        worth_it.then_some(Peek { quota: self, session })
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
        self.quota.look_for(self.session, HEAD_OF_THE_LINE, None)
    }

    fn read_along(&self, snapshot: Snapshot) {
        *self.session.read_along.0.lock() = Some((self.quota.core.clock().now(), snapshot));
    }
}
