//! The engine's result codes, and what each means for the call that got it.
//!
//! Codes are grouped by what a caller can do about them. A code that this release of Tensorhold does not know becomes an
//! `Internal` error with the code in its context, so that nothing is guessed and nothing is lost.

use std::fmt;

use tensorhold_core::{Error, ErrorKind, ObjectKey, Retry};
use tensorhold_engine::{GetOutcome, PutOutcome, RelocateOutcome, RemoveOutcome};

/// DRAM is full at the moment.
const NO_AVAILABLE_HANDLE: i64 = -200;
/// A parameter is wrong: a buffer that is too small, an address registered twice, an empty key.
pub(crate) const INVALID_PARAMS: i64 = -600;
/// The object's put has not ended.
const REPLICA_IS_NOT_READY: i64 = -703;
/// There is no such object.
pub(crate) const OBJECT_NOT_FOUND: i64 = -704;
/// An object with this key exists already.
const OBJECT_ALREADY_EXISTS: i64 = -705;
/// The bytes did not arrive, or not all of them.
pub(crate) const TRANSFER_FAIL: i64 = -800;

/// What a code means: the kind of error, and its message.
fn meaning(code: i64) -> (ErrorKind, &'static str) {
    match code {
        -10 => (
            ErrorKind::Capacity,
            "the client's local buffer is too small; raise buffer_bytes",
        ),
        -101 => (
            ErrorKind::Unavailable,
            "there is no segment to store in; start a holder",
        ),
        -103 => (ErrorKind::Unavailable, "the master does not know this client yet"),
        NO_AVAILABLE_HANDLE => (ErrorKind::Capacity, "DRAM is full"),
        -400 => (ErrorKind::Invalid, "the engine refuses this key"),
        -500 => (ErrorKind::Unavailable, "the write failed"),
        INVALID_PARAMS => (ErrorKind::Invalid, "the engine refuses a parameter of the call"),
        -601 => (
            ErrorKind::Denied,
            "this client may not do that to an object of another client",
        ),
        -702..=-700 => (ErrorKind::Unavailable, "the replica cannot be used now"),
        REPLICA_IS_NOT_READY => (ErrorKind::Conflict, "the object's put has not ended"),
        OBJECT_NOT_FOUND | -710 | -712 => (ErrorKind::NotFound, "there is no such object"),
        OBJECT_ALREADY_EXISTS | -711 => (ErrorKind::Conflict, "there is such an object already"),
        -706 => (ErrorKind::Conflict, "a reader holds a read lease on the object"),
        -707 => (
            ErrorKind::Unavailable,
            "the transfer outlasted the engine's read lease, so its bytes cannot be trusted",
        ),
        -708 | -714 => (ErrorKind::Conflict, "the object is being copied or moved"),
        TRANSFER_FAIL => (
            ErrorKind::Unavailable,
            "the transfer failed; the holder is gone, or the memory is not registered",
        ),
        -801 => (ErrorKind::Corrupt, "the engine's own checksum does not fit the bytes"),
        -900 => (ErrorKind::Unavailable, "the master cannot be reached"),
        -901 => (ErrorKind::Unavailable, "the master did not answer in time"),
        -1003..=-1000 => (ErrorKind::Unavailable, "the engine's own etcd does not answer"),
        -1011..=-1010 => (ErrorKind::Unavailable, "the engine cannot do this in its present state"),
        -1012 => (ErrorKind::Unsupported, "the engine is not set up for this"),
        -1106..=-1100 => (ErrorKind::Unavailable, "the holder could not read or write its SSD"),
        _ => (
            ErrorKind::Internal,
            "the engine returned a code that Tensorhold does not know",
        ),
    }
}

/// The engine's code, as the cause of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineCode(pub(crate) i64);

impl fmt::Display for EngineCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the engine's code {}", self.0)
    }
}

impl std::error::Error for EngineCode {}

/// The error for `code`. `lost_reply` is the retry advice if the request may have reached the engine all the same.
pub(crate) fn error(operation: &'static str, code: i64, lost_reply: Retry) -> Error {
    let (kind, message) = meaning(code);
    let error = Error::new(kind, operation, message)
        .with("code", code)
        .caused_by(EngineCode(code));
    match code {
        TRANSFER_FAIL | -900 | -901 | -500 => error.with_retry(lost_reply),
        _ => error,
    }
}

/// The outcome of one object of a put.
pub(crate) fn put(key: &ObjectKey, code: i64) -> PutOutcome {
    match code {
        0 | OBJECT_ALREADY_EXISTS => PutOutcome::Stored,
        NO_AVAILABLE_HANDLE => PutOutcome::Full,
        // The engine gives up a dead holder's space while bytes are on their way there.
        OBJECT_NOT_FOUND => PutOutcome::Failed(holder_gone(
            Error::unavailable("engine.put", "the holder is gone")
                .with("code", code)
                .with_retry(Retry::Ambiguous),
            key,
        )),
        TRANSFER_FAIL => PutOutcome::Failed(holder_gone(error("engine.put", code, Retry::Ambiguous), key)),
        _ => PutOutcome::Failed(error("engine.put", code, Retry::Ambiguous).with("key", key)),
    }
}

fn holder_gone(error: Error, key: &ObjectKey) -> Error {
    error.with("reason", "holder").with("key", key)
}

/// The outcome of one object of a get that wanted `wanted` bytes.
pub(crate) fn get(key: &ObjectKey, code: i64, wanted: u64) -> GetOutcome {
    match u64::try_from(code) {
        Ok(read) if read == wanted => GetOutcome::Loaded,
        Ok(read) => GetOutcome::WrongLength { stored: read },
        Err(_) if code == OBJECT_NOT_FOUND => GetOutcome::Miss,
        Err(_) if code == REPLICA_IS_NOT_READY => GetOutcome::Unfinished,
        Err(_) => GetOutcome::Failed(error("engine.get", code, Retry::Safe).with("key", key)),
    }
}

/// The outcome of one object of a forced remove.
pub(crate) fn remove(key: &ObjectKey, code: i64) -> RemoveOutcome {
    match code {
        0 => RemoveOutcome::Removed,
        OBJECT_NOT_FOUND => RemoveOutcome::Absent,
        REPLICA_IS_NOT_READY => RemoveOutcome::Unfinished,
        _ => RemoveOutcome::Failed(error("engine.remove", code, Retry::Ambiguous).with("key", key)),
    }
}

/// The outcome of one object of a request to move.
pub(crate) fn relocate(key: &ObjectKey, code: i64) -> RelocateOutcome {
    match code {
        0 => RelocateOutcome::Asked,
        OBJECT_NOT_FOUND => RelocateOutcome::Absent,
        _ => RelocateOutcome::Failed(error("engine.relocate", code, Retry::Safe).with("key", key)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ObjectKey {
        ObjectKey::new("k").expect("a key")
    }

    #[test]
    fn known_codes_become_outcomes() {
        assert!(matches!(put(&key(), 0), PutOutcome::Stored));
        assert!(matches!(put(&key(), -705), PutOutcome::Stored));
        assert!(matches!(put(&key(), -200), PutOutcome::Full));
        assert!(matches!(get(&key(), 10, 10), GetOutcome::Loaded));
        assert!(
            matches!(get(&key(), 9, 10), GetOutcome::WrongLength { stored: 9 }),
            "a short read is not a success"
        );
        assert!(matches!(get(&key(), 0, 10), GetOutcome::WrongLength { stored: 0 }));
        assert!(matches!(get(&key(), -704, 10), GetOutcome::Miss));
        assert!(matches!(get(&key(), -703, 10), GetOutcome::Unfinished));
        assert!(matches!(remove(&key(), 0), RemoveOutcome::Removed));
        assert!(matches!(remove(&key(), -704), RemoveOutcome::Absent));
        assert!(matches!(remove(&key(), -703), RemoveOutcome::Unfinished));
    }

    #[test]
    fn a_lost_reply_is_ambiguous_for_a_put_and_harmless_for_a_get() {
        for code in [-800, -900, -901] {
            let PutOutcome::Failed(error) = put(&key(), code) else {
                panic!("{code} is a failure")
            };
            assert_eq!(
                (error.kind(), error.retry()),
                (ErrorKind::Unavailable, Retry::Ambiguous)
            );
            let GetOutcome::Failed(error) = get(&key(), code, 1) else {
                panic!("{code} is a failure")
            };
            assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Safe));
        }
    }

    #[test]
    fn a_put_says_that_it_met_a_dead_holder() {
        for (code, is_holder) in [(-800, true), (-704, true), (-900, false), (-101, false)] {
            let PutOutcome::Failed(error) = put(&key(), code) else {
                panic!("{code} is a failure")
            };
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{code}");
            assert_eq!(error.fact("reason") == Some("holder"), is_holder, "{code}");
        }
    }

    #[test]
    fn unknown_codes_are_kept() {
        for code in [-2, -999, -31_337] {
            let GetOutcome::Failed(error) = get(&key(), code, 1) else {
                panic!("{code} is a failure")
            };
            assert_eq!(error.kind(), ErrorKind::Internal);
            assert_eq!(error.fact("code"), Some(code.to_string().as_str()));
        }
    }
}
