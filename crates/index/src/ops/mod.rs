//! The operations of the index. Each module says what its operations read, what custody decides, and what is written.

mod answers;
mod backlog;
mod commit;
pub(crate) mod follow;
pub(crate) mod forget;
mod free;
mod holders;
pub(crate) mod idle;
mod kept;
mod known;
pub(crate) mod lead;
mod lease;
mod lease_next;
mod leases;
mod letters;
mod list;
mod look;
pub(crate) mod lost;
mod quarantine;
pub(crate) mod records;
mod reserve;
pub(crate) mod stores;
mod sweep;
mod walk;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Generation, ObjectKey, Result, SampleId};
use tensorhold_custody::{GroupName, Reason, Tick, Version};
use tokio_util::sync::CancellationToken;

use self::lead::LeaderWatch;
use self::lost::LostWatch;

use crate::Index;
use crate::index::TxnIndex;
use crate::ready::shards::ReadyEntry;
use crate::record::engine::HoldersSeen;
use crate::record::identity::LiveSession;
use crate::record::office::{Leader, Leaders, Office};
use crate::record::types::{
    AckOutcome, Backlog, BudgetUse, Commit, CommitOutcome, Counts, FreeList, Known, LeaseGrant, LeaseList, ListPlace,
    LiveSample, PassedOver, Quarantined, RecordList, RecordQuery, Reserve, SampleRecord, SampleRef, SweepReport, Terms,
    Unreadable,
};
use crate::store::History;
use crate::store::metered::Cause;
use crate::txn::session::Session;

#[async_trait]
impl Index for TxnIndex {
    async fn open_session(&self, within: Duration) -> Result<Session> {
        self.open(within).await
    }

    async fn set_budget(&self, bytes: u64, within: Duration) -> Result<()> {
        self.quota.set_budget(bytes, self.core.deadline(within)).await
    }

    async fn ensure_budget(&self, bytes: u64, within: Duration) -> Result<u64> {
        self.quota.ensure_budget(bytes, self.core.deadline(within)).await
    }

    async fn reserve_unless(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        within: Duration,
    ) -> Vec<Result<Generation>> {
        self.do_reserve(session, items, cancelled, self.core.deadline(within))
            .await
    }

    async fn commit(&self, session: &Session, items: &[Commit], within: Duration) -> Vec<Result<CommitOutcome>> {
        self.do_commit(session, items, self.core.deadline(within)).await
    }

    async fn abort(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.do_abort(session, items, self.core.deadline(within)).await
    }

    async fn unreserve(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.do_unreserve(session, items, self.core.deadline(within)).await
    }

    async fn take(
        &self,
        session: &Session,
        group: Option<&GroupName>,
        items: &[SampleRef],
        ticks: u64,
        terms: Terms<'_>,
        within: Duration,
    ) -> Vec<Result<LeaseGrant>> {
        let items: Vec<ReadyEntry> = items.iter().map(ReadyEntry::from).collect();
        let deadline = self.core.deadline(within);
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
    ) -> Result<Vec<LeaseGrant>> {
        self.do_lease_next(session, group, count, ticks, terms, self.core.deadline(within))
            .await
    }

    async fn renew(
        &self,
        session: &Session,
        items: &[LeaseGrant],
        ticks: u64,
        within: Duration,
    ) -> Vec<Result<LeaseGrant>> {
        self.do_renew(session, items, ticks, self.core.deadline(within)).await
    }

    async fn ack(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>> {
        self.do_ack(session, items, true, self.core.deadline(within)).await
    }

    async fn nack(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>> {
        self.do_ack(session, items, false, self.core.deadline(within)).await
    }

    async fn release(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<()>> {
        self.do_release(session, items, self.core.deadline(within)).await
    }

    async fn use_up(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>> {
        self.do_use_up(session, items, self.core.deadline(within)).await
    }

    async fn check(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Result<Vec<bool>> {
        self.do_check(session, items, self.core.deadline(within)).await
    }

    async fn retire(
        &self,
        session: &Session,
        items: &[SampleRef],
        reason: Reason,
        within: Duration,
    ) -> Vec<Result<AckOutcome>> {
        self.do_retire(session, items, reason, self.core.deadline(within)).await
    }

    async fn reopen(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.do_reopen(session, items, self.core.deadline(within)).await
    }

    async fn peek(&self, group: &GroupName, count: usize, at_once: usize, within: Duration) -> Result<Vec<SampleRef>> {
        self.ready.peek(group, count, at_once, self.core.deadline(within)).await
    }

    async fn sessions(&self, within: Duration) -> Result<Vec<LiveSession>> {
        self.do_sessions(self.core.deadline(within)).await
    }

    async fn known(&self, samples: &[SampleRef], within: Duration) -> Result<Vec<Known>> {
        self.do_known(samples, self.core.deadline(within)).await
    }

    fn watch_lost(&self) -> LostWatch {
        LostWatch::new(Arc::clone(&self.core))
    }

    async fn records(
        &self,
        query: &RecordQuery,
        after: Option<&ListPlace>,
        limit: usize,
        within: Duration,
    ) -> Result<RecordList> {
        self.do_records(query, after, limit, self.core.deadline(within)).await
    }

    async fn records_of(&self, sample: &SampleId, within: Duration) -> Result<Vec<SampleRecord>> {
        self.do_records_of(sample, self.core.deadline(within)).await
    }

    async fn counts(&self, within: Duration) -> Result<Counts> {
        self.do_counts(self.core.deadline(within)).await
    }

    async fn backlog(&self, most: usize, within: Duration) -> Result<Vec<Backlog>> {
        self.do_backlog(most, self.core.deadline(within)).await
    }

    async fn leases(&self, limit: usize, within: Duration) -> Result<LeaseList> {
        self.do_leases(limit, self.core.deadline(within)).await
    }

    async fn budget_use(&self, within: Duration) -> Result<Option<BudgetUse>> {
        self.do_budget_use(self.core.deadline(within)).await
    }

    async fn requeue(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<Version>> {
        self.do_requeue(session, items, self.core.deadline(within)).await
    }

    async fn drop_dead(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<bool>> {
        self.do_drop_dead(session, items, self.core.deadline(within)).await
    }

    async fn look(&self, samples: &[SampleId], within: Duration) -> Result<Vec<Option<LiveSample>>> {
        self.do_look(samples, self.core.deadline(within)).await
    }

    async fn owners(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Option<SampleRef>>> {
        self.do_owners(keys, self.core.deadline(within)).await
    }

    async fn sweep(&self, session: &Session, limit: usize, within: Duration) -> Result<SweepReport> {
        let sweep = self.do_sweep(session, limit, self.core.deadline(within));
        Cause::Sweep.of(sweep).await
    }

    async fn lead(&self, session: &Session, office: Office, within: Duration) -> Result<Leader> {
        self.do_lead(session, office, self.core.deadline(within)).await
    }

    async fn resign(&self, session: &Session, office: Office, within: Duration) -> Result<()> {
        self.do_resign(session, office, self.core.deadline(within)).await
    }

    async fn leaders(&self, within: Duration) -> Result<Leaders> {
        self.do_leaders(self.core.deadline(within)).await
    }

    async fn watch_leaders(&self, since: &Leaders, within: Duration) -> Result<LeaderWatch> {
        self.do_watch_leaders(since, self.core.deadline(within)).await
    }

    async fn holders_seen(&self, within: Duration) -> Result<HoldersSeen> {
        self.do_holders_seen(self.core.deadline(within)).await
    }

    async fn note_holders(&self, session: &Session, seen: &HoldersSeen, within: Duration) -> Result<Version> {
        self.do_note_holders(session, seen, self.core.deadline(within)).await
    }

    fn tick_length(&self) -> Duration {
        self.core.tick_length()
    }

    async fn tick(&self, within: Duration) -> Result<Tick> {
        self.core.known_tick(self.core.deadline(within)).await
    }

    async fn to_free(&self, after: Option<&ListPlace>, limit: usize, within: Duration) -> Result<FreeList> {
        let collect = self.do_to_free(after, limit, self.core.deadline(within));
        Cause::Collect.of(collect).await
    }

    async fn freed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<bool>> {
        self.do_freed(session, items, self.core.deadline(within)).await
    }

    async fn free_failed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.do_free_failed(session, items, self.core.deadline(within)).await
    }

    async fn confirm_place(&self, within: Duration) -> Result<()> {
        match self.core.txn_store().placed() {
            Some(placed) => placed.confirm(within).await,
            None => Ok(()),
        }
    }

    fn history(&self) -> History {
        self.core.txn_store().history()
    }

    async fn quarantine(&self, items: &[Unreadable], within: Duration) -> Vec<Result<bool>> {
        self.do_quarantine(items, self.core.deadline(within)).await
    }

    async fn quarantined(
        &self,
        after: Option<&Quarantined>,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Quarantined>> {
        self.do_quarantined(after, limit, self.core.deadline(within)).await
    }

    async fn quarantined_bytes(&self, which: &Quarantined, within: Duration) -> Result<Vec<u8>> {
        self.do_quarantined_bytes(which, self.core.deadline(within)).await
    }

    fn passed_over(&self) -> PassedOver {
        let (quarantined, later) = self.core.passed_over().counts();
        PassedOver { quarantined, later }
    }

    fn seen_clock(&self) -> Option<(Tick, Duration)> {
        self.core.seen_clock()
    }
}
