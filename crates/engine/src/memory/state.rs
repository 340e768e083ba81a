//! The state of a cluster: the master's metadata, the holders' segments and SSD buckets, and the pending events.
//!
//! Nothing here does I/O or reads a clock; [`State::settle`] sets `now`. The transitions are in `calls` (requests of
//! clients), `settle` (timed events) and `outage` (deaths and restarts).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tensorhold_core::{ObjectKey, Timestamp};

use super::config::MemoryConfig;
use crate::types::Pin;

/// One incarnation of a holder's segment. A restarted holder gets a new one: the old one stays on the master's list
/// until its loss is noticed.
pub(super) type SegmentId = u64;

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) holder: usize,
    pub(super) capacity: u64,
    pub(super) used: u64,
    /// When the master will notice that the process behind it is dead.
    pub(super) lost_at: Option<Timestamp>,
}

impl Segment {
    pub(super) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }

    pub(super) fn name(&self) -> String {
        format!("holder-{}", self.holder)
    }
}

#[derive(Debug, Default)]
pub(super) struct Holder {
    pub(super) running: bool,
    /// Its segment, if it runs and the master has mounted it.
    pub(super) segment: Option<SegmentId>,
    /// The content of its SSD. It survives everything, removes included.
    pub(super) bucket: BTreeMap<ObjectKey, Arc<[u8]>>,
    /// Heartbeats are counted from this time.
    pub(super) mounted: Option<Timestamp>,
    /// The next heartbeat that has work to do; none while there is no work, or none that could be done.
    pub(super) next_beat: Option<Timestamp>,
    /// Objects to write to SSD.
    pub(super) offload: VecDeque<ObjectKey>,
    /// Objects to promote to DRAM.
    pub(super) promote: VecDeque<ObjectKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    Dram,
    Ssd,
}

/// One replica of an object. It has bytes of its own, because a copy that came back from SSD may belong to an older
/// version of its key.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) segment: SegmentId,
    pub(super) tier: Tier,
    pub(super) bytes: Arc<[u8]>,
}

impl Replica {
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// An object whose put has ended.
#[derive(Debug)]
pub(super) struct Object {
    /// DRAM before SSD; never empty. The first one is read.
    pub(super) replicas: Vec<Replica>,
    pub(super) pin: Pin,
    /// The object is not evicted before this time. A put sets it to its own time, so it is also the order of eviction.
    pub(super) lease_until: Timestamp,
    /// The last put or get. A soft pin counts from here.
    pub(super) used_at: Timestamp,
    /// Breaks ties in the order of eviction.
    pub(super) order: u64,
    /// The segment whose holder will write it to SSD.
    pub(super) offload_from: Option<SegmentId>,
    /// The segment whose holder will promote it to DRAM.
    pub(super) promote_from: Option<SegmentId>,
}

impl Object {
    pub(super) fn count(&self, tier: Tier) -> u32 {
        u32::try_from(self.replicas.iter().filter(|replica| replica.tier == tier).count()).unwrap_or(u32::MAX)
    }

    pub(super) fn in_dram(&self) -> bool {
        self.replicas.first().is_some_and(|first| first.tier == Tier::Dram)
    }

    /// The DRAM that it occupies, over all copies.
    pub(super) fn dram_bytes(&self) -> u64 {
        self.replicas
            .iter()
            .filter(|replica| replica.tier == Tier::Dram)
            .map(Replica::len)
            .sum()
    }

    pub(super) fn hard_pinned(&self) -> bool {
        self.pin == Pin::Hard
    }

    pub(super) fn soft_pinned_at(&self, now: Timestamp) -> bool {
        matches!(self.pin, Pin::Soft(ttl) if now < self.used_at.after(ttl))
    }
}

#[derive(Debug)]
pub(super) enum Entry {
    Readable(Object),
    /// A put that began at this time and never ended. Its space is among [`State::held`].
    Unfinished {
        begun: Timestamp,
    },
}

/// Space of a put that never ended.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) key: ObjectKey,
    pub(super) begun: Timestamp,
    pub(super) bytes: u64,
    pub(super) segments: Vec<SegmentId>,
}

/// The need to evict.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    /// When the next eviction runs.
    pub(super) due: Option<Timestamp>,
    /// The largest object for which no segment had room, and still none has.
    pub(super) wanted: u64,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) config: MemoryConfig,
    /// All events due until this time have run.
    pub(super) now: Timestamp,
    pub(super) master_up: bool,
    pub(super) entries: BTreeMap<ObjectKey, Entry>,
    pub(super) held: Vec<Held>,
    pub(super) segments: BTreeMap<SegmentId, Segment>,
    pub(super) holders: Vec<Holder>,
    pub(super) pressure: Pressure,
    /// How often the master was restarted.
    pub(super) restarts: u64,
    /// How often a segment was registered with this master.
    pub(super) mounts: u64,
    pub(super) next_segment: SegmentId,
    pub(super) next_order: u64,
}

impl State {
    pub(super) fn new(config: MemoryConfig, now: Timestamp) -> Self {
        let holders = (0..config.holders)
            .map(|_| Holder {
                running: true,
                ..Holder::default()
            })
            .collect();
        let mut state = Self {
            config,
            now,
            master_up: true,
            entries: BTreeMap::new(),
            held: Vec::new(),
            segments: BTreeMap::new(),
            holders,
            pressure: Pressure::default(),
            restarts: 0,
            mounts: 0,
            next_segment: 0,
            next_order: 0,
        };
        for holder in 0..state.holders.len() {
            state.mount(holder);
        }
        state
    }

    pub(super) fn capacity(&self) -> u64 {
        self.segments.values().map(|segment| segment.capacity).sum()
    }

    pub(super) fn used(&self) -> u64 {
        self.segments.values().map(|segment| segment.used).sum()
    }

    /// Bytes of DRAM in use above which the engine evicts.
    pub(super) fn watermark(&self) -> u64 {
        percent(self.capacity(), self.config.high_watermark)
    }

    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.segments.values().any(|segment| segment.free() >= bytes)
    }

    /// Whether the process behind a segment is alive.
    pub(super) fn alive(&self, segment: SegmentId) -> bool {
        self.segments.get(&segment).is_some_and(|s| s.lost_at.is_none())
    }

    /// Segments of distinct holders with room for `bytes`: preferred ones first, then those with the most room.
    pub(super) fn choose(
        &self,
        bytes: u64,
        copies: u32,
        preferred: impl Fn(SegmentId, &Segment) -> bool,
    ) -> Vec<SegmentId> {
        let mut roomy: Vec<_> = self.segments.iter().filter(|(_, s)| s.free() >= bytes).collect();
        roomy.sort_by_key(|(id, s)| (!preferred(**id, s), std::cmp::Reverse(s.free()), **id));
        let mut holders = Vec::new();
        let mut chosen = Vec::new();
        for (id, segment) in roomy {
            if chosen.len() as u64 == u64::from(copies) {
                break;
            }
            if !holders.contains(&segment.holder) {
                holders.push(segment.holder);
                chosen.push(*id);
            }
        }
        chosen
    }

    pub(super) fn take(&mut self, segment: SegmentId, bytes: u64) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.used = segment.used.saturating_add(bytes);
        }
    }

    /// Frees space, and schedules the promotions that waited for it.
    pub(super) fn give_back(&mut self, segment: SegmentId, bytes: u64) {
        if let Some(segment) = self.segments.get_mut(&segment) {
            segment.used = segment.used.saturating_sub(bytes);
        }
        self.wake_promotions();
    }

    /// Removes an object from the master's list and frees its DRAM. Its copy on SSD stays there, unknown to the master.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        if let Some(Entry::Readable(object)) = self.entries.remove(key) {
            for replica in object.replicas {
                if replica.tier == Tier::Dram {
                    self.give_back(replica.segment, replica.len());
                }
            }
        }
    }

    pub(super) fn object_mut(&mut self, key: &ObjectKey) -> Option<&mut Object> {
        match self.entries.get_mut(key) {
            Some(Entry::Readable(object)) => Some(object),
            _ => None,
        }
    }

    /// The next number in the order of arrival.
    pub(super) fn order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }
}

pub(super) fn percent(of: u64, percent: u32) -> u64 {
    u64::try_from(u128::from(of) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}
