//! How a store's versions and values are read on a cluster that it was moved to.
//!
//! A store's versions come from its cluster, and every cluster counts by itself. Fencing rests on versions, so a move
//! must not change any (PL3). A key that was copied has its version written in front of its value:
//!
//! ```text
//!   copied                                   FF 6D | version, 8 bytes, big-endian | value
//!   written since, value begins with FF      FF 70 | value
//!   written since, any other value           value
//! ```
//!
//! Versions that are given out here begin above all that were given out before: [`Versions`] adds an offset to the
//! cluster's own. A condition on a version from before the move is on a copy: the key is read, and if its copy has that
//! version, the condition becomes one on the copy's own version. That costs a read for the first change of what was
//! copied; when it is written, it loses the version in front.

use std::collections::HashMap;

use tensorhold_custody::Version;

use super::Here;
use crate::store::{Change, Condition, Entry, Snapshot, Transaction, Write};

const ESCAPE: u8 = 0xff;
const COPIED: u8 = b'm';
const PLAIN: u8 = b'p';
/// The length of what is in front of a copied value.
const FRONT: usize = 2 + 8;

/// How versions are read on one cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Versions {
    offset: u64,
    boundary: u64,
}

impl Versions {
    /// As the record of the place says; a store that was never moved has none.
    pub(super) fn of(here: Option<&Here>) -> Self {
        here.map_or_else(Self::default, |here| Self {
            offset: here.offset,
            boundary: here.boundary,
        })
    }

    /// The version of something that was written here.
    pub(super) fn outer(self, version: Version) -> Version {
        Version(version.0.saturating_add(self.offset))
    }

    /// The cluster's own version; none for one from before the store was here.
    pub(super) fn inner(self, version: Version) -> Option<Version> {
        let own = version.0.checked_sub(self.offset).filter(|own| *own > 0);
        own.filter(|_| version.0 > self.boundary).map(Version)
    }

    pub(super) fn entry(self, entry: Entry) -> Entry {
        let (copied_at, value) = opened(entry.value);
        Entry {
            key: entry.key,
            value,
            version: copied_at.unwrap_or_else(|| self.outer(entry.version)),
        }
    }

    pub(super) fn change(self, change: Change) -> Change {
        // A change of a key is never a copy: copies are written before the store is here.
        Change {
            value: change.value.map(|value| opened(value).1),
            version: self.outer(change.version),
            ..change
        }
    }

    pub(super) fn snapshot(self, snapshot: Snapshot) -> Snapshot {
        let entries = snapshot.entries.into_iter();
        Snapshot {
            version: self.outer(snapshot.version),
            entries: entries
                .map(|entries| entries.into_iter().map(|entry| self.entry(entry)).collect())
                .collect(),
        }
    }

    /// The keys whose conditions are on versions from before the store was here.
    pub(super) fn earlier(self, conditions: &[Condition]) -> impl Iterator<Item = &String> {
        conditions.iter().filter_map(move |condition| match condition {
            Condition::Unchanged(key, version) if self.inner(*version).is_none() => Some(key),
            _ => None,
        })
    }

    /// A condition as the cluster sees it, given the copies that were read. None if it cannot hold.
    fn condition(self, condition: &Condition, copies: &HashMap<String, Copy>) -> Option<Condition> {
        let Condition::Unchanged(key, version) = condition else {
            return Some(condition.clone());
        };
        let own = self.inner(*version).or_else(|| {
            let copy = copies.get(key)?;
            (copy.version == *version).then_some(copy.own)
        });
        own.map(|own| Condition::Unchanged(key.clone(), own))
    }

    /// A transaction as the cluster sees it, given the copies that were read. None if its conditions cannot hold.
    pub(super) fn transaction(self, transaction: &Transaction, copies: &HashMap<String, Copy>) -> Option<Transaction> {
        let writes = transaction.writes.iter().map(|write| match write {
            Write::Put { key, value, session } if value.first() == Some(&ESCAPE) => Write::Put {
                key: key.clone(),
                value: [&[ESCAPE, PLAIN], value.as_slice()].concat(),
                session: *session,
            },
            other => other.clone(),
        });
        let conditions = transaction.conditions.iter();
        Some(Transaction {
            conditions: conditions
                .map(|condition| self.condition(condition, copies))
                .collect::<Option<_>>()?,
            writes: writes.collect(),
        })
    }
}

/// The version of a copy: the one that it was copied with, and the cluster's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    version: Version,
    own: Version,
}

impl Copy {
    /// What was read, if it is a copy.
    pub(super) fn read(entry: Entry) -> Option<(String, Self)> {
        let own = entry.version;
        let version = opened(entry.value).0?;
        Some((entry.key, Self { version, own }))
    }
}

/// A value as it is written by a move: with its version in front.
pub(super) fn copied(version: Version, value: &[u8]) -> Vec<u8> {
    [&[ESCAPE, COPIED], version.0.to_be_bytes().as_slice(), value].concat()
}

/// The version in front of a value, and the value as it was given.
fn opened(mut value: Vec<u8>) -> (Option<Version>, Vec<u8>) {
    match value.get(..2) {
        Some([ESCAPE, PLAIN]) => {
            value.drain(..2);
            (None, value)
        }
        Some([ESCAPE, COPIED]) if value.len() >= FRONT => {
            let mut version = [0; 8];
            version.copy_from_slice(&value[2..FRONT]);
            value.drain(..FRONT);
            (Some(Version(u64::from_be_bytes(version))), value)
        }
        _ => (None, value),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn moved() -> Versions {
        Versions {
            offset: 1000,
            boundary: 1500,
        }
    }

    proptest! {
        #[test]
        fn every_value_comes_back(mut value in prop::collection::vec(any::<u8>(), 0..20), first in prop_oneof![Just(0xff_u8), any::<u8>()], second in prop_oneof![Just(b'm'), Just(b'p'), any::<u8>()]) {
            value.splice(0..0, [first, second]);
            let entry = |value| Entry { key: "k".to_owned(), value, version: Version(700) };
            let put = Transaction { writes: vec![Write::put("k", value.clone())], ..Transaction::default() };
            let own = moved().transaction(&put, &HashMap::new()).expect("it has no condition");
            let Some(Write::Put { value: written, .. }) = own.writes.into_iter().next() else { panic!("a put") };
            let read = moved().entry(entry(written));
            prop_assert_eq!((&read.value, read.version), (&value, Version(1700)));
            let read = moved().entry(entry(copied(Version(3), &value)));
            prop_assert_eq!((&read.value, read.version), (&value, Version(3)));
        }

        #[test]
        fn a_condition_on_an_earlier_version_holds_for_that_copy_alone(asked in 1..2000_u64, copied_at in 1..1501_u64, own in 1..900_u64, is_copy: bool) {
            let condition = Condition::Unchanged("k".to_owned(), Version(asked));
            let value = if is_copy { copied(Version(copied_at), b"v") } else { b"v".to_vec() };
            let entry = Entry { key: "k".to_owned(), value, version: Version(own) };
            let asks: Vec<_> = moved().earlier(std::slice::from_ref(&condition)).collect();
            prop_assert_eq!(asks.len(), usize::from(asked <= 1500));
            let copies = Copy::read(entry).into_iter().collect();
            let seen = moved().condition(&condition, &copies);
            let expected = match asked {
                1501.. => Some(asked - 1000),
                _ => (is_copy && asked == copied_at).then_some(own),
            };
            prop_assert_eq!(seen, expected.map(|own| Condition::Unchanged("k".to_owned(), Version(own))));
        }
    }

    #[test]
    fn what_was_never_moved_is_as_it_is() {
        let versions = Versions::of(None);
        assert_eq!(versions.outer(Version(7)), Version(7));
        assert_eq!(versions.inner(Version(7)), Some(Version(7)));
        assert_eq!(versions.inner(Version(0)), None);
    }

    #[test]
    fn a_front_that_is_cut_short_is_part_of_the_value() {
        for value in [
            vec![0xff],
            vec![0xff, b'm'],
            vec![0xff, b'm', 0, 0, 0, 0, 0, 0, 1],
            vec![0xff, b'x'],
        ] {
            assert_eq!(opened(value.clone()), (None, value));
        }
    }
}
