//! How large the record of a sample may be: limits for a put, and wider ones for a read.
//!
//! A record in the index may have been written by another program. A record of a few bytes can claim a billion objects,
//! and every process that sweeps would list their keys. So every record is checked against limits when it is read; one
//! that exceeds them is unreadable and goes into quarantine. A put is held to narrower limits *before its first byte
//! moves*: its record can be committed, taken, handed back, superseded and freed, each in one transaction of the index,
//! and every release that has these limits can read it.

use tensorhold_core::{Error, Result};

/// The most objects of a sample. At the default chunk size that is a terabyte.
pub(crate) const MOST_OBJECTS: u64 = 65_536;
/// The most tensors in a description that is read.
pub(crate) const MOST_TENSORS: usize = 65_536;
/// The longest description or plan that is read: longer than a request to etcd may be.
pub(crate) const MOST_BYTES: usize = 2 << 20;
/// The longest description that is written. One transaction in etcd may carry three of them: the record's, its copy in
/// the ready list, and that of the sample it replaces.
pub(crate) const MOST_PUT_BYTES: usize = 384 << 10;

/// The number of objects of a sample. None if it exceeds the limit.
pub(crate) fn objects(chunks: impl IntoIterator<Item = u64>) -> Option<u64> {
    let mut chunks = chunks.into_iter();
    let sum = chunks.try_fold(0_u64, u64::checked_add)?;
    (sum <= MOST_OBJECTS).then_some(sum)
}

/// Refuses a sample that would be cut into too many objects.
pub(crate) fn check_objects(operation: &'static str, chunks: impl IntoIterator<Item = u64>) -> Result<()> {
    if objects(chunks).is_some() {
        return Ok(());
    }
    Err(Error::invalid(
        operation,
        "the sample would be cut into too many objects; nothing was moved. Raise chunk_bytes, or put fewer tensors in one sample",
    )
    .with("most_objects", MOST_OBJECTS))
}

/// Refuses a description or a plan that is longer than the index accepts.
pub(crate) fn check_length(operation: &'static str, bytes: usize) -> Result<()> {
    if bytes <= MOST_PUT_BYTES {
        return Ok(());
    }
    Err(Error::invalid(
        operation,
        "the sample's description (names, shapes and checksums of its tensors) is longer than the index accepts; put fewer \
         tensors in one sample, shorten their names, or raise chunk_bytes",
    )
    .with("bytes", bytes)
    .with("most_bytes", MOST_PUT_BYTES))
}
