//! Durations in settings, as people write them: a whole number and `us`, `ms`, `s`, `m` or `h`. Read is also a number of
//! seconds, which programs write.
//!
//! For `#[serde(with = "tensorhold_core::duration")]`; [`option`] for a duration that may be absent.

use std::fmt;
use std::time::Duration;

use serde::{Deserializer, Serializer, de};

/// The duration that a text says; none if it says none.
pub fn parse(text: &str) -> Option<Duration> {
    let units = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(units);
    let number = number.parse::<u64>().ok()?;
    match unit.trim_start() {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        "h" => number.checked_mul(3600).map(Duration::from_secs),
        _ => None,
    }
}

/// The text that says a duration, to the microsecond.
pub fn text(time: Duration) -> String {
    match time.as_micros() {
        whole if whole.is_multiple_of(1000) => format!("{}ms", whole / 1000),
        fraction => format!("{fraction}us"),
    }
}

/// Writes a duration.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(*time))
}

/// Reads a duration.
///
/// # Errors
/// If it is none. The error does not repeat it: it may be a secret in the wrong place.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_any(TextOrSeconds)
}

struct TextOrSeconds;

impl TextOrSeconds {
    fn or_refuse<E: de::Error>(time: Option<Duration>) -> Result<Duration, E> {
        time.ok_or_else(|| E::custom("this is not a duration: write 250ms, 5s, 2m, or a number of seconds"))
    }
}

impl de::Visitor<'_> for TextOrSeconds {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration, such as 250ms")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        Self::or_refuse(parse(text))
    }

    fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Duration, E> {
        Ok(Duration::from_secs(seconds))
    }

    fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Duration, E> {
        Self::or_refuse(Duration::try_from_secs_f64(seconds).ok())
    }
}

/// A duration, or none.
pub mod option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    struct Read(#[serde(with = "super")] Duration);

    /// Writes a duration, or none.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        time.map(super::text).serialize(serializer)
    }

    /// Reads a duration, or none.
    ///
    /// # Errors
    /// If it is neither.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Read>::deserialize(deserializer)?.map(|Read(time)| time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Times {
        #[serde(with = "super")]
        every: Duration,
        #[serde(with = "super::option")]
        at_most: Option<Duration>,
    }

    #[test]
    fn times_are_a_number_and_a_unit() {
        assert_eq!(parse("40us"), Some(Duration::from_micros(40)));
        assert_eq!(parse("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse("5 s"), Some(Duration::from_secs(5)));
        assert_eq!(parse("2m"), Some(Duration::from_secs(120)));
        assert_eq!(parse("6h"), Some(Duration::from_secs(6 * 3600)));
        for wrong in ["", "5", "s", "-1s", "1.5s", "1d", "9999999999999999999h"] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for at_most in [None, Some(Duration::from_micros(1)), Some(Duration::from_secs(90))] {
            let every = Duration::from_micros(1_500);
            let times = Times { every, at_most };
            let text = serde_json::to_string(&times).expect("written");
            assert!(text.contains(r#""every":"1500us""#), "{text}");
            assert_eq!(serde_json::from_str::<Times>(&text).expect("read"), times);
        }
        let seconds = serde_json::from_str::<Times>(r#"{"every": 0.2, "at_most": 3}"#).expect("seconds");
        assert_eq!(
            (seconds.every, seconds.at_most),
            (Duration::from_millis(200), Some(Duration::from_secs(3)))
        );
        for wrong in [r#""soon""#, "-1", "1e300", "true", "null"] {
            let error = serde_json::from_str::<Times>(&format!(r#"{{"every": {wrong}, "at_most": null}}"#));
            let error = error.expect_err(wrong).to_string();
            assert!(error.contains("250ms") && !error.contains("soon"), "{error}");
        }
    }
}
