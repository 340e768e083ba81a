//! How a record becomes a value and a value a record: JSON, and behind it what the sample's producer said about it (the
//! description), as it was given.

use std::sync::Arc;

use holdfast_core::{Error, Result};
use holdfast_custody::{Live, Reserved, Retired, Version};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kv::Entry;
use crate::types::Versioned;

/// What a producer said about a sample: opaque to us. None if it has not committed.
pub(crate) type Description = Option<Arc<[u8]>>;

/// Between a record and the description behind it; JSON has no such byte.
const BEHIND: u8 = 0;

/// Hardly any record without its description is longer.
const USUAL_RECORD: usize = 384;

/// A record with what was said about it behind it.
pub(crate) fn encode_described(record: &impl Serialize, description: &Description) -> Result<Vec<u8>> {
    let described = description.as_ref().map_or(0, |description| 1 + description.len());
    let mut value = Vec::with_capacity(USUAL_RECORD + described);
    encode_into(&mut value, record)?;
    if let Some(description) = description {
        value.push(BEHIND);
        value.extend_from_slice(description);
    }
    Ok(value)
}

/// A record's own bytes, and what rides behind it.
fn cut(value: &[u8]) -> (&[u8], Option<&[u8]>) {
    match value.iter().position(|byte| *byte == BEHIND) {
        Some(at) => (&value[..at], Some(&value[at + 1..])),
        None => (value, None),
    }
}

/// A record's value without what rides behind it.
pub(crate) fn without_description(value: &[u8]) -> &[u8] {
    cut(value).0
}

pub(crate) fn encode(record: &impl Serialize) -> Result<Vec<u8>> {
    let mut value = Vec::with_capacity(USUAL_RECORD);
    encode_into(&mut value, record)?;
    Ok(value)
}

fn encode_into(value: &mut Vec<u8>, record: &impl Serialize) -> Result<()> {
    serde_json::to_writer(value, record)
        .map_err(|error| Error::internal("index.encode", "a record cannot be written as JSON").caused_by(error))
}

/// Reads a record. Fields that a later release added are passed over, so that releases can work side by side.
pub(crate) fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T> {
    decode_record(&entry.key, cut(&entry.value).0)
}

fn decode_record<T: DeserializeOwned>(key: &str, record: &[u8]) -> Result<T> {
    serde_json::from_slice(record).map_err(|error| {
        Error::internal(
            "index.decode",
            "a record cannot be read; was it written by something else?",
        )
        .with("key", key)
        .caused_by(error)
    })
}

/// A record that could not know some versions when it was written.
pub(crate) trait Settle: DeserializeOwned {
    /// Puts in the version of the write that it was part of.
    fn settle(&mut self, version: Version);
}

macro_rules! settle {
    ($($record:ty),*) => {$(
        impl Settle for $record {
            fn settle(&mut self, version: Version) {
                <$record>::settle(self, version);
            }
        }
    )*};
}

settle!(Reserved, Live, Retired);

/// Reads a record with what rides behind it, and puts in the versions that it could not know when it was written.
pub(crate) fn decode_versioned<T: Settle>(entry: &Entry) -> Result<Versioned<T>> {
    let (record, description) = cut(&entry.value);
    let mut record: T = decode_record(&entry.key, record)?;
    record.settle(entry.version);
    Ok(Versioned {
        record,
        version: entry.version,
        description: description.map(Arc::from),
    })
}
