//! The nodes of the radix index, and where they are kept.

use std::ops::{Index, IndexMut};

use crate::plan::key::PageKey;

/// The id of a node. The root always exists, has no pages, and is never found, evicted or listed.
pub(crate) type NodeId = u32;
/// The root.
pub(crate) const ROOT: NodeId = 0;
/// No node, no page.
pub(crate) const NONE: u32 = u32::MAX;

const IN_L3: u32 = 1 << 31;
const ON_ITS_WAY: u32 = 1 << 30;
const HOST_PAGE: u32 = ON_ITS_WAY - 1;
/// The most pages in a pool: two bits of a host page's number hold the L3 flags.
pub(crate) const MOST_PAGES: u32 = HOST_PAGE;

/// One page of an edge: its key, and its page in each layer. The node's lengths tell which layers have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) key: PageKey,
    host: u32,
    device: u32,
}

impl Slot {
    pub(crate) fn new(key: PageKey) -> Self {
        Self {
            key,
            host: HOST_PAGE,
            device: NONE,
        }
    }

    pub(crate) fn page(&self, layer: Layer) -> u32 {
        match layer {
            Layer::Host => self.host & HOST_PAGE,
            Layer::Device => self.device,
        }
    }

    /// Sets the page of a layer. This resets the L3 flags, which belonged to the previous page.
    pub(crate) fn set_page(&mut self, layer: Layer, page: u32) {
        match layer {
            Layer::Host => self.host = page,
            Layer::Device => self.device = page,
        }
    }

    /// Whether L3 has acknowledged it. L3 may have evicted it since.
    pub(crate) fn in_l3(&self) -> bool {
        self.host & IN_L3 != 0
    }

    /// Whether a backup of it is in flight.
    pub(crate) fn on_its_way(&self) -> bool {
        self.host & ON_ITS_WAY != 0
    }

    pub(crate) fn set_in_l3(&mut self, yes: bool) {
        self.host = if yes { self.host | IN_L3 } else { self.host & !IN_L3 };
    }

    pub(crate) fn set_on_its_way(&mut self, yes: bool) {
        self.host = if yes {
            self.host | ON_ITS_WAY
        } else {
            self.host & !ON_ITS_WAY
        };
    }
}

/// The layers in which a page can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Layer {
    Host = 0,
    Device = 1,
}

impl Layer {
    pub(crate) const ALL: [Layer; 2] = [Layer::Host, Layer::Device];
}

/// Neighbours in a list ordered by recency of use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    pub(crate) older: NodeId,
    pub(crate) newer: NodeId,
}

pub(crate) const UNLINKED: Links = Links {
    older: NONE,
    newer: NONE,
};

/// An edge of the tree and the node at its end. 64 bytes, and 40 for each page.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) slots: Vec<Slot>,
    pub(crate) parent: NodeId,
    /// How many of the slots, from the start, each layer has. The larger number is the number of slots.
    pub(crate) resident: [u32; 2],
    /// How many pins, of this node or of one below it, hold each layer.
    pub(crate) pins: [u32; 2],
    pub(crate) links: [Links; 2],
    /// How many nodes have this one as their parent. Saturates at the largest number.
    pub(crate) children: u16,
    pub(crate) life: Life,
}

/// Whether a node is part of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Not in use.
    Vacant,
    /// Can be found.
    Live,
    /// Cleared while it was pinned: cannot be found any more, and is removed with its last pin.
    Condemned,
}

impl Node {
    fn vacant() -> Self {
        Self {
            slots: Vec::new(),
            parent: NONE,
            resident: [0; 2],
            pins: [0; 2],
            links: [UNLINKED; 2],
            children: 0,
            life: Life::Vacant,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        crate::plan::pool::count(self.slots.len())
    }

    pub(crate) fn add_child(&mut self) {
        self.children = self.children.saturating_add(1);
    }

    pub(crate) fn remove_child(&mut self) {
        if self.children != u16::MAX {
            self.children = self.children.saturating_sub(1);
        }
    }

    pub(crate) fn resident(&self, layer: Layer) -> u32 {
        self.resident[layer as usize]
    }

    pub(crate) fn pinned(&self, layer: Layer) -> bool {
        self.pins[layer as usize] > 0
    }
}

const CHUNK: usize = 1 << 10;

/// Nodes in chunks, so that growth neither copies nor doubles anything.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    chunks: Vec<Box<[Node]>>,
    free: Vec<NodeId>,
    used: u32,
}

impl Arena {
    pub(crate) fn new() -> Self {
        let mut arena = Self {
            chunks: Vec::new(),
            free: Vec::new(),
            used: 0,
        };
        let root = arena.add();
        arena[root].life = Life::Live;
        arena
    }

    /// A vacant node.
    pub(crate) fn add(&mut self) -> NodeId {
        if let Some(id) = self.free.pop() {
            return id;
        }
        let id = self.used;
        self.used += 1;
        if id as usize / CHUNK == self.chunks.len() {
            self.chunks.push((0..CHUNK).map(|_| Node::vacant()).collect());
        }
        id
    }

    pub(crate) fn remove(&mut self, id: NodeId) {
        self[id] = Node::vacant();
        self.free.push(id);
    }

    /// Every node that was ever in use, the root included.
    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        0..self.used
    }
}

impl Index<NodeId> for Arena {
    type Output = Node;

    fn index(&self, id: NodeId) -> &Node {
        &self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }
}

impl IndexMut<NodeId> for Arena {
    fn index_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_node_and_a_page_are_as_large_as_the_documentation_says() {
        assert_eq!((size_of::<super::Node>(), size_of::<super::Slot>()), (64, 40));
    }
}
