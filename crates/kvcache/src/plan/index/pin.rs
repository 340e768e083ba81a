//! Pins: they hold pages in the index.

use super::node::{Layer, Life, NodeId, ROOT, Slot};
use super::{RadixIndex, common};
use crate::plan::key::PageKey;

/// Holds the pages from the root down to one node, in one layer, until it is released. Cannot be copied; releasing
/// consumes it.
#[derive(Debug)]
#[must_use = "a pin that is dropped holds its pages for ever: release it"]
pub(crate) struct Pin {
    pub(crate) node: NodeId,
    pub(crate) layer: Layer,
    /// How many pages it holds. Stored here, so that an insert below the pin knows the absolute index.
    pub(crate) depth: u32,
    pub(crate) epoch: u64,
}

impl Pin {
    #[cfg(feature = "testing")]
    pub(crate) fn copy(&self) -> Self {
        Self { ..*self }
    }
}

impl RadixIndex {
    /// Pins the first `depth` pages of a prompt in a layer, which must have them. The edge is split where the pin ends.
    /// Counts as a use.
    pub(crate) fn pin(&mut self, layer: Layer, keys: &[PageKey], depth: u32) -> Option<Pin> {
        let keys = keys.get(..depth as usize)?;
        let held = self.find(keys);
        let resident = match layer {
            Layer::Host => held.host,
            Layer::Device => held.device,
        };
        if resident < depth {
            return None;
        }
        let (node, _) = self.descend(ROOT, keys);
        Some(self.pin_at(layer, node, depth))
    }

    /// Pins the pages that were just published below another pin, in the same layer. If the index was cleared since
    /// that pin was made, the new pin holds the same pages as that one.
    pub(crate) fn pin_below(&mut self, pin: &Pin, keys: &[PageKey]) -> Pin {
        let keys = if pin.epoch == self.epoch { keys } else { &[] };
        let (node, more) = self.descend(pin.node, keys);
        let epoch = pin.epoch;
        Pin {
            epoch,
            ..self.pin_at(pin.layer, node, pin.depth + more)
        }
    }

    fn pin_at(&mut self, layer: Layer, node: NodeId, depth: u32) -> Pin {
        self.each_up(node, |index, id| {
            let pins = &mut index.arena[id].pins[layer as usize];
            *pins += 1;
            if *pins == 1 {
                index.recency[layer as usize].remove(&mut index.arena, id);
            }
        });
        self.pins += 1;
        let epoch = self.epoch;
        Pin {
            node,
            layer,
            depth,
            epoch,
        }
    }

    /// Releases a pin. Counts as a use. Pages that were cleared in the meantime are freed now.
    pub(crate) fn release(&mut self, pin: Pin) {
        let layer = pin.layer;
        self.pins -= 1;
        self.each_up(pin.node, |index, id| {
            let node = &mut index.arena[id];
            let pins = &mut node.pins[layer as usize];
            *pins = pins.saturating_sub(1);
            if *pins > 0 {
                return;
            }
            match node.life {
                Life::Condemned => index.drop_layer(id, layer),
                _ => index.recency[layer as usize].renew(&mut index.arena, id),
            }
        });
        self.join_up(pin.node);
    }

    /// Visits the nodes from `id` up to the root, excluding the root. The node itself may vanish in the step.
    fn each_up(&mut self, mut id: NodeId, mut step: impl FnMut(&mut Self, NodeId)) {
        while id != ROOT {
            let parent = self.arena[id].parent;
            step(self, id);
            id = parent;
        }
    }

    /// The node at the end of these keys, as far as they exist below `from`, and how far that is. Splits the edge in
    /// which they end.
    pub(super) fn descend(&mut self, from: NodeId, keys: &[PageKey]) -> (NodeId, u32) {
        let (mut at, mut rest) = (from, keys);
        while let Some(id) = rest.first().and_then(|first| self.child(first)) {
            let common = common(&self.arena[id], rest);
            at = if common < self.arena[id].len() {
                self.split(id, common)
            } else {
                id
            };
            rest = &rest[common as usize..];
        }
        (at, crate::plan::pool::count(keys.len() - rest.len()))
    }

    /// The pages that a pin holds, from the absolute index `from` on, in order.
    pub(crate) fn slots(&self, pin: &Pin, from: u32) -> Vec<Slot> {
        let mut wanted = pin.depth.saturating_sub(from) as usize;
        let mut slots = Vec::with_capacity(wanted);
        let mut id = pin.node;
        while id != ROOT && wanted > 0 {
            let node = &self.arena[id];
            let some = wanted.min(node.slots.len());
            slots.extend(node.slots[node.slots.len() - some..].iter().rev());
            wanted -= some;
            id = node.parent;
        }
        slots.reverse();
        slots
    }

    /// Visits the slots that a pin holds, from the last one to the absolute index `from`.
    pub(crate) fn each_slot(&mut self, pin: &Pin, from: u32, mut visit: impl FnMut(u32, &mut Slot)) {
        let (mut end, mut id) = (pin.depth, pin.node);
        while id != ROOT && end > from {
            let node = &mut self.arena[id];
            for slot in node.slots.iter_mut().rev() {
                if end == from {
                    return;
                }
                end -= 1;
                visit(end, slot);
            }
            id = node.parent;
        }
    }
}
