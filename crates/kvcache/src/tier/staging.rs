//! Frames: registered memory of the store's own that pages pass through, if the store is set up that way.
//!
//! A page in several parts, with its footer as yet another part, needs one transfer for each, and over TCP each
//! transfer costs both sides some tens of microseconds. The checksum reads every byte anyway. With frames a page is
//! copied during that pass into one contiguous object, followed by its footer, and needs one transfer. The price is the
//! copy. Which of the two is faster depends on transport and machine: measure it (`kv_bench`; over RDMA neither has
//! been measured).
//!
//! One effect of frames is certain: the engine never has the caller's memory. A call that runs out of time keeps a
//! frame, and the caller's pages are free at once. That matters for gets, whose memory the engine writes to. Puts of
//! pages with long parts may bypass the frames (`direct_put_bytes`): there the copy costs more than the transfers that
//! it saves.
//!
//! A frame holds the pages of one engine call. It is free again when the engine has let go of it. A call that finds no
//! free frame waits for one, within its deadline.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorhold_core::{Clock, Deadline, Result};
use tensorhold_engine::{Engine, EngineExt, Region, Span};

use super::footer::FOOTER_BYTES;

/// Pages begin at multiples of this in a frame.
const ALIGN: usize = 64;
/// Frames begin at multiples of this.
const FRAME_ALIGN: usize = 4096;

/// Registered frames. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Staging(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    region: Region,
    frame_bytes: usize,
    free: Mutex<Vec<usize>>,
    back: Condvar,
}

impl Staging {
    /// Registers `frames` frames, each for `bytes` bytes of up to `pages` pages.
    pub(super) fn new(
        engine: &(impl Engine + ?Sized),
        frames: usize,
        bytes: usize,
        pages: usize,
        within: Duration,
    ) -> Result<Self> {
        // Each page has a footer, and begins at an aligned offset.
        let extra = pages.saturating_mul(FOOTER_BYTES + ALIGN);
        let frame_bytes = bytes.saturating_add(extra).next_multiple_of(FRAME_ALIGN);
        let region = engine.allocate(frame_bytes.saturating_mul(frames), within)?;
        Ok(Self(Arc::new(Shared {
            region,
            frame_bytes,
            free: Mutex::new((0..frames).rev().collect()),
            back: Condvar::new(),
        })))
    }

    /// The positions of objects of these lengths in a frame, if they fit into one.
    pub(super) fn places(&self, lengths: impl Iterator<Item = u64>) -> Option<Vec<Range<usize>>> {
        let mut at = 0_usize;
        let mut places = Vec::new();
        for length in lengths {
            let end = at.checked_add(usize::try_from(length).ok()?)?;
            if end > self.0.frame_bytes {
                return None;
            }
            places.push(at..end);
            at = end.next_multiple_of(ALIGN);
        }
        Some(places)
    }

    /// Waits for a frame, but not beyond the deadline.
    pub(super) fn take(&self, clock: &dyn Clock, deadline: Deadline) -> Option<Frame> {
        let mut free = self.0.free.lock();
        loop {
            if let Some(number) = free.pop() {
                let staging = self.clone();
                return Some(Frame { staging, number });
            }
            let left = deadline.remaining(clock);
            if left.is_zero() {
                return None;
            }
            self.0.back.wait_for(&mut free, left);
        }
    }
}

/// One frame that is taken; dropping it frees it.
#[derive(Debug)]
pub(super) struct Frame {
    staging: Staging,
    number: usize,
}

impl Frame {
    pub(super) fn span(&self, place: Range<usize>) -> Result<Span> {
        let from = self.number * self.staging.0.frame_bytes;
        self.staging.0.region.span(from + place.start..from + place.end)
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.staging.0.free.lock().push(self.number);
        self.staging.0.back.notify_one();
    }
}
