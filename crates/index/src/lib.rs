//! The shared index of custody records: who has what, until when, visible to every process, whatever dies in between.
//!
//! [`Index`] speaks in intents (reserve, commit, lease, ack…), not in keys, so that any strongly consistent store can
//! come under it. [`KvIndex`] is the index over a transactional store of keys ([`kv::Kv`]): over etcd (crate
//! `holdfast-index-etcd`), or in memory for tests and simulation ([`kv::memory`]). What an intent may do is decided by
//! `holdfast-custody`; this crate reads, asks it, and writes on condition that nothing has changed in between.
//!
//! | module | its job |
//! |---|---|
//! | [`kv`] | what is needed of a store of keys, and one in memory |
//! | `layout`, `record` | where records lie and how they are written, and which list entries follow from a record |
//! | `session` | a process's membership; transactions whose outcome is always found out |
//! | `batch`, `decision`, `round` | read, decide, write, for many samples at once |
//! | `notes` | what was given to whom, so that it can be taken back |
//! | `memory` | records that a session has just written, so that it need not read them |
//! | `lanes` | what a process knows about the ready lists |
//! | `quarantine`, `pages` | what cannot be read harms nothing else; lists are read in parts |
//! | `intents`, `answers`, `ready`, `look`, `sweep` | the intents themselves |

mod answers;
mod batch;
mod credits;
mod decision;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod index;
mod intents;
mod kept;
pub mod kv;
mod lanes;
mod layout;
mod look;
mod memory;
mod moves;
mod notes;
mod pages;
mod quarantine;
mod ready;
mod record;
mod round;
pub mod schema;
mod session;
mod sweep;
#[cfg(feature = "testing")]
pub mod testing;
mod types;

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use holdfast_core::{Generation, ObjectKey, Result, SampleId};
use holdfast_custody::{GroupName, Reason, Tick, Version};
use tokio_util::sync::CancellationToken;

pub use index::{IndexConfig, KvIndex};
pub use kv::History;
use lanes::Found;
pub use session::Session;
use types::any_sample;
pub use types::{
    Answered, Commit, FreeList, FreeTask, Held, ListPlace, MOST_CLAIMS, PassedOver, Quarantined, Reserve, SampleRef,
    SweepReport, Terms, Unreadable, Versioned, View,
};

/// The custody records of one store, shared by all processes that use it.
///
/// # Contract
///
/// **Batches.** A batch gets one result per item, in order; an item that is refused does not hold up the others. Several
/// items of one batch may be about the same sample; they are done one after the other.
///
/// **Deadlines.** Every call returns within its time, a take within that and what its terms give it to
/// [`settle`](Terms::settle). An error with [`holdfast_core::Retry::Ambiguous`] means that the
/// deadline passed before it was known whether the change was made: read back. Every other error means that it was not.
///
/// **Full.** An index that is full refuses with `Capacity`: reservations and everything else that writes. Reads, checks and
/// what is held stay good. When there is room again, the same sessions go on.
///
/// **History.** An index that was put back to an earlier state, or replaced, fences every process that had used it before:
/// its sessions have ended and every call is `Fenced`, until the index's operator has said that this is the index from now
/// on. Then they go on by themselves, in new sessions. Tokens and generations of what is gone are never given out again.
///
/// **Sessions.** Whatever is done in the name of a session that has ended is refused as `Fenced`, at once and for ever,
/// also by an index that does not know yet that it has. What it held is taken back by the next sweeps.
///
/// **Reserve** sets a sample id aside for one producer at a time (`Conflict` for a second one). Its generation is larger
/// than that of every reservation before it. A live sample of that id stays live meanwhile. What it **claims** (objects
/// that another writer named) is its own until it is freed; nobody else can claim it before (`Conflict`).
///
/// **Commit** makes the sample visible to all its groups at once, and retires the generation that was live before. Only
/// the session and generation that reserved it may do so (`Fenced`).
///
/// **Lease** gives a sample to one process of a group at a time, for a number of ticks; **read** gives it to any number.
/// Both return a token. While a token is good, the objects are not removed.
///
/// **Ack, nack, renew, release** need the token; with another one they are `Fenced` and change nothing. An ack is final.
/// The last group's ack retires the sample; a nack, or a lease that ended, costs the group one attempt,
/// unless its holder says that it served nobody ([`Held::unserved`]): then the sample is left as if it had never been
/// taken.
///
/// **Callers that leave.** A call must not be dropped half-way: what it was given then is known to nobody until it runs
/// out. Calls that wait for others take a token instead; when it is cancelled, they end as at their deadline.
///
/// **Check** tells whether tokens are still good; a reader asks it after its bytes have arrived.
///
/// **Retired** samples are given out by **to_free** when no lease on them is left; **freed** forgets them. Freed twice is
/// freed once. A **lost** one (`Reason::Lost`) is given out only after some ticks more: its objects may come back until then.
///
/// **Records that cannot be read** harm nothing but themselves: the process that meets one moves it into quarantine, and goes on.
/// Records of a later release are passed over and left alone; asked for by name they are `Unsupported`.
///
/// **Sweep** moves the shared clock on and takes back what has ended. Any process may, at any time, several at once.
#[async_trait]
pub trait Index: Send + Sync + Debug {
    /// Becomes a member of the store. The session is kept alive until it is dropped or closed.
    async fn open_session(&self, within: Duration) -> Result<Session>;

    /// Gives the store a budget in bytes; once. Sessions opened after that need credits to reserve.
    async fn set_budget(&self, bytes: u64, within: Duration) -> Result<()>;

    /// Sets samples aside for writing. Over budget, waits for credits in line until the deadline; `Capacity` then. When
    /// `cancelled`, the wait ends as at the deadline.
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

    /// Makes written samples visible. Returns the version at which they are.
    async fn commit(&self, session: &Session, items: &[Commit], within: Duration) -> Vec<Result<Version>>;

    /// Gives reservations up.
    async fn abort(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>>;

    /// Takes these samples, for a group or (none) for reading only. One that the terms refuse gets their error.
    async fn take(
        &self,
        session: &Session,
        group: Option<&GroupName>,
        items: &[SampleRef],
        ticks: u64,
        terms: Terms<'_>,
        within: Duration,
    ) -> Vec<Result<Held>>;

    /// Takes the next samples of a group, up to `count`, oldest first as far as that goes without a queue for it. Waits
    /// for the first one; none at the deadline, or when the caller has left, is not an error. What the terms refuse is
    /// passed over.
    async fn take_next(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        terms: Terms<'_>,
        within: Duration,
    ) -> Result<Vec<Held>>;

    /// Takes these samples for a group, whatever they are.
    async fn lease(
        &self,
        session: &Session,
        group: &GroupName,
        items: &[SampleRef],
        ticks: u64,
        within: Duration,
    ) -> Vec<Result<Held>> {
        let cancelled = &CancellationToken::new();
        let terms = Terms {
            cancelled,
            usable: &any_sample,
            settle: Duration::ZERO,
        };
        self.take(session, Some(group), items, ticks, terms, within).await
    }

    /// Takes the next samples of a group, whatever they are, for a caller that does not leave.
    async fn lease_next(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        within: Duration,
    ) -> Result<Vec<Held>> {
        let cancelled = &CancellationToken::new();
        let terms = Terms {
            cancelled,
            usable: &any_sample,
            settle: Duration::ZERO,
        };
        self.take_next(session, group, count, ticks, terms, within).await
    }

    /// Takes samples for reading only, whatever they are.
    async fn read(&self, session: &Session, items: &[SampleRef], ticks: u64, within: Duration) -> Vec<Result<Held>> {
        let cancelled = &CancellationToken::new();
        let terms = Terms {
            cancelled,
            usable: &any_sample,
            settle: Duration::ZERO,
        };
        self.take(session, None, items, ticks, terms, within).await
    }

    /// Prolongs leases to so many ticks from now.
    async fn renew(&self, session: &Session, items: &[Held], ticks: u64, within: Duration) -> Vec<Result<Held>>;

    /// Answers that samples were used.
    async fn ack(&self, session: &Session, items: &[Held], within: Duration) -> Vec<Result<Answered>>;

    /// Hands samples back unused.
    async fn nack(&self, session: &Session, items: &[Held], within: Duration) -> Vec<Result<Answered>>;

    /// Lets go of leases of either kind, also on samples that were retired meanwhile. For a group's it is a nack.
    async fn release(&self, session: &Session, items: &[Held], within: Duration) -> Vec<Result<()>>;

    /// Whether leases are still good.
    async fn check(&self, session: &Session, items: &[Held], within: Duration) -> Result<Vec<bool>>;

    /// Takes samples out of circulation.
    async fn retire(
        &self,
        session: &Session,
        items: &[SampleRef],
        reason: Reason,
        within: Duration,
    ) -> Vec<Result<Answered>>;

    /// Another epoch for retained samples.
    async fn reopen(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>>;

    /// What is known of samples; none for one that is not live.
    async fn look(&self, samples: &[SampleId], within: Duration) -> Result<Vec<Option<View>>>;

    /// Who owns objects that other writers named, by their claims; none for one that no sample of this store claims.
    async fn owners(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Option<SampleRef>>>;

    /// Takes back what has ended; looks at no more than `limit` records, and goes on where the last sweep of this index
    /// ended if there was more.
    async fn sweep(&self, session: &Session, limit: usize, within: Duration) -> Result<SweepReport>;

    /// The shared clock, as of the last sweep or lease here.
    async fn tick(&self, within: Duration) -> Result<Tick>;

    /// Retired samples whose objects may be removed now: the part of the list after a place in it, no more than `limit`
    /// and no more bytes than are read well at once.
    async fn to_free(&self, after: Option<&ListPlace>, limit: usize, within: Duration) -> Result<FreeList>;

    /// Their objects are gone. False for one that another call, or another process, has said this of.
    async fn freed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<bool>>;

    /// Their objects could not be removed now.
    async fn free_failed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>>;

    /// Whether the store under it was put back or replaced, and what is to be done about it.
    fn history(&self) -> History {
        History::default()
    }

    /// Moves samples into quarantine whose record can be read, and what their producer said about them cannot. False for
    /// one that has changed, or has gone, meanwhile.
    async fn quarantine(&self, items: &[Unreadable], within: Duration) -> Vec<Result<bool>>;

    /// What is in quarantine, in the order of keys: after this one, up to `limit`. Nothing at the end of the list only: a
    /// part may be shorter than `limit`.
    async fn quarantined(
        &self,
        after: Option<&Quarantined>,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Quarantined>>;

    /// The bytes of a record in quarantine, as they were.
    async fn quarantined_bytes(&self, which: &Quarantined, within: Duration) -> Result<Vec<u8>>;

    /// What this process has passed over so far.
    fn passed_over(&self) -> PassedOver;
}

#[async_trait]
impl Index for KvIndex {
    async fn open_session(&self, within: Duration) -> Result<Session> {
        self.open(within).await
    }

    async fn set_budget(&self, bytes: u64, within: Duration) -> Result<()> {
        self.do_set_budget(bytes, self.deadline(within)).await
    }

    async fn reserve_unless(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        within: Duration,
    ) -> Vec<Result<Generation>> {
        self.do_reserve(session, items, cancelled, self.deadline(within)).await
    }

    async fn commit(&self, session: &Session, items: &[Commit], within: Duration) -> Vec<Result<Version>> {
        self.do_commit(session, items, self.deadline(within)).await
    }

    async fn abort(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.do_abort(session, items, self.deadline(within)).await
    }

    async fn take(
        &self,
        session: &Session,
        group: Option<&GroupName>,
        items: &[SampleRef],
        ticks: u64,
        terms: Terms<'_>,
        within: Duration,
    ) -> Vec<Result<Held>> {
        let items: Vec<Found> = items.iter().map(Found::from).collect();
        let deadline = self.deadline(within);
        self.do_lease(session, &items, group, ticks, terms, deadline).await
    }

    async fn take_next(
        &self,
        session: &Session,
        group: &GroupName,
        count: usize,
        ticks: u64,
        terms: Terms<'_>,
        within: Duration,
    ) -> Result<Vec<Held>> {
        self.do_lease_next(session, group, count, ticks, terms, self.deadline(within))
            .await
    }

    async fn renew(&self, session: &Session, items: &[Held], ticks: u64, within: Duration) -> Vec<Result<Held>> {
        self.do_renew(session, items, ticks, self.deadline(within)).await
    }

    async fn ack(&self, session: &Session, items: &[Held], within: Duration) -> Vec<Result<Answered>> {
        self.do_ack(session, items, true, self.deadline(within)).await
    }

    async fn nack(&self, session: &Session, items: &[Held], within: Duration) -> Vec<Result<Answered>> {
        self.do_ack(session, items, false, self.deadline(within)).await
    }

    async fn release(&self, session: &Session, items: &[Held], within: Duration) -> Vec<Result<()>> {
        self.do_release(session, items, self.deadline(within)).await
    }

    async fn check(&self, session: &Session, items: &[Held], within: Duration) -> Result<Vec<bool>> {
        self.do_check(session, items, self.deadline(within)).await
    }

    async fn retire(
        &self,
        session: &Session,
        items: &[SampleRef],
        reason: Reason,
        within: Duration,
    ) -> Vec<Result<Answered>> {
        self.do_retire(session, items, reason, self.deadline(within)).await
    }

    async fn reopen(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.do_reopen(session, items, self.deadline(within)).await
    }

    async fn look(&self, samples: &[SampleId], within: Duration) -> Result<Vec<Option<View>>> {
        self.do_look(samples, self.deadline(within)).await
    }

    async fn owners(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Option<SampleRef>>> {
        self.do_owners(keys, self.deadline(within)).await
    }

    async fn sweep(&self, session: &Session, limit: usize, within: Duration) -> Result<SweepReport> {
        self.do_sweep(session, limit, self.deadline(within)).await
    }

    async fn tick(&self, within: Duration) -> Result<Tick> {
        self.known_tick(self.deadline(within)).await
    }

    async fn to_free(&self, after: Option<&ListPlace>, limit: usize, within: Duration) -> Result<FreeList> {
        self.do_to_free(after, limit, self.deadline(within)).await
    }

    async fn freed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<bool>> {
        self.do_freed(session, items, self.deadline(within)).await
    }

    async fn free_failed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.do_free_failed(session, items, self.deadline(within)).await
    }

    fn history(&self) -> History {
        self.kv().history()
    }

    async fn quarantine(&self, items: &[Unreadable], within: Duration) -> Vec<Result<bool>> {
        self.do_quarantine(items, self.deadline(within)).await
    }

    async fn quarantined(
        &self,
        after: Option<&Quarantined>,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Quarantined>> {
        self.do_quarantined(after, limit, self.deadline(within)).await
    }

    async fn quarantined_bytes(&self, which: &Quarantined, within: Duration) -> Result<Vec<u8>> {
        self.do_quarantined_bytes(which, self.deadline(within)).await
    }

    fn passed_over(&self) -> PassedOver {
        let (quarantined, later) = Self::passed_over(self).counts();
        PassedOver { quarantined, later }
    }
}
