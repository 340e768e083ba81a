//! Writing objects that pass through a stage: sealed ones, and those of tensors on a device.
//!
//! ```text
//! stage  ── 1 ──┬── 2 ──┬── 3 ──┐          seal, or copy from the device and compute the checksum
//! send          └── 1 ──┴── 2 ──┴── 3 ──
//! ```
//! A stage is kept while the engine has no room, and a retry sends the same bytes again. It comes back when the engine has
//! let go of it; so a sample may be far larger than all stages.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Digest, Error, ObjectKey, Result};
use tensorhold_engine::{Span, Transfer};

use super::{Io, split};
use crate::io::checksum::digest_of;
use crate::io::write::Outgoing;
use crate::memory::device::{Copying, DevicePart, begin_all};
use crate::reclaim::undo::UndoGuard;

const OPERATION: &str = "features.put";

/// The most bytes of one call whose objects come from a device, if they are more than one. Smaller than of other calls:
/// copying takes longer than checksums, and work that overlaps with other calls' transfers costs the least.
const MOST_UNIT_BYTES: u64 = 16 << 20;

/// A tensor's object on a device that is to be sent.
pub(crate) struct OnDevice {
    /// Which of the samples it belongs to.
    pub(crate) sample: usize,
    /// Which of the sample's objects it is.
    pub(crate) position: usize,
    pub(crate) key: ObjectKey,
    pub(crate) part: DevicePart,
    pub(crate) witness: Arc<UndoGuard>,
}

/// An object that is brought into a stage before it is sent.
pub(crate) trait Stageable: Send + Sized {
    /// Which of the samples it belongs to.
    fn sample(&self) -> usize;

    /// Brings some objects into a stage.
    fn stage(io: &Io, unit: Vec<Self>, deadline: Deadline) -> impl Future<Output = Staged> + Send;
}

/// What became of a unit that was brought into a stage.
#[derive(Default)]
pub(crate) struct Staged {
    pub(crate) ready: Vec<Outgoing>,
    /// The samples that failed.
    pub(crate) failed: Vec<(usize, Error)>,
    /// Checksums of objects, by sample and position.
    digests: Vec<(usize, (usize, Digest))>,
}

impl Staged {
    pub(crate) fn none(samples: Vec<usize>, error: &Error) -> Self {
        Self {
            failed: samples.into_iter().map(|sample| (sample, error.clone())).collect(),
            ..Self::default()
        }
    }
}

/// The checksums of a sample's objects, by their positions; none for those that need none.
pub(crate) type CopiedDigests = Vec<(usize, Digest)>;

impl Io {
    /// Brings one unit after the other into a stage, and sends each while the next one is brought there. Returns for each
    /// sample the checksums that were computed meanwhile, if all its objects are stored. Nothing more is staged of a sample
    /// that has failed.
    pub(crate) async fn send_staged<T: Stageable>(
        &self,
        units: Vec<Vec<T>>,
        samples: usize,
        prefer: &[String],
        deadline: Deadline,
    ) -> Vec<Result<CopiedDigests>> {
        let mut results: Vec<Result<CopiedDigests>> = (0..samples).map(|_| Ok(Vec::new())).collect();
        let mut units = units.into_iter();
        let mut ready: Option<Vec<Outgoing>> = None;
        loop {
            let next = units.next().map(|mut unit| {
                unit.retain(|object| results[object.sample()].is_ok());
                unit
            });
            if next.is_none() && ready.is_none() {
                return results;
            }
            let stage = async {
                match next {
                    Some(unit) if !unit.is_empty() => Some(T::stage(self, unit, deadline).await),
                    _ => None,
                }
            };
            let send = async {
                match ready.take() {
                    Some(outgoing) => self.send(outgoing, samples, prefer, deadline).await,
                    None => Vec::new(),
                }
            };
            let (staged, sent) = tokio::join!(stage, send);
            let not_sent = sent
                .into_iter()
                .enumerate()
                .filter_map(|(at, sent)| Some((at, sent.err()?)));
            let Staged {
                ready: mut next,
                failed,
                digests,
            } = staged.unwrap_or_default();
            // The first failure of a sample counts.
            for (sample, error) in not_sent.chain(failed) {
                if results[sample].is_ok() {
                    results[sample] = Err(error);
                }
            }
            for (sample, digest) in digests {
                if let Ok(known) = &mut results[sample] {
                    known.push(digest);
                }
            }
            next.retain(|object| results[object.sample].is_ok());
            ready = (!next.is_empty()).then_some(next);
        }
    }

    /// Copies objects from devices into stages and sends them from there.
    pub(crate) async fn send_from_device(
        &self,
        objects: Vec<OnDevice>,
        samples: usize,
        prefer: &[String],
        deadline: Deadline,
    ) -> Vec<Result<CopiedDigests>> {
        let most = MOST_UNIT_BYTES.min(self.runtime.config.stage_bytes / 2);
        let units = split(objects, self.runtime.max_batch(), most, |object| {
            object.part.len() as u64
        });
        self.send_staged(units, samples, prefer, deadline).await
    }
}

impl Stageable for OnDevice {
    fn sample(&self) -> usize {
        self.sample
    }

    /// Copies some objects into a stage. A device that fails costs only the samples that are on it.
    async fn stage(io: &Io, unit: Vec<Self>, deadline: Deadline) -> Staged {
        let samples: Vec<usize> = unit.iter().map(|object| object.sample).collect();
        let len = unit.iter().map(|object| object.part.len()).sum();
        let stage = match io.stages.outgoing.take(len, deadline).await {
            Ok(stage) => stage,
            Err(error) => return Staged::none(samples, &error),
        };
        let (clock, checksum) = (Arc::clone(&io.runtime.clock), io.runtime.config.checksum);
        let copy = move |_| {
            let mut staged = Staged::default();
            let copies = begin_all(unit.iter().map(|object| &object.part), &stage);
            for (object, begun) in unit.into_iter().zip(copies) {
                let (sample, position, key) = (object.sample, object.position, object.key.clone());
                match object.copied(begun, checksum, deadline.remaining(&*clock)) {
                    Ok((outgoing, digest)) => {
                        staged.ready.push(outgoing);
                        staged.digests.extend(digest.map(|digest| (sample, (position, digest))));
                    }
                    Err(error) => staged.failed.push((sample, error.with("key", key))),
                }
            }
            Ok(staged)
        };
        let staged = io.runtime.for_device.run(OPERATION, deadline, copy).await;
        staged.unwrap_or_else(|error| Staged::none(samples, &error))
    }
}

impl OnDevice {
    /// Waits for its copy.
    fn copied(
        self,
        begun: Result<(Copying, Span)>,
        checksum: bool,
        within: Duration,
    ) -> Result<(Outgoing, Option<Digest>)> {
        let (copying, host) = begun?;
        copying.ended(within)?;
        let digest = checksum.then(|| digest_of(std::slice::from_ref(&host))).transpose()?;
        let outgoing = Outgoing {
            sample: self.sample,
            transfer: Transfer::new(self.key, host.guarded(self.witness)?),
        };
        Ok((outgoing, digest))
    }
}
