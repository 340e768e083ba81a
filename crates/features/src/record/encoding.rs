//! How the bytes of a tensor are laid out in its objects.
//!
//! With [`Encoding::Plain`] the object's bytes are the tensor's, so they move straight between the two, and the
//! checksum in the description verifies them. [`Encoding::Sealed`] bytes pass through a stage (module `sealed`), and
//! are verified by decrypting them.

use serde::{Deserialize, Serialize};

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
