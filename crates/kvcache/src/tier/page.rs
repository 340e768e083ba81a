//! The arguments and results of a page store: plain values, page by page.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tensorhold_core::{Error, ObjectKey};
use tensorhold_engine::{Pin, PutOptions, Span};
use tensorhold_prefetch::PrefetchConfig;

use super::footer::{FOOTER_BYTES, PageDefect, length_of};
use super::inflight::Settling;
use super::seal::PageSeal;

/// One page: its name in the engine, and the registered memory that its bytes come from or go to, in order.
#[derive(Clone, Debug)]
pub struct Page {
    /// The name. It covers everything that the bytes depend on: equal names mean equal bytes.
    pub key: ObjectKey,
    /// One or several pieces of memory: the whole page in one, keys and values apart, or a slice for each layer.
    pub parts: Vec<Span>,
}

impl Page {
    /// A page.
    pub fn new(key: ObjectKey, parts: Vec<Span>) -> Self {
        Self { key, parts }
    }

    /// Its length, without the footer that the store adds.
    pub fn bytes(&self) -> u64 {
        length_of(&self.parts)
    }

    /// The length of its object in the engine.
    pub fn stored_bytes(&self) -> u64 {
        self.bytes() + FOOTER_BYTES as u64
    }
}

/// What is known about a page without reading it. A hint: a get may miss all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// There is none.
    Absent,
    /// There is an object as long as a page of this many bytes.
    Present {
        /// The length of the page.
        bytes: u64,
        /// Whether a copy is in DRAM; otherwise it is on SSD only.
        in_dram: bool,
    },
}

impl Hint {
    /// Whether there is a page, of `bytes` bytes if that is given.
    pub fn is_present(&self, bytes: Option<u64>) -> bool {
        match self {
            Self::Absent => false,
            Self::Present { bytes: found, .. } => bytes.is_none_or(|bytes| bytes == *found),
        }
    }
}

/// The outcome of one page of a put.
#[derive(Clone, Debug)]
pub enum PagePut {
    /// A page is under this key: this one, or one that was there before.
    Stored,
    /// The engine had no room; nothing was written.
    Full,
    /// The put failed; the key must not count as persisted (KV23).
    Failed(Error),
    /// The put was not begun: the call was stopped before.
    Skipped,
}

impl PagePut {
    /// Whether the page is under its key.
    pub fn is_stored(&self) -> bool {
        matches!(self, Self::Stored)
    }
}

/// The outcome of one page of a get. Only [`PageGot::Loaded`] says anything about the memory: in all other cases its
/// content is unspecified.
#[derive(Clone, Debug)]
pub enum PageGot {
    /// The memory holds the page: its length and its checksum, bound to its key, are exact (KV16).
    Loaded,
    /// There is no such page.
    Miss,
    /// The object has another length; refused.
    WrongLength {
        /// The length of the object.
        stored: u64,
        /// The length that it should have.
        expected: u64,
    },
    /// The bytes are not the page's; refused.
    Corrupt(PageDefect),
    /// The get failed.
    Failed(Error),
    /// The get was not begun: the call was stopped before, or an earlier page was not loaded and only a prefix is
    /// wanted.
    Skipped,
}

impl PageGot {
    /// Whether the memory holds the page.
    pub fn is_loaded(&self) -> bool {
        matches!(self, Self::Loaded)
    }
}

/// Tells a call from outside to begin no further work. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Engine calls in flight go on; nothing more is begun.
    pub fn stop(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether [`Stop::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The options of a call of a page store.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// How long it may take.
    pub within: Duration,
    /// For a get: whether only the pages before the first one that is not loaded are of use. Those after it may then be
    /// [`PageGot::Skipped`].
    pub prefix_only: bool,
    /// Ends the call early.
    pub stop: Stop,
}

impl CallOptions {
    /// All pages, within this time.
    pub fn within(within: Duration) -> Self {
        Self {
            within,
            prefix_only: false,
            stop: Stop::default(),
        }
    }
}

/// The answer to a put.
#[derive(Clone, Debug)]
pub struct PutReport {
    /// One for each page, in order.
    pub pages: Vec<PagePut>,
    /// Whether the engine still reads some of the memory. Until it is settled, bytes written to that memory may end up
    /// in the engine; the checksum then refuses the page when it is read.
    pub settling: Settling,
}

impl PutReport {
    /// How many pages from the start are stored.
    pub fn prefix(&self) -> usize {
        self.pages.iter().take_while(|page| page.is_stored()).count()
    }
}

/// The answer to a get.
#[derive(Clone, Debug)]
#[must_use = "until it is settled the engine may still write to the memory of pages that were not loaded"]
pub struct GetReport {
    /// One for each page, in order.
    pub pages: Vec<PageGot>,
    /// Whether the engine may still write to some of the memory, because a call ran out of time. **Until it is settled,
    /// the memory of every page that is not [`PageGot::Loaded`] must not be used for anything else.**
    pub settling: Settling,
}

impl GetReport {
    /// How many pages from the start are loaded; none if the first one is missing, even if later ones were loaded.
    pub fn prefix(&self) -> usize {
        self.pages.iter().take_while(|page| page.is_loaded()).count()
    }
}

/// The settings of a page store. All have a default.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreConfig {
    /// How pages are kept. Default: one copy, and the engine may evict it ([`Pin::Evictable`]): a page is expendable.
    pub put: PutOptions,
    /// The most bytes of one engine call; the module `pipeline` explains the effect. Default: 64 MiB.
    pub call_bytes: u64,
    /// The most pages of one engine call. Default: 64.
    pub call_pages: usize,
    /// The most pieces of memory in one engine call, if pages do not pass through frames. Default: 512: Mooncake's TCP
    /// transport fails a transfer when some 2,000 are waiting for the same holder, and several calls may be in flight.
    pub call_parts: usize,
    /// The most engine calls of one put or get at once. Default: 1.
    pub streams: usize,
    /// The most threads of one put or get, the caller's included. Default: 2.
    pub lanes: usize,
    /// How many pages can be in flight at once, including those of calls that hang. Default: 8,192 (512 KiB of memory).
    pub footer_slots: usize,
    /// How many frames pages pass through on their way. With none the engine moves pages directly from and to their
    /// memory. A frame holds one engine call (`call_bytes`); the module `staging` explains the benefit. Default: 0.
    pub staging_frames: usize,
    /// With frames: a put whose pages have no part shorter than this goes directly from the pages' memory all the same,
    /// if that memory is registered with the engine. For long parts the copy costs more than the transfers that it
    /// saves. Memory that the engine only reads can be reused at any time: the checksum refuses an object that the
    /// engine read too late. Default: none, every page passes through a frame.
    pub direct_put_bytes: Option<usize>,
    /// How many wrong pages are remembered until they are removed. Default: 4,096.
    pub bad_pages: usize,
    /// How often a put of a page that finds no room is retried, within the call's time: the engine evicts in the
    /// background. Default: 3.
    pub full_retries: u32,
    /// The pause before the first retry; each later one is twice as long. Default: 10 ms.
    pub full_pause: Duration,
    /// How long the removal of a wrong page may take. Default: 1 s.
    pub remove_within: Duration,
    /// The seal of a tier whose pages are encrypted and authenticated, under names that reveal nothing. It needs
    /// frames, and no page bypasses them. The same for all members. Default: none.
    pub seal: Option<PageSeal>,
    /// Whether the queries of a [`super::Tier`] prefetch pages that are on SSD only, so that the get that follows finds
    /// them in memory. Default: yes.
    pub prefetch_on_query: bool,
    /// How pages are prefetched. Default: a buffer of 128 MiB, registered when the first page is read ahead, and gets
    /// that wait up to 50 ms for pages that are on their way.
    pub prefetch: PrefetchConfig,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            put: PutOptions {
                pin: Pin::Evictable,
                ..PutOptions::default()
            },
            call_bytes: 64 << 20,
            call_pages: 64,
            call_parts: 512,
            streams: 1,
            lanes: 2,
            footer_slots: 8192,
            staging_frames: 0,
            direct_put_bytes: None,
            bad_pages: 4096,
            full_retries: 3,
            full_pause: Duration::from_millis(10),
            remove_within: Duration::from_secs(1),
            seal: None,
            prefetch_on_query: true,
            prefetch: PrefetchConfig {
                buffer_bytes: 128 << 20,
                wait_for_prefetch: Duration::from_millis(50),
                ..PrefetchConfig::default()
            },
        }
    }
}
