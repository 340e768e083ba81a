//! What every contract suite has in common: cases that return a failure instead of panicking, and a `main` in which every
//! case is one test. What a case needs, and how it is run, is up to its suite.

use std::collections::BTreeSet;
use std::fmt;

use libtest_mimic::{Arguments, Trial};

use crate::Error;

pub use crate::{ensure, ensure_eq, ensure_matches};

/// Fails the case unless a condition holds. The format string says what was seen.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::testing::Failure::new(format!($($why)+)));
        }
    };
}

/// Fails the case unless two values are equal; the message shows both.
#[macro_export]
macro_rules! ensure_eq {
    ($seen:expr, $wanted:expr, $($why:tt)+) => {
        match (&$seen, &$wanted) {
            (seen, wanted) if *seen == *wanted => {}
            (seen, wanted) => {
                let why = format!($($why)+);
                return Err($crate::testing::Failure::new(format!("{why}: {seen:?} instead of {wanted:?}")));
            }
        }
    };
}

/// Fails the case unless a value matches a pattern; the message shows the value.
#[macro_export]
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

/// Why a case failed, for the reader of the test report.
#[derive(Clone, Debug)]
pub struct Failure(String);

impl Failure {
    /// What was seen and what was expected.
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

/// Runs cases as tests: each has a name, and what it does. Takes libtest's arguments, and ends the process with its exit
/// code if a case failed. If the cases are not `parallel`, they run one after the other, unless `--test-threads` is given.
pub fn main<F>(parallel: bool, cases: impl IntoIterator<Item = (&'static str, F)>)
where
    F: FnOnce() -> Result<(), String> + Send + 'static,
{
    let mut arguments = Arguments::from_args();
    if !parallel && arguments.test_threads.is_none() {
        arguments.test_threads = Some(1);
    }
    let trial = |(name, run): (&'static str, F)| Trial::test(name, move || run().map_err(Into::into));
    libtest_mimic::run(&arguments, cases.into_iter().map(trial).collect()).exit_if_failed();
}

/// Checks the list of a suite's cases, each with its name and its sentence of the contract: at least so many, every name
/// once, every sentence a sentence.
///
/// # Panics
/// If that is not so.
pub fn check_list<'a>(least: usize, cases: impl IntoIterator<Item = (&'a str, &'a str)>) {
    let cases: Vec<_> = cases.into_iter().collect();
    let names: BTreeSet<_> = cases.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), cases.len(), "a name stands twice");
    assert!(cases.len() >= least, "only {} cases", cases.len());
    for (name, about) in cases {
        assert!(about.ends_with('.'), "{name} is about {about:?}");
    }
}
