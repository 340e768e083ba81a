//! Page pools: every page is free, owned by a request or an operation, or in the index (KV1).
//!
//! ```text
//!            take                    publish
//!   free ───────────▶ OwnedPages ───────────▶ in the index
//!    ▲                    │                        │
//!    └──── give_back ─────┴─────── unpublish ──────┘
//! ```
//! [`OwnedPages`] cannot be copied, only split and moved, so a page cannot be freed twice or have two owners. An
//! `OwnedPages` that is dropped with pages in it has lost them: the pool counts that, and KV1 is broken from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A page of some pool.
pub(crate) trait Page: Copy + Ord + std::fmt::Debug {
    fn new(number: u32) -> Self;
    fn number(self) -> u32;
}

impl Page for super::HostPage {
    fn new(number: u32) -> Self {
        Self(number)
    }
    fn number(self) -> u32 {
        self.0
    }
}

impl Page for super::DevicePage {
    fn new(number: u32) -> Self {
        Self(number)
    }
    fn number(self) -> u32 {
        self.0
    }
}

/// Pages with one owner, in order.
#[derive(Debug)]
#[must_use = "pages that are dropped are lost: give them back"]
pub(crate) struct OwnedPages<P> {
    pages: Vec<P>,
    lost: Arc<AtomicU32>,
}

impl<P: Page> OwnedPages<P> {
    pub(crate) fn as_slice(&self) -> &[P] {
        &self.pages
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Takes the first `count` pages (all, if there are fewer).
    pub(crate) fn split_front(&mut self, count: usize) -> Self {
        let rest = self.pages.split_off(count.min(self.pages.len()));
        Self {
            pages: std::mem::replace(&mut self.pages, rest),
            lost: Arc::clone(&self.lost),
        }
    }

    /// Appends pages of the same pool.
    pub(crate) fn append(&mut self, mut more: Self) {
        self.pages.append(&mut more.pages);
    }

    pub(super) fn reverse(&mut self) {
        self.pages.reverse();
    }

    /// Takes the last page of another owner.
    pub(super) fn take_last_of(&mut self, other: &mut Self) {
        self.pages.extend(other.pages.pop());
    }

    /// The same pages with a second owner, for a copy of the whole planner.
    #[cfg(feature = "testing")]
    pub(crate) fn copy_for(&self, pool: &Pool<P>) -> Self {
        Self {
            pages: self.pages.clone(),
            lost: Arc::clone(&pool.lost),
        }
    }
}

impl<P> Drop for OwnedPages<P> {
    fn drop(&mut self) {
        let lost = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
        if lost > 0 {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
    }
}

/// All pages of one kind of memory.
#[derive(Debug)]
pub(crate) struct Pool<P> {
    total: u32,
    /// A stack: the page freed last is taken first, on every rank alike.
    free: Vec<P>,
    owned: u32,
    published: u32,
    lost: Arc<AtomicU32>,
}

impl<P: Page> Pool<P> {
    pub(crate) fn new(total: u32) -> Self {
        Self {
            total,
            free: (0..total).rev().map(P::new).collect(),
            owned: 0,
            published: 0,
            lost: Arc::default(),
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    pub(crate) fn free(&self) -> &[P] {
        &self.free
    }

    pub(crate) fn free_count(&self) -> u32 {
        count(self.free.len())
    }

    pub(crate) fn owned_count(&self) -> u32 {
        self.owned
    }

    pub(crate) fn published_count(&self) -> u32 {
        self.published
    }

    pub(crate) fn lost_count(&self) -> u32 {
        self.lost.load(Ordering::Relaxed)
    }

    /// No pages.
    pub(crate) fn none(&self) -> OwnedPages<P> {
        OwnedPages {
            pages: Vec::new(),
            lost: Arc::clone(&self.lost),
        }
    }

    /// Takes exactly `wanted` pages, or none.
    pub(crate) fn take(&mut self, wanted: u32) -> Option<OwnedPages<P>> {
        let rest = self.free.len().checked_sub(wanted as usize)?;
        let mut pages = self.free.split_off(rest);
        pages.reverse();
        self.owned += wanted;
        Some(OwnedPages {
            pages,
            lost: Arc::clone(&self.lost),
        })
    }

    pub(crate) fn give_back(&mut self, mut owned: OwnedPages<P>) {
        self.owned = self.owned.saturating_sub(count(owned.pages.len()));
        self.free.extend(owned.pages.drain(..).rev());
    }

    /// Hands the last page over to the index.
    pub(super) fn publish_last(&mut self, owned: &mut OwnedPages<P>) -> Option<P> {
        let page = owned.pages.pop()?;
        self.owned = self.owned.saturating_sub(1);
        self.published += 1;
        Some(page)
    }

    /// Takes back a page that the index releases.
    pub(super) fn unpublish(&mut self, page: P) {
        self.published = self.published.saturating_sub(1);
        self.free.push(page);
    }

    #[cfg(feature = "testing")]
    pub(crate) fn copy(&self) -> Self {
        Self {
            free: self.free.clone(),
            lost: Arc::new(AtomicU32::new(self.lost_count())),
            ..*self
        }
    }
}

/// A number of pages as `u32`. Pages are numbered by `u32`, so it fits.
pub(crate) fn count(pages: usize) -> u32 {
    u32::try_from(pages).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::HostPage;

    #[test]
    fn pages_go_round_and_add_up() {
        let mut pool = Pool::<HostPage>::new(4);
        assert!(pool.take(5).is_none());
        let mut owned = pool.take(3).expect("it is there");
        assert_eq!(owned.as_slice(), [HostPage(0), HostPage(1), HostPage(2)]);
        let mut first = owned.split_front(1);
        let published = pool.publish_last(&mut first);
        assert_eq!(
            (pool.free_count(), pool.owned_count(), pool.published_count()),
            (1, 2, 1)
        );
        pool.give_back(owned);
        if let Some(page) = published {
            pool.unpublish(page);
        }
        assert_eq!(
            (pool.free_count(), pool.owned_count(), pool.published_count()),
            (4, 0, 0)
        );
        assert_eq!(pool.lost_count(), 0);
    }

    #[test]
    fn a_page_that_is_dropped_is_counted() {
        let mut pool = Pool::<HostPage>::new(4);
        drop(pool.take(2));
        assert_eq!(pool.lost_count(), 2);
        let none = pool.none();
        drop(none);
        assert_eq!(pool.lost_count(), 2);
    }
}
