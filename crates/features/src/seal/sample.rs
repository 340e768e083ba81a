//! From a sample to its tensors: each tensor of a put is sealed once, any tensor of a get is opened.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_core::{Error, Result, TensorName};

use super::cipher::{Incarnation, TensorCipher};
use super::header::SealHeader;
use super::key::StoreKey;
use super::opener::TensorOpener;
use super::sealer::TensorSealer;

/// The seal of one put. Made by [`super::Keyring::sealer`].
#[derive(Debug)]
pub struct SampleSealer {
    key: Arc<StoreKey>,
    header: SealHeader,
    incarnation: Incarnation,
    given_out: BTreeSet<TensorName>,
}

impl SampleSealer {
    pub(super) fn new(key: Arc<StoreKey>, header: SealHeader, incarnation: Incarnation) -> Self {
        Self {
            key,
            header,
            incarnation,
            given_out: BTreeSet::new(),
        }
    }

    /// What goes into the sample's description.
    pub fn header(&self) -> &SealHeader {
        &self.header
    }

    /// The sealer of one tensor. Each tensor is given out once: a second sealer would use its nonces again.
    pub fn tensor(&mut self, name: &TensorName, plain_len: u64) -> Result<TensorSealer> {
        let cipher = TensorCipher::new(&self.key, &self.header, &self.incarnation, name, plain_len)?;
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
    header: SealHeader,
    incarnation: Incarnation,
}

impl SampleOpener {
    pub(super) fn new(key: Arc<StoreKey>, header: SealHeader, incarnation: Incarnation) -> Self {
        Self {
            key,
            header,
            incarnation,
        }
    }

    /// The opener of one tensor, which has so many bytes when it is open.
    pub fn tensor(&self, name: &TensorName, plain_len: u64) -> Result<TensorOpener> {
        TensorCipher::new(&self.key, &self.header, &self.incarnation, name, plain_len).map(TensorOpener::new)
    }
}
