//! Sealing: tensors are encrypted and authenticated before they leave this process, and opened after they are back.
//!
//! The engine's ports authenticate nobody: whoever reaches them can read, change, swap and bring back objects. In a
//! store that was opened with a [`Keyring`] they see ciphertext, and what they change is an error, never bytes.
//!
//! | module | its job |
//! |---|---|
//! | `key` | [`StoreKey`]: 32 secret bytes with a [`KeyId`]; wiped when dropped, never printed |
//! | `keyring` | [`Keyring`]: the key that seals now, and those that still open |
//! | `header` | [`SealHeader`]: what is needed besides the key; stands in the sample's description |
//! | `layout` | [`Layout`], [`Run`]: where chunks and tags lie |
//! | `cipher` | one tensor's key, and what each chunk is bound to |
//! | `sample` | [`SampleSealer`], [`SampleOpener`]: from a sample to its tensors |
//! | `sealer`, `opener` | [`TensorSealer`], [`TensorOpener`]: bytes in, bytes out |
//!
//! ```
//! use holdfast_core::{Generation, Nonce, SystemRng};
//! use holdfast_features::seal::{DEFAULT_CHUNK_BYTES, Incarnation, Keyring, StoreKey};
//!
//! let text = "mZCRXn4vFtVYJ3lpKvQTMkKcHd8y1Ysnw0hW6bu0vUE="; // from a secret store; never in code
//! let keyring = Keyring::of(StoreKey::from_text("2026-11".parse()?, text)?);
//! let incarnation = Incarnation {
//!     store: "eagle".parse()?,
//!     sample: "run/3".parse()?,
//!     generation: Generation::new(12).ok_or("generations start at 1")?,
//!     nonce: Nonce::draw(&SystemRng),
//! };
//! let tensor = vec![7; 3_000_000];
//!
//! // Put: a sealer for the sample, one for each tensor. The header goes into the description.
//! let mut sample = keyring.sealer(incarnation.clone(), DEFAULT_CHUNK_BYTES, &SystemRng)?;
//! let sealer = sample.tensor(&"hidden".parse()?, 3_000_000)?;
//! let mut sealed = vec![0; usize::try_from(sealer.layout().sealed_len())?];
//! sealer.seal(&tensor, &mut sealed)?;
//! let header = sample.header().clone();
//!
//! // Get: the same with the header that was read back.
//! let opener = keyring.opener(&header, incarnation)?.tensor(&"hidden".parse()?, 3_000_000)?;
//! let mut opened = vec![0; 3_000_000];
//! opener.open(&sealed, &mut opened)?;
//! assert_eq!(opened, tensor);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The format
//! A tensor of `plain_len` bytes is cut into chunks of `chunk_bytes`; the last one is shorter. A tensor without bytes
//! has one empty chunk, so that its emptiness is authenticated too. Each chunk is sealed by itself with AES-256-GCM. An
//! object holds a *run* of chunks: their ciphertext, which is as long as the plaintext and in the same places, then their
//! tags of 16 bytes. So a get can scatter the ciphertext to where the tensor is wanted and the tags elsewhere, and open
//! in place.
//!
//! ```text
//! place      = text(key id) text(store) text(sample) number(generation) number(nonce) text(tensor)
//! derive(i)  = HKDF-SHA256(secret: store key, salt: the put's salt, info: i)
//! tensor key = derive(text("holdfast/seal/1 tensor key") place), 32 bytes
//! AEAD nonce = 4 zero bytes, number(chunk)
//! AEAD data  = text("holdfast/seal/1 chunk") place number(chunk_bytes) number(plain_len) number(chunks) number(chunk)
//! key check  = derive(text("holdfast/seal/1 key check") text(key id)), 8 bytes
//! text(t)    = its length in bytes, 4 bytes big-endian, then its UTF-8;  number(n) = 8 bytes, big-endian
//! ```
//! A known-answer test holds this fast; a change needs another scheme name in the header.
//!
//! # What must hold
//! - **A chunk opens only where it was sealed.** One byte changed, a chunk moved within a tensor, to another tensor,
//!   sample, generation or store, an object cut short, an older generation's object under this one's key: `Corrupt`, and
//!   the destination is zeroed.
//! - **No AEAD nonce is used twice with a key.** The nonce is the chunk number, so this means: no two different
//!   plaintexts for one chunk of one tensor key. A tensor key belongs to one (key id, store, sample, generation, nonce,
//!   tensor, salt). Two puts differ in the generation, because the index gives each one only once, *and* in nonce and
//!   salt, 192 random bits. Each of the two suffices: an index that is restored from a backup may give a generation
//!   again, a forked process may draw its parent's random numbers, and it takes both at once to do harm. Within a put,
//!   [`SampleSealer`] gives out each tensor once and [`TensorSealer`] seals each chunk once; the second time is refused.
//!   A header that was read back cannot be sealed with.
//! - **No secret is shown.** Keys, tensor keys and their text forms are in no `Debug`, `Display`, error or log, and what
//!   this module holds of them is wiped when dropped.
//!
//! # What can go wrong
//! | what | outcome |
//! |---|---|
//! | the key id is not in the keyring | `Denied`, names the id |
//! | another key under that id | `Denied` (by the key check), so that a wrong setting does not look like lost data |
//! | a scheme of a later release | `Unsupported` |
//! | bytes that do not authenticate, sealed bytes of a wrong length | `Corrupt`, the destination is zeroed |
//! | the caller's own buffers have wrong lengths | `Invalid`; nothing is sealed, or the destination is zeroed |
//! | a tensor or a chunk is sealed twice | `Invalid`; nothing is written |
//! | the process dies while sealing | nothing was committed; nothing of the seal is used again |
//! | a put is tried again | with the same sealed bytes; or with a new [`SampleSealer`], for all of its tensors |
//!
//! # Bounds
//! A chunk has at most 64 MiB (2^22 blocks; GCM allows 2^32 − 2 for each nonce), a tensor at most 1 TiB. So a tensor key
//! encrypts at most 2^36 blocks, and the chance to tell its ciphertext from noise is below 2^-56. A forged chunk passes
//! with a chance below 2^-105; of 1 MiB, below 2^-111.
//!
//! # What it does not do
//! - Names, lengths, shapes and who reads when stay visible, in keys and in the index.
//! - The index is trusted. Whoever can write it can delete samples, change a shape that has the same number of bytes,
//!   or present a whole former sample, record and objects, as live.
//! - A checksum of the plaintext in a description tells whether two tensors are equal: a sealed sample needs none.
//! - Tensors that are equal have unequal ciphertext; nothing is compressed.
//! - Opening reads the sealed bytes while it checks them: memory into which the engine may still write must not be opened.

mod cipher;
mod header;
mod key;
mod keyring;
mod layout;
mod opener;
mod sample;
mod sealer;
#[cfg(test)]
mod tests;

pub use cipher::{Incarnation, TAG_BYTES};
pub use header::SealHeader;
pub use key::{KEY_BYTES, KeyId, StoreKey};
pub use keyring::Keyring;
pub use layout::{DEFAULT_CHUNK_BYTES, Layout, MAX_CHUNK_BYTES, MAX_TENSOR_BYTES, MIN_CHUNK_BYTES, Run};
pub use opener::{OpenJob, TensorOpener};
pub use sample::{SampleOpener, SampleSealer};
pub use sealer::{SealJob, TensorSealer};
