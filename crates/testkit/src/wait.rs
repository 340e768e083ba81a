//! Waiting for real processes, in real time, with a deadline.

use std::time::Duration;

use holdfast_core::{SystemClock, poll_until};

/// How often a condition is looked at when nothing else is said.
pub(crate) const EVERY: Duration = Duration::from_millis(20);

/// Calls `check` until it gives a value, at most for `within`; `None` says that time ran out.
///
/// [`poll_until`] on the system's clock: what we wait for are other processes, and those run in real time.
pub fn poll<T>(within: Duration, every: Duration, check: impl FnMut() -> Option<T>) -> Option<T> {
    poll_until(&SystemClock::new(), within, every, check)
}
