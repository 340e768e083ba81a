//! What a request gives: the names in its path, its body, and who sends it. Whatever cannot be used is refused in the same
//! form as everything else ([`Refused`]), and by a status that says whose fault it is: never by a 5xx.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tensorhold_custody::{GroupName, SessionId};
use tensorhold_features::Stage;

use super::answer::Refused;

/// The time in which a body must have arrived.
const BODY: Duration = Duration::from_secs(10);
/// The most characters of the place behind which a list goes on.
pub(super) const MOST_PLACE: usize = 4096;
/// The most items in one part of a list.
pub(super) const MOST_IN_PAGE: u32 = 1000;
/// The largest number that every reader of JSON reads exactly.
pub(super) const MOST_EXACT: u64 = (1 << 53) - 1;
/// The most digits of a length of time.
pub(super) const MOST_DIGITS: usize = 12;

/// The names in a path. A name that the path does not have is empty.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) store: String,
    pub(super) sample: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let names = Path::<BTreeMap<String, String>>::from_request_parts(parts, state).await;
        let Path(mut names) = names.map_err(|_| {
            let why = "a name in the path is no text (UTF-8), so nothing has it";
            Refused::new(StatusCode::NOT_FOUND, why, "escape the bytes of its UTF-8 with %")
        })?;
        let mut take = |name| names.remove(name).unwrap_or_default();
        Ok(Self {
            store: take("store"),
            sample: take("sample"),
        })
    }
}

/// The name of the token that let a request in; empty if none was needed.
#[derive(Clone, Debug, Default)]
pub(super) struct By(pub(super) String);

impl By {
    /// Why something was done.
    pub(super) fn why(&self) -> String {
        match self.0.as_str() {
            "" => "it was asked for over HTTP".to_owned(),
            name => format!("it was asked for over HTTP, with the token {name}"),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for By {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

/// A body in JSON.
#[derive(Debug)]
pub(super) struct Told<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Told<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        const REMEDY: &str = "see /v1/openapi.json";
        if !is_json(request.headers()) {
            let why = "the body is not said to be JSON";
            let remedy = "send it with `Content-Type: application/json`";
            return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, why, remedy));
        }
        let read = tokio::time::timeout(BODY, Bytes::from_request(request, state)).await;
        let read = read.map_err(|_| {
            let why = format!("the body had not arrived after {} s", BODY.as_secs());
            Refused::new(StatusCode::REQUEST_TIMEOUT, why, "send it at once")
        })?;
        let body = read.map_err(|refused| match refused.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let why = format!("the body is larger than {} KiB", super::MOST_BODY >> 10);
                Refused::new(StatusCode::PAYLOAD_TOO_LARGE, why, "send it in parts")
            }
            _ => Refused::new(
                StatusCode::BAD_REQUEST,
                "the body did not arrive whole",
                "send it again",
            ),
        })?;
        let told = serde_json::from_slice(&body);
        told.map(Self).map_err(|error| {
            Refused::new(
                StatusCode::BAD_REQUEST,
                format!("the body is not as described: {error}"),
                REMEDY,
            )
        })
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// Which part of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Page {
    pub(super) after: Option<String>,
    pub(super) limit: Option<u32>,
}

fn wrong(parameter: &str, why: impl std::fmt::Display) -> Refused {
    let why = format!("the query's `{parameter}` is wrong: {why}");
    Refused::new(StatusCode::BAD_REQUEST, why, "see /v1/openapi.json")
}

/// How many items are wanted.
pub(super) fn limit(given: Option<u32>) -> Result<usize, Refused> {
    let limit = given.unwrap_or(MOST_IN_PAGE);
    let fits = usize::try_from(limit)
        .ok()
        .filter(|_| (1..=MOST_IN_PAGE).contains(&limit));
    fits.ok_or_else(|| wrong("limit", format!("it is between 1 and {MOST_IN_PAGE}")))
}

/// The place behind which a list goes on.
pub(super) fn after(given: Option<String>) -> Result<Option<String>, Refused> {
    match given {
        Some(place) if place.chars().count() > MOST_PLACE => Err(wrong("after", "no list has given such a long place")),
        place => Ok(place),
    }
}

/// A time in milliseconds since 1970; the beginning if none is given.
pub(super) fn time(given: Option<u64>) -> Result<u64, Refused> {
    let time = Some(given.unwrap_or(0)).filter(|time| *time <= MOST_EXACT);
    time.ok_or_else(|| wrong("after", format!("it is at most {MOST_EXACT}")))
}

/// The name of a stage, in JSON and in queries.
pub(super) fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::ToFree => "to_free",
        stage => stage.name(),
    }
}

pub(super) fn stage(given: &str) -> Result<Stage, Refused> {
    let found = Stage::ALL.into_iter().find(|stage| stage_name(*stage) == given);
    found.ok_or_else(|| {
        let all: Vec<&str> = Stage::ALL.into_iter().map(stage_name).collect();
        wrong("state", format!("the states are {}", all.join(", ")))
    })
}

pub(super) fn group(given: &str) -> Result<GroupName, Refused> {
    GroupName::new(given).map_err(|error| wrong("group", error.message()))
}

pub(super) fn session(given: &str) -> Result<SessionId, Refused> {
    let digits = given.len() <= 16 && given.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = Some(given)
        .filter(|_| digits)
        .and_then(|text| u64::from_str_radix(text, 16).ok());
    let number = number.map(SessionId);
    number.ok_or_else(|| wrong("session", "a session is a hexadecimal number of up to 16 digits"))
}

/// A length of time: a whole number and `ms`, `s`, `m`, `h` or `d`.
pub(super) fn age(given: &str) -> Result<Duration, Refused> {
    let parsed = || {
        let (number, unit) = given.split_at(given.find(|c: char| !c.is_ascii_digit())?);
        let number: u64 = Some(number)
            .filter(|digits| digits.len() <= MOST_DIGITS)?
            .parse()
            .ok()?;
        let seconds = match unit {
            "ms" => return Some(Duration::from_millis(number)),
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return None,
        };
        number.checked_mul(seconds).map(Duration::from_secs)
    };
    parsed().ok_or_else(|| wrong("older_than", "write 500ms, 30s, 5m, 2h or 7d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_length_of_time_and_no_session_is_refused() {
        assert_eq!(age("500ms").ok(), Some(Duration::from_millis(500)));
        assert_eq!(age("7d").ok(), Some(Duration::from_secs(7 * 86_400)));
        for text in [
            "",
            "5",
            "s",
            "+5s",
            "5 s",
            "5s\n",
            "1.5s",
            "1234567890123d",
            "-1s",
            "٣s",
        ] {
            assert!(age(text).is_err(), "{text:?}");
        }
        assert_eq!(session("00ff").ok(), Some(SessionId(255)));
        for text in ["", "+1", "0x1", "00000000000000001", "g", "1\n"] {
            assert!(session(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn limits_and_places_have_bounds() {
        assert_eq!(limit(None).ok(), Some(1000));
        assert!(limit(Some(0)).is_err() && limit(Some(1001)).is_err() && limit(Some(1)).is_ok());
        assert!(after(Some("ä".repeat(MOST_PLACE))).is_ok(), "characters, not bytes");
        assert!(after(Some("x".repeat(MOST_PLACE + 1))).is_err());
    }

    #[test]
    fn a_state_has_one_name_and_a_time_is_exact() {
        for one in Stage::ALL {
            assert_eq!(stage(stage_name(one)).ok(), Some(one));
        }
        for text in ["", "to-free", "LIVE", "gone"] {
            assert!(stage(text).is_err(), "{text:?}");
        }
        assert_eq!(
            (time(None).ok(), time(Some(MOST_EXACT)).ok()),
            (Some(0), Some(MOST_EXACT))
        );
        assert!(time(Some(MOST_EXACT + 1)).is_err());
    }

    #[test]
    fn a_reason_names_the_token_if_there_is_one() {
        assert_eq!(By::default().why(), "it was asked for over HTTP");
        assert!(By("ops".to_owned()).why().ends_with("with the token ops"));
    }

    #[test]
    fn a_body_says_that_it_is_json() {
        let said = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(text));
            is_json(&headers)
        };
        assert!(said("application/json") && said("Application/JSON; charset=utf-8"));
        assert!(!said("text/plain") && !said("application/jsonp") && !said("") && !is_json(&HeaderMap::new()));
    }
}
