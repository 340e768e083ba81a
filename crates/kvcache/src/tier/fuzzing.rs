//! Pages as they come from the engine, for the fuzzer (feature `fuzzing`, folder `fuzz/`). Not part of the public
//! interface.
//!
//! Both ways of reading a page must tell an altered page from the original, and they must agree.
#![allow(
    clippy::expect_used,
    missing_docs,
    reason = "a broken property is a panic: that is how the fuzzer learns of it"
)]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tensorhold_core::{ObjectKey, SystemClock};
use tensorhold_engine::{EngineExt, MemoryCluster, MemoryConfig, MemoryEngine, Region, Span};

use super::footer::{FOOTER_BYTES, PageDefect, defect_of, footer_of, gather, scatter};
use super::page::Page;
use super::seal::{PageSeal, TIER_KEY_BYTES};

/// The longest page that is tried.
const MOST: usize = 4096;

struct Memory {
    _engine: Arc<MemoryEngine>,
    put: Region,
    got: Region,
    frame: Region,
}

fn memory() -> &'static Memory {
    static MEMORY: OnceLock<Memory> = OnceLock::new();
    MEMORY.get_or_init(|| {
        let engine = MemoryCluster::new(MemoryConfig::default(), Arc::new(SystemClock::new())).connect();
        let allocate = || {
            engine
                .allocate(MOST + FOOTER_BYTES, Duration::from_secs(1))
                .expect("memory")
        };
        Memory {
            put: allocate(),
            got: allocate(),
            frame: allocate(),
            _engine: engine,
        }
    })
}

/// A page in two parts.
fn parts(region: &Region, length: usize) -> Vec<Span> {
    let cut = length / 3;
    [0..cut, cut..length]
        .into_iter()
        .filter(|range| !range.is_empty())
        .map(|range| region.span(range).expect("inside"))
        .collect()
}

/// The part of the frame that holds an object of this length.
fn frame(length: usize) -> Span {
    memory().frame.span(0..length).expect("inside")
}

/// The object of the page in `parts`.
fn gathered(key: &ObjectKey, parts: &[Span], length: usize) -> Vec<u8> {
    let object = frame(length + FOOTER_BYTES);
    gather(key, parts, &object).expect("it fits");
    object.to_vec()
}

/// The verdict of both ways of reading on an object.
fn defect(key: &ObjectKey, object: &[u8], length: usize) -> Option<PageDefect> {
    let parts = parts(&memory().got, length);
    let piece = frame(object.len());
    piece.write(0, object).expect("it fits");
    let scattered = scatter(key, &piece, &parts).expect("the lengths fit");
    if scattered.is_none_or(|defect| defect == PageDefect::Bytes) {
        // Then its bytes are in the parts, as they are after a transfer without a copy.
        let mut footer = [0; FOOTER_BYTES];
        footer.copy_from_slice(&object[length..]);
        assert_eq!(defect_of(key, &parts, &footer).expect("readable"), scattered);
    }
    scattered
}

/// Any object of the right length under a sealed page's name; and a sealed page with changes, as in [`page`]. Only an
/// object that was sealed under this name opens, and any other leaves no byte in the page's memory.
pub fn sealed_page(bytes: &[u8]) {
    const UNTOUCHED: u8 = 0xa5;
    let seal = PageSeal::new(&[7; TIER_KEY_BYTES]).expect("a seal");
    // No page is ever sealed with this key: the fuzzer copies the values that it sees compared into its inputs, whole
    // pages too.
    let unused = PageSeal::new(&[8; TIER_KEY_BYTES]).expect("a seal");
    let name = |page: &str| seal.name(&ObjectKey::new(page).expect("a key")).expect("a name");
    let open = |seal: &PageSeal, name: &ObjectKey, object: &[u8]| {
        let length = object.len() - FOOTER_BYTES;
        let got = || memory().got.whole().to_vec()[..length].to_vec();
        memory()
            .got
            .whole()
            .write(0, &vec![UNTOUCHED; length])
            .expect("it fits");
        let piece = frame(object.len());
        piece.write(0, object).expect("it fits");
        let page = Page::new(name.clone(), parts(&memory().got, length));
        let defect = seal.open(&page, &piece).expect("the lengths fit");
        assert!(defect.is_none() || got().iter().all(|byte| *byte == UNTOUCHED));
        (defect, got())
    };
    let ours = name("kv/page");
    if (FOOTER_BYTES..MOST).contains(&bytes.len()) {
        assert!(
            open(&unused, &ours, bytes).0.is_some(),
            "nobody without the key makes a page"
        );
    }
    let [length, rest @ ..] = bytes else { return };
    let length = usize::from(*length).min(rest.len());
    let (page, changes) = rest.split_at(length);
    memory().put.whole().write(0, page).expect("it fits");
    let piece = frame(length + FOOTER_BYTES);
    let put = Page::new(ours.clone(), parts(&memory().put, length));
    seal.seal(&put, &piece).expect("sealed");
    let object = piece.to_vec();
    assert_eq!(open(&seal, &ours, &object), (None, page.to_vec()));
    assert!(open(&seal, &name("kv/other"), &object).0.is_some(), "another name");
    let mut changed = object.clone();
    for &[low, high, flip] in changes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % changed.len();
        changed[at] ^= flip;
    }
    assert_eq!(open(&seal, &ours, &changed).0.is_some(), changed != object);
}

/// Any object of the right length under a page's key; and a good page with changes. The first byte is the length of the
/// page that is put, the next ones are its bytes. Then come changes of three bytes each: a position and the bits
/// flipped there.
pub fn page(bytes: &[u8]) {
    let key = ObjectKey::new("kv/page").expect("a key");
    if (FOOTER_BYTES..MOST).contains(&bytes.len()) {
        let length = bytes.len() - FOOTER_BYTES;
        if defect(&key, bytes, length).is_none() {
            let again = gathered(&key, &parts(&memory().got, length), length);
            assert_eq!(again, bytes, "a good page is what would be put");
        }
    }
    let [length, rest @ ..] = bytes else { return };
    let length = usize::from(*length).min(rest.len());
    let (page, changes) = rest.split_at(length);
    memory().put.whole().write(0, page).expect("it fits");
    let put = parts(&memory().put, length);
    let object = gathered(&key, &put, length);
    assert_eq!(object[length..], footer_of(&key, &put).expect("readable"));
    assert_eq!(defect(&key, &object, length), None);
    let other = ObjectKey::new("kv/other").expect("a key");
    assert_eq!(defect(&other, &object, length), Some(PageDefect::OtherKey));
    let mut changed = object.clone();
    for &[low, high, flip] in changes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % changed.len();
        changed[at] ^= flip;
    }
    assert_eq!(defect(&key, &changed, length).is_some(), changed != object);
}
