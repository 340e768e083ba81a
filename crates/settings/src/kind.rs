//! What a value may be. Each kind has one form in JSON, whichever way a value is written: bytes are whole numbers, times
//! are numbers of seconds.

use std::time::Duration;

use serde_json::{Map, Value};
use tensorhold_core::duration;

/// The kind of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// Texts. As one text, they have commas between them.
    List,
    /// A list of addresses. There is at least one, and none ends with a slash.
    Addresses,
    /// Names and texts. As one text: `NAME=TEXT`, with commas between them.
    Pairs,
    /// A number of bytes.
    Bytes,
    /// A time.
    Duration,
    /// A whole number.
    Count,
    /// A part of a whole, between 0 and 1.
    Share,
    /// Yes or no.
    Switch,
    /// A secret, or a reference to one.
    Secret,
    /// A secret, or several by their names.
    Secrets,
    /// A path of a PEM file, a reference to its text, or that text.
    Pem,
    /// Tables, each with settings of its own; in a file only.
    Tables,
}

impl Kind {
    /// Its name in the reference.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::List | Self::Addresses => "list",
            Self::Pairs => "pairs",
            Self::Bytes => "bytes",
            Self::Duration => "duration",
            Self::Count => "count",
            Self::Share => "share",
            Self::Switch => "switch",
            Self::Secret | Self::Secrets => "secret",
            Self::Pem => "PEM",
            Self::Tables => "tables",
        }
    }

    /// What may be written, for an error and for the reference.
    pub fn expected(self) -> &'static str {
        match self {
            Self::Text => "a text",
            Self::List => "a list of texts, or one text with commas between them",
            Self::Addresses => "at least one address: a list, or one text with commas between them",
            Self::Pairs => "names and texts; in a variable NAME=TEXT, with commas between them",
            Self::Bytes => "a number of bytes, or a text such as \"512MiB\" or \"1.5GiB\"",
            Self::Duration => "a text such as \"200ms\", \"5s\", \"2m\" or \"1h\", or a number of seconds",
            Self::Count => "a whole number",
            Self::Share => "a number between 0 and 1",
            Self::Switch => "true or false",
            Self::Secret => {
                "\"file:PATH\" or \"env:NAME\"; or the secret, in a variable or in a file that only its owner can read"
            }
            Self::Secrets => "a secret, or a table of names and secrets",
            Self::Pem => "a path, \"env:NAME\", or the text in a variable or in a file that only its owner can read",
            Self::Tables => "tables, in a file only",
        }
    }

    /// The value in JSON; none if it is of another kind.
    pub(crate) fn read(self, value: &Value) -> Option<Value> {
        match (self, value) {
            (Self::Text | Self::Secret | Self::Pem | Self::Secrets, Value::String(_)) => Some(value.clone()),
            (Self::Secrets | Self::Pairs, Value::Object(fields)) => {
                fields.values().all(Value::is_string).then(|| value.clone())
            }
            (Self::List, Value::String(text)) => Some(parts(text).into()),
            (Self::List, Value::Array(items)) => items.iter().all(Value::is_string).then(|| value.clone()),
            (Self::Addresses, _) => {
                let list = Self::List.read(value)?;
                let trimmed = |one: &Value| Some(one.as_str()?.trim().trim_end_matches('/').to_owned());
                let addresses = list.as_array()?.iter().map(trimmed).collect::<Option<Vec<_>>>()?;
                (!addresses.is_empty() && !addresses.contains(&String::new())).then(|| addresses.into())
            }
            (Self::Bytes, Value::String(text)) => parse_bytes(text).map(Value::from),
            (Self::Bytes | Self::Count, Value::Number(number)) => number.as_u64().map(Value::from),
            (Self::Duration, Value::String(text)) => Some(duration::parse(text)?.as_secs_f64().into()),
            (Self::Duration, Value::Number(number)) => {
                Some(Duration::try_from_secs_f64(number.as_f64()?).ok()?.as_secs_f64().into())
            }
            (Self::Share, Value::Number(number)) => number
                .as_f64()
                .filter(|share| (0.0..=1.0).contains(share))
                .map(Value::from),
            (Self::Switch, Value::Bool(_)) => Some(value.clone()),
            _ => None,
        }
    }

    /// The same for a value that is text: that of a variable, a flag, or a default of the table.
    pub(crate) fn read_text(self, text: &str) -> Option<Value> {
        let text = text.trim();
        let number = || serde_json::from_str(text).ok().filter(Value::is_number);
        let value = match self {
            Self::Count | Self::Share => number()?,
            Self::Duration => number().unwrap_or_else(|| text.into()),
            Self::Switch => match text.to_ascii_lowercase().as_str() {
                "1" | "true" => true.into(),
                "0" | "false" => false.into(),
                _ => return None,
            },
            Self::Pairs => {
                let pair = |pair: String| {
                    let (name, value) = pair.split_once('=')?;
                    Some((name.trim().to_owned(), Value::from(value.trim())))
                };
                Value::Object(parts(text).into_iter().map(pair).collect::<Option<Map<_, _>>>()?)
            }
            _ => text.into(),
        };
        self.read(&value)
    }

    /// Whether values of this kind are not shown, unless they are references.
    pub fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::Secrets | Self::Pem)
    }

    /// Whether a value of this kind is the secret itself.
    pub(crate) fn is_literal(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Secrets, Value::Object(fields)) => fields.values().any(|field| Self::Secret.is_literal(field)),
            (Self::Secret | Self::Secrets, Value::String(text)) => !is_reference(text),
            // A path has no line breaks.
            (Self::Pem, Value::String(text)) => text.contains("-----BEGIN") || text.contains('\n'),
            _ => false,
        }
    }
}

fn is_reference(text: &str) -> bool {
    text.starts_with("file:") || text.starts_with("env:")
}

fn parts(text: &str) -> Vec<String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

/// A number of bytes as people write it: `1073741824`, `512MiB`, `1.5 GiB`, `2G` (binary, too). None if it is none.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let unit = unit.trim().to_ascii_lowercase();
    let power = match unit.as_str() {
        "" | "b" => 0,
        _ => {
            let letter = unit.trim_end_matches('b').trim_end_matches('i');
            1 + "kmgtpe".find(letter).filter(|_| letter.len() == 1)?
        }
    };
    let scale = 1_u64 << (10 * power);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u64 = whole.parse().ok()?;
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let parts = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let fraction: u128 = fraction.parse().ok()?;
    let fraction = u64::try_from(fraction * u128::from(scale) / parts).ok()?;
    whole.checked_mul(scale)?.checked_add(fraction)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "`json!` unwraps inside")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_way_of_writing_a_value_has_one_form() {
        for (kind, written, read) in [
            (Kind::Duration, json!("200ms"), json!(0.2)),
            (Kind::Duration, json!(5), json!(5.0)),
            (Kind::Duration, json!(0.25), json!(0.25)),
            (Kind::Bytes, json!("2GiB"), json!(2_u64 << 30)),
            (Kind::Bytes, json!(4096), json!(4096)),
            (
                Kind::Addresses,
                json!("http://a:1/, http://b:2"),
                json!(["http://a:1", "http://b:2"]),
            ),
            (Kind::List, json!(["verl/"]), json!(["verl/"])),
            (Kind::Secrets, json!({"a": "env:A"}), json!({"a": "env:A"})),
        ] {
            assert_eq!(kind.read(&written), Some(read), "{written}");
        }
        for (kind, text, read) in [
            (Kind::Duration, "1.5", json!(1.5)),
            (Kind::Duration, "2m", json!(120.0)),
            (Kind::Count, "7", json!(7)),
            (Kind::Switch, "True", json!(true)),
            (Kind::Switch, "0", json!(false)),
            (Kind::Pairs, "MC_A=1, MC_B=x=y", json!({"MC_A": "1", "MC_B": "x=y"})),
            (Kind::Share, "0.85", json!(0.85)),
            (Kind::List, "", json!([])),
        ] {
            assert_eq!(kind.read_text(text), Some(read), "{text}");
        }
    }

    #[test]
    fn a_value_of_another_kind_is_none() {
        for (kind, written) in [
            (Kind::Duration, json!("5")),
            (Kind::Duration, json!(-1)),
            (Kind::Duration, json!("soon")),
            (Kind::Bytes, json!(-1)),
            (Kind::Bytes, json!(1.5)),
            (Kind::Count, json!("7")),
            (Kind::Count, json!(-7)),
            (Kind::Share, json!(1.5)),
            (Kind::Switch, json!("true")),
            (Kind::Switch, json!(1)),
            (Kind::Text, json!(1)),
            (Kind::Addresses, json!("")),
            (Kind::Addresses, json!(["http://a:1", ""])),
            (Kind::Pairs, json!({"a": 1})),
            (Kind::Tables, json!("x")),
        ] {
            assert_eq!(kind.read(&written), None, "{kind:?} {written}");
        }
        assert_eq!(Kind::Switch.read_text("yes"), None);
        assert_eq!(Kind::Count.read_text("many"), None);
        assert_eq!(Kind::Pairs.read_text("MC_A"), None);
    }

    #[test]
    fn written_bytes_are_read() {
        for (text, count) in [
            ("0", 0),
            ("1024", 1024),
            ("1KiB", 1024),
            ("1.5 GiB", 3 << 29),
            ("2G", 2 << 30),
            ("512mib", 512 << 20),
            ("7 b", 7),
        ] {
            assert_eq!(parse_bytes(text), Some(count), "{text}");
        }
        for text in [
            "",
            "GiB",
            "1.GiB",
            "-1",
            "1 XiB",
            "99999999999EiB",
            "1.5.5K",
            "1 Ki B",
            "16EiB",
        ] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
