//! From a sample to its tensors: each tensor of a put is sealed once, any tensor of a get can be opened. Also the tag
//! over the sample's description.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorhold_core::{Error, Result, TensorName};

use super::cipher::{Incarnation, TensorCipher};
use super::header::{Scheme, SealHeader};
use super::key::StoreKey;
use super::opener::TensorOpener;
use super::record::{self, Record, RecordTag};
use super::sealer::TensorSealer;

/// The seal of one put. Made by [`super::Keyring::sealer`].
#[derive(Debug)]
pub struct SampleSealer {
    key: Arc<StoreKey>,
    scheme: Scheme,
    header: SealHeader,
    incarnation: Incarnation,
    given_out: BTreeSet<TensorName>,
}

impl SampleSealer {
    pub(super) fn new(key: Arc<StoreKey>, scheme: Scheme, header: SealHeader, incarnation: Incarnation) -> Self {
        Self {
            key,
            scheme,
            header,
            incarnation,
            given_out: BTreeSet::new(),
        }
    }

    /// The header that goes into the sample's description.
    pub fn header(&self) -> &SealHeader {
        &self.header
    }

    /// The tag over the sample's description; it goes into the description, too.
    pub fn record_tag(&self, record: &Record<'_>) -> Result<RecordTag> {
        record::tag(&self.key, &self.header, &self.incarnation, record)
    }

    /// The sealer of one tensor. Each tensor is given out once: a second sealer would use its nonces again.
    pub fn tensor(&mut self, name: &TensorName, plain_len: u64) -> Result<TensorSealer> {
        let cipher = TensorCipher::new(self.scheme, &self.key, &self.header, &self.incarnation, name, plain_len)?;
        if !self.given_out.insert(name.clone()) {
            return Err(cipher.about_tensor(Error::invalid(
                "seal.tensor",
                "this tensor was given out already; name each tensor once, and begin a new seal to seal it again",
            )));
        }
        TensorSealer::new(cipher)
    }
}

/// Opens the tensors of one sample. Made by [`super::Keyring::opener`].
#[derive(Debug)]
pub struct SampleOpener {
    key: Arc<StoreKey>,
    scheme: Scheme,
    header: SealHeader,
    incarnation: Incarnation,
}

impl SampleOpener {
    pub(super) fn new(key: Arc<StoreKey>, scheme: Scheme, header: SealHeader, incarnation: Incarnation) -> Self {
        Self {
            key,
            scheme,
            header,
            incarnation,
        }
    }

    /// Checks that the description is the one that the sample was put with. `Corrupt` if it is not, or has no tag.
    /// `Unsupported` for a sample of the first scheme, which has no such tag, so that this cannot be told.
    pub fn check_record(&self, record: &Record<'_>, tag: Option<&RecordTag>) -> Result<()> {
        match self.scheme {
            Scheme::V1 => Err(record::untold(&self.incarnation)),
            Scheme::V2 => record::check(&self.key, &self.header, &self.incarnation, record, tag),
        }
    }

    /// The opener of one tensor, which has `plain_len` bytes when it is open.
    pub fn tensor(&self, name: &TensorName, plain_len: u64) -> Result<TensorOpener> {
        TensorCipher::new(self.scheme, &self.key, &self.header, &self.incarnation, name, plain_len)
            .map(TensorOpener::new)
    }
}
