//! Which stores an index has.

use std::time::Duration;

use tensorhold_core::key::unescape;
use tensorhold_core::{Clock, Deadline, Result, StoreId};

use crate::record::layout::after;
use crate::store::{Read, TxnStore};

/// Behind every key: the last character that text can have.
const END: &str = "\u{10ffff}";
/// How many keys one read asks for. For etcd a read walks over all keys of its range, however few it returns, so a store that
/// holds hardly anything must not cost a read of its own, nor must the root's own few keys (its epoch, its schema).
const AT_ONCE: usize = 256;
/// Keys that belong to no store are few; with more of them the root is not only ours, and the list ends early.
const MOST_OTHERS: usize = 100;

/// The stores that have any record in this index, in the order of their keys: after `from`, up to `limit`. At most one read
/// for each, however much it holds; many that hold hardly anything share one.
///
/// # Errors
/// Those of the transactional store.
pub async fn stores(
    txn_store: &dyn TxnStore,
    from: Option<&StoreId>,
    limit: usize,
    clock: &dyn Clock,
    within: Duration,
) -> Result<Vec<StoreId>> {
    let deadline = Deadline::after(clock, within);
    let mut start = from.map_or_else(String::new, |store| {
        behind(&tensorhold_core::key::escape(store.as_str()))
    });
    let (mut found, mut others) = (Vec::new(), 0);
    while found.len() < limit && others < MOST_OTHERS {
        let first = Read::Range {
            keys: start.clone()..END.to_owned(),
            limit: AT_ONCE,
            keys_only: true,
        };
        let snapshot = txn_store.read(&[first], deadline.remaining(clock)).await?;
        let entries: Vec<_> = snapshot.entries.into_iter().flatten().collect();
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            // Another key of the store that was found last.
            if entry.key < start {
                continue;
            }
            match entry.key.split_once('/') {
                Some((name, _)) => {
                    start = behind(name);
                    match unescape(name).and_then(|name| name.parse().ok()) {
                        Some(store) => found.push(store),
                        None => others += 1,
                    }
                }
                None => {
                    start = after(&entry.key);
                    others += 1;
                }
            }
        }
    }
    found.truncate(limit);
    Ok(found)
}

/// The first key that cannot be of the store with this escaped name: `0` is what follows `/`.
fn behind(escaped: &str) -> String {
    format!("{escaped}0")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tensorhold_core::ManualClock;

    use super::*;
    use crate::store::memory::MemoryStore;
    use crate::store::{Transaction, Write};

    const CALL: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn each_store_is_found_once_and_other_keys_are_passed_over() {
        let clock = ManualClock::new();
        let txn_store = MemoryStore::new(Arc::new(ManualClock::new()));
        let keys = [
            "schema",
            "epoch",
            "a/t",
            "a/s/1",
            "a-b/t",
            "a.b/t",
            "run%2F3/b/budget",
            "%zz/t",
            "z/n/1",
        ];
        let transaction = Transaction {
            conditions: Vec::new(),
            writes: keys.iter().map(|key| Write::put(*key, "")).collect(),
        };
        txn_store.transact(&transaction, CALL).await.expect("written");
        let names = |found: Vec<StoreId>| found.iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = stores(&txn_store, None, 10, &clock, CALL).await.expect("read");
        assert_eq!(names(all.clone()), ["a-b", "a.b", "a", "run/3", "z"]);
        let first = stores(&txn_store, None, 2, &clock, CALL).await.expect("read");
        assert_eq!(first, all[..2]);
        let rest = stores(&txn_store, Some(&all[1]), 10, &clock, CALL).await.expect("read");
        assert_eq!(rest, all[2..]);
    }
}
