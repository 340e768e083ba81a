//! Keys: how they come in, how they rotate, and what a wrong one does.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

use super::*;

fn id() -> KeyId {
    "k1".parse().expect("an id")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether it is the key of `secret(1)`.
fn is_key_one(key: &StoreKey) -> bool {
    key.secret().as_slice() == secret(1)
}

#[test]
fn every_text_form_is_read() {
    let bytes = secret(1);
    let texts = [
        hex(&bytes),
        hex(&bytes).to_uppercase(),
        STANDARD.encode(bytes),
        STANDARD_NO_PAD.encode(bytes),
        URL_SAFE.encode(bytes),
        URL_SAFE_NO_PAD.encode(bytes),
        format!("  {}\r\n", STANDARD.encode(bytes)),
    ];
    assert!(
        texts[4].contains(['-', '_']),
        "the alphabets differ for this key: {}",
        texts[4]
    );
    for text in texts {
        assert!(is_key_one(&StoreKey::from_text(id(), &text).expect("a key")), "{text}");
    }
}

#[test]
fn other_texts_are_refused_and_not_repeated() {
    let good = hex(&secret(1));
    let base64 = STANDARD.encode(secret(1));
    for text in [
        String::new(),
        good[..63].to_owned(),
        format!("{good}0"),
        format!("{}g", &good[..63]),
        format!("{}é", &good[..62]),
        format!("{}!=", &base64[..42]),
        format!("{}=", &base64[..42]),
        STANDARD.encode(&secret(1)[..31]),
        STANDARD.encode([secret(1).as_slice(), &[1]].concat()),
        "00".repeat(32),
        "ab".repeat(32),
    ] {
        let error = StoreKey::from_text(id(), &text).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let shown = format!("{error} {error:?}");
        assert!(text.len() < 8 || !shown.contains(&text[..8]), "{shown}");
    }
    for len in [0, 31, 33, 64] {
        assert_eq!(kind(StoreKey::from_bytes(id(), &vec![7; len])), ErrorKind::Invalid);
    }
}

#[test]
fn files_hold_raw_bytes_or_text() {
    let file = |contents: &[u8]| {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(contents).expect("written");
        file
    };
    let text = format!("{}\n", STANDARD.encode(secret(1)));
    for contents in [secret(1).as_slice(), text.as_bytes(), hex(&secret(1)).as_bytes()] {
        assert!(is_key_one(
            &StoreKey::from_file(id(), file(contents).path()).expect("a key")
        ));
    }
    for contents in [&b""[..], &[0xff; 33], &[b'a'; 5000]] {
        let error = StoreKey::from_file(id(), file(contents).path()).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.fact("file").is_some());
    }
    let gone = file(b"");
    let path = gone.path().to_owned();
    drop(gone);
    assert_eq!(kind(StoreKey::from_file(id(), path)), ErrorKind::NotFound);
}

#[test]
fn a_variable_that_is_not_set_says_so() {
    let error = StoreKey::from_env(id(), "TENSORHOLD_TEST_NO_SUCH_KEY").expect_err("not set");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.fact("variable"), Some("TENSORHOLD_TEST_NO_SUCH_KEY"));
    // A variable that every test has, and that is no key.
    let error = StoreKey::from_env(id(), "PATH").expect_err("no key");
    assert_eq!(
        (error.kind(), error.fact("variable")),
        (ErrorKind::Invalid, Some("PATH"))
    );
}

#[test]
fn ids_are_short_and_never_a_key() {
    for text in ["a", "2026-11", "eagle.prod_2", &"x".repeat(32)] {
        assert_eq!(KeyId::new(text).expect("taken").as_str(), text);
    }
    for text in [
        "",
        "a b",
        "a/b",
        "é",
        &"x".repeat(33),
        &hex(&secret(1)),
        &STANDARD.encode(secret(1)),
    ] {
        let error = KeyId::new(text).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(text.len() < 8 || !format!("{error:?}").contains(text));
    }
    assert!(serde_json::from_str::<KeyId>("\"a b\"").is_err());
}

#[test]
fn a_keyring_has_its_current_key_and_each_id_once() {
    assert_eq!(kind(Keyring::new(&id(), [])), ErrorKind::Invalid);
    assert_eq!(kind(Keyring::new(&id(), [key("k2", 1)])), ErrorKind::Invalid);
    assert_eq!(
        kind(Keyring::new(&id(), [key("k1", 1), key("k1", 2)])),
        ErrorKind::Invalid
    );
    let keyring = Keyring::new(&id(), [key("k2", 2), key("k1", 1)]).expect("a keyring");
    assert_eq!(keyring.current(), &id());
    assert_eq!(keyring.ids().map(KeyId::as_str).collect::<Vec<_>>(), ["k1", "k2"]);
}

#[test]
fn keys_rotate_and_old_samples_open_until_their_key_is_left_out() {
    let old = seal_at(&keyring(), here(), "t", &plain(99), 1);
    let both = Keyring::new(&"k2".parse().expect("an id"), [key("k1", 1), key("k2", 2)]).expect("a keyring");
    let new = seal_at(&both, here(), "t", &plain(99), 2);
    assert_eq!(
        (old.header.key_id().as_str(), new.header.key_id().as_str()),
        ("k1", "k2")
    );
    for sealed in [&old, &new] {
        assert_eq!(open_at(&both, here(), "t", sealed).expect("opens"), plain(99));
    }
    let after = Keyring::of(key("k2", 2));
    assert!(open_at(&after, here(), "t", &new).is_ok());
    let error = open_at(&after, here(), "t", &old).expect_err("its key is gone");
    assert_eq!((error.kind(), error.fact("key_id")), (ErrorKind::Denied, Some("k1")));
}

#[test]
fn another_key_under_the_same_id_is_denied() {
    let sealed = seal_at(&keyring(), here(), "t", &plain(99), 1);
    let error = open_at(&Keyring::of(key("k1", 2)), here(), "t", &sealed).expect_err("another key");
    assert_eq!((error.kind(), error.fact("key_id")), (ErrorKind::Denied, Some("k1")));
}

#[test]
fn the_same_key_under_another_id_opens_nothing() {
    let sealed = seal_at(&keyring(), here(), "t", &plain(99), 1);
    let json = serde_json::to_string(&sealed.header).expect("json").replace("k1", "k2");
    let renamed = Sealed {
        header: serde_json::from_str(&json).expect("a header"),
        ..sealed
    };
    assert_eq!(
        kind(open_at(&Keyring::of(key("k2", 1)), here(), "t", &renamed)),
        ErrorKind::Denied
    );
}

#[test]
fn without_the_key_check_a_wrong_key_is_corrupt() {
    // An index that was tampered with may say whatever it wants about the check: the tags decide.
    let sealed = seal_at(&keyring(), here(), "t", &plain(99), 1);
    let other = seal_at(&Keyring::of(key("k1", 2)), here(), "t", &plain(99), 1);
    let forged = Sealed {
        header: other.header,
        ..sealed
    };
    assert_eq!(
        kind(open_at(&Keyring::of(key("k1", 2)), here(), "t", &forged)),
        ErrorKind::Corrupt
    );
}

#[test]
fn headers_are_checked_on_the_way_in() {
    let header = seal_at(&keyring(), here(), "t", &plain(9), 1).header;
    let json = serde_json::to_string(&header).expect("json");
    assert_eq!(serde_json::from_str::<SealHeader>(&json).expect("reads back"), header);
    let opens = |json: String| {
        let header: SealHeader = serde_json::from_str(&json).expect("json");
        keyring().opener(&header, here()).map(|_| ())
    };
    assert_eq!(
        kind(opens(json.replace("sha256/2", "sha256/3"))),
        ErrorKind::Unsupported
    );
    assert_eq!(kind(opens(json.replace("4096", "1"))), ErrorKind::Invalid);
    assert!(
        opens(json.replace('{', "{\"later\":1,")).is_ok(),
        "fields of later releases are ignored"
    );
    let salt = hex(header.salt());
    for other in [
        salt[..31].to_owned(),
        format!("{salt}0"),
        salt.to_uppercase(),
        "é".repeat(16),
    ] {
        let changed = json.replace(&salt, &other);
        assert!(
            other == salt || serde_json::from_str::<SealHeader>(&changed).is_err(),
            "{changed}"
        );
    }
}
