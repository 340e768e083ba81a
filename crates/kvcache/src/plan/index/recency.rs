//! The order of least recent use, without a clock.
//!
//! Each layer has a list of the nodes that it could evict: those with pages in it and without a pin. A use moves a
//! node, then its parent, then the parent's parent, to the newer end. So **a parent is always newer than its
//! children**, the oldest node of the list never has a child in that layer, and taking pages from its tail keeps
//! residency closed under prefixes (KV13). The order follows from the order of events alone: no clock, no address, no
//! tie to break (KV21).

use super::node::{Arena, Layer, NONE, NodeId, ROOT, UNLINKED};

/// The two ends of one layer's list.
#[derive(Clone, Debug)]
pub(crate) struct Recency {
    layer: Layer,
    pub(crate) oldest: NodeId,
    newest: NodeId,
}

impl Recency {
    pub(crate) fn new(layer: Layer) -> Self {
        Self {
            layer,
            oldest: NONE,
            newest: NONE,
        }
    }

    fn is_listed(&self, arena: &Arena, id: NodeId) -> bool {
        let links = arena[id].links[self.layer as usize];
        links.older != NONE || links.newer != NONE || self.oldest == id
    }

    /// Takes a node out of the list, if it is listed.
    pub(crate) fn remove(&mut self, arena: &mut Arena, id: NodeId) {
        if !self.is_listed(arena, id) {
            return;
        }
        let at = self.layer as usize;
        let links = std::mem::replace(&mut arena[id].links[at], UNLINKED);
        match links.older {
            NONE => self.oldest = links.newer,
            older => arena[older].links[at].newer = links.newer,
        }
        match links.newer {
            NONE => self.newest = links.older,
            newer => arena[newer].links[at].older = links.older,
        }
    }

    /// Makes a node the newest one.
    pub(crate) fn renew(&mut self, arena: &mut Arena, id: NodeId) {
        if self.newest == id {
            return;
        }
        self.remove(arena, id);
        let at = self.layer as usize;
        arena[id].links[at].older = self.newest;
        match self.newest {
            NONE => self.oldest = id,
            newest => arena[newest].links[at].newer = id,
        }
        self.newest = id;
    }

    /// Puts `id` right after (newer than) `older`, which is listed: the new parent of a split node takes its place in
    /// the list.
    pub(crate) fn insert_after(&mut self, arena: &mut Arena, id: NodeId, older: NodeId) {
        let at = self.layer as usize;
        let newer = arena[older].links[at].newer;
        arena[id].links[at].older = older;
        arena[id].links[at].newer = newer;
        arena[older].links[at].newer = id;
        match newer {
            NONE => self.newest = id,
            newer => arena[newer].links[at].older = id,
        }
    }

    /// Records a use of every node from the root down to `id`.
    pub(crate) fn touch(&mut self, arena: &mut Arena, mut id: NodeId) {
        while id != ROOT {
            // If a node is pinned, all nodes above it are pinned, too.
            if arena[id].pinned(self.layer) {
                return;
            }
            if arena[id].resident(self.layer) > 0 {
                self.renew(arena, id);
            }
            id = arena[id].parent;
        }
    }

    /// From the oldest to the newest.
    pub(crate) fn iter<'a>(&self, arena: &'a Arena) -> impl Iterator<Item = NodeId> + use<'a> {
        let at = self.layer as usize;
        let mut next = self.oldest;
        std::iter::from_fn(move || {
            let id = next;
            (id != NONE).then(|| {
                next = arena[id].links[at].newer;
                id
            })
        })
    }
}
