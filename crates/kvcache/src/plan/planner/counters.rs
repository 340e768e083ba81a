//! The planner's counters: for operators, and for tests that must know which cases they have reached.

/// How often each case occurred, since the planner was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations issued.
    pub issued: u64,
    /// Operations that have ended.
    pub acknowledged: u64,
    /// Completions of operations that were not in flight.
    pub ignored: u64,
    /// Events that did not fit the state of their request.
    pub refused: u64,
    /// Pages that the ranks agreed on, over all prefetches and write-backs.
    pub agreed: u64,
    /// Pages published in the host layer.
    pub published: u64,
    /// Pages that were freed because their key was already indexed.
    pub duplicates: u64,
    /// Queries sent to L3.
    pub queries: u64,
    /// Queries not sent: there was too little to gain.
    pub not_asked: u64,
    /// Prefetches begun.
    pub prefetches: u64,
    /// Prefetches not begun: too few hits.
    pub declined: u64,
    /// Of `declined`: exactly as many hits as the threshold.
    pub at_threshold: u64,
    /// Prefetches not begun: no host pages were available.
    pub no_room: u64,
    /// The host match was longer when the prefetch was scheduled than when L3 was asked.
    pub grew_before_schedule: u64,
    /// The host match was shorter when the prefetch was scheduled than when L3 was asked.
    pub shrank_before_schedule: u64,
    /// The host match was longer when the prefetch completed than when it was scheduled.
    pub grew_before_completion: u64,
    /// The index was cleared before the prefetch completed.
    pub cleared_before_completion: u64,
    /// A prefetch ended when its request had already gone on or was aborted.
    pub orphaned: u64,
    /// Deadlines that passed.
    pub deadlines: u64,
    /// Load-backs that did not load all pages.
    pub load_backs_cut: u64,
    /// Write-backs that were not begun because no host pages were available.
    pub not_written_back: u64,
    /// Backups that did not store all pages.
    pub backups_cut: u64,
    /// Prompts whose length is a multiple of the page size.
    pub exact_multiples: u64,
}
