//! Sealing: tensors are encrypted and authenticated before they leave this process, and opened after they are back.
//!
//! The engine's ports authenticate no peer: any process that reaches them can read, change, swap and bring back
//! objects. In a store that was opened with a [`Keyring`] such a process sees ciphertext, and whatever it changes
//! becomes an error, never wrong bytes.
//!
//! | module | its job |
//! |---|---|
//! | `key` | [`StoreKey`]: 32 secret bytes with a [`KeyId`]; wiped when dropped, never printed |
//! | `keyring` | [`Keyring`]: the key that seals now, and those that still open |
//! | `header` | [`SealHeader`]: the public data needed besides the key; part of the sample's description |
//! | `layout` | [`Layout`], [`Run`]: where chunks and tags lie |
//! | `cipher` | one tensor's key, and the data each chunk is bound to |
//! | `record` | [`Record`], [`RecordTag`]: the tag over the sample's description |
//! | `sample` | [`SampleSealer`], [`SampleOpener`]: from a sample to its tensors |
//! | `sealer`, `opener` | [`TensorSealer`], [`TensorOpener`]: bytes in, bytes out |
//!
//! ```
//! use tensorhold_core::{DType, Generation, Nonce, SystemRng, TensorSpec};
//! use tensorhold_features::seal::{DEFAULT_CHUNK_BYTES, Incarnation, Keyring, Record, StoreKey};
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
//! let spec = TensorSpec::new("hidden".parse()?, DType::Uint8, [3, 1_000_000])?;
//! let record = Record { version: 1, object_bytes: 16 << 20, tensors: vec![&spec] };
//!
//! // Put: a sealer for the sample, one for each tensor. The header and the tag go into the description.
//! let mut sample = keyring.sealer(incarnation.clone(), DEFAULT_CHUNK_BYTES, &SystemRng)?;
//! let sealer = sample.tensor(&"hidden".parse()?, 3_000_000)?;
//! let mut sealed = vec![0; usize::try_from(sealer.layout().sealed_len())?];
//! sealer.seal(&tensor, &mut sealed)?;
//! let (header, tag) = (sample.header().clone(), sample.record_tag(&record)?);
//!
//! // Get: the same with the data read back. First verify that the description is the producer's, then open the bytes.
//! let sample = keyring.opener(&header, incarnation)?;
//! sample.check_record(&record, Some(&tag))?;
//! let opener = sample.tensor(&"hidden".parse()?, 3_000_000)?;
//! let mut opened = vec![0; 3_000_000];
//! opener.open(&sealed, &mut opened)?;
//! assert_eq!(opened, tensor);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The format
//! A tensor of `plain_len` bytes is cut into chunks of `chunk_bytes`; the last one is shorter. A tensor without bytes
//! has one empty chunk, so that its emptiness is authenticated too. Each chunk is sealed by itself with AES-256-GCM. An
//! object holds a *run* of chunks: their ciphertext, which is as long as the plaintext and at the same offsets, then
//! their tags of 16 bytes. So a get can scatter the ciphertext to the tensor's destination and the tags elsewhere, and
//! open in place.
//!
//! ```text
//! where      = text(key id) text(store) text(sample) number(generation) number(nonce)
//! place      = where text(tensor)
//! derive(i)  = HKDF-SHA256(secret: store key, salt: the put's salt, info: i)
//! tensor key = derive(text("tensorhold/seal/2 tensor key") place), 32 bytes
//! AEAD nonce = 4 zero bytes, number(chunk)
//! AEAD data  = text("tensorhold/seal/2 chunk") place number(chunk_bytes) number(plain_len) number(chunks) number(chunk)
//! key check  = derive(text("tensorhold/seal/2 key check") text(key id)), 8 bytes
//! text(t)    = its length in bytes, 4 bytes big-endian, then its UTF-8;  number(n) = 8 bytes, big-endian
//! ```
//!
//! The description has a tag of 32 bytes over a canonical form of its content. The tag is checked before memory is
//! allocated for a tensor, and before a tensor without bytes is handed out, for which no chunk could prove anything.
//!
//! ```text
//! record key = derive(text("tensorhold/seal/2 record key") where), 32 bytes
//! record tag = HMAC-SHA256(record key, record)
//! record     = text("tensorhold/seal/2 record") where text(scheme) key check, 8 bytes; salt, 16 bytes;
//!              number(chunk_bytes) number(the description's version) number(object_bytes) number(tensors) tensor…
//! tensor     = text(name) text(element type) number(dimensions) number(length of the dimension)…
//! ```
//! Known-answer tests pin this format; a change needs another scheme name in the header.
//!
//! The previous scheme, `…/1`, has `1` for `2` in its labels, and no tag: an attacker that could write to the index
//! could change a shape, or make a tensor empty. Such samples are read only where a setting allows it
//! (`FeatureConfig::accept_seal_v1`). Since the labels differ, so do all keys: nothing of a `…/2` sample opens as
//! `…/1`.
//!
//! # What must hold
//! - **A chunk opens only where it was sealed.** One byte changed, a chunk moved within a tensor, to another tensor,
//!   sample, generation or store, an object cut short, an older generation's object under this one's key: `Corrupt`,
//!   and the destination is zeroed.
//! - **A description counts only for its own incarnation.** Another element type, shape or order, a tensor more or
//!   fewer, other objects, the description of another sample or generation, no tag: `Corrupt`, before anything is read.
//! - **No AEAD nonce is used twice with a key.** The nonce is the chunk number, so this means: no two different
//!   plaintexts for one chunk of one tensor key. A tensor key belongs to one (key id, store, sample, generation, nonce,
//!   tensor, salt). Two puts differ in the generation, because the index assigns each one only once, *and* in nonce and
//!   salt, 192 random bits. Each of the two suffices: an index that is restored from a backup may assign a generation
//!   again, a forked process may draw its parent's random numbers, and only both at once do harm. Within a put,
//!   [`SampleSealer`] gives out each tensor once and [`TensorSealer`] seals each chunk once; a second time is refused.
//!   A header that was read back cannot be used to seal.
//! - **No secret is shown.** Keys, tensor keys and their text forms appear in no `Debug`, `Display`, error or log, and
//!   this module wipes its copies of them when they are dropped.
//!
//! # What can go wrong
//! | event | outcome |
//! |---|---|
//! | the key id is not in the keyring | `Denied`, names the id |
//! | another key under that id | `Denied` (by the key check), so that a wrong setting does not look like lost data |
//! | a scheme of a later release | `Unsupported` |
//! | the first scheme, where no setting allows it | `Unsupported`, names the setting |
//! | a description that was altered, replayed, or has lost its tag | `Corrupt` |
//! | bytes that do not authenticate, sealed bytes of a wrong length | `Corrupt`, the destination is zeroed |
//! | the caller's own buffers have wrong lengths | `Invalid`; nothing is sealed, or the destination is zeroed |
//! | a tensor or a chunk is sealed twice | `Invalid`; nothing is written |
//! | the process dies while sealing | nothing was committed; nothing of the seal is used again |
//! | a put is retried | with the same sealed bytes; or with a new [`SampleSealer`], for all of its tensors |
//!
//! # Bounds
//! A chunk has at most 64 MiB (2^22 blocks; GCM allows 2^32 − 2 for each nonce), a tensor at most 1 TiB. So a tensor
//! key encrypts at most 2^36 blocks, and the chance to tell its ciphertext from noise is below 2^-56. A forged chunk
//! passes with a chance below 2^-105; of 1 MiB, below 2^-111.
//!
//! # What it does not do
//! - Names, lengths, shapes, and which process reads when, stay visible in keys and in the index.
//! - An attacker that can write to the index can still delete samples, hand them to other groups, or present a whole
//!   former sample, record and objects, as live.
//! - Before a get, the specs that a lease or a look reports of a sample's tensors are unverified data of the index. The
//!   get verifies them.
//! - A checksum of the plaintext in a description would reveal whether two tensors are equal: a sealed sample needs
//!   none.
//! - Equal tensors have unequal ciphertext; nothing is compressed.
//! - Opening reads the sealed bytes while it checks them: memory that the engine may still write to must not be opened.

mod cipher;
mod header;
mod key;
mod keyring;
mod layout;
mod opener;
mod record;
mod sample;
mod sealer;
#[cfg(test)]
mod tests;

pub use cipher::{Incarnation, TAG_BYTES};
pub use header::{Scheme, SealHeader};
pub use key::{KEY_BYTES, KeyId, StoreKey};
pub use keyring::Keyring;
pub use layout::{DEFAULT_CHUNK_BYTES, Layout, MAX_CHUNK_BYTES, MAX_TENSOR_BYTES, MIN_CHUNK_BYTES, Run};
pub use opener::{OpenJob, TensorOpener};
pub use record::{Record, RecordTag};
pub use sample::{SampleOpener, SampleSealer};
pub use sealer::{SealJob, TensorSealer};
