//! The batch rules of the contract, checked in one place for every engine.

use std::collections::HashSet;
use std::time::Duration;

use tensorhold_core::{Error, ObjectKey, Result};

use crate::region::EngineId;
use crate::types::{Capabilities, PutOptions, Transfer};

/// Refuses a call whose deadline has passed already.
pub fn check_time(operation: &'static str, within: Duration) -> Result<()> {
    if within.is_zero() {
        return Err(Error::unavailable(
            operation,
            "the deadline had passed before the call began; nothing was done",
        ));
    }
    Ok(())
}

/// Refuses a batch of more objects than the engine takes.
pub fn check_count(operation: &'static str, count: usize, capabilities: &Capabilities) -> Result<()> {
    if count > capabilities.max_batch {
        return Err(Error::invalid(operation, "the batch is too large; split it")
            .with("objects", count)
            .with("most", capabilities.max_batch));
    }
    Ok(())
}

/// Refuses a list of no keys at all: it would never end.
pub fn check_limit(operation: &'static str, limit: usize) -> Result<()> {
    if limit == 0 {
        return Err(Error::invalid(
            operation,
            "a part of a list has at least one key; raise the limit",
        ));
    }
    Ok(())
}

/// Refuses transfers that have no memory, that use memory of another engine, or that name one object twice.
pub fn check_transfers(operation: &'static str, batch: &[Transfer], engine: EngineId) -> Result<()> {
    for transfer in batch {
        if transfer.parts.is_empty() {
            return Err(Error::invalid(operation, "an object needs at least one buffer").with("key", &transfer.key));
        }
        if transfer.parts.iter().any(|part| part.region().engine() != engine) {
            return Err(Error::invalid(
                operation,
                "a buffer is registered with another engine; register it with this one",
            )
            .with("key", &transfer.key));
        }
    }
    check_distinct(operation, batch)
}

/// Refuses options that no engine could honour.
pub fn check_options(operation: &'static str, options: &PutOptions) -> Result<()> {
    if options.replicas == 0 {
        return Err(Error::invalid(
            operation,
            "an object needs at least one replica; ask for one or more",
        ));
    }
    Ok(())
}

/// Refuses a batch that names an object twice.
pub fn check_distinct(operation: &'static str, batch: &[Transfer]) -> Result<()> {
    let twice = |key: &ObjectKey| {
        Err(Error::invalid(operation, "a key occurs twice in the batch; name each object once").with("key", key))
    };
    if batch.len() <= 8 {
        for (i, transfer) in batch.iter().enumerate() {
            if batch[..i].iter().any(|earlier| earlier.key == transfer.key) {
                return twice(&transfer.key);
            }
        }
        return Ok(());
    }
    let mut seen = HashSet::with_capacity(batch.len());
    match batch.iter().find(|transfer| !seen.insert(&transfer.key)) {
        Some(transfer) => twice(&transfer.key),
        None => Ok(()),
    }
}
