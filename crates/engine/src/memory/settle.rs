//! Timed events: losses are noticed, dead puts release their space, memory is evicted, holders send heartbeats.
//!
//! Every event has a time. [`State::settle`] runs the events that are due, oldest first, and events of the same moment
//! in the order of [`Event`]. An event that could change nothing is not scheduled, so an hour without work costs
//! nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use tensorhold_core::{ObjectKey, Timestamp};

use super::state::{Entry, Object, Replica, SegmentId, State, Tier, percent};

/// An object to evict, in the order of eviction: still soft-pinned, end of its last lease, order of arrival, key.
type Victim = (bool, Timestamp, u64, ObjectKey);

/// Bounds the heartbeat interval from below; a shorter setting is treated as this one.
const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The master notices that the process behind a segment is dead.
    Loss(SegmentId),
    /// A put that never ended releases its space: the n-th of [`State::held`].
    Release(usize),
    Evict,
    /// The heartbeat of a holder.
    Beat(usize),
}

impl State {
    /// Runs every event that is due until `now`.
    pub(super) fn settle(&mut self, now: Timestamp) {
        while self.master_up {
            match self.next_event() {
                Some((at, event)) if at <= now => {
                    self.now = self.now.max(at);
                    self.run(event);
                }
                _ => break,
            }
        }
        self.now = self.now.max(now);
    }

    fn next_event(&self) -> Option<(Timestamp, Event)> {
        let losses = self.segments.iter();
        let losses = losses.filter_map(|(id, segment)| segment.lost_at.map(|at| (at, Event::Loss(*id))));
        let release_after = self.config.put_start_release_timeout;
        let held = self.held.iter().enumerate();
        let releases = held.map(|(i, held)| (held.begun.after(release_after), Event::Release(i)));
        let eviction = self.pressure.due.map(|at| (at, Event::Evict));
        let beats = self.holders.iter().enumerate();
        let beats = beats.filter_map(|(i, holder)| holder.next_beat.map(|at| (at, Event::Beat(i))));
        losses.chain(releases).chain(eviction).chain(beats).min()
    }

    fn run(&mut self, event: Event) {
        match event {
            Event::Loss(segment) => self.unmount(segment),
            Event::Release(which) => self.release(which),
            Event::Evict => self.evict(),
            Event::Beat(holder) => self.beat(holder),
        }
    }

    fn release(&mut self, which: usize) {
        let held = self.held.remove(which);
        for segment in held.segments {
            self.give_back(segment, held.bytes);
        }
        self.drop_unfinished(&held.key, held.begun);
    }

    /// Removes an unfinished entry, unless another put has taken its key over.
    pub(super) fn drop_unfinished(&mut self, key: &ObjectKey, put: Timestamp) {
        if matches!(self.entries.get(key), Some(Entry::Unfinished { begun }) if *begun == put) {
            self.entries.remove(key);
        }
    }

    /// Records that there was no room for `bytes`, and schedules an eviction. An object that no segment could ever hold
    /// causes one too, as in the real engine, but that eviction does not try to make room for it.
    pub(super) fn press(&mut self, bytes: u64) {
        if self.segments.values().any(|segment| segment.capacity >= bytes) {
            self.pressure.wanted = self.pressure.wanted.max(bytes);
        }
        let due = self.now.after(self.config.eviction_delay);
        self.pressure.due = Some(self.pressure.due.map_or(due, |earlier| earlier.min(due)));
    }

    pub(super) fn press_if_high(&mut self) {
        if self.used() > self.watermark() {
            self.press(0);
        }
    }

    /// Evicts until the eviction ratio is freed, use is below the watermark and the wanted object fits. Soft-pinned
    /// objects are evicted only for the latter two.
    fn evict(&mut self) {
        self.pressure.due = None;
        let step = percent(self.capacity(), self.config.eviction_ratio);
        let goal = step.saturating_add(self.used().saturating_sub(self.watermark()));
        let victims = self.victims();
        // If evicting all victims would not make enough room for the wanted object, none is evicted for its sake.
        let wanted = self.pressure.wanted;
        let wanted = if self.could_hold(wanted, &victims) { wanted } else { 0 };
        let mut freed = 0_u64;
        for (soft, _, _, key) in victims {
            if self.relieved_of(wanted) && (soft || freed >= goal) {
                break;
            }
            freed = freed.saturating_add(self.evict_one(&key));
        }
        if self.relieved() {
            self.pressure.wanted = 0;
        } else {
            // A leased object can be evicted when its lease ends. An object that waits for SSD can be evicted after the
            // heartbeat, which schedules an eviction again.
            self.pressure.due = self.next_lease_end();
        }
    }

    fn relieved(&self) -> bool {
        self.relieved_of(self.pressure.wanted)
    }

    fn relieved_of(&self, wanted: u64) -> bool {
        self.used() <= self.watermark() && self.has_room(wanted)
    }

    /// Whether some segment would have room for `wanted` bytes without these objects.
    fn could_hold(&self, wanted: u64, victims: &[Victim]) -> bool {
        let mut room: BTreeMap<SegmentId, u64> = self.segments.iter().map(|(id, s)| (*id, s.free())).collect();
        for (_, _, _, key) in victims {
            let Some(Entry::Readable(object)) = self.entries.get(key) else {
                continue;
            };
            for replica in object.replicas.iter().filter(|replica| replica.tier == Tier::Dram) {
                if let Some(room) = room.get_mut(&replica.segment) {
                    *room = room.saturating_add(replica.len());
                }
            }
        }
        room.values().any(|room| *room >= wanted)
    }

    /// The objects that may be evicted now, in the order of eviction.
    fn victims(&self) -> Vec<Victim> {
        let mut victims: Vec<_> = self
            .evictable()
            .filter(|(_, object)| object.lease_until <= self.now)
            .map(|(key, object)| {
                let soft = object.soft_pinned_at(self.now);
                (soft, object.lease_until, object.order, key.clone())
            })
            .collect();
        victims.sort();
        victims
    }

    fn next_lease_end(&self) -> Option<Timestamp> {
        let ends = self.evictable().map(|(_, object)| object.lease_until);
        ends.filter(|end| *end > self.now).min()
    }

    /// The objects that may be evicted once their lease has ended.
    fn evictable(&self) -> impl Iterator<Item = (&ObjectKey, &Object)> {
        self.entries.iter().filter_map(|(key, entry)| match entry {
            Entry::Readable(object) if object.in_dram() && !object.hard_pinned() && object.offload_from.is_none() => {
                Some((key, object))
            }
            _ => None,
        })
    }

    fn evict_one(&mut self, key: &ObjectKey) -> u64 {
        let Some(object) = self.object_mut(key) else { return 0 };
        let freed = object.dram_bytes();
        if object.count(Tier::Ssd) == 0 {
            self.forget(key);
            return freed;
        }
        let (dram, ssd) = std::mem::take(&mut object.replicas)
            .into_iter()
            .partition(|replica| replica.tier == Tier::Dram);
        object.replicas = ssd;
        let dram: Vec<Replica> = dram;
        for replica in dram {
            self.give_back(replica.segment, replica.len());
        }
        freed
    }

    /// Schedules a holder's next heartbeat, unless one is scheduled.
    pub(super) fn wake(&mut self, holder: usize) {
        let Some(ssd) = &self.config.ssd else { return };
        let every = ssd.heartbeat.max(SHORTEST_HEARTBEAT);
        let now = self.now;
        let Some(holder) = self.holders.get_mut(holder) else {
            return;
        };
        if let (Some(mounted), None) = (holder.mounted, holder.next_beat) {
            // The first heartbeat after now, in multiples of the interval since the holder was mounted.
            let into = now.since(mounted).as_nanos() % every.as_nanos();
            let wait = every.saturating_sub(Duration::from_nanos_u128(into));
            holder.next_beat = Some(now.after(wait));
        }
    }

    pub(super) fn wake_promotions(&mut self) {
        for holder in 0..self.holders.len() {
            if !self.holders[holder].promote.is_empty() {
                self.wake(holder);
            }
        }
    }

    fn beat(&mut self, holder: usize) {
        self.holders[holder].next_beat = None;
        let Some(segment) = self.holders[holder].segment else {
            return;
        };
        self.offload(holder, segment);
        // Without progress the holder waits until space is freed: trying again would change nothing.
        if self.promote(holder, segment) && !self.holders[holder].promote.is_empty() {
            self.wake(holder);
        }
    }

    fn offload(&mut self, holder: usize, segment: SegmentId) {
        let mut written = false;
        for key in std::mem::take(&mut self.holders[holder].offload) {
            let Some(object) = self.object_mut(&key) else { continue };
            if object.offload_from != Some(segment) {
                continue;
            }
            object.offload_from = None;
            let source = object.replicas.iter().find(|replica| replica.segment == segment);
            let Some(bytes) = source.map(|replica| replica.bytes.clone()) else {
                continue;
            };
            object.replicas.push(Replica {
                segment,
                tier: Tier::Ssd,
                bytes: bytes.clone(),
            });
            self.holders[holder].bucket.insert(key, bytes);
            written = true;
        }
        if written && !self.relieved() {
            self.press(0);
        }
    }

    /// Returns whether it promoted an object, or found that an object need not be promoted.
    fn promote(&mut self, holder: usize, segment: SegmentId) -> bool {
        let most = self.config.ssd.as_ref().map_or(0, |ssd| ssd.promote_per_heartbeat);
        let mut progress = false;
        let mut raised = 0;
        while raised < most && self.used() < self.watermark() {
            let Some(key) = self.holders[holder].promote.pop_front() else {
                break;
            };
            let wanted = self.object_mut(&key).and_then(|object| {
                let source = object.replicas.iter().find(|replica| replica.segment == segment)?;
                (object.promote_from == Some(segment) && !object.in_dram()).then(|| source.clone())
            });
            let Some(source) = wanted else {
                progress = true;
                continue;
            };
            // On the holder's own segment if there is room, so that one dead holder does not block another.
            let room = self.choose(source.len(), 1, |id, _| id == segment).first().copied();
            let Some(target) = room.filter(|id| self.alive(*id)) else {
                self.holders[holder].promote.push_front(key);
                break;
            };
            self.take(target, source.len());
            if let Some(object) = self.object_mut(&key) {
                object.promote_from = None;
                object.replicas.insert(
                    0,
                    Replica {
                        segment: target,
                        tier: Tier::Dram,
                        bytes: source.bytes,
                    },
                );
            }
            raised += 1;
            progress = true;
        }
        self.press_if_high();
        progress
    }
}
