//! One tensor's key, and the data that each of its chunks is bound to. The documentation of the parent module has the
//! format.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce as AeadNonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use tensorhold_core::{Error, ErrorKind, Generation, Nonce, Result, SampleId, SampleKey, StoreId, TensorName};

use super::header::{Scheme, SealHeader};
use super::key::{KeyId, Secret, StoreKey};
use super::layout::Layout;

/// The length of a chunk's tag: how much longer each sealed chunk is.
pub const TAG_BYTES: usize = 16;

pub(super) type Tag = [u8; TAG_BYTES];

/// One physical incarnation of a sample: the common part of its objects' keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incarnation {
    /// The store that the sample belongs to.
    pub store: StoreId,
    /// The sample.
    pub sample: SampleId,
    /// Which generation of the sample.
    pub generation: Generation,
    /// The random bits of its keys.
    pub nonce: Nonce,
}

impl From<&SampleKey> for Incarnation {
    fn from(key: &SampleKey) -> Self {
        Self {
            store: key.store.clone(),
            sample: key.sample.clone(),
            generation: key.generation,
            nonce: key.nonce,
        }
    }
}

/// A tensor of an incarnation, sealed with a key: the owner of a tensor key.
#[derive(Clone, PartialEq, Eq)]
struct TensorIdentity {
    key_id: KeyId,
    incarnation: Incarnation,
    tensor: TensorName,
}

impl TensorIdentity {
    fn encode(&self, label: &str) -> Encoder {
        Encoder::new(label)
            .sample(&self.key_id, &self.incarnation)
            .text(self.tensor.as_str())
    }
}

/// Encodes fields so that different fields never give the same bytes: the length precedes every text.
pub(super) struct Encoder(pub(super) Vec<u8>);

impl Encoder {
    pub(super) fn new(label: &str) -> Self {
        Self(Vec::with_capacity(256)).text(label)
    }

    /// The incarnation of a sample, and the key it is sealed with.
    pub(super) fn sample(self, key_id: &KeyId, incarnation: &Incarnation) -> Self {
        self.text(key_id.as_str())
            .text(incarnation.store.as_str())
            .text(incarnation.sample.as_str())
            .number(incarnation.generation.get())
            .number(incarnation.nonce.as_u64())
    }

    pub(super) fn text(mut self, text: &str) -> Self {
        // Ids and names have at most 255 bytes, by their types: the length always fits.
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub(super) fn number(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    /// Bytes whose length never varies.
    pub(super) fn fixed<const N: usize>(mut self, bytes: &[u8; N]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// How many bytes HKDF is asked for.
struct OutputBytes(usize);

impl KeyType for OutputBytes {
    fn len(&self) -> usize {
        self.0
    }
}

pub(super) fn derive(key: &StoreKey, salt: &[u8; 16], info: &Encoder, into: &mut [u8]) -> Result<()> {
    Salt::new(HKDF_SHA256, salt)
        .extract(key.secret().as_slice())
        .expand(&[&info.0], OutputBytes(into.len()))
        .and_then(|output| output.fill(into))
        .map_err(|_| Error::internal("seal.derive", "the key derivation failed").with("key_id", key.id()))
}

/// Distinguishes one key from another without revealing anything about either.
pub(super) fn key_check(scheme: Scheme, key: &StoreKey, salt: &[u8; 16]) -> Result<[u8; 8]> {
    let mut check = [0; 8];
    let info = Encoder::new(&scheme.label("key check")).text(key.id().as_str());
    derive(key, salt, &info, &mut check)?;
    Ok(check)
}

fn tensor_key(scheme: Scheme, key: &StoreKey, header: &SealHeader, place: &TensorIdentity) -> Result<Secret> {
    let mut tensor_key = Secret::default();
    let info = place.encode(&scheme.label("tensor key"));
    derive(key, header.salt(), &info, tensor_key.as_mut_slice())?;
    Ok(tensor_key)
}

/// Seals and opens the chunks of one tensor. It does not count: its owner must see to it that no chunk is sealed twice.
pub(super) struct TensorCipher {
    key: LessSafeKey,
    place: TensorIdentity,
    layout: Layout,
    /// The associated data of every chunk, up to the chunk's number.
    bound_to: Vec<u8>,
}

impl TensorCipher {
    pub(super) fn new(
        scheme: Scheme,
        key: &StoreKey,
        header: &SealHeader,
        incarnation: &Incarnation,
        tensor: &TensorName,
        plain_len: u64,
    ) -> Result<Self> {
        let layout = Layout::new(plain_len, header.chunk_bytes())?;
        let place = TensorIdentity {
            key_id: key.id().clone(),
            incarnation: incarnation.clone(),
            tensor: tensor.clone(),
        };
        let tensor_key = tensor_key(scheme, key, header, &place)?;
        let unbound = UnboundKey::new(&AES_256_GCM, tensor_key.as_slice())
            .map_err(|_| Error::internal("seal.derive", "the cipher refused its key").with("key_id", key.id()))?;
        let bound_to = place
            .encode(&scheme.label("chunk"))
            .number(u64::from(layout.chunk_bytes()))
            .number(layout.plain_len())
            .number(layout.chunk_count())
            .0;
        Ok(Self {
            key: LessSafeKey::new(unbound),
            place,
            layout,
            bound_to,
        })
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    fn nonce(number: u64) -> AeadNonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
        AeadNonce::assume_unique_for_key(nonce)
    }

    fn associated(&self, number: u64) -> Aad<Vec<u8>> {
        Aad::from([self.bound_to.as_slice(), &number.to_be_bytes()].concat())
    }

    /// `cipher` is as long as `plain`, and that is the chunk's length.
    pub(super) fn seal(&self, number: u64, plain: &[u8], cipher: &mut [u8], tag: &mut Tag) -> Result<()> {
        self.key
            .seal_out_of_place_scatter(Self::nonce(number), self.associated(number), plain, cipher, &[], tag)
            .map_err(|_| {
                self.about(
                    number,
                    Error::internal("seal.seal", "the cipher failed to seal a chunk"),
                )
            })
    }

    /// Like `seal`, with the plaintext where the ciphertext will be.
    pub(super) fn seal_in_place(&self, number: u64, bytes: &mut [u8], tag: &mut Tag) -> Result<()> {
        let (nonce, associated) = (Self::nonce(number), self.associated(number));
        let sealed = self.key.seal_in_place_separate_tag(nonce, associated, bytes).ok();
        let made = sealed.as_ref().and_then(|made| made.as_ref().first_chunk());
        *tag = *made.ok_or_else(|| {
            self.about(
                number,
                Error::internal("seal.seal", "the cipher failed to seal a chunk"),
            )
        })?;
        Ok(())
    }

    /// `plain` is as long as `cipher`, and that is the chunk's length.
    pub(super) fn open(&self, number: u64, cipher: &[u8], tag: &Tag, plain: &mut [u8]) -> Result<()> {
        let opened = self
            .key
            .open_separate_gather(Self::nonce(number), self.associated(number), cipher, tag, plain);
        opened.map_err(|_| {
            plain.fill(0);
            self.corrupt(number)
        })
    }

    /// Like `open`, with the ciphertext where the plaintext will be.
    pub(super) fn open_in_place(&self, number: u64, bytes: &mut [u8], tag: &Tag) -> Result<()> {
        let (nonce, associated) = (Self::nonce(number), self.associated(number));
        let opened = self
            .key
            .open_in_place_separate_tag(nonce, associated, tag, bytes)
            .is_ok();
        if opened {
            return Ok(());
        }
        bytes.fill(0);
        Err(self.corrupt(number))
    }

    fn corrupt(&self, number: u64) -> Error {
        let message = "this chunk is not what was sealed here: it was changed, or comes from elsewhere; \
                       put the sample again, and find out which other program can write to the engine";
        self.about(number, Error::new(ErrorKind::Corrupt, "seal.open", message))
    }

    /// Adds which chunk an error is about.
    pub(super) fn about(&self, number: u64, error: Error) -> Error {
        self.about_tensor(error).with("chunk", number)
    }

    /// Adds which tensor an error is about.
    pub(super) fn about_tensor(&self, error: Error) -> Error {
        error
            .with("store", &self.place.incarnation.store)
            .with("sample", &self.place.incarnation.sample)
            .with("generation", self.place.incarnation.generation)
            .with("tensor", &self.place.tensor)
            .with("key_id", &self.place.key_id)
    }
}

impl fmt::Debug for TensorCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorCipher")
            .field("key", &self.place.key_id)
            .field("incarnation", &self.place.incarnation)
            .field("tensor", &self.place.tensor)
            .field("layout", &self.layout)
            .finish()
    }
}

/// The secret that the tests look for in everything that is printed.
#[cfg(test)]
pub(super) fn tensor_key_for_tests(
    key: &StoreKey,
    header: &SealHeader,
    incarnation: &Incarnation,
    tensor: &TensorName,
) -> Result<Secret> {
    let place = TensorIdentity {
        key_id: key.id().clone(),
        incarnation: incarnation.clone(),
        tensor: tensor.clone(),
    };
    tensor_key(header.scheme()?, key, header, &place)
}
