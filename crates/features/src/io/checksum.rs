//! Checksums of registered memory.
//!
//! Registered memory is shared with code outside of Rust, so no reference into it is made. It is copied, a piece at a
//! time, into a small buffer that stays in the processor's L1 cache, and hashed there. The time goes into reading main
//! memory, and that is done once.

use tensorhold_core::digest::Hasher;
use tensorhold_core::{Digest, Error, ErrorKind, Result};
use tensorhold_engine::Span;

use crate::memory::spans::write_at;

/// The size of a piece: it fits the L1 cache beside the hasher's state.
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

/// Copies the bytes that have arrived in a stage to their destination, and returns their checksum. The checksum is that
/// of the copied bytes: each piece is read out of the stage once.
pub(crate) fn copy_summed(stage: &Span, parts: &[Span]) -> Result<Digest> {
    let mut hasher = Hasher::new();
    let mut piece = [0_u8; PIECE];
    let mut at = 0;
    while at < stage.len() {
        let len = PIECE.min(stage.len() - at);
        let piece = &mut piece[..len];
        stage.read(at, piece)?;
        hasher.update(piece);
        write_at(parts, at, piece)?;
        at += len;
    }
    Ok(hasher.finish())
}

/// Compares a chunk that has arrived with its recorded checksum.
pub(crate) fn verify(parts: &[Span], recorded: Digest) -> Result<()> {
    compare(digest_of(parts)?, recorded)
}

/// The same for a chunk that has arrived in a stage, while it is copied to its destination.
pub(crate) fn verify_copied(stage: &Span, parts: &[Span], recorded: Option<Digest>) -> Result<()> {
    let arrived = copy_summed(stage, parts)?;
    recorded.map_or(Ok(()), |recorded| compare(arrived, recorded))
}

fn compare(arrived: Digest, recorded: Digest) -> Result<()> {
    if arrived == recorded {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        "features.get",
        "the bytes that arrived are not those that were committed; nothing was handed out",
    )
    .with("committed", recorded)
    .with("arrived", arrived))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    use tensorhold_core::SystemClock;
    use tensorhold_engine::{EngineExt, MemoryCluster, MemoryConfig};

    #[test]
    fn it_is_the_checksum_that_everybody_makes() {
        let engine = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new())).connect();
        let bytes: Vec<u8> = (0_u32..200_000).map(|n| ((n * 131) >> 3).to_le_bytes()[0]).collect();
        let region = engine.allocate(bytes.len(), Duration::from_secs(1)).expect("memory");
        region.whole().write(0, &bytes).expect("fits");
        for len in [
            1, 3, 16, 17, 128, 129, 240, 241, 1024, 32_767, 32_768, 32_769, 100_000, 200_000,
        ] {
            let whole = region.span(0..len).expect("inside");
            assert_eq!(digest_of(&[whole]).expect("reads"), Digest::of(&bytes[..len]), "{len}");
            if len > 1 {
                let parts = [region.span(0..len / 2), region.span(len / 2..len)].map(|part| part.expect("inside"));
                assert_eq!(
                    digest_of(&parts).expect("reads"),
                    Digest::of(&bytes[..len]),
                    "{len} in two parts"
                );
            }
        }
        assert_eq!(digest_of(&[]).expect("reads"), Digest::of(&[]));
        let copy = engine.allocate(70_000, Duration::from_secs(1)).expect("memory");
        let parts = [copy.span(0..7).expect("inside"), copy.span(7..70_000).expect("inside")];
        let stage = region.span(50..70_050).expect("inside");
        assert_eq!(
            copy_summed(&stage, &parts).expect("copies"),
            Digest::of(&bytes[50..70_050])
        );
        assert!(copy.whole().to_vec() == bytes[50..70_050]);
    }
}
