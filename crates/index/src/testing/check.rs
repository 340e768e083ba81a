//! How a file lists its cases, and what they check often.

use std::fmt;

use tensorhold_core::testing::{CaseResult, Failure};
use tensorhold_core::{ErrorKind, Result};

/// The list of a file's cases: `name "the sentence of the contract";`, after what they need of the back end.
macro_rules! cases {
    ($group:literal $needs:ident $($name:ident $about:literal;)*) => {
        pub(in crate::testing) const CASES: &[$crate::testing::Case] = &[$(
            $crate::testing::Case {
                name: concat!($group, "::", stringify!($name)),
                about: $about,
                needs: $crate::testing::Needs::$needs,
                run: |context| Box::pin($name(context)),
            },
        )*];
    };
}

/// Asserts that a call was refused, with this kind of error.
pub(super) fn refused<T: fmt::Debug>(result: Result<T>, kind: ErrorKind, what: &str) -> CaseResult {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        other => Err(Failure::new(format!(
            "{what}: this should have been refused as \"{kind}\"; it was {other:?}"
        ))),
    }
}
