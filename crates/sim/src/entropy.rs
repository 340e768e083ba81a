//! The operating system's randomness, as the seed has it.
//!
//! The standard library draws the keys of its hash maps with `getrandom`, and so does tokio for the order in which a
//! `select!` looks at its branches. Both would differ from run to run. One process runs one seed, because tokio counts in
//! a static variable how many generators it has made.

use std::sync::atomic::{AtomicU64, Ordering};

static SEED: AtomicU64 = AtomicU64::new(0);

/// What the randomness follows from.
pub(crate) fn set(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
}

/// Takes the place of the C library's function of this name.
///
/// # Safety
/// `buffer` must be valid for writes of `length` bytes, as for the C library's.
#[expect(
    unsafe_code,
    reason = "the name is the C library's, so that callers in other crates meet this one"
)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    let mut state = SEED.load(Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for at in 0..length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // SAFETY: the caller vouches for `length` bytes, so this one is among them.
        let byte = unsafe { buffer.add(at) };
        // SAFETY: as above.
        unsafe { byte.write(state.to_le_bytes()[3]) };
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}
