//! Cuts a tensor's memory into the parts of its objects, and copies in and out of it.

use tensorhold_core::{Error, Result};
use tensorhold_engine::Span;

/// A part of a span.
pub(crate) fn part(span: &Span, from: usize, len: usize) -> Result<Span> {
    let start = span.address() - span.region().address() + from;
    span.region().span(start..start + len)
}

/// Cuts memory that lies in `parts` into runs of `chunk_bytes`; the last is as long as the rest.
pub(crate) fn cut(parts: &[Span], chunk_bytes: u64) -> Result<Vec<Vec<Span>>> {
    let chunk = usize::try_from(chunk_bytes).unwrap_or(usize::MAX);
    if chunk == 0 {
        return Err(Error::internal("features.cut", "a chunk size is zero; this is a bug"));
    }
    let mut chunks: Vec<Vec<Span>> = Vec::new();
    let mut room = 0;
    for span in parts {
        let mut at = 0;
        while at < span.len() {
            if room == 0 {
                chunks.push(Vec::new());
                room = chunk;
            }
            let len = room.min(span.len() - at);
            if let Some(last) = chunks.last_mut() {
                last.push(part(span, at, len)?);
            }
            at += len;
            room -= len;
        }
    }
    Ok(chunks)
}

/// Copies out of memory that lies in `parts`, from `at` until `bytes` is full.
pub(crate) fn read_at(parts: &[Span], at: usize, bytes: &mut [u8]) -> Result<()> {
    let mut rest = bytes;
    each_piece(parts, at, rest.len(), |span, from, len| {
        let (piece, left) = std::mem::take(&mut rest).split_at_mut(len);
        rest = left;
        span.read(from, piece)
    })
}

/// Copies `bytes` into memory that lies in `parts`, from `at` on.
pub(crate) fn write_at(parts: &[Span], at: usize, bytes: &[u8]) -> Result<()> {
    write_by(Span::write, parts, at, bytes)
}

/// The same, past the processor's caches.
pub(crate) fn stream_at(parts: &[Span], at: usize, bytes: &[u8]) -> Result<()> {
    write_by(Span::write_streaming, parts, at, bytes)
}

fn write_by(write: fn(&Span, usize, &[u8]) -> Result<()>, parts: &[Span], at: usize, bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    each_piece(parts, at, rest.len(), |span, from, len| {
        let (piece, left) = rest.split_at(len);
        rest = left;
        write(span, from, piece)
    })
}

/// Clears memory.
pub(crate) fn wipe(parts: &[Span]) -> Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    for span in parts {
        for at in (0..span.len()).step_by(ZEROS.len()) {
            span.write(at, &ZEROS[..ZEROS.len().min(span.len() - at)])?;
        }
    }
    Ok(())
}

/// Visits `len` bytes from `at` on, piece by piece: the span, the offset in it, the length.
fn each_piece(
    parts: &[Span],
    at: usize,
    len: usize,
    mut visit: impl FnMut(&Span, usize, usize) -> Result<()>,
) -> Result<()> {
    let (mut skip, mut left) = (at, len);
    for span in parts {
        if left == 0 {
            break;
        }
        if skip >= span.len() {
            skip -= span.len();
            continue;
        }
        let here = left.min(span.len() - skip);
        visit(span, skip, here)?;
        (skip, left) = (0, left - here);
    }
    if left > 0 {
        return Err(Error::internal("features.copy", "a copy reaches beyond its memory")
            .with("at", at)
            .with("len", len));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;
    use tensorhold_core::SystemClock;
    use tensorhold_engine::{EngineExt, MemoryCluster, MemoryConfig};

    proptest! {
        #[test]
        fn nothing_is_lost_doubled_or_moved(lens in prop::collection::vec(1_usize..50, 0..6), chunk in 1_u64..70) {
            let engine = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new())).connect();
            let region = engine.allocate(1000, Duration::from_secs(1)).expect("memory");
            let bytes: Vec<u8> = (0_u32..1000).map(|n| u8::try_from(n % 251).expect("small")).collect();
            region.whole().write(0, &bytes).expect("fits");
            let mut at = 3;
            let mut parts = Vec::new();
            for len in lens {
                parts.push(region.span(at..at + len).expect("inside"));
                at += len + 5;
            }
            let all: Vec<u8> = parts.iter().flat_map(Span::to_vec).collect();
            let chunks = cut(&parts, chunk).expect("cuts");
            let texts: Vec<Vec<u8>> = chunks.iter().map(|c| c.iter().flat_map(Span::to_vec).collect()).collect();
            let expected: Vec<Vec<u8>> = all.chunks(usize::try_from(chunk).expect("small")).map(<[u8]>::to_vec).collect();
            prop_assert_eq!(texts, expected);

            let (from, to) = (all.len() / 3, all.len() - all.len() / 4);
            let mut some = vec![0; to - from];
            read_at(&parts, from, &mut some).expect("inside");
            prop_assert_eq!(&some, &all[from..to]);
            prop_assert!(read_at(&parts, from, &mut vec![0; all.len() - from + 1]).is_err());
            wipe(&parts).expect("clears");
            write_at(&parts, from, &some).expect("inside");
            let mut wiped = vec![0; all.len()];
            wiped[from..to].copy_from_slice(&some);
            prop_assert_eq!(parts.iter().flat_map(Span::to_vec).collect::<Vec<u8>>(), wiped);
            let around = region.whole().to_vec();
            prop_assert_eq!(&around[..3], &bytes[..3], "nothing beside it is touched");
        }
    }
}
