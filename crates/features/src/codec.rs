//! How the bytes of a tensor lie in its objects.
//!
//! This is the one place where sealed stores differ from plain ones: between a tensor's memory and its objects. With
//! [`Encoding::Plain`] the object's bytes are the tensor's, so they move straight between the two, and the checksum in
//! the description tells whether they arrived. An encoding that changes bytes moves them through memory of the pool and
//! checks them in its own way.

use holdfast_core::{Digest, Error, ErrorKind, Result};
use holdfast_engine::Span;
use serde::{Deserialize, Serialize};

use crate::checksum::digest_of;

/// How bytes lie in objects; part of a sample's description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Encoding {
    /// As they are.
    #[default]
    Plain,
}

impl Encoding {
    /// How many bytes an object has that holds so many of a tensor.
    pub(crate) fn stored_bytes(&self, bytes: u64) -> u64 {
        match self {
            Self::Plain => bytes,
        }
    }

    /// What is recorded of a chunk that is about to be stored.
    pub(crate) fn record(&self, parts: &[Span]) -> Result<Digest> {
        match self {
            Self::Plain => digest_of(parts),
        }
    }

    /// Checks a chunk that has arrived against what was recorded of it.
    pub(crate) fn verify(&self, parts: &[Span], recorded: Option<Digest>) -> Result<()> {
        match (self, recorded) {
            (Self::Plain, None) => Ok(()),
            (Self::Plain, Some(recorded)) => {
                let arrived = digest_of(parts)?;
                if arrived == recorded {
                    return Ok(());
                }
                Err(Error::new(
                    ErrorKind::Corrupt,
                    "features.get",
                    "the bytes that arrived are not those that were committed; nothing was handed out",
                )
                .with("committed", recorded)
                .with("arrived", arrived))
            }
        }
    }
}
