//! Where the pages of the host pool lie in memory.

use tensorhold_core::{Error, Result};
use tensorhold_engine::{Region, Span};

use crate::plan::HostPage;

/// One part of every page: part `n` of page `p` is the `len` bytes at `offset + p * stride` of `region`.
#[derive(Clone, Debug)]
pub struct PartLayout {
    /// Registered memory.
    pub region: Region,
    /// Where the part of page 0 begins.
    pub offset: usize,
    /// The distance from one page's part to the next page's.
    pub stride: usize,
    /// The bytes of the part.
    pub len: usize,
}

/// The host pool's memory: how many pages there are, and the parts of each. A pool that keeps whole pages has one part;
/// one that keeps keys and values apart has two; one that keeps layers apart has two for each layer.
#[derive(Clone, Debug)]
pub struct HostMemoryMap {
    pages: u32,
    parts: Vec<PartLayout>,
}

impl HostMemoryMap {
    /// Checks that every part of every page lies inside its region and that no page's part reaches into the next one's.
    pub fn new(pages: u32, parts: Vec<PartLayout>) -> Result<Self> {
        const OPERATION: &str = "kv.host";
        if pages == 0 || parts.is_empty() {
            return Err(Error::invalid(OPERATION, "a pool needs at least one page and one part"));
        }
        for (at, part) in parts.iter().enumerate() {
            let last = (pages as usize - 1).checked_mul(part.stride);
            let end = last.and_then(|last| last.checked_add(part.offset)?.checked_add(part.len));
            let overlaps = pages > 1 && part.stride < part.len;
            if part.len == 0 || overlaps || end.is_none_or(|end| end > part.region.len()) {
                return Err(Error::invalid(
                    OPERATION,
                    "a part of the pages is empty, overlaps itself or leaves its region",
                )
                .with("part", at)
                .with("pages", pages)
                .with("region", part.region.len()));
            }
        }
        Ok(Self { pages, parts })
    }

    /// Whole pages, one after the other, in one region.
    pub fn contiguous(region: Region, page_bytes: usize) -> Result<Self> {
        let pages = region.len().checked_div(page_bytes).unwrap_or(0);
        let part = PartLayout {
            region,
            offset: 0,
            stride: page_bytes,
            len: page_bytes,
        };
        Self::new(u32::try_from(pages).unwrap_or(u32::MAX), vec![part])
    }

    /// How many pages there are.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// The bytes of one page.
    pub fn page_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len as u64).sum()
    }

    /// The memory of one page.
    pub fn parts(&self, page: HostPage) -> Result<Vec<Span>> {
        if page.0 >= self.pages {
            return Err(Error::invalid("kv.host", "there is no such page in the host pool")
                .with("page", page.0)
                .with("pages", self.pages));
        }
        let at = page.0 as usize;
        let span = |part: &PartLayout| {
            let from = part.offset + at * part.stride;
            part.region.span(from..from + part.len)
        };
        self.parts.iter().map(span).collect()
    }
}
