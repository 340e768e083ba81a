//! How a file lists its cases, and recognisable bytes.

use std::fmt;

use tensorhold_core::testing::{CaseResult, Failure, ensure};

/// The list of a file's cases: `name (setup) "the sentence of the contract";`.
macro_rules! cases {
    ($group:literal $($name:ident ($setup:expr) $about:literal;)*) => {
        pub(super) const CASES: &[$crate::testing::Case] = &[$(
            $crate::testing::Case {
                name: concat!($group, "::", stringify!($name)),
                about: $about,
                setup: $setup,
                run: $name,
            },
        )*];
    };
}

/// Bytes that follow from `seed` alone, differ between seeds, and differ between any two places of one pattern.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    const BLOCK: usize = 4096;
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xA5A5_5A5A_1234_5678;
    let mut tape = Vec::with_capacity(BLOCK.min(len + 8));
    while tape.len() < BLOCK.min(len) {
        tape.extend_from_slice(&next_word(&mut state));
    }
    // Every further block has a word of its own and a rotated copy of the first block: this way most of the work is
    // copying, and an unoptimised build of the suite is not slow.
    let mut bytes = Vec::with_capacity(len + 2 * BLOCK);
    while bytes.len() < len {
        let turn = (bytes.len() / BLOCK * 72) % tape.len();
        bytes.extend_from_slice(&next_word(&mut state));
        bytes.extend_from_slice(&tape[turn..]);
        bytes.extend_from_slice(&tape[..turn]);
    }
    bytes.truncate(len);
    bytes
}

/// The next eight bytes of SplitMix64: short, and good enough that two of its words never look alike.
fn next_word(state: &mut u64) -> [u8; 8] {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (word ^ (word >> 31)).to_le_bytes()
}

/// Reports the first place where two byte strings differ.
pub(super) fn same_bytes(what: impl fmt::Display, seen: &[u8], wanted: &[u8]) -> CaseResult {
    ensure!(
        seen.len() == wanted.len(),
        "{what}: {} bytes instead of {}",
        seen.len(),
        wanted.len()
    );
    if seen == wanted {
        return Ok(());
    }
    if let Some(at) = seen.iter().zip(wanted).position(|(seen, wanted)| seen != wanted) {
        let end = (at + 8).min(seen.len());
        return Err(Failure::new(format!(
            "{what}: byte {at} of {} is wrong: {:02x?} instead of {:02x?}",
            seen.len(),
            &seen[at..end],
            &wanted[at..end]
        )));
    }
    Ok(())
}
