//! Why a command did not do what it was asked: what happened, why, and what to do; and the exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | something is wrong or not there: a finding of `doctor`, a sample that nobody has |
//! | 2 | the command line or a setting is wrong |
//! | 3 | a server cannot be reached, or did not answer in time |
//! | 4 | refused: credentials, another release's data, a store in use, no room |
//! | 5 | a defect: in Tensorhold, in what a server answered, or in data |

use std::error::Error as _;
use std::fmt::Write as _;

use tensorhold_core::{Error, ErrorKind};

use crate::output::object;
use crate::text::shown;

/// The exit code of a command that did what it was asked.
pub const DONE: u8 = 0;
/// The exit code if something is wrong or not there.
pub const WRONG: u8 = 1;
/// The exit code if the command line or a setting is wrong.
pub const USAGE: u8 = 2;
/// The exit code if a server cannot be reached.
pub const UNREACHABLE: u8 = 3;
/// The exit code if a server refuses it.
pub const REFUSED: u8 = 4;
/// The exit code of a defect.
pub const DEFECT: u8 = 5;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    kind: ErrorKind,
    pub(crate) what: String,
    pub(crate) why: String,
    to_do: String,
}

impl Failure {
    pub(crate) fn new(
        kind: ErrorKind,
        what: impl Into<String>,
        why: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Self {
        Self {
            code: code(kind),
            kind,
            what: what.into(),
            why: why.into(),
            to_do: to_do.into(),
        }
    }

    /// The command line or a setting is wrong.
    pub(crate) fn usage(what: impl Into<String>, why: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, what, why, to_do)
    }

    /// What was asked for is not there.
    pub(crate) fn not_found(what: impl Into<String>, why: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, what, why, to_do)
    }

    /// An error of the library, while the command did `what`.
    pub(crate) fn of(what: impl Into<String>, error: &Error) -> Self {
        Self::new(error.kind(), what, reason(error), advice(error))
    }

    /// The same, with other advice.
    pub(crate) fn advise(mut self, to_do: impl Into<String>) -> Self {
        self.to_do = to_do.into();
        self
    }

    /// Its kind, what happened and why, and what to do.
    pub(crate) fn into_parts(self) -> (ErrorKind, String, String) {
        (self.kind, format!("{}: {}", self.what, self.why), self.to_do)
    }

    /// For people, in three lines.
    pub(crate) fn text(&self, colour: bool) -> String {
        let (red, plain) = if colour { ("\u{1b}[31m", "\u{1b}[0m") } else { ("", "") };
        let mut text = format!("{red}error:{plain} {}\n", shown(&self.what));
        for (label, line) in [("why:", &self.why), ("do: ", &self.to_do)] {
            if !line.is_empty() {
                // Writing to a string cannot fail.
                let _infallible = writeln!(text, "  {label} {}", shown(line));
            }
        }
        text
    }

    /// For programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        object!("error": object!(
            "kind": name(self.kind), "what": self.what, "why": self.why, "do": self.to_do, "exit_code": self.code,
        ))
    }
}

/// The exit code of an error's kind.
fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::NotFound => WRONG,
        ErrorKind::Invalid => USAGE,
        ErrorKind::Unavailable | ErrorKind::Timeout => UNREACHABLE,
        ErrorKind::Denied | ErrorKind::Fenced | ErrorKind::Conflict | ErrorKind::Capacity | ErrorKind::Unsupported => {
            REFUSED
        }
        _ => DEFECT,
    }
}

/// The kind as JSON shows it.
fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "not_found",
        kind => kind.as_str(),
    }
}

/// The message, the facts, and the innermost cause.
pub(crate) fn reason(error: &Error) -> String {
    let mut text = error.message().to_owned();
    let facts: Vec<String> = error
        .context()
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    if !facts.is_empty() {
        text.push_str(&format!(" ({})", facts.join(", ")));
    }
    let mut cause = error.source();
    let mut innermost = None;
    while let Some(error) = cause {
        innermost = Some(match error.downcast_ref::<Error>() {
            Some(ours) => ours.message().to_owned(),
            None => error.to_string(),
        });
        cause = error.source();
    }
    if let Some(cause) = innermost {
        text.push_str(&format!("; {cause}"));
    }
    text
}

fn advice(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Timeout => {
            "is it running, and is the address right? `tensorhold doctor` looks at each part; `tensorhold up` starts a cluster \
             on this machine"
        }
        ErrorKind::Denied => {
            "check TENSORHOLD_ETCD_USER and TENSORHOLD_ETCD_PASSWORD, and what the role of that user may do (docs/security.md)"
        }
        ErrorKind::Fenced => "if etcd was restored or replaced: docs/etcd-restore.md, `tensorhold restore-guard`",
        ErrorKind::Capacity => "make room (docs/etcd-restore.md, for etcd), or set a larger budget",
        ErrorKind::Unsupported => "use the release of Tensorhold that wrote it, or a later one",
        ErrorKind::Conflict => "look again, and decide anew",
        ErrorKind::Invalid => "docs/settings.md has every setting; `tensorhold help` describes the commands",
        ErrorKind::NotFound => "look at what there is: `tensorhold status`, `tensorhold ls`",
        ErrorKind::Corrupt => {
            "is this the right etcd, and the right root (TENSORHOLD_ETCD_ROOT)? If so, it is damaged: docs/etcd-restore.md"
        }
        _ => "this is a defect: please report it, with the output of `tensorhold doctor --json`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_in_three_lines_that_no_terminal_acts_on() {
        let error = Error::unavailable("etcd.read", "no answer\u{1b}[2J").with("endpoint", "http://a:1");
        let failure = Failure::of("cannot read", &error.caused_by(std::io::Error::other("refused")));
        let text = failure.text(false);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(
            text.starts_with("error: cannot read\n  why: no answer\\u{1b}[2J (endpoint: http://a:1); refused\n"),
            "{text}"
        );
        assert_eq!(failure.code, UNREACHABLE);
        assert_eq!(failure.json()["error"]["kind"], "unavailable");
        assert!(failure.text(true).starts_with("\u{1b}[31merror:"));
    }
}
