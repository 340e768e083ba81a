//! Store keys: 32 secret bytes under a name.
//!
//! The bytes live in one place on the heap and are wiped when the key is dropped; only the key derivation makes a copy,
//! and wipes it. The input (text, a file, a variable) is wiped too. No error repeats its input: it might be the key.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

/// The length of a store key.
pub const KEY_BYTES: usize = 32;

/// The longest key id. Shorter than any text form of a key, so that a key cannot be taken for an id.
const MAX_ID_BYTES: usize = 32;

/// The most bytes that are read of a key file: more than any key file has.
const MAX_FILE_BYTES: u64 = 1024;

/// The public name of a store key, such as `2026-11`. It is part of every description that was sealed with the key.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId(Arc<str>);

impl KeyId {
    /// Checks and takes an id: 1 to 32 letters, digits, dots, dashes and underscores.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if text.is_empty() || text.len() > MAX_ID_BYTES || !text.bytes().all(plain) {
            return Err(Error::invalid(
                "seal.key_id",
                "a key id has 1 to 32 letters, digits, dots, dashes or underscores (and is not the key itself)",
            ));
        }
        Ok(Self(Arc::from(text)))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({:?})", &*self.0)
    }
}

impl FromStr for KeyId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl TryFrom<String> for KeyId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> Self {
        id.0.as_ref().to_owned()
    }
}

pub(super) type Secret = Zeroizing<[u8; KEY_BYTES]>;

/// A secret with its id. Make one with `head -c 32 /dev/urandom | base64`.
pub struct StoreKey {
    id: KeyId,
    secret: Box<Secret>,
}

impl StoreKey {
    /// The key of these 32 bytes. Wiping them afterwards is up to the caller.
    pub fn from_bytes(id: KeyId, bytes: &[u8]) -> Result<Self> {
        let mut secret = Box::new(Secret::default());
        if bytes.len() != KEY_BYTES {
            return Err(refusal(&id, "a key has exactly 32 bytes").with("bytes", bytes.len()));
        }
        secret.copy_from_slice(bytes);
        if secret.iter().all(|&byte| byte == secret[0]) {
            return Err(refusal(
                &id,
                "this key is one byte 32 times over; make one with `head -c 32 /dev/urandom | base64`",
            ));
        }
        Ok(Self { id, secret })
    }

    /// The key that is written as 64 hex digits or as base64 (standard or URL-safe, with padding or without). White
    /// space around it is ignored.
    pub fn from_text(id: KeyId, text: &str) -> Result<Self> {
        let text = text.trim_ascii().as_bytes();
        let mut bytes = Zeroizing::new([0; KEY_BYTES + 4]);
        let length = match text.len() {
            64 => decode_hex(text, bytes.as_mut_slice()),
            43 | 44 => decode_base64(text, bytes.as_mut_slice()),
            _ => None,
        };
        match length.and_then(|length| bytes.get(..length)) {
            Some(bytes) => Self::from_bytes(id, bytes),
            None => Err(refusal(
                &id,
                "a key is written as 64 hex digits or as 44 characters of base64; this text is neither",
            )),
        }
    }

    /// The key in a file: exactly 32 raw bytes, or text as [`StoreKey::from_text`] takes it.
    pub fn from_file(id: KeyId, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let unreadable = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Invalid,
            };
            Error::new(kind, "seal.key", "the key file cannot be read")
                .with("key_id", &id)
                .with("file", path.display())
                .caused_by(error)
        };
        // The whole capacity at once: a buffer that grows would leave copies behind.
        let mut contents = Zeroizing::new(Vec::with_capacity(2 * 1024));
        let file = File::open(path).map_err(unreadable)?;
        file.take(MAX_FILE_BYTES)
            .read_to_end(&mut contents)
            .map_err(unreadable)?;
        if contents.len() == KEY_BYTES {
            return Self::from_bytes(id, &contents).map_err(|error| error.with("file", path.display()));
        }
        // Bytes that are not text are no key either; as empty text they are refused with the right advice.
        let text = std::str::from_utf8(&contents).unwrap_or_default();
        Self::from_text(id, text).map_err(|error| error.with("file", path.display()))
    }

    /// The key in an environment variable, as text.
    pub fn from_env(id: KeyId, variable: &str) -> Result<Self> {
        match std::env::var(variable).map(Zeroizing::new) {
            Ok(text) => Self::from_text(id, &text).map_err(|error| error.with("variable", variable)),
            // The cause is left out: it may hold the variable's value.
            Err(_) => Err(Error::new(
                ErrorKind::NotFound,
                "seal.key",
                "this environment variable is not set, or is not text; set it to the key",
            )
            .with("key_id", &id)
            .with("variable", variable)),
        }
    }

    /// Its public name.
    pub fn id(&self) -> &KeyId {
        &self.id
    }

    /// The secret bytes, for a purpose other than sealing samples. Nothing here uses the same bytes for both.
    pub fn expose(&self) -> &[u8; KEY_BYTES] {
        &self.secret
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreKey({:?})", self.id.as_str())
    }
}

fn refusal(id: &KeyId, why: &str) -> Error {
    Error::invalid("seal.key", why).with("key_id", id)
}

fn decode_hex(text: &[u8], into: &mut [u8]) -> Option<usize> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, _) = text.as_chunks::<2>();
    for (byte, &[high, low]) in into.iter_mut().zip(pairs) {
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(pairs.len())
}

fn decode_base64(text: &[u8], into: &mut [u8]) -> Option<usize> {
    let url_safe = text.iter().any(|byte| b"-_".contains(byte));
    let alphabet = if url_safe {
        &alphabet::URL_SAFE
    } else {
        &alphabet::STANDARD
    };
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    // The cause of a failure is left out: it repeats a character of the key.
    GeneralPurpose::new(alphabet, config).decode_slice(text, into).ok()
}
