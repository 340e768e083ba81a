//! Memory of devices, which the engine does not reach: its bytes pass through a stage in host memory.
//!
//! ```text
//! put   device ── copy ──▶ stage ── checksum or seal ──▶ engine        while one unit is sent, the next is copied
//! get   engine ──▶ stage ── checked or opened ── copy ──▶ device       while one unit is copied, the next arrives
//! ```
//! A program that can reach a device implements three small traits: [`Device`] (where stages come from), [`DeviceBytes`]
//! (a tensor's bytes and how to copy them) and [`DeviceCopy`] (a copy under way). Copies are queued on the device and end
//! some time later, in any order.
//!
//! # What must hold
//! - DM1: no copy reads bytes that the caller's own work on the device has yet to write, or writes over bytes that this work
//!   has yet to read. That is the duty of [`DeviceBytes::begin`]: a copy begins after what was queued before the call.
//! - DM2: nothing is checked, sent or committed before its copy has ended, and no get returns before its copies have.
//! - DM3: memory on either side that a copy may still touch is not used again: a copy that is given up keeps both until it
//!   has ended. If the device cannot say whether it has, they are kept for good.
//! - DM4: the stages of a store take no more than `stage_bytes` for puts, for gets, and in a sealed store for plaintext.
//! - DM5: two operations that touch the same bytes on a device come one after the other, also if the caller of the first has
//!   left: their memory is claimed like host memory (module `claims`), and the parts of it that are still to be copied hold the
//!   claim.
//!
//! | event | outcome |
//! |---|---|
//! | the copy is not done at the deadline | `Unavailable`; nothing is committed; the stage comes back when the copy ends |
//! | the device fails during a copy | its error; only the samples of that copy fail; the stage is lost if nobody can say more |
//! | the caller leaves | the put is undone as ever; its copies end by themselves |

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tensorhold_core::{Error, Result};
use tensorhold_engine::{HostMemory, Span};

use crate::memory::spans::part;

/// How long a copy that was given up is waited for. Then its memory is kept for good.
const LATE_COPY_WITHIN: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A kind of device.
pub trait Device: fmt::Debug + Send + Sync {
    /// Host memory that the device copies from and to fastest: page-locked, where there is such a thing.
    fn stage(&self, len: usize) -> Result<HostMemory>;
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device to host memory.
    ToHost,
    /// From host memory to the device.
    ToDevice,
}

/// The bytes of a tensor in the memory of a device.
#[expect(
    clippy::len_without_is_empty,
    reason = "a tensor without bytes is given without memory"
)]
pub trait DeviceBytes: fmt::Debug + Send + Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Where they are in this process's addresses, or a range that no other memory has: operations on overlapping ranges come
    /// one after the other (DM5).
    fn range(&self) -> Range<usize>;

    /// The device that they are on.
    fn device(&self) -> Arc<dyn Device>;

    /// Begins to copy between `host` and as many bytes from `at` on. Does not wait for the copy, nor for work that is
    /// queued on the device; the copy comes after what the caller had queued before it passed these bytes (DM1).
    fn begin(&self, direction: Direction, at: usize, host: &Span) -> Result<Box<dyn DeviceCopy>>;
}

/// A copy that has begun.
pub trait DeviceCopy: fmt::Debug + Send {
    /// Waits until it has ended; false if that takes longer. An error: the device failed, and whether it still copies is
    /// unknown.
    fn wait(&mut self, within: Duration) -> Result<bool>;
}

/// Some bytes on a device: those of one object.
#[derive(Clone, Debug)]
pub(crate) struct DevicePart {
    bytes: Arc<dyn DeviceBytes>,
    at: usize,
    len: usize,
    _guard: Guard,
}

/// What the operation on some bytes holds while they may still be touched.
#[derive(Clone)]
struct Guard(#[expect(dead_code, reason = "it is only held")] Arc<dyn Any + Send + Sync>);

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Guard")
    }
}

impl DevicePart {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Begins to copy all of it between the device and `host`, which is as long.
    pub(crate) fn begin(&self, direction: Direction, host: &Span) -> Result<Copying> {
        if host.len() != self.len {
            return Err(
                Error::internal("features.device", "a stage is not as long as its object; this is a bug")
                    .with("stage", host.len())
                    .with("object", self.len),
            );
        }
        let copy = self.bytes.begin(direction, self.at, host)?;
        Ok(Copying(Some(Begun {
            copy,
            _host: host.clone(),
            _part: self.clone(),
        })))
    }
}

/// The memory of one object's bytes.
#[derive(Clone, Debug)]
pub(crate) enum ObjectMemory {
    /// In the host's memory, in one or several pieces.
    Host(Vec<Span>),
    Device(DevicePart),
}

impl ObjectMemory {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(parts) => parts.iter().map(Span::len).sum(),
            Self::Device(part) => part.len(),
        }
    }

    /// Its pieces in the host's memory; none if it is on a device.
    pub(crate) fn host(&self) -> &[Span] {
        match self {
            Self::Host(parts) => parts,
            Self::Device(_) => &[],
        }
    }

    pub(crate) fn device(&self) -> Option<&DevicePart> {
        match self {
            Self::Host(_) => None,
            Self::Device(part) => Some(part),
        }
    }
}

/// Cuts the bytes of a tensor on a device into those of its objects. `guard` is held while any of them may be touched.
pub(crate) fn cut_device(
    bytes: &Arc<dyn DeviceBytes>,
    chunk_bytes: u64,
    guard: Arc<dyn Any + Send + Sync>,
) -> Vec<DevicePart> {
    let chunk = usize::try_from(chunk_bytes).unwrap_or(usize::MAX).max(1);
    let of = |Range { start: at, end }: Range<usize>| DevicePart {
        bytes: Arc::clone(bytes),
        at,
        len: end - at,
        _guard: Guard(Arc::clone(&guard)),
    };
    let len = bytes.len();
    (0..len)
        .step_by(chunk)
        .map(|at| of(at..at.saturating_add(chunk).min(len)))
        .collect()
}

/// A copy under way. Dropping it before it has ended keeps the memory on both sides until it has (DM3).
#[derive(Debug)]
pub(crate) struct Copying(Option<Begun>);

#[derive(Debug)]
struct Begun {
    copy: Box<dyn DeviceCopy>,
    _host: Span,
    _part: DevicePart,
}

impl Copying {
    /// Waits until the copy has ended.
    pub(crate) fn ended(mut self, within: Duration) -> Result<()> {
        let ended = match &mut self.0 {
            Some(begun) => begun.copy.wait(within)?,
            None => true,
        };
        if !ended {
            return Err(Error::unavailable(
                "features.device",
                "the device had not copied all bytes at the deadline; nothing was committed or handed out (is it busy with \
                 other work? allow more time)",
            ));
        }
        self.0 = None;
        Ok(())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if let Some(begun) = self.0.take() {
            keep_until_ended(begun);
        }
    }
}

/// Copies that were given up, and when they are given up for good. One thread looks after all of them, while there are any.
static LATE: Mutex<Late> = Mutex::new(Late {
    copies: Vec::new(),
    is_watched: false,
});

struct Late {
    copies: Vec<(Begun, u64)>,
    is_watched: bool,
}

fn keep_until_ended(begun: Begun) {
    let rounds = LATE_COPY_WITHIN.as_millis() / LOOK_EVERY.as_millis().max(1);
    let mut late = LATE.lock();
    late.copies.push((begun, u64::try_from(rounds).unwrap_or(u64::MAX)));
    if !late.is_watched {
        let watching = std::thread::Builder::new().name("tensorhold-late-copies".to_owned());
        // Without a thread they are kept until the next one is given up.
        late.is_watched = watching.spawn(watch_late_copies).is_ok();
    }
}

fn watch_late_copies() {
    let never = Condvar::new();
    loop {
        let mut late = LATE.lock();
        never.wait_for(&mut late, LOOK_EVERY);
        let copies = std::mem::take(&mut late.copies);
        if copies.is_empty() {
            late.is_watched = false;
            return;
        }
        drop(late);
        // Asking a device may take time, and dropping memory may call into the program.
        let still_late: Vec<_> = copies.into_iter().filter_map(still_late).collect();
        LATE.lock().copies.extend(still_late);
    }
}

/// Looks at a copy that was given up; none if nothing has to be kept any more, or all of it for good.
fn still_late((mut begun, rounds): (Begun, u64)) -> Option<(Begun, u64)> {
    match begun.copy.wait(Duration::ZERO) {
        Ok(true) => return None,
        Ok(false) if rounds > 0 => return Some((begun, rounds - 1)),
        Ok(false) => tracing::error!("a device did not end a copy; the memory of the copy is not used again"),
        Err(error) => {
            tracing::error!(%error, "a device failed during a copy; the memory of the copy is not used again");
        }
    }
    // Whether the device still touches it is unknown (DM3).
    std::mem::forget(begun);
    None
}

/// Begins to copy objects from the device into `stage`, one after the other. Returns each with its part of the stage.
pub(crate) fn begin_all<'a>(
    objects: impl IntoIterator<Item = &'a DevicePart>,
    stage: &Span,
) -> Vec<Result<(Copying, Span)>> {
    let mut at = 0;
    let begin = |object: &DevicePart| {
        at += object.len();
        let host = part(stage, at - object.len(), object.len())?;
        Ok((object.begin(Direction::ToHost, &host)?, host))
    };
    objects.into_iter().map(begin).collect()
}
