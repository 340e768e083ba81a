//! The budget: set, and changed while samples exist.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use tensorhold_core::{Deadline, Error, ErrorKind, Result, Retry};
use tensorhold_custody::SessionId;

use super::Quota;
use super::request::Queued;
use crate::record::codec::{decode, unreadable};
use crate::record::layout::Layout;
use crate::store::{Condition, Entry, Read, Transaction, TxnOutcome, Write, is_full};
use crate::txn::pages::MOST_BYTES;

const OPERATION: &str = "index.set_budget";

/// No sessions: deposits that a budget's change makes, and one that an earlier release left, are named after them and
/// after a version that comes once.
const CHANGE: SessionId = SessionId(0);
const EARLIER: SessionId = SessionId(u64::MAX);

/// How many deposits are taken, or put together, at a time when a budget shrinks.
const AT_ONCE: usize = 32;

impl Quota {
    /// The store's budget, for a session that begins. What an earlier release kept as free becomes a deposit.
    pub(crate) async fn begin(&self, deadline: Deadline) -> Result<Option<u64>> {
        let layout = self.core.layout();
        let reads = [layout.budget(), layout.earlier_free()].map(Read::Key);
        let left = deadline.remaining(self.core.clock());
        let mut entries = self.core.txn_store().read(&reads, left).await?.entries.into_iter();
        let mut next = || entries.next().and_then(|found| found.into_iter().next());
        let (budget, free) = (next(), next());
        let read = |entry: &Entry| decode::<u64>(entry).map(|bytes| (entry.clone(), bytes));
        let free = self.core.sort_out(free, read, deadline).await?.good.pop();
        if let Some((free, bytes)) = free {
            let mut writes = vec![Write::Delete(free.key.clone())];
            let deposit = layout.deposit(EARLIER, free.version.0);
            writes.extend((bytes > 0).then(|| Write::put(deposit, bytes.to_string())));
            let conditions = vec![Condition::Unchanged(free.key, free.version)];
            let left = deadline.remaining(self.core.clock());
            // If it is refused, another process has done it.
            self.core
                .txn_store()
                .transact(&Transaction { conditions, writes }, left)
                .await?;
        }
        let budget = budget.as_ref().map(decode).transpose()?;
        self.budget.store(budget.unwrap_or(u64::MAX), Ordering::Relaxed);
        Ok(budget)
    }

    /// Makes `bytes` the store's budget. A budget that shrinks takes deposits away; if there are not enough of them, because
    /// samples hold more than `bytes`, it stays as it is. Sessions opened before the first budget need no quota.
    pub(crate) async fn set_budget(&self, bytes: u64, deadline: Deadline) -> Result<()> {
        self.change_budget(bytes, true, deadline).await.map(drop)
    }

    /// Sets the budget if there is none. Returns the one in force.
    pub(crate) async fn ensure_budget(&self, bytes: u64, deadline: Deadline) -> Result<u64> {
        self.change_budget(bytes, false, deadline).await
    }

    async fn change_budget(&self, bytes: u64, resize: bool, deadline: Deadline) -> Result<u64> {
        if resize {
            // What cannot be decoded would hide the deposits behind it.
            self.set_unreadable_aside(deadline).await?;
        }
        let (mut tries, mut last) = (0, None);
        while !deadline.passed(self.core.clock()) {
            let (entry, in_force, deposits) = self.read_budget(deadline).await?;
            let now = in_force.unwrap_or(0);
            if let Some(in_force) = in_force
                && (in_force == bytes || !resize)
            {
                self.budget.store(in_force, Ordering::Relaxed);
                return Ok(in_force);
            }
            let key = self.core.layout().budget();
            let mut conditions = vec![match &entry {
                Some(entry) => Condition::Unchanged(key.clone(), entry.version),
                None => Condition::Absent(key.clone()),
            }];
            let excess = now.saturating_sub(bytes);
            let (mut taken, mut writes) = (0_u64, Vec::new());
            for deposit in &deposits {
                if taken >= excess {
                    break;
                }
                let Ok(bytes) = decode::<u64>(deposit) else { continue };
                taken = taken.saturating_add(bytes);
                conditions.push(Condition::Unchanged(deposit.key.clone(), deposit.version));
                writes.push(Write::Delete(deposit.key.clone()));
            }
            let is_enough = taken >= excess;
            if is_enough {
                let deposit = bytes.saturating_add(taken).saturating_sub(now);
                writes.push(Write::put(key, bytes.to_string()));
                if deposit > 0 {
                    let replaced = entry.map_or(0, |entry| entry.version.0);
                    let key = self.core.layout().deposit(CHANGE, replaced);
                    writes.push(Write::put(key, deposit.to_string()));
                }
            } else if deposits.len() == AT_ONCE
                && let [Write::Delete(first), _, ..] = &writes[..]
            {
                // There may be more behind these: they become one, and the next try sees further.
                writes[0] = Write::put(first.clone(), taken.to_string());
            } else {
                let message = "samples hold more than that, so the budget was not changed; free some, and set it again";
                let error = Error::new(ErrorKind::Capacity, OPERATION, message);
                let held = now.saturating_sub(taken);
                return Err(error.with("wanted", bytes).with("held", held).with("budget", now));
            }
            let transaction = Transaction { conditions, writes };
            match self.core.transact_here(&transaction, deadline).await {
                Ok(TxnOutcome::Committed(_)) if is_enough => {
                    self.budget.store(bytes, Ordering::Relaxed);
                    return Ok(bytes);
                }
                Ok(TxnOutcome::Committed(_)) => {
                    tries = 0;
                    continue;
                }
                Err(error) if error.retry() != Retry::Ambiguous || is_full(&error) => return Err(error),
                // The next read shows whether it was applied.
                outcome => last = outcome.err(),
            }
            self.pause(tries).await;
            tries += 1;
        }
        let busy = || Error::unavailable(OPERATION, "others kept changing the budget until the deadline");
        Err(last.unwrap_or_else(busy))
    }

    /// The budget, for a sample of so many bytes: read again if it is too small as last seen, because it may have grown.
    pub(crate) async fn budget_for(&self, bytes: u64, deadline: Deadline) -> Result<u64> {
        let seen = self.budget.load(Ordering::Relaxed);
        if bytes <= seen {
            return Ok(seen);
        }
        let (_, in_force, _) = self.read_budget(deadline).await?;
        let in_force = in_force.unwrap_or(seen);
        self.budget.store(in_force, Ordering::Relaxed);
        Ok(in_force)
    }

    async fn read_budget(&self, deadline: Deadline) -> Result<(Option<Entry>, Option<u64>, Vec<Entry>)> {
        let deposits = Read::Range {
            keys: self.core.layout().deposits(),
            limit: AT_ONCE,
            keys_only: false,
        };
        let reads = [Read::Key(self.core.layout().budget()), deposits];
        let left = deadline.remaining(self.core.clock());
        let mut entries = self.core.txn_store().read(&reads, left).await?.entries.into_iter();
        let budget = entries.next().and_then(|found| found.into_iter().next());
        let in_force = budget.as_ref().map(decode).transpose()?;
        Ok((budget, in_force, entries.next().unwrap_or_default()))
    }

    /// Deposits and requests that cannot be decoded are quarantined, and requests whose session has ended: those of ours
    /// vanish with it. Returns how many there were.
    pub(crate) async fn set_unreadable_aside(&self, deadline: Deadline) -> Result<usize> {
        const MOST: usize = 10_000;
        let layout = self.core.layout();
        let ranges = [layout.deposits(), layout.shared_queue()];
        let keys = self.core.read_keys(ranges, MOST, deadline).await?.concat();
        let (entries, _) = self.core.read_values(&keys, MOST_BYTES, deadline).await?;
        let deposits = layout.deposits();
        let sessions = keys.iter().filter(|key| !deposits.contains(*key));
        let alive = sessions.filter_map(|key| Some(layout.alive(Layout::session_of(key)?)));
        // After the requests: a session that has ended since has taken its request with it.
        let found = self.core.read_all(alive, deadline).await?;
        let alive: HashSet<String> = found.into_iter().flatten().map(|entry| entry.key).collect();
        let read = |entry: &Entry| match deposits.contains(&entry.key) {
            true => decode::<u64>(entry).map(drop),
            false => match Queued::read(layout, entry)? {
                queued if alive.contains(&layout.alive(queued.session)) => Ok(()),
                _ => Err(unreadable(&entry.key, "the session that this request names has ended")),
            },
        };
        Ok(self.core.sort_out(entries, read, deadline).await?.quarantined)
    }
}
