//! Objects that were read ahead, in registered memory of this process.
//!
//! The memory is registered when the first object needs it, and is bounded. An object lies there until it is read: the
//! first get takes it out, because its bytes are then where its reader wants them, and because a get that found a copy
//! damaged must find the engine's own at the next try. What is not read within `keep` may have to give way to another
//! object (PF7); until then it does not.
//!
//! The space of an object is a guarded span. It is free when the last user lets go of it: the table, a get that copies
//! from it, or an engine's call that ran out of time and may still write to it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use range_alloc::RangeAllocator;
use tensorhold_core::{ObjectKey, Result, Timestamp};
use tensorhold_engine::{Engine, EngineExt, EngineId, Region, Span};

/// Spans begin on pages, so that copies are aligned.
const ALIGN: usize = 4096;

#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: usize,
    memory: Mutex<Option<Region>>,
    engine: OnceLock<EngineId>,
    space: Arc<Mutex<Space>>,
}

#[derive(Debug)]
struct Space {
    free: RangeAllocator<usize>,
    resident: HashMap<ObjectKey, Resident>,
    /// The oldest first.
    order: BTreeMap<u64, ObjectKey>,
    next: u64,
    /// Nothing is kept any more: what is kept holds its place in here, and that would keep both for ever.
    closed: bool,
}

#[derive(Debug)]
struct Resident {
    span: Span,
    since: Timestamp,
    at: u64,
}

/// Frees its range when the last user of a span is gone.
struct Slot {
    space: Arc<Mutex<Space>>,
    range: Range<usize>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.space.lock().free.free_range(self.range.clone());
    }
}

impl Space {
    fn take(&mut self, key: &ObjectKey) -> Option<Span> {
        let resident = self.resident.remove(key)?;
        self.order.remove(&resident.at);
        Some(resident.span)
    }
}

impl Buffer {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes,
            memory: Mutex::new(None),
            engine: OnceLock::new(),
            space: Arc::new(Mutex::new(Space {
                free: RangeAllocator::new(0..bytes),
                resident: HashMap::new(),
                order: BTreeMap::new(),
                next: 0,
                closed: false,
            })),
        }
    }

    /// How many objects are in it.
    pub(crate) fn len(&self) -> usize {
        self.space.lock().resident.len()
    }

    /// Its bytes in use, those of objects on their way included.
    pub(crate) fn used(&self) -> usize {
        self.bytes - self.space.lock().free.total_available()
    }

    fn memory(&self, engine: &dyn Engine, within: Duration) -> Result<Region> {
        let mut memory = self.memory.lock();
        if let Some(region) = &*memory {
            return Ok(region.clone());
        }
        let region = engine.allocate(self.bytes, within)?;
        self.engine.get_or_init(|| region.engine());
        if !self.space.lock().closed {
            *memory = Some(region.clone());
        }
        Ok(region)
    }

    /// The engine that its memory is registered with, once there is any.
    pub(crate) fn engine(&self) -> Option<EngineId> {
        self.engine.get().copied()
    }

    /// Whether there could ever be room for an object of this length.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        usize::try_from(bytes).is_ok_and(|len| (1..=self.bytes).contains(&len))
    }

    /// Room for an object, at the cost of objects that were kept for `keep`. `None` if there is none now.
    pub(crate) fn reserve(
        &self,
        engine: &dyn Engine,
        bytes: u64,
        keep: Duration,
        now: Timestamp,
        within: Duration,
    ) -> Result<Option<Span>> {
        let Some(len) = usize::try_from(bytes).ok().filter(|_| self.fits(bytes)) else {
            return Ok(None);
        };
        let wanted = len.next_multiple_of(ALIGN).min(self.bytes);
        let region = self.memory(engine, within)?;
        loop {
            let mut space = self.space.lock();
            if let Ok(range) = space.free.allocate_range(wanted) {
                drop(space);
                let slot = Slot {
                    space: Arc::clone(&self.space),
                    range: range.clone(),
                };
                return region.span(range.start..range.start + len)?.guarded(slot).map(Some);
            }
            // The oldest first; nothing behind one that is still kept is older.
            let oldest = space.order.values().next().cloned();
            let gives_way = oldest.filter(|key| {
                let resident = space.resident.get(key);
                resident.is_some_and(|resident| resident.since.after(keep) <= now)
            });
            let Some(span) = gives_way.and_then(|key| space.take(&key)) else {
                return Ok(None);
            };
            // Its slot locks the space when it is dropped.
            drop(space);
            drop(span);
        }
    }

    /// The object's bytes are in `span`.
    pub(crate) fn insert(&self, key: ObjectKey, span: Span, now: Timestamp) {
        let before = {
            let mut space = self.space.lock();
            if space.closed {
                drop(space);
                return;
            }
            let before = space.take(&key);
            space.next += 1;
            let at = space.next;
            space.order.insert(at, key.clone());
            space.resident.insert(key, Resident { span, since: now, at });
            before
        };
        drop(before);
    }

    /// Whether the object is there.
    pub(crate) fn has(&self, key: &ObjectKey) -> bool {
        self.space.lock().resident.contains_key(key)
    }

    /// Takes the object out, if it is there and has this length. One of another length is dropped.
    pub(crate) fn take(&self, key: &ObjectKey, bytes: u64) -> Option<Span> {
        let span = self.space.lock().take(key)?;
        (span.len() as u64 == bytes).then_some(span)
    }

    /// Drops the object.
    pub(crate) fn remove(&self, key: &ObjectKey) {
        let span = self.space.lock().take(key);
        drop(span);
    }

    /// Drops all objects, keeps no further ones, and gives the memory back, once no call uses it any more. Does not wait.
    pub(crate) fn close(&self) {
        let spans: Vec<Span> = {
            let mut space = self.space.lock();
            space.closed = true;
            space.order.clear();
            space.resident.drain().map(|(_, resident)| resident.span).collect()
        };
        drop(spans);
        // A call that registers memory right now has the lock; it goes with the buffer, which nothing keeps any more.
        let region = self.memory.try_lock().and_then(|mut memory| memory.take());
        drop(region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorhold_core::{Clock, ManualClock};
    use tensorhold_engine::{MemoryCluster, MemoryConfig};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_object_gives_way_only_after_its_time_and_space_comes_back() {
        let clock = Arc::new(ManualClock::new());
        let engine = MemoryCluster::new(MemoryConfig::default(), Arc::clone(&clock) as Arc<dyn Clock>).connect();
        let buffer = Buffer::new(10 * ALIGN);
        let key = |n: usize| ObjectKey::new(format!("k{n}")).expect("a key");
        let reserve = |bytes| {
            buffer
                .reserve(&*engine, bytes, SECOND, clock.now(), SECOND)
                .expect("memory")
        };
        assert_eq!(
            engine.registrations().regions,
            0,
            "nothing is registered before it is needed"
        );
        for n in 0..5 {
            let span = reserve(2 * ALIGN as u64 - 1).expect("room");
            span.write(0, &[u8::try_from(n).expect("small")]).expect("fits");
            buffer.insert(key(n), span, clock.now());
        }
        assert_eq!((buffer.len(), buffer.used()), (5, 10 * ALIGN));
        assert!(reserve(1).is_none(), "all of them are kept");
        assert!(
            reserve(0).is_none() && reserve(10 * ALIGN as u64 + 1).is_none(),
            "never fits"
        );
        let taken = buffer.take(&key(3), 2 * ALIGN as u64 - 1).expect("there");
        assert!(
            buffer.take(&key(3), 2 * ALIGN as u64 - 1).is_none(),
            "the first get takes it out"
        );
        assert!(reserve(1).is_none(), "a reader still copies from it");
        assert_eq!(taken.to_vec()[0], 3);
        drop(taken);
        let late = reserve(ALIGN as u64).expect("its space is free");
        clock.advance(SECOND);
        assert!(reserve(5 * ALIGN as u64).is_some(), "three objects had their time");
        assert!(buffer.has(&key(4)) && !buffer.has(&key(0)));
        assert!(
            buffer.take(&key(4), 7).is_none() && buffer.len() == 0,
            "another length is none of ours"
        );
        buffer.close();
        assert_eq!(engine.registrations().regions, 1, "a call still writes to it");
        drop(late);
        assert_eq!((buffer.used(), engine.registrations().regions), (0, 0));
        let too_late = reserve(1).expect("room");
        buffer.insert(key(0), too_late, clock.now());
        assert_eq!(
            (buffer.len(), buffer.used(), engine.registrations().regions),
            (0, 0, 0),
            "what comes after the end is not kept"
        );
    }
}
