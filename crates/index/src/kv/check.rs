//! What every store refuses before it asks anybody: requests that break the contract of [`Kv`](super::Kv).
//!
//! One place, so that a transaction that is lawful in memory is lawful on etcd too.

use std::collections::BTreeSet;

use holdfast_core::{Error, Result};
use holdfast_custody::Version;

use super::{Condition, Limits, Read, Transaction, Write};

const TRANSACT: &str = "kv.transact";
const READ: &str = "kv.read";

/// Refuses a transaction that is too large, writes a key twice or asks for version zero.
pub fn transaction(transaction: &Transaction, limits: Limits) -> Result<()> {
    let Transaction { conditions, writes } = transaction;
    operations(TRANSACT, conditions.len().max(writes.len()), limits)?;
    let mut bytes: usize = 0;
    for condition in conditions {
        let (Condition::Unchanged(key, _) | Condition::Absent(key) | Condition::Present(key)) = condition;
        bytes = bytes.saturating_add(key.len());
        if matches!(condition, Condition::Unchanged(_, Version(0))) {
            return Err(Error::invalid(TRANSACT, "no version is zero: ask for an absent key instead").with("key", key));
        }
    }
    let mut keys = BTreeSet::new();
    for write in writes {
        let value = if let Write::Put { value, .. } = write {
            value.len()
        } else {
            0
        };
        bytes = bytes.saturating_add(write.key().len()).saturating_add(value);
        if !keys.insert(write.key()) {
            return Err(Error::invalid(TRANSACT, "one transaction writes a key twice").with("key", write.key()));
        }
    }
    if bytes > limits.bytes {
        return Err(Error::invalid(TRANSACT, "a transaction has too many bytes: split it")
            .with("bytes", bytes)
            .with("limit", limits.bytes));
    }
    Ok(())
}

/// Refuses a read of too many things at once.
pub fn reads(reads: &[Read], limits: Limits) -> Result<()> {
    operations(READ, reads.len(), limits)
}

fn operations(operation: &'static str, count: usize, limits: Limits) -> Result<()> {
    if count <= limits.operations {
        return Ok(());
    }
    Err(Error::invalid(operation, "too many operations in one call: split it")
        .with("operations", count)
        .with("limit", limits.operations))
}
