//! An index that gets one thing wrong, over any store.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Error, Generation, ObjectKey, Result, SampleId};
use tensorhold_custody::{GroupName, Reason, Tick, Version};
use tensorhold_index::{
    AckOutcome, Backlog, BudgetUse, Commit, CommitOutcome, Counts, FreeList, FreeTask, HoldersSeen, Index, Known,
    Leader, LeaderWatch, Leaders, LeaseGrant, LeaseList, ListPlace, LiveSample, LiveSession, LostWatch, Office,
    PassedOver, Quarantined, RecordList, RecordQuery, Reserve, SampleRecord, SampleRef, Session, SweepReport, Terms,
    Unreadable,
};
use tokio_util::sync::CancellationToken;

use crate::flaw::Flaw;

#[derive(Debug)]
pub(crate) struct FlawedIndex {
    inner: Arc<dyn Index>,
    flaw: Flaw,
    freed: Mutex<HashSet<SampleRef>>,
    retired: Mutex<Vec<SampleRef>>,
}

impl FlawedIndex {
    pub(crate) fn new(inner: Arc<dyn Index>, flaw: Flaw) -> Self {
        Self {
            inner,
            flaw,
            freed: Mutex::default(),
            retired: Mutex::default(),
        }
    }

    fn cut(&self, mut held: LeaseGrant) -> LeaseGrant {
        if self.flaw == Flaw::DescriptionIsCut {
            held.description = held.description.split_last().map_or(&[][..], |(_, rest)| rest).into();
        }
        held
    }

    fn stop_at_a_refusal<T>(&self, results: Vec<Result<T>>) -> Vec<Result<T>> {
        let mut refusal: Option<Error> = None;
        let stop = self.flaw == Flaw::BatchStopsAtARefusal;
        let mut stopped = Vec::with_capacity(results.len());
        for result in results {
            stopped.push(match (&refusal, result) {
                (Some(error), _) if stop => Err(error.clone()),
                (_, result) => result,
            });
            if let Some(Err(error)) = stopped.last() {
                refusal = Some(error.clone());
            }
        }
        stopped
    }

    /// The right token, whichever one the caller presents.
    async fn forgiven(&self, held: &LeaseGrant, within: Duration) -> LeaseGrant {
        let mut held = held.clone();
        if self.flaw == Flaw::AckIgnoresToken
            && let Ok(views) = self.inner.look(std::slice::from_ref(&held.sample.sample), within).await
            && let Some(Some(view)) = views.first()
            && let Some(lease) = view.record.record.leases().next()
        {
            held.token = lease.token;
        }
        held
    }
}

#[async_trait]
impl Index for FlawedIndex {
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
        self.stop_at_a_refusal(self.inner.reserve_unless(session, items, cancelled, within).await)
    }

    async fn commit(&self, session: &Session, items: &[Commit], within: Duration) -> Vec<Result<CommitOutcome>> {
        self.inner.commit(session, items, within).await
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
        let results = self.inner.take(session, group, items, ticks, terms, within).await;
        results
            .into_iter()
            .map(|result| result.map(|held| self.cut(held)))
            .collect()
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
        let more = usize::from(self.flaw == Flaw::TakesOneMore);
        self.inner
            .take_next(session, group, count + more, ticks, terms, within)
            .await
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
        let mut forgiven = Vec::with_capacity(items.len());
        for held in items {
            forgiven.push(self.forgiven(held, within).await);
        }
        self.inner.ack(session, &forgiven, within).await
    }

    async fn nack(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>> {
        self.inner.nack(session, items, within).await
    }

    async fn release(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<()>> {
        let mut items = items.to_vec();
        if self.flaw == Flaw::UntakeCounts {
            items.iter_mut().for_each(|held| held.unserved = false);
        }
        self.inner.release(session, &items, within).await
    }

    async fn use_up(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Vec<Result<AckOutcome>> {
        self.inner.use_up(session, items, within).await
    }

    async fn check(&self, session: &Session, items: &[LeaseGrant], within: Duration) -> Result<Vec<bool>> {
        if self.flaw == Flaw::CheckSaysYes {
            return Ok(vec![true; items.len()]);
        }
        self.inner.check(session, items, within).await
    }

    async fn retire(
        &self,
        session: &Session,
        items: &[SampleRef],
        reason: Reason,
        within: Duration,
    ) -> Vec<Result<AckOutcome>> {
        self.retired.lock().extend_from_slice(items);
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
        let mut known = self.inner.known(samples, within).await?;
        if self.flaw == Flaw::KnowsOnlyLive {
            let ids: Vec<_> = samples.iter().map(|sample| sample.sample.clone()).collect();
            let live = self.inner.look(&ids, within).await?;
            for (known, live) in known.iter_mut().zip(live) {
                *known = if live.is_some() { Known::Yes } else { Known::No };
            }
        }
        Ok(known)
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

    async fn leaders(&self, within: Duration) -> Result<Leaders> {
        self.inner.leaders(within).await
    }

    async fn watch_leaders(&self, since: &Leaders, within: Duration) -> Result<LeaderWatch> {
        self.inner.watch_leaders(since, within).await
    }

    async fn holders_seen(&self, within: Duration) -> Result<HoldersSeen> {
        self.inner.holders_seen(within).await
    }

    async fn note_holders(&self, session: &Session, seen: &HoldersSeen, within: Duration) -> Result<Version> {
        let mut seen = seen.clone();
        if self.flaw == Flaw::NotesOverOthers {
            seen.version = self.inner.holders_seen(within).await?.version;
        }
        self.inner.note_holders(session, &seen, within).await
    }

    async fn confirm_place(&self, within: Duration) -> Result<()> {
        self.inner.confirm_place(within).await
    }

    async fn tick(&self, within: Duration) -> Result<Tick> {
        self.inner.tick(within).await
    }

    async fn to_free(&self, after: Option<&ListPlace>, limit: usize, within: Duration) -> Result<FreeList> {
        let mut list = self.inner.to_free(after, limit, within).await?;
        let tasks = &mut list.tasks;
        if self.flaw == Flaw::ForgetsReaders {
            // All retired samples, as if none had a lease on it.
            for sample in self.retired.lock().iter() {
                if let Some(known) = tasks.first().cloned()
                    && !tasks.iter().any(|task| task.sample == *sample)
                {
                    tasks.push(FreeTask {
                        sample: sample.clone(),
                        ..known
                    });
                }
            }
        }
        Ok(list)
    }

    async fn freed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<bool>> {
        let results = self.inner.freed(session, items, within).await;
        if self.flaw != Flaw::FreedTwiceFails {
            return results;
        }
        let mut freed = self.freed.lock();
        let again = |sample: &SampleRef| Err(Error::invalid("flawed.freed", format!("{sample:?} is gone")));
        let first = |sample: &SampleRef| freed.insert(sample.clone());
        let first: Vec<bool> = items.iter().map(first).collect();
        let results = results.into_iter().zip(items.iter().zip(first));
        results
            .map(|(result, (sample, first))| if first { result } else { again(sample) })
            .collect()
    }

    async fn free_failed(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        if self.flaw == Flaw::ForgetsFailures {
            return items.iter().map(|_| Ok(())).collect();
        }
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

    fn tick_length(&self) -> Duration {
        self.inner.tick_length()
    }

    fn passed_over(&self) -> PassedOver {
        self.inner.passed_over()
    }
}
