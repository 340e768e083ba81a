//! Where the chunks of a tensor and their tags lie.
//!
//! ```text
//! tensor   | chunk 0 | chunk 1 | chunk 2 | chunk 3 | 4 |
//! runs     | run: chunks 0..3            | run: 3..5   |          one object each; or one run for the whole tensor
//! sealed   | ciphertext 0, 1, 2 | tags 0, 1, 2 |    | ciphertext 3, 4 | tags 3, 4 |
//! ```

use std::num::NonZeroU64;

use tensorhold_core::{Error, Result};

use super::cipher::TAG_BYTES;

/// The default chunk size: large enough that the cost per chunk is negligible, small enough to stay in a core's cache.
pub const DEFAULT_CHUNK_BYTES: u32 = 1 << 20;
/// The smallest chunk size: tags then take 0.4 % of the plaintext.
pub const MIN_CHUNK_BYTES: u32 = 4 << 10;
/// The largest chunk size. It bounds the blocks per AEAD nonce.
pub const MAX_CHUNK_BYTES: u32 = 64 << 20;
/// The largest tensor that one key seals: 1 TiB.
pub const MAX_TENSOR_BYTES: u64 = 1 << 40;

/// How one tensor is cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    plain_len: u64,
    chunk_bytes: u32,
}

/// Neighbouring chunks of a tensor that are sealed into one piece of memory: an object, or the whole tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    first: u64,
    count: u64,
    offset: u64,
    plain_len: u64,
}

pub(super) fn check_chunk_bytes(chunk_bytes: u32) -> Result<()> {
    if (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk_bytes) {
        return Ok(());
    }
    Err(
        Error::invalid("seal.layout", "chunks have 4 KiB to 64 MiB; 1 MiB is a good choice")
            .with("chunk_bytes", chunk_bytes),
    )
}

impl Layout {
    /// The layout of a tensor of `plain_len` bytes in chunks of `chunk_bytes`.
    pub fn new(plain_len: u64, chunk_bytes: u32) -> Result<Self> {
        check_chunk_bytes(chunk_bytes)?;
        if plain_len > MAX_TENSOR_BYTES {
            return Err(Error::invalid(
                "seal.layout",
                "a sealed tensor has at most 1 TiB; split it into several",
            )
            .with("bytes", plain_len));
        }
        Ok(Self { plain_len, chunk_bytes })
    }

    /// The tensor's bytes.
    pub fn plain_len(self) -> u64 {
        self.plain_len
    }

    /// The bytes of each chunk but the last.
    pub fn chunk_bytes(self) -> u32 {
        self.chunk_bytes
    }

    /// How many chunks there are; at least one.
    pub fn chunk_count(self) -> u64 {
        self.plain_len.div_ceil(u64::from(self.chunk_bytes)).max(1)
    }

    /// The bytes of one chunk; `None` if there is no such chunk.
    pub fn chunk_len(self, number: u64) -> Option<u64> {
        self.run(number, 1).map(Run::plain_len)
    }

    /// The sealed bytes of the whole tensor, in one run or in several.
    pub fn sealed_len(self) -> u64 {
        self.whole().sealed_len()
    }

    /// All chunks in one run.
    pub fn whole(self) -> Run {
        Run {
            first: 0,
            count: self.chunk_count(),
            offset: 0,
            plain_len: self.plain_len,
        }
    }

    /// `count` chunks from chunk `first` on; `None` if there are fewer, or `count` is zero.
    pub fn run(self, first: u64, count: u64) -> Option<Run> {
        let end = first.checked_add(count).filter(|&end| end <= self.chunk_count())?;
        let chunk_bytes = u64::from(self.chunk_bytes);
        let offset = first * chunk_bytes;
        (count > 0).then(|| Run {
            first,
            count,
            offset,
            plain_len: (end * chunk_bytes).min(self.plain_len) - offset,
        })
    }

    /// The tensor in runs of so many chunks; the last one has the rest.
    pub fn runs(self, chunks: NonZeroU64) -> impl Iterator<Item = Run> {
        let total = self.chunk_count();
        let starts = std::iter::successors(Some(0), move |first: &u64| first.checked_add(chunks.get()));
        starts
            .take_while(move |&first| first < total)
            .filter_map(move |first| self.run(first, chunks.get().min(total - first)))
    }
}

impl Run {
    /// The number of its first chunk.
    pub fn first(self) -> u64 {
        self.first
    }

    /// How many chunks it has.
    pub fn count(self) -> u64 {
        self.count
    }

    /// Where its plaintext begins in the tensor.
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// The bytes of its plaintext, and of its ciphertext.
    pub fn plain_len(self) -> u64 {
        self.plain_len
    }

    /// The bytes of its tags, which follow the ciphertext.
    pub fn tags_len(self) -> u64 {
        self.count * TAG_BYTES as u64
    }

    /// The bytes of both.
    pub fn sealed_len(self) -> u64 {
        self.plain_len + self.tags_len()
    }
}
