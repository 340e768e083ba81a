//! Decides which transactions may be sent as one request (group commit). Nothing is sent here.
//!
//! etcd checks the conditions of all transactions in the request before any of them writes. So a later transaction must
//! not have a condition on a key that an earlier one writes; then the outcome is the same as that of the transactions
//! one after the other, in their order. A condition of an earlier transaction on a key that a later one writes does no
//! harm. And no key may be written by two transactions of a request: etcd refuses that.

use std::collections::HashSet;

use tensorhold_index::store::{Condition, Limits, Transaction, Write};

/// The most transactions and reads in one request, and the most conditions and writes: etcd does nothing else while it
/// applies them.
const MOST: usize = 64;
const MOST_OPERATIONS: usize = 2048;

/// Transactions that are sent as one request.
#[derive(Debug)]
pub(crate) struct Group<'a> {
    limits: Limits,
    written: HashSet<&'a str>,
    /// Operations of the request as a whole: one for each transaction and each read.
    outer: usize,
    /// Operations of the largest transaction.
    largest: usize,
    operations: usize,
    bytes: usize,
}

impl<'a> Group<'a> {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            written: HashSet::new(),
            outer: 0,
            largest: 0,
            operations: 0,
            bytes: 0,
        }
    }

    /// Adds a transaction behind the others, if it may share the request with them. The first transaction always may.
    pub(crate) fn take(&mut self, transaction: &'a Transaction, reads: usize) -> bool {
        let Transaction { conditions, writes } = transaction;
        let own = conditions.len().max(writes.len());
        let outer = self.outer + 1 + reads;
        let largest = self.largest.max(own);
        let operations = self.operations + conditions.len() + writes.len();
        let bytes =
            conditions.iter().map(Condition::bytes).sum::<usize>() + writes.iter().map(Write::bytes).sum::<usize>();
        let bytes = self.bytes + bytes;
        // Each inner transaction may have as many operations as etcd allows, less those of the outer request.
        let fits = outer <= MOST
            && outer + largest <= self.limits.operations
            && operations <= MOST_OPERATIONS
            && bytes <= self.limits.bytes;
        let is_first = self.outer == 0;
        if !(is_first || fits && self.is_apart(transaction)) {
            return false;
        }
        self.written.extend(writes.iter().map(Write::key));
        (self.outer, self.largest, self.operations, self.bytes) = (outer, largest, operations, bytes);
        true
    }

    /// Whether the transaction neither has a condition on a key that the others write, nor writes such a key.
    fn is_apart(&self, transaction: &Transaction) -> bool {
        let asks_about_it = |condition: &Condition| match condition {
            Condition::Unchanged(key, _) | Condition::Absent(key) | Condition::Present(key) => {
                self.written.contains(key.as_str())
            }
            Condition::NoneIn(keys) => self
                .written
                .iter()
                .any(|key| (keys.start.as_str()..keys.end.as_str()).contains(key)),
        };
        let writes_it = |write: &Write| self.written.contains(write.key());
        !transaction.conditions.iter().any(asks_about_it) && !transaction.writes.iter().any(writes_it)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use tensorhold_custody::Version;

    use super::*;

    const LIMITS: Limits = Limits {
        operations: 16,
        bytes: 1_000,
    };

    fn transaction(conditions: Vec<Condition>, writes: &[&str]) -> Transaction {
        let writes = writes.iter().map(|key| Write::put(*key, "v")).collect();
        Transaction { conditions, writes }
    }

    fn go_together(transactions: &[Transaction]) -> Vec<bool> {
        let mut group = Group::new(LIMITS);
        transactions.iter().map(|one| group.take(one, 0)).collect()
    }

    #[test]
    fn a_later_one_does_not_ask_about_what_an_earlier_one_writes() {
        let first = transaction(vec![], &["a/1"]);
        for asks in [
            Condition::Absent("a/1".to_owned()),
            Condition::Present("a/1".to_owned()),
            Condition::Unchanged("a/1".to_owned(), Version(1)),
            Condition::NoneIn("a/".to_owned().."a0".to_owned()),
        ] {
            let second = transaction(vec![asks], &["b"]);
            assert_eq!(
                go_together(&[first.clone(), second.clone()]),
                [true, false],
                "{second:?}"
            );
            assert_eq!(
                go_together(&[second, first.clone()]),
                [true, true],
                "the other way round"
            );
        }
        let other = transaction(vec![Condition::NoneIn("a/2".to_owned().."a0".to_owned())], &["b"]);
        assert_eq!(go_together(&[first.clone(), other, first]), [true, true, false]);
    }

    #[test]
    fn no_more_go_together_than_etcd_takes() {
        let keys = |from: usize, count: usize| (from..from + count).map(|n| format!("k/{n}")).collect::<Vec<_>>();
        let large = |from, count| {
            let keys = keys(from, count);
            transaction(vec![], &keys.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(go_together(&[large(0, 16)]), [true], "alone, anything may");
        assert_eq!(go_together(&[large(0, 14), large(20, 14)]), [true, true]);
        assert_eq!(
            go_together(&[large(0, 14), large(20, 14), large(40, 14)]),
            [true, true, false]
        );
        let mut group = Group::new(LIMITS);
        let (one, other) = (large(0, 8), large(20, 8));
        assert!(group.take(&one, 4) && !group.take(&other, 4), "what is read counts too");
        let long = |key: &str| Transaction {
            conditions: vec![],
            writes: vec![Write::put(key, vec![0; 600])],
        };
        assert_eq!(go_together(&[long("a"), long("b")]), [true, false], "bytes");
    }

    type Keys = BTreeMap<String, Version>;

    fn holds(condition: &Condition, keys: &Keys) -> bool {
        match condition {
            Condition::Unchanged(key, version) => keys.get(key) == Some(version),
            Condition::Absent(key) => !keys.contains_key(key),
            Condition::Present(key) => keys.contains_key(key),
            Condition::NoneIn(range) => keys.range(range.clone()).next().is_none(),
        }
    }

    fn write(transaction: &Transaction, keys: &mut Keys) {
        for write in &transaction.writes {
            match write {
                Write::Put { key, .. } => keys.insert(key.clone(), Version(2)),
                Write::Delete(key) => keys.remove(key),
            };
        }
    }

    fn any_transaction() -> impl Strategy<Value = Transaction> {
        let key = || (0..6_u8).prop_map(|n| format!("k{n}"));
        let condition = prop_oneof![
            key().prop_map(Condition::Absent),
            key().prop_map(Condition::Present),
            (key(), 1..3_u64).prop_map(|(key, version)| Condition::Unchanged(key, Version(version))),
            (key(), 0..6_u8).prop_map(|(from, to)| Condition::NoneIn(from..format!("k{to}~"))),
        ];
        let write = (key(), any::<bool>()).prop_map(|(key, put)| match put {
            true => Write::put(key, "v"),
            false => Write::Delete(key),
        });
        let conditions = proptest::collection::vec(condition, 0..3);
        let writes = proptest::collection::btree_map(key(), write, 0..3);
        (conditions, writes).prop_map(|(conditions, writes)| {
            let mut writes: Vec<Write> = writes.into_values().collect();
            writes.sort_by(|a, b| a.key().cmp(b.key()));
            writes.dedup_by(|a, b| a.key() == b.key());
            let lawful =
                |condition: &Condition| !matches!(condition, Condition::NoneIn(keys) if keys.start >= keys.end);
            let conditions = conditions.into_iter().filter(lawful).collect();
            Transaction { conditions, writes }
        })
    }

    proptest! {
        /// The outcome of a group in etcd, and the outcome of its members one after the other.
        #[test]
        fn together_is_as_good_as_one_after_the_other(all in proptest::collection::vec(any_transaction(), 1..8),
                                                      there in proptest::collection::btree_set(0..6_u8, 0..4)) {
            let before: Keys = there.iter().map(|n| (format!("k{n}"), Version(1))).collect();
            let goes = go_together(&all);
            let group: Vec<&Transaction> = all.iter().zip(&goes).filter(|(_, goes)| **goes).map(|(one, _)| one).collect();
            let check = |one: &Transaction, keys: &Keys| one.conditions.iter().all(|condition| holds(condition, keys));

            let checked_first: Vec<bool> = group.iter().map(|one| check(one, &before)).collect();
            let mut together = before.clone();
            group.iter().zip(&checked_first).filter(|(_, held)| **held).for_each(|(one, _)| write(one, &mut together));

            let mut after_each_other = before;
            let mut checked_each = Vec::new();
            for one in &group {
                let held = check(one, &after_each_other);
                checked_each.push(held);
                if held {
                    write(one, &mut after_each_other);
                }
            }
            prop_assert_eq!(checked_first, checked_each);
            prop_assert_eq!(together, after_each_other);
        }
    }
}
