//! Bytes that say whose they are: a tensor is filled from a seed, and its reader computes the same bytes again.
//!
//! This is the proofs' own check, beside the store's checksums: every word depends on seed and position, so bytes of
//! another sample, of another generation, of a neighbour or of an earlier user of the memory are all wrong.

use anyhow::Result;
use tensorhold_core::{Digest, SampleId};
use tensorhold_engine::Span;

/// How many bytes are made or compared at a time.
const PIECE: usize = 1 << 20;

/// The seed of a sample that is put only once, from its name.
pub(crate) fn seed_of(sample: &SampleId) -> u64 {
    let [low @ .., _, _, _, _, _, _, _, _] = Digest::of(sample.as_str().as_bytes()).as_u128().to_le_bytes();
    u64::from_le_bytes(low)
}

fn word(seed: u64, at: u64) -> u64 {
    let mixed = (seed ^ at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29) ^ at
}

fn piece(bytes: &mut [u8], seed: u64, from: usize) {
    let first = from as u64 / 8;
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, first + at as u64).to_le_bytes()[..chunk.len()]);
    }
}

/// Fills memory with the bytes of a seed.
pub(crate) fn fill(span: &Span, seed: u64) -> Result<()> {
    let mut bytes = vec![0; PIECE.min(span.len())];
    for from in (0..span.len()).step_by(PIECE) {
        let bytes = &mut bytes[..PIECE.min(span.len() - from)];
        piece(bytes, seed, from);
        span.write(from, bytes)?;
    }
    Ok(())
}

/// Whether memory holds exactly the bytes of a seed.
pub(crate) fn holds(span: &Span, seed: u64) -> Result<bool> {
    let len = PIECE.min(span.len());
    let (mut seen, mut expected) = (vec![0; len], vec![0; len]);
    for from in (0..span.len()).step_by(PIECE) {
        let len = PIECE.min(span.len() - from);
        span.read(from, &mut seen[..len])?;
        piece(&mut expected[..len], seed, from);
        if seen[..len] != expected[..len] {
            return Ok(false);
        }
    }
    Ok(true)
}
