//! A sealed page opens under its own name and nowhere else. The known answer was computed from the module documentation
//! by another program (Python's `cryptography`): if it fails, pages that other processes have sealed cannot be opened.

use std::time::Duration;

use tensorhold_core::SystemClock;
use tensorhold_engine::{EngineExt, MemoryCluster, MemoryConfig, Region};

use super::*;

const OBJECT: &str = "5e1ff15a836fe3cdd1e0361eae47b6c154484b5650414745020000000000000010000000000000006465666768696a6b6c6d6e6f70717273143c63200816ddb7e65d199d241ef5850000000000000000";

fn seal(first: u8) -> PageSeal {
    let key = std::array::from_fn(|n| u8::try_from(n).unwrap_or(0).wrapping_add(first));
    PageSeal::new(&key).expect("a seal")
}

fn key(text: &str) -> ObjectKey {
    ObjectKey::new(text).expect("a key")
}

fn memory(bytes: &[u8]) -> Region {
    let engine = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new())).connect();
    let region = engine.allocate(bytes.len(), Duration::from_secs(1)).expect("memory");
    region.whole().write(0, bytes).expect("fits");
    region
}

fn page(name: ObjectKey, bytes: &Region) -> Page {
    let cut = bytes.len() / 3;
    let parts = [0..cut, cut..bytes.len()].map(|range| bytes.span(range).expect("inside"));
    Page::new(name, parts.to_vec())
}

#[test]
fn names_and_pages_are_as_ever() {
    let seal = seal(0);
    let name = seal.name(&key("kv/ns/k0")).expect("a name");
    assert_eq!(
        name.as_str(),
        "kv/sealed/159112e6bca63d10ba9292c77cd1d966e6a43d13cf6b8f6dfc3a2f932be4337b"
    );
    let digits: Vec<u8> = OBJECT.bytes().collect();
    let (pairs, _) = digits.as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex");
    let object = memory(&pairs.iter().map(byte).collect::<Vec<u8>>());
    let into = memory(&[9; 16]);
    assert_eq!(seal.open(&page(name, &into), &object.whole()).expect("read"), None);
    assert_eq!(into.whole().to_vec(), b"custody of pages");
}

#[test]
fn a_page_opens_under_its_own_name_with_its_own_key_and_unchanged() {
    let (ours, theirs) = (seal(0), seal(1));
    let bytes: Vec<u8> = (0..40_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (name, other) = (
        ours.name(&key("a")).expect("a name"),
        ours.name(&key("b")).expect("a name"),
    );
    let object = memory(&vec![0; bytes.len() + FOOTER_BYTES]);
    ours.seal(&page(name.clone(), &memory(&bytes)), &object.whole())
        .expect("sealed");
    let sealed = object.whole().to_vec();
    assert!(
        !sealed.windows(16).any(|window| window == &bytes[..16]),
        "nothing shows"
    );
    let opens = |seal: &PageSeal, name: &ObjectKey, object: &[u8]| {
        let into = memory(&vec![9; bytes.len()]);
        let flaw = seal
            .open(&page(name.clone(), &into), &memory(object).whole())
            .expect("read");
        let expected = if flaw.is_none() {
            bytes.clone()
        } else {
            vec![9; bytes.len()]
        };
        assert!(
            into.whole().to_vec() == expected,
            "bytes that were not authenticated are nowhere"
        );
        flaw
    };
    assert_eq!(opens(&ours, &name, &sealed), None);
    assert_eq!(
        opens(&ours, &other, &sealed),
        Some(PageDefect::Seal),
        "replayed under another name"
    );
    assert_eq!(opens(&theirs, &name, &sealed), Some(PageDefect::Seal), "another key");
    for at in [
        0,
        1,
        bytes.len() / 2,
        bytes.len() - 1,
        bytes.len() + 30,
        bytes.len() + 45,
    ] {
        let mut altered = sealed.clone();
        altered[at] ^= 1;
        assert_eq!(opens(&ours, &name, &altered), Some(PageDefect::Seal), "byte {at}");
    }
    for at in [0, 9, 13, 17, 57, 63] {
        let mut altered = sealed.clone();
        altered[bytes.len() + at] ^= 1;
        assert_eq!(
            opens(&ours, &name, &altered),
            Some(PageDefect::NotAPage),
            "byte {at} of the footer"
        );
    }
    ours.seal(&page(name.clone(), &memory(&bytes)), &object.whole())
        .expect("sealed");
    assert!(object.whole().to_vec() != sealed, "a new salt for each put");
}

#[test]
fn names_tell_nothing_and_differ_by_key() {
    let (ours, theirs) = (seal(0), seal(1));
    let name = ours.name(&key("kv/tag/ns/page/t0p0c0")).expect("a name");
    assert_eq!(name, ours.name(&key("kv/tag/ns/page/t0p0c0")).expect("the same again"));
    assert_ne!(name, ours.name(&key("kv/tag/ns/page/t1p0c0")).expect("a name"));
    assert_ne!(name, theirs.name(&key("kv/tag/ns/page/t0p0c0")).expect("a name"));
    assert!(name.as_str().starts_with(SEALED_NAMES) && !name.as_str().contains("page"));
    assert_eq!(format!("{ours:?}"), "PageSeal(hidden)");
}
