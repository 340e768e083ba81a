//! The books: what spending, giving back and gathering do to accounts. Nothing is read or sent here.

use std::collections::{BTreeMap, btree_map};

use holdfast_core::Result;
use holdfast_custody::{Account, SessionId, Want};

use crate::batch::{Loaded, Moved};
use crate::index::KvIndex;
use crate::kv::{Condition, Entry, Write};
use crate::layout::{Layout, decode, encode};
use crate::session::Session;

pub(super) fn decode_account(entry: Option<&Entry>) -> Result<Account> {
    entry.map_or_else(|| Ok(Account::default()), decode)
}

/// That a key is as it was read.
fn as_read(key: String, entry: Option<&Entry>) -> Condition {
    match entry {
        Some(entry) => Condition::Unchanged(key, entry.version),
        None => Condition::Absent(key),
    }
}

/// Accounts as they were read, and as they are to be.
#[derive(Default)]
struct Accounts(BTreeMap<SessionId, (Option<Entry>, Account)>);

impl Accounts {
    fn get(&mut self, layout: &Layout, session: SessionId, loaded: &Loaded) -> Result<&mut Account> {
        match self.0.entry(session) {
            btree_map::Entry::Occupied(known) => Ok(&mut known.into_mut().1),
            btree_map::Entry::Vacant(unknown) => {
                let entry = loaded.entry(&layout.account(session)).cloned();
                let account = decode_account(entry.as_ref())?;
                Ok(&mut unknown.insert((entry, account)).1)
            }
        }
    }

    /// Writes what has changed.
    fn into_moved(self, layout: &Layout, moved: &mut Moved) -> Result<()> {
        for (session, (entry, account)) in self.0 {
            let before = decode_account(entry.as_ref())?;
            if before == account {
                continue;
            }
            let key = layout.account(session);
            moved.conditions.push(as_read(key.clone(), entry.as_ref()));
            let settled = account.is_settled();
            moved.writes.push(if settled {
                Write::Delete(key)
            } else {
                Write::put(key, encode(&account)?)
            });
        }
        Ok(())
    }
}

impl KvIndex {
    /// What reserving `bytes` does to the session's account.
    pub(crate) fn spend(&self, session: &Session, bytes: u64, loaded: &Loaded) -> Result<Moved> {
        let mut moved = Moved::default();
        let mut accounts = Accounts::default();
        accounts.get(self.layout(), session.id(), loaded)?.spend(bytes)?;
        accounts.into_moved(self.layout(), &mut moved)?;
        Ok(moved)
    }

    /// What freeing does: bytes come back to who spent them, or go to one who waits.
    ///
    /// Those who free at the same time should not all reach for the first in line, so what comes back goes to one of the
    /// first, as drawn by lot, if it is enough for them. What is not enough is kept for the first, who is drawn more often
    /// than the others and so is never passed over for good.
    pub(crate) fn give_back(&self, freed: &[(SessionId, u64)], loaded: &Loaded) -> Result<Moved> {
        let mut moved = Moved::default();
        let mut accounts = Accounts::default();
        let free_key = self.layout().credits_free();
        let Some(free_entry) = loaded.entry(&free_key) else {
            return Ok(moved);
        };
        let had: u64 = decode(free_entry)?;
        let mut back = 0;
        for (producer, bytes) in freed {
            let account = accounts.get(self.layout(), *producer, loaded)?;
            // A sample that was reserved before there was a budget has nothing to give back.
            let bytes = (*bytes).min(account.outstanding);
            account.outstanding -= bytes;
            if account.ended || !loaded.wants.is_empty() {
                account.granted -= bytes;
                back += bytes;
            }
        }
        let mut free = had;
        for (place, entry) in &loaded.wants {
            // Only the first may have what was kept.
            let kept = if *place == 0 { free } else { 0 };
            let want: Want = decode(entry)?;
            let account = accounts.get(self.layout(), want.session, loaded)?;
            let missing = want.bytes.saturating_sub(account.available());
            if missing > back + kept {
                continue;
            }
            account.granted += missing;
            account.promised = want.bytes;
            let from_back = missing.min(back);
            back -= from_back;
            free -= missing - from_back;
            moved
                .conditions
                .push(Condition::Unchanged(entry.key.clone(), entry.version));
            moved.writes.push(Write::Delete(entry.key.clone()));
        }
        free += back;
        if free != had {
            moved
                .conditions
                .push(Condition::Unchanged(free_key.clone(), free_entry.version));
            moved.writes.push(Write::put(free_key, free.to_string()));
        }
        if loaded.wants.is_empty() {
            let key = self.layout().waiting_since();
            moved.conditions.push(as_read(key.clone(), loaded.entry(&key)));
        }
        accounts.into_moved(self.layout(), &mut moved)?;
        Ok(moved)
    }

    /// The transaction that serves `want` from what is free and, failing that, from what lies idle elsewhere.
    pub(super) fn gather(
        &self,
        free: &Entry,
        accounts: &[Entry],
        want: Want,
        entry: Option<&Entry>,
    ) -> Result<Option<Moved>> {
        let mut moved = Moved::default();
        let key = self.layout().account(want.session);
        let own = accounts.iter().find(|entry| entry.key == key);
        let mut account = decode_account(own)?;
        let mut missing = want.bytes.saturating_sub(account.available());
        let mut left: u64 = decode(free)?;
        let from_free = missing.min(left);
        left -= from_free;
        missing -= from_free;
        account.granted += from_free;
        for other in accounts.iter().filter(|other| other.key != key) {
            if missing == 0 {
                break;
            }
            let mut theirs: Account = decode(other)?;
            let taken = theirs.idle().min(missing);
            if taken == 0 {
                continue;
            }
            theirs.granted -= taken;
            account.granted += taken;
            missing -= taken;
            moved
                .conditions
                .push(Condition::Unchanged(other.key.clone(), other.version));
            moved.writes.push(Write::put(other.key.clone(), encode(&theirs)?));
        }
        if missing > 0 {
            return Ok(None);
        }
        account.promised = want.bytes;
        if from_free > 0 {
            moved
                .conditions
                .push(Condition::Unchanged(free.key.clone(), free.version));
            moved.writes.push(Write::put(free.key.clone(), left.to_string()));
        }
        moved.conditions.push(as_read(key.clone(), own));
        moved.writes.push(Write::put(key, encode(&account)?));
        if let Some(entry) = entry {
            moved
                .conditions
                .push(Condition::Unchanged(entry.key.clone(), entry.version));
            moved.writes.push(Write::Delete(entry.key.clone()));
        }
        Ok(Some(moved))
    }
}
