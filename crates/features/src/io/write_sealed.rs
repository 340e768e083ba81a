//! Writing the objects of sealed samples: seal into a stage, send the stage, give it back.
//!
//! While one unit is sent, the next is sealed (module `staged`). A stage is kept while the engine has no room, because a
//! chunk is sealed only once; so a retry sends the same bytes again.
//!
//! *What if the call outlives its deadline?* The engine holds the stage, and the stage holds the sample's witness: the
//! sample is undone when the engine has let go, as in a plain store (module `put`). *What if one object fails?* The
//! other objects of its sample are not begun; those in flight end, and are removed with it.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{Deadline, Error, Nonce, ObjectKey, Result, TensorSpec};
use tensorhold_engine::{Span, Transfer};
use tensorhold_index::SampleRef;

use super::{Io, split_growing};
use crate::io::sealed::{Scratch, SealedRun, Seals, run_of};
use crate::io::staged::{Stageable, Staged};
use crate::io::write::Outgoing;
use crate::memory::device::{Copying, DevicePart, ObjectMemory, begin_all};
use crate::memory::spans::part;
use crate::reclaim::undo::UndoGuard;
use crate::record::description::Description;
use crate::seal::{RecordTag, SealHeader, TensorSealer};

const OPERATION: &str = "features.put";

/// A tensor's object that is to be sealed and sent.
struct Unsealed {
    /// Which of the samples it belongs to.
    sample: usize,
    key: ObjectKey,
    plain: ObjectMemory,
    seal: SealedRun<TensorSealer>,
    witness: Arc<UndoGuard>,
}

/// How a sample is sealed, as its description records it.
type Seal = (SealHeader, RecordTag);

/// The objects of several samples, and how each sample is sealed, or why it cannot be.
#[derive(Default)]
pub(crate) struct ToSeal {
    objects: Vec<Unsealed>,
    seals: Vec<Result<Seal>>,
}

/// A sample's tensors with the keys of their objects.
pub(crate) struct SampleToSeal<'a> {
    pub(crate) reference: &'a SampleRef,
    pub(crate) nonce: Nonce,
    pub(crate) tensors: &'a [(TensorSpec, Vec<ObjectMemory>)],
    pub(crate) witness: &'a Arc<UndoGuard>,
    pub(crate) keys: &'a [ObjectKey],
}

impl ToSeal {
    /// Adds a sample: from here on it has a salt of its own.
    pub(crate) fn add(&mut self, io: &Io, seals: &Seals, sample: &SampleToSeal<'_>) {
        let seal = sample.objects(self.seals.len(), io, seals).map(|(objects, seal)| {
            self.objects.extend(objects);
            seal
        });
        self.seals.push(seal);
    }
}

impl SampleToSeal<'_> {
    /// The objects of the sample at position `at`, and how it is sealed.
    fn objects(&self, at: usize, io: &Io, seals: &Seals) -> Result<(Vec<Unsealed>, Seal)> {
        let mut sealer = seals.sealer(&io.runtime.config.store, self.reference, self.nonce, &*io.runtime.rng)?;
        let specs = self.tensors.iter().map(|(spec, _)| spec);
        let tag = sealer.record_tag(&Description::record_of(seals.object_bytes(), specs))?;
        let mut objects = Vec::with_capacity(self.keys.len());
        let mut keys = self.keys.iter();
        for (spec, chunks) in self.tensors {
            let tensor = Arc::new(sealer.tensor(spec.name(), spec.bytes())?);
            for (n, plain) in chunks.iter().enumerate() {
                let missing = || Error::internal(OPERATION, "an object has no key; this is a bug").with("tensor", spec);
                objects.push(Unsealed {
                    sample: at,
                    key: keys.next().ok_or_else(missing)?.clone(),
                    plain: plain.clone(),
                    seal: SealedRun {
                        run: run_of(tensor.layout(), seals.object_bytes(), n)?,
                        with: Arc::clone(&tensor),
                    },
                    witness: Arc::clone(self.witness),
                });
            }
        }
        Ok((objects, (sealer.header().clone(), tag)))
    }
}

impl Stageable for Unsealed {
    fn sample(&self) -> usize {
        self.sample
    }

    async fn stage(io: &Io, unit: Vec<Self>, deadline: Deadline) -> Staged {
        let samples: Vec<usize> = unit.iter().map(|object| object.sample).collect();
        let staged = io.seal_all(unit, deadline).await;
        staged.unwrap_or_else(|error| Staged::none(samples, &error))
    }
}

impl Unsealed {
    /// Seals it, after its copy from the device if it comes from one.
    fn sealed(
        self,
        copied: Option<Result<(Copying, Span)>>,
        into: Span,
        scratch: &mut Scratch,
        within: Duration,
    ) -> Result<Outgoing> {
        let plain = match (self.plain, copied) {
            (ObjectMemory::Host(parts), _) => parts,
            (ObjectMemory::Device(_), Some(copied)) => {
                let (copying, host) = copied?;
                copying.ended(within)?;
                vec![host]
            }
            (ObjectMemory::Device(_), None) => {
                return Err(Error::internal(OPERATION, "an object was not copied; this is a bug"));
            }
        };
        self.seal.seal(&plain, &into, scratch)?;
        Ok(Outgoing {
            sample: self.sample,
            transfer: Transfer::new(self.key, into.guarded(self.witness)?),
        })
    }
}

impl Io {
    /// Seals and writes. Returns for each sample how it is sealed, if all its objects are stored.
    pub(crate) async fn send_sealed(
        &self,
        seals: &Seals,
        to_seal: ToSeal,
        prefer: &[String],
        deadline: Deadline,
    ) -> Vec<Result<Seal>> {
        let ToSeal {
            objects,
            seals: mut results,
        } = to_seal;
        let units = split_growing(objects, self.runtime.max_batch(), seals.unit_bytes(), |object| {
            object.seal.run.sealed_len()
        });
        let sent = self.send_staged(units, results.len(), prefer, deadline).await;
        for (result, sent) in results.iter_mut().zip(sent) {
            if let (Ok(_), Err(error)) = (&result, sent) {
                *result = Err(error);
            }
        }
        results
    }

    /// Seals some objects into a stage.
    async fn seal_all(&self, unit: Vec<Unsealed>, deadline: Deadline) -> Result<Staged> {
        let lengths: Result<Vec<usize>> = unit.iter().map(|object| object.seal.sealed_len()).collect();
        let lengths = lengths?;
        let stage = self.stages.outgoing.take(lengths.iter().sum(), deadline).await?;
        let on_device: usize = parts_on_device(&unit).map(DevicePart::len).sum();
        let (calls, plain) = match on_device {
            0 => (&self.runtime.blocking, None),
            len => {
                let plain = self.stages.plain.take(len, deadline).await?;
                (&self.runtime.for_device, Some(plain))
            }
        };
        let clock = Arc::clone(&self.runtime.clock);
        let seal = move |_| {
            let copies = plain.map(|plain| begin_all(parts_on_device(&unit), &plain));
            let mut copies = copies.unwrap_or_default().into_iter();
            let (mut scratch, mut staged, mut at) = (Scratch::default(), Staged::default(), 0);
            for (object, len) in unit.into_iter().zip(lengths) {
                let (sample, key) = (object.sample, object.key.clone());
                let copied = object.plain.device().and_then(|_| copies.next());
                let into = part(&stage, at, len)?;
                match object.sealed(copied, into, &mut scratch, deadline.remaining(&*clock)) {
                    Ok(outgoing) => staged.ready.push(outgoing),
                    Err(error) => staged.failed.push((sample, error.with("key", key))),
                }
                at += len;
            }
            Ok(staged)
        };
        calls.run("features.seal", deadline, seal).await
    }
}

fn parts_on_device(unit: &[Unsealed]) -> impl Iterator<Item = &DevicePart> {
    unit.iter().filter_map(|object| object.plain.device())
}
