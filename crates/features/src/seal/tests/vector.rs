//! The format, pinned. The expected bytes were computed from the description in the parent module's documentation by
//! another program (Python's `cryptography`), not by this one. If a test here fails, samples that other releases have
//! sealed cannot be opened: do not change the bytes, give the new format another scheme name.

use super::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sealer(scheme: Scheme) -> SampleSealer {
    let secret: [u8; KEY_BYTES] = std::array::from_fn(|i| u8::try_from(i).unwrap_or(0));
    let key = StoreKey::from_bytes("2026-11".parse().expect("an id"), &secret).expect("a key");
    let rng = Counting(AtomicU64::new(0x0011_2233_4455_6677));
    Keyring::of(key)
        .sealer_of(scheme, incarnation("eagle", "run/3", 12, 0xbeef), MIN_CHUNK_BYTES, &rng)
        .expect("a sealer")
}

fn vector(scheme: Scheme, plain: &[u8]) -> Sealed {
    let mut sample = sealer(scheme);
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
    for (scheme, expected) in [
        (
            Scheme::V1,
            r#"{"scheme":"aes-256-gcm+hkdf-sha256/1","key":"2026-11","check":"cb6be991e32946ed","salt":"00112233445566770112233445566778","chunk_bytes":4096}"#,
        ),
        (
            Scheme::V2,
            r#"{"scheme":"aes-256-gcm+hkdf-sha256/2","key":"2026-11","check":"6bc6a317c097a788","salt":"00112233445566770112233445566778","chunk_bytes":4096}"#,
        ),
    ] {
        let header = vector(scheme, b"").header;
        assert_eq!(serde_json::to_string(&header).expect("json"), expected);
    }
}

#[test]
fn a_small_tensor_is_sealed_as_ever() {
    for (scheme, small, empty) in [
        (
            Scheme::V1,
            "dc0898457fd43a07388e039ec404a0b3ce734171c0dac1a45e2f68da515ee3fef972",
            "b3263770598a6791347dc621e552bdf0",
        ),
        (
            Scheme::V2,
            "011270ec5080ec4544ff7031c42354f3e88da6c1e4c35593062bf4f77f3bcd912631",
            "3281eb4df86c0d71d33d9ca7bc7e30ee",
        ),
    ] {
        assert_eq!(hex(&vector(scheme, b"custody of tensors").bytes), small);
        assert_eq!(hex(&vector(scheme, b"").bytes), empty);
    }
}

#[test]
fn a_tensor_of_two_chunks_is_sealed_as_ever() {
    for (scheme, expected) in [
        (
            Scheme::V1,
            "773135f0ffc2e175a02fef0a88cc99097bae57be6f79e1cd8e0225455074f619d0df4631172e38c5",
        ),
        (
            Scheme::V2,
            "5c7ba9ede7fee0721d858e7f07656865c0c36958f3d07b435d888c6e1d4f44c39156190671980011",
        ),
    ] {
        assert_eq!(hex(&vector(scheme, &[0x5a; 4096 + 8]).bytes[4096..]), expected);
    }
}

#[test]
fn a_description_is_tagged_as_ever() {
    let tag = |tensors: &[TensorSpec]| {
        let record = Record {
            version: 1,
            object_bytes: 16 << 20,
            tensors: tensors.iter().collect(),
        };
        let tag = sealer(Scheme::V2).record_tag(&record).expect("a tag");
        serde_json::to_string(&tag).expect("json")
    };
    assert_eq!(
        tag(&[]),
        r#""3fae46ed9f0d3253a599ce2dd2e46693fe90ca06cd9c68a25b2d20db386cf8f8""#
    );
    let hidden = TensorSpec::new(name("hidden_state"), DType::Bfloat16, [2, 9]).expect("a spec");
    let mask = TensorSpec::new(name("mask"), DType::Bool, [0]).expect("a spec");
    assert_eq!(
        tag(&[hidden, mask]),
        r#""366fb0f7acc9b6d8eb0e5c7c748c2ae4e3f95b8f460d7d52d4c406c1f6e614c9""#
    );
}
