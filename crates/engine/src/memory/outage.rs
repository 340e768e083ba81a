//! Deaths and restarts of holders and of the master.

use tensorhold_core::ObjectKey;

use super::state::{Entry, Object, Replica, Segment, SegmentId, State, Tier};
use crate::types::Pin;

impl State {
    /// The holder's process dies, and its DRAM is lost; the master notices later. False if it does not run.
    pub(super) fn kill_holder(&mut self, which: usize) -> bool {
        let notices = self.now.after(self.config.holder_loss_after);
        let Some(holder) = self.holders.get_mut(which).filter(|holder| holder.running) else {
            return false;
        };
        holder.running = false;
        holder.mounted = None;
        holder.next_beat = None;
        holder.offload.clear();
        holder.promote.clear();
        if let Some(segment) = holder.segment.take().and_then(|id| self.segments.get_mut(&id)) {
            segment.lost_at = Some(notices);
        }
        true
    }

    /// A new holder process on the same SSD. A running one is killed first. False if there is no such holder.
    pub(super) fn restart_holder(&mut self, which: usize) -> bool {
        self.kill_holder(which);
        let Some(holder) = self.holders.get_mut(which) else {
            return false;
        };
        holder.running = true;
        if self.master_up {
            self.mount(which);
        }
        true
    }

    /// All metadata is lost with the master's process. The holders keep running.
    pub(super) fn kill_master(&mut self) -> bool {
        let was_up = std::mem::replace(&mut self.master_up, false);
        self.entries.clear();
        self.held.clear();
        self.segments.clear();
        self.pressure = super::state::Pressure::default();
        for holder in &mut self.holders {
            holder.segment = None;
            holder.mounted = None;
            holder.next_beat = None;
            holder.offload.clear();
            holder.promote.clear();
        }
        was_up
    }

    /// An empty master; the running holders register with it.
    pub(super) fn restart_master(&mut self) {
        self.kill_master();
        self.master_up = true;
        self.restarts += 1;
        self.mounts = 0;
        for holder in 0..self.holders.len() {
            if self.holders[holder].running {
                self.mount(holder);
            }
        }
    }

    /// Registers a running holder: an empty segment, and the content of its SSD. That is how removed objects come back.
    pub(super) fn mount(&mut self, which: usize) {
        let id = self.next_segment;
        self.next_segment += 1;
        self.mounts += 1;
        let segment = Segment {
            holder: which,
            capacity: self.config.segment_bytes,
            used: 0,
            lost_at: None,
        };
        self.segments.insert(id, segment);
        let now = self.now;
        let Some(holder) = self.holders.get_mut(which) else {
            return;
        };
        holder.segment = Some(id);
        holder.mounted = Some(now);
        let bucket: Vec<_> = holder.bucket.iter().map(|(k, b)| (k.clone(), b.clone())).collect();
        for (key, bytes) in bucket {
            self.announce(
                key,
                Replica {
                    segment: id,
                    tier: Tier::Ssd,
                    bytes,
                },
            );
        }
        self.wake_promotions();
    }

    /// Adds a replica on SSD to the master's list.
    fn announce(&mut self, key: ObjectKey, replica: Replica) {
        match self.entries.get_mut(&key) {
            Some(Entry::Readable(object)) => object.replicas.push(replica),
            // A put of this key is in flight; the holder's report comes too late.
            Some(Entry::Unfinished { .. }) => {}
            None => {
                let object = Object {
                    replicas: vec![replica],
                    pin: Pin::Evictable,
                    lease_until: self.now,
                    used_at: self.now,
                    order: self.order(),
                    offload_from: None,
                    promote_from: None,
                };
                self.entries.insert(key, Entry::Readable(object));
            }
        }
    }

    /// Removes a dead segment and all objects on it from the master's list.
    pub(super) fn unmount(&mut self, lost: SegmentId) {
        self.segments.remove(&lost);
        self.entries.retain(|_, entry| match entry {
            Entry::Unfinished { .. } => true,
            Entry::Readable(object) => {
                object.replicas.retain(|replica| replica.segment != lost);
                object.offload_from = object.offload_from.filter(|segment| *segment != lost);
                object.promote_from = object.promote_from.filter(|segment| *segment != lost);
                !object.replicas.is_empty()
            }
        });
        let mut gone = Vec::new();
        self.held.retain_mut(|held| {
            held.segments.retain(|segment| *segment != lost);
            let keep = !held.segments.is_empty();
            if !keep {
                gone.push((held.key.clone(), held.begun));
            }
            keep
        });
        for (key, begun) in gone {
            self.drop_unfinished(&key, begun);
        }
        self.press_if_high();
    }
}
