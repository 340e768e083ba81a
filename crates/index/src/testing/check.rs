//! The macros with which a case checks: they return a failure instead of panicking.

use std::fmt;

use holdfast_core::{Error, ErrorKind, Result};

/// Fails the case unless a condition holds; the rest is a format string that says what was seen.
macro_rules! ensure {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::testing::Failure::new(format!($($why)+)));
        }
    };
}

/// Fails the case unless two values are the same; the message shows both.
macro_rules! ensure_eq {
    ($seen:expr, $wanted:expr, $($why:tt)+) => {
        match (&$seen, &$wanted) {
            (seen, wanted) if seen == wanted => {}
            (seen, wanted) => {
                let why = format!($($why)+);
                return Err($crate::testing::Failure::new(format!("{why}: {seen:?} instead of {wanted:?}")));
            }
        }
    };
}

/// Fails the case unless a value matches a pattern; the message shows the value.
macro_rules! ensure_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)?, $($why:tt)+) => {
        match $value {
            $pattern $(if $guard)? => {}
            ref other => {
                let why = format!($($why)+);
                return Err($crate::testing::Failure::new(format!("{why}; it was {other:?}")));
            }
        }
    };
}

/// The list of a file's cases: `name "the sentence of the contract";`, after what they need of the back end.
macro_rules! cases {
    ($group:literal $needs:ident $($name:ident $about:literal;)*) => {
        pub(super) const CASES: &[$crate::testing::Case] = &[$(
            $crate::testing::Case {
                name: concat!($group, "::", stringify!($name)),
                about: $about,
                needs: $crate::testing::Needs::$needs,
                run: |context| Box::pin($name(context)),
            },
        )*];
    };
}

/// Why a case failed, for the reader of the test report.
#[derive(Clone, Debug)]
pub struct Failure(String);

impl Failure {
    /// What was seen and what should have been.
    pub fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(format!("an error that the case did not expect: {error:?}"))
    }
}

/// What a case returns.
pub type CaseResult<T = ()> = std::result::Result<T, Failure>;

/// Asserts that a call was refused, with this kind of error.
pub(super) fn refused<T: fmt::Debug>(result: Result<T>, kind: ErrorKind, what: &str) -> CaseResult {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        other => Err(Failure::new(format!(
            "{what}: this should have been refused as \"{kind}\"; it was {other:?}"
        ))),
    }
}
