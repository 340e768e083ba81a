//! The master's list of keys, read as it comes: one key per line, of all tenants, in no order.
//!
//! The admin port has no parts of its own: it sends the whole list each time. So a part of the list is picked while the
//! list is read ([`Part`]), and memory holds one part, whatever the list's length. A key with a line break in it is
//! another writer's, because [`ObjectKey`] refuses it; its lines are read as keys that no object has.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Result};

use tensorhold_core::ObjectKey;
use tensorhold_core::key::MAX_KEY_BYTES;
use tensorhold_engine::Listing;

/// Reads a list of keys and hands each to `each`. Lines that are too long for a key, or no text, are passed over.
pub(crate) fn read_keys(list: impl Read, mut each: impl FnMut(&str)) -> Result<()> {
    let mut list = BufReader::with_capacity(1 << 16, list);
    let mut line = Vec::new();
    loop {
        line.clear();
        // One byte more than a key has, and the line break.
        let most = MAX_KEY_BYTES as u64 + 2;
        if list.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() as u64 == most {
            list.skip_until(b'\n')?;
            continue;
        }
        if let Ok(key) = std::str::from_utf8(&line) {
            each(key);
        }
    }
}

/// The first keys of a list in byte order, after a place in it.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    prefix: &'a str,
    after: Option<&'a str>,
    limit: usize,
    first: BTreeSet<ObjectKey>,
    more: bool,
}

impl<'a> Part<'a> {
    pub(crate) fn new(prefix: &'a str, after: Option<&'a ObjectKey>, limit: usize) -> Self {
        Self {
            prefix,
            after: after.map(ObjectKey::as_str),
            limit,
            first: BTreeSet::new(),
            more: false,
        }
    }

    /// Takes a key if it belongs to this part, as far as that is known yet.
    pub(crate) fn offer(&mut self, key: &str) {
        if !key.starts_with(self.prefix) || self.after.is_some_and(|after| key <= after) {
            return;
        }
        let is_full = self.first.len() >= self.limit;
        if is_full && self.first.last().is_some_and(|last| key > last.as_str()) {
            self.more = true;
            return;
        }
        // Other writers may use keys that are none of ours.
        let Ok(key) = ObjectKey::new(key) else { return };
        self.first.insert(key);
        if self.first.len() > self.limit {
            self.first.pop_last();
            self.more = true;
        }
    }

    pub(crate) fn listing(self) -> Listing {
        Listing {
            keys: self.first.into_iter().collect(),
            more: self.more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &[u8], prefix: &str, after: Option<&str>, limit: usize) -> (Vec<String>, bool) {
        let after = after.map(|key| ObjectKey::new(key).expect("a key"));
        let mut part = Part::new(prefix, after.as_ref(), limit);
        read_keys(text, |key| part.offer(key)).expect("reads");
        let Listing { keys, more } = part.listing();
        (keys.iter().map(ToString::to_string).collect(), more)
    }

    #[test]
    fn a_part_is_picked_while_the_list_is_read() {
        let list = b"s/c\ns/a\nt/x\ns/b\ns/a\n";
        assert_eq!(listed(list, "s/", None, 2), (vec!["s/a".into(), "s/b".into()], true));
        assert_eq!(listed(list, "s/", Some("s/b"), 2), (vec!["s/c".into()], false));
        assert_eq!(listed(list, "s/", Some("s/c"), 2), (vec![], false));
        assert_eq!(listed(list, "", None, 9).0.len(), 4, "the same key twice is one key");
        assert_eq!(listed(b"", "", None, 9), (vec![], false));
        assert_eq!(listed(b"s/a", "", None, 9).0, ["s/a"], "without a last line break");
    }

    #[test]
    fn keys_of_others_that_are_none_of_ours_are_passed_over() {
        let long = "k".repeat(3 * MAX_KEY_BYTES);
        let longest = "m".repeat(MAX_KEY_BYTES);
        let list = format!("a\n{long}\n\nb,c\n{longest}\nd\n{long}");
        let mut bytes = list.into_bytes();
        bytes.splice(0..0, *b"\xff\xfe\n");
        assert_eq!(listed(&bytes, "", None, 9).0, ["a", "d", longest.as_str()]);
    }

    #[test]
    fn a_million_keys_need_the_memory_of_one_part() {
        let mut part = Part::new("s/", None, 10);
        for n in (0..1_000_000_u32).rev() {
            part.offer(&format!("s/{n:07}"));
            assert!(part.first.len() <= 10);
        }
        let listing = part.listing();
        assert_eq!((listing.keys.len(), listing.more), (10, true));
        assert_eq!(listing.keys[9].as_str(), "s/0000009");
    }
}
