//! A transaction in the making: the reservations of waiters, as many as there is room for.

use std::collections::BTreeSet;

use tensorhold_core::{Result, SampleId};
use tensorhold_custody::quota::{Deposit, Waiter};
use tensorhold_custody::{SessionId, Tick, Version};

use super::Quota;
use super::request::{Ending, Queued, WaitRequest, WaitResult};
use super::wait::{Answer, Waiting};
use crate::record::codec::encode;
use crate::record::grants::{GrantList, Holding};
use crate::store::{Condition, Write};
use crate::txn::batch::{Moved, QuotaBudget};
use crate::txn::session::Session;

/// Reservations of waiters, each on condition that its session is alive and that nobody else writes its samples.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    quota: &'a Quota,
    /// The session that sends it.
    session: &'a Session,
    clock: Version,
    until: Tick,
    room: QuotaBudget,
    moved: Moved,
    reserving: BTreeSet<String>,
    /// Keys that the transaction writes besides.
    written: BTreeSet<String>,
    /// Keys of sessions that must be alive.
    alive: BTreeSet<String>,
    grants: Grants,
}

impl<'a> Draft<'a> {
    pub(super) fn new(quota: &'a Quota, session: &'a Session, clock: (Tick, Version), mut room: QuotaBudget) -> Self {
        let (tick, clock) = clock;
        let until = tick.after(quota.core.config().reserve_ticks);
        // For the condition on the clock.
        room.operations = room.operations.saturating_sub(1);
        Self {
            quota,
            session,
            clock,
            until,
            room,
            moved: Moved::default(),
            reserving: BTreeSet::new(),
            written: BTreeSet::new(),
            alive: BTreeSet::new(),
            grants: Grants {
                until,
                keys: Vec::new(),
            },
        }
    }

    /// The transaction writes these keys, too: no key is written twice.
    pub(super) fn besides(&mut self, keys: impl IntoIterator<Item = String>) {
        self.written.extend(keys);
    }

    /// Adds the reservations of a waiter of this process. False if there is no room for them.
    pub(super) fn add(&mut self, waiter: &Waiter<Waiting>) -> bool {
        let Waiting { session, want, .. } = &waiter.what;
        let grant = self.reserve(session.id(), want, None, |_| Ok(Vec::new()));
        let is_added = grant.is_some();
        self.grants.keys.extend(grant);
        is_added
    }

    /// Adds the reservations of a process in the shared queue, which leaves it by that and is told so.
    pub(super) fn add_queued(&mut self, queued: &Queued) -> bool {
        let in_queue = Condition::Unchanged(queued.key.clone(), queued.since);
        let until = self.until;
        let quota = self.quota;
        self.reserve(queued.session, &queued.want, Some(in_queue), |note| {
            let note = note.to_owned();
            ending(quota, queued, Ending::Reserved { until, note })
        })
        .is_some()
    }

    /// Takes a process out of the queue whose samples others write, and tells it.
    pub(super) fn refuse(&mut self, queued: &Queued, taken: Vec<SampleId>) {
        let alive = self.quota.core.layout().alive(queued.session);
        let conditions = vec![
            Condition::Unchanged(queued.key.clone(), queued.since),
            Condition::Present(alive.clone()),
        ];
        self.alive.insert(alive);
        match ending(self.quota, queued, Ending::Taken { samples: taken }) {
            // If there is no room, the next transaction does it.
            Ok(writes) => drop(self.moved.add(Moved { conditions, writes }, &mut self.room)),
            Err(error) => tracing::error!(%error, "an answer cannot be encoded"),
        }
    }

    fn reserve(
        &mut self,
        session: SessionId,
        want: &WaitRequest,
        condition: Option<Condition>,
        more: impl FnOnce(&str) -> Result<Vec<Write>>,
    ) -> Option<String> {
        let keys = want.in_its_way(self.quota.core.layout());
        // Two may want the same sample: the second finds out when the first has it.
        if keys
            .iter()
            .any(|key| self.reserving.contains(key) || self.written.contains(key))
        {
            return None;
        }
        let alive = self.quota.core.layout().alive(session);
        let prepared = self.prepare(session, want).and_then(|(mut moved, grant)| {
            moved.conditions.extend(condition);
            moved.conditions.push(Condition::Present(alive.clone()));
            moved.writes.extend(more(&grant)?);
            Ok((moved, grant))
        });
        let (moved, grant) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                tracing::error!(%error, "a reservation cannot be encoded");
                return None;
            }
        };
        if !self.moved.add(moved, &mut self.room) {
            return None;
        }
        self.reserving.extend(keys);
        self.alive.insert(alive);
        Some(grant)
    }

    fn prepare(&self, session: SessionId, want: &WaitRequest) -> Result<(Moved, String)> {
        let layout = self.quota.core.layout();
        let key = layout.grant_list(session, self.until, self.session.id(), self.session.grants.next());
        let (mut moved, mut grant) = (Moved::default(), GrantList::default());
        for item in &want.samples {
            moved.conditions.extend(item.in_its_way(layout).map(Condition::Absent));
            moved.writes.extend(layout.put_claims(&item.sample, &item.claims));
            let record = item.reserved(session, self.until);
            moved.writes.push(layout.put_reserved(&item.sample, &record)?);
            grant.add(Holding {
                sample: item.sample.clone(),
                generation: None,
            });
        }
        moved.writes.push(Write::put(key.clone(), encode(&grant)?));
        Ok((moved, key))
    }

    /// Spends deposits.
    pub(super) fn spend(&mut self, deposits: impl IntoIterator<Item = (String, Deposit)>) {
        for (key, deposit) in deposits {
            self.require(Condition::Unchanged(key.clone(), deposit.version));
            self.moved.writes.push(Write::Delete(key));
        }
    }

    /// Makes a deposit, if there is something to put into it.
    pub(super) fn deposit(&mut self, key: String, bytes: u64) {
        let deposit = (bytes > 0).then(|| Write::put(key, bytes.to_string()));
        self.moved.writes.extend(deposit);
    }

    pub(super) fn require(&mut self, condition: Condition) {
        self.moved.conditions.push(condition);
    }

    /// The keys that must be absent, and those that must be there: if the transaction is refused, one of them may be why.
    pub(super) fn to_ask(&self) -> Vec<String> {
        self.reserving.union(&self.alive).cloned().collect()
    }

    /// Whether there is nothing to write but what would be there anyway.
    pub(super) fn does_nothing(&self) -> bool {
        self.moved.conditions.is_empty()
    }

    /// What is to be written, and what the waiters of this process are told.
    pub(super) fn finish(self) -> (Moved, Grants) {
        let mut moved = self.moved;
        if !self.reserving.is_empty() {
            let clock = self.quota.core.layout().clock();
            moved.conditions.push(Condition::Unchanged(clock, self.clock));
        }
        (moved, self.grants)
    }
}

/// The writes by which a process leaves the queue and is told how its wait ended.
fn ending(quota: &Quota, queued: &Queued, ending: Ending) -> Result<Vec<Write>> {
    let told = WaitResult {
        since: queued.since,
        ending,
    };
    Ok(vec![
        Write::Delete(queued.key.clone()),
        Write::Put {
            key: quota.core.layout().wait_result(queued.session),
            value: encode(&told)?,
            session: Some(queued.session),
        },
    ])
}

/// What the waiters of this process that a draft serves are told.
#[derive(Debug, Default)]
pub(super) struct Grants {
    until: Tick,
    keys: Vec<String>,
}

impl Grants {
    /// The draft was applied.
    pub(super) fn tell(self, waiters: Vec<Waiter<Waiting>>, version: Version) {
        for (waiter, grant) in waiters.into_iter().zip(self.keys) {
            let until = self.until;
            waiter.what.tell(Answer::Reserved { version, until, grant });
        }
    }
}
