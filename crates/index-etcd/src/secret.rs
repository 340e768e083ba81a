//! Secrets: passwords and private keys, given literally or by reference.
//!
//! | form | what it is | when it is read | written to settings |
//! |---|---|---|---|
//! | `env:NAME` | the text of an environment variable | at every connection | as it is |
//! | `file:PATH` | the text in a file, without its last line break | at every connection | as it is |
//! | anything else | the secret itself | – | refused |
//!
//! Only the first two survive a rotation: the variable or file is read again whenever a connection is made.
//!
//! # What must hold
//! - No `Debug`, `Display`, error or log shows a secret, and settings that hold one are not written down. A reference
//!   may be shown: the place of a secret is not itself secret.
//! - A value of the wrong type is not repeated by the error that refuses it.
//! - This module wipes its secrets when they are dropped. The libraries that connect with a secret keep their own
//!   copies.

use std::fmt;
use std::path::Path;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensorhold_core::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

const OPERATION: &str = "etcd.config";
const PEM_BEGINS: &str = "-----BEGIN";

/// A secret, or a reference to it: see the module.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Form);

#[derive(Clone, PartialEq, Eq)]
enum Form {
    Literal(Zeroizing<String>),
    Env(String),
    File(String),
}

impl Secret {
    /// Takes a reference (`env:NAME`, `file:PATH`), or the secret itself.
    pub fn new(text: impl Into<String>) -> Self {
        let text = Zeroizing::new(text.into());
        Self(match text.split_once(':') {
            Some(("env", name)) => Form::Env(name.to_owned()),
            Some(("file", path)) => Form::File(path.to_owned()),
            _ => Form::Literal(text),
        })
    }

    /// The secret itself, even if it looks like a reference.
    pub fn literal(text: impl Into<String>) -> Self {
        Self(Form::Literal(Zeroizing::new(text.into())))
    }

    /// Whether this is the secret itself, which is neither shown nor written down.
    pub fn is_literal(&self) -> bool {
        matches!(self.0, Form::Literal(_))
    }

    /// The current value of the secret. No error repeats any of it.
    pub(crate) fn read(&self) -> Result<Zeroizing<String>> {
        let missing = |kind, message: &str| Error::new(kind, OPERATION, message).with("secret", self.to_string());
        match &self.0 {
            Form::Literal(text) => Ok(text.clone()),
            // The cause is left out: it may hold the variable's value.
            Form::Env(name) => std::env::var(name).map(Zeroizing::new).map_err(|_| {
                missing(
                    ErrorKind::Invalid,
                    "this environment variable is not set, or is not text; set it to the secret",
                )
            }),
            Form::File(path) => {
                let bytes = std::fs::read(Path::new(path)).map(Zeroizing::new);
                let bytes = bytes.map_err(|error| {
                    missing(
                        ErrorKind::Invalid,
                        "the file of a secret cannot be read; check its path and permissions",
                    )
                    .caused_by(error)
                })?;
                let text = std::str::from_utf8(&bytes)
                    .map_err(|_| missing(ErrorKind::Invalid, "the file of a secret is not UTF-8 text"))?;
                let line = text.strip_suffix('\n').unwrap_or(text);
                Ok(Zeroizing::new(line.strip_suffix('\r').unwrap_or(line).to_owned()))
            }
        }
    }
}

/// Shows a reference; of a literal secret, nothing.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Form::Literal(_) => f.write_str("(hidden)"),
            Form::Env(name) => write!(f, "env:{name}"),
            Form::File(path) => write!(f, "file:{path}"),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        if self.is_literal() {
            return Err(serde::ser::Error::custom(
                "a literal secret is not written to settings; give env:NAME or file:PATH instead, or pass it separately",
            ));
        }
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(TextOnly).map(Self::new)
    }
}

/// Certificates or a key in PEM: the text itself (it has a line that begins with `-----BEGIN`), `env:NAME`, `file:PATH`
/// or a path. Like a [`Secret`], it is read at every connection.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem(Secret);

impl Pem {
    /// Takes the text, or a reference to it.
    pub fn new(path_or_text: impl Into<String>) -> Self {
        let text = path_or_text.into();
        // There may be a preamble before it. A path has no line breaks and is shown in messages; a key must not be
        // shown.
        if text.contains(PEM_BEGINS) || text.contains('\n') {
            return Self(Secret::literal(text));
        }
        let secret = Secret::new(text);
        Self(match secret.0 {
            Form::Literal(path) => Secret(Form::File(path.as_str().to_owned())),
            form => Secret(form),
        })
    }

    pub(crate) fn read(&self) -> Result<Zeroizing<String>> {
        self.0.read()
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Serialize for Pem {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Pem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(TextOnly).map(Self::new)
    }
}

/// Accepts text and refuses everything else without repeating it; serde's own messages would repeat it. So it asks
/// serde for any type: a visitor that asks for a string never sees the number that is there.
struct TextOnly;

macro_rules! refuse {
    ($($visit:ident($given:ty)),*) => {$(
        fn $visit<E: de::Error>(self, _: $given) -> std::result::Result<String, E> {
            Err(E::custom("a secret is text: itself, env:NAME or file:PATH"))
        }
    )*};
}

impl<'de> Visitor<'de> for TextOnly {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text: the secret itself, env:NAME or file:PATH")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> std::result::Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E: de::Error>(self, text: String) -> std::result::Result<String, E> {
        Ok(text)
    }

    refuse!(
        visit_bool(bool),
        visit_i64(i64),
        visit_u64(u64),
        visit_f64(f64),
        visit_bytes(&[u8])
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_itself_or_where_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let by_file = Secret::new(format!("file:{}", path.display()));
        for (written, read) in [
            ("one", "one"),
            ("two\n", "two"),
            ("three\r\n", "three"),
            ("four\n\n", "four\n"),
        ] {
            std::fs::write(&path, written).expect("written");
            assert_eq!(by_file.read().expect("there").as_str(), read, "read anew each time");
        }
        assert_eq!(Secret::new("hunter:2").read().expect("itself").as_str(), "hunter:2");
        assert_eq!(Secret::literal("env:X").read().expect("itself").as_str(), "env:X");
        assert_eq!(
            Secret::new("env:PATH").read().ok().map(|text| text.to_string()),
            std::env::var("PATH").ok()
        );
        for missing in ["env:TENSORHOLD_NO_SUCH_VARIABLE", "file:/no/such/file"] {
            let error = Secret::new(missing).read().expect_err("missing");
            assert_eq!(
                (error.kind(), error.fact("secret")),
                (ErrorKind::Invalid, Some(missing))
            );
        }
    }

    #[test]
    fn a_pem_is_a_text_or_a_path() {
        assert_eq!(format!("{:?}", Pem::new("/ca.pem")), "file:/ca.pem");
        assert_eq!(format!("{:?}", Pem::new("file:ca.pem")), "file:ca.pem");
        assert_eq!(format!("{:?}", Pem::new("env:CA")), "env:CA");
        let text = "\n-----BEGIN CERTIFICATE-----\nx";
        assert_eq!(format!("{:?}", Pem::new(text)), "(hidden)");
        assert_eq!(Pem::new(text).read().expect("itself").as_str(), text);
    }

    #[test]
    fn references_are_written_and_secrets_are_not() {
        assert_eq!(
            serde_json::to_string(&Secret::new("env:A")).expect("text"),
            r#""env:A""#
        );
        assert_eq!(serde_json::to_string(&Pem::new("/a")).expect("text"), r#""file:/a""#);
        for refused in [
            serde_json::to_string(&Secret::new("hunter2")),
            serde_json::to_string(&Pem::new("-----BEGIN hunter2")),
        ] {
            let error = refused.expect_err("refused").to_string();
            assert!(error.contains("env:NAME") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn what_is_no_text_is_refused_and_not_repeated() {
        for given in [
            "987654321",
            "-5",
            "0.125",
            "true",
            r#"["hunter2"]"#,
            r#"{"a": "hunter2"}"#,
        ] {
            let error = serde_json::from_str::<Secret>(given).expect_err("no text").to_string();
            assert!(error.contains("env:NAME"), "{error}");
            assert!(!error.contains("hunter2") && !error.contains(given), "{error}");
        }
    }
}
