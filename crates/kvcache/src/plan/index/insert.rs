//! Publishing pages, and splitting edges.

use super::node::{Layer, NodeId, Slot};
use super::{Pin, RadixIndex, common};
use crate::plan::key::PageKey;
use crate::plan::operation::{DevicePage, HostPage};
use crate::plan::pool::{OwnedPages, Page};

impl RadixIndex {
    /// Publishes host pages below a host pin: `keys[j]` is the key of `pages[j]` and of the absolute index `depth + j`.
    /// Returns the pages whose key is already indexed (KV14), or all of them if the index was cleared since the pin was
    /// made.
    pub(crate) fn insert_host(
        &mut self,
        below: &Pin,
        keys: &[PageKey],
        mut pages: OwnedPages<HostPage>,
    ) -> OwnedPages<HostPage> {
        let mut losers = self.host.none();
        pages.reverse();
        self.place(below, Layer::Host, keys, pages.len(), |index, duplicate| {
            if duplicate {
                losers.take_last_of(&mut pages);
                return None;
            }
            index.host.publish_last(&mut pages).map(Page::number)
        });
        pages.reverse();
        losers.append(pages);
        losers
    }

    /// The same for device pages below a device pin.
    pub(crate) fn insert_device(
        &mut self,
        below: &Pin,
        keys: &[PageKey],
        mut pages: OwnedPages<DevicePage>,
    ) -> OwnedPages<DevicePage> {
        let mut losers = self.device.none();
        pages.reverse();
        self.place(below, Layer::Device, keys, pages.len(), |index, duplicate| {
            if duplicate {
                losers.take_last_of(&mut pages);
                return None;
            }
            index.device.publish_last(&mut pages).map(Page::number)
        });
        pages.reverse();
        losers.append(pages);
        losers
    }

    /// Walks down from a pin and asks `next` for one page after the other.
    fn place(
        &mut self,
        below: &Pin,
        layer: Layer,
        keys: &[PageKey],
        pages: usize,
        mut next: impl FnMut(&mut Self, bool) -> Option<u32>,
    ) {
        if below.epoch != self.epoch || below.layer != layer {
            return;
        }
        let (mut at, mut rest) = (below.node, &keys[..pages.min(keys.len())]);
        while let Some(first) = rest.first() {
            let Some(id) = self.child(first) else {
                at = self.grow(at, layer, rest, &mut next);
                break;
            };
            let common = common(&self.arena[id], rest);
            for place in 0..common {
                let duplicate = place < self.arena[id].resident(layer);
                if let Some(page) = next(self, duplicate) {
                    let node = &mut self.arena[id];
                    node.slots[place as usize].set_page(layer, page);
                    node.resident[layer as usize] = place + 1;
                }
            }
            if !self.arena[id].pinned(layer) {
                self.recency[layer as usize].renew(&mut self.arena, id);
            }
            rest = &rest[common as usize..];
            let more = !rest.is_empty();
            at = if more && common < self.arena[id].len() {
                self.split(id, common)
            } else {
                id
            };
        }
        self.recency[layer as usize].touch(&mut self.arena, at);
    }

    /// A new node for keys that no node has.
    fn grow(
        &mut self,
        parent: NodeId,
        layer: Layer,
        keys: &[PageKey],
        next: &mut impl FnMut(&mut Self, bool) -> Option<u32>,
    ) -> NodeId {
        let mut slots = Vec::with_capacity(keys.len());
        for key in keys {
            let mut slot = Slot::new(*key);
            if let Some(page) = next(self, false) {
                slot.set_page(layer, page);
            }
            slots.push(slot);
        }
        let mut resident = [0; 2];
        resident[layer as usize] = crate::plan::pool::count(slots.len());
        self.add_node(parent, slots, resident)
    }

    /// Cuts an edge after `upper` pages. The lower half keeps the id, so every reference to the node still means the
    /// same end. The upper half is new and has the same pin counts, since every pin below goes through it. Returns the
    /// upper half.
    pub(super) fn split(&mut self, id: NodeId, upper: u32) -> NodeId {
        self.unlist_in_table(id);
        let node = &mut self.arena[id];
        let lower = node.slots.split_off(upper as usize);
        let mut slots = std::mem::replace(&mut node.slots, lower);
        slots.shrink_to_fit();
        let whole = node.resident;
        let (parent, pins) = (node.parent, node.pins);
        node.resident = whole.map(|resident| resident.saturating_sub(upper));
        self.list_in_table(id);
        let above = self.add_node(parent, slots, whole.map(|resident| resident.min(upper)));
        // The upper half has replaced the lower one below their parent.
        self.arena[parent].remove_child();
        self.arena[above].add_child();
        self.arena[id].parent = above;
        self.arena[above].pins = pins;
        for layer in Layer::ALL {
            let resident = |index: &Self, id: NodeId| index.arena[id].resident(layer) > 0;
            if self.arena[id].pinned(layer) || !resident(self, above) {
                continue;
            }
            let recency = &mut self.recency[layer as usize];
            recency.insert_after(&mut self.arena, above, id);
            if !resident(self, id) {
                self.recency[layer as usize].remove(&mut self.arena, id);
            }
        }
        self.splits += 1;
        above
    }
}
