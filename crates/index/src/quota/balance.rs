//! Purses: what a session remembers of its own, and how bytes are found for a reservation. Nothing is read or sent here.

use crate::record::codec::decode;
use crate::store::{Condition, Entry, Write};
use holdfast_core::Result;

/// The bytes under `b/free` or a purse's key; no key, no bytes.
pub(crate) fn bytes_in(entry: Option<&Entry>) -> Result<u64> {
    entry.map_or(Ok(0), decode)
}

/// That a key is as it was read.
pub(super) fn as_read(key: &str, entry: Option<&Entry>) -> Condition {
    match entry {
        Some(entry) => Condition::Unchanged(key.to_owned(), entry.version),
        None => Condition::Absent(key.to_owned()),
    }
}

/// A purse of so many bytes. An empty one is none.
pub(super) fn write_balance(key: &str, bytes: u64) -> Write {
    if bytes == 0 {
        Write::Delete(key.to_owned())
    } else {
        Write::put(key, bytes.to_string())
    }
}

/// Where the bytes of a reservation come from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taking {
    /// Bytes that were nobody's.
    pub(super) from_free: u64,
    /// Other sessions' purses that are emptied: places in the list that was given.
    pub(super) emptied: Vec<usize>,
    /// What is left in the own purse.
    pub(super) left: u64,
}

/// Finds `need` bytes: in the own purse, else in what is free, else in purses that lie idle. None if there is too little.
///
/// Somewhat more is taken than is needed, so that the next reservations find it in the own purse: an eighth of what is
/// free, and always whole purses.
pub(super) fn take(need: u64, own: u64, free: u64, others: &[u64]) -> Option<Taking> {
    const SHARE: u64 = 8;
    let mut taking = Taking {
        from_free: 0,
        emptied: Vec::new(),
        left: own,
    };
    if own >= need {
        taking.left -= need;
        return Some(taking);
    }
    taking.from_free = free.min((need - own).max(free / SHARE));
    taking.left = taking.left.saturating_add(taking.from_free);
    let mut largest_first: Vec<usize> = (0..others.len()).collect();
    largest_first.sort_by_key(|place| std::cmp::Reverse(others[*place]));
    for place in largest_first {
        if taking.left >= need {
            break;
        }
        taking.left = taking.left.saturating_add(others[place]);
        taking.emptied.push(place);
    }
    taking.left = taking.left.checked_sub(need)?;
    Some(taking)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_own_purse_comes_first_then_what_is_free_then_what_lies_idle() {
        let taking = |from_free, emptied: &[usize], left| Taking {
            from_free,
            emptied: emptied.to_vec(),
            left,
        };
        assert_eq!(take(4, 10, 100, &[9]), Some(taking(0, &[], 6)));
        assert_eq!(take(4, 1, 16, &[9]), Some(taking(3, &[], 0)));
        assert_eq!(take(4, 0, 800, &[9]), Some(taking(100, &[], 96)), "some in advance");
        assert_eq!(
            take(10, 1, 2, &[3, 5, 4]),
            Some(taking(2, &[1, 2], 2)),
            "the largest first"
        );
        assert_eq!(take(16, 1, 2, &[3, 5, 4]), None);
        assert_eq!(take(0, 0, 0, &[]), Some(taking(0, &[], 0)));
    }

    proptest! {
        #[test]
        fn nothing_is_made_or_lost(need in 0..100_u64, own in 0..50_u64, free in 0..50_u64,
                                   others in proptest::collection::vec(1..30_u64, 0..5)) {
            let all = own + free + others.iter().sum::<u64>();
            match take(need, own, free, &others) {
                None => prop_assert!(all < need),
                Some(taking) => {
                    let emptied: u64 = taking.emptied.iter().map(|place| others[*place]).sum();
                    prop_assert!(taking.from_free <= free);
                    prop_assert_eq!(own + taking.from_free + emptied, need + taking.left);
                }
            }
        }
    }
}
