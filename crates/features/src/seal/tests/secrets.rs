//! No key, tensor key or plaintext is ever shown.

use std::fmt::Debug;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use zeroize::ZeroizeOnDrop;

use super::*;

/// Every way in which bytes come to be printed; each piece is long enough not to be there by chance.
fn forms(bytes: &[u8]) -> Vec<String> {
    let hex: String = bytes[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let decimal: Vec<String> = bytes[..3].iter().map(u8::to_string).collect();
    vec![
        hex.to_uppercase(),
        hex,
        decimal.join(", "),
        decimal.join(",\n        "),
        STANDARD.encode(&bytes[..6]),
        URL_SAFE.encode(&bytes[..6]),
    ]
}

fn shown(thing: &dyn Debug) -> String {
    format!("{thing:?}\n{thing:#?}")
}

fn assert_hides(text: &str, bytes: &[u8]) {
    let squeezed: String = text.split_whitespace().collect();
    for form in forms(bytes) {
        let squeezed_form: String = form.split_whitespace().collect();
        assert!(!squeezed.contains(&squeezed_form), "{form} is in {text}");
    }
}

#[test]
fn the_search_itself_finds_what_it_looks_for() {
    for text in [shown(&secret(1)), STANDARD.encode(secret(1))] {
        let found = forms(&secret(1)).iter().any(|form| text.contains(form.as_str()));
        assert!(found, "{text}");
    }
}

#[test]
fn nothing_that_can_be_printed_shows_a_key_or_plaintext() {
    let keyring = Keyring::new(&"k2".parse().expect("an id"), [key("k1", 1), key("k2", 2)]).expect("a keyring");
    let plain: Vec<u8> = (0..100).map(|i| 200 - i).collect();
    let mut sample = keyring
        .sealer(here(), MIN_CHUNK_BYTES, &SeededRng::new(1))
        .expect("a sealer");
    let sealer = sample.tensor(&name("t"), 100).expect("a tensor");
    let mut sealed = vec![0; 116];
    let jobs = sealer.jobs(sealer.layout().whole(), &plain, &mut sealed).expect("jobs");
    let mut texts = vec![
        shown(&key("k1", 1)),
        shown(&keyring),
        shown(&sample),
        shown(&sealer),
        shown(&jobs),
    ];
    jobs.into_iter().try_for_each(SealJob::run).expect("seals");

    let opener = keyring.opener(sample.header(), here()).expect("an opener");
    texts.push(shown(&opener));
    let opener = opener.tensor(&name("t"), 100).expect("an opener");
    texts.push(shown(&opener));
    let mut into = plain.clone();
    texts.push(shown(
        &opener.jobs(opener.layout().whole(), &sealed, &mut into).expect("jobs"),
    ));
    texts.push(shown(&sample.header()));
    texts.push(serde_json::to_string(sample.header()).expect("json"));

    let errors = [
        sealer.seal(&plain, &mut [0; 116]).expect_err("sealed twice"),
        sealer.seal(&plain, &mut [0; 115]).expect_err("a wrong length"),
        opener.open(&[1; 116], &mut into).expect_err("corrupt"),
        opener.open(&[1; 115], &mut into).expect_err("a wrong length"),
        self::keyring()
            .opener(sample.header(), here())
            .expect_err("an unknown key"),
        Keyring::of(key("k2", 1))
            .opener(sample.header(), here())
            .expect_err("another key"),
        Keyring::new(&"k3".parse().expect("an id"), [key("k1", 1)]).expect_err("no current key"),
        StoreKey::from_bytes("k".parse().expect("an id"), &secret(1)[..31]).expect_err("too short"),
    ];
    texts.extend(errors.iter().map(|error| format!("{error} {}", shown(error))));

    let tensor_key =
        cipher::tensor_key_for_tests(&key("k2", 2), sample.header(), &here(), &name("t")).expect("a tensor key");
    for text in texts {
        for bytes in [&secret(1)[..], &secret(2), tensor_key.as_slice(), &plain] {
            assert_hides(&text, bytes);
        }
    }
}

#[test]
fn secrets_are_wiped_when_dropped() {
    fn wiped<T: ZeroizeOnDrop>(_: &T) {}
    wiped(key("k1", 1).secret());
    assert_eq!(shown(&key("k1", 1)), "StoreKey(\"k1\")\nStoreKey(\"k1\")");
}
