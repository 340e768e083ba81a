//! How a call ended, as the value of a label.

use tensorhold_core::{ErrorKind, Result};

/// The values of the label `outcome`. The first two are no errors; the others are the kinds of errors.
const NAMES: [&str; OUTCOMES] = [
    "ok",
    "rejected",
    "invalid",
    "not_found",
    "conflict",
    "fenced",
    "capacity",
    "unavailable",
    "timeout",
    "corrupt",
    "denied",
    "unsupported",
    "internal",
    "other",
];

pub(crate) const OUTCOMES: usize = 14;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome(u8);

impl Outcome {
    /// It did what it was asked for.
    pub const OK: Self = Self(0);
    /// A transaction whose conditions did not hold: another process was faster, and the caller decides anew.
    pub const REJECTED: Self = Self(1);

    /// The outcome of a call: ok, or the kind of its error.
    pub fn of<T>(result: &Result<T>) -> Self {
        match result {
            Ok(_) => Self::OK,
            Err(error) => Self::error(error.kind()),
        }
    }

    /// The outcome of a batch: ok if every item is, otherwise the kind of the first error.
    pub fn of_batch<T>(results: &[Result<T>]) -> Self {
        let first = results.iter().find_map(|result| result.as_ref().err());
        first.map_or(Self::OK, |error| Self::error(error.kind()))
    }

    /// An error of this kind.
    pub const fn error(kind: ErrorKind) -> Self {
        Self(match kind {
            ErrorKind::Invalid => 2,
            ErrorKind::NotFound => 3,
            ErrorKind::Conflict => 4,
            ErrorKind::Fenced => 5,
            ErrorKind::Capacity => 6,
            ErrorKind::Unavailable => 7,
            ErrorKind::Timeout => 8,
            ErrorKind::Corrupt => 9,
            ErrorKind::Denied => 10,
            ErrorKind::Unsupported => 11,
            ErrorKind::Internal => 12,
            _ => 13,
        })
    }

    /// The value of the label.
    pub fn name(self) -> &'static str {
        NAMES.get(self.index()).copied().unwrap_or("other")
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Every outcome.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).map(Self).take(OUTCOMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_its_name() {
        for kind in [
            ErrorKind::Invalid,
            ErrorKind::NotFound,
            ErrorKind::Conflict,
            ErrorKind::Fenced,
            ErrorKind::Capacity,
            ErrorKind::Unavailable,
            ErrorKind::Timeout,
            ErrorKind::Corrupt,
            ErrorKind::Denied,
            ErrorKind::Unsupported,
            ErrorKind::Internal,
        ] {
            assert_eq!(Outcome::error(kind).name(), kind.as_str().replace(' ', "_"));
        }
    }
}
