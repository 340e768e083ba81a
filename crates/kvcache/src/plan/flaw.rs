//! Deliberate bugs, for tests that must catch them. Without the feature `testing` there are none.

/// A bug that a planner like this one once had, or could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Prefetched pages are published from the start of the prompt, not from where the prefetch began.
    SuffixUnderWrongPrefix,
    /// A prefetch takes its keys from the end of the host match when L3 was asked, and its positions from the end of
    /// the host match now.
    HashesOfAnotherMatch,
    /// The pages of a backup are not pinned until it is acknowledged.
    BackupNotPinned,
    /// An aborted prefetch frees its pages at once.
    AbortFreesAtOnce,
    /// The largest count over the ranks is published.
    LargestOverRanks,
    /// A failed backup counts as a successful one.
    FailedBackupPersists,
    /// The anchor of a prefetch is not pinned.
    AnchorNotPinned,
    /// A request that waits for L3 waits for ever.
    NoDeadline,
}

#[cfg(feature = "testing")]
impl Flaw {
    /// All of them. Reviews found the first three in another planner.
    pub const ALL: [Flaw; 8] = [
        Self::SuffixUnderWrongPrefix,
        Self::HashesOfAnotherMatch,
        Self::BackupNotPinned,
        Self::AbortFreesAtOnce,
        Self::LargestOverRanks,
        Self::FailedBackupPersists,
        Self::AnchorNotPinned,
        Self::NoDeadline,
    ];
}
