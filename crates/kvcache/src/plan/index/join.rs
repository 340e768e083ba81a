//! Joining nodes that a pin had split, once no pin needs the cut any more.
//!
//! A node knows its parent, not its children, so a release joins upwards from where the pin ended. The cut at that very
//! position stays until a pin that ends below it is released: at most one cut remains for each position that was
//! released last.

use super::RadixIndex;
use super::node::{Layer, Life, NodeId, ROOT};

impl RadixIndex {
    /// Joins every pair on the way from a node up to the root that may be joined. The lower one of a pair keeps its id,
    /// as in a split: a reference to it means its end.
    pub(super) fn join_up(&mut self, mut lower: NodeId) {
        if lower == ROOT || self.arena[lower].life != Life::Live {
            return;
        }
        while self.arena[lower].parent != ROOT {
            let upper = self.arena[lower].parent;
            if self.may_join(upper, lower) {
                self.join(upper, lower);
            } else {
                lower = upper;
            }
        }
    }

    /// Equal pin counts mean that no pin ends between the two: every pin of the lower node goes through the upper one.
    fn may_join(&self, upper: NodeId, lower: NodeId) -> bool {
        let (above, below) = (&self.arena[upper], &self.arena[lower]);
        let live = above.life == Life::Live && below.life == Life::Live;
        live && above.children == 1 && above.pins == below.pins
    }

    fn join(&mut self, upper: NodeId, lower: NodeId) {
        self.unlist_in_table(upper);
        self.unlist_in_table(lower);
        for layer in Layer::ALL {
            // The upper node is the newer one, and newer than all nodes below the lower one: its position is right for
            // both.
            if self.arena[upper].resident(layer) > 0 && !self.arena[upper].pinned(layer) {
                let recency = &mut self.recency[layer as usize];
                recency.remove(&mut self.arena, lower);
                recency.insert_after(&mut self.arena, lower, upper);
                recency.remove(&mut self.arena, upper);
            }
        }
        let above = std::mem::take(&mut self.arena[upper].slots);
        let (parent, resident) = (self.arena[upper].parent, self.arena[upper].resident);
        let node = &mut self.arena[lower];
        let mut slots = Vec::with_capacity(above.len() + node.slots.len());
        slots.extend_from_slice(&above);
        slots.append(&mut node.slots);
        node.slots = slots;
        // Where the upper node is not full, the lower one has no pages.
        node.resident = [resident[0] + node.resident[0], resident[1] + node.resident[1]];
        node.parent = parent;
        self.arena.remove(upper);
        self.nodes -= 1;
        self.list_in_table(lower);
    }
}
