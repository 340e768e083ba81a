use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::plan::PageKeys;

fn index(host: u32, device: u32) -> RadixIndex {
    RadixIndex::new(Pool::new(host), Pool::new(device))
}

/// A page is one token, so a prompt is its tokens.
fn keys(tokens: &[u32]) -> Vec<PageKey> {
    let mut keys = PageKeys::new(PageKey::from_bytes([0; 32]), 1);
    keys.extend(tokens);
    keys.as_slice().to_vec()
}

/// Publishes the host pages of a prompt that are not there yet.
fn add_host(index: &mut RadixIndex, prompt: &[PageKey]) -> bool {
    let have = index.find(prompt).host;
    let pin = index.pin(Layer::Host, prompt, have).expect("it is there");
    let pages = index.take_host(count(prompt.len()) - have);
    let added = pages.is_some();
    if let Some(pages) = pages {
        let losers = index.insert_host(&pin, &prompt[have as usize..], pages);
        assert_eq!(losers.len(), 0);
        index.host.give_back(losers);
    }
    index.release(pin);
    added
}

fn audit(index: &RadixIndex) {
    index.every_node_knows_its_key().expect("it is there");
    index.children_are_counted().expect("it is there");
    index.residency_is_closed().expect("it is there");
    index.every_key_is_there_once().expect("it is there");
    index.pins_and_lists_agree().expect("it is there");
    let host = index.pages(Layer::Host).collect::<Vec<_>>();
    assert_eq!(host.iter().collect::<BTreeSet<_>>().len(), host.len());
    assert_eq!(count(host.len()), index.host.published_count());
    assert_eq!(index.host.lost_count() + index.device.lost_count(), 0);
}

#[test]
fn a_match_ends_where_the_prompts_differ() {
    let mut index = index(100, 0);
    assert!(add_host(&mut index, &keys(&[1, 2, 3, 4, 5, 6, 7, 8])));
    for common in 0..8 {
        let mut tokens: Vec<u32> = (1..=common).collect();
        tokens.extend([90, 91, 92]);
        assert_eq!(index.find(&keys(&tokens)).host, common);
    }
    assert_eq!(index.find(&keys(&[1, 2, 3])).host, 3);
    assert!(add_host(&mut index, &keys(&[1, 2, 3, 9, 9])));
    assert_eq!((index.nodes(), index.splits()), (3, 1));
    assert_eq!(index.find(&keys(&[1, 2, 3, 4, 5, 6, 7, 8, 9])).host, 8);
    audit(&index);
}

#[test]
fn the_least_recently_used_tail_goes_first() {
    let mut index = index(6, 0);
    assert!(add_host(&mut index, &keys(&[1, 2, 3])));
    assert!(add_host(&mut index, &keys(&[4, 5, 6])));
    let pin = index.pin(Layer::Host, &keys(&[1, 2]), 2).expect("it is there");
    index.release(pin);
    assert!(add_host(&mut index, &keys(&[7, 8])));
    // The end of the first prompt was not used, and its node is the oldest.
    assert_eq!(index.find(&keys(&[1, 2, 3])).host, 2);
    assert_eq!(index.find(&keys(&[4, 5, 6])).host, 2);
    audit(&index);
}

#[test]
fn a_pin_survives_splits_and_eviction() {
    let mut index = index(6, 0);
    let prompt = keys(&[1, 2, 3, 4]);
    assert!(add_host(&mut index, &prompt));
    let pin = index.pin(Layer::Host, &prompt, 4).expect("it is there");
    let before: Vec<u32> = index.slots(&pin, 0).iter().map(|slot| slot.page(Layer::Host)).collect();
    assert!(add_host(&mut index, &keys(&[1, 2, 9, 9])));
    assert!(!add_host(&mut index, &keys(&[5, 6, 7])));
    assert!(add_host(&mut index, &keys(&[5, 6])));
    assert_eq!(index.find(&prompt).host, 4);
    let after: Vec<u32> = index.slots(&pin, 0).iter().map(|slot| slot.page(Layer::Host)).collect();
    assert_eq!(before, after);
    audit(&index);
    index.release(pin);
    assert!(add_host(&mut index, &keys(&[5, 6, 7, 8, 9, 10])));
    assert_eq!(index.find(&prompt).host, 0);
    audit(&index);
}

#[test]
fn a_prefix_that_is_pinned_everywhere_is_one_node_again() {
    let mut index = index(64, 0);
    let prompt = keys(&(0..32).collect::<Vec<_>>());
    assert!(add_host(&mut index, &prompt));
    let pins: Vec<_> = (1..32)
        .map(|depth| index.pin(Layer::Host, &prompt, depth).expect("it is there"))
        .collect();
    assert_eq!(index.nodes(), 32);
    audit(&index);
    for pin in pins {
        index.release(pin);
        audit(&index);
    }
    // The cut below the pin that was released last goes with the next one that is released below it.
    assert_eq!(index.nodes(), 2);
    let whole = index.pin(Layer::Host, &prompt, 32).expect("it is there");
    index.release(whole);
    assert_eq!((index.nodes(), index.find(&prompt).host), (1, 32));
    // A cut that a branch needs stays.
    assert!(add_host(&mut index, &keys(&[0, 1, 2, 90, 91])));
    let pin = index.pin(Layer::Host, &prompt, 3).expect("it is there");
    index.release(pin);
    assert_eq!(index.nodes(), 3);
    audit(&index);
}

#[test]
fn what_is_cleared_cannot_be_found_and_goes_with_its_last_pin() {
    let mut index = index(8, 0);
    let prompt = keys(&[1, 2, 3, 4]);
    assert!(add_host(&mut index, &prompt));
    let pin = index.pin(Layer::Host, &prompt, 2).expect("it is there");
    index.clear();
    assert_eq!(index.find(&prompt).host, 0);
    assert_eq!(index.host.published_count(), 2);
    audit(&index);
    // Below a pin from before, nothing is published.
    let pages = index.take_host(2).expect("it is there");
    let back = index.insert_host(&pin, &prompt[2..], pages);
    assert_eq!(back.len(), 2);
    index.host.give_back(back);
    assert!(add_host(&mut index, &prompt));
    index.release(pin);
    assert_eq!(index.find(&prompt).host, 4);
    assert_eq!(index.host.free_count(), 4);
    audit(&index);
}

#[test]
fn a_place_that_is_taken_keeps_its_page() {
    let mut index = index(8, 8);
    let prompt = keys(&[1, 2, 3, 4]);
    assert!(add_host(&mut index, &prompt[..2]));
    let root = index.pin(Layer::Host, &prompt, 0).expect("it is there");
    let pages = index.take_host(4).expect("it is there");
    let losers = index.insert_host(&root, &prompt, pages);
    assert_eq!(losers.as_slice(), [HostPage(2), HostPage(3)]);
    index.host.give_back(losers);
    index.release(root);
    let root = index.pin(Layer::Device, &prompt, 0).expect("it is there");
    let pages = index.take_device(3).expect("it is there");
    let losers = index.insert_device(&root, &prompt, pages);
    assert_eq!(losers.len(), 0);
    index.device.give_back(losers);
    index.release(root);
    assert_eq!(index.find(&prompt), Match { host: 4, device: 3 });
    audit(&index);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Against a plain set of prefixes: what was added and not evicted is found, page by page.
    #[test]
    fn it_finds_what_a_plain_set_would(
        steps in proptest::collection::vec((proptest::collection::vec(0u32..3, 1..9), 0u8..4, 0u32..9), 1..60)
    ) {
        let mut index = index(16, 0);
        let mut pins = Vec::new();
        let mut held: BTreeMap<u32, PageKey> = BTreeMap::new();
        for (tokens, what, depth) in steps {
            let prompt = keys(&tokens);
            match what {
                0 | 1 => { add_host(&mut index, &prompt); }
                2 => {
                    let depth = depth.min(index.find(&prompt).host);
                    pins.push((prompt.clone(), depth, index.pin(Layer::Host, &prompt, depth).expect("it is there")));
                }
                _ => if !pins.is_empty() {
                    let (_, _, pin) = pins.swap_remove(depth as usize % pins.len());
                    index.release(pin);
                }
            }
            audit(&index);
            for (prompt, depth, pin) in &pins {
                prop_assert!(index.find(prompt).host >= *depth);
                let slots = index.slots(pin, 0);
                prop_assert_eq!(slots.iter().map(|slot| slot.key).collect::<Vec<_>>(), &prompt[..*depth as usize]);
            }
            // A page never changes its key while it stays.
            let now: BTreeMap<u32, PageKey> = index.each_node().flat_map(|(_, node)|
                node.slots.iter().take(node.resident(Layer::Host) as usize).map(|slot| (slot.page(Layer::Host), slot.key))
                    .collect::<Vec<_>>()).collect();
            let found = index.find(&prompt).host as usize;
            let there: BTreeSet<_> = now.values().copied().collect();
            prop_assert!(prompt[..found].iter().all(|key| there.contains(key)));
            prop_assert!(prompt.get(found).is_none_or(|key| !there.contains(key)));
            held = now;
        }
        drop(held);
        for (_, _, pin) in pins { index.release(pin); }
        prop_assert_eq!(index.pins(), 0);
        audit(&index);
    }
}
