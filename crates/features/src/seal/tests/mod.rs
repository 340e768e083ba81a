//! What is sealed opens, only as it was sealed, only where it was sealed, only with its key.

mod keys;
mod round_trip;
mod secrets;
mod tamper;
mod vector;

use std::sync::atomic::{AtomicU64, Ordering};

use tensorhold_core::{DType, ErrorKind, Generation, Nonce, Result, Rng, SeededRng, TensorName, TensorSpec};

use super::*;

/// The secret bytes of the test key number `n`: no two alike, and none that would stand in other text by chance.
fn secret(n: u8) -> [u8; KEY_BYTES] {
    std::array::from_fn(|i| {
        0xa1_u8
            .wrapping_add(n)
            .wrapping_mul(31)
            .wrapping_add(u8::try_from(i * 7).unwrap_or(0))
    })
}

fn key(id: &str, n: u8) -> StoreKey {
    StoreKey::from_bytes(id.parse().expect("an id"), &secret(n)).expect("a key")
}

fn keyring() -> Keyring {
    Keyring::of(key("k1", 1))
}

fn incarnation(store: &str, sample: &str, generation: u64, nonce: u64) -> Incarnation {
    Incarnation {
        store: store.parse().expect("a store"),
        sample: sample.parse().expect("a sample"),
        generation: Generation::new(generation).expect("not zero"),
        nonce: Nonce::from_u64(nonce),
    }
}

fn here() -> Incarnation {
    incarnation("store", "sample", 3, 0xbeef)
}

fn name(text: &str) -> TensorName {
    text.parse().expect("a tensor name")
}

/// Bytes with a pattern that is not the same in any two chunks.
fn plain(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from((i * 131 + i / 4096) % 251).unwrap_or(0))
        .collect()
}

/// A tensor as it comes out of a put: the header, and the sealed bytes of one run.
struct Sealed {
    header: SealHeader,
    bytes: Vec<u8>,
    plain_len: usize,
}

fn length(n: u64) -> usize {
    usize::try_from(n).expect("fits")
}

/// Seals with a salt that follows from `seed`.
fn seal_at(keyring: &Keyring, at: Incarnation, tensor: &str, plain: &[u8], seed: u64) -> Sealed {
    let mut sample = keyring
        .sealer(at, MIN_CHUNK_BYTES, &SeededRng::new(seed))
        .expect("a sealer");
    let sealer = sample.tensor(&name(tensor), plain.len() as u64).expect("a tensor");
    let mut bytes = vec![0; length(sealer.layout().sealed_len())];
    sealer.seal(plain, &mut bytes).expect("seals");
    Sealed {
        header: sample.header().clone(),
        bytes,
        plain_len: plain.len(),
    }
}

fn opener_at(
    keyring: &Keyring,
    at: Incarnation,
    tensor: &str,
    header: &SealHeader,
    len: usize,
) -> Result<TensorOpener> {
    keyring.opener(header, at)?.tensor(&name(tensor), len as u64)
}

/// Opens in both ways, which must agree; a failure must leave zeros.
fn open_at(keyring: &Keyring, at: Incarnation, tensor: &str, sealed: &Sealed) -> Result<Vec<u8>> {
    let opener = opener_at(keyring, at, tensor, &sealed.header, sealed.plain_len)?;
    let mut into = vec![0xee; sealed.plain_len];
    let opened = opener.open(&sealed.bytes, &mut into);

    let mut bytes = sealed.bytes.clone();
    let (in_place, tags) = bytes.split_at_mut(sealed.plain_len.min(sealed.bytes.len()));
    let also = opener.open_run_in_place(opener.layout().whole(), in_place, tags);
    assert_eq!(
        opened.as_ref().map_err(|e| e.kind()).err(),
        also.as_ref().map_err(|e| e.kind()).err()
    );
    if opened.is_ok() {
        assert_eq!(into, in_place);
    } else {
        assert!(
            into.iter().chain(in_place.iter()).all(|&byte| byte == 0),
            "zeros after a failure"
        );
    }
    opened.map(|()| into)
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("an error").kind()
}

/// Numbers as they are told.
#[derive(Debug)]
struct Counting(AtomicU64);

impl Rng for Counting {
    fn next_u64(&self) -> u64 {
        self.0.fetch_add(0x0101_0101_0101_0101, Ordering::Relaxed)
    }
}
