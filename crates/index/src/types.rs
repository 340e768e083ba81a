//! What goes into an intent and what comes out of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Generation, Nonce, ObjectKey, Result, SampleId};
use holdfast_custody::{GroupName, Live, Publication, Reason, Retired, Token, Version};

use tokio_util::sync::CancellationToken;

use crate::notes::Line;
use crate::record::Description;

/// A sample's physical incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleRef {
    /// The sample.
    pub sample: SampleId,
    /// Which incarnation.
    pub generation: Generation,
}

/// A wish to write a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The sample.
    pub sample: SampleId,
    /// Random part of its objects' keys.
    pub nonce: Nonce,
    /// How many bytes it will have at most.
    pub bytes: u64,
    /// What is about to be written: opaque to the index, handed to whoever frees it if it never commits.
    pub plan: String,
    /// Objects that another writer names and that are this sample's from now until it is freed. `Conflict` while another
    /// sample, or another generation, has one of them. At most [`MOST_CLAIMS`].
    pub claims: Vec<ObjectKey>,
}

/// The most objects that one reservation claims: with everything else they fit into one transaction.
pub const MOST_CLAIMS: usize = 64;

/// What a producer has written and wants to be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The reservation.
    pub sample: SampleRef,
    /// For whom it is.
    pub publication: Publication,
    /// Physical keys, tensor specs, checksums: opaque to the index, handed to every reader as it is.
    pub description: Vec<u8>,
}

/// A record as it was read, and when it had been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The record.
    pub record: T,
    /// The version at which it was last written.
    pub version: Version,
    /// What rides behind it.
    pub(crate) description: Description,
}

/// A lease on a sample, as its holder has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The sample.
    pub sample: SampleRef,
    /// The group that it was taken for; none for a plain read.
    pub group: Option<GroupName>,
    /// What to show when answering for it.
    pub token: Token,
    /// What the producer said about it.
    pub description: Arc<[u8]>,
    /// Whether it served nobody, because it did not reach its caller, or the engine did not have its bytes: nacked or
    /// released then, it costs its group no attempt.
    pub unserved: bool,
    /// The record as of the lease; lets the first answer go without another look.
    pub(crate) seen: Versioned<Live>,
    /// Where it is noted that it is held.
    pub(crate) note: Option<Line>,
}

/// On which terms a process takes samples.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// Cancelled when the caller has left: a wait for the next sample ends then, as at the deadline.
    pub cancelled: &'a CancellationToken,
    /// Whether the process can use a sample, by what its producer said about it. One that it cannot use is not taken: it
    /// stays as it is, for others.
    pub usable: &'a (dyn Fn(&SampleRef, &[u8]) -> Result<()> + Send + Sync),
    /// How long after the deadline the call may still wait to learn what became of a taking that was sent before it. A
    /// lease that nobody learns of costs its group an attempt when it runs out; one that is learned of late can be
    /// released as unserved. Nothing is begun in this time.
    pub settle: Duration,
}

impl fmt::Debug for Terms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms")
            .field("cancelled", self.cancelled)
            .field("settle", &self.settle)
            .finish_non_exhaustive()
    }
}

/// Any sample can be used.
pub(crate) fn any_sample(_: &SampleRef, _: &[u8]) -> Result<()> {
    Ok(())
}

/// What became of an answer (ack or nack).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// Other groups need the sample still, or it is retained.
    Live,
    /// It was the last one: the sample is retired, for this reason. If `free` it has no reader left, and whoever
    /// answers may remove its objects now.
    Retired {
        /// Why.
        reason: Reason,
        /// Whether its objects may be removed at once.
        free: bool,
    },
}

/// A retired sample whose objects are to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeTask {
    /// The sample.
    pub sample: SampleRef,
    /// What its producer said about it; none if it never committed.
    pub description: Option<Vec<u8>>,
    /// The record.
    pub record: Versioned<Retired>,
}

/// A part of the list of what is to be freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeList {
    /// What is to be freed.
    pub tasks: Vec<FreeTask>,
    /// Where the list goes on; none at its end.
    pub next: Option<ListPlace>,
    /// Records that could not be read and were moved into quarantine.
    pub quarantined: usize,
    /// Records of later releases, which were passed over.
    pub later: usize,
}

/// A place in a list: after the last record that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPlace(pub(crate) String);

/// A sample whose record can be read, while what its producer said about it cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The sample.
    pub sample: SampleRef,
    /// What is wrong with it, for people.
    pub why: String,
}

/// A record in quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Where it was.
    pub key: String,
    /// When it had been written there.
    pub version: Version,
    /// What is wrong with it.
    pub why: String,
    /// How long it is.
    pub bytes: u64,
    /// Whether it is too long to be moved and stays where it was.
    pub in_place: bool,
}

/// What a process has passed over since it opened the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedOver {
    /// Records that could not be read and that it has moved into quarantine.
    pub quarantined: u64,
    /// Records of later releases that it has met.
    pub later: u64,
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Records that were due and looked at.
    pub looked_at: usize,
    /// Reservations given up on.
    pub abandoned: usize,
    /// Leases taken back.
    pub taken_back: usize,
    /// Samples that retired because of it.
    pub retired: usize,
    /// Sessions that had ended and are cleared up.
    pub sessions_cleared: usize,
    /// Records that could not be read and were moved into quarantine.
    pub quarantined: usize,
    /// Records that only a later release can take back: they were passed over.
    pub later: usize,
    /// Whether there is more to do than the limit allowed.
    pub more: bool,
}

/// What the index knows about one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The sample.
    pub sample: SampleRef,
    /// Its record.
    pub record: Versioned<Live>,
    /// What its producer said about it.
    pub description: Vec<u8>,
}
