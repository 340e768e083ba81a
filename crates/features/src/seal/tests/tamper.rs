//! Whatever an attacker at the engine does to sealed bytes is `Corrupt`, and nothing is handed out.

use proptest::prelude::*;

use super::*;

const CHUNK: usize = MIN_CHUNK_BYTES as usize;

fn sealed_here(plain: &[u8]) -> Sealed {
    seal_at(&keyring(), here(), "t", plain, 1)
}

/// Opens the bytes of `sealed` as the tensor `tensor` of `at`, with the header that `sealed` came with.
fn opens_as(sealed: &Sealed, at: Incarnation, tensor: &str) -> Result<Vec<u8>> {
    open_at(&keyring(), at, tensor, sealed)
}

#[test]
fn every_flipped_bit_is_found() {
    for len in [0, 1, 16, 61] {
        let mut sealed = sealed_here(&plain(len));
        for bit in 0..8 * sealed.bytes.len() {
            sealed.bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                kind(opens_as(&sealed, here(), "t")),
                ErrorKind::Corrupt,
                "bit {bit} of {len}"
            );
            sealed.bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(opens_as(&sealed, here(), "t").is_ok());
    }
}

#[test]
fn every_changed_byte_is_found() {
    let mut sealed = sealed_here(&plain(5));
    for at in 0..sealed.bytes.len() {
        let before = sealed.bytes[at];
        for value in (0..=255).filter(|&value| value != before) {
            sealed.bytes[at] = value;
            assert_eq!(kind(opens_as(&sealed, here(), "t")), ErrorKind::Corrupt);
        }
        sealed.bytes[at] = before;
    }
}

#[test]
fn every_other_length_is_found() {
    let whole = sealed_here(&plain(CHUNK + 20));
    for len in (0..whole.bytes.len()).chain([whole.bytes.len() + 1, whole.bytes.len() + 16, 3 * CHUNK]) {
        let mut bytes = whole.bytes.clone();
        bytes.resize(len, 0);
        let cut = Sealed {
            bytes,
            header: whole.header.clone(),
            plain_len: whole.plain_len,
        };
        assert_eq!(kind(opens_as(&cut, here(), "t")), ErrorKind::Corrupt, "{len}");
    }
}

#[test]
fn a_tensor_cut_at_a_chunk_does_not_pass_for_a_shorter_one() {
    let two = sealed_here(&plain(2 * CHUNK));
    let bytes = [&two.bytes[..CHUNK], &two.bytes[2 * CHUNK..2 * CHUNK + 16]].concat();
    let cut = Sealed {
        bytes,
        header: two.header.clone(),
        plain_len: CHUNK,
    };
    assert_eq!(kind(opens_as(&cut, here(), "t")), ErrorKind::Corrupt);
    // Nor does its first chunk open, in either way, if the tensor's length is told wrong.
    let tag = two.bytes[2 * CHUNK..].first_chunk::<TAG_BYTES>().expect("a tag");
    for told in [2 * CHUNK - 1, 3 * CHUNK] {
        let opener = opener_at(&keyring(), here(), "t", &two.header, told).expect("an opener");
        let mut into = vec![1; CHUNK];
        let opened = opener.open_chunk(0, &two.bytes[..CHUNK], tag, &mut into);
        assert_eq!((kind(opened), into), (ErrorKind::Corrupt, vec![0; CHUNK]));
        let mut bytes = two.bytes[..CHUNK].to_vec();
        let opened = opener.open_chunk_in_place(0, &mut bytes, tag);
        assert_eq!((kind(opened), bytes), (ErrorKind::Corrupt, vec![0; CHUNK]));
    }
}

#[test]
fn chunks_swapped_within_a_tensor_are_found() {
    let mut sealed = sealed_here(&plain(3 * CHUNK));
    sealed.bytes[..2 * CHUNK].rotate_left(CHUNK);
    assert_eq!(
        kind(opens_as(&sealed, here(), "t")),
        ErrorKind::Corrupt,
        "without their tags"
    );
    sealed.bytes[3 * CHUNK..3 * CHUNK + 32].rotate_left(16);
    assert_eq!(
        kind(opens_as(&sealed, here(), "t")),
        ErrorKind::Corrupt,
        "with their tags"
    );
}

#[test]
fn objects_of_elsewhere_are_found() {
    let sealed = sealed_here(&plain(100));
    assert!(opens_as(&sealed, here(), "t").is_ok());
    for (at, tensor, what) in [
        (here(), "u", "another tensor"),
        (incarnation("store", "sample2", 3, 0xbeef), "t", "another sample"),
        (incarnation("store2", "sample", 3, 0xbeef), "t", "another store"),
        (incarnation("store", "sample", 4, 0xbeef), "t", "a later generation"),
        (incarnation("store", "sample", 2, 0xbeef), "t", "a former generation"),
        (incarnation("store", "sample", 3, 0xbeee), "t", "another nonce"),
        (
            incarnation("stores", "ample", 3, 0xbeef),
            "t",
            "names with another border",
        ),
    ] {
        assert_eq!(kind(opens_as(&sealed, at, tensor)), ErrorKind::Corrupt, "{what}");
    }
}

#[test]
fn an_older_generation_under_the_new_key_is_found() {
    let old = seal_at(
        &keyring(),
        incarnation("store", "sample", 3, 1),
        "t",
        &plain(CHUNK + 7),
        1,
    );
    let new = seal_at(
        &keyring(),
        incarnation("store", "sample", 4, 2),
        "t",
        &plain(CHUNK + 7),
        2,
    );
    // The reader has the new record, the engine gives the old object: whole, and one chunk of it.
    let replayed = Sealed {
        bytes: old.bytes.clone(),
        header: new.header.clone(),
        plain_len: new.plain_len,
    };
    let at = || incarnation("store", "sample", 4, 2);
    assert_eq!(kind(opens_as(&replayed, at(), "t")), ErrorKind::Corrupt);
    let mut mixed = new.bytes.clone();
    mixed[CHUNK..CHUNK + 7].copy_from_slice(&old.bytes[CHUNK..CHUNK + 7]);
    mixed[CHUNK + 23..].copy_from_slice(&old.bytes[CHUNK + 23..]);
    let mixed = Sealed {
        bytes: mixed,
        ..replayed
    };
    assert_eq!(kind(opens_as(&mixed, at(), "t")), ErrorKind::Corrupt);
    assert!(opens_as(&new, at(), "t").is_ok());
}

#[test]
fn another_put_of_the_same_place_is_found() {
    // Not even if the index gave a generation twice and the nonces were equal: the salts differ.
    let one = seal_at(&keyring(), here(), "t", &plain(50), 1);
    let other = seal_at(&keyring(), here(), "t", &plain(50), 2);
    let replayed = Sealed {
        bytes: one.bytes,
        header: other.header,
        plain_len: 50,
    };
    assert_eq!(kind(opens_as(&replayed, here(), "t")), ErrorKind::Corrupt);
}

#[test]
fn another_chunk_size_in_the_header_is_found() {
    let sealed = sealed_here(&plain(100));
    let json = serde_json::to_string(&sealed.header).expect("json");
    let header = serde_json::from_str(&json.replace("4096", "8192")).expect("a header");
    let changed = Sealed { header, ..sealed };
    assert_eq!(kind(opens_as(&changed, here(), "t")), ErrorKind::Corrupt);
}

#[test]
fn an_error_says_which_chunk_of_what() {
    let mut sealed = sealed_here(&plain(3 * CHUNK));
    sealed.bytes[CHUNK] ^= 1;
    let error = opens_as(&sealed, here(), "t").expect_err("an error");
    let facts = ["store", "sample", "generation", "tensor", "key_id", "chunk"].map(|fact| error.fact(fact));
    assert_eq!(
        facts,
        [
            Some("store"),
            Some("sample"),
            Some("3"),
            Some("t"),
            Some("k1"),
            Some("1")
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_change_of_a_larger_tensor_is_found(
        len in 1_usize..3 * CHUNK, changes in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..4),
    ) {
        let mut sealed = sealed_here(&plain(len));
        let before = sealed.bytes.clone();
        for (index, xor) in changes {
            let at = index.index(before.len());
            sealed.bytes[at] ^= xor;
        }
        let expected = (sealed.bytes != before).then_some(ErrorKind::Corrupt);
        prop_assert_eq!(opens_as(&sealed, here(), "t").err().map(|error| error.kind()), expected);
    }
}
