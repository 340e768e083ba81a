//! The names of stores, samples and tensors, each with its own type.
//!
//! Names come from outside (a training framework's sample ids, a model's tensor names), so almost any text is accepted
//! unchanged; [`crate::key`] escapes the characters that an engine's key cannot hold. Only three kinds of names, which
//! are never intended, are refused: an empty name, a name with control characters and a name longer than
//! [`MAX_NAME_BYTES`].

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::rng::Rng;

/// The longest name that is accepted, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 255;

fn checked_name(what: &'static str, text: &str) -> Result<Arc<str>> {
    let refuse =
        |why: &str| Err(Error::invalid("id.parse", format!("this {what} {why}")).with(what, text.escape_debug()));
    if text.is_empty() {
        return refuse("is empty; give it at least one character");
    }
    if text.len() > MAX_NAME_BYTES {
        return refuse("is longer than 255 bytes; shorten or hash it");
    }
    if text.chars().any(char::is_control) {
        return refuse("contains a control character; remove it");
    }
    Ok(Arc::from(text))
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl $name {
            /// Checks a name and wraps it.
            pub fn new(text: impl AsRef<str>) -> Result<Self> {
                checked_name($what, text.as_ref()).map(Self)
            }

            /// The name as it was given.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($name), &*self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().to_owned()
            }
        }
    )*};
}

names! {
    /// A store: the samples of one training job, or of several jobs that share them. Budgets and keys belong to a
    /// store.
    StoreId = "store id";
    /// A sample: what a producer makes and a trainer uses once (or once per epoch).
    SampleId = "sample id";
    /// One tensor of a sample.
    TensorName = "tensor name";
}

/// One physical incarnation of a sample id. A later incarnation has a larger number. There is no generation zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(NonZeroU64);

impl Generation {
    /// The generation with this number; `None` for zero.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Random bits in every key, so that no key is ever written twice, not even by two writers that believe they own the
/// same generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(u64);

impl Nonce {
    /// Draws a random nonce.
    pub fn draw(rng: &dyn Rng) -> Self {
        Self(rng.next_u64())
    }

    /// A nonce read back from a key or a record.
    pub const fn from_u64(bits: u64) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn names_take_what_people_use_and_refuse_what_cannot_be_meant() {
        for text in ["a", "run/3", "样本 7", "x,y", &"n".repeat(255)] {
            assert_eq!(SampleId::new(text).expect("taken").as_str(), text);
        }
        for text in ["", "a\nb", "a\0", &"n".repeat(256)] {
            assert_eq!(SampleId::new(text).expect_err("refused").kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn names_are_checked_on_the_way_in_from_json() {
        assert!(serde_json::from_str::<StoreId>("\"\"").is_err());
        assert_eq!(
            serde_json::from_str::<StoreId>("\"s\"").expect("taken"),
            StoreId::new("s").expect("taken")
        );
        assert_eq!(
            serde_json::to_string(&StoreId::new("s").expect("taken")).expect("json"),
            "\"s\""
        );
        assert!(serde_json::from_str::<Generation>("0").is_err());
    }
}
