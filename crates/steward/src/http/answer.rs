//! What is answered when something is refused.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tensorhold_core::{Error, ErrorKind};

/// A refusal: what, why, and what to do. All refusals have this form.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    body: Problem,
}

#[derive(Clone, Debug, Serialize)]
struct Problem {
    /// What.
    error: &'static str,
    why: String,
    #[serde(rename = "do")]
    remedy: String,
}

/// Every status of a refusal, and what it says: so programs need not read the rest.
pub(crate) const STATUSES: &[(StatusCode, &str)] = &[
    (StatusCode::BAD_REQUEST, "the request is not as described"),
    (StatusCode::UNAUTHORIZED, "it is not known who asks"),
    (StatusCode::FORBIDDEN, "who asks may not do this"),
    (StatusCode::NOT_FOUND, "there is no such thing"),
    (StatusCode::METHOD_NOT_ALLOWED, "the path has no such method"),
    (StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time"),
    (StatusCode::CONFLICT, "as things stand, this is not possible"),
    (StatusCode::PAYLOAD_TOO_LARGE, "the request is too large"),
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body is of the wrong kind"),
    (StatusCode::NOT_IMPLEMENTED, "this release or this engine cannot do it"),
    (
        StatusCode::SERVICE_UNAVAILABLE,
        "something that is needed cannot be used now",
    ),
    (StatusCode::GATEWAY_TIMEOUT, "it took too long"),
    (StatusCode::INSUFFICIENT_STORAGE, "the index is full"),
];

/// What a status says.
pub(crate) fn said(status: StatusCode) -> &'static str {
    let found = STATUSES.iter().find(|(known, _)| *known == status);
    found.map_or("it is refused", |(_, said)| said)
}

impl Refused {
    /// One with this status, why, and what to do.
    pub(crate) fn new(status: StatusCode, why: impl Into<String>, remedy: &str) -> Self {
        Self {
            status,
            body: Problem {
                error: said(status),
                why: why.into(),
                remedy: remedy.to_owned(),
            },
        }
    }

    /// So many requests are under way already.
    pub(crate) fn busy() -> Self {
        let why = "too many requests at a time";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, why, "try again soon")
    }

    pub(crate) fn no_store() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "this steward looks after no such store",
            "GET /v1/stores lists them",
        )
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let (status, remedy) = match error.kind() {
            ErrorKind::Invalid => (StatusCode::BAD_REQUEST, "correct the request"),
            ErrorKind::NotFound => (StatusCode::NOT_FOUND, "list what is there"),
            ErrorKind::Conflict | ErrorKind::Fenced => (StatusCode::CONFLICT, "look again, then decide"),
            ErrorKind::Capacity => (StatusCode::INSUFFICIENT_STORAGE, "make room first"),
            ErrorKind::Denied => (StatusCode::FORBIDDEN, "check what the steward may do in etcd"),
            ErrorKind::Unsupported => (StatusCode::NOT_IMPLEMENTED, "use a release that can"),
            ErrorKind::Timeout => (StatusCode::GATEWAY_TIMEOUT, "try again"),
            _ => (
                StatusCode::SERVICE_UNAVAILABLE,
                "try again; /readyz says what cannot be reached",
            ),
        };
        Self::new(status, error.to_string(), remedy)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// A segment of a path, without its escapes.
pub(crate) fn decode(segment: &str) -> String {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            // A number may have a sign, and an escape may not: axum's own decoding knows none either.
            .filter(|hex| hex.iter().all(u8::is_ascii_hexdigit))
            .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn escapes_are_decoded_and_nonsense_is_kept() {
        assert_eq!(super::decode("run%2F7"), "run/7");
        assert_eq!(super::decode("100%"), "100%");
        assert_eq!(super::decode("%zz%4"), "%zz%4");
        assert_eq!(super::decode("%ff"), "\u{fffd}");
        assert_eq!(super::decode("%+a"), "%+a");
    }
}
