//! An index that does not say whether a commit was made.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tensorhold_core::{Error, ErrorKind, Generation, ObjectKey, Result, Retry, SampleId};
use tensorhold_custody::{GroupName, Reason, Tick, Version};
use tensorhold_index::{
    AckOutcome, Backlog, BudgetUse, Commit, CommitOutcome, Counts, FreeList, HoldersSeen, Index, Known, Leader,
    LeaderWatch, Leaders, LeaseGrant, LeaseList, ListPlace, LiveSample, LiveSession, LostWatch, Office, PassedOver,
    Quarantined, RecordList, RecordQuery, Reserve, SampleRecord, SampleRef, Session, SessionEnded, SweepReport, Terms,
    Unreadable,
};
use tokio_util::sync::CancellationToken;

/// What becomes of commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are answered.
    Pass,
    /// They are made, and the caller is not told.
    MadeUntold,
    /// They are not made, and the caller is not told.
    LostUntold,
    /// One commit is refused because the session has ended; later ones pass.
    SessionEnded,
    /// Every other one of a batch is made, and the caller is not told.
    SomeMadeUntold,
    /// They are made, the caller is not told, and questions about them are not answered either.
    MadeAndSilent,
    /// As `MadeAndSilent`, but questions take all the time that they are given.
    MadeAndHung,
    /// They are answered; a retirement is made at once, and told when its time is nearly over.
    RetiredToldLate,
}

#[derive(Debug)]
pub struct Unclear {
    inner: Arc<dyn Index>,
    mode: Mutex<Mode>,
    most_aborted: AtomicUsize,
}

impl Unclear {
    pub fn new(inner: Arc<dyn Index>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            mode: Mutex::new(Mode::Pass),
            most_aborted: AtomicUsize::new(0),
        })
    }

    pub fn set(&self, mode: Mode) {
        *self.mode.lock() = mode;
    }

    fn mode(&self) -> Mode {
        *self.mode.lock()
    }

    /// How many reservations one call asked to give up, at most.
    pub fn most_aborted(&self) -> usize {
        self.most_aborted.load(Ordering::SeqCst)
    }

    /// Whether a question is answered.
    async fn answers(&self, within: Duration) -> bool {
        match self.mode() {
            Mode::Pass
            | Mode::SessionEnded
            | Mode::MadeUntold
            | Mode::LostUntold
            | Mode::SomeMadeUntold
            | Mode::RetiredToldLate => true,
            Mode::MadeAndSilent => false,
            Mode::MadeAndHung => {
                tokio::time::sleep(within).await;
                false
            }
        }
    }
}

fn untold() -> Error {
    Error::unavailable("index.commit", "nobody says (as the test asked for)").with_retry(Retry::Ambiguous)
}

fn silent() -> Error {
    Error::unavailable("index", "silent (as the test asked for)")
}

#[async_trait]
impl Index for Unclear {
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
        self.inner.reserve_unless(session, items, cancelled, within).await
    }

    async fn commit(&self, session: &Session, items: &[Commit], within: Duration) -> Vec<Result<CommitOutcome>> {
        let mode = self.mode();
        if mode == Mode::SessionEnded {
            self.set(Mode::Pass);
            let ended = Error::new(ErrorKind::Fenced, "index.commit", "this session has ended");
            let ended = ended.caused_by(SessionEnded(session.id()));
            return items.iter().map(|_| Err(ended.clone())).collect();
        }
        if mode == Mode::LostUntold {
            return items.iter().map(|_| Err(untold())).collect();
        }
        let step = if mode == Mode::SomeMadeUntold { 2 } else { 1 };
        let made: Vec<Commit> = items.iter().step_by(step).cloned().collect();
        let answers = self.inner.commit(session, &made, within).await;
        if mode == Mode::Pass {
            return answers;
        }
        items.iter().map(|_| Err(untold())).collect()
    }

    async fn abort(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.most_aborted.fetch_max(items.len(), Ordering::SeqCst);
        if !self.answers(within).await {
            return items.iter().map(|_| Err(silent())).collect();
        }
        self.inner.abort(session, items, within).await
    }

    async fn unreserve(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        if !self.answers(within).await {
            return items.iter().map(|_| Err(silent())).collect();
        }
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
        self.inner.take_next(session, group, count, ticks, terms, within).await
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
        self.inner.ack(session, items, within).await
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
        let answers = self.inner.retire(session, items, reason, within).await;
        if self.mode() == Mode::RetiredToldLate {
            tokio::time::sleep(within * 9 / 10).await;
        }
        answers
    }

    async fn reopen(&self, session: &Session, items: &[SampleRef], within: Duration) -> Vec<Result<()>> {
        self.inner.reopen(session, items, within).await
    }

    async fn peek(&self, group: &GroupName, count: usize, at_once: usize, within: Duration) -> Result<Vec<SampleRef>> {
        if !self.answers(within).await {
            return Err(silent());
        }
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
        if !self.answers(within).await {
            return Err(silent());
        }
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
