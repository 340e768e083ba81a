//! The one error type.
//!
//! A program decides by [`ErrorKind`] and [`Retry`]; a person reads the operation, the message and the context pairs. A
//! miss, a full pool or a refused read is *not* an error: each is a return value of the call that met it.
//!
//! ```
//! use tensorhold_core::{Error, ErrorKind, Retry};
//!
//! let error = Error::unavailable("engine.get", "the holder closed the connection")
//!     .with("key", "s/a/g1-0000000000000001/hidden")
//!     .with("code", -800);
//! assert_eq!(error.kind(), ErrorKind::Unavailable);
//! assert_eq!(error.retry(), Retry::Safe);
//! assert_eq!(
//!     error.to_string(),
//!     "engine.get: the holder closed the connection (unavailable) \
//!      [key=s/a/g1-0000000000000001/hidden, code=-800]"
//! );
//! ```

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, only as finely as a caller needs in order to decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong; the same request can never succeed.
    Invalid,
    /// The thing named does not exist, or no longer does.
    NotFound,
    /// Another process changed the record first; read it again and decide anew.
    Conflict,
    /// The caller's token, lease or session is no longer valid; it may change nothing.
    Fenced,
    /// There is no room for it now.
    Capacity,
    /// The other side did not answer, or said that it cannot serve now. Includes calls that outlived their deadline.
    Unavailable,
    /// A wait for a condition, such as that everything is freed, ended before the condition was met. A wait for quota
    /// that ends is `Capacity`; a wait for samples that ends has none, and is no error.
    Timeout,
    /// The bytes are not the bytes that were committed.
    Corrupt,
    /// The caller lacks the permission.
    Denied,
    /// This back end or this build cannot do it.
    Unsupported,
    /// A bug in Tensorhold or in the other side: an answer that the other side's own protocol rules out.
    Internal,
}

impl ErrorKind {
    /// The kind in one lower-case word, as it is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not found",
            Self::Conflict => "conflict",
            Self::Fenced => "fenced",
            Self::Capacity => "capacity",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Corrupt => "corrupt",
            Self::Denied => "denied",
            Self::Unsupported => "unsupported",
            Self::Internal => "internal",
        }
    }

    const fn usual_retry(self) -> Retry {
        match self {
            Self::Conflict | Self::Capacity | Self::Unavailable | Self::Timeout => Retry::Safe,
            _ => Retry::Never,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether, and how, to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same call will fail again.
    Never,
    /// The call had no effect, or is idempotent: call again later.
    Safe,
    /// The call may have taken effect and the reply was lost: read back before you do anything else.
    Ambiguous,
}

/// What went wrong, whether to try again, and everything a person needs to act on it. Cheap to move and to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    retry: Retry,
    operation: &'static str,
    message: String,
    context: Vec<(&'static str, String)>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` in `operation` (dotted, like `engine.put`). The message says what happened and, where there
    /// is something to do, what to do.
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            kind,
            retry: kind.usual_retry(),
            operation,
            message: message.into(),
            context: Vec::new(),
            source: None,
        }))
    }

    /// [`ErrorKind::Invalid`].
    pub fn invalid(operation: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, operation, message)
    }

    /// [`ErrorKind::Unavailable`].
    pub fn unavailable(operation: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, operation, message)
    }

    /// [`ErrorKind::Internal`].
    pub fn internal(operation: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, operation, message)
    }

    fn edit(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Adds one fact, for people and logs.
    pub fn with(self, name: &'static str, value: impl fmt::Display) -> Self {
        self.edit(|inner| inner.context.push((name, value.to_string())))
    }

    /// Adds the error that caused this one. `Display` does not repeat it; walk [`StdError::source`] for it.
    pub fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.edit(|inner| inner.source = Some(Arc::new(source)))
    }

    /// The cause of type `T`, among all causes of causes: what code decides by, where kind and retry are not enough.
    pub fn cause<T: StdError + 'static>(&self) -> Option<&T> {
        let mut cause = self.source();
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }

    /// Replaces the retry advice that comes with the kind.
    pub fn with_retry(self, retry: Retry) -> Self {
        self.edit(|inner| inner.retry = retry)
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether to try again.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// The operation that failed, dotted.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// What happened, without kind and context.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The facts added by [`Error::with`], in order.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
    }

    /// The value of one context pair, if it is there.
    pub fn fact(&self, name: &str) -> Option<&str> {
        self.0
            .context
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.0.operation, self.0.message, self.0.kind)?;
        for (i, (name, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { " [" } else { ", " })?;
        }
        if self.0.context.is_empty() {
            Ok(())
        } else {
            f.write_str("]")
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(f, "; caused by: {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_ref()
            .map(|source| source.as_ref() as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_does_not_repeat_the_source_and_debug_does() {
        let error = Error::internal("core.test", "outer").caused_by(std::io::Error::other("inner"));
        assert_eq!(error.to_string(), "core.test: outer (internal)");
        assert_eq!(format!("{error:?}"), "core.test: outer (internal); caused by: inner");
    }

    #[test]
    fn a_cause_is_found_by_its_type_however_deep() {
        let inner = Error::invalid("core.test", "inner").caused_by(std::io::Error::other("innermost"));
        let error = Error::internal("core.test", "outer").caused_by(inner);
        let found = error.cause::<std::io::Error>().map(ToString::to_string);
        assert_eq!(found.as_deref(), Some("innermost"));
        assert!(error.cause::<fmt::Error>().is_none());
    }

    #[test]
    fn a_clone_does_not_change_with_the_original() {
        let error = Error::unavailable("core.test", "gone");
        let more = error.clone().with("try", 2).with_retry(Retry::Ambiguous);
        assert_eq!(error.context(), []);
        assert_eq!(error.retry(), Retry::Safe);
        assert_eq!(more.fact("try"), Some("2"));
        assert_eq!(more.retry(), Retry::Ambiguous);
    }

    #[test]
    fn an_error_is_one_word_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
