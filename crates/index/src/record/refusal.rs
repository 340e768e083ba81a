//! Why a change of a sample is refused, and the checks that several operations share.

use std::collections::HashSet;

use tensorhold_core::{Error, ErrorKind, Generation, ObjectKey, Result, SampleId};
use tensorhold_custody::Version;

use super::codec::unreadable;
use super::types::{MOST_CLAIMS, Reserve, SampleRef};
use crate::store::Entry;

pub(crate) fn gone(operation: &'static str, sample: &SampleId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        operation,
        "there is no such sample, or not any more",
    )
    .with("sample", sample)
}

pub(crate) fn being_written(sample: &SampleId) -> Error {
    Error::new(
        ErrorKind::Conflict,
        "index.reserve",
        "another producer is writing this sample now",
    )
    .with("sample", sample)
}

/// As [`being_written`], when it is not known whether that is the reason, or that another sample owns one of its
/// objects.
pub(crate) fn being_written_or_owned(item: &Reserve) -> Error {
    if item.claims.is_empty() {
        return being_written(&item.sample);
    }
    Error::new(
        ErrorKind::Conflict,
        "index.reserve",
        "another producer is writing this sample now, or one of its objects is in the custody of another",
    )
    .with("sample", &item.sample)
}

/// Another sample, or another generation of this one, owns an object that was to be claimed.
pub(crate) fn owned(sample: &SampleId, key: &ObjectKey, owner: &SampleRef) -> Error {
    Error::new(
        ErrorKind::Conflict,
        "index.reserve",
        "this object is in the custody of another sample, or of an earlier generation that is not freed yet",
    )
    .with("sample", sample)
    .with("key", key)
    .with("owner", &owner.sample)
    .with("owner_generation", owner.generation)
}

/// The owner that a claim names. The claim was written with the reservation, so its version is the generation.
pub(crate) fn owner(claim: &Entry) -> Result<SampleRef> {
    let no_name = || unreadable(&claim.key, "this entry is not a claim: its value names no sample");
    let sample = std::str::from_utf8(&claim.value)
        .ok()
        .and_then(|name| SampleId::new(name).ok());
    Ok(SampleRef {
        sample: sample.ok_or_else(no_name)?,
        generation: generation_of(claim.version)?,
    })
}

pub(crate) fn check_claims(item: &Reserve) -> Result<()> {
    let refuse = |why: &str| Err(Error::invalid("index.reserve", why).with("sample", &item.sample));
    if item.claims.len() > MOST_CLAIMS {
        return refuse("a sample may own at most 64 objects that another writer named");
    }
    let distinct: HashSet<&ObjectKey> = item.claims.iter().collect();
    if distinct.len() < item.claims.len() {
        return refuse("an object is named twice; name each once");
    }
    Ok(())
}

pub(crate) fn superseded(operation: &'static str, sample: &SampleRef) -> Error {
    Error::new(
        ErrorKind::Fenced,
        operation,
        "this generation of the sample is no longer the live one",
    )
    .with("sample", &sample.sample)
    .with("generation", sample.generation)
}

/// A reservation's generation is the version of the write that made it.
pub(crate) fn generation_of(version: Version) -> Result<Generation> {
    Generation::new(version.0).ok_or_else(|| Error::internal("index.reserve", "the index gave out version zero"))
}

/// Whether an error is about one record, and not about the store or the session.
pub(crate) fn is_about_one_record(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::Corrupt | ErrorKind::Invalid | ErrorKind::Internal
    )
}
