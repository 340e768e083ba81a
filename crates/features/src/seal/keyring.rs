//! The keys of a store: one that seals, and any number that still open.
//!
//! To rotate: give every process a keyring that has the new key, with the old one still current. Then make the new one
//! current. When the last sample of the old one is gone, leave the old one out. Nothing is sealed again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tensorhold_core::{Error, ErrorKind, Result, Rng};

use super::cipher::{Incarnation, key_check};
use super::header::{Scheme, SealHeader};
use super::key::{KeyId, StoreKey};
use super::sample::{SampleOpener, SampleSealer};

/// The keys of a store. Cheap to clone; the secrets are shared, and wiped with the last clone.
#[derive(Clone)]
pub struct Keyring {
    current: Arc<StoreKey>,
    keys: Arc<BTreeMap<KeyId, Arc<StoreKey>>>,
}

impl Keyring {
    /// A keyring that seals with the key named `current` and opens with all of them.
    pub fn new(current: &KeyId, keys: impl IntoIterator<Item = StoreKey>) -> Result<Self> {
        let mut known = BTreeMap::new();
        for key in keys {
            let id = key.id().clone();
            if known.insert(id.clone(), Arc::new(key)).is_some() {
                return Err(
                    Error::invalid("seal.keyring", "two keys have this id; give each an id of its own")
                        .with("key_id", id),
                );
            }
        }
        let Some(key) = known.get(current) else {
            return Err(
                Error::invalid("seal.keyring", "the current key is not among the keys; add it").with("key_id", current),
            );
        };
        Ok(Self {
            current: Arc::clone(key),
            keys: Arc::new(known),
        })
    }

    /// A keyring of one key.
    pub fn of(key: StoreKey) -> Self {
        let current = Arc::new(key);
        Self {
            keys: Arc::new(BTreeMap::from([(current.id().clone(), Arc::clone(&current))])),
            current,
        }
    }

    /// The id of the key that seals.
    pub fn current(&self) -> &KeyId {
        self.current.id()
    }

    /// The ids of all keys.
    pub fn ids(&self) -> impl Iterator<Item = &KeyId> {
        self.keys.keys()
    }

    /// Begins a put: draws its salt. Every put needs a new sealer, and so does every retry that seals again.
    pub fn sealer(&self, incarnation: Incarnation, chunk_bytes: u32, rng: &dyn Rng) -> Result<SampleSealer> {
        self.sealer_of(Scheme::V2, incarnation, chunk_bytes, rng)
    }

    /// Samples are sealed in the current scheme only; tests pin the earlier one, too.
    pub(super) fn sealer_of(
        &self,
        scheme: Scheme,
        incarnation: Incarnation,
        chunk_bytes: u32,
        rng: &dyn Rng,
    ) -> Result<SampleSealer> {
        let header = SealHeader::draw(scheme, &self.current, chunk_bytes, rng)?;
        Ok(SampleSealer::new(
            Arc::clone(&self.current),
            scheme,
            header,
            incarnation,
        ))
    }

    /// Begins a get: finds the key that the header names. `Denied` if it is not here, or is another one. The
    /// description is unverified until [`SampleOpener::check_record`] has succeeded.
    pub fn opener(&self, header: &SealHeader, incarnation: Incarnation) -> Result<SampleOpener> {
        header.validate()?;
        let scheme = header.scheme()?;
        let denied = |message: &str| {
            Err(Error::new(ErrorKind::Denied, "seal.open", message)
                .with("key_id", header.key_id())
                .with("store", &incarnation.store)
                .with("sample", &incarnation.sample))
        };
        let Some(key) = self.keys.get(header.key_id()) else {
            return denied("this sample is sealed with a key that is not in the keyring; add the key with this id");
        };
        if key_check(scheme, key, header.salt())? != header.check() {
            return denied("the key with this id is not the one that this sample was sealed with; correct the keyring");
        }
        Ok(SampleOpener::new(Arc::clone(key), scheme, header.clone(), incarnation))
    }
}

/// Two keyrings are equal if they are clones; keys are not compared.
impl PartialEq for Keyring {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.current, &other.current) && Arc::ptr_eq(&self.keys, &other.keys)
    }
}

impl Eq for Keyring {}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring")
            .field("current", self.current.id())
            .field("keys", &self.keys.keys())
            .finish()
    }
}
