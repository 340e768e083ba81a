//! A free: its bytes are reserved for waiters, or become a deposit, in the transaction that frees.
//!
//! First for those of this process, then for those in the shared queue; a deposit is made only if the queue is empty, or
//! if what is left is too little for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tensorhold_core::{Deadline, Error, Result};
use tensorhold_custody::quota::{Deposit, Waiter};
use tensorhold_custody::{Retired, Version};

use super::Quota;
use super::draft::{Draft, Grants};
use super::serve::{MOST_SPENT, draw};
use super::wait::Waiting;
use crate::record::types::SampleRef;
use crate::store::{Condition, Read, Snapshot};
use crate::txn::batch::{Loaded, Moved, QuotaBudget, QuotaChange};
use crate::txn::session::Session;

/// The paid bytes of samples that are being freed.
pub(crate) struct Refund<'a> {
    quota: &'a Arc<Quota>,
    session: &'a Session,
    /// Whether the queue is looked at before the next try.
    looks: AtomicBool,
    under_way: Mutex<UnderWay>,
    /// The keys that the last look asked about.
    asked: Mutex<Vec<String>>,
    /// Whether a deposit was made although processes wait.
    left_over: AtomicBool,
}

/// What the last transaction that was prepared does.
#[derive(Debug, Default)]
struct UnderWay {
    waiters: Vec<Waiter<Waiting>>,
    grants: Grants,
    deposit: Option<(String, u64)>,
    /// Whether the deposit is left over, beside processes that wait.
    left_over: bool,
    /// If the transaction is refused, these are asked about.
    to_ask: Vec<String>,
}

impl Quota {
    pub(crate) fn refund<'a>(self: &'a Arc<Self>, session: &'a Session) -> Refund<'a> {
        // Those of this process are served without a look.
        let (own, in_queue) = {
            let state = self.state.lock();
            (state.broker.feeds_its_own(self.version()), state.broker.is_in_queue())
        };
        let processes_wait = in_queue || self.others_wait.load(Ordering::Relaxed);
        Refund {
            quota: self,
            session,
            looks: AtomicBool::new(processes_wait && !own),
            under_way: Mutex::default(),
            asked: Mutex::default(),
            left_over: AtomicBool::new(false),
        }
    }
}

impl Refund<'_> {
    /// A look at the queue, if processes are known to wait.
    pub(crate) async fn look(&self, deadline: Deadline) -> Result<Option<Snapshot>> {
        if !self.looks.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let left = deadline.remaining(self.quota.core.clock());
        let reads = self.quota.look_reads(&[]);
        let snapshot = self.quota.core.txn_store().read(&reads, left).await?;
        // The shared clock that it shows is the one that the transaction requires.
        self.quota.looked(&snapshot, &[])?;
        Ok(Some(snapshot))
    }

    /// Serves a process that may have joined the queue meanwhile, if something was left over.
    pub(crate) async fn finish(self, deadline: Deadline) {
        if self.left_over.into_inner() {
            self.quota.serve_or_leave_it(self.session, deadline).await;
        }
    }
}

impl QuotaChange<SampleRef> for Refund<'_> {
    fn reads(&self) -> Vec<Read> {
        if !self.looks.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let more = std::mem::take(&mut self.under_way.lock().to_ask);
        let mut ask = self.asked.lock();
        self.quota.ask_also(&mut ask, more);
        self.quota.look_reads(&*ask)
    }

    fn move_for(&self, items: &[&SampleRef], loaded: &Loaded, mut room: QuotaBudget) -> Result<Moved> {
        *self.under_way.lock() = UnderWay::default();
        let layout = self.quota.core.layout();
        let (mut freed, mut claims) = (0_u64, Vec::new());
        for item in items {
            if let Some(retired) = loaded.record::<Retired>(&layout.free_key(item))? {
                freed = freed.saturating_add(retired.record.paid);
                claims.extend(retired.record.claims.iter().map(|key| layout.claim(key)));
            }
        }
        if freed == 0 {
            return Ok(Moved::default());
        }
        let look = loaded
            .quota
            .as_ref()
            .map(|snapshot| self.quota.looked(snapshot, &self.asked.lock()))
            .transpose()?;
        let look = look.filter(|look| !look.is_empty);
        // For the deposits, and for the condition that the queue is empty.
        room.operations = room.operations.saturating_sub(MOST_SPENT + 2);
        let unknown = || Error::internal("index.freed", "the shared clock is not known");
        let clock = (loaded.tick, loaded.clock.ok_or_else(unknown)?);
        let mut draft = Draft::new(self.quota, self.session, clock, room);
        draft.besides(claims);
        let (waiters, merged) = {
            let mut state = self.quota.state.lock();
            let waiters = state
                .broker
                .feed(freed, self.quota.version(), |waiter| draft.add(waiter));
            freed -= waiters.iter().map(|waiter| waiter.bytes).sum::<u64>();
            let merged = match &look {
                None if freed > 0 => state.broker.merge(),
                _ => Vec::new(),
            };
            (waiters, merged)
        };
        let new = self.quota.new_deposit(self.session.id());
        let mut under_way = UnderWay {
            waiters,
            ..UnderWay::default()
        };
        match &look {
            Some(look) if freed > 0 => {
                let drawn = draw(self.quota.core.rng(), look.queue.len());
                let rest = self.quota.divide(look, freed, Some(drawn), &mut draft);
                under_way.left_over = rest > 0;
                draft.deposit(new, rest);
            }
            _ if freed > 0 => {
                let merged_bytes = merged.iter().map(|(_, deposit)| deposit.bytes);
                freed = merged_bytes.fold(freed, u64::saturating_add);
                draft.spend(merged);
                draft.require(Condition::NoneIn(layout.shared_queue()));
                draft.deposit(new.clone(), freed);
                under_way.deposit = Some((new, freed));
            }
            _ => {}
        }
        under_way.to_ask = draft.to_ask();
        let (moved, grants) = draft.finish();
        under_way.grants = grants;
        *self.under_way.lock() = under_way;
        Ok(moved)
    }

    fn moved(&self, version: Version) {
        let under_way = std::mem::take(&mut *self.under_way.lock());
        under_way.grants.tell(under_way.waiters, version);
        self.left_over.fetch_or(under_way.left_over, Ordering::Relaxed);
        self.asked.lock().clear();
        if let Some((key, bytes)) = under_way.deposit {
            self.quota.state.lock().broker.made(key, Deposit { bytes, version });
        }
    }

    fn not_moved(&self, unclear: bool) {
        let waiters = std::mem::take(&mut self.under_way.lock().waiters);
        // The queue may be why.
        self.looks.store(true, Ordering::Relaxed);
        if !unclear && !waiters.is_empty() {
            self.quota.put_back(waiters);
            // It may have ended while they were being served.
            self.quota.run_task(&mut self.quota.state.lock());
        }
    }
}
