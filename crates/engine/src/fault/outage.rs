//! What a fault engine remembers from call to call.

use std::collections::BTreeSet;

use holdfast_core::ObjectKey;

use super::log::InjectedFault;

/// Something that is gone for a number of calls.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// The call that it struck, and how many calls it still lasts.
    current: Option<(u64, u32)>,
}

impl Outage {
    /// Begins, unless one is under way. Whether it did.
    pub(super) fn begin(&mut self, call: u64, calls: u32) -> bool {
        let begins = self.current.is_none() && calls > 0;
        if begins {
            self.current = Some((call, calls));
        }
        begins
    }

    /// Counts one call down. The call that the outage began with, if it covers this one.
    pub(super) fn pass(&mut self) -> Option<u64> {
        let (began, left) = self.current?;
        self.current = (left > 1).then(|| (began, left - 1));
        Some(began)
    }

    pub(super) fn is_over(&self) -> bool {
        self.current.is_none()
    }
}

#[derive(Debug, Default)]
pub(super) struct History {
    /// Calls counted so far.
    pub(super) calls: u64,
    pub(super) master: Outage,
    pub(super) holder: Outage,
    /// Keys that were named while their holder was down, and go with it.
    pub(super) doomed: BTreeSet<ObjectKey>,
    pub(super) log: Vec<InjectedFault>,
}
