//! The arguments and results of intents.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Generation, Nonce, ObjectKey, Result, SampleId};
use tensorhold_custody::{
    GroupName, Lease, Live, Publication, Reason, Reserved, ReservedAs, Retired, SessionId, Token, Version, WallTime,
};

use tokio_util::sync::CancellationToken;

use crate::record::codec::Description;
use crate::record::grants::GrantLine;

/// One physical incarnation of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SampleRef {
    /// The sample.
    pub sample: SampleId,
    /// Which incarnation.
    pub generation: Generation,
}

/// A request to write a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The sample.
    pub sample: SampleId,
    /// Random part of its objects' keys.
    pub nonce: Nonce,
    /// How many bytes it will have at most.
    pub bytes: u64,
    /// What is about to be written. Opaque to the index; handed to the reclaimer if the sample never commits.
    pub plan: String,
    /// Objects that another writer names and that belong to this sample from now until it is freed. `Conflict` while
    /// another sample, or another generation, owns one of them. At most [`MOST_CLAIMS`].
    pub claims: Vec<ObjectKey>,
}

/// The most objects that one reservation may claim. Bounded so that all claims and the reservation fit into one
/// transaction.
pub const MOST_CLAIMS: usize = 64;

/// What a producer has written and wants to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The reservation.
    pub sample: SampleRef,
    /// The sample that a reservation made ahead becomes; none for a reservation of the sample itself.
    pub becomes: Option<Becomes>,
    /// The groups that it is for.
    pub publication: Publication,
    /// Physical keys, tensor specs, checksums. Opaque to the index; handed to every reader unchanged.
    pub description: Vec<u8>,
}

/// What a reservation that was made ahead becomes. Its generation is the version of the commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Becomes {
    /// The sample.
    pub sample: SampleId,
    /// How many bytes it has.
    pub bytes: u64,
}

impl From<&SampleRef> for ReservedAs {
    fn from(reservation: &SampleRef) -> Self {
        Self {
            name: reservation.sample.clone(),
            generation: reservation.generation,
        }
    }
}

impl From<&ReservedAs> for SampleRef {
    fn from(reserved_as: &ReservedAs) -> Self {
        Self {
            sample: reserved_as.name.clone(),
            generation: reserved_as.generation,
        }
    }
}

impl Commit {
    /// The name of the sample that is committed.
    pub fn name(&self) -> &SampleId {
        match &self.becomes {
            Some(becomes) => &becomes.sample,
            None => &self.sample.sample,
        }
    }
}

/// A record as it was read, and the version at which it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The record.
    pub record: T,
    /// The version at which it was last written.
    pub version: Version,
    /// The description that is stored behind the record.
    pub(crate) description: Description,
}

/// A lease on a sample, as its holder knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// The sample.
    pub sample: SampleRef,
    /// The group for which it was taken; none for a plain read.
    pub group: Option<GroupName>,
    /// The token to present when answering.
    pub token: Token,
    /// The producer's description.
    pub description: Arc<[u8]>,
    /// Whether the lease served no caller, because the sample did not reach its caller or the engine did not have its
    /// bytes. Then a nack or a release costs the group no attempt.
    pub unserved: bool,
    /// The record as of the lease, so that the first answer need not read it.
    pub(crate) seen: Versioned<Live>,
    /// The line of the grant list that names this lease.
    pub(crate) grant: Option<GrantLine>,
}

/// The terms on which a process takes samples.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// Cancelled when the caller has left. A wait for the next sample then ends as at the deadline.
    pub cancelled: &'a CancellationToken,
    /// Whether the process can use a sample, judging by the producer's description. A sample that it cannot use is not
    /// taken; it stays as it is, for other processes.
    pub usable: &'a (dyn Fn(&SampleRef, &[u8]) -> Result<()> + Send + Sync),
    /// How long after the deadline the call may still wait for the outcome of a lease transaction that was sent before
    /// it. A lease that no caller learns of costs its group an attempt when it expires; one that is learned of late can
    /// be released as unserved. Nothing new is begun in this time.
    pub settle: Duration,
    /// Whether a call for the next samples waits for the first one. Otherwise it takes what is ready now, or nothing.
    pub waits: bool,
}

impl fmt::Debug for Terms<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms")
            .field("cancelled", self.cancelled)
            .field("settle", &self.settle)
            .field("waits", &self.waits)
            .finish_non_exhaustive()
    }
}

/// Accepts any sample.
pub(crate) fn any_sample(_: &SampleRef, _: &[u8]) -> Result<()> {
    Ok(())
}

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitOutcome {
    /// The version at which the sample became visible.
    pub version: Version,
    /// Whether a live generation of the sample was retired by it, whose objects are to be removed.
    pub replaced: bool,
}

/// The result of an ack or a nack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// The sample stays live: other groups still need it, or it is retained.
    Live,
    /// It was the last answer: the sample is retired, for this reason. If `free`, it has no reader left, and the caller
    /// may remove its objects now.
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
    /// The producer's description; none if the sample never committed.
    pub description: Option<Vec<u8>>,
    /// The record.
    pub record: Versioned<Retired>,
}

/// A part of the list of samples to be freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeList {
    /// The samples to be freed.
    pub tasks: Vec<FreeTask>,
    /// Where the list continues; none at its end.
    pub next: Option<ListPlace>,
    /// Records that could not be decoded and were moved into quarantine.
    pub quarantined: usize,
    /// Records of later releases, which were skipped.
    pub later: usize,
}

/// Where in its life a generation of a sample is: which list its record is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Its producer is writing it.
    Reserved,
    /// Committed: it waits for its groups, or some have it.
    Live,
    /// Out of circulation; a reader still has it.
    Retired,
    /// Its objects are to be removed.
    ToFree,
    /// Its objects are gone from the engine; the record stays for a while, in case they come back.
    Lost,
    /// A dead letter.
    Dead,
}

impl Stage {
    /// All of them, in the order in which lists show them.
    pub const ALL: [Self; 6] = [
        Self::Reserved,
        Self::Live,
        Self::Retired,
        Self::ToFree,
        Self::Lost,
        Self::Dead,
    ];

    /// Its name, as lists show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Live => "live",
            Self::Retired => "retired",
            Self::ToFree => "to-free",
            Self::Lost => "lost",
            Self::Dead => "dead",
        }
    }
}

/// A record, whichever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Of a sample that is being written.
    Reserved(Reserved),
    /// Of a committed sample.
    Live(Live),
    /// Of a sample that is out of circulation.
    Retired(Retired),
}

impl Record {
    /// When the sample came into its present stage, by the clock of the process that brought it there.
    pub fn since(&self) -> WallTime {
        match self {
            Self::Reserved(record) => record.reserved_at,
            Self::Live(record) => record.committed_at,
            Self::Retired(record) => record.retired.unwrap_or_default().at,
        }
    }

    /// The sample's size in bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Reserved(record) => record.bytes,
            Self::Live(record) => record.bytes,
            Self::Retired(record) => record.bytes,
        }
    }

    /// The session that produces it, or did.
    pub fn producer(&self) -> SessionId {
        match self {
            Self::Reserved(record) => record.session,
            Self::Live(record) => record.producer,
            Self::Retired(record) => record.producer,
        }
    }

    /// The leases on it: for Live also those of its groups.
    pub fn leases(&self) -> Vec<Lease> {
        match self {
            Self::Reserved(_) => Vec::new(),
            Self::Live(record) => record.leases().copied().collect(),
            Self::Retired(record) => record.readers.clone(),
        }
    }
}

/// A generation of a sample, with its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleRecord {
    /// The sample.
    pub sample: SampleRef,
    /// Where in its life it is.
    pub stage: Stage,
    /// Its record.
    pub record: Record,
    /// The version at which the record was last written.
    pub version: Version,
    /// The producer's description; none if the sample never committed.
    pub description: Option<Arc<[u8]>>,
}

/// Which records to list. Records that do not match are skipped, page by page: a page may have fewer than were looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordQuery {
    /// Only of this stage; otherwise of all, one after the other.
    pub stage: Option<Stage>,
    /// Only samples that were published for this group.
    pub group: Option<GroupName>,
    /// Only samples that this session produced or holds a lease on.
    pub session: Option<SessionId>,
    /// Only samples that came into their stage before this time; those of which it is not known are among them.
    pub before: Option<WallTime>,
}

impl RecordQuery {
    /// All records of a stage.
    pub fn of(stage: Stage) -> Self {
        Self {
            stage: Some(stage),
            ..Self::default()
        }
    }
}

/// A part of a list of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordList {
    /// The records.
    pub records: Vec<SampleRecord>,
    /// Where the list continues; none at its end.
    pub next: Option<ListPlace>,
    /// How many records were looked at.
    pub looked_at: usize,
    /// Records of later releases, which were skipped.
    pub later: usize,
}

/// A lease that a process holds, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// On what.
    pub sample: SampleRef,
    /// The sample's size in bytes.
    pub bytes: u64,
    /// The group that took it; none for a reader.
    pub group: Option<GroupName>,
    /// How often the group has taken it, this time included; zero for a reader.
    pub attempts: u32,
    /// Who holds it, since when and until when.
    pub lease: Lease,
}

/// Leases that are held now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseList {
    /// The leases, the oldest first; those of which it is not known since when they are held come last.
    pub leases: Vec<HeldLease>,
    /// Whether every lease was looked at.
    pub complete: bool,
}

/// The samples that wait for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The group.
    pub group: GroupName,
    /// How many wait for it.
    pub waiting: u64,
    /// When the oldest of them was committed, by its producer's clock: as a sample that was handed back keeps its place, it
    /// keeps this time. None if it is not known.
    pub oldest: Option<WallTime>,
}

/// How many records a store has, by stage, and how many sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records, in the order of [`Stage::ALL`]. Reservations made ahead are not counted: most of them are for no sample yet.
    pub records: [u64; 6],
    /// Sessions that are alive.
    pub sessions: u64,
    /// Sessions that have ended and are not cleared yet.
    pub ended_sessions: u64,
    /// Processes that wait for quota.
    pub waiting: u64,
}

impl Counts {
    /// How many records there are of a stage.
    pub fn of(&self, stage: Stage) -> u64 {
        let at = Stage::ALL.iter().position(|one| *one == stage);
        at.map_or(0, |at| self.records[at])
    }
}

/// What a store's budget is used for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetUse {
    /// The budget in bytes.
    pub bytes: u64,
    /// The bytes of it that no sample holds.
    pub free: u64,
    /// The processes that wait for quota, longest first, and how many bytes each wants. At most a thousand.
    pub waiting: Vec<(SessionId, u64)>,
}

/// Whether a record owns the objects of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// One does, or one that this release cannot decode may.
    Yes,
    /// None does, and none ever will.
    No,
    /// None does; but this index has not given out that generation yet. The objects were put under another index, or under
    /// a later state of this one.
    Ahead,
}

/// A sample that was found lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSample {
    /// The sample.
    pub sample: SampleRef,
    /// The session that put it.
    pub producer: SessionId,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A place in a list: after the last record that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPlace(pub(crate) String);

impl ListPlace {
    /// As text, to be shown and given back.
    pub fn as_text(&self) -> &str {
        &self.0
    }

    /// From such a text. A text that names no place of a list lists from the next place behind it.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A sample whose record can be decoded while its description cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The sample.
    pub sample: SampleRef,
    /// What is wrong with it, for the operator.
    pub why: String,
}

/// A record in quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// The key that it had.
    pub key: String,
    /// The version at which it had been written there.
    pub version: Version,
    /// What is wrong with it.
    pub why: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it is too long to be moved and stays under its key.
    pub in_place: bool,
}

impl Quarantined {
    /// Its place in the list, as text: its version and its key.
    pub fn place(&self) -> String {
        format!("{}/{}", self.version.0, self.key)
    }

    /// What [`crate::Index::quarantined`] needs to go on behind a place; none for a text that is no place.
    pub fn at_place(text: &str) -> Option<Self> {
        let (version, key) = text.split_once('/')?;
        let digits = version.len() <= 19 && version.bytes().all(|byte| byte.is_ascii_digit());
        let version = version.parse().ok().filter(|_| digits)?;
        Some(Self {
            key: key.to_owned(),
            version: Version(version),
            why: String::new(),
            bytes: 0,
            in_place: false,
        })
    }
}

/// How many records a process has skipped since it opened the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedOver {
    /// Records that could not be decoded and that it has moved into quarantine.
    pub quarantined: u64,
    /// Records of later releases that it has met.
    pub later: u64,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Records that were due and looked at.
    pub looked_at: usize,
    /// Reservations that were given up.
    pub abandoned: usize,
    /// Leases that were taken back.
    pub taken_back: usize,
    /// Samples that were retired because of that.
    pub retired: usize,
    /// Ended sessions that were cleared.
    pub sessions_cleared: usize,
    /// Records that could not be decoded and were moved into quarantine.
    pub quarantined: usize,
    /// Records that only a later release can take back: they were skipped.
    pub later: usize,
    /// Whether the next sweep goes on where this one stopped: the limit was reached, or there are more grant lists than
    /// one sweep looks through.
    pub more: bool,
}

impl SweepReport {
    /// Adds what another sweep did, which came after this one.
    pub fn add(&mut self, next: &Self) {
        self.looked_at += next.looked_at;
        self.abandoned += next.abandoned;
        self.taken_back += next.taken_back;
        self.retired += next.retired;
        self.sessions_cleared += next.sessions_cleared;
        self.quarantined += next.quarantined;
        self.later += next.later;
        self.more = next.more;
    }
}

/// What the index knows about one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveSample {
    /// The sample.
    pub sample: SampleRef,
    /// Its record.
    pub record: Versioned<Live>,
    /// The producer's description.
    pub description: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_quarantine_is_read_back_and_nonsense_is_refused() {
        let one = Quarantined {
            key: "/tensorhold/s/f/a%2Fb".to_owned(),
            version: Version(u64::MAX / 2),
            why: String::new(),
            bytes: 0,
            in_place: false,
        };
        assert_eq!(Quarantined::at_place(&one.place()), Some(one));
        for text in ["", "/", "7", "+7/key", "-1/key", "99999999999999999999/key", "x/key"] {
            assert_eq!(Quarantined::at_place(text), None, "{text:?}");
        }
    }
}
