//! Deliberate bugs, for tests that must catch them. Without the feature `testing` there are none.

/// A bug that a review found in another prefetcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// An attempt that could not be begun stays as it is: its object is stuck, and so are its waiters.
    FailedStaysTriggered,
    /// Time erases attempts in flight, so that an object gets a second one, and the waiters of the first are lost.
    TimeErasesInFlight,
    /// The progress of each promotion is looked up by itself, and at every opportunity.
    LookForEach,
    /// What was brought to memory may be evicted before it is read.
    NoLease,
}

#[cfg(feature = "testing")]
impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 4] = [
        Self::FailedStaysTriggered,
        Self::TimeErasesInFlight,
        Self::LookForEach,
        Self::NoLease,
    ];
}
