//! The checksum of committed bytes.
//!
//! XXH3 with 128 bits: several times faster than memory moves on the wire, and strong against accidents (short reads,
//! torn transfers, resurrected objects). It is no defence against an attacker; sealed stores authenticate instead. The
//! implementation detects at run time which vector instructions the processor has. The text form carries the
//! algorithm's name, so another algorithm can be added without ambiguity about old records.
//!
//! ```
//! use tensorhold_core::Digest;
//! use tensorhold_core::digest::Hasher;
//!
//! let mut hasher = Hasher::new();
//! hasher.update(b"hid");
//! hasher.update(b"den");
//! let digest = hasher.finish();
//! assert_eq!(digest, Digest::of(b"hidden"));
//! assert_eq!(digest.to_string().parse::<Digest>()?, digest);
//! # Ok::<(), tensorhold_core::Error>(())
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::error::Error;

const PREFIX: &str = "xxh3-128:";

/// The 128-bit XXH3 checksum of a run of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(u128);

impl Digest {
    /// The checksum of contiguous bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(bytes))
    }

    /// The raw value.
    pub const fn as_u128(self) -> u128 {
        self.0
    }

    /// A checksum read back from a record.
    pub const fn from_u128(value: u128) -> Self {
        Self(value)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.strip_prefix(PREFIX)
            .filter(|hex| hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
            .and_then(|hex| u128::from_str_radix(hex, 16).ok())
            .map(Self)
            .ok_or_else(|| {
                Error::invalid("digest.parse", "a digest reads xxh3-128: and 32 lower-case hex digits")
                    .with("text", text)
            })
    }
}

impl TryFrom<String> for Digest {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// Computes a [`Digest`] of bytes that arrive in pieces.
#[derive(Clone)]
pub struct Hasher(XxHash3_128);

impl Hasher {
    /// A hasher that has seen no bytes.
    pub fn new() -> Self {
        Self(XxHash3_128::new())
    }

    /// Takes in the next piece. How the bytes are cut into pieces does not matter.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The checksum of everything taken in so far.
    pub fn finish(&self) -> Digest {
        Digest(self.0.finish_128())
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hasher({})", self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_value_is_the_published_one() {
        // XXH3-128 of no bytes, from the reference implementation's test vectors.
        assert_eq!(Digest::of(b"").to_string(), "xxh3-128:99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "99aa06d3014798d86001c324468d497f",
            "xxh3-128:+9aa06d3014798d86001c324468d497f",
            "crc32c:00000000",
        ] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes in proptest::collection::vec(any::<u8>(), 0..2000), cut in 0usize..2000) {
            let (head, tail) = bytes.split_at(cut.min(bytes.len()));
            let mut hasher = Hasher::new();
            hasher.update(head);
            hasher.update(tail);
            prop_assert_eq!(hasher.finish(), Digest::of(&bytes));
        }

        #[test]
        fn the_text_form_reads_back(value in any::<u128>()) {
            let digest = Digest::from_u128(value);
            prop_assert_eq!(digest.to_string().parse::<Digest>().ok(), Some(digest));
        }
    }
}
