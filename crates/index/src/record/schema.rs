//! Which layout of keys and records a store holds, written in the store itself.
//!
//! A program that does not know a layout must not touch it: it would read records wrongly and, worse, write them. So
//! the first process that opens a store writes the version of its layout under [`KEY`], and every process that opens it
//! later checks. A later layout that older programs may still use says so: `3 from 2` is version 3, which a release
//! that knows version 2 may use as well. This program knows the versions from [`OLDEST`] to [`VERSION`]. [`check`] is the only
//! writer of the version, and writes it only where none is: nothing lowers it.
//!
//! | what is there | what [`check`] does |
//! |---|---|
//! | nothing | writes [`VERSION`], on condition that no other process did meanwhile |
//! | a version from [`OLDEST`] to [`VERSION`] | accepts it, and leaves it as it is |
//! | a newer one, `from` one that is known here | accepts it |
//! | any other newer one, whatever else it says | refuses with `Unsupported`: upgrade this program |
//! | an older one | refuses with `Unsupported`: open it with a release in between first |
//! | anything else | refuses with `Corrupt`: this root belongs to another program |

use std::time::Duration;

use tensorhold_core::{Clock, Deadline, Error, ErrorKind, Result, Retry};

use crate::store::{Condition, Entry, Read, Transaction, TxnOutcome, TxnStore, Write, is_full};

/// The key of the version, relative to the store's root.
pub const KEY: &str = "schema";
/// The layout that this program writes into an empty store, the newest that it knows.
pub const VERSION: u32 = 1;
/// The oldest layout that this program reads and writes.
pub const OLDEST: u32 = 1;

const OPERATION: &str = "index.open";

/// Verifies that the store holds a layout that this program knows, and writes the version into an empty store. Returns
/// the version.
///
/// # Errors
/// `Unsupported` if the layout is newer, or older than this program reads; `Corrupt` if it is none; and the store's
/// errors. Safe to call again.
pub async fn check(txn_store: &dyn TxnStore, clock: &dyn Clock, within: Duration) -> Result<u32> {
    let deadline = Deadline::after(clock, within);
    let mut full = None;
    loop {
        let snapshot = txn_store
            .read(&[Read::Key(KEY.to_owned())], deadline.remaining(clock))
            .await?;
        if let Some(entry) = snapshot.entries.first().and_then(|entries| entries.first()) {
            return known(entry);
        }
        // A full store has answered: a write that is not visible now will never be applied.
        if let Some(error) = full {
            return Err(error);
        }
        let first = Transaction {
            conditions: vec![Condition::Absent(KEY.to_owned())],
            writes: vec![Write::put(KEY, VERSION.to_string())],
        };
        match txn_store.transact(&first, deadline.remaining(clock)).await {
            Ok(TxnOutcome::Committed(_)) => return Ok(VERSION),
            // Another process was first, or we were and the reply was lost: read again.
            Ok(TxnOutcome::Rejected) => {}
            Err(error) if is_full(&error) => full = Some(error.with_retry(Retry::Safe)),
            Err(error) if error.retry() == Retry::Ambiguous && !deadline.passed(clock) => {}
            Err(error) => return Err(error),
        }
    }
}

fn known(entry: &Entry) -> Result<u32> {
    let text = String::from_utf8_lossy(&entry.value);
    let refuse = |kind, message: &str| {
        let error = Error::new(kind, OPERATION, message).with("schema", text.escape_debug());
        Err(error.with("known", format!("{OLDEST} to {VERSION}")))
    };
    match Schema::read(&text) {
        Some(schema) if (OLDEST..=VERSION).contains(&schema.version) => Ok(schema.version),
        Some(schema) if schema.version > VERSION && schema.from.is_some_and(|from| from <= VERSION) => {
            Ok(schema.version)
        }
        Some(schema) if schema.version > VERSION => refuse(
            ErrorKind::Unsupported,
            "the index was written by a newer Tensorhold: upgrade this one, or use another root",
        ),
        Some(_) => refuse(
            ErrorKind::Unsupported,
            "the index was written by an older Tensorhold than this one reads: open it with a release in between first",
        ),
        None => refuse(
            ErrorKind::Corrupt,
            "the schema key does not hold a version: is this root used by another program?",
        ),
    }
}

/// What the schema key says.
#[derive(Debug, PartialEq, Eq)]
struct Schema {
    version: u32,
    /// The oldest version whose programs may use this layout, if any but its own may.
    from: Option<u32>,
}

impl Schema {
    /// None if the text does not begin with a version. The rest is for releases that know that version.
    fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let version = number(words.next()?)?;
        let from = match (words.next(), words.next()) {
            (None, _) => None,
            (Some("from"), Some(from)) => number(from),
            // Our version says nothing else; a later one may.
            _ if version > VERSION => None,
            _ => return None,
        };
        Some(Self { version, from })
    }
}

/// A version: digits, and not zero.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number > 0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tensorhold_core::ManualClock;

    use super::*;
    use crate::store::memory::{Fate, MemoryStore};

    const CALL: Duration = Duration::from_secs(1);

    async fn open(txn_store: &MemoryStore) -> Result<u32> {
        check(txn_store, &ManualClock::new(), CALL).await
    }

    fn store() -> MemoryStore {
        MemoryStore::new(Arc::new(ManualClock::new()))
    }

    async fn store_with(schema: &str) -> MemoryStore {
        let txn_store = store();
        let put = Transaction {
            writes: vec![Write::put(KEY, schema)],
            ..Transaction::default()
        };
        txn_store.transact(&put, CALL).await.expect("a put");
        txn_store
    }

    #[tokio::test]
    async fn the_first_writes_it_and_the_second_accepts_it() {
        let txn_store = store();
        open(&txn_store).await.expect("an empty store");
        let written = txn_store.dump();
        assert_eq!((written.len(), written[0].value.as_slice()), (1, b"1".as_slice()));
        open(&txn_store).await.expect("an equal schema");
        assert_eq!(txn_store.dump(), written, "written once");
    }

    #[tokio::test]
    async fn a_lost_reply_is_resolved_by_looking_again() {
        for fate in [Fate::Applied, Fate::NotApplied, Fate::Later] {
            let txn_store = store();
            txn_store.faults().lose_reply(fate);
            open(&txn_store).await.expect("resolved");
            assert_eq!(txn_store.land(), 0, "a late one meets the condition");
            assert_eq!(txn_store.dump().len(), 1);
        }
    }

    #[tokio::test]
    async fn a_store_of_the_first_version_is_opened_as_it_is() {
        let txn_store = store_with("1").await;
        let before = txn_store.dump();
        open(&txn_store).await.expect("known");
        assert_eq!(
            txn_store.dump(),
            before,
            "not marked anew: older programs may be using it"
        );
    }

    #[tokio::test]
    async fn a_newer_one_that_says_so_is_opened_and_left_as_it_is() {
        for newer in ["3 from 1", "7 from 1", "7 from 1 and more"] {
            let txn_store = store_with(newer).await;
            open(&txn_store).await.expect(newer);
            assert_eq!(txn_store.dump()[0].value, newer.as_bytes());
        }
    }

    #[tokio::test]
    async fn any_other_newer_one_is_refused_and_left_alone() {
        for newer in ["2", "3", "3 from 2", "9 from 3", "3 {\"form\":\"new\"}", "4294967295"] {
            let txn_store = store_with(newer).await;
            let error = open(&txn_store).await.expect_err(newer);
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert_eq!(error.fact("known"), Some("1 to 1"));
            assert_eq!(txn_store.dump()[0].value, newer.as_bytes());
        }
    }

    #[tokio::test]
    async fn anything_else_is_refused() {
        for other in ["", "0", "one", "1.0", "-1", "+1", "1 and more", " 1", "1\n", "from 1"] {
            let error = open(&store_with(other).await).await.expect_err(other);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{other:?}");
        }
    }
}
