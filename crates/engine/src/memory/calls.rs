//! The requests of clients, one object at a time. The caller has caught up (`settle`) and knows that the master is up.

use std::ops::Bound;
use std::sync::Arc;

use tensorhold_core::{Error, ObjectKey};

use super::state::{Entry, Held, Object, Replica, Segment, SegmentId, State, Tier};
use crate::types::{
    Holder, Listing, Pin, Presence, PromoteOutcome, PutOptions, PutOutcome, RelocateOutcome, RemoveOutcome, Usage,
};

/// What a get finds.
#[derive(Debug)]
pub(super) enum Found {
    Bytes(Arc<[u8]>),
    Nothing,
    Unfinished,
    HolderGone(Error),
}

impl State {
    pub(super) fn put(&mut self, key: &ObjectKey, bytes: Arc<[u8]>, options: &PutOptions) -> PutOutcome {
        if !self.key_is_free(key) {
            return PutOutcome::Stored;
        }
        let len = bytes.len() as u64;
        let segments = self.choose(len, options.replicas, |_, segment| {
            options.preferred_segments.contains(&segment.name())
        });
        if segments.is_empty() {
            self.press(len);
            return PutOutcome::Full;
        }
        if let Some(dead) = segments.iter().find(|id| !self.alive(**id)) {
            // The master does not know of the loss yet and hands out the segment's space; the transfer fails and the
            // put is revoked.
            return PutOutcome::Failed(self.holder_gone("engine.put", *dead));
        }
        self.insert(key, bytes, options.pin, &segments);
        PutOutcome::Stored
    }

    fn insert(&mut self, key: &ObjectKey, bytes: Arc<[u8]>, pin: Pin, segments: &[SegmentId]) {
        for segment in segments {
            self.take(*segment, bytes.len() as u64);
        }
        let first = segments.first().copied();
        let object = Object {
            replicas: segments
                .iter()
                .map(|&segment| Replica {
                    segment,
                    tier: Tier::Dram,
                    bytes: bytes.clone(),
                })
                .collect(),
            pin,
            lease_until: self.now,
            used_at: self.now,
            order: self.order(),
            offload_from: None,
            promote_from: None,
        };
        self.entries.insert(key.clone(), Entry::Readable(object));
        if let Some(segment) = first {
            self.queue_offload(key, segment);
        }
        self.press_if_high();
    }

    /// Whether a put may write under this key. Removes the entry of a put that never ended, if it is old enough; the
    /// space of that put stays held until the release timeout.
    fn key_is_free(&mut self, key: &ObjectKey) -> bool {
        match self.entries.get(key) {
            None => true,
            Some(Entry::Readable(_)) => false,
            Some(Entry::Unfinished { begun }) => {
                let old = self.now >= begun.after(self.config.put_start_discard_timeout);
                if old {
                    self.entries.remove(key);
                }
                old
            }
        }
    }

    /// A put that takes its space and never ends.
    pub(super) fn abandon(&mut self, key: &ObjectKey, bytes: u64) -> bool {
        if !self.key_is_free(key) {
            return false;
        }
        let segments = self.choose(bytes, 1, |_, _| false);
        if segments.is_empty() {
            self.press(bytes);
            return false;
        }
        for segment in &segments {
            self.take(*segment, bytes);
        }
        let begun = self.now;
        self.entries.insert(key.clone(), Entry::Unfinished { begun });
        self.held.push(Held {
            key: key.clone(),
            begun,
            bytes,
            segments,
        });
        self.press_if_high();
        true
    }

    /// Grants a lease, even if the read then fails: the master does not learn how the transfer ends.
    pub(super) fn get(&mut self, key: &ObjectKey) -> Found {
        let (now, lease) = (self.now, self.now.after(self.config.lease_ttl));
        if matches!(self.entries.get(key), Some(Entry::Unfinished { .. })) {
            return Found::Unfinished;
        }
        let Some(object) = self.object_mut(key) else {
            return Found::Nothing;
        };
        object.lease_until = lease;
        object.used_at = now;
        let Some(first) = object.replicas.first().cloned() else {
            return Found::Nothing;
        };
        self.queue_promotion(key);
        // Only the first replica is tried, as in the real client.
        if self.alive(first.segment) {
            Found::Bytes(first.bytes)
        } else {
            Found::HolderGone(self.holder_gone("engine.get", first.segment))
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> RemoveOutcome {
        match self.entries.get(key) {
            None => RemoveOutcome::Absent,
            Some(Entry::Unfinished { .. }) => RemoveOutcome::Unfinished,
            Some(Entry::Readable(_)) => {
                self.forget(key);
                RemoveOutcome::Removed
            }
        }
    }

    pub(super) fn probe(&self, key: &ObjectKey) -> Presence {
        match self.entries.get(key) {
            None => Presence::Absent,
            Some(Entry::Unfinished { .. }) => Presence::Unfinished,
            Some(Entry::Readable(object)) => Presence::Present {
                dram: object.count(Tier::Dram),
                ssd: object.count(Tier::Ssd),
                bytes: object.replicas.first().map_or(0, Replica::len),
            },
        }
    }

    pub(super) fn list(&self, prefix: &str, after: Option<&ObjectKey>, limit: usize) -> Listing {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = self.entries.range::<ObjectKey, _>((from, Bound::Unbounded));
        let mut found = listed
            .map(|(key, _)| key)
            .filter(|key| key.as_str().starts_with(prefix));
        let keys = found.by_ref().take(limit).cloned().collect();
        Listing {
            keys,
            more: found.next().is_some(),
        }
    }

    pub(super) fn request_promotion(&mut self, key: &ObjectKey) -> PromoteOutcome {
        let lease = self.now.after(self.config.lease_ttl);
        match self.object_mut(key) {
            None => PromoteOutcome::Absent,
            Some(object) if object.in_dram() => {
                object.lease_until = lease;
                PromoteOutcome::InDram
            }
            Some(object) => {
                object.lease_until = lease;
                self.queue_promotion(key);
                PromoteOutcome::Asked
            }
        }
    }

    /// Moves the object's copy at once, unless the other holder has no room. A holder that has a copy gets no second one.
    pub(super) fn relocate(&mut self, key: &ObjectKey, from: &str, to: &str) -> RelocateOutcome {
        let named = |state: &Self, name: &str| {
            let mut segments = state.segments.iter();
            let found = segments.find(|(id, segment)| segment.name() == name && state.alive(**id));
            found.map(|(id, _)| *id)
        };
        let refused = |message| RelocateOutcome::Failed(Error::invalid("engine.relocate", message).with("key", key));
        let Some(Entry::Readable(object)) = self.entries.get(key) else {
            return RelocateOutcome::Absent;
        };
        let (Some(from), Some(to)) = (named(self, from), named(self, to).filter(|_| from != to)) else {
            return refused("no such holder, or the same twice");
        };
        let has = |segment| {
            let in_dram = |one: &Replica| one.tier == Tier::Dram && one.segment == segment;
            object.replicas.iter().position(in_dram)
        };
        let (Some(copy), has_one) = (has(from), has(to).is_some()) else {
            return refused("the object has no copy in that holder's DRAM");
        };
        let len = object.replicas[copy].len();
        if !has_one && self.segments.get(&to).is_none_or(|segment| segment.free() < len) {
            return RelocateOutcome::Asked;
        }
        if let Some(object) = self.object_mut(key) {
            if has_one {
                object.replicas.remove(copy);
            } else {
                object.replicas[copy].segment = to;
            }
        }
        if !has_one {
            self.take(to, len);
        }
        self.give_back(from, len);
        RelocateOutcome::Asked
    }

    pub(super) fn usage(&self) -> Usage {
        let on_ssd = self.entries.values().map(|entry| match entry {
            Entry::Unfinished { .. } => 0,
            Entry::Readable(object) => {
                let ssd = object.replicas.iter().filter(|replica| replica.tier == Tier::Ssd);
                ssd.map(Replica::len).sum()
            }
        });
        Usage {
            dram_capacity: self.capacity(),
            dram_used: self.used(),
            ssd_capacity: 0,
            ssd_used: on_ssd.sum(),
            objects: self.entries.len() as u64,
            holders: self.segments.len() as u64,
            restarts: self.restarts,
            mounts: self.mounts,
        }
    }

    /// One for each segment.
    pub(super) fn holders(&self) -> Vec<Holder> {
        let holder = |(id, segment): (&SegmentId, &Segment)| Holder {
            name: segment.name(),
            address: segment.name(),
            memory: id.to_string(),
            dram_capacity: segment.capacity,
            dram_used: segment.used,
        };
        let mut holders: Vec<Holder> = self.segments.iter().map(holder).collect();
        holders.sort_by(|one, two| one.name.cmp(&two.name));
        holders
    }

    pub(super) fn holder_gone(&self, operation: &'static str, segment: SegmentId) -> Error {
        let error = Error::unavailable(
            operation,
            "the object's holder does not answer; try again when the engine has noticed its loss",
        )
        .with("reason", "holder");
        match self.segments.get(&segment) {
            Some(segment) => error.with("segment", segment.name()),
            None => error,
        }
    }

    fn queue_offload(&mut self, key: &ObjectKey, segment: SegmentId) {
        let Some(ssd) = &self.config.ssd else { return };
        let pinned_too = ssd.offload_pinned;
        let Some(object) = self.object_mut(key) else { return };
        if object.hard_pinned() && !pinned_too {
            return;
        }
        object.offload_from = Some(segment);
        if let Some(holder) = self.segments.get(&segment).map(|s| s.holder) {
            self.holders[holder].offload.push_back(key.clone());
            self.wake(holder);
        }
    }

    fn queue_promotion(&mut self, key: &ObjectKey) {
        if !self.config.ssd.as_ref().is_some_and(|ssd| ssd.promotion) {
            return;
        }
        let Some(Entry::Readable(object)) = self.entries.get(key) else {
            return;
        };
        if object.in_dram() || object.promote_from.is_some_and(|segment| self.alive(segment)) {
            return;
        }
        // A dead holder has no heartbeat at which it could promote the object.
        let source = object.replicas.iter().map(|replica| replica.segment);
        let Some(source) = source.into_iter().find(|segment| self.alive(*segment)) else {
            return;
        };
        if let Some(object) = self.object_mut(key) {
            object.promote_from = Some(source);
        }
        if let Some(holder) = self.segments.get(&source).map(|s| s.holder) {
            self.holders[holder].promote.push_back(key.clone());
            self.wake(holder);
        }
    }
}
