//! The invariants of the index, each as one pass over all of it. For tests and for debugging.

use std::collections::HashSet;

use super::RadixIndex;
use super::node::{Layer, Life, ROOT};

type Finding = Result<(), String>;

fn ensure(holds: bool, says: impl FnOnce() -> String) -> Finding {
    if holds { Ok(()) } else { Err(says()) }
}

impl RadixIndex {
    /// Every live node is found by its first key, has a live parent, and no slot without a page.
    pub(crate) fn every_node_knows_its_key(&self) -> Finding {
        let mut live = 0;
        for (id, node) in self.each_node().filter(|(_, node)| node.life == Life::Live) {
            live += 1;
            ensure(self.is_found(id), || format!("node {id} is not found by its first key"))?;
            let parent = self.node(node.parent);
            ensure(parent.life == Life::Live, || format!("the parent of node {id} is gone"))?;
            let longest = node.resident.iter().max().copied().unwrap_or(0);
            ensure(longest == node.len() && longest > 0, || {
                format!("node {id} has {} slots, but {:?} pages", node.len(), node.resident)
            })?;
        }
        ensure(self.table_len() == live, || {
            format!("the table has {} entries for {live} nodes", self.table_len())
        })
    }

    /// Every node has the right count of its children, unless its count is saturated.
    pub(crate) fn children_are_counted(&self) -> Finding {
        let mut children = std::collections::HashMap::new();
        for (_, node) in self.each_node() {
            *children.entry(node.parent).or_insert(0u16) += 1;
        }
        for (id, node) in self.each_node() {
            let there = children.get(&id).copied().unwrap_or(0);
            ensure(node.children == there || node.children == u16::MAX, || {
                format!("node {id} counts {} children, but has {there}", node.children)
            })?;
        }
        Ok(())
    }

    /// Below a node that is not full in a layer, nothing is in that layer.
    pub(crate) fn residency_is_closed(&self) -> Finding {
        for (id, node) in self.each_node().filter(|(_, node)| node.life == Life::Live) {
            let parent = self.node(node.parent);
            for layer in Layer::ALL {
                let open = node.resident(layer) > 0 && parent.resident(layer) < parent.len();
                ensure(!open, || {
                    format!("node {id} has {layer:?} pages, but node {} lacks some", node.parent)
                })?;
            }
        }
        Ok(())
    }

    /// No key is in the tree twice.
    pub(crate) fn every_key_is_there_once(&self) -> Finding {
        let mut seen = HashSet::new();
        for (id, node) in self.each_node().filter(|(_, node)| node.life == Life::Live) {
            for slot in &node.slots {
                ensure(seen.insert(slot.key), || {
                    format!("key {:?} of node {id} is there twice", slot.key)
                })?;
            }
        }
        Ok(())
    }

    /// A pinned node is full in its layer and pinned all the way up. The lists contain exactly the nodes that are
    /// resident and not pinned, and a parent is newer than its children.
    pub(crate) fn pins_and_lists_agree(&self) -> Finding {
        for layer in Layer::ALL {
            let mut listed = HashSet::new();
            for id in self.evictable(layer) {
                let parent = self.node(id).parent;
                ensure(!listed.contains(&parent), || {
                    format!("{layer:?}: node {parent} is older than its child {id}")
                })?;
                ensure(listed.insert(id), || format!("{layer:?}: node {id} is listed twice"))?;
            }
            for (id, node) in self.each_node() {
                let pinned = node.pinned(layer);
                let parent = self.node(node.parent);
                ensure(!pinned || node.resident(layer) == node.len(), || {
                    format!("{layer:?}: node {id} is pinned, but not full")
                })?;
                ensure(!pinned || node.parent == ROOT || parent.pinned(layer), || {
                    format!("{layer:?}: node {id} is pinned, but not its parent")
                })?;
                let wanted = node.life == Life::Live && node.resident(layer) > 0 && !pinned;
                ensure(wanted == listed.contains(&id), || {
                    format!(
                        "{layer:?}: node {id} should {}be listed",
                        if wanted { "" } else { "not " }
                    )
                })?;
            }
        }
        Ok(())
    }

    /// Every page that the index has in a layer.
    #[cfg(test)]
    pub(crate) fn pages(&self, layer: Layer) -> impl Iterator<Item = u32> {
        self.each_node().flat_map(move |(_, node)| {
            let resident = node.slots.iter().take(node.resident(layer) as usize);
            resident.map(move |slot| slot.page(layer))
        })
    }
}
