//! The shared index of custody records: which session holds what, until when, visible to every process, whatever dies
//! in between.
//!
//! [`Index`] speaks in intents (reserve, commit, lease, ack…), not in keys, so that any strongly consistent store can
//! be used under it. [`TxnIndex`] is the index over a transactional store ([`store::TxnStore`]): over etcd (crate
//! `tensorhold-index-etcd`), or in memory for tests and simulation ([`store::memory`]). `tensorhold-custody` decides what an
//! intent may do. This crate reads, asks it, and writes on condition that nothing has changed in between.
//!
//! The rooms, from the top. Each calls only those below it:
//!
//! | room | its job |
//! |---|---|
//! | `ops` | the intents: what each reads, what custody decides, what is written |
//! | `index` | the index: its parts, and opening sessions |
//! | `ready` | which samples are ready for a group, and waiting for more |
//! | `quota` | the store's budget: paying, waiting, giving back |
//! | `txn` | batches of decisions as transactions; sessions, the shared clock, quarantine, lists in parts |
//! | [`placement`] | which of several clusters a store is on |
//! | `record` | keys, records, grant lists, and what is refused because of them |
//! | [`store`] | the transactional store that is needed, and one in memory |

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod ops;
pub mod placement;
mod quota;
mod ready;
mod record;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod txn;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Generation, ObjectKey, Result, SampleId};
use tensorhold_custody::{GroupName, Reason, Tick, Version};
use tokio_util::sync::CancellationToken;

pub use index::TxnIndex;
pub use ops::forget::forget;
pub use ops::idle::in_use;
pub use ops::lead::LeaderWatch;
pub use ops::lost::LostWatch;
pub use ops::stores::stores;
pub use record::ahead::is_named_ahead;
pub use record::engine::{HolderSeen, HoldersSeen, MissingHolder};
pub use record::identity::{Identity, LiveSession, SaidSettings};
pub use record::office::{Leader, Leaders, Office};
pub use record::schema;
use record::types::any_sample;
pub use record::types::{
    AckOutcome, Backlog, Becomes, BudgetUse, Commit, CommitOutcome, Counts, FreeList, FreeTask, HeldLease, Known,
    LeaseGrant, LeaseList, ListPlace, LiveSample, LostSample, MOST_CLAIMS, PassedOver, Quarantined, Record, RecordList,
    RecordQuery, Reserve, SampleRecord, SampleRef, Stage, SweepReport, Terms, Unreadable, Versioned,
};
pub use store::History;
pub use txn::IndexConfig;
pub use txn::session::{Session, SessionEnded};

/// The custody records of one store, shared by all processes that use it.
///
/// # Contract
///
/// **Batches.** A batch gets one result per item, in order. An item that is refused does not hold up the others.
/// Several items of one batch may concern the same sample; they are applied one after the other.
///
/// **Deadlines.** Every call returns within its time; a take returns within that plus the time that its terms allow to
/// [`settle`](Terms::settle). An error with [`tensorhold_core::Retry::Ambiguous`] means that the deadline passed before
/// it was known whether the change was made: read back. Every other error means that it was not made.
///
/// **Full.** A full index refuses reservations and every other write with `Capacity`. Reads, checks and existing leases
/// stay good. When there is room again, the same sessions continue.
///
/// **History.** An index that was restored to an earlier state, or replaced, fences every process that had used it
/// before: its sessions have ended and every call is `Fenced`, until the index's operator has confirmed that this is
/// the index from now on. Then the processes continue by themselves, in new sessions. Tokens and generations that were
/// lost are never given out again.
///
/// **Sessions.** Every call in the name of an ended session is refused as `Fenced`, at once and for ever, even by an
/// index that does not know yet that the session has ended. The next sweeps take back what it held.
///
/// **Reserve** reserves a sample id for one producer at a time (`Conflict` for a second one). The reservation's
/// generation is larger than that of every earlier one. A live sample of that id stays live meanwhile. The objects that
/// it **claims** (objects that another writer named) belong to it until it is freed; no other sample can claim them
/// before (`Conflict`).
///
/// **Commit** makes the sample visible to all its groups at once, and retires the generation that was live before. Only
/// the session and generation that reserved it may do so (`Fenced`).
///
/// **Lease** gives a sample to one process of a group at a time, for a number of ticks; **read** gives it to any
/// number. Both return a token. While a token is good, the objects are not removed.
///
/// **Ack, nack, renew, release, use up** need the token; with another one they are `Fenced` and change nothing. An ack is
/// final. The last group's ack retires the sample. So does the last reader that uses it up, unless it was published for
/// groups or is retained. A nack, or an expired lease, costs the group one attempt, unless the
/// holder of the lease says that no caller was served by it ([`LeaseGrant::unserved`]): then the sample is left as if it had
/// never been leased.
///
/// **Callers that leave.** A call must not be dropped half-way: no caller would know of the leases that it was granted
/// until they expire. Calls that wait take a cancellation token instead. When it is cancelled, they end as at their
/// deadline.
///
/// **Check** tells whether tokens are still good: whether each was valid at some moment of the call. A reader whose bytes
/// are compared with the committed ones asks while they move, any other reader after the last one.
///
/// **Dead letters** are samples of which a group ran out of attempts. Their records stay until they are put back into
/// circulation (**requeue**) or dropped (**drop_dead**); their objects are kept as long as the settings say.
///
/// **Retired** samples are listed by **to_free** when no lease on them is left; **freed** forgets them. Calling it
/// twice is the same as once. A **lost** one (`Reason::Lost`) is listed only some ticks later: its objects may come
/// back until then.
///
/// **Records that cannot be decoded** harm nothing but themselves: the process that meets one moves it into quarantine
/// and continues. Records of a later release are skipped and left alone; a call that names such a sample gets
/// `Unsupported`.
///
/// **Sweep** advances the shared clock and takes back what has expired. Any process may sweep at any time, several at
/// once; a steward goes by the longest tick and grace that a live session says. So that not all of them do, there are
/// offices. **Lead** gives an office to one session at a time. It is vacant when that session has ended or has
/// **resigned**, and a watch tells everybody.
///
/// **Other indexes.** Only [`TxnIndex`] makes [`Session`]s, so outside of this crate an `Index` can wrap another one (to
/// count, to delay, to fail), and cannot be written anew. A new back end implements [`store::TxnStore`].
#[async_trait]
pub trait Index: Send + Sync + Debug {
    /// Becomes a member of the store. The session is kept alive until it is dropped or closed.
    async fn open_session(&self, within: Duration) -> Result<Session>;

    /// Sets the store's budget in bytes, or changes it. Sessions that are opened after the first time need quota to
    /// reserve. One that is smaller than what samples hold is refused (`Capacity`), and the old one stays in force.
    async fn set_budget(&self, bytes: u64, within: Duration) -> Result<()>;

    /// Sets the store's budget if it has none. Returns the one in force.
    async fn ensure_budget(&self, bytes: u64, within: Duration) -> Result<u64>;

    /// Reserves samples for writing. Over budget, waits in the queue for quota until the deadline, and then fails with
    /// `Capacity`. When `cancelled`, the wait ends as at the deadline.
    async fn reserve_unless(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        within: Duration,
    ) -> Vec<Result<Generation>>;

    /// As [`Index::reserve_unless`], for a caller that does not leave.
    async fn reserve(&self, session: &Session, items: &[Reserve], within: Duration) -> Vec<Result<Generation>> {
        self.reserve_unless(session, items, &CancellationToken::new(), within)
            .await
    }

    /// Makes written samples visible. Says at which version, and whether an earlier generation was replaced. A reservation
    /// that was made ahead gets its sample's name here; `Conflict` while another producer has that sample reserved.
    async fn commit(&self, session: &Session, items: &[Commit], within: Duration) -> Vec<Result<CommitOutcome>>;

    /// Gives reservations up.
    async fn abort(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>>;

    /// Gives up reservations under which nothing was written: there is nothing to remove, so nothing stays of them. Only
    /// for reservations that hold no quota and no claims.
    async fn unreserve(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>>;

    /// Leases these samples, for a group or (none) for reading only. A sample that the terms refuse gets their error.
    async fn take(
        &self,
        session: &Session,
        group: Option<&GroupName>,
        items: &[SampleRef],
        ticks: u64,
        terms: Terms<'_>,
        within: Duration,
    ) -> Vec<Result<LeaseGrant>>;

    /// Leases the next samples of a group, up to `count`, oldest first as far as that is possible without one common
    /// queue. Waits for the first one. It is no error if none came by the deadline, or before the caller left. Samples
    /// that the terms refuse are skipped.
    async fn take_next(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        terms: Terms<'_>,
        within: Duration,
    ) -> Result<Vec<LeaseGrant>>;

    /// Leases these samples for a group, on any terms.
    async fn lease(
        &self,
        session: &Session,
        group: &GroupName,
        items: &[SampleRef],
        ticks: u64,
        within: Duration,
    ) -> Vec<Result<LeaseGrant>> {
        let cancelled = &CancellationToken::new();
        let terms = Terms {
            cancelled,
            usable: &any_sample,
            settle: Duration::ZERO,
            waits: true,
        };
        self.take(session, Some(group), items, ticks, terms, within).await
    }

    /// Leases the next samples of a group, on any terms, for a caller that does not leave.
    async fn lease_next(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        within: Duration,
    ) -> Result<Vec<LeaseGrant>> {
        let cancelled = &CancellationToken::new();
        let terms = Terms {
            cancelled,
            usable: &any_sample,
            settle: Duration::ZERO,
            waits: true,
        };
        self.take_next(session, group, count, ticks, terms, within).await
    }

    /// Leases samples for reading only, on any terms.
    async fn lease_shared(
        &self,
        session: &Session,
        items: &[SampleRef],
        ticks: u64,
        within: Duration,
    ) -> Vec<Result<LeaseGrant>> {
        let cancelled = &CancellationToken::new();
        let terms = Terms {
            cancelled,
            usable: &any_sample,
            settle: Duration::ZERO,
            waits: true,
        };
        self.take(session, None, items, ticks, terms, within).await
    }

    /// Extends leases to this many ticks from now.
    async fn renew(
        &self,
        session: &Session,
        items: &[LeaseGrant],
        ticks: u64,
        within: Duration,
    ) -> Vec<Result<LeaseGrant>>;

    /// Acknowledges that samples were used.
    async fn ack(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>>;

    /// Hands samples back unused.
    async fn nack(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>>;

    /// Releases leases of either kind, even on samples that were retired meanwhile. For a group's lease this is a nack.
    async fn release(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<()>>;

    /// Releases leases of readers that have used their samples up.
    async fn use_up(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>>;

    /// Whether leases are still good.
    async fn check(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Result<Vec<bool>>;

    /// Takes samples out of circulation.
    async fn retire(
        &self,
        session: &Session,
        items: &[SampleRef],
        reason: Reason,
        within: Duration,
    ) -> Vec<Result<AckOutcome>>;

    /// Another epoch for retained samples.
    async fn reopen(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>>;

    /// Some samples that are ready for a group now, up to `count`, without taking them: those that the next takes of this
    /// process begin with, if each takes `at_once`. Other processes may be faster.
    async fn peek(&self, group: &GroupName, count: usize, at_once: usize, within: Duration) -> Result<Vec<SampleRef>>;

    /// The sessions that are alive, and what their processes say of themselves.
    async fn sessions(&self, within: Duration) -> Result<Vec<LiveSession>>;

    /// Records in the order of their stages and names: looks at `limit` at most, from behind a place on, and returns those
    /// that match.
    async fn records(
        &self,
        query: &RecordQuery,
        after: Option<&ListPlace>,
        limit: usize,
        within: Duration,
    ) -> Result<RecordList>;

    /// The records of all generations of a sample, the oldest first.
    async fn records_of(&self, sample: &SampleId, within: Duration) -> Result<Vec<SampleRecord>>;

    /// How many records there are.
    async fn counts(&self, within: Duration) -> Result<Counts>;

    /// What waits for the groups, in the order of their names: of the first `most` of those for which anything waits. For
    /// people.
    async fn backlog(&self, most: usize, within: Duration) -> Result<Vec<Backlog>>;

    /// The leases that are held now, the oldest first, up to `limit`; for people. What it costs grows with the number of
    /// leases, and not with the number of records. Of very many, those are looked at whose time ends first:
    /// [`LeaseList::complete`] says so.
    async fn leases(&self, limit: usize, within: Duration) -> Result<LeaseList>;

    /// What the budget is used for; none if the store has none.
    async fn budget_use(&self, within: Duration) -> Result<Option<BudgetUse>>;

    /// Puts dead letters back into circulation: the groups that were out of attempts wait for them again. `Conflict` if
    /// their objects are gone, or if another generation of the sample is live; `NotFound` if there is no such dead letter.
    async fn requeue(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<Version>>;

    /// Drops dead letters. True if the objects are still to be removed: then they are listed by [`Index::to_free`].
    async fn drop_dead(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<bool>>;

    /// Whether records own the objects of these generations. All places where the record of a generation may be are read
    /// at one moment during the call. So what no record owns after an object of it was seen, no record will ever own.
    async fn known(&self, samples: &[SampleRef], within: Duration) -> Result<Vec<Known>>;

    /// A watch of the samples that are found lost, by any process.
    fn watch_lost(&self) -> LostWatch;

    /// The records of samples; none for one that is not live.
    async fn look(&self, samples: &[SampleId], within: Duration) -> Result<Vec<Option<LiveSample>>>;

    /// Which samples own objects whose keys do not name them: by their claims if other writers named them, by the
    /// reservation's entry if they were written under one made ahead. None for an object that no sample of this store owns.
    async fn owners(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Option<SampleRef>>>;

    /// Takes back what has expired. Looks at no more than `limit` records, and continues where the last sweep of this
    /// index ended if there was more.
    async fn sweep(&self, session: &Session, limit: usize, within: Duration) -> Result<SweepReport>;

    /// Takes an office, if it is vacant. Returns who holds it now: this session, or the one that was faster.
    async fn lead(&self, session: &Session, office: Office, within: Duration) -> Result<Leader>;

    /// Leaves an office, if this session holds it.
    async fn resign(&self, session: &Session, office: Office, within: Duration) -> Result<()>;

    /// Who holds the offices now.
    async fn leaders(&self, within: Duration) -> Result<Leaders>;

    /// Watches who holds the offices, from what was read before.
    async fn watch_leaders(&self, since: &Leaders, within: Duration) -> Result<LeaderWatch>;

    /// The engine's holders, as the process that looks after the store has seen them last; nothing before the first look.
    async fn holders_seen(&self, within: Duration) -> Result<HoldersSeen>;

    /// Writes that down, and returns the version of the record. `Conflict` if it is not the one any more that was read.
    async fn note_holders(&self, session: &Session, seen: &HoldersSeen, within: Duration) -> Result<Version>;

    /// The length of one tick of the shared clock.
    fn tick_length(&self) -> Duration;

    /// The shared clock, as last seen by this index.
    async fn tick(&self, within: Duration) -> Result<Tick>;

    /// Retired samples whose objects may be removed now: the part of the list after `after`, at most `limit` samples,
    /// and only as many bytes as one read handles well.
    async fn to_free(&self, after: Option<&ListPlace>, limit: usize, within: Duration) -> Result<FreeList>;

    /// Records that their objects are gone. False for a sample that another call or process has freed before.
    async fn freed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<bool>>;

    /// Records that their objects could not be removed now.
    async fn free_failed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>>;

    /// Makes sure that the records of where the store is say that it is where this index reads it. Asked before something is
    /// removed because this index has no record of it. An index whose store was not looked up cannot be elsewhere.
    async fn confirm_place(&self, within: Duration) -> Result<()>;

    /// Whether the store underneath was restored or replaced, and what to do about it.
    fn history(&self) -> History {
        History::default()
    }

    /// Moves samples into quarantine whose record can be decoded and whose description cannot. False for one that has
    /// changed, or is gone, meanwhile.
    async fn quarantine(&self, items: &[Unreadable], within: Duration) -> Vec<Result<bool>>;

    /// The records in quarantine, in key order: after this one, up to `limit`. Empty only at the end of the list; a
    /// part may be shorter than `limit`.
    async fn quarantined(
        &self,
        after: Option<&Quarantined>,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Quarantined>>;

    /// The original bytes of a record in quarantine.
    async fn quarantined_bytes(&self, which: &Quarantined, within: Duration) -> Result<Vec<u8>>;

    /// How many records this process has skipped so far.
    fn passed_over(&self) -> PassedOver;

    /// The shared clock as this process last saw it, and for how long it has seen it stand there; none if it has not
    /// seen it yet. No call to the index: a process that sweeps, or has just used the clock, knows it.
    fn seen_clock(&self) -> Option<(Tick, Duration)> {
        None
    }
}

/// The README's example is a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
