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
            r#"{"scheme":"aes-256-gcm+hkdf-sha256/1","key":"2026-11","check":"5f0eda453bdff08c","salt":"00112233445566770112233445566778","chunk_bytes":4096}"#,
        ),
        (
            Scheme::V2,
            r#"{"scheme":"aes-256-gcm+hkdf-sha256/2","key":"2026-11","check":"7faaa24812f4911d","salt":"00112233445566770112233445566778","chunk_bytes":4096}"#,
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
            "60f1d7cf109b0ffa75b6a54f9d80ba14aafa560df5d47ec594392ac415f777f706ef",
            "3070ab39053b52273b085f76d323ce9c",
        ),
        (
            Scheme::V2,
            "0792e07fe8d8afa616f42f09ace20c7648f629e8f29f1076702b39b784b925fcc150",
            "741a83bc7cc7e1e9630cec2fae8365b8",
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
            "a030069e36e5843926252413805562d65c33b28a9fc987c3268cb7e7e7b9e47ffcf6648a3baedeba",
        ),
        (
            Scheme::V2,
            "7b0ce2e056623d26595384612ea46512933916497ec3b3d5b1886ffd3d0b55c6a518898bef15e385",
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
        r#""b2b2d66c94b07848e45f8e33a89d63a641862a2874a6c152edfbebeac3333f8a""#
    );
    let hidden = TensorSpec::new(name("hidden_state"), DType::Bfloat16, [2, 9]).expect("a spec");
    let mask = TensorSpec::new(name("mask"), DType::Bool, [0]).expect("a spec");
    assert_eq!(
        tag(&[hidden, mask]),
        r#""93efc175f06f80e7baa2c2d64a9d0e75c44a99874959ed112472e38dd9d383b8""#
    );
}
