//! The state that a fault engine keeps from call to call.

use std::collections::BTreeSet;

use tensorhold_core::ObjectKey;

use super::log::InjectedFault;

/// The loss of a server for a number of calls.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// The call at which it began, and how many calls it still lasts.
    current: Option<(u64, u32)>,
}

impl Outage {
    /// Begins, unless an outage is in progress. Returns whether it began.
    pub(super) fn begin(&mut self, call: u64, calls: u32) -> bool {
        let begins = self.current.is_none() && calls > 0;
        if begins {
            self.current = Some((call, calls));
        }
        begins
    }

    /// Counts one call down. Returns the call at which the outage began, if it covers this one.
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
    /// Keys that were named while their holder was down, and are lost with it.
    pub(super) doomed: BTreeSet<ObjectKey>,
    pub(super) log: Vec<InjectedFault>,
}
