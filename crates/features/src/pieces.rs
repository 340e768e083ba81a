//! Cutting a tensor's memory into the parts of its objects.

use holdfast_core::{Error, Result};
use holdfast_engine::Span;

/// A part of a span.
fn part(span: &Span, from: usize, len: usize) -> Result<Span> {
    let start = span.address() - span.region().address() + from;
    span.region().span(start..start + len)
}

/// Cuts memory that lies in `parts` into runs of `chunk_bytes`; the last is as long as the rest.
pub(crate) fn cut(parts: &[Span], chunk_bytes: u64) -> Result<Vec<Vec<Span>>> {
    let chunk = usize::try_from(chunk_bytes).unwrap_or(usize::MAX);
    if chunk == 0 {
        return Err(Error::internal("features.cut", "a chunk without bytes"));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    use holdfast_core::SystemClock;
    use holdfast_engine::{EngineExt, MemoryCluster, MemoryConfig};
    use proptest::prelude::*;

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
        }
    }
}
