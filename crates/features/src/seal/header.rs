//! The public data that is needed besides the key to open a sample. It is part of the sample's description.

use std::fmt;

use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Result, Rng};

use super::cipher::key_check;
use super::key::{KeyId, StoreKey};
use super::layout::check_chunk_bytes;

/// A version of the format. Each has keys of its own, so bytes that are sealed in one do not open as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// The first: it covers the bytes of tensors, but not what the description says of them.
    V1,
    /// The current one: a tag over the description, too.
    V2,
}

impl Scheme {
    /// The name in a header.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1 => "aes-256-gcm+hkdf-sha256/1",
            Self::V2 => "aes-256-gcm+hkdf-sha256/2",
        }
    }

    /// The label for a purpose that bytes are derived or authenticated for.
    pub(super) fn label(self, purpose: &str) -> String {
        let version = match self {
            Self::V1 => 1,
            Self::V2 => 2,
        };
        format!("tensorhold/seal/{version} {purpose}")
    }
}

/// How a sample was sealed. As JSON:
///
/// ```json
/// {"scheme":"aes-256-gcm+hkdf-sha256/2","key":"2026-11","check":"<16 hex>","salt":"<32 hex>","chunk_bytes":1048576}
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealHeader {
    scheme: String,
    key: KeyId,
    check: Hex<8>,
    salt: Hex<16>,
    chunk_bytes: u32,
}

impl SealHeader {
    /// A header with a new salt.
    pub(super) fn draw(scheme: Scheme, key: &StoreKey, chunk_bytes: u32, rng: &dyn Rng) -> Result<Self> {
        check_chunk_bytes(chunk_bytes)?;
        let mut salt = [0; 16];
        let (halves, _) = salt.as_chunks_mut::<8>();
        for half in halves {
            *half = rng.next_u64().to_be_bytes();
        }
        Ok(Self {
            scheme: scheme.name().to_owned(),
            key: key.id().clone(),
            check: Hex(key_check(scheme, key, &salt)?),
            salt: Hex(salt),
            chunk_bytes,
        })
    }

    /// An error if this release cannot open a sample with this header.
    pub(super) fn validate(&self) -> Result<()> {
        self.scheme()?;
        check_chunk_bytes(self.chunk_bytes)
    }

    /// The version of the format. `Unsupported` if this release does not know it.
    pub fn scheme(&self) -> Result<Scheme> {
        let known = [Scheme::V1, Scheme::V2];
        known
            .into_iter()
            .find(|scheme| scheme.name() == self.scheme)
            .ok_or_else(|| {
                let message =
                    "this sample is sealed in a way that this release does not know; open it with a later release";
                Error::new(ErrorKind::Unsupported, "seal.open", message).with("scheme", self.scheme.escape_debug())
            })
    }

    /// The id of the key that the sample is sealed with.
    pub fn key_id(&self) -> &KeyId {
        &self.key
    }

    /// The bytes of plaintext in each chunk but the last.
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    pub(super) fn check(&self) -> [u8; 8] {
        self.check.0
    }

    pub(super) fn salt(&self) -> &[u8; 16] {
        &self.salt.0
    }
}

/// Public bytes, written as lower-case hex.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Hex<const N: usize>(pub(super) [u8; N]);

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> From<Hex<N>> for String {
    fn from(hex: Hex<N>) -> Self {
        hex.to_string()
    }
}

impl<const N: usize> TryFrom<String> for Hex<N> {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        let refused = || Error::invalid("seal.header", "expected lower-case hex digits").with("digits", 2 * N);
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(refused()),
        };
        let (pairs, odd) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != N || !odd.is_empty() {
            return Err(refused());
        }
        let mut bytes = [0; N];
        for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(high)? << 4 | digit(low)?;
        }
        Ok(Self(bytes))
    }
}
