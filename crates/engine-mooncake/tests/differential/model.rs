//! What is under each key, as the contract has it: what was put first and not removed since.

use std::collections::{BTreeMap, BTreeSet};

use tensorhold_core::ObjectKey;
use tensorhold_engine::Pin;
use tensorhold_engine::testing::pattern;

use crate::op::{Object, Op};
use crate::side::{Answer, Seen};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    pub len: usize,
    pub content: u64,
    pub pin: Pin,
}

/// What is there.
#[derive(Debug, Default)]
pub struct Model {
    objects: BTreeMap<ObjectKey, First>,
    unfinished: BTreeSet<ObjectKey>,
}

impl Model {
    pub fn get(&self, key: &ObjectKey) -> Option<&First> {
        self.objects.get(key)
    }

    pub fn keys(&self) -> Vec<ObjectKey> {
        self.objects.keys().cloned().collect()
    }

    pub fn forget(&mut self, key: &ObjectKey) {
        self.objects.remove(key);
    }

    /// Takes in an operation on which both agreed.
    pub fn apply(&mut self, op: &Op, answer: &Answer) {
        match (op, answer) {
            (Op::Put { objects, pin, .. }, Answer::Objects(seen)) => {
                for (object, _) in objects.iter().zip(seen).filter(|(_, seen)| **seen == Seen::Stored) {
                    self.stored(object, *pin);
                }
            }
            (Op::Remove { keys, .. }, Answer::Objects(seen)) => {
                for (key, _) in keys.iter().zip(seen).filter(|(_, seen)| **seen == Seen::Removed) {
                    self.forget(key);
                }
            }
            (Op::Abandon { key, .. }, Answer::Abandoned) => {
                self.unfinished.insert(key.clone());
            }
            _ => {}
        }
    }

    fn stored(&mut self, object: &Object, pin: Pin) {
        // "A later put on that key may return `Stored` and write nothing."
        if self.unfinished.contains(&object.key) {
            return;
        }
        // "If one was there before, it is unchanged."
        self.objects.entry(object.key.clone()).or_insert(First {
            len: object.len(),
            content: object.content,
            pin,
        });
    }

    /// What it means that these bytes were loaded.
    pub fn check(&self, key: &ObjectKey, bytes: &[u8]) -> Seen {
        let Some(first) = self.objects.get(key) else {
            return Seen::OtherBytes(0);
        };
        let wanted = pattern(first.len, first.content);
        if wanted == bytes {
            return Seen::Loaded;
        }
        let at = wanted.iter().zip(bytes).position(|(a, b)| a != b);
        Seen::OtherBytes(at.unwrap_or(wanted.len().min(bytes.len())))
    }
}
