//! Object keys: the only module that builds them or takes them apart.
//!
//! An [`ObjectKey`] is the key that an engine sees: any text that every engine call can carry. That includes foreign
//! keys: a sample that a serving engine wrote keeps the keys that the serving engine chose. A [`SampleKey`] holds the
//! parts of Tensorhold's own keys:
//!
//! ```text
//! {store}/{sample}/g{generation}-{nonce}/{tensor}
//! ```
//!
//! Every character of a name other than `A–Z a–z 0–9 . _ ~ : @ = + -` is percent-escaped. So a slash or a comma in a
//! sample id cannot be read as a separator, and two different samples never share a key.
//!
//! ```
//! use tensorhold_core::{Generation, Nonce, SampleKey};
//!
//! let key = SampleKey {
//!     store: "eagle".parse()?,
//!     sample: "run/3".parse()?,
//!     generation: Generation::new(12).ok_or("generations start at 1")?,
//!     nonce: Nonce::from_u64(0xbeef),
//!     tensor: "hidden_state".parse()?,
//! };
//! let object = key.to_object_key();
//! assert_eq!(object.as_str(), "eagle/run%2F3/g12-000000000000beef/hidden_state");
//! assert_eq!(SampleKey::parse(&object)?, key);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::{Generation, MAX_NAME_BYTES, Nonce, SampleId, StoreId, TensorName};

/// The longest key that is handed to an engine: room for three escaped names of the longest kind.
pub const MAX_KEY_BYTES: usize = 3 * (3 * MAX_NAME_BYTES) + 64;

/// The name of one object in an engine. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// Checks a key and wraps it.
    ///
    /// Refused, because some engine call could not carry it: an empty key, a key longer than [`MAX_KEY_BYTES`], a key
    /// with a control character, and a key with a comma. The engine's probe (the query without side effects) separates
    /// keys by commas and splits after unescaping, so a comma cannot be escaped.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let refuse =
            |why: &str| Err(Error::invalid("key.parse", format!("this key {why}")).with("key", text.escape_debug()));
        if text.is_empty() {
            return refuse("is empty");
        }
        if text.len() > MAX_KEY_BYTES {
            return refuse("is too long; 2,359 bytes are the most");
        }
        if text.contains(',') {
            return refuse("contains a comma, which the engine's probe takes for a separator; choose another key");
        }
        if text.chars().any(char::is_control) {
            return refuse("contains a control character; choose another key");
        }
        Ok(Self(Arc::from(text)))
    }

    /// The key as the engine sees it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectKey({:?})", &*self.0)
    }
}

impl FromStr for ObjectKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<String> for ObjectKey {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<ObjectKey> for String {
    fn from(key: ObjectKey) -> Self {
        key.0.as_ref().to_owned()
    }
}

/// The parts of one of Tensorhold's own object keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleKey {
    /// The store that the sample belongs to.
    pub store: StoreId,
    /// The sample.
    pub sample: SampleId,
    /// Which incarnation of the sample.
    pub generation: Generation,
    /// Random bits that make the key unique for ever.
    pub nonce: Nonce,
    /// Which of the sample's tensors.
    pub tensor: TensorName,
}

impl SampleKey {
    /// The key as an engine sees it.
    pub fn to_object_key(&self) -> ObjectKey {
        let mut text = String::with_capacity(96);
        escape_into(&mut text, self.store.as_str());
        text.push('/');
        escape_into(&mut text, self.sample.as_str());
        text.push_str("/g");
        text.push_str(&self.generation.to_string());
        text.push('-');
        text.push_str(&self.nonce.to_string());
        text.push('/');
        escape_into(&mut text, self.tensor.as_str());
        // This obeys the rules of ObjectKey by construction: escaped names hold neither commas nor control characters,
        // and the parts fit MAX_KEY_BYTES. The property test below checks this against ObjectKey::new.
        ObjectKey(Arc::from(text))
    }

    /// Parses a key into its parts. Fails with kind `Invalid` for a key that does not have this form, such as a key
    /// that a serving engine chose.
    pub fn parse(key: &ObjectKey) -> Result<Self> {
        Self::parse_text(key.as_str())
            .ok_or_else(|| Error::invalid("key.parse", "this is not a key of Tensorhold's own form").with("key", key))
    }

    /// The parts of the key of an object that belongs to a sample: of a tensor (`…/{tensor}`), or of one chunk of a
    /// tensor (`…/{tensor}/{n}`). `None` for any other key.
    pub fn of_object(key: &ObjectKey) -> Option<Self> {
        let text = key.as_str();
        Self::parse_text(text).or_else(|| {
            let (tensor, chunk) = text.rsplit_once('/')?;
            // As in a key, each number has exactly one text.
            let number: u64 = chunk.parse().ok()?;
            (number.to_string() == chunk).then(|| Self::parse_text(tensor))?
        })
    }

    fn parse_text(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (store, sample, incarnation, tensor) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let (generation, nonce) = incarnation.strip_prefix('g')?.split_once('-')?;
        let key = Self {
            store: StoreId::new(unescape(store)?).ok()?,
            sample: SampleId::new(unescape(sample)?).ok()?,
            generation: Generation::new(generation.parse().ok()?)?,
            nonce: Nonce::from_u64(u64::from_str_radix(nonce, 16).ok()?),
            tensor: TensorName::new(unescape(tensor)?).ok()?,
        };
        // Each key has exactly one text: "g007", upper-case hex and needless escapes are not keys of Tensorhold.
        (key.to_object_key().as_str() == text).then_some(key)
    }
}

/// Which writer's key space an object's key lies in, judged by the form of the key alone.
///
/// A physical key belongs to one live generation of one store. For Tensorhold's own keys that follows from their form: no
/// other writer may own, adopt or remove them. Any other key belongs to the writer that chose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpace {
    /// Keys of the samples of some store: `{store}/{sample}/g{generation}-{nonce}/…`.
    Samples,
    /// Keys of KV pages: `kv/…`.
    Pages,
    /// Any other key: its writer chose it.
    Foreign,
}

/// The prefix of the keys of all KV pages.
pub const PAGES_PREFIX: &str = "kv/";

impl KeySpace {
    /// The key space of a key. A key that only looks like a sample's (needless escapes, more segments) counts as a
    /// sample's: refusing a strange key is better than mistaking it for another store's key.
    pub fn of(key: &ObjectKey) -> Self {
        let is_incarnation = |segment: &str| {
            let numbers = segment.strip_prefix('g').and_then(|rest| rest.split_once('-'));
            numbers.is_some_and(|(generation, nonce)| {
                !generation.is_empty()
                    && generation.bytes().all(|byte| byte.is_ascii_digit())
                    && nonce.len() == 16
                    && nonce.bytes().all(|byte| byte.is_ascii_hexdigit())
            })
        };
        let text = key.as_str();
        if text.split('/').nth(2).is_some_and(is_incarnation) {
            Self::Samples
        } else if text.starts_with(PAGES_PREFIX) {
            Self::Pages
        } else {
            Self::Foreign
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._~:@=+-".contains(&byte)
}

/// Escapes a name into one segment of a key, without slashes, commas or any other character that could be mistaken for
/// a separator.
pub fn escape(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    escape_into(&mut text, name);
    text
}

/// Appends the escaped form of a name (see [`escape`]) to a text.
pub fn escape_into(text: &mut String, name: &str) {
    if name.bytes().all(is_plain) {
        text.push_str(name);
        return;
    }
    for byte in name.bytes() {
        if is_plain(byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _infallible: fmt::Result = write!(text, "%{byte:02X}");
        }
    }
}

/// The name behind a segment made by [`escape`]; `None` for any other text.
pub fn unescape(text: &str) -> Option<String> {
    if text.bytes().all(is_plain) {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    let name = String::from_utf8(bytes).ok()?;
    // Each name has exactly one escaped form: a segment that is escaped differently, or not at all, was not made by
    // Tensorhold.
    (escape(&name) == text).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_segment_that_escape_would_not_make_names_nothing() {
        assert_eq!(unescape("run%2F3").as_deref(), Some("run/3"));
        for other in ["a b", "a,b", "%2f", "%41", "%+1", "%", "%2", "%FF", "é"] {
            assert_eq!(unescape(other), None, "{other}");
        }
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z0-9_]{1,20}",
            "[^\\p{Cc}]{1,60}",
            Just("/,%".repeat(85)),
            Just("\u{10FFFF}".repeat(63))
        ]
        .prop_filter("within the limit", |text| text.len() <= MAX_NAME_BYTES)
    }

    proptest! {
        #[test]
        fn keys_of_our_own_read_back_and_keep_the_rules(
            store in name(), sample in name(), tensor in name(), generation in 1..=u64::MAX, nonce in any::<u64>(),
        ) {
            let key = SampleKey {
                store: StoreId::new(store)?,
                sample: SampleId::new(sample)?,
                generation: Generation::new(generation).expect("not zero"),
                nonce: Nonce::from_u64(nonce),
                tensor: TensorName::new(tensor)?,
            };
            let object = key.to_object_key();
            prop_assert_eq!(&ObjectKey::new(object.as_str())?, &object);
            prop_assert_eq!(&SampleKey::parse(&object)?, &key);
            prop_assert_eq!(SampleKey::of_object(&object), Some(key.clone()));
            for (chunk, ours) in [("0", true), ("7", true), ("07", false), ("", false), ("x", false), ("1/2", false)] {
                let object = ObjectKey::new(format!("{object}/{chunk}"))?;
                prop_assert_eq!(SampleKey::of_object(&object), ours.then(|| key.clone()), "chunk {}", chunk);
            }
            prop_assert_eq!(KeySpace::of(&object), KeySpace::Samples);
            prop_assert_eq!(KeySpace::of(&ObjectKey::new(format!("{object}/7"))?), KeySpace::Samples, "a chunk");
        }

        #[test]
        fn no_text_makes_parsing_panic_or_lie(text in "[a-g0-9%/ -]{1,40}") {
            let object = ObjectKey::new(&text)?;
            if let Ok(key) = SampleKey::parse(&object) {
                prop_assert_eq!(key.to_object_key(), object);
            }
        }
    }

    #[test]
    fn foreign_and_sloppy_keys_are_not_ours() {
        for text in [
            "a/b/c",
            "s/x/g1/hidden",
            "s/x/g0-0000000000000001/t",
            "s/x/g01-0000000000000001/t",
            "s/x/g1-1/t",
            "s/x/g1-000000000000000A/t",
            "s/%78/g1-0000000000000001/t",
            "s/x/g1-0000000000000001/t/more",
            "s//g1-0000000000000001/t",
        ] {
            assert!(
                SampleKey::parse(&ObjectKey::new(text).expect("a key")).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn keys_of_others_are_told_from_our_own() {
        let space = |text: &str| KeySpace::of(&ObjectKey::new(text).expect("a key"));
        for text in [
            "s/x/g1-0000000000000001/t",
            "s/x/g1-000000000000000A/t/0",
            "kv/x/g1-0000000000000001/t",
        ] {
            assert_eq!(space(text), KeySpace::Samples, "{text}");
        }
        for text in ["kv/00ff/t0p0c0", "kv/tag/00ff/g0"] {
            assert_eq!(space(text), KeySpace::Pages, "{text}");
        }
        for text in [
            "run/sample/g3/hidden",
            "x:a",
            "kv",
            "s/x/g1-1/t",
            "s/x/g-0000000000000001/t",
        ] {
            assert_eq!(space(text), KeySpace::Foreign, "{text}");
        }
    }

    #[test]
    fn keys_that_no_engine_call_could_carry_are_refused() {
        for text in ["", "a,b", "a\tb", "a\0", &"k".repeat(MAX_KEY_BYTES + 1)] {
            assert!(ObjectKey::new(text).is_err(), "{text:?}");
        }
        assert_eq!(MAX_KEY_BYTES, 2359, "the message of ObjectKey::new names this number");
    }
}
