//! Operations in flight, and the pages that each of them owns and pins until it is acknowledged.

use crate::plan::index::Pin;
use crate::plan::operation::{HostPage, Work};
use crate::plan::pool::OwnedPages;

/// An operation that was issued and not acknowledged.
#[derive(Debug)]
pub(crate) struct Flight {
    /// The request that it belongs to. The request may be gone; a turn is never used again.
    pub(crate) turn: u64,
    pub(crate) work: Work,
    pub(crate) holds: Holds,
}

/// What the operation releases when it is acknowledged, and only then (KV2, KV5).
#[derive(Debug)]
pub(crate) enum Holds {
    /// A query touches no page.
    Nothing,
    /// Fills `pages`, to be published below `anchor`.
    Prefetch { anchor: Pin, pages: OwnedPages<HostPage> },
    /// Reads `source`. The pages that it fills belong to the request, which waits.
    LoadBack { source: Pin },
    /// Reads `source`, fills `pages`, to be published below `anchor`.
    WriteBack {
        source: Pin,
        anchor: Pin,
        pages: OwnedPages<HostPage>,
    },
    /// Reads `source`. A flawed planner has none.
    Backup { source: Option<Pin> },
}

impl Holds {
    pub(crate) fn pins(&self) -> impl Iterator<Item = &Pin> {
        let (one, two) = match self {
            Self::Nothing => (None, None),
            Self::Prefetch { anchor, .. } => (Some(anchor), None),
            Self::LoadBack { source } => (Some(source), None),
            Self::WriteBack { source, anchor, .. } => (Some(source), Some(anchor)),
            Self::Backup { source } => (source.as_ref(), None),
        };
        one.into_iter().chain(two)
    }

    pub(crate) fn pages(&self) -> &[HostPage] {
        match self {
            Self::Prefetch { pages, .. } | Self::WriteBack { pages, .. } => pages.as_slice(),
            _ => &[],
        }
    }
}
