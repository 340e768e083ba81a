//! An attacker that reaches the engine's ports: reads objects as they are, and puts others in their places.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use tensorhold_core::ObjectKey;
use tensorhold_engine::{Engine, EngineExt, GetOutcome, Presence, PutOptions, PutOutcome};
use tensorhold_features::seal::{Keyring, StoreKey};

use serde_json::Value;
use tensorhold_features::{SampleRef, Stored};

use super::{WITHIN, World, objects_of};

/// A keyring of the keys with these ids, each another; the first one is current.
pub fn keys(ids: &[&str]) -> Keyring {
    let key = |id: &&str| StoreKey::from_bytes(id.parse().expect("an id"), &secret_of(id)).expect("a key");
    Keyring::new(&ids[0].parse().expect("an id"), ids.iter().map(key)).expect("a keyring")
}

/// The bytes of an object.
pub fn read_raw(engine: &dyn Engine, key: &ObjectKey) -> Vec<u8> {
    let Presence::Present { bytes, .. } = engine.probe_one(key, WITHIN).expect("an answer") else {
        panic!("{key} is not there");
    };
    let len = usize::try_from(bytes).expect("small");
    let region = engine.allocate(len, WITHIN).expect("memory");
    let outcome = engine.get_one(key, &region.whole(), WITHIN).expect("an outcome");
    assert!(matches!(outcome, GetOutcome::Loaded), "{key}: {outcome:?}");
    region.whole().to_vec()
}

/// Puts other bytes in an object's place.
pub fn replace_raw(engine: &dyn Engine, key: &ObjectKey, bytes: &[u8]) {
    engine.remove_one(key, WITHIN).expect("removed");
    let region = engine.allocate(bytes.len(), WITHIN).expect("memory");
    region.whole().write(0, bytes).expect("fits");
    let outcome = engine.put_one(key, &region.whole(), &PutOptions::default(), WITHIN);
    let outcome = outcome.expect("an outcome");
    assert!(matches!(outcome, PutOutcome::Stored), "{key}: {outcome:?}");
}

/// Whether a part of `plain` stands anywhere in `bytes`.
pub fn shows(bytes: &[u8], plain: &[u8]) -> bool {
    let probes = [0, plain.len() / 3, plain.len() / 2, plain.len().saturating_sub(16)];
    probes.iter().any(|at| {
        let probe = &plain[*at..plain.len().min(at + 16)];
        bytes.windows(probe.len()).any(|window| window == probe)
    })
}

/// The objects of a sample that are in memory, in order.
pub fn keys_of(world: &World, stored: &Stored) -> Vec<ObjectKey> {
    let there = world.cluster.objects();
    let mut keys = objects_of(&"s".parse().expect("a name"), stored);
    keys.retain(|key| there.contains(key));
    keys
}

/// The secret bytes of [`keys`].
fn secret_of(id: &str) -> [u8; 32] {
    std::array::from_fn(|n| id.as_bytes()[n % id.len()] ^ u8::try_from(n * 7).expect("small"))
}

fn text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).expect("short").to_be_bytes();
    [&length, text.as_bytes()].concat()
}

/// The tensors of a description as the first scheme seals them, written anew from its specification: the header, and
/// every object in order. `plain` gives the bytes of the `n`-th tensor.
pub fn earlier_seal(
    key_id: &str,
    store: &str,
    sample: &SampleRef,
    description: &Value,
    plain: impl Fn(u64, usize) -> Vec<u8>,
) -> (Value, Vec<Vec<u8>>) {
    let salt = [7; 16];
    let derive = |info: &[u8], into: &mut [u8]| {
        let parts = [info];
        let key = Salt::new(HKDF_SHA256, &salt).extract(&secret_of(key_id));
        let output = key.expand(&parts, Length(into.len())).expect("a length");
        output.fill(into).expect("a key");
    };
    let nonce = description["nonce"].as_u64().expect("a nonce");
    let chunk_bytes = description["chunk_bytes"].as_u64().expect("a length");
    let number = |number: u64| number.to_be_bytes();
    let mut objects = Vec::new();
    for (n, tensor) in (0..).zip(description["tensors"].as_array().expect("tensors")) {
        let name = tensor["spec"]["name"].as_str().expect("a name");
        let len = tensor["spec"]["shape"][0].as_u64().expect("a length");
        let place = [
            text(key_id),
            text(store),
            text(sample.sample.as_str()),
            number(sample.generation.get()).to_vec(),
            number(nonce).to_vec(),
            text(name),
        ]
        .concat();
        let mut key = [0; 32];
        derive(
            &[text("tensorhold/seal/1 tensor key"), place.clone()].concat(),
            &mut key,
        );
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("a key"));
        let plain = plain(n, usize::try_from(len).expect("small"));
        let chunks = len.div_ceil(chunk_bytes);
        for (chunk, bytes) in (0..).zip(plain.chunks(usize::try_from(chunk_bytes).expect("small"))) {
            let bound_to = [text("tensorhold/seal/1 chunk"), place.clone()].concat();
            let numbers = [chunk_bytes, len, chunks, chunk].map(number).concat();
            let aead =
                Nonce::assume_unique_for_key(*[&[0; 4][..], &number(chunk)].concat().first_chunk().expect("12 bytes"));
            let mut sealed = bytes.to_vec();
            key.seal_in_place_append_tag(aead, Aad::from([bound_to, numbers].concat()), &mut sealed)
                .expect("sealed");
            objects.push(sealed);
        }
    }
    let mut check = [0; 8];
    derive(
        &[text("tensorhold/seal/1 key check"), text(key_id)].concat(),
        &mut check,
    );
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let header = format!(
        r#"{{"scheme": "aes-256-gcm+hkdf-sha256/1", "key": "{key_id}", "check": "{}", "salt": "{}", "chunk_bytes": {chunk_bytes}}}"#,
        hex(&check),
        hex(&salt)
    );
    let header = serde_json::from_str(&header).expect("JSON");
    (header, objects)
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}
