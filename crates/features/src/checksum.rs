//! Checksums of registered memory.
//!
//! Registered memory is shared with code outside of Rust, so no reference into it is made: it is copied, a piece at a
//! time, into a small buffer that stays in the processor's nearest cache, and hashed there. Reading main memory is what
//! takes the time, and that is done once.

use holdfast_core::digest::Hasher;
use holdfast_core::{Digest, Result};
use holdfast_engine::Span;

/// Fits the nearest cache beside the hasher's state.
const PIECE: usize = 32 << 10;

/// The checksum of these bytes, one part after the other.
pub(crate) fn digest_of(parts: &[Span]) -> Result<Digest> {
    let mut hasher = Hasher::new();
    let mut piece = [0_u8; PIECE];
    for part in parts {
        let mut at = 0;
        while at < part.len() {
            let len = PIECE.min(part.len() - at);
            let piece = &mut piece[..len];
            part.read(at, piece)?;
            hasher.update(piece);
            at += len;
        }
    }
    Ok(hasher.finish())
}
