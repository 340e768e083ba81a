//! The macros with which a case checks: they return a failure instead of panicking.

use std::fmt;

use holdfast_core::Error;

/// Fails the case unless a condition holds; the rest is a format string that says what was seen.
macro_rules! ensure {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::store::testing::Failure::new(format!($($why)+)));
        }
    };
}

/// Fails the case unless two values are equal; the message shows both.
macro_rules! ensure_eq {
    ($seen:expr, $wanted:expr, $($why:tt)+) => {
        match (&$seen, &$wanted) {
            (seen, wanted) => {
                if *seen != *wanted {
                    let why = format!($($why)+);
                    return Err($crate::store::testing::Failure::new(format!("{why}: {seen:?} instead of {wanted:?}")));
                }
            }
        }
    };
}

/// The list of a file's cases: `name "the sentence of the contract";`.
macro_rules! cases {
    ($group:literal $($name:ident $about:literal;)*) => {
        pub(super) const CASES: &[$crate::store::testing::Case] = &[$(
            $crate::store::testing::Case {
                name: concat!($group, "::", stringify!($name)),
                about: $about,
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
pub type CaseResult<T = ()> = Result<T, Failure>;
