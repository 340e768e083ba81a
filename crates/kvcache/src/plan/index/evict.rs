//! Eviction, and clearing the index.

use super::RadixIndex;
use super::node::{Layer, Life, NONE, NodeId, ROOT};
use crate::plan::operation::{DevicePage, HostPage};
use crate::plan::pool::OwnedPages;

impl RadixIndex {
    /// Takes host pages, evicting the least recently used ones. Returns all of them, or `None`; pages were evicted in
    /// vain only if evicting everything possible was not enough.
    pub(crate) fn take_host(&mut self, wanted: u32) -> Option<OwnedPages<HostPage>> {
        self.make_room(Layer::Host, wanted);
        self.host.take(wanted)
    }

    /// Takes as many host pages as are available, up to `wanted`.
    pub(crate) fn take_host_up_to(&mut self, wanted: u32) -> OwnedPages<HostPage> {
        self.make_room(Layer::Host, wanted);
        let some = wanted.min(self.host.free_count());
        self.host.take(some).unwrap_or_else(|| self.host.none())
    }

    /// Takes device pages, like [`RadixIndex::take_host`].
    pub(crate) fn take_device(&mut self, wanted: u32) -> Option<OwnedPages<DevicePage>> {
        self.make_room(Layer::Device, wanted);
        self.device.take(wanted)
    }

    fn free_count(&self, layer: Layer) -> u32 {
        match layer {
            Layer::Host => self.host.free_count(),
            Layer::Device => self.device.free_count(),
        }
    }

    fn make_room(&mut self, layer: Layer, wanted: u32) {
        while self.free_count(layer) < wanted {
            let oldest = self.recency[layer as usize].oldest;
            if oldest == NONE {
                return;
            }
            let missing = wanted - self.free_count(layer);
            self.drop_tail(oldest, layer, missing);
        }
    }

    /// Evicts up to `most` pages from the end of a node that has no child in this layer.
    fn drop_tail(&mut self, id: NodeId, layer: Layer, most: u32) {
        let resident = self.arena[id].resident(layer);
        let keep = resident.saturating_sub(most);
        for place in (keep..resident).rev() {
            let slot = &mut self.arena[id].slots[place as usize];
            let page = slot.page(layer);
            match layer {
                Layer::Host => {
                    // This also resets the L3 flags: they belonged to the page.
                    slot.set_page(layer, super::node::MOST_PAGES);
                    self.host.unpublish(HostPage(page));
                }
                Layer::Device => {
                    slot.set_page(layer, NONE);
                    self.device.unpublish(DevicePage(page));
                }
            }
            self.evicted += 1;
        }
        let node = &mut self.arena[id];
        node.resident[layer as usize] = keep;
        if keep == 0 {
            self.recency[layer as usize].remove(&mut self.arena, id);
        }
        let node = &mut self.arena[id];
        let longest = node.resident[0].max(node.resident[1]) as usize;
        if longest > 0 {
            node.slots.truncate(longest);
            if node.slots.capacity() >= 2 * longest {
                node.slots.shrink_to_fit();
            }
            return;
        }
        if node.life == Life::Live {
            self.unlist_in_table(id);
        }
        self.remove_node(id);
    }

    /// Frees all pages that a condemned node has in a layer.
    pub(super) fn drop_layer(&mut self, id: NodeId, layer: Layer) {
        if self.arena[id].resident(layer) > 0 {
            self.drop_tail(id, layer, u32::MAX);
        }
    }

    /// Clears the index. Pinned pages cannot be found any more, and are freed with their last pin.
    pub(crate) fn clear(&mut self) {
        self.epoch += 1;
        self.table.clear();
        for id in self.arena.ids() {
            if id == ROOT || self.arena[id].life == Life::Vacant {
                continue;
            }
            self.arena[id].life = Life::Condemned;
            for layer in Layer::ALL {
                self.recency[layer as usize].remove(&mut self.arena, id);
                if self.arena[id].life == Life::Condemned && !self.arena[id].pinned(layer) {
                    self.drop_layer(id, layer);
                }
            }
        }
    }
}
