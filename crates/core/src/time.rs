//! Injected time.
//!
//! Code that needs the time takes a [`Clock`]; only [`SystemClock`] may ask the machine. A [`ManualClock`] moves only
//! when it is advanced or when a caller sleeps on it, so a simulated hour takes no time and every run is the same. All
//! time here is monotonic: the wall clock of another host decides nothing in Tensorhold.

use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point on one clock's monotonic time line. It has no meaning in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(Duration);

impl Timestamp {
    /// Where a clock's time line begins.
    pub const ORIGIN: Self = Self(Duration::ZERO);

    /// The timestamp `delay` later; stops at the end of the time line instead of wrapping.
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }

    /// The time since `earlier`; zero if `earlier` is in fact later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Where the time comes from.
pub trait Clock: Send + Sync + Debug {
    /// The time now. Never goes back.
    fn now(&self) -> Timestamp;

    /// The time of day in milliseconds since 1970. For people, who compare it with their own clocks: it may jump, and
    /// nothing is decided by it.
    fn wall_ms(&self) -> u64;

    /// Lets `delay` pass. Not for synchronisation: wait for the event itself, or [`poll_until`] it.
    fn sleep(&self, delay: Duration);
}

/// The machine's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose time line begins now.
    #[expect(clippy::disallowed_methods, reason = "the one home of the machine's clock")]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.origin.elapsed())
    }

    #[expect(clippy::disallowed_methods, reason = "for people only")]
    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    #[expect(clippy::disallowed_methods, reason = "the one home of sleeping")]
    fn sleep(&self, delay: Duration) {
        std::thread::sleep(delay);
    }
}

/// A clock that stands still until it is moved. Sleeping on it moves it.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
    order: Mutex<()>,
}

impl ManualClock {
    /// A clock at [`Timestamp::ORIGIN`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let _one_at_a_time = self.order.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = self.nanos.load(Ordering::Acquire);
        self.nanos.store(now.saturating_add(by), Ordering::Release);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(Duration::from_nanos(self.nanos.load(Ordering::Acquire)))
    }

    /// As if the clock had been made on a day in 2023.
    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.nanos.load(Ordering::Acquire) / 1_000_000
    }

    fn sleep(&self, delay: Duration) {
        self.advance(delay);
    }
}

/// The moment until which a caller is willing to wait, across any number of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Timestamp);

impl Deadline {
    /// `within` from now on `clock`.
    pub fn after(clock: &dyn Clock, within: Duration) -> Self {
        Self(clock.now().after(within))
    }

    /// The time left until the deadline; zero once it has passed.
    pub fn remaining(self, clock: &dyn Clock) -> Duration {
        self.0.since(clock.now())
    }

    /// The deadline moved `by` later.
    pub fn later(self, by: Duration) -> Self {
        Self(self.0.after(by))
    }

    /// Whether it has passed.
    pub fn passed(self, clock: &dyn Clock) -> bool {
        clock.now() >= self.0
    }
}

/// Calls `ready` now and then every `every`, until it returns a value or `within` has passed. `ready` is called at
/// least once, and once more at the very end.
///
/// For conditions that give no signal, such as a foreign server that comes up. Where an event can be awaited, await it
/// instead.
pub fn poll_until<T>(
    clock: &dyn Clock,
    within: Duration,
    every: Duration,
    mut ready: impl FnMut() -> Option<T>,
) -> Option<T> {
    let deadline = Deadline::after(clock, within);
    loop {
        if let Some(answer) = ready() {
            return Some(answer);
        }
        let left = deadline.remaining(clock);
        if left.is_zero() {
            return None;
        }
        clock.sleep(every.min(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_stops_at_the_deadline_and_asks_once_more_at_the_end() {
        let clock = ManualClock::new();
        let mut asked = 0;
        let answer: Option<()> = poll_until(&clock, Duration::from_millis(25), Duration::from_millis(10), || {
            asked += 1;
            None
        });
        assert_eq!((answer, asked), (None, 4), "at 0, 10, 20 and 25 ms");
        assert_eq!(clock.now(), Timestamp::ORIGIN.after(Duration::from_millis(25)));
    }

    #[test]
    fn a_deadline_counts_down_to_zero_and_stays_there() {
        let clock = ManualClock::new();
        let deadline = Deadline::after(&clock, Duration::from_secs(2));
        clock.advance(Duration::from_millis(500));
        assert_eq!(deadline.remaining(&clock), Duration::from_millis(1500));
        assert!(!deadline.passed(&clock));
        clock.advance(Duration::from_secs(9));
        assert_eq!(deadline.remaining(&clock), Duration::ZERO);
        assert!(deadline.passed(&clock));
    }

    #[test]
    fn the_system_clock_moves_forward() {
        let clock = SystemClock::new();
        let before = clock.now();
        clock.sleep(Duration::from_millis(1));
        assert!(clock.now().since(before) >= Duration::from_millis(1));
    }
}
