//! Requests that break the contract of [`TxnStore`](super::TxnStore), which every store refuses before it sends anything.
//!
//! The checks are in one place, so that a transaction that is valid in memory is valid on etcd too.

use std::collections::HashSet;

use tensorhold_core::{Error, Result};
use tensorhold_custody::Version;

use super::{Condition, Limits, Read, Transaction};

const TRANSACT: &str = "kv.transact";
const READ: &str = "kv.read";

/// Refuses a transaction that is too large, writes a key twice, or has a condition on version zero or on an empty
/// range.
pub fn transaction(transaction: &Transaction, limits: Limits) -> Result<()> {
    let Transaction { conditions, writes } = transaction;
    operations(TRANSACT, conditions.len().max(writes.len()), limits)?;
    let mut bytes: usize = 0;
    for condition in conditions {
        bytes = bytes.saturating_add(condition.bytes());
        match condition {
            Condition::Unchanged(key, Version(0)) => {
                let message = "a condition on version zero, which no key has: use the condition that the key is absent";
                return Err(Error::invalid(TRANSACT, message).with("key", key));
            }
            Condition::NoneIn(keys) if keys.start >= keys.end => {
                let message = "a condition on an empty range: the end must be after the start";
                return Err(Error::invalid(TRANSACT, message).with("keys", format!("{keys:?}")));
            }
            _ => {}
        }
    }
    let mut keys = HashSet::with_capacity(writes.len());
    for write in writes {
        bytes = bytes.saturating_add(write.bytes());
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

/// As [`transaction`], for a transaction that also reads.
pub fn transaction_and_reads(both: &Transaction, reads: &[Read], limits: Limits) -> Result<()> {
    operations(TRANSACT, both.writes.len() + reads.len(), limits)?;
    transaction(both, limits)
}

/// Refuses too many reads in one call.
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
