//! Sealed pages: encrypted, authenticated, and under names that reveal nothing.
//!
//! The engine's ports authenticate no client, and a page's name is a hash of its tokens. So any client that reaches the
//! ports can plant a page under a name that a prompt will ask for, and learn from names which prompts were served. A
//! store with a [`PageSeal`] puts ciphertext under keyed names.
//!
//! # The format
//! Everything follows from the tier's key, 32 secret bytes that all its members have:
//!
//! ```text
//! root        = HKDF-SHA256-Extract(salt: "tensorhold/page/1", secret: the tier's key)
//! derive(i)   = HKDF-SHA256-Expand(root, i, 32 bytes)
//! object name = "kv/sealed/" ‖ hex(HMAC-SHA256(key: derive("names"), the page's name))
//! page key    = derive("page" ‖ salt ‖ object name)
//! object      = AES-256-GCM(page key, nonce: 12 zero bytes, data: the footer's first 40 bytes, the page), footer
//! ```
//! The footer has 64 bytes, like that of a plain page (module `footer`), and another version; numbers are
//! little-endian:
//!
//! | at | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `THKVPAGE` |
//! | 8 | 4 | the version of this table, 2 |
//! | 12 | 4 | zero |
//! | 16 | 8 | the page's length |
//! | 24 | 16 | the salt: random, new for each put |
//! | 40 | 16 | the tag of AES-GCM |
//! | 56 | 8 | zero |
//!
//! # Invariants
//! - A page opens only under its own name. A page that was planted, altered or truncated, or that belongs to another
//!   name or to a plain store, is `Corrupt` or `WrongLength`. It is counted and removed, and no byte of it is in the
//!   caller's memory.
//! - No key is used for two pages: the salt has 128 random bits, and is part of the key, so a nonce of zeros is enough.
//! - Plaintext is never in registered memory: a page is sealed in private memory of this thread and its ciphertext is
//!   copied into a frame. On the way back the ciphertext is copied out first, so the bytes that are checked are the
//!   bytes that are used. So a sealed store has frames, and puts none of its pages directly.
//! - No secret is ever shown. The secrets that this module holds are wiped, or held by the cryptographic library.
//!
//! # What it does not do
//! - An attacker may bring back a former page of the same name: equal names mean equal pages, so it is the same page.
//! - Lengths and times stay visible, and so does the fact that two requests ask for the same page.
//! - Every holder of the key can plant pages. Give another key to tenants that should not share any.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use aws_lc_rs::{hmac, rand};
use tensorhold_core::{Error, ObjectKey, Result};
use tensorhold_engine::Span;
use zeroize::Zeroizing;

use super::footer::{CHECKSUM_AT, FOOTER_BYTES, MAGIC, PageDefect, length_of};
use super::page::Page;

/// The length of a tier's key.
pub const TIER_KEY_BYTES: usize = 32;

const OPERATION: &str = "kv.seal";
const ROOT_LABEL: &[u8] = b"tensorhold/page/1";
const VERSION: u32 = 2;
const SALT_AT: usize = 24;
const SALT_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
/// The prefix of the names of sealed objects. The hex digits of the keyed hash follow.
const SEALED_NAMES: &str = "kv/sealed/";

/// Seals and opens the pages of a tier, and hides their names. A clone is the same seal.
#[derive(Clone)]
pub struct PageSeal(Arc<Keys>);

struct Keys {
    root: Prk,
    names: hmac::Key,
}

struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn broken() -> Error {
    Error::internal(OPERATION, "the cryptographic library failed")
}

impl PageSeal {
    /// The seal of a tier with this key. The caller must wipe the key's bytes afterwards.
    pub fn new(key: &[u8; TIER_KEY_BYTES]) -> Result<Self> {
        let root = Salt::new(HKDF_SHA256, ROOT_LABEL).extract(key);
        let mut names = Zeroizing::new([0; TIER_KEY_BYTES]);
        let output = root.expand(&[b"names"], Bytes(names.len())).map_err(|_| broken())?;
        output.fill(names.as_mut_slice()).map_err(|_| broken())?;
        let names = hmac::Key::new(hmac::HMAC_SHA256, names.as_slice());
        Ok(Self(Arc::new(Keys { root, names })))
    }

    /// The name of a page's object.
    pub fn name(&self, page: &ObjectKey) -> Result<ObjectKey> {
        let tag = hmac::sign(&self.0.names, page.as_str().as_bytes());
        let mut name = String::with_capacity(SEALED_NAMES.len() + 2 * tag.as_ref().len());
        name.push_str(SEALED_NAMES);
        for byte in tag.as_ref() {
            let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
            name.extend([digit(byte >> 4), digit(byte & 15)]);
        }
        ObjectKey::new(name)
    }

    fn cipher(&self, object: &ObjectKey, salt: &[u8]) -> Result<LessSafeKey> {
        let info: [&[u8]; 3] = [b"page", salt, object.as_str().as_bytes()];
        let output = self.0.root.expand(&info, &AES_256_GCM).map_err(|_| broken())?;
        Ok(LessSafeKey::new(UnboundKey::from(output)))
    }

    /// Seals a page into a frame. The page's key must be the name of its object.
    pub(super) fn seal(&self, page: &Page, object: &Span) -> Result<()> {
        let mut footer = head_of(&page.parts);
        rand::fill(&mut footer[SALT_AT..SALT_AT + SALT_BYTES]).map_err(|_| broken())?;
        let cipher = self.cipher(&page.key, &footer[SALT_AT..SALT_AT + SALT_BYTES])?;
        let mut bytes = Zeroizing::new(vec![0; room(page, object)?]);
        let mut rest = bytes.as_mut_slice();
        for part in &page.parts {
            let (piece, behind) = split(rest, part.len())?;
            part.read(0, piece)?;
            rest = behind;
        }
        let data = Aad::from(&footer[..CHECKSUM_AT]);
        let tag = cipher
            .seal_in_place_separate_tag(nonce(), data, &mut bytes)
            .map_err(|_| broken())?;
        footer[CHECKSUM_AT..CHECKSUM_AT + TAG_BYTES].copy_from_slice(tag.as_ref());
        object.write(0, &bytes)?;
        object.write(bytes.len(), &footer)
    }

    /// Opens the object in a frame into the page's memory. Returns what is wrong with it, if anything, and then writes
    /// nothing.
    pub(super) fn open(&self, page: &Page, object: &Span) -> Result<Option<PageDefect>> {
        let mut bytes = Zeroizing::new(vec![0; room(page, object)?]);
        let mut footer = [0; FOOTER_BYTES];
        object.read(bytes.len(), &mut footer)?;
        let mut head = head_of(&page.parts);
        head[SALT_AT..CHECKSUM_AT].copy_from_slice(&footer[SALT_AT..CHECKSUM_AT]);
        if footer[..CHECKSUM_AT] != head[..CHECKSUM_AT] || footer[CHECKSUM_AT + TAG_BYTES..] != [0; 8] {
            return Ok(Some(PageDefect::NotAPage));
        }
        object.read(0, &mut bytes)?;
        let cipher = self.cipher(&page.key, &footer[SALT_AT..CHECKSUM_AT])?;
        let tag = &footer[CHECKSUM_AT..CHECKSUM_AT + TAG_BYTES];
        let data = Aad::from(&head[..CHECKSUM_AT]);
        if cipher
            .open_in_place_separate_tag(nonce(), data, tag, &mut bytes)
            .is_err()
        {
            return Ok(Some(PageDefect::Seal));
        }
        let mut rest = bytes.as_mut_slice();
        for part in &page.parts {
            let (piece, behind) = split(rest, part.len())?;
            part.write(0, piece)?;
            rest = behind;
        }
        Ok(None)
    }
}

/// The nonce of every page: zeros suffice, because each page has a key of its own.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// A footer without its salt and its tag.
fn head_of(parts: &[Span]) -> [u8; FOOTER_BYTES] {
    let mut footer = [0; FOOTER_BYTES];
    footer[..8].copy_from_slice(&MAGIC);
    footer[8..12].copy_from_slice(&VERSION.to_le_bytes());
    footer[16..SALT_AT].copy_from_slice(&length_of(parts).to_le_bytes());
    footer
}

/// The page's length, if its object has room for the page and its footer.
fn room(page: &Page, object: &Span) -> Result<usize> {
    let other = || Error::internal(OPERATION, "a page and its position in a frame differ in length");
    let length = object.len().checked_sub(FOOTER_BYTES).ok_or_else(other)?;
    if length as u64 == page.bytes() {
        Ok(length)
    } else {
        Err(other())
    }
}

fn split(bytes: &mut [u8], at: usize) -> Result<(&mut [u8], &mut [u8])> {
    let short = || Error::internal(OPERATION, "a page has more bytes than its parts");
    bytes.split_at_mut_checked(at).ok_or_else(short)
}

/// A clone is equal to its original; keys are not compared.
impl PartialEq for PageSeal {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for PageSeal {}

impl fmt::Debug for PageSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageSeal(hidden)")
    }
}

#[cfg(test)]
#[path = "seal_tests.rs"]
mod tests;
