//! Writing the objects of sealed samples: seal into a stage, send the stage, give it back.
//!
//! ```text
//! seal   ── 1 ──┬── 2 ──┬── 3 ──┐
//! send          └── 1 ──┴── 2 ──┴── 3 ──
//! ```
//! A stage is kept while the engine has no room, because a chunk is sealed only once; so a retry sends the same bytes
//! again.
//!
//! *What if the call outlives its deadline?* The engine holds the stage, and the stage holds the sample's witness: the
//! sample is undone when the engine has let go, as in a plain store (module `put`). *What if one object fails?* The
//! other objects of its sample are not begun; those in flight end, and are removed with it.

use std::sync::Arc;

use holdfast_core::{Deadline, Error, Nonce, ObjectKey, Result, TensorSpec};
use holdfast_engine::{Span, Transfer};
use holdfast_index::SampleRef;

use super::{Io, split};
use crate::io::sealed::{Scratch, SealedRun, Seals, run_of};
use crate::io::write::Outgoing;
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
    plain: Vec<Span>,
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
    pub(crate) tensors: &'a [(TensorSpec, Vec<Vec<Span>>)],
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

impl Io {
    /// Seals and writes. Returns for each sample how it is sealed, if all its objects are stored.
    pub(crate) async fn send_sealed(&self, seals: &Seals, to_seal: ToSeal, deadline: Deadline) -> Vec<Result<Seal>> {
        let ToSeal {
            objects,
            seals: mut results,
        } = to_seal;
        let samples = results.len();
        let mut units = split(objects, self.runtime.max_batch(), seals.unit_bytes(), |object| {
            object.seal.run.sealed_len()
        })
        .into_iter();
        let mut ready = None;
        loop {
            // Nothing more is sealed of a sample that has failed.
            let next = units.next().map(|mut unit| {
                unit.retain(|object| results[object.sample].is_ok());
                unit
            });
            if next.is_none() && ready.is_none() {
                return results;
            }
            let seal = async {
                match next {
                    Some(unit) => Some(self.seal_unit(seals, unit, deadline).await),
                    None => None,
                }
            };
            let send = async {
                match ready.take() {
                    Some(outgoing) => self.send(outgoing, samples, deadline).await,
                    None => Vec::new(),
                }
            };
            let (ready_next, sent) = tokio::join!(seal, send);
            note(&mut results, sent);
            ready = match ready_next {
                Some(Ok(outgoing)) => Some(outgoing),
                Some(Err(failed)) => {
                    note(&mut results, failed.of(samples));
                    None
                }
                None => None,
            };
        }
    }

    /// Seals some objects into a stage.
    async fn seal_unit(
        &self,
        seals: &Seals,
        unit: Vec<Unsealed>,
        deadline: Deadline,
    ) -> std::result::Result<Vec<Outgoing>, NotSealed> {
        let samples: Vec<usize> = unit.iter().map(|object| object.sample).collect();
        let sealed = self.seal_all(seals, unit, deadline).await;
        sealed.map_err(|error| NotSealed { samples, error })
    }

    async fn seal_all(&self, seals: &Seals, unit: Vec<Unsealed>, deadline: Deadline) -> Result<Vec<Outgoing>> {
        if unit.is_empty() {
            return Ok(Vec::new());
        }
        let lengths: Result<Vec<usize>> = unit.iter().map(|object| object.seal.sealed_len()).collect();
        let lengths = lengths?;
        let stage = seals.outgoing.take(lengths.iter().sum(), deadline).await?;
        let seal = move |_| {
            let mut scratch = Scratch::default();
            let mut outgoing = Vec::with_capacity(unit.len());
            let mut at = 0;
            for (object, len) in unit.into_iter().zip(lengths) {
                let into = part(&stage, at, len)?;
                object.seal.seal(&object.plain, &into, &mut scratch)?;
                outgoing.push(Outgoing {
                    sample: object.sample,
                    transfer: Transfer::new(object.key, into.guarded(object.witness)?),
                });
                at += len;
            }
            Ok(outgoing)
        };
        self.runtime.blocking.run("features.seal", deadline, seal).await
    }
}

/// Objects of these samples were not sealed.
struct NotSealed {
    samples: Vec<usize>,
    error: Error,
}

impl NotSealed {
    /// As results for `count` samples.
    fn of(self, count: usize) -> Vec<Result<()>> {
        let failed = |sample| self.samples.contains(&sample);
        let result = |sample| {
            if failed(sample) {
                Err(self.error.clone())
            } else {
                Ok(())
            }
        };
        (0..count).map(result).collect()
    }
}

/// Merges failures into the results; the first failure of a sample counts.
fn note(results: &mut [Result<Seal>], more: Vec<Result<()>>) {
    for (all, this) in results.iter_mut().zip(more) {
        if let (Ok(_), Err(error)) = (&all, this) {
            *all = Err(error);
        }
    }
}
