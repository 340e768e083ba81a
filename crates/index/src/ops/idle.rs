//! Which stores have nothing to look after. Read without a session, many stores in one request, so that a steward can leave
//! a store alone whose run has ended, and come back when it is used again.
//!
//! ```text
//!   it is on another cluster than the home ──────────────────────▶ in use
//!   something is held, or is to be freed ────────────────────────▶ in use
//!   nothing is, and a process is there that is no steward ───────▶ in use
//!   nobody is, and sessions have ended that were not cleared ────▶ their keys are deleted ─▶ idle
//!   nobody is ───────────────────────────────────────────────────▶ idle
//! ```
//!
//! # Why an idle store needs no sweep
//! A sweep ends and frees what sessions have begun: leases, reservations, requests for quota, retired samples, and what is
//! kept until a tick. In an idle store there is none of it, and only a session can begin some. Committed samples, and dead
//! letters whose objects are not kept until a tick, wait for no time.
//!
//! # Why a store elsewhere counts as in use
//! Its keys are on another cluster, which would have to be asked, and must be the one that the map names. So it stays open. One
//! whose `place` cannot be read, or that is there twice, counts as in use, too: opening it says what is wrong.
//!
//! # What if…
//! - *…a session is opened while its keys are read?* The reads see one moment: before it the store is idle, and the next
//!   look sees the session. A session lives for longer than the time between two looks of a steward.
//! - *…a session is opened while those of ended sessions are deleted?* The transaction has the condition that no other
//!   session is there, and is refused.
//! - *…the reply to that transaction is lost?* The store counts as in use until the next look.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Result, StoreId};
use tensorhold_custody::SessionId;

use crate::placement::is_at_home;
use crate::record::identity::Identity;
use crate::record::layout::Layout;
use crate::store::{Condition, Entry, Read, Transaction, TxnOutcome, TxnStore, Write, prefix};

const OPERATION: &str = "index.in_use";
/// The reads for each store.
const READS: usize = 3 + DUE;
/// The ranges of what a sweep ends or frees.
const DUE: usize = 5;
/// How many sessions of a store are read. With more of them it is in use.
const MOST_SESSIONS: usize = 16;

/// Those of the stores that are in use, or have something to look after, as the index's home says. Those on other clusters
/// count as in use.
///
/// # Errors
/// Those of the transactional store.
pub async fn in_use(
    txn_store: &dyn TxnStore,
    stores: &[StoreId],
    clock: &dyn Clock,
    within: Duration,
) -> Result<Vec<StoreId>> {
    let deadline = Deadline::after(clock, within);
    let mut found = Vec::new();
    for part in stores.chunks((txn_store.limits().operations / READS).max(1)) {
        let layouts: Vec<Layout> = part.iter().map(Layout::new).collect();
        let sessions = |keys: Range<String>, keys_only| Read::Range {
            keys,
            limit: MOST_SESSIONS,
            keys_only,
        };
        let first = |keys| Read::Range {
            keys,
            limit: 1,
            keys_only: true,
        };
        let of_store = |layout: &Layout| {
            let sessions = [
                sessions(layout.all_existed(), true),
                sessions(layout.all_alive(), false),
            ];
            let place = Read::Key(layout.place());
            std::iter::once(place).chain(sessions).chain(layout.due().map(first))
        };
        let reads: Vec<Read> = layouts.iter().flat_map(of_store).collect();
        let snapshot = txn_store.read(&reads, deadline.remaining(clock)).await?;
        let of_stores = snapshot.entries.chunks(READS).zip(part.iter().zip(&layouts));
        for (entries, (store, layout)) in of_stores {
            let [place, existed, alive, due @ ..] = entries else {
                continue;
            };
            let is_idle = match Sessions::of(existed, alive) {
                _ if !place.iter().all(|place| is_at_home(OPERATION, place).unwrap_or(false)) => false,
                _ if due.iter().any(|found| !found.is_empty()) => false,
                Sessions::None => true,
                Sessions::Users => false,
                Sessions::Ended(ended) => clear(txn_store, layout, &ended, existed, deadline.remaining(clock)).await?,
            };
            if !is_idle {
                found.push(store.clone());
            }
        }
    }
    Ok(found)
}

/// Who is in a store.
enum Sessions {
    /// Nobody but stewards.
    None,
    /// A process that uses it.
    Users,
    /// These have ended and are not cleared yet; nobody but stewards is there.
    Ended(Vec<SessionId>),
}

impl Sessions {
    fn of(existed: &[Entry], alive: &[Entry]) -> Self {
        if existed.len().max(alive.len()) >= MOST_SESSIONS {
            return Self::Users;
        }
        let is_steward = |entry: &Entry| Identity::from_bytes(&entry.value).is_some_and(|identity| identity.steward);
        if !alive.iter().all(is_steward) {
            return Self::Users;
        }
        let ids = |entries: &[Entry]| -> BTreeSet<SessionId> {
            entries
                .iter()
                .filter_map(|entry| Layout::session_of(&entry.key))
                .collect()
        };
        let ended: Vec<SessionId> = ids(existed).difference(&ids(alive)).copied().collect();
        match ended.is_empty() {
            true => Self::None,
            false => Self::Ended(ended),
        }
    }
}

/// Deletes the keys of ended sessions, if nothing in the store is held or to be freed. True if it did.
async fn clear(
    txn_store: &dyn TxnStore,
    layout: &Layout,
    ended: &[SessionId],
    existed: &[Entry],
    within: Duration,
) -> Result<bool> {
    let known: Vec<String> = existed.iter().map(|entry| entry.key.clone()).collect();
    let mut conditions: Vec<Condition> = layout.due().map(Condition::NoneIn).into();
    conditions.extend(gaps(layout.all_existed(), &known).map(Condition::NoneIn));
    conditions.extend(ended.iter().map(|session| Condition::Absent(layout.alive(*session))));
    let writes = ended
        .iter()
        .map(|session| Write::Delete(layout.existed(*session)))
        .collect();
    let cleared = txn_store.transact(&Transaction { conditions, writes }, within).await?;
    Ok(matches!(cleared, TxnOutcome::Committed(_)))
}

/// The parts of a range between keys of it, which are in order.
pub(crate) fn gaps(range: Range<String>, keys: &[String]) -> impl Iterator<Item = Range<String>> {
    let starts = std::iter::once(range.start).chain(keys.iter().map(|key| format!("{key}\0")));
    let ends = keys.iter().cloned().chain(std::iter::once(range.end));
    let gaps: Vec<Range<String>> = starts
        .zip(ends)
        .filter(|(start, end)| start < end)
        .map(|(a, b)| a..b)
        .collect();
    gaps.into_iter()
}

impl Layout {
    /// The keys of what a sweep ends or frees: retired samples and grant lists (`f/`, `g/`, `h/`, which follow one another),
    /// lost samples that are kept, reservations, dead letters whose objects are kept until a tick, and requests for quota.
    pub(crate) fn due(&self) -> [Range<String>; DUE] {
        let of = |kind: &str| prefix(format!("{}/{kind}", self.root()));
        [of("f/").start..of("h/").end, of("l/"), of("p/"), of("u/"), of("b/w/")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_keys_make_the_range() {
        let range = || "a".to_owned().."b".to_owned();
        let between = |keys: &[&str]| {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            gaps(range(), &keys).collect::<Vec<_>>()
        };
        assert_eq!(between(&[]), [range()]);
        assert_eq!(
            between(&["a1", "a2"]),
            [
                "a".to_owned().."a1".to_owned(),
                "a1\0".to_owned().."a2".to_owned(),
                "a2\0".to_owned().."b".to_owned()
            ]
        );
        assert_eq!(
            between(&["a"]),
            ["a\0".to_owned().."b".to_owned()],
            "nothing is before it"
        );
    }
}
