//! Waiting for real processes, in real time, with a deadline.

use std::time::Duration;

use tensorhold_core::{SystemClock, poll_until};

/// The default interval between two checks of a condition.
pub(crate) const EVERY: Duration = Duration::from_millis(20);

/// Calls `check` until it returns a value, for at most `within`; `None` means that time ran out.
///
/// [`poll_until`] on the system's clock: the conditions depend on other processes, and those run in real time.
pub fn poll<T>(within: Duration, every: Duration, check: impl FnMut() -> Option<T>) -> Option<T> {
    poll_until(&SystemClock::new(), within, every, check)
}
