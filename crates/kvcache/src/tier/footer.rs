//! The footer behind a page's bytes in its object, and how a page is verified.
//!
//! An object is the page's parts, one after the other, and then 64 bytes (numbers are little-endian):
//!
//! | at | bytes | content |
//! |---|---|---|
//! | 0 | 8 | `THKVPAGE` |
//! | 8 | 4 | the version of this table, 1 |
//! | 12 | 4 | zero |
//! | 16 | 8 | the page's length |
//! | 24 | 16 | XXH3-128 of the object's key |
//! | 40 | 16 | XXH3-128 of the 40 bytes before this and of the page's bytes |
//! | 56 | 8 | zero |
//!
//! The checksum includes the key, so a good page under another page's key is refused like any other wrong page. It is a
//! defence against accidents, not against an attacker, who can forge it by writing to the engine. Sealed pages (module
//! `seal`), whose footer is version 2, protect against that.
//!
//! Registered memory is shared with code outside of Rust, and peers may write to it at any time, also to a frame. So no
//! reference into it is made: it is copied, a piece at a time, into a small buffer in the processor's nearest cache and
//! hashed there. Main memory is read once, and the bytes that were hashed are the bytes that are used. The hash is the
//! one of [`Digest`].

use std::fmt;

use tensorhold_core::digest::Hasher;
use tensorhold_core::{Digest, ObjectKey, Result};
use tensorhold_engine::Span;

/// The length of a footer.
pub const FOOTER_BYTES: usize = 64;

pub(super) const MAGIC: [u8; 8] = *b"THKVPAGE";
const VERSION: u32 = 1;
/// The offset of the checksum in the footer. The checksum covers the bytes before it.
pub(super) const CHECKSUM_AT: usize = 40;
/// The size of the copy buffer: it fits the nearest cache together with the hasher's state.
const PIECE: usize = 16 << 10;

/// What is wrong with an object that has the right length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageDefect {
    /// It does not end with a footer: it is not an object of a page store, or the end of the page is damaged.
    NotAPage,
    /// It is the page of another key.
    OtherKey,
    /// Its bytes differ from those that were put: torn, flipped, or of several pages.
    Bytes,
    /// In a sealed store: it was not sealed under this name with the tier's key. Planted, altered, or another page.
    Seal,
}

impl fmt::Display for PageDefect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAPage => "not a page",
            Self::OtherKey => "the page of another key",
            Self::Bytes => "the bytes do not match their checksum",
            Self::Seal => "not sealed under this name with the tier's key",
        })
    }
}

/// The length of all parts together.
pub(super) fn length_of(parts: &[Span]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

/// A footer without its checksum.
fn head_of(key: &ObjectKey, parts: &[Span]) -> [u8; FOOTER_BYTES] {
    let mut footer = [0; FOOTER_BYTES];
    footer[..8].copy_from_slice(&MAGIC);
    footer[8..12].copy_from_slice(&VERSION.to_le_bytes());
    footer[16..24].copy_from_slice(&length_of(parts).to_le_bytes());
    footer[24..CHECKSUM_AT].copy_from_slice(&Digest::of(key.as_str().as_bytes()).as_u128().to_le_bytes());
    footer
}

/// The footer of the page in `parts`.
pub(super) fn footer_of(key: &ObjectKey, parts: &[Span]) -> Result<[u8; FOOTER_BYTES]> {
    let mut footer = head_of(key, parts);
    let checksum = checksum_of(&footer[..CHECKSUM_AT], parts)?;
    footer[CHECKSUM_AT..56].copy_from_slice(&checksum);
    Ok(footer)
}

/// What is wrong with the page in `parts`, if anything, judged by the footer that came with it.
pub(super) fn defect_of(key: &ObjectKey, parts: &[Span], footer: &[u8; FOOTER_BYTES]) -> Result<Option<PageDefect>> {
    let head = head_of(key, parts);
    if let Some(defect) = defect_of_head(footer, &head) {
        return Ok(Some(defect));
    }
    let checksum = checksum_of(&head[..CHECKSUM_AT], parts)?;
    Ok((footer[CHECKSUM_AT..56] != checksum).then_some(PageDefect::Bytes))
}

fn defect_of_head(footer: &[u8; FOOTER_BYTES], head: &[u8; FOOTER_BYTES]) -> Option<PageDefect> {
    if footer[..24] != head[..24] || footer[56..] != head[56..] {
        Some(PageDefect::NotAPage)
    } else if footer[24..CHECKSUM_AT] != head[24..CHECKSUM_AT] {
        Some(PageDefect::OtherKey)
    } else {
        None
    }
}

fn checksum_of(head: &[u8], parts: &[Span]) -> Result<[u8; 16]> {
    let mut hasher = Hasher::new();
    hasher.update(head);
    each_piece(parts, |part, from, _, piece| {
        part.read(from, piece)?;
        hasher.update(piece);
        Ok(())
    })?;
    Ok(hasher.finish().as_u128().to_le_bytes())
}

/// Copies the page in `parts` into one contiguous `object`, followed by its footer.
pub(super) fn gather(key: &ObjectKey, parts: &[Span], object: &Span) -> Result<()> {
    let mut footer = head_of(key, parts);
    let mut hasher = Hasher::new();
    hasher.update(&footer[..CHECKSUM_AT]);
    let end = each_piece(parts, |part, from, at, piece| {
        part.read(from, piece)?;
        hasher.update(piece);
        object.write(at, piece)
    })?;
    footer[CHECKSUM_AT..56].copy_from_slice(&hasher.finish().as_u128().to_le_bytes());
    object.write(end, &footer)
}

/// Copies a page out of one contiguous `object`, and returns what is wrong with it, if anything. The bytes that are
/// hashed are the bytes that are copied: each piece is read out of the object once.
pub(super) fn scatter(key: &ObjectKey, object: &Span, parts: &[Span]) -> Result<Option<PageDefect>> {
    let head = head_of(key, parts);
    let mut footer = [0; FOOTER_BYTES];
    object.read(object.len().saturating_sub(FOOTER_BYTES), &mut footer)?;
    if let Some(defect) = defect_of_head(&footer, &head) {
        return Ok(Some(defect));
    }
    let mut hasher = Hasher::new();
    hasher.update(&head[..CHECKSUM_AT]);
    each_piece(parts, |part, from, at, piece| {
        object.read(at, piece)?;
        hasher.update(piece);
        part.write(from, piece)
    })?;
    let checksum = hasher.finish().as_u128().to_le_bytes();
    Ok((footer[CHECKSUM_AT..56] != checksum).then_some(PageDefect::Bytes))
}

/// Visits a page in pieces that fit the nearest cache. `visit` gets the part, the offset in the part, the offset in the
/// page, and the buffer for the piece. Returns the length of the page.
fn each_piece(parts: &[Span], mut visit: impl FnMut(&Span, usize, usize, &mut [u8]) -> Result<()>) -> Result<usize> {
    let mut memory = [0; PIECE];
    let mut at = 0;
    for part in parts {
        let mut from = 0;
        while from < part.len() {
            let piece = &mut memory[..PIECE.min(part.len() - from)];
            visit(part, from, at, piece)?;
            from += piece.len();
            at += piece.len();
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use tensorhold_core::SystemClock;
    use tensorhold_engine::{EngineExt, MemoryCluster, MemoryConfig};

    #[test]
    fn a_footer_fits_its_key_its_bytes_and_nothing_else() {
        let engine = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new())).connect();
        let region = engine.allocate(100_000, Duration::from_secs(1)).expect("memory");
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        region.whole().write(0, &bytes).expect("fits");
        let parts = |cut: usize| {
            vec![
                region.span(0..cut).expect("inside"),
                region.span(cut..90_000).expect("inside"),
            ]
        };
        let (key, other) = (ObjectKey::new("a").expect("a key"), ObjectKey::new("b").expect("a key"));
        let footer = footer_of(&key, &parts(7)).expect("read");
        let mut digest = Hasher::new();
        digest.update(&footer[..CHECKSUM_AT]);
        digest.update(&bytes[..90_000]);
        assert_eq!(
            footer[CHECKSUM_AT..56],
            digest.finish().as_u128().to_le_bytes(),
            "the table above"
        );
        let defect =
            |key: &ObjectKey, parts: &[Span], footer: &[u8; FOOTER_BYTES]| defect_of(key, parts, footer).expect("read");
        assert_eq!(
            defect(&key, &parts(40_000), &footer),
            None,
            "how it is cut does not matter"
        );
        assert_eq!(defect(&other, &parts(7), &footer), Some(PageDefect::OtherKey));
        assert_eq!(
            defect(&key, &parts(7)[..1], &footer),
            Some(PageDefect::NotAPage),
            "another length"
        );
        for at in 0..FOOTER_BYTES {
            let mut altered = footer;
            altered[at] ^= 1;
            assert!(defect(&key, &parts(7), &altered).is_some(), "byte {at} of the footer");
        }
        for at in [0, 6, 7, 8, 32_767, 32_768, 89_999] {
            let whole = region.whole();
            whole.write(at, &[bytes[at] ^ 0x80]).expect("fits");
            assert_eq!(defect(&key, &parts(7), &footer), Some(PageDefect::Bytes), "byte {at}");
            whole.write(at, &[bytes[at]]).expect("fits");
        }
        assert_eq!(defect(&key, &parts(7), &footer), None);
    }
}
