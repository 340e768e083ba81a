//! Credits in the index: the rules of [`holdfast_custody::Ledger`], without a key that everybody writes.
//!
//! - A session's account is a key of its own. Reserving spends from it in the transaction that reserves, so it costs no
//!   transaction more.
//! - What is freed comes back in the transaction that frees: to the account it was spent from, or, if somebody waits, to
//!   whoever has waited longest.
//! - `b/free` is touched only by who has too little: they take what is free and, if that does not do, what lies idle in
//!   other accounts. An account is a record like any other: its owner finds out at the next reservation.
//! - Who waits has a key, and watches that key alone: it vanishes when the wait is over.
//!
//! Nobody is forgotten: whoever begins to wait looks, *after* that, whether what is free or idle serves the first in line;
//! whoever frees and saw nobody waiting requires that nobody has begun to since (`b/q`).

mod books;
mod line;

use holdfast_core::{Deadline, Error, ErrorKind, Generation, Result};
use holdfast_custody::{Account, SessionId, Version, Want};

use parking_lot::Mutex;

use crate::batch::Loaded;
use crate::index::KvIndex;
use crate::kv::{Applied, Condition, Entry, Read, Transaction, Write};
use crate::layout::{decode, encode};
use crate::session::Session;
use crate::types::Reserve;

/// The session's account after a reservation, if it can be told for certain: all items went through in one transaction,
/// and the last one that was prepared is what it wrote. Anything else is looked up when it is needed; a guess with the
/// right version would overwrite what others have done to the account.
fn known_account(reserved: &[Result<Generation>], written: Option<Write>) -> Option<Entry> {
    let version = reserved.first()?.as_ref().ok()?.get();
    let together = reserved
        .iter()
        .all(|result| matches!(result, Ok(generation) if generation.get() == version));
    match written {
        Some(Write::Put { key, value, .. }) if together => Some(Entry {
            key,
            value,
            version: Version(version),
        }),
        _ => None,
    }
}

impl KvIndex {
    /// Sets the store's budget. Sessions opened from now on need credits to reserve.
    pub(crate) async fn do_set_budget(&self, bytes: u64, deadline: Deadline) -> Result<()> {
        const OPERATION: &str = "index.set_budget";
        let (budget, free) = (self.layout().budget(), self.layout().credits_free());
        let transaction = Transaction {
            conditions: vec![Condition::Absent(budget.clone())],
            writes: vec![
                Write::put(budget, bytes.to_string()),
                Write::put(free, bytes.to_string()),
            ],
        };
        match self
            .kv()
            .transact(&transaction, deadline.remaining(self.clock()))
            .await?
        {
            Applied::Yes(_) => Ok(()),
            Applied::No => Err(Error::new(
                ErrorKind::Conflict,
                OPERATION,
                "this store has a budget already",
            )),
        }
    }

    /// Reserves with credits: those of one process take turns, in the order in which they came.
    pub(crate) async fn reserve_with_credits(
        &self,
        session: &Session,
        items: &[Reserve],
        budget: u64,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        const OPERATION: &str = "index.reserve";
        let turn = tokio::time::timeout(deadline.remaining(self.clock()), session.turn.lock()).await;
        let Ok(_my_turn) = turn else {
            let error = Error::new(
                ErrorKind::Capacity,
                OPERATION,
                "others of this process waited for credits until the deadline",
            );
            return items.iter().map(|_| Err(error.clone())).collect();
        };
        let mut results = Vec::with_capacity(items.len());
        let mut rest = items;
        while let Some(first) = rest.first() {
            // A batch larger than a good part of the budget would wait for everybody else to be done: cut it.
            let mut bytes = first.bytes;
            let mut count = 1;
            while count < rest.len() && bytes.saturating_add(rest[count].bytes) <= budget / 4 {
                bytes += rest[count].bytes;
                count += 1;
            }
            let (now, later) = rest.split_at(count);
            rest = later;
            if bytes > budget {
                results.push(Err(Error::new(
                    ErrorKind::Capacity,
                    OPERATION,
                    "this sample is larger than the store's whole budget",
                )
                .with("sample", &first.sample)
                .with_retry(holdfast_core::Retry::Never)));
                continue;
            }
            results.extend(self.spend_and_reserve(session, now, bytes, deadline).await);
        }
        results
    }

    async fn spend_and_reserve(
        &self,
        session: &Session,
        items: &[Reserve],
        bytes: u64,
        deadline: Deadline,
    ) -> Vec<Result<Generation>> {
        let robbed = |result: &Result<Generation>| matches!(result, Err(error) if error.operation() == Account::SPEND);
        loop {
            if let Err(error) = self.ensure_credits(session, bytes, deadline).await {
                return items.iter().map(|_| Err(error.clone())).collect();
            }
            let known = session.account.lock().clone();
            let seen = Loaded::with_entries(known);
            let written = Mutex::new(None);
            let credits = |these: &[&Reserve], loaded: &Loaded| {
                let moved = self.spend(session, these.iter().map(|item| item.bytes).sum(), loaded)?;
                *written.lock() = moved.writes.first().cloned();
                Ok(moved)
            };
            let reserved = self.reserve_now(session, items, Some(&credits), seen, deadline).await;
            *session.account.lock() = known_account(&reserved, written.into_inner());
            // What lay idle here was needed elsewhere, and went there in between: draw again.
            if !reserved.iter().all(robbed) || deadline.passed(self.clock()) {
                return reserved;
            }
        }
    }

    /// Reads who waits, and the accounts of those and of `keys`, into what was loaded.
    pub(crate) async fn load_credits(&self, keys: Vec<String>, loaded: &mut Loaded, deadline: Deadline) -> Result<()> {
        let mut reads: Vec<Read> = keys.into_iter().map(Read::Key).collect();
        reads.push(self.longest_waiting());
        let mut snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
        let line = snapshot.entries.pop().unwrap_or_default();
        loaded.add(snapshot.entries);
        loaded.wants = self.draw_lots(line);
        let mut theirs = Vec::with_capacity(loaded.wants.len());
        for (_, want) in &loaded.wants {
            theirs.push(Read::Key(self.layout().account(decode::<Want>(want)?.session)));
        }
        if !theirs.is_empty() {
            let snapshot = self.kv().read(&theirs, deadline.remaining(self.clock())).await?;
            loaded.add(snapshot.entries);
        }
        Ok(())
    }

    /// A session has ended: what it had not spent is free.
    pub(crate) async fn end_account(&self, session: &Session, ended: SessionId, deadline: Deadline) -> Result<()> {
        loop {
            let key = self.layout().account(ended);
            let reads = [Read::Key(key.clone()), Read::Key(self.layout().credits_free())];
            let snapshot = self.kv().read(&reads, deadline.remaining(self.clock())).await?;
            let mut entries = snapshot.entries.into_iter().map(|entries| entries.into_iter().next());
            let (Some(Some(own)), Some(Some(free))) = (entries.next(), entries.next()) else {
                return Ok(());
            };
            let mut account: Account = decode(&own)?;
            if account.ended {
                return Ok(());
            }
            let unspent = account.available();
            account.granted -= unspent;
            account.ended = true;
            let total: u64 = decode::<u64>(&free)? + unspent;
            let conditions = vec![
                Condition::Unchanged(key.clone(), own.version),
                Condition::Unchanged(free.key.clone(), free.version),
            ];
            let settled = account.is_settled();
            let own = if settled {
                Write::Delete(key)
            } else {
                Write::put(key, encode(&account)?)
            };
            let writes = vec![own, Write::put(free.key, total.to_string())];
            if let Applied::Yes(_) = self
                .sender()
                .transact("index.sweep", session, conditions, writes, deadline)
                .await?
            {
                return self.serve_line(session, deadline).await;
            }
        }
    }
}
