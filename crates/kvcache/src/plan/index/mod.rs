//! The radix index: which prefixes are in host and in device memory, and on which pages.
//!
//! # Shape
//! An edge is a run of pages: a key and, for each layer, a page. Keys are chained, so *an equal key at one position
//! means an equal prefix up to it*. That makes matching cheap: compare the keys at the end of the edge, and only where
//! they differ, search for the position by bisection. It also makes a key unique in the tree, so the children of all
//! nodes are found in **one** table, by the first key of their edge.
//!
//! # Invariants
//! - In each layer residency is closed under prefixes (KV13): a node records how many of its pages, from the start, a
//!   layer has. Below a node that is not full in a layer, no node has pages in that layer.
//! - A node has a page in at least one layer at every position, or the position is cut off. A node without pages does
//!   not exist.
//! - A [`Pin`] holds a prefix in one layer. It ends where a node ends (the edge is split for it), and every node from
//!   there up to the root counts it. Pinned nodes are in no list, and eviction considers only the lists.
//! - A release joins nodes that only a pin had split: a node with one child, and no pin that ends between the two.
//!   Without that, a prefix that many requests share would fall into ever more nodes, and a match would get slower with
//!   use.
//! - A split keeps the id for the *lower* half. A reference to a node means its end, and the end stays where it was.
//! - [`RadixIndex::clear`] drops all pages that are not pinned. Pinned pages cannot be found any more and are freed
//!   with their last pin.
//!
//! # Cost
//! A match reads one table entry and one or two keys per edge: its time depends on the number of edges on the path,
//! hardly on the size of the index. A page costs 40 bytes; a node costs 64 bytes and its table entry.

mod audit;
mod evict;
mod insert;
mod join;
pub(crate) mod node;
mod pin;
mod recency;
#[cfg(test)]
mod tests;

use hashbrown::HashTable;

use super::key::PageKey;
use super::operation::{DevicePage, HostPage};
use super::pool::{Pool, count};
use node::{Arena, Layer, Life, NodeId, ROOT};
pub(crate) use pin::Pin;
use recency::Recency;

/// How much of a prompt each layer has, in pages from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// In host memory.
    pub host: u32,
    /// In device memory.
    pub device: u32,
}

/// The index and the pools whose pages it publishes.
#[derive(Debug)]
pub(crate) struct RadixIndex {
    pub(crate) host: Pool<HostPage>,
    pub(crate) device: Pool<DevicePage>,
    arena: Arena,
    table: HashTable<NodeId>,
    recency: [Recency; 2],
    /// Grows with each clear. A pin of an earlier epoch can only be released.
    epoch: u64,
    pins: u32,
    splits: u64,
    evicted: u64,
    nodes: u32,
}

impl RadixIndex {
    /// An empty index. The table gets its final size at once: there are never more nodes than pages, and growing the
    /// table would stall every caller.
    pub(crate) fn new(host: Pool<HostPage>, device: Pool<DevicePage>) -> Self {
        let most = host.total() as usize + device.total() as usize;
        Self {
            host,
            device,
            arena: Arena::new(),
            table: HashTable::with_capacity(most),
            recency: Layer::ALL.map(Recency::new),
            epoch: 0,
            pins: 0,
            splits: 0,
            evicted: 0,
            nodes: 0,
        }
    }

    /// The node whose edge starts with this key.
    fn child(&self, key: &PageKey) -> Option<NodeId> {
        let arena = &self.arena;
        self.table
            .find(key.short(), |id| {
                arena[*id].slots.first().is_some_and(|slot| slot.key == *key)
            })
            .copied()
    }

    /// How much of a prompt each layer has. Changes nothing, not even the recency of use: only a pin counts as a use.
    pub(crate) fn find(&self, keys: &[PageKey]) -> Match {
        let mut found = Match::default();
        let mut rest = keys;
        while let Some(first) = rest.first() {
            let Some(id) = self.child(first) else { break };
            let node = &self.arena[id];
            let common = common(node, rest);
            found.host += common.min(node.resident(Layer::Host));
            found.device += common.min(node.resident(Layer::Device));
            if common < node.len() {
                break;
            }
            rest = &rest[common as usize..];
        }
        found
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.nodes
    }

    pub(crate) fn splits(&self) -> u64 {
        self.splits
    }

    pub(crate) fn evicted(&self) -> u64 {
        self.evicted
    }

    pub(crate) fn pins(&self) -> u32 {
        self.pins
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Every node but the root, for checks.
    pub(crate) fn each_node(&self) -> impl Iterator<Item = (NodeId, &node::Node)> {
        let ids = self.arena.ids().filter(|id| *id != ROOT);
        ids.map(|id| (id, &self.arena[id]))
            .filter(|(_, node)| node.life != Life::Vacant)
    }

    pub(crate) fn node(&self, id: NodeId) -> &node::Node {
        &self.arena[id]
    }

    /// Whether the table leads from the node's first key to the node.
    pub(crate) fn is_found(&self, id: NodeId) -> bool {
        self.arena[id]
            .slots
            .first()
            .is_some_and(|slot| self.child(&slot.key) == Some(id))
    }

    pub(crate) fn table_len(&self) -> usize {
        self.table.len()
    }

    /// The nodes that a layer could evict, the least recently used first.
    pub(crate) fn evictable(&self, layer: Layer) -> impl Iterator<Item = NodeId> {
        self.recency[layer as usize].iter(&self.arena)
    }

    fn add_node(&mut self, parent: NodeId, slots: Vec<node::Slot>, resident: [u32; 2]) -> NodeId {
        let id = self.arena.add();
        let node = &mut self.arena[id];
        node.slots = slots;
        node.parent = parent;
        node.resident = resident;
        node.life = Life::Live;
        self.arena[parent].add_child();
        self.nodes += 1;
        self.list_in_table(id);
        id
    }

    fn list_in_table(&mut self, id: NodeId) {
        let arena = &self.arena;
        let hash = |id: &NodeId| arena[*id].slots.first().map_or(0, |slot| slot.key.short());
        self.table.insert_unique(hash(&id), id, hash);
    }

    fn unlist_in_table(&mut self, id: NodeId) {
        let hash = self.arena[id].slots.first().map_or(0, |slot| slot.key.short());
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
    }

    /// Removes a node that has no page in any layer.
    fn remove_node(&mut self, id: NodeId) {
        for recency in &mut self.recency {
            recency.remove(&mut self.arena, id);
        }
        let parent = self.arena[id].parent;
        self.arena[parent].remove_child();
        self.arena.remove(id);
        self.nodes -= 1;
    }

    #[cfg(feature = "testing")]
    pub(crate) fn copy(&self) -> Self {
        Self {
            host: self.host.copy(),
            device: self.device.copy(),
            arena: self.arena.clone(),
            table: self.table.clone(),
            recency: self.recency.clone(),
            ..*self
        }
    }
}

/// How many pages of the edge, from its start, match the prompt. The first one is known to match.
fn common(node: &node::Node, keys: &[PageKey]) -> u32 {
    let most = node.slots.len().min(keys.len());
    let same = |at: usize| node.slots.get(at).map(|slot| &slot.key) == keys.get(at);
    if most == 0 || same(most - 1) {
        return count(most);
    }
    let (mut equal, mut other) = (0, most - 1);
    while equal + 1 < other {
        let middle = equal + (other - equal) / 2;
        if same(middle) {
            equal = middle;
        } else {
            other = middle;
        }
    }
    count(equal + 1)
}
