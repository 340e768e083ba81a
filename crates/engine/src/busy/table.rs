//! The bookkeeping: who holds what, and who waits in which order. No locks, no time.
//!
//! Claims are few (operations under way), so they are lists; a look at one costs a comparison unless the two lie close.

use std::ops::Range;
use std::task::Waker;

use super::{Access, Holder};

/// Ranges of memory: in order, none empty, none touching another.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges {
    list: Vec<Range<usize>>,
    twice: Option<usize>,
}

impl Ranges {
    pub(super) fn new(ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut all: Vec<Range<usize>> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        all.sort_unstable_by_key(|range| range.start);
        let mut joined = Self::default();
        for range in all {
            match joined.list.last_mut() {
                Some(last) if range.start <= last.end => {
                    if range.start < last.end {
                        joined.twice.get_or_insert(range.start);
                    }
                    last.end = last.end.max(range.end);
                }
                _ => joined.list.push(range),
            }
        }
        joined
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// An address that stood in two of the ranges.
    pub(super) fn twice(&self) -> Option<usize> {
        self.twice
    }

    /// A part that both have.
    fn common(&self, other: &Self) -> Option<Range<usize>> {
        let ends = |of: &Self| Some((of.list.first()?.start, of.list.last()?.end));
        let ((from, to), (other_from, other_to)) = (ends(self)?, ends(other)?);
        if to <= other_from || other_to <= from {
            return None;
        }
        let (mut mine, mut theirs) = (self.list.iter().peekable(), other.list.iter().peekable());
        loop {
            let (a, b) = (mine.peek()?, theirs.peek()?);
            let both = a.start.max(b.start)..a.end.min(b.end);
            if !both.is_empty() {
                return Some(both);
            }
            if a.end <= b.end {
                mine.next();
            } else {
                theirs.next();
            }
        }
    }
}

#[derive(Debug)]
struct Entry {
    id: u64,
    operation: &'static str,
    access: Access,
    ranges: Ranges,
    waker: Option<Waker>,
}

impl Entry {
    /// What of this entry is in the way of the other.
    fn blocks(&self, other: &Self) -> Option<Holder> {
        if self.access == Access::Read && other.access == Access::Read {
            return None;
        }
        self.ranges.common(&other.ranges).map(|range| Holder {
            operation: self.operation,
            access: self.access,
            range,
        })
    }
}

/// All claims of a [`super::Busy`].
#[derive(Debug, Default)]
pub(super) struct Table {
    last: u64,
    held: Vec<Entry>,
    /// In the order in which they asked.
    waiting: Vec<Entry>,
}

impl Table {
    /// A new claim: held at once if nothing is in its way, in line otherwise.
    pub(super) fn ask(&mut self, operation: &'static str, access: Access, ranges: Ranges) -> u64 {
        self.last += 1;
        let entry = Entry {
            id: self.last,
            operation,
            access,
            ranges,
            waker: None,
        };
        if self.blocker(&entry, &self.waiting).is_none() {
            self.held.push(entry);
        } else {
            self.waiting.push(entry);
        }
        self.last
    }

    /// What is in the way of an entry with these before it in line. The newest are looked at first: where many wait for
    /// the same memory, that is where the one is that has just been granted.
    fn blocker(&self, entry: &Entry, before: &[Entry]) -> Option<Holder> {
        let held = self.held.iter().rev();
        held.chain(before.iter().rev()).find_map(|other| other.blocks(entry))
    }

    /// Whether a claim is held; if not, its waker is told when it is.
    pub(super) fn is_granted(&mut self, id: u64, waker: &Waker) -> bool {
        let Some(entry) = self.waiting.iter_mut().find(|entry| entry.id == id) else {
            return true;
        };
        match &mut entry.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        false
    }

    /// A claim is over, held or waiting. Returns the wakers of those that are held from now on.
    pub(super) fn end(&mut self, id: u64) -> Vec<Waker> {
        if let Some(at) = self.held.iter().position(|entry| entry.id == id) {
            self.held.remove(at);
        } else {
            self.waiting.retain(|entry| entry.id != id);
        }
        let mut wakers = Vec::new();
        let mut at = 0;
        while at < self.waiting.len() {
            if self.blocker(&self.waiting[at], &self.waiting[..at]).is_some() {
                at += 1;
                continue;
            }
            let mut entry = self.waiting.remove(at);
            wakers.extend(entry.waker.take());
            self.held.push(entry);
        }
        wakers
    }

    /// What keeps a claim waiting.
    pub(super) fn in_the_way_of(&self, id: u64) -> Option<Holder> {
        let at = self.waiting.iter().position(|entry| entry.id == id)?;
        self.blocker(&self.waiting[at], &self.waiting[..at])
    }

    /// The claim that is held and writes to some of this memory.
    pub(super) fn writer_of(&self, ranges: &Ranges) -> Option<Holder> {
        let writers = self.held.iter().filter(|entry| entry.access == Access::Write);
        writers
            .filter_map(|entry| {
                entry.ranges.common(ranges).map(|range| Holder {
                    operation: entry.operation,
                    access: entry.access,
                    range,
                })
            })
            .next()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> Vec<u64> {
        let mut held: Vec<u64> = self.held.iter().map(|entry| entry.id).collect();
        held.sort_unstable();
        held
    }
}
