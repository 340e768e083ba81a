//! Which layout of keys and records a store holds, written in the store itself.
//!
//! A program that does not know a layout must not touch it: it would read records wrongly and, worse, write them. So
//! the first who opens a store writes the version of its layout under [`KEY`], and everybody who opens it later checks.
//!
//! | what is there | what [`check`] does |
//! |---|---|
//! | nothing | writes [`VERSION`], on condition that nobody else did meanwhile |
//! | [`VERSION`] | goes on |
//! | a newer one | refuses with `Unsupported`: upgrade this program |
//! | anything else | refuses with `Corrupt`: this root belongs to another program |

use std::time::Duration;

use holdfast_core::{Clock, Deadline, Error, ErrorKind, Result, Retry};

use crate::kv::{Applied, Condition, Entry, Kv, Read, Transaction, Write};
use crate::session::is_full;

/// Where the version stands, relative to the store's root.
pub const KEY: &str = "schema";
/// The layout that this program reads and writes.
pub const VERSION: u32 = 1;

const OPERATION: &str = "index.open";

/// Makes sure that the store holds the layout that this program knows, and says so in an empty store.
///
/// # Errors
/// `Unsupported` if the layout is newer, `Corrupt` if it is none, and what the store says. Safe to call again.
pub async fn check(kv: &dyn Kv, clock: &dyn Clock, within: Duration) -> Result<()> {
    let deadline = Deadline::after(clock, within);
    let mut full = None;
    loop {
        let snapshot = kv.read(&[Read::Key(KEY.to_owned())], deadline.remaining(clock)).await?;
        if let Some(entry) = snapshot.entries.first().and_then(|entries| entries.first()) {
            return known(entry);
        }
        // A full store has answered: what is not there now never will be.
        if let Some(error) = full {
            return Err(error);
        }
        let first = Transaction {
            conditions: vec![Condition::Absent(KEY.to_owned())],
            writes: vec![Write::put(KEY, VERSION.to_string())],
        };
        match kv.transact(&first, deadline.remaining(clock)).await {
            Ok(Applied::Yes(_)) => return Ok(()),
            // Somebody else was first, or we were and do not know it: look again.
            Ok(Applied::No) => {}
            Err(error) if is_full(&error) => full = Some(error.with_retry(Retry::Safe)),
            Err(error) if error.retry() == Retry::Ambiguous && !deadline.passed(clock) => {}
            Err(error) => return Err(error),
        }
    }
}

fn known(entry: &Entry) -> Result<()> {
    let text = String::from_utf8_lossy(&entry.value);
    match text.parse::<u32>() {
        Ok(VERSION) => Ok(()),
        Ok(newer) if newer > VERSION => Err(Error::new(
            ErrorKind::Unsupported,
            OPERATION,
            "the index was written by a newer Holdfast: upgrade this one, or use another root",
        )
        .with("schema", newer)
        .with("known", VERSION)),
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            OPERATION,
            "what is under the schema key is no version: is the root used by another program?",
        )
        .with("schema", text.escape_debug())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_core::ManualClock;

    use super::*;
    use crate::kv::memory::{Fate, MemoryKv};

    const CALL: Duration = Duration::from_secs(1);

    async fn open(kv: &MemoryKv) -> Result<()> {
        check(kv, &ManualClock::new(), CALL).await
    }

    fn store() -> MemoryKv {
        MemoryKv::new(Arc::new(ManualClock::new()))
    }

    async fn store_with(schema: &str) -> MemoryKv {
        let kv = store();
        let put = Transaction {
            writes: vec![Write::put(KEY, schema)],
            ..Transaction::default()
        };
        kv.transact(&put, CALL).await.expect("a put");
        kv
    }

    #[tokio::test]
    async fn the_first_writes_it_and_the_second_accepts_it() {
        let kv = store();
        open(&kv).await.expect("an empty store");
        let written = kv.dump();
        assert_eq!((written.len(), written[0].value.as_slice()), (1, b"1".as_slice()));
        open(&kv).await.expect("an equal schema");
        assert_eq!(kv.dump(), written, "written once");
    }

    #[tokio::test]
    async fn a_lost_reply_is_resolved_by_looking_again() {
        for fate in [Fate::Applied, Fate::NotApplied, Fate::Later] {
            let kv = store();
            kv.faults().lose_reply(fate);
            open(&kv).await.expect("resolved");
            assert_eq!(kv.land(), 0, "a late one meets the condition");
            assert_eq!(kv.dump().len(), 1);
        }
    }

    #[tokio::test]
    async fn a_newer_one_is_refused_and_left_alone() {
        let kv = store_with("2").await;
        let error = open(&kv).await.expect_err("newer");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!((error.fact("schema"), error.fact("known")), (Some("2"), Some("1")));
        assert_eq!(kv.dump()[0].value, b"2");
    }

    #[tokio::test]
    async fn anything_else_is_refused() {
        for other in ["", "0", "one", "1.0", "-1"] {
            let error = open(&store_with(other).await).await.expect_err(other);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{other:?}");
        }
    }
}
