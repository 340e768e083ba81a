//! Copies past the processor's caches.
//!
//! A plain store fetches the line that it writes to, which is a read of main memory for nothing if all of the line is overwritten.
//! A non-temporal store of a whole line does not, and pushes nothing out of the cache that will be used again.
#![expect(
    unsafe_code,
    reason = "writes to memory that no Rust reference may point to, by instructions that Rust has no other name for"
)]

/// Copies `from` to `to`.
///
/// # Safety
/// As many bytes as `from` has must be valid for writes at `to`, and the two must not overlap.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy(from: &[u8], to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    const PART: usize = size_of::<__m128i>();

    // Only whole lines are written past the cache: parts of one would each go to main memory by themselves.
    let head = to.align_offset(LINE).min(from.len());
    let (head, rest) = from.split_at(head);
    let (lines, tail) = rest.as_chunks::<LINE>();
    // SAFETY: the caller vouches for as many bytes as `from` has.
    unsafe {
        std::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
    }
    let mut at = to.wrapping_add(head.len());
    for line in lines {
        for part in 0..LINE / PART {
            let (from, to) = (line.as_ptr().wrapping_add(part * PART), at.wrapping_add(part * PART));
            // SAFETY: SSE2 is part of every x86-64 processor. The 16 bytes are inside `line`, which need not be aligned.
            let bytes = unsafe { _mm_loadu_si128(from.cast()) };
            // SAFETY: inside what the caller vouches for, and aligned, since `at` is at the beginning of a line.
            unsafe {
                _mm_stream_si128(to.cast(), bytes);
            }
        }
        at = at.wrapping_add(LINE);
    }
    // SAFETY: SSE2, as above. These stores are not ordered with others: without the fence, a thread that is told of the bytes
    // could read old ones.
    unsafe {
        _mm_sfence();
    }
    // SAFETY: as for the head.
    unsafe {
        std::ptr::copy_nonoverlapping(tail.as_ptr(), at, tail.len());
    }
}

/// Copies `from` to `to`.
///
/// # Safety
/// As many bytes as `from` has must be valid for writes at `to`, and the two must not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy(from: &[u8], to: *mut u8) {
    // SAFETY: the caller vouches for it.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_copies_what_it_is_given_and_nothing_else() {
        let bytes: Vec<u8> = (0_u8..=250).cycle().take(1000).collect();
        for at in [0, 1, 15, 16, 63, 64, 65] {
            for len in [0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 640, 900] {
                let mut to = vec![255; 1000];
                let place = to[at..at + len].as_mut_ptr();
                // SAFETY: the place has `len` bytes, and they are not those of `bytes`.
                unsafe {
                    super::copy(&bytes[3..3 + len], place);
                }
                assert_eq!(&to[at..at + len], &bytes[3..3 + len], "{len} bytes at {at}");
                assert!(
                    to[..at].iter().chain(&to[at + len..]).all(|byte| *byte == 255),
                    "{len} bytes at {at}"
                );
            }
        }
    }
}
