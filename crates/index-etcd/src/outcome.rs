//! What a failed try proves: the one module that decides what may be retried.
//!
//! etcd's codes are coarse (`Unavailable` is both "no leader, I accepted nothing" and "I timed out and do not know"),
//! so its messages decide; they are part of its API (`api/v3rpc/rpctypes`) and have not changed since 3.4. A failure
//! that is not listed here counts as [`Failure::Unknown`]: a transaction then becomes ambiguous, which is always true,
//! if unwelcome.

use std::error::Error as StdError;

use tensorhold_core::{Error, ErrorKind};
use tonic::{Code, Status};

/// Why a try failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request was not and will not be applied; on another node, or later, it may succeed.
    NotDone(Error),
    /// As `NotDone`; and the connection is in doubt, or the identity that it was made with.
    NotConnected(Error),
    /// It is unknown whether the request was applied.
    Unknown(Error),
    /// The request was not applied, and no node would apply it.
    Refused(Error),
    /// etcd has answered that its quota is used up. It says so before it accepts a request, or after it has applied it:
    /// nothing is in flight any more, and a read shows whether the request was applied.
    Full(Error),
}

impl Failure {
    /// The failure of a preparation step: whatever became of that step, the request itself was not sent.
    pub(crate) fn before_sending(self) -> Self {
        match self {
            Self::Unknown(error) => Self::NotConnected(error),
            other => other,
        }
    }

    /// The error alone.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::NotDone(error)
            | Self::NotConnected(error)
            | Self::Unknown(error)
            | Self::Refused(error)
            | Self::Full(error) => error,
        }
    }

    /// Whether the connection itself is in doubt, or the identity that it was made with.
    pub(crate) fn spoils_connection(&self) -> bool {
        matches!(self, Self::NotConnected(_) | Self::Unknown(_))
    }
}

/// Classifies an error of etcd-client.
pub(crate) fn judge(operation: &'static str, endpoint: &str, error: etcd_client::Error) -> Failure {
    use etcd_client::Error as E;
    let new = |kind, message: String| Error::new(kind, operation, message).with("endpoint", endpoint);
    match error {
        E::GRpcStatus(status) => judge_status(operation, endpoint, status),
        E::TransportError(error) => {
            let message = "there is no connection to etcd: is it up, and is the address right?".to_owned();
            Failure::NotConnected(new(ErrorKind::Unavailable, message).caused_by(error))
        }
        E::InvalidArgs(message) => Failure::Refused(new(ErrorKind::Invalid, message)),
        E::InvalidUri(error) => Failure::Refused(new(ErrorKind::Invalid, error.to_string())),
        E::LeaseKeepAliveError(message) if message == LEASE_GONE => Failure::Refused(new(
            ErrorKind::Fenced,
            "the session's lease in etcd has expired or was revoked".to_owned(),
        )),
        other => Failure::Unknown(new(ErrorKind::Unavailable, other.to_string())),
    }
}

/// The message of etcd-client when a keep-alive is answered with a time to live of zero.
const LEASE_GONE: &str = "lease not found";

/// Messages with which a node says that it did not accept the request.
const TOOK_NOTHING_IN: &[&str] = &[
    "etcdserver: no leader",
    "raft proposal dropped",
    "etcdserver: too many requests",
    "etcdserver: rpc not supported for learner",
];
/// The same, because the token is no longer valid: a new connection brings a new token.
const WANTS_NEW_TOKEN: &[&str] = &[
    "etcdserver: invalid auth token",
    "etcdserver: revision of auth store is old",
];
/// The same, because the password that the connection was made with is not, or is no longer, the user's.
const WANTS_ANOTHER_PASSWORD: &[&str] = &["etcdserver: authentication failed"];
/// Messages about our identity that no retry changes.
const WHO_ARE_YOU: &[&str] = &[
    "etcdserver: user name is empty",
    "etcdserver: user name not found",
    "etcdserver: authentication is not enabled",
    "etcdserver: permission denied",
];

fn judge_status(operation: &'static str, endpoint: &str, status: Status) -> Failure {
    let says = |messages: &[&str]| messages.iter().any(|message| status.message().contains(message));
    let new = |kind, message: &str| {
        let said = status.message().trim_start_matches("etcdserver: ");
        let error = Error::new(kind, operation, message).with("endpoint", endpoint);
        error.with("code", format!("{:?}", status.code())).with("etcd", said)
    };
    if was_never_connected(&status) {
        let error = new(
            ErrorKind::Unavailable,
            "there is no connection to etcd: is it up, and is the address right?",
        );
        // A retry on this connection would use the certificates that it was made with.
        return Failure::NotConnected(error.caused_by(status));
    }
    if says(WANTS_NEW_TOKEN) {
        let error = new(
            ErrorKind::Unavailable,
            "etcd no longer accepts the auth token; a new connection gets a new one",
        );
        return Failure::NotConnected(error);
    }
    if says(WANTS_ANOTHER_PASSWORD) {
        let error = new(
            ErrorKind::Denied,
            "etcd refuses the login: check the user and its password",
        );
        return Failure::NotConnected(error);
    }
    if says(TOOK_NOTHING_IN) {
        return Failure::NotDone(new(
            ErrorKind::Unavailable,
            "the etcd node cannot accept requests now (no leader, overloaded, or a learner)",
        ));
    }
    if says(WHO_ARE_YOU) {
        return Failure::Refused(new(
            ErrorKind::Denied,
            "etcd does not let us: check user, password and roles",
        ));
    }
    match status.code() {
        Code::NotFound if says(&["requested lease not found"]) => {
            Failure::Refused(new(ErrorKind::Fenced, "the session has ended"))
        }
        Code::OutOfRange if says(&["required revision has been compacted"]) => Failure::Refused(forgotten(operation)),
        Code::ResourceExhausted if says(&["database space exceeded"]) => Failure::Full(new(
            ErrorKind::Capacity,
            "etcd's quota is used up: compact and defragment it, clear its NOSPACE alarm, or raise the quota",
        )),
        Code::PermissionDenied | Code::Unauthenticated => Failure::Refused(new(
            ErrorKind::Denied,
            "etcd does not let us: check user, password and roles",
        )),
        // Not every `OutOfRange`: tonic uses the code too, for an answer that is too large to read.
        Code::OutOfRange if says(&["etcdserver: "]) => {
            Failure::Refused(new(ErrorKind::Invalid, "etcd refuses the request"))
        }
        Code::OutOfRange if says(&["message length too large"]) => Failure::Refused(new(
            ErrorKind::Capacity,
            "etcd's answer is larger than the limit: request fewer keys at once",
        )),
        Code::InvalidArgument => Failure::Refused(new(ErrorKind::Invalid, "etcd refuses the request")),
        Code::Unimplemented => Failure::Refused(new(
            ErrorKind::Unsupported,
            "this etcd does not implement the call: is it older than 3.5.8?",
        )),
        Code::DataLoss => Failure::Refused(new(
            ErrorKind::Corrupt,
            "etcd reports that its data is corrupt: resolve its CORRUPT alarm",
        )),
        _ => Failure::Unknown(new(ErrorKind::Unavailable, "etcd did not answer").caused_by(status)),
    }
}

/// The error of a watch whose changes have been compacted.
pub(crate) fn forgotten(operation: &'static str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        operation,
        "the changes after this version are no longer kept: read again and watch from there",
    )
}

/// Whether the connection was never made, so that the request cannot have been sent.
fn was_never_connected(status: &Status) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(code: Code, message: &str) -> (&'static str, ErrorKind) {
        let failure = judge(
            "etcd.test",
            "http://a:1",
            etcd_client::Error::GRpcStatus(Status::new(code, message)),
        );
        match &failure {
            Failure::NotDone(error) => ("not done", error.kind()),
            Failure::NotConnected(error) => ("not connected", error.kind()),
            Failure::Unknown(error) => ("unknown", error.kind()),
            Failure::Refused(error) => ("refused", error.kind()),
            Failure::Full(error) => ("full", error.kind()),
        }
    }

    #[test]
    fn a_full_etcd_may_have_applied_what_it_refuses() {
        let full = verdict(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert_eq!(full, ("full", ErrorKind::Capacity));
    }

    #[test]
    fn only_what_proves_that_nothing_happened_is_not_done() {
        use ErrorKind::Unavailable;
        let not_done = ("not done", Unavailable);
        assert_eq!(verdict(Code::Unavailable, "etcdserver: no leader"), not_done);
        assert_eq!(verdict(Code::Unknown, "raft proposal dropped"), not_done);
        assert_eq!(
            verdict(Code::ResourceExhausted, "etcdserver: too many requests"),
            not_done
        );
        // Another connection gets another token, and reads the password again.
        let not_connected = ("not connected", Unavailable);
        assert_eq!(
            verdict(Code::Unauthenticated, "etcdserver: invalid auth token"),
            not_connected
        );
        assert_eq!(
            verdict(Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            not_connected
        );
        assert_eq!(
            verdict(
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password"
            ),
            ("not connected", ErrorKind::Denied)
        );
        for (code, message) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (
                Code::Unavailable,
                "etcdserver: request timed out, possibly due to previous leader failure",
            ),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unavailable, "transport is closing"),
            (Code::Unknown, "h2 protocol error: http2 error"),
            (Code::Cancelled, "operation was canceled"),
            (Code::DeadlineExceeded, ""),
            (Code::Internal, "anything"),
            (Code::Aborted, "anything"),
        ] {
            assert_eq!(verdict(code, message), ("unknown", Unavailable), "{code:?} {message}");
        }
    }

    #[test]
    fn refusals_have_their_kind() {
        for (code, message, kind) in [
            (
                Code::NotFound,
                "etcdserver: requested lease not found",
                ErrorKind::Fenced,
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                ErrorKind::Denied,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: user name is empty",
                ErrorKind::Denied,
            ),
            (
                Code::FailedPrecondition,
                "etcdserver: authentication is not enabled",
                ErrorKind::Denied,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: request is too large",
                ErrorKind::Invalid,
            ),
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                ErrorKind::NotFound,
            ),
            (Code::OutOfRange, "etcdserver: too large lease TTL", ErrorKind::Invalid),
            (Code::DataLoss, "etcdserver: corrupt cluster", ErrorKind::Corrupt),
        ] {
            assert_eq!(verdict(code, message), ("refused", kind), "{message}");
        }
    }

    #[test]
    fn a_failed_connection_sent_nothing() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(tonic::ConnectError(Box::new(refused))));
        let failure = judge("etcd.test", "http://a:1", etcd_client::Error::GRpcStatus(status));
        assert!(matches!(failure, Failure::NotConnected(_)), "{failure:?}");
    }
}
