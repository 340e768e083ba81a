//! The index, with hooks on what the proofs watch.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tensorhold_core::{Clock, Generation, ObjectKey, Result, SampleId};
use tensorhold_custody::{GroupName, Reason, Tick, Version};
use tensorhold_index::{
    AckOutcome, Backlog, BudgetUse, Commit, CommitOutcome, Counts, FreeList, HoldersSeen, Index, Known, Leader,
    LeaderWatch, Leaders, LeaseGrant, LeaseList, ListPlace, LiveSample, LiveSession, LostWatch, Office, PassedOver,
    Quarantined, RecordList, RecordQuery, Reserve, SampleRecord, SampleRef, Session, SweepReport, Terms, Unreadable,
};
use tokio_util::sync::CancellationToken;

use crate::doom::Point;
use crate::hooks::Hooks;
use crate::journal::Event;

#[derive(Debug)]
pub(crate) struct HookedIndex {
    pub(crate) inner: Arc<dyn Index>,
    pub(crate) hooks: Arc<Hooks>,
}

#[async_trait]
impl Index for HookedIndex {
    fn history(&self) -> tensorhold_index::History {
        self.inner.history()
    }

    async fn open_session(&self, within: Duration) -> Result<Session> {
        self.inner.open_session(within).await
    }

    async fn set_budget(&self, bytes: u64, within: Duration) -> Result<()> {
        self.inner.set_budget(bytes, within).await
    }

    async fn ensure_budget(&self, bytes: u64, within: Duration) -> Result<u64> {
        self.inner.ensure_budget(bytes, within).await
    }

    async fn reserve_unless(
        &self,
        session: &Session,
        items: &[Reserve],
        cancelled: &CancellationToken,
        within: Duration,
    ) -> Vec<Result<Generation>> {
        let begun = self.hooks.clock.now();
        let results = self.inner.reserve_unless(session, items, cancelled, within).await;
        let millis = self.hooks.clock.now().since(begun).as_secs_f64() * 1e3;
        self.hooks.journal.note(&Event::Reserved { millis });
        self.hooks.step(Point::AfterReserve).await;
        results
    }

    async fn commit(&self, session: &Session, items: &[Commit], within: Duration) -> Vec<Result<CommitOutcome>> {
        if !items.is_empty() {
            self.hooks.step(Point::BeforeCommit).await;
        }
        for item in items {
            if let Some(becomes) = &item.becomes {
                self.hooks.named(&item.sample.sample, &becomes.sample);
            }
        }
        let results = self.inner.commit(session, items, within).await;
        if results.iter().any(Result::is_ok) {
            self.hooks.step(Point::AfterCommit).await;
        }
        results
    }

    async fn abort(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.inner.abort(session, items, within).await
    }

    async fn unreserve(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.inner.unreserve(session, items, within).await
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
        self.inner.take(session, group, items, ticks, terms, within).await
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
        let held = self.inner.take_next(session, group, count, ticks, terms, within).await;
        if held.as_ref().is_ok_and(|held| !held.is_empty()) {
            self.hooks.step(Point::AfterLease).await;
        }
        held
    }

    async fn renew(
        &self,
        session: &Session,
        items: &[LeaseGrant],
        ticks: u64,
        within: Duration,
    ) -> Vec<Result<LeaseGrant>> {
        self.inner.renew(session, items, ticks, within).await
    }

    async fn ack(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>> {
        let call = self.hooks.call(Point::MidAck);
        let results = self.inner.ack(session, items, within).await;
        if let Some(call) = call {
            call.over();
        }
        results
    }

    async fn nack(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>> {
        self.inner.nack(session, items, within).await
    }

    async fn release(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<()>> {
        self.inner.release(session, items, within).await
    }

    async fn use_up(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>> {
        self.inner.use_up(session, items, within).await
    }

    async fn check(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Result<Vec<bool>> {
        self.inner.check(session, items, within).await
    }

    async fn retire(
        &self,
        session: &Session,
        items: &[SampleRef],
        reason: Reason,
        within: Duration,
    ) -> Vec<Result<AckOutcome>> {
        self.inner.retire(session, items, reason, within).await
    }

    async fn reopen(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.inner.reopen(session, items, within).await
    }

    async fn peek(&self, group: &GroupName, count: usize, at_once: usize, within: Duration) -> Result<Vec<SampleRef>> {
        self.inner.peek(group, count, at_once, within).await
    }

    async fn sessions(&self, within: Duration) -> Result<Vec<LiveSession>> {
        self.inner.sessions(within).await
    }

    async fn known(&self, samples: &[SampleRef], within: Duration) -> Result<Vec<Known>> {
        self.inner.known(samples, within).await
    }

    fn watch_lost(&self) -> LostWatch {
        self.inner.watch_lost()
    }

    async fn records(
        &self,
        query: &RecordQuery,
        after: Option<&ListPlace>,
        limit: usize,
        within: Duration,
    ) -> Result<RecordList> {
        self.inner.records(query, after, limit, within).await
    }

    async fn records_of(&self, sample: &SampleId, within: Duration) -> Result<Vec<SampleRecord>> {
        self.inner.records_of(sample, within).await
    }

    async fn counts(&self, within: Duration) -> Result<Counts> {
        self.inner.counts(within).await
    }

    async fn backlog(&self, most: usize, within: Duration) -> Result<Vec<Backlog>> {
        self.inner.backlog(most, within).await
    }

    async fn leases(&self, limit: usize, within: Duration) -> Result<LeaseList> {
        self.inner.leases(limit, within).await
    }

    async fn budget_use(&self, within: Duration) -> Result<Option<BudgetUse>> {
        self.inner.budget_use(within).await
    }

    async fn requeue(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<Version>> {
        self.inner.requeue(session, items, within).await
    }

    async fn drop_dead(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<bool>> {
        self.inner.drop_dead(session, items, within).await
    }

    async fn look(&self, samples: &[SampleId], within: Duration) -> Result<Vec<Option<LiveSample>>> {
        self.inner.look(samples, within).await
    }

    async fn owners(&self, keys: &[ObjectKey], within: Duration) -> Result<Vec<Option<SampleRef>>> {
        self.inner.owners(keys, within).await
    }

    async fn sweep(&self, session: &Session, limit: usize, within: Duration) -> Result<SweepReport> {
        self.inner.sweep(session, limit, within).await
    }

    async fn lead(&self, session: &Session, office: Office, within: Duration) -> Result<Leader> {
        self.inner.lead(session, office, within).await
    }

    async fn resign(&self, session: &Session, office: Office, within: Duration) -> Result<()> {
        self.inner.resign(session, office, within).await
    }

    async fn holders_seen(&self, within: Duration) -> Result<HoldersSeen> {
        self.inner.holders_seen(within).await
    }

    async fn note_holders(&self, session: &Session, seen: &HoldersSeen, within: Duration) -> Result<Version> {
        self.inner.note_holders(session, seen, within).await
    }

    async fn leaders(&self, within: Duration) -> Result<Leaders> {
        self.inner.leaders(within).await
    }

    async fn watch_leaders(&self, since: &Leaders, within: Duration) -> Result<LeaderWatch> {
        self.inner.watch_leaders(since, within).await
    }

    async fn confirm_place(&self, within: Duration) -> Result<()> {
        self.inner.confirm_place(within).await
    }

    async fn tick(&self, within: Duration) -> Result<Tick> {
        self.inner.tick(within).await
    }

    async fn to_free(&self, after: Option<&ListPlace>, limit: usize, within: Duration) -> Result<FreeList> {
        self.inner.to_free(after, limit, within).await
    }

    async fn freed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<bool>> {
        self.inner.freed(session, items, within).await
    }

    async fn free_failed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.inner.free_failed(session, items, within).await
    }

    async fn quarantine(&self, items: &[Unreadable], within: Duration) -> Vec<Result<bool>> {
        self.inner.quarantine(items, within).await
    }

    async fn quarantined(
        &self,
        after: Option<&Quarantined>,
        limit: usize,
        within: Duration,
    ) -> Result<Vec<Quarantined>> {
        self.inner.quarantined(after, limit, within).await
    }

    async fn quarantined_bytes(&self, which: &Quarantined, within: Duration) -> Result<Vec<u8>> {
        self.inner.quarantined_bytes(which, within).await
    }

    fn seen_clock(&self) -> Option<(Tick, Duration)> {
        self.inner.seen_clock()
    }

    fn tick_length(&self) -> Duration {
        self.inner.tick_length()
    }

    fn passed_over(&self) -> PassedOver {
        self.inner.passed_over()
    }
}
