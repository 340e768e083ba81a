//! Named invariants, and one place that counts their violations.
//!
//! A crate declares each of its invariants once (`LC1`, `KV3`), writes one predicate for it, and uses that same
//! predicate in the model, in property tests and in the running program. [`Recorder::check`] returns the violation to
//! code that can stop (a test, a model) and counts it for code that must go on (a server).
//!
//! ```
//! use tensorhold_core::{Invariant, Recorder};
//!
//! const LC9: Invariant = Invariant::new("LC9", "quota granted + free = budget");
//!
//! let recorder = Recorder::default();
//! assert!(recorder.check(&LC9, 3 + 4 == 7, || unreachable!()).is_ok());
//! let violation = recorder.check(&LC9, 3 + 4 == 8, || "3 + 4 is not 8".to_owned()).unwrap_err();
//! assert_eq!(violation.to_string(), "LC9 is broken (quota granted + free = budget): 3 + 4 is not 8");
//! assert_eq!(recorder.count(&LC9), 1);
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// A condition that must always hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Invariant {
    name: &'static str,
    says: &'static str,
}

impl Invariant {
    /// Names an invariant and says in a few words what must hold.
    pub const fn new(name: &'static str, says: &'static str) -> Self {
        Self { name, says }
    }

    /// Its short name, such as `LC1`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What must hold.
    pub const fn says(&self) -> &'static str {
        self.says
    }
}

/// One observed violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant.
    pub invariant: Invariant,
    /// The state that was seen instead.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is broken ({}): {}",
            self.invariant.name, self.invariant.says, self.detail
        )
    }
}

impl std::error::Error for Violation {}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Error::internal("invariant.check", violation.to_string()).with("invariant", violation.invariant.name)
    }
}

/// Counts violations by invariant and keeps the latest detail of each.
#[derive(Debug, Default)]
pub struct Recorder {
    broken: Mutex<BTreeMap<&'static str, (u64, Violation)>>,
}

impl Recorder {
    /// Checks that an invariant holds. If it does not, counts the violation and returns it. `detail` is called only
    /// then.
    pub fn check(&self, invariant: &Invariant, holds: bool, detail: impl FnOnce() -> String) -> Result<(), Violation> {
        if holds {
            return Ok(());
        }
        let violation = Violation {
            invariant: *invariant,
            detail: detail(),
        };
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = broken.entry(invariant.name).or_insert_with(|| (0, violation.clone()));
        *entry = (entry.0 + 1, violation.clone());
        Err(violation)
    }

    /// How often this invariant was broken.
    pub fn count(&self, invariant: &Invariant) -> u64 {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.get(invariant.name).map_or(0, |(count, _)| *count)
    }

    /// Every invariant that was broken, in the order of their names: the number of violations and the latest one.
    pub fn violations(&self) -> Vec<(u64, Violation)> {
        self.broken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Invariant = Invariant::new("A1", "a");
    const B: Invariant = Invariant::new("B1", "b");

    #[test]
    fn violations_are_counted_by_name_and_the_latest_detail_is_kept() {
        let recorder = Recorder::default();
        assert_eq!(recorder.check(&B, true, || "never asked for".to_owned()), Ok(()));
        for turn in 1..=2 {
            assert!(recorder.check(&B, false, || format!("turn {turn}")).is_err());
        }
        assert!(recorder.check(&A, false, String::new).is_err());
        let seen: Vec<_> = recorder
            .violations()
            .into_iter()
            .map(|(n, v)| (n, v.invariant.name(), v.detail))
            .collect();
        assert_eq!(seen, [(1, "A1", String::new()), (2, "B1", "turn 2".to_owned())]);
    }
}
