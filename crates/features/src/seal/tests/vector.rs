//! The format, held fast. The expected bytes were computed from the description in the module's story by another program
//! (Python's `cryptography`), not by this one. If a test here fails, samples that others have sealed cannot be opened:
//! do not change the bytes, give the new format another scheme name.

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn vector(plain: &[u8]) -> Sealed {
    let secret: [u8; KEY_BYTES] = std::array::from_fn(|i| u8::try_from(i).unwrap_or(0));
    let key = StoreKey::from_bytes("2026-11".parse().expect("an id"), &secret).expect("a key");
    let rng = Counting(AtomicU64::new(0x0011_2233_4455_6677));
    let mut sample = Keyring::of(key)
        .sealer(incarnation("eagle", "run/3", 12, 0xbeef), MIN_CHUNK_BYTES, &rng)
        .expect("a sealer");
    let sealer = sample
        .tensor(&name("hidden_state"), plain.len() as u64)
        .expect("a tensor");
    let mut bytes = vec![0; length(sealer.layout().sealed_len())];
    sealer.seal(plain, &mut bytes).expect("seals");
    Sealed {
        header: sample.header().clone(),
        bytes,
        plain_len: plain.len(),
    }
}

#[test]
fn the_header_reads_as_ever() {
    assert_eq!(
        serde_json::to_string(&vector(b"").header).expect("json"),
        r#"{"scheme":"aes-256-gcm+hkdf-sha256/1","key":"2026-11","check":"cb6be991e32946ed","salt":"00112233445566770112233445566778","chunk_bytes":4096}"#
    );
}

#[test]
fn a_small_tensor_is_sealed_as_ever() {
    assert_eq!(
        hex(&vector(b"custody of tensors").bytes),
        "dc0898457fd43a07388e039ec404a0b3ce734171c0dac1a45e2f68da515ee3fef972"
    );
    assert_eq!(hex(&vector(b"").bytes), "b3263770598a6791347dc621e552bdf0");
}

#[test]
fn a_tensor_of_two_chunks_is_sealed_as_ever() {
    let bytes = vector(&[0x5a; 4096 + 8]).bytes;
    assert_eq!(
        hex(&bytes[4096..]),
        "773135f0ffc2e175a02fef0a88cc99097bae57be6f79e1cd8e0225455074f619d0df4631172e38c5"
    );
}
