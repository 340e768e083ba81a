//! The decoders of descriptions, plans and sealed bytes, for the fuzzer (feature `fuzzing`, folder `fuzz/`). Not part
//! of the public interface.
//!
//! Whatever bytes it is given, a decoder refuses them, or returns a value that is written and read back without a
//! change. Sealed bytes open to what was sealed, or not at all.
#![allow(
    clippy::expect_used,
    missing_docs,
    reason = "a broken property is a panic: that is how the fuzzer learns of it"
)]

use std::sync::OnceLock;

use tensorhold_core::{Generation, Nonce, SeededRng, StoreId};
use tensorhold_index::SampleRef;

use crate::record::description::Description;
use crate::record::plan::{Plan, SampleObjects};
use crate::seal::{Incarnation, Keyring, Layout, MIN_CHUNK_BYTES, SealHeader, StoreKey};

fn store() -> StoreId {
    StoreId::new("store").expect("a name")
}

fn sample() -> SampleRef {
    SampleRef {
        sample: "sample".parse().expect("a name"),
        generation: Generation::new(3).expect("not zero"),
    }
}

/// A sample's description, and the keys of its objects.
pub fn description(bytes: &[u8]) {
    let Ok(first) = Description::from_bytes(bytes) else {
        return;
    };
    // A description that is read may be longer than one that may be put: then writing it is refused, and nothing else.
    if let Ok(written) = first.to_bytes() {
        let again = Description::from_bytes(&written).expect("what was written can be read");
        assert_eq!(again, first);
        assert_eq!(again.to_bytes().expect("written again"), written);
    }
    let (store, sample) = (store(), sample());
    let place = SampleObjects {
        store: &store,
        sample: &sample,
    };
    let keys = first.object_keys(place).expect("it was checked when it was read");
    let of_tensors = first.tensors().iter().map(|tensor| {
        let keys = first.keys_of(tensor, place).expect("checked as well");
        assert!(tensor.digests.is_empty() || tensor.spec.bytes() == 0 || tensor.digests.len() == keys.len());
        keys.len()
    });
    assert!(of_tensors.sum::<usize>() <= keys.len());
    assert!(
        first.bytes()
            >= first
                .tensors()
                .iter()
                .map(|tensor| tensor.spec.bytes())
                .max()
                .unwrap_or(0)
    );
}

/// The plan of a reservation, and the keys of its objects.
pub fn plan(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(first) = Plan::from_text(text) else { return };
    let written = first.to_text().expect("what was read can be written");
    assert_eq!(Plan::from_text(&written).expect("what was written can be read"), first);
    let (store, sample) = (store(), sample());
    let place = SampleObjects {
        store: &store,
        sample: &sample,
    };
    first
        .object_keys(place, Nonce::from_u64(5))
        .expect("it was checked when it was read");
}

/// Three chunks, of which the last is short.
const PLAIN_LEN: usize = 2 * MIN_CHUNK_BYTES as usize + 100;

/// One tensor, sealed.
struct Sealed {
    keyring: Keyring,
    header: SealHeader,
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

fn incarnation() -> Incarnation {
    let SampleRef { sample, generation } = sample();
    Incarnation {
        store: store(),
        sample,
        generation,
        nonce: Nonce::from_u64(5),
    }
}

fn sealed() -> &'static Sealed {
    static SEALED: OnceLock<Sealed> = OnceLock::new();
    SEALED.get_or_init(|| {
        let secret: Vec<u8> = (0..32).collect();
        let key = StoreKey::from_bytes("key".parse().expect("an id"), &secret).expect("a key");
        let keyring = Keyring::of(key);
        let mut sealer = keyring
            .sealer(incarnation(), MIN_CHUNK_BYTES, &SeededRng::new(11))
            .expect("a sealer");
        let plain: Vec<u8> = (0..PLAIN_LEN).map(|n| n.to_le_bytes()[0]).collect();
        let tensor = sealer
            .tensor(&"t".parse().expect("a name"), PLAIN_LEN as u64)
            .expect("a tensor");
        let length = usize::try_from(tensor.layout().sealed_len()).expect("short");
        let mut sealed = vec![0; length];
        tensor.seal(&plain, &mut sealed).expect("sealed");
        Sealed {
            header: sealer.header().clone(),
            keyring,
            plain,
            sealed,
        }
    })
}

/// Opens bytes by a header; the plaintext, if they open.
fn open(header: &SealHeader, bytes: &[u8]) -> Option<Vec<u8>> {
    let opener = sealed().keyring.opener(header, incarnation()).ok()?;
    let tensor = opener.tensor(&"t".parse().expect("a name"), PLAIN_LEN as u64).ok()?;
    let mut plain = vec![0xAA; PLAIN_LEN];
    match tensor.open(bytes, &mut plain) {
        Ok(()) => Some(plain),
        Err(_) => {
            assert!(plain.iter().all(|byte| *byte == 0), "what does not open leaves zeros");
            None
        }
    }
}

/// A seal's header: a header other than the sample's own does not open it.
pub fn seal_header(bytes: &[u8]) {
    let Ok(header) = serde_json::from_slice::<SealHeader>(bytes) else {
        return;
    };
    let written = serde_json::to_vec(&header).expect("what was read can be written");
    let again: SealHeader = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(again, header);
    for length in [0, 1, PLAIN_LEN as u64, u64::MAX] {
        if let Ok(layout) = Layout::new(length, header.chunk_bytes()) {
            assert!(layout.sealed_len() >= length);
            assert_eq!(layout.run(0, layout.chunk_count()), Some(layout.whole()));
            assert_eq!(layout.run(layout.chunk_count(), 1), None);
            assert_eq!(layout.run(u64::MAX, u64::MAX), None);
        }
    }
    let genuine = sealed();
    match open(&header, &genuine.sealed) {
        Some(plain) => assert!(plain == genuine.plain && header == genuine.header),
        None => assert_ne!(header, genuine.header),
    }
}

/// Sealed bytes that were changed, cut or lengthened do not open. The input encodes the changes: three bytes for each,
/// an offset and the bits to flip there. The rest of the input is appended or, if its first byte is odd, its length is
/// cut off.
pub fn sealed_bytes(bytes: &[u8]) {
    let genuine = sealed();
    let mut changed = genuine.sealed.clone();
    let (changes, rest) = bytes.as_chunks::<3>();
    for &[low, high, flip] in changes {
        let at = usize::from(u16::from_le_bytes([low, high])) % changed.len();
        changed[at] ^= flip;
    }
    match rest {
        [cut, more @ ..] if cut % 2 == 1 => changed.truncate(genuine.sealed.len() - 1 - more.len()),
        more => changed.extend_from_slice(more),
    }
    match open(&genuine.header, &changed) {
        Some(plain) => assert!(plain == genuine.plain && changed == genuine.sealed),
        None => assert_ne!(changed, genuine.sealed),
    }
}
