//! Which bytes of which slab are lent: the bookkeeping of the pool, without any memory.
//!
//! Best fit over all slabs, lowest address first among equals; neighbours are joined when they come back.
//!
//! Invariants, held by a property test:
//! - PL1: no two blocks that are lent overlap, and each lies inside its slab.
//! - PL2: of every slab, free and lent bytes add up to its length, and no two free runs touch.
//! - PL3: when all blocks are back, every slab is one free run.

use std::collections::BTreeMap;

/// Blocks begin and end at multiples of this, so that they share no page and suit every transport.
pub(super) const GRAIN: usize = 4096;

/// A run of bytes that is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) slab: u64,
    pub(super) at: usize,
    pub(super) len: usize,
}

#[derive(Debug)]
struct Slab {
    len: usize,
    /// Every free run: its start and its length.
    free: BTreeMap<usize, usize>,
    lent: usize,
}

/// The bookkeeping of all slabs.
#[derive(Debug, Default)]
pub(super) struct Space {
    slabs: BTreeMap<u64, Slab>,
    next: u64,
}

/// A length rounded up to whole grains.
pub(super) fn rounded(len: usize) -> Option<usize> {
    len.max(1).checked_next_multiple_of(GRAIN)
}

impl Space {
    /// Adds a new slab, all of it free. Returns its number.
    pub(super) fn add(&mut self, len: usize) -> u64 {
        let id = self.next;
        self.next += 1;
        let slab = Slab {
            len,
            free: BTreeMap::from([(0, len)]),
            lent: 0,
        };
        self.slabs.insert(id, slab);
        id
    }

    /// Lends `len` bytes (whole grains), if any slab has them in one piece.
    pub(super) fn take(&mut self, len: usize) -> Option<Block> {
        let runs = self
            .slabs
            .iter()
            .flat_map(|(id, slab)| slab.free.iter().map(move |(at, run)| (*run, *id, *at)));
        let (run, id, at) = runs.filter(|(run, ..)| *run >= len).min()?;
        let slab = self.slabs.get_mut(&id)?;
        slab.free.remove(&at);
        if run > len {
            slab.free.insert(at + len, run - len);
        }
        slab.lent += len;
        Some(Block { slab: id, at, len })
    }

    /// Takes a block back.
    pub(super) fn give_back(&mut self, block: Block) {
        let Some(slab) = self.slabs.get_mut(&block.slab) else {
            return;
        };
        let (mut at, mut len) = (block.at, block.len);
        if let Some((&before, &run)) = slab.free.range(..at).next_back()
            && before + run == at
        {
            slab.free.remove(&before);
            (at, len) = (before, len + run);
        }
        if let Some(run) = slab.free.remove(&(at + len)) {
            len += run;
        }
        slab.free.insert(at, len);
        slab.lent = slab.lent.saturating_sub(block.len);
    }

    /// Drops slabs of which nothing is lent, the largest first, until `bytes` are gone or none is left.
    pub(super) fn drop_idle(&mut self, bytes: usize) -> Vec<u64> {
        let mut idle: Vec<(usize, u64)> = self
            .slabs
            .iter()
            .filter(|(_, slab)| slab.lent == 0)
            .map(|(id, slab)| (slab.len, *id))
            .collect();
        idle.sort_unstable();
        let mut gone = Vec::new();
        let mut sum = 0;
        while sum < bytes
            && let Some((len, id)) = idle.pop()
        {
            self.slabs.remove(&id);
            sum += len;
            gone.push(id);
        }
        gone
    }

    /// The bytes of slabs of which nothing is lent.
    pub(super) fn idle_bytes(&self) -> usize {
        self.slabs
            .values()
            .filter(|slab| slab.lent == 0)
            .map(|slab| slab.len)
            .sum()
    }

    /// The bytes of all slabs.
    pub(super) fn total(&self) -> usize {
        self.slabs.values().map(|slab| slab.len).sum()
    }

    /// The bytes that are lent.
    pub(super) fn lent(&self) -> usize {
        self.slabs.values().map(|slab| slab.lent).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize),
        GiveBack(usize),
        DropIdle(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1_usize..9).prop_map(Step::Take),
            3 => (0_usize..64).prop_map(Step::GiveBack),
            1 => (1_usize..20).prop_map(Step::DropIdle),
        ]
    }

    fn check(space: &Space, out: &[Block]) {
        for (i, a) in out.iter().enumerate() {
            assert!(a.at + a.len <= space.slabs[&a.slab].len, "PL1: inside");
            for b in &out[..i] {
                let apart = a.slab != b.slab || a.at + a.len <= b.at || b.at + b.len <= a.at;
                assert!(apart, "PL1: {a:?} and {b:?}");
            }
        }
        for (id, slab) in &space.slabs {
            let lent: usize = out
                .iter()
                .filter(|block| block.slab == *id)
                .map(|block| block.len)
                .sum();
            assert_eq!(
                (slab.lent, slab.free.values().sum::<usize>() + lent),
                (lent, slab.len),
                "PL2"
            );
            let runs: Vec<_> = slab.free.iter().map(|(at, len)| (*at, at + len)).collect();
            assert!(runs.windows(2).all(|pair| pair[0].1 < pair[1].0), "PL2: {runs:?}");
            if lent == 0 {
                assert_eq!(runs, [(0, slab.len)], "PL3");
            }
        }
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_everything_comes_back(steps in prop::collection::vec(step(), 0..80)) {
            let mut space = Space::default();
            let mut out: Vec<Block> = Vec::new();
            for step in steps {
                match step {
                    Step::Take(grains) => {
                        let len = grains * GRAIN;
                        let block = space.take(len).unwrap_or_else(|| {
                            space.add(len.max(12 * GRAIN));
                            space.take(len).expect("a slab that fits")
                        });
                        out.push(block);
                    }
                    Step::GiveBack(which) if !out.is_empty() => {
                        let block = out.swap_remove(which % out.len());
                        space.give_back(block);
                    }
                    Step::GiveBack(_) => {}
                    Step::DropIdle(grains) => {
                        let (before, wanted) = (space.total(), grains * GRAIN);
                        let idle = space.idle_bytes();
                        space.drop_idle(wanted);
                        prop_assert!(before - space.total() >= wanted.min(idle));
                    }
                }
                check(&space, &out);
            }
            for block in out.drain(..) {
                space.give_back(block);
            }
            check(&space, &out);
            prop_assert_eq!((space.lent(), space.idle_bytes()), (0, space.total()));
        }
    }

    #[test]
    fn lengths_are_whole_grains() {
        assert_eq!(rounded(0), Some(GRAIN));
        assert_eq!(rounded(GRAIN), Some(GRAIN));
        assert_eq!(rounded(GRAIN + 1), Some(2 * GRAIN));
        assert_eq!(rounded(usize::MAX), None);
    }
}
