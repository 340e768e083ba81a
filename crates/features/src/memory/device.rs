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
//! - DM4: the stages of a store take no more than `stage_bytes` for puts and for gets each.
//!
//! | event | outcome |
//! |---|---|
//! | the copy is not done at the deadline | `Unavailable`; nothing is committed; the stage comes back when the copy ends |
//! | the device fails during a copy | its error; only the samples of that copy fail; the stage is lost if nobody can say more |
//! | the caller leaves | the put is undone as ever; its copies end by themselves |

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::{Error, Result};
use holdfast_engine::{HostMemory, Span};
use tokio::runtime::Handle;

use crate::memory::spans::part;

/// How long a copy that was given up is waited for. Then its memory is kept for good.
const LATE_COPY_WITHIN: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_secs(1);

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
            _bytes: Arc::clone(&self.bytes),
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

/// Cuts the bytes of a tensor on a device into those of its objects.
pub(crate) fn cut_device(bytes: &Arc<dyn DeviceBytes>, chunk_bytes: u64) -> Vec<DevicePart> {
    let chunk = usize::try_from(chunk_bytes).unwrap_or(usize::MAX).max(1);
    let of = |Range { start: at, end }: Range<usize>| DevicePart {
        bytes: Arc::clone(bytes),
        at,
        len: end - at,
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
    _bytes: Arc<dyn DeviceBytes>,
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
        let Some(begun) = self.0.take() else {
            return;
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || keep_until_ended(begun))),
            Err(_) => keep_for_good(begun),
        }
    }
}

fn keep_until_ended(mut begun: Begun) {
    let rounds = LATE_COPY_WITHIN.as_secs() / LOOK_EVERY.as_secs().max(1);
    for _ in 0..rounds {
        match begun.copy.wait(LOOK_EVERY) {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "a device failed during a copy; the memory of the copy is not used again");
                return keep_for_good(begun);
            }
        }
    }
    tracing::error!("a device did not end a copy; the memory of the copy is not used again");
    keep_for_good(begun);
}

fn keep_for_good(begun: Begun) {
    std::mem::forget(begun);
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
