//! What is answered when something is refused.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use holdfast_core::{Error, ErrorKind};
use serde::Serialize;

/// A refusal: what, and what to do.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    body: Problem,
}

#[derive(Clone, Debug, Serialize)]
struct Problem {
    error: String,
    #[serde(rename = "do")]
    remedy: String,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, error: impl Into<String>, remedy: &str) -> Self {
        Self {
            status,
            body: Problem {
                error: error.into(),
                remedy: remedy.to_owned(),
            },
        }
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
    }
}
