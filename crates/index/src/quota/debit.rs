//! Spending: a reservation is paid for in the transaction that makes it, from the session's purse if that has enough, else
//! from what is free or lies idle elsewhere, if nobody waits.

use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_core::{Error, ErrorKind, Result};
use holdfast_custody::Version;
use parking_lot::Mutex;

use super::Quota;
use super::balance::{Taking, as_read, bytes_in, take, write_balance};
use super::look::Look;
use crate::record::types::Reserve;
use crate::store::{Condition, Entry, Read, Write};
use crate::txn::batch::{Loaded, Moved, QuotaBudget, QuotaChange};
use crate::txn::session::Session;

/// How many purses of others are looked into: as many as a transaction can empty beside a reservation.
const OTHERS: usize = 32;

/// How often it is tried: if so many reach for the same bytes at the same time, all but one try in vain, and a line is
/// shorter.
const TRIES: u32 = 2;

/// The operation that the error of one who must wait names.
const MUST_WAIT: &str = "index.credits.spend";

/// Whether an error says that there is too little, or that others are before us.
pub(crate) fn must_wait(error: &Error) -> bool {
    error.operation() == MUST_WAIT
}

/// Bytes on their way from the budget into reservations.
pub(crate) struct Debit<'a> {
    pub(super) quota: &'a Quota,
    pub(super) session: &'a Session,
    /// What is in the purse when the last transaction that was prepared has been applied; none if it stays as it is.
    left: Mutex<Option<u64>>,
    looks: AtomicU32,
}

impl<'a> Debit<'a> {
    pub(crate) fn new(quota: &'a Quota, session: &'a Session) -> Self {
        Self {
            quota,
            session,
            left: Mutex::default(),
            looks: AtomicU32::new(0),
        }
    }
}

impl QuotaChange<Reserve> for Debit<'_> {
    fn reads(&self) -> Vec<Read> {
        let purses = Read::Range {
            keys: self.quota.core.layout().all_balances(),
            limit: OTHERS,
            keys_only: false,
        };
        self.quota.look_for(self.session, 1, [purses])
    }

    fn move_for(&self, items: &[&Reserve], loaded: &Loaded, _: QuotaBudget) -> Result<Moved> {
        *self.left.lock() = None;
        let need = items.iter().map(|item| item.bytes).sum();
        let look = match &loaded.credits {
            Some(snapshot) => Some(self.quota.looked(self.session, snapshot)?),
            None => None,
        };
        let own_key = self.quota.core.layout().balance(self.session.id());
        let own = self.session.balance.remembered();
        let tries = look.as_ref().map_or(0, |_| self.looks.fetch_add(1, Ordering::Relaxed));
        let (free, others) = match &look {
            // Who has enough need not ask: where there is a purse, nobody waits.
            Some(look) if look.line.is_empty() && tries < TRIES => {
                (bytes_in(Some(look.free()?))?, others(look, &own_key))
            }
            _ => (0, Vec::new()),
        };
        let in_others: Result<Vec<u64>> = others.iter().map(|purse| bytes_in(Some(purse))).collect();
        let had = bytes_in(own.as_ref())?;
        let Some(taking) = take(need, had, free, &in_others?) else {
            return Err(Error::new(
                ErrorKind::Capacity,
                MUST_WAIT,
                "the store's budget is spent, or others want it too",
            ));
        };
        self.take(look.as_ref(), (&own_key, own.as_ref(), had), &others, taking)
    }

    fn moved(&self, version: Version) {
        if let Some(left) = *self.left.lock() {
            let key = self.quota.core.layout().balance(self.session.id());
            self.session.balance.wrote(&key, left, version);
        }
    }
}

fn others(look: &Look, own_key: &str) -> Vec<Entry> {
    let purses = look.rest.iter().flatten();
    purses.filter(|purse| purse.key != own_key).cloned().collect()
}

impl Debit<'_> {
    fn take(
        &self,
        look: Option<&Look>,
        (own_key, own, had): (&str, Option<&Entry>, u64),
        others: &[Entry],
        taking: Taking,
    ) -> Result<Moved> {
        let mut moved = Moved::default();
        if had != taking.left {
            moved.conditions.push(as_read(own_key, own));
            moved.writes.push(write_balance(own_key, taking.left));
            *self.left.lock() = Some(taking.left);
        }
        if let Some(look) = look
            && taking.from_free > 0
        {
            let free = look.free()?;
            let left = bytes_in(Some(free))? - taking.from_free;
            moved.conditions.push(as_read(&free.key, Some(free)));
            moved.writes.push(Write::put(&*free.key, left.to_string()));
        }
        for place in &taking.emptied {
            let purse = &others[*place];
            moved.conditions.push(as_read(&purse.key, Some(purse)));
            moved.writes.push(Write::Delete(purse.key.clone()));
        }
        if taking.from_free > 0 || !taking.emptied.is_empty() {
            moved
                .conditions
                .push(Condition::NoneIn(self.quota.core.layout().shared_queue()));
        }
        Ok(moved)
    }
}
