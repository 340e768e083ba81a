//! The operations of a plan, and their completions.
//!
//! Every operation names its pages as triples: the absolute page index in the prompt, the page or pages, and the key.
//! They travel together, so no reader of an operation has to count from an offset that other code captured (KV9).
//! Triples are in the order of their indices, without gaps; only a backup may have gaps.
//!
//! An operation gets exactly one terminal [`Completion`] from each rank (KV3), also if it failed, was refused or was
//! cancelled. Until then its pages belong to it and are not touched (KV2, KV5).

use std::fmt;

use super::key::PageKey;

/// The id of an operation. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub u64);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op{}", self.0)
    }
}

/// A page of the host pool, by its number in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPage(pub u32);

/// A page of the device pool, by its number in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePage(pub u32);

/// A key and its position in its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyAt {
    /// The absolute page index.
    pub index: u32,
    /// The key of that page.
    pub key: PageKey,
}

/// A host page, its key, and its position in its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostPageAt {
    /// The absolute page index.
    pub index: u32,
    /// The key of that page.
    pub key: PageKey,
    /// The page.
    pub host: HostPage,
}

/// A host page and a device page for the same content, its key, and its position in its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyAt {
    /// The absolute page index.
    pub index: u32,
    /// The key of that page.
    pub key: PageKey,
    /// The page in host memory.
    pub host: HostPage,
    /// The page in device memory.
    pub device: DevicePage,
}

/// The work of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Ask L3 which of these pages it has. `completed` counts the hits from the start without a gap.
    Query(Vec<KeyAt>),
    /// L3 → host. The host pages are empty and belong to the operation.
    Prefetch(Vec<HostPageAt>),
    /// Host → device. The host pages are pinned, the device pages belong to the request.
    LoadBack(Vec<CopyAt>),
    /// Device → host. The device pages are pinned, the host pages are empty and belong to the operation.
    WriteBack(Vec<CopyAt>),
    /// Host → L3. The host pages are pinned.
    Backup(Vec<HostPageAt>),
}

impl Work {
    /// How many pages it names.
    pub fn pages(&self) -> u32 {
        let pages = match self {
            Self::Query(keys) => keys.len(),
            Self::Prefetch(pages) | Self::Backup(pages) => pages.len(),
            Self::LoadBack(pages) | Self::WriteBack(pages) => pages.len(),
        };
        u32::try_from(pages).unwrap_or(u32::MAX)
    }

    /// Its kind, in one word.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Query(_) => "query",
            Self::Prefetch(_) => "prefetch",
            Self::LoadBack(_) => "load-back",
            Self::WriteBack(_) => "write-back",
            Self::Backup(_) => "backup",
        }
    }
}

/// Work to do, under an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// The id that its completion names.
    pub id: OperationId,
    /// The work.
    pub work: Work,
}

/// Why an operation completed fewer pages than it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// L3 did not have a page.
    Miss,
    /// A page's bytes or length did not match its key.
    Corrupt,
    /// There was no room for a page.
    Full,
    /// It did not end in time. The memory is not in use any more.
    TimedOut,
    /// It was cancelled. The memory is not in use any more.
    Cancelled,
    /// The queue was full; nothing was started.
    Refused,
    /// Anything else.
    Failed,
}

/// The one terminal event of an operation, as one rank saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// Which operation.
    pub operation: OperationId,
    /// How many pages from the start are done: filled, written, or (a query) present. Pages after the first one that is
    /// not done do not count, whatever their own result.
    pub completed: u32,
    /// Why some pages are not done, if so.
    pub failure: Option<Failure>,
}

impl Completion {
    /// The result that all ranks agree on: the smallest count (KV15), and the first failure in the order of the ranks.
    /// `None` if there is no completion, or if they are of different operations.
    pub fn agree(ranks: &[Completion]) -> Option<Completion> {
        let first = ranks.first()?;
        ranks
            .iter()
            .all(|rank| rank.operation == first.operation)
            .then(|| Completion {
                operation: first.operation,
                completed: ranks.iter().map(|rank| rank.completed).min().unwrap_or(0),
                failure: ranks.iter().find_map(|rank| rank.failure),
            })
    }
}
