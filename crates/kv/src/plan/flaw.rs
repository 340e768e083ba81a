//! Deliberate bugs, for tests that must see them caught. Without the feature `testing` there are none.

/// A way in which a planner like this one was once wrong, or could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// Prefetched pages are published from the start of the prompt, not from where the prefetch began.
    SuffixUnderWrongPrefix,
    /// A prefetch takes its keys from where the host match ended when L3 was asked, and its places from where it ends now.
    HashesOfAnotherMatch,
    /// The pages of a backup are not held until it is acknowledged.
    BackupNotPinned,
    /// An aborted prefetch gives its pages back at once.
    AbortFreesAtOnce,
    /// The largest count over the ranks is published.
    LargestOverRanks,
    /// A backup that failed counts as one that did not.
    FailedBackupPersists,
    /// The anchor of a prefetch is not held.
    AnchorNotPinned,
    /// A request that waits for L3 waits for ever.
    NoDeadline,
}

#[cfg(feature = "testing")]
impl Flaw {
    /// All of them. The first three are those that reviews have found in another planner.
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
