//! Pages that turned out to be wrong, and have not been removed from the engine yet.
//!
//! A put on a key that has an object writes nothing and returns `Stored`: a wrong page would block its key for as long
//! as the engine keeps it. So a wrong page is removed by force as soon as it is found. If that fails, its key stays
//! here: it does not count as present, and a put of it removes the old object first, or fails.
//!
//! The set is bounded. The oldest entry is dropped: its key is then as it was before the first reader found it, and the
//! next get finds the flaw again.

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;
use tensorhold_core::ObjectKey;

#[derive(Debug)]
pub(super) struct Quarantine {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    by_key: HashMap<ObjectKey, u64>,
    by_age: BTreeMap<u64, ObjectKey>,
    next: u64,
}

impl Quarantine {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            state: Mutex::default(),
        }
    }

    pub(super) fn add(&self, key: &ObjectKey) {
        let mut state = self.state.lock();
        if state.by_key.contains_key(key) {
            return;
        }
        while state.by_key.len() >= self.most
            && let Some((_, oldest)) = state.by_age.pop_first()
        {
            state.by_key.remove(&oldest);
        }
        let age = state.next;
        state.next += 1;
        state.by_key.insert(key.clone(), age);
        state.by_age.insert(age, key.clone());
    }

    pub(super) fn remove(&self, key: &ObjectKey) {
        let mut state = self.state.lock();
        if let Some(age) = state.by_key.remove(key) {
            state.by_age.remove(&age);
        }
    }

    /// Those of `keys` that are in the set.
    pub(super) fn among<'a>(&self, keys: impl Iterator<Item = &'a ObjectKey>) -> Vec<ObjectKey> {
        let state = self.state.lock();
        if state.by_key.is_empty() {
            return Vec::new();
        }
        keys.filter(|key| state.by_key.contains_key(*key)).cloned().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.state.lock().by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_way_and_nothing_is_kept_twice() {
        let key = |n: usize| ObjectKey::new(format!("k{n}")).expect("a key");
        let bad = Quarantine::new(3);
        for n in [0, 1, 2, 1, 3] {
            bad.add(&key(n));
        }
        let all: Vec<_> = (0..5).map(key).collect();
        assert_eq!(bad.among(all.iter()), [key(1), key(2), key(3)]);
        bad.remove(&key(2));
        bad.remove(&key(0));
        assert_eq!((bad.len(), bad.state.lock().by_age.len()), (2, 2));
    }
}
