//! Altering the destination of a get.

use tensorhold_core::Result;

use crate::types::Transfer;

/// How many bytes are copied out and back in at once; bounds the buffer on the stack.
const PIECE: usize = 4096;

/// Alters `len` bytes from `at` on, counted over all buffers, so that each of them differs from its old value.
pub(super) fn alter(transfer: &Transfer, at: u64, len: u64) -> Result<()> {
    let (mut skip, mut left) = (at, len);
    for part in &transfer.parts {
        let size = part.len() as u64;
        if skip >= size {
            skip -= size;
            continue;
        }
        let here = left.min(size - skip);
        // Both are at most the length of a part, which is a usize.
        let (from, here) = (usize::try_from(skip).unwrap_or(0), usize::try_from(here).unwrap_or(0));
        let mut piece = [0; PIECE];
        for start in (from..from + here).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(from + here - start)];
            part.read(start, piece)?;
            for byte in piece.iter_mut() {
                *byte ^= 0xA5;
            }
            part.write(start, piece)?;
        }
        skip = 0;
        left -= here as u64;
        if left == 0 {
            break;
        }
    }
    Ok(())
}
