//! How fast figures change, by what was seen within the last half minute.
//!
//! An index has counts and no counters: nothing is written for each sample only to be counted. So what is known is the
//! difference of two counts. What came and what went between them has cancelled out, and whoever shows it says so.

use std::collections::VecDeque;
use std::time::Duration;

use tensorhold_core::Timestamp;

/// The time over which a change is told, at least, once so much was seen.
pub const OVER: Duration = Duration::from_secs(30);
/// No change is told of less time: it would be noise.
const SHORTEST: Duration = Duration::from_millis(900);

/// What was seen lately, and when.
#[derive(Debug)]
pub struct Recent<T>(VecDeque<(Timestamp, T)>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

/// Something that was seen before, and how long before what was seen last.
#[derive(Debug)]
pub struct Before<'a, T> {
    /// What was seen.
    pub seen: &'a T,
    /// The time in between.
    pub ago: Duration,
}

impl<T> Before<'_, T> {
    /// How much a figure has changed in a second, if it was this before.
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    pub fn per_second(&self, before: u64, now: u64) -> f64 {
        (now as f64 - before as f64) / self.ago.as_secs_f64()
    }
}

impl<T> Recent<T> {
    /// Takes in what is seen now, and returns what it is compared with: the latest that was seen at least [`OVER`] ago, or
    /// else the earliest. None if too little time has passed since.
    pub fn saw(&mut self, now: Timestamp, seen: T) -> Option<Before<'_, T>> {
        while self.0.get(1).is_some_and(|(at, _)| now.since(*at) >= OVER) {
            self.0.pop_front();
        }
        self.0.push_back((now, seen));
        let (at, seen) = self.0.front()?;
        let ago = now.since(*at);
        (ago >= SHORTEST).then_some(Before { seen, ago })
    }
}

#[cfg(test)]
mod tests {
    use tensorhold_core::{Clock as _, ManualClock};

    use super::*;

    #[test]
    fn a_change_is_told_over_half_a_minute_or_as_long_as_is_known() {
        let clock = ManualClock::new();
        let mut recent = Recent::default();
        assert!(recent.saw(clock.now(), 100).is_none(), "one look tells no change");
        for second in 1..=100_u64 {
            clock.advance(Duration::from_secs(1));
            let before = recent.saw(clock.now(), 100 + 5 * second).expect("a change");
            assert_eq!(before.ago, Duration::from_secs(second.min(30)), "at {second} s");
            let change = before.per_second(*before.seen, 100 + 5 * second);
            assert!((change - 5.0).abs() < 1e-9, "{change}");
        }
        // Looks that are far apart are compared with the one before.
        clock.advance(Duration::from_secs(60));
        assert_eq!(
            recent.saw(clock.now(), 0).expect("a change").ago,
            Duration::from_secs(60)
        );
        assert!(recent.0.len() <= 2, "bounded");
        clock.advance(Duration::from_secs(60));
        let before = recent.saw(clock.now(), 0).expect("a change");
        assert_eq!((before.ago, before.per_second(60, 0)), (Duration::from_secs(60), -1.0));
    }
}
