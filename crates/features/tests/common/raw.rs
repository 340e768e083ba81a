//! What somebody does who reaches the engine's ports: reads objects as they are, and puts others in their places.

use holdfast_core::ObjectKey;
use holdfast_engine::{Engine, EngineExt, GetOutcome, Presence, PutOptions, PutOutcome};
use holdfast_features::seal::{Keyring, StoreKey};

use holdfast_features::Stored;

use super::{WITHIN, World};

/// A keyring of the keys with these ids, each another; the first one is current.
pub fn keys(ids: &[&str]) -> Keyring {
    let key = |id: &&str| {
        let mut bytes = [0; 32];
        for (n, byte) in bytes.iter_mut().enumerate() {
            *byte = id.as_bytes()[n % id.len()] ^ u8::try_from(n * 7).expect("small");
        }
        StoreKey::from_bytes(id.parse().expect("an id"), &bytes).expect("a key")
    };
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

/// The objects of a sample in memory, in order.
pub fn keys_of(world: &World, stored: &Stored) -> Vec<ObjectKey> {
    let part = format!("/g{}-", stored.reference.generation);
    let objects = world.cluster.objects();
    objects.into_iter().filter(|key| key.as_str().contains(&part)).collect()
}
