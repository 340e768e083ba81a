//! One round of a batch: what was decided for each item, packed into as few transactions as the store's limits allow.
//!
//! Items in one transaction share what does not concern a single item: the session's slot, the condition on the clock,
//! the grant list, the quota. The transactions of one round are about equally large and are sent at the same time:
//! none depends on another, because no two items of a round write the same key. Only transactions that move quota are
//! sent one after the other.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use futures_util::future::join_all;
use tensorhold_core::{BatchResults, Deadline, Digest, Error, Result, Retry};
use tensorhold_custody::{SessionId, Tick, Version};

use crate::record::codec::{encode, unreadable_key, without_description};
use crate::record::grants::{Grant, GrantLine, GrantList, Holding, OpenGrantList};
use crate::store::{Condition, TxnOutcome, Write};
use crate::txn::TxnCore;
use crate::txn::batch::{self, Intent, Loaded};
use crate::txn::decision::{Decision, Done, Outcome, TxnBudget};
use crate::txn::record_cache::CachedRecord;
use crate::txn::session::{Session, SlotClient};

/// Bytes reserved in every transaction for what does not concern its items: the slot, the session, the clock, quota.
const OTHER_BYTES: usize = 64 * 1024;

/// Capacity hint: about this many conditions or writes of a transaction do not concern its items.
const MORE: usize = 8;

impl TxnCore {
    /// How many operations of a transaction are left for items and grant lists.
    fn room<Item, T>(&self, intent: &Intent<'_, Item, T>) -> usize {
        let for_quota = intent.quota.map_or(0, |_| batch::QUOTA_OPERATIONS);
        self.txn_store().limits().operations - SlotClient::OVERHEAD - 1 - for_quota
    }

    /// Decides every open item and sends the changes. Items without a result have to be decided again. Returns the
    /// items that are blocked by a record that cannot be decoded.
    #[expect(clippy::too_many_arguments, reason = "one round of a batch")]
    pub(crate) async fn pack_and_send<Item, T>(
        &self,
        session: &Session,
        items: &[Item],
        open: &[usize],
        intent: &Intent<'_, Item, T>,
        loaded: &Loaded,
        results: &mut BatchResults<Result<T>>,
        deadline: Deadline,
    ) -> Vec<(usize, Error)> {
        let mut refused = Vec::new();
        let most = self.room(intent);
        let most_bytes = self.txn_store().limits().bytes.saturating_sub(OTHER_BYTES);
        let mut decided: Vec<(usize, Decision<T>)> = Vec::with_capacity(open.len());
        // Keys are compared by hash. A collision makes two keys look the same, which costs one more round and nothing
        // else.
        let hasher = RandomState::new();
        let mut touched: HashSet<u64> = HashSet::with_capacity(2 * open.len());
        for at in open {
            match (intent.decide)(&items[*at], loaded) {
                // Decided from what the caller believed: the records have yet to be read.
                Err(_) if loaded.guess => {}
                Err(error) if unreadable_key(&error).is_some() => refused.push((*at, error)),
                Err(error) => results.set(*at, Err(error)),
                Ok(decision) if decision.bytes() > most_bytes => {
                    results.set(
                        *at,
                        Err(Error::invalid(
                            intent.operation,
                            "one sample has more bytes than a transaction holds; shorten its description",
                        )
                        .with("bytes", decision.bytes())
                        .with("limit", most_bytes)),
                    );
                }
                Ok(decision) if decision.operations() + 2 > most => {
                    results.set(
                        *at,
                        Err(Error::invalid(
                            intent.operation,
                            "one sample needs more operations than a transaction holds; use fewer groups",
                        )),
                    );
                }
                Ok(decision) if decision.is_nothing() => {
                    let done = Done {
                        version: Version::default(),
                        grant: None,
                    };
                    results.set(*at, Ok(decision.outcome.settled(done)));
                }
                // Two items of one batch concern the same record: the second is decided again after the first is
                // applied.
                Ok(decision)
                    if decision
                        .writes
                        .iter()
                        .any(|write| touched.contains(&hasher.hash_one(write.key()))) => {}
                Ok(decision) => {
                    touched.extend(decision.writes.iter().map(|write| hasher.hash_one(write.key())));
                    decided.push((*at, decision));
                }
            }
        }
        // Two transactions of 32 are better than one of 63 and one of 1.
        let all: usize = decided.iter().map(|(_, decision)| decision.operations()).sum();
        let share = all.div_ceil(all.div_ceil(most - 1).max(1)) + 4;
        let room = || TxnBudget::new(share.min(most), most_bytes);
        let (mut transactions, mut left) = (vec![Vec::new()], room());
        for (at, decision) in decided {
            if !left.take(&decision) {
                left = room();
                left.take(&decision);
                transactions.push(Vec::new());
            }
            if let Some(together) = transactions.last_mut() {
                together.push((at, decision));
            }
        }
        transactions.retain(|together| !together.is_empty());
        let send = |together| self.send(session, items, intent, loaded, together, deadline);
        if intent.quota.is_some() {
            // Waiters are served in their order, so one transaction is decided before the next is prepared.
            for together in transactions {
                for (at, result) in send(together).await {
                    results.set(at, result);
                }
            }
        } else {
            for (at, result) in join_all(transactions.into_iter().map(send)).await.into_iter().flatten() {
                results.set(at, result);
            }
        }
        refused
    }

    /// Sends what was decided for some items as one transaction. Items without a result have to be decided again.
    async fn send<Item, T>(
        &self,
        session: &Session,
        items: &[Item],
        intent: &Intent<'_, Item, T>,
        loaded: &Loaded,
        together: Vec<(usize, Decision<T>)>,
        deadline: Deadline,
    ) -> Vec<(usize, Result<T>)> {
        let places: Vec<usize> = together.iter().map(|(at, _)| *at).collect();
        let prepared = self.prepare(session, items, intent, loaded, together);
        let outcome = match prepared {
            Ok(prepared) => {
                let Prepared {
                    conditions,
                    writes,
                    finish,
                } = prepared;
                let answer = self
                    .slots()
                    .transact(intent.operation, session, conditions, writes, deadline)
                    .await;
                answer.map(|applied| (applied, finish))
            }
            Err(error) => Err(error),
        };
        if let Some(quota) = intent.quota {
            match &outcome {
                Ok((TxnOutcome::Committed(version), _)) => quota.moved(*version),
                Ok((TxnOutcome::Rejected, _)) => quota.not_moved(false),
                Err(error) => quota.not_moved(error.retry() == Retry::Ambiguous),
            }
        }
        match outcome {
            Ok((TxnOutcome::Committed(version), finish)) => finish.done(session, version),
            // Read and decide again. If the reason is that the session has ended, the next read shows that.
            Ok((TxnOutcome::Rejected, finish)) => {
                session.grants.add(finish.struck_out_late);
                Vec::new()
            }
            Err(error) => places.into_iter().map(|at| (at, Err(error.clone()))).collect(),
        }
    }

    fn prepare<Item, T>(
        &self,
        session: &Session,
        items: &[Item],
        intent: &Intent<'_, Item, T>,
        loaded: &Loaded,
        together: Vec<(usize, Decision<T>)>,
    ) -> Result<Prepared<T>> {
        let mut finish = Finish {
            items: Vec::with_capacity(together.len()),
            ended: Vec::new(),
            struck_out: Vec::new(),
            struck_out_late: Vec::new(),
        };
        let all_writes: usize = together.iter().map(|(_, decision)| decision.writes.len()).sum();
        let mut conditions = Vec::with_capacity(together.len() + MORE);
        let mut writes = Vec::with_capacity(all_writes + MORE);
        let mut given: BTreeMap<(SessionId, Tick), Vec<(usize, Holding)>> = BTreeMap::new();
        let these: Vec<&Item> = together.iter().map(|(at, _)| &items[*at]).collect();
        for (at, decision) in together {
            let remembered = decision.writes.last().filter(|_| decision.remember);
            let remembered = remembered.and_then(|write| match write {
                Write::Put { key, value, .. } => {
                    Some((Digest::of(key.as_bytes()), without_description(value).to_vec()))
                }
                Write::Delete(_) => None,
            });
            conditions.extend(decision.conditions);
            writes.extend(decision.writes);
            finish.ended.extend(decision.ends);
            if let Some(Grant { to, until, what }) = decision.gives {
                given.entry((to, until)).or_default().push((finish.items.len(), what));
            }
            finish.items.push(Finished {
                at,
                grant: None,
                outcome: decision.outcome,
                remembered,
            });
        }
        for ((to, until), given) in given {
            let key = self.layout().grant_list(to, until, session.id(), session.grants.next());
            let open = OpenGrantList::new(key.clone(), given.len());
            let mut grant = GrantList::default();
            for (line, (item, what)) in given.into_iter().enumerate() {
                grant.add(what);
                let grant = Arc::clone(&open);
                finish.items[item].grant = Some(GrantLine { grant, line });
            }
            writes.push(Write::put(key, encode(&grant)?));
        }
        finish.struck_out = struck_out(&finish.ended);
        finish.struck_out_late = session
            .grants
            .take(self.room(intent).saturating_sub(writes.len() + finish.struck_out.len()));
        let over = finish.struck_out.iter().chain(&finish.struck_out_late);
        writes.extend(over.cloned().map(Write::Delete));
        if intent.sets_deadlines {
            let set = |version| Condition::Unchanged(self.layout().clock(), version);
            conditions.extend(loaded.clock.map(set));
        }
        if let Some(quota) = intent.quota {
            let limits = self.txn_store().limits();
            let taken = SlotClient::OVERHEAD + conditions.len().max(writes.len());
            let bytes: usize =
                conditions.iter().map(Condition::bytes).sum::<usize>() + writes.iter().map(Write::bytes).sum::<usize>();
            let room = batch::QuotaBudget {
                operations: limits.operations.saturating_sub(taken),
                bytes: limits.bytes.saturating_sub(bytes + OTHER_BYTES / 2),
            };
            let moved = quota.move_for(&these, loaded, room)?;
            conditions.extend(moved.conditions);
            writes.extend(moved.writes);
        }
        Ok(Prepared {
            conditions,
            writes,
            finish,
        })
    }
}

/// The keys of the grant lists that have no open line left.
fn struck_out(ended: &[GrantLine]) -> Vec<String> {
    let mut grants: Vec<(&Arc<OpenGrantList>, Vec<usize>)> = Vec::new();
    for GrantLine { grant, line } in ended {
        match grants.iter_mut().find(|(known, _)| Arc::ptr_eq(known, grant)) {
            Some((_, lines)) => lines.push(*line),
            None => grants.push((grant, vec![*line])),
        }
    }
    let done = grants.into_iter().filter(|(grant, lines)| grant.ends_with(lines));
    done.map(|(grant, _)| grant.key.clone()).collect()
}

struct Prepared<T> {
    conditions: Vec<Condition>,
    writes: Vec<Write>,
    finish: Finish<T>,
}

/// What is left to do once a transaction has been applied.
struct Finish<T> {
    items: Vec<Finished<T>>,
    ended: Vec<GrantLine>,
    /// Grant lists that this transaction ends and deletes.
    struck_out: Vec<String>,
    /// Grant lists that had ended before, and that this transaction deletes.
    struck_out_late: Vec<String>,
}

/// The same for one item.
struct Finished<T> {
    at: usize,
    grant: Option<GrantLine>,
    outcome: Outcome<T>,
    /// A record that the session is likely to change next: the digest of its key, and its value.
    remembered: Option<(Digest, Vec<u8>)>,
}

impl<T> Finish<T> {
    fn done(self, session: &Session, version: Version) -> Vec<(usize, Result<T>)> {
        // Other calls answered the remaining lines at the same time: the next transaction deletes the grant list.
        let over = self.ended.iter().filter(|line| line.answered());
        let missed = over.map(|line| line.grant.key.clone());
        let missed = missed.filter(|key| !self.struck_out.contains(key)).collect();
        session.grants.add(missed);
        let done = |item: Finished<T>| {
            let grant = item.grant;
            if let Some((key, value)) = item.remembered {
                let grant = grant.clone();
                session.remember(key, CachedRecord { value, version, grant });
            }
            (item.at, Ok(item.outcome.settled(Done { version, grant })))
        };
        self.items.into_iter().map(done).collect()
    }
}
