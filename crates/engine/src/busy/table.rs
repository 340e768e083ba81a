//! The bookkeeping: which claim holds which ranges, and which claims wait, in which order. No locks, no time.
//!
//! Claims are few (operations in flight), so they are kept in lists. Checking two claims against each other costs one
//! comparison unless their ranges lie close together.

use std::ops::Range;
use std::task::Waker;

use super::{Access, Holder};

/// Ranges of memory: sorted, none empty, none touching another.
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

    /// An address that occurred in two of the ranges.
    pub(super) fn twice(&self) -> Option<usize> {
        self.twice
    }

    /// A range that both have in common.
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
    /// The conflict by which this entry blocks the other, if any.
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
    /// In the order in which they were requested.
    waiting: Vec<Entry>,
}

impl Table {
    /// A new claim: held at once if no other claim blocks it, otherwise queued.
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

    /// The claim that blocks `entry`, with `before` ahead of it in the queue. The newest are checked first: where many
    /// claims wait for the same memory, the claim that was granted last is among them.
    fn blocker(&self, entry: &Entry, before: &[Entry]) -> Option<Holder> {
        let held = self.held.iter().rev();
        held.chain(before.iter().rev()).find_map(|other| other.blocks(entry))
    }

    /// Whether a claim is held. If not, `waker` is called once it is.
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

    /// Ends a claim, held or waiting. Returns the wakers of the claims that are granted by it.
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

    /// The claim that keeps this one waiting.
    pub(super) fn in_the_way_of(&self, id: u64) -> Option<Holder> {
        let at = self.waiting.iter().position(|entry| entry.id == id)?;
        self.blocker(&self.waiting[at], &self.waiting[..at])
    }

    /// The held claim that writes to some of this memory.
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
