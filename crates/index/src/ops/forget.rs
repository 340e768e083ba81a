//! Forgetting a store: of one that has ended and is empty, nothing stays.
//!
//! ```text
//!   read all keys ──▶ on another cluster ──▶ refused
//!        ▲    └─────▶ in use, or not empty ──▶ refused: what is there, and what to do
//!        ▲    └─────▶ few keys ──▶ one transaction deletes all of them ──▶ forgotten
//!        │    └─────▶ many ──▶ deposits become fewer, leftovers are deleted ──┐
//!        └──────────── something has changed since ◀──────────────────────────┘
//! ```
//!
//! # Invariants
//! - FG1: the transaction that deletes the store has the condition that its keys are as they were read, and that the store
//!   has no other key. A session that was opened before it has a key of its own, so the transaction is refused; one that is
//!   opened after it begins the store anew. There is no state between. The store's `place` is one of the keys, so a process that
//!   knows the old one opens no session ([`crate::placement`]).
//! - FG2: what is deleted before is worth nothing to a store that goes on: deposits are added up, which keeps the budget as it
//!   is, and what names no record any more (claims, owners, entries of ready lists) is left over.
//!
//! # What if…
//! - *…the process dies at some step?* Before the transaction the store is whole, after it there is none.
//! - *…the reply to the transaction is lost?* The next look finds no key, which is success, or the store as it was.
//! - *…a process has the clock of the store in mind that is gone?* It reads the clock anew with each session that it opens.

use std::fmt::Write as _;
use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry, StoreId};

use super::idle::gaps;
use crate::placement::is_at_home;
use crate::record::codec::decode;
use crate::record::layout::Layout;
use crate::store::{Condition, Entry, Read, Transaction, TxnOutcome, TxnStore, Write, prefix};

const OPERATION: &str = "index.forget";
/// The most keys that one transaction deletes: it has a condition for each, and one for each gap.
const AT_ONCE: usize = 60;
/// How many keys one look reads.
const PAGE: usize = 500;

/// What a store must not have to be forgotten: the keys, what they are, and what to do about them.
const IN_THE_WAY: [(&str, &str, &str); 12] = [
    (
        "n/",
        "sessions",
        "stop the processes that have it open; a steward leaves a store that is not used within a minute",
    ),
    (
        "z/",
        "sessions that have ended and are not cleared up after",
        "a steward does it within a minute, or `tensorhold sweep`",
    ),
    (
        "h/",
        "leases or reservations",
        "a steward takes them back, or `tensorhold sweep`",
    ),
    ("p/", "reservations", "a steward takes them back, or `tensorhold sweep`"),
    ("s/", "samples", "`tensorhold end` ends and frees them"),
    ("g/", "samples that are read", "`tensorhold end` frees them"),
    (
        "f/",
        "samples that are to be freed",
        "a steward frees them, or `tensorhold sweep`",
    ),
    (
        "l/",
        "lost samples that are kept for a while",
        "`tensorhold end` frees them",
    ),
    (
        "d/",
        "dead letters",
        "`tensorhold end` drops them, or `tensorhold dead drop`",
    ),
    (
        "u/",
        "dead letters",
        "`tensorhold end` drops them, or `tensorhold dead drop`",
    ),
    (
        "x/",
        "records in quarantine",
        "look at them with `tensorhold quarantine ls`; they may own objects",
    ),
    (
        "b/w/",
        "processes that wait for quota",
        "stop the processes that have it open",
    ),
];

/// Deletes whatever the index has of a store, at its home. `Conflict` if it is in use or holds something, `Unsupported` if it is
/// on another cluster: then nothing has changed. False if there is no such store.
///
/// # Errors
/// `Conflict`, `Unsupported`, `Corrupt` if its place cannot be read, and those of the transactional store.
pub async fn forget(txn_store: &dyn TxnStore, store: &StoreId, clock: &dyn Clock, within: Duration) -> Result<bool> {
    let deadline = Deadline::after(clock, within);
    let layout = Layout::new(store);
    // The reply to a transaction that deletes everything, if it was lost.
    let mut lost: Option<Error> = None;
    while !deadline.passed(clock) {
        let left = deadline.remaining(clock);
        let entries = match (keys_of_one_that_is_over(txn_store, &layout, left).await, lost.take()) {
            // It was not deleted, or it was and a process has begun it anew.
            (Err(error), Some(lost)) if error.kind() == ErrorKind::Conflict => return Err(lost),
            (Ok(entries), Some(_)) if entries.is_empty() => return Ok(true),
            (entries, _) => entries?,
        };
        if entries.is_empty() {
            return Ok(false);
        }
        let is_all = entries.len() <= AT_ONCE;
        let transaction = match is_all {
            true => delete_all(&layout, &entries),
            false => make_fewer(&layout, &entries)?,
        };
        match txn_store.transact(&transaction, deadline.remaining(clock)).await {
            Ok(TxnOutcome::Committed(_)) if is_all => return Ok(true),
            // Something has changed since it was read, or there is more to do.
            Ok(_) => {}
            Err(error) if error.retry() != Retry::Ambiguous => return Err(error),
            Err(error) => lost = Some(error).filter(|_| is_all),
        }
    }
    Err(lost.unwrap_or_else(|| Error::unavailable(OPERATION, "the store kept changing until the deadline; ask again")))
}

/// The first keys of a store. Refuses one that is in use, or holds something, at the same moment.
async fn keys_of_one_that_is_over(txn_store: &dyn TxnStore, layout: &Layout, within: Duration) -> Result<Vec<Entry>> {
    let first = |(kind, _, _): &(&str, &str, &str)| Read::Range {
        keys: prefix(format!("{}/{kind}", layout.root())),
        limit: 1,
        keys_only: true,
    };
    let mut reads: Vec<Read> = IN_THE_WAY.iter().map(first).collect();
    reads.extend([layout.place(), layout.here()].map(Read::Key));
    reads.push(Read::Range {
        keys: layout.all(),
        limit: PAGE,
        keys_only: false,
    });
    let mut entries = txn_store.read(&reads, within).await?.entries;
    let keys = entries.pop().unwrap_or_default();
    // A mark: this is not the home.
    let mut is_elsewhere = entries.pop().is_some_and(|here| !here.is_empty());
    for place in entries.pop().unwrap_or_default() {
        is_elsewhere |= !is_at_home(OPERATION, &place)?;
    }
    if is_elsewhere {
        let message = "the store is on another cluster than the home of the index: such a store is not forgotten";
        return Err(Error::new(ErrorKind::Unsupported, OPERATION, message).with("store", layout.root()));
    }
    let found = entries.iter().zip(&IN_THE_WAY).find(|(found, _)| !found.is_empty());
    let Some((_, (_, what, advice))) = found else {
        return Ok(keys);
    };
    let mut message = String::new();
    // Writing to a string does not fail.
    write!(message, "the store has {what}, so it is not forgotten: {advice}").unwrap_or_default();
    Err(Error::new(ErrorKind::Conflict, OPERATION, message).with("store", layout.root()))
}

/// Deletes these, if they are as they were read and the store has nothing else.
fn delete_all(layout: &Layout, entries: &[Entry]) -> Transaction {
    let keys: Vec<String> = entries.iter().map(|entry| entry.key.clone()).collect();
    let unchanged = entries.iter().map(unchanged);
    Transaction {
        conditions: unchanged
            .chain(gaps(layout.all(), &keys).map(Condition::NoneIn))
            .collect(),
        writes: keys.into_iter().map(Write::Delete).collect(),
    }
}

/// Deletes what is left over of records that are gone, or else adds up deposits.
fn make_fewer(layout: &Layout, entries: &[Entry]) -> Result<Transaction> {
    let records = ["p/", "s/", "g/", "f/", "l/", "d/"].map(|kind| prefix(format!("{}/{kind}", layout.root())));
    let left_over = ["a/", "k/", "q/"].map(|kind| prefix(format!("{}/{kind}", layout.root())));
    let of_records = |entry: &&Entry| left_over.iter().any(|keys| keys.contains(&entry.key));
    let leftovers: Vec<&Entry> = entries.iter().filter(of_records).take(AT_ONCE).collect();
    if !leftovers.is_empty() {
        return Ok(Transaction {
            conditions: leftovers
                .iter()
                .map(|entry| unchanged(entry))
                .chain(records.map(Condition::NoneIn))
                .collect(),
            writes: leftovers.iter().map(|entry| Write::Delete(entry.key.clone())).collect(),
        });
    }
    let deposits = layout.deposits();
    let mut found = entries
        .iter()
        .filter(|entry| deposits.contains(&entry.key))
        .take(AT_ONCE);
    let Some(first) = found.next() else {
        let message = "it has keys that this release does not know; use the release that wrote them";
        return Err(Error::new(ErrorKind::Unsupported, OPERATION, message).with("store", layout.root()));
    };
    let (mut sum, mut conditions, mut writes) = (decode::<u64>(first)?, vec![unchanged(first)], Vec::new());
    for deposit in found {
        sum = sum.saturating_add(decode::<u64>(deposit)?);
        conditions.push(unchanged(deposit));
        writes.push(Write::Delete(deposit.key.clone()));
    }
    writes.push(Write::put(first.key.clone(), sum.to_string()));
    Ok(Transaction { conditions, writes })
}

fn unchanged(entry: &Entry) -> Condition {
    Condition::Unchanged(entry.key.clone(), entry.version)
}
