//! How the bytes of a tensor are laid out in its objects.
//!
//! With [`Encoding::Plain`] the object's bytes are the tensor's, so they move straight between the two, and the
//! checksum in the description verifies them. [`Encoding::Sealed`] bytes pass through a stage (module `sealed`), and
//! are verified by decrypting them.

use holdfast_core::{Digest, Error, ErrorKind, Result};
use holdfast_engine::Span;
use serde::{Deserialize, Serialize};

use crate::checksum::{copy_summed, digest_of};
use crate::seal::SealHeader;

/// How bytes are laid out in objects; part of a sample's description.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Encoding {
    /// The tensor's bytes, unchanged.
    #[default]
    Plain,
    /// Encrypted and authenticated. A description with this encoding has no checksums: they would reveal which tensors
    /// are equal, and the seal verifies more.
    Sealed(SealHeader),
}

impl Encoding {
    /// How the sample was sealed; none if it was not.
    pub fn seal(&self) -> Option<&SealHeader> {
        match self {
            Self::Plain => None,
            Self::Sealed(header) => Some(header),
        }
    }
}

/// Compares a chunk that has arrived with its recorded checksum.
pub(crate) fn verify(parts: &[Span], recorded: Digest) -> Result<()> {
    compare(digest_of(parts)?, recorded)
}

/// The same for a chunk that has arrived in a stage, while it is copied to its destination.
pub(crate) fn verify_copied(stage: &Span, parts: &[Span], recorded: Option<Digest>) -> Result<()> {
    let arrived = copy_summed(stage, parts)?;
    recorded.map_or(Ok(()), |recorded| compare(arrived, recorded))
}

fn compare(arrived: Digest, recorded: Digest) -> Result<()> {
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
