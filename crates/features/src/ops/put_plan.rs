//! A sample before it is put: checked, its memory registered, guarded and cut into objects.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use tensorhold_core::{Deadline, Digest, Error, Nonce, Result, SampleId, TensorName, TensorSpec};
use tensorhold_custody::{Publication, ReservedAs};
use tensorhold_engine::busy::Waiting;
use tensorhold_engine::{Access, Busy, Claim, Span};

use crate::memory::device::{ObjectMemory, cut_device};
use crate::memory::spans::cut;
use crate::memory::tensors::{Source, TensorIn, TensorMemory};
use crate::ops::ahead::ReservedAhead;
use crate::ops::put::PutItem;
use crate::reclaim::undo::UndoGuard;
use crate::record::description::{DescribedTensor, Description, chunks_of};
use crate::record::encoding::Encoding;
use crate::record::limits::{MOST_PUT_BYTES, check_length, check_objects};
use crate::record::plan::{Plan, check_names};
use crate::seal::{RecordTag, SealHeader};
use crate::store::Inner;

const OPERATION: &str = "features.put";

/// A sample that can be reserved: its memory is registered and cut.
pub(crate) struct PutPlan {
    pub(crate) sample: SampleId,
    pub(crate) publication: Publication,
    pub(crate) nonce: Nonce,
    /// The reservation that it took, if that was made ahead.
    pub(crate) reserved_as: Option<ReservedAs>,
    pub(crate) tensors: Vec<(TensorSpec, Vec<ObjectMemory>)>,
    pub(crate) plan: String,
    pub(crate) bytes: u64,
    pub(crate) witness: Arc<UndoGuard>,
    /// While it is held, no other operation writes to the memory. Held by that memory, too.
    claim: Arc<OnceLock<Claim>>,
    /// The memory of devices that it is put from.
    on_device: Vec<Range<usize>>,
}

/// Held by the memory that a sample is put from, and so by the engine for as long as it may read that memory.
struct InUse {
    _witness: Arc<UndoGuard>,
    _claim: Arc<OnceLock<Claim>>,
}

/// What was learned about a sample while it was written.
pub(crate) enum Record {
    /// The checksums of objects that came from a device, by their positions among the sample's objects.
    Copied(Vec<(usize, Digest)>),
    /// The checksums of all its objects.
    Digests(Vec<Digest>),
    /// How it is sealed, and the tag over its description.
    Seal(SealHeader, RecordTag),
}

impl PutPlan {
    /// The memory of its objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &ObjectMemory> {
        self.tensors.iter().flat_map(|(_, objects)| objects)
    }

    /// Takes a reservation that was made ahead.
    pub(crate) fn take(&mut self, reserved: &ReservedAhead) {
        self.nonce = reserved.nonce;
        self.reserved_as = Some(ReservedAs::from(&reserved.reference));
    }

    /// Asks for a claim on its memory.
    pub(crate) fn claim(&self) -> Result<Waiting> {
        let host = self.objects().flat_map(ObjectMemory::host).map(Span::range);
        Busy::process().claim(OPERATION, Access::Read, host.chain(self.on_device.iter().cloned()))
    }

    /// Keeps the claim that was granted: from here on neither another operation nor a late call writes to the memory,
    /// until the put has ended and the engine has let go of it.
    pub(crate) fn keep(&self, claim: Claim) {
        self.claim.get_or_init(|| claim);
    }

    /// The sample's description, with what was learned while it was written.
    pub(crate) fn describe(&self, chunk_bytes: u64, record: Record) -> Result<Description> {
        let (encoding, record_tag, checksums) = match record {
            Record::Copied(_) => (Encoding::Plain, None, None),
            Record::Digests(digests) => (Encoding::Plain, None, Some(digests)),
            Record::Seal(header, tag) => (Encoding::Sealed(header), Some(tag), None),
        };
        let mut checksums = checksums.map(IntoIterator::into_iter);
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for (spec, chunks) in &self.tensors {
            let digests: Vec<Digest> = match &mut checksums {
                Some(checksums) => checksums.take(chunks.len()).collect(),
                None => Vec::new(),
            };
            if checksums.is_some() && digests.len() != chunks.len() {
                return Err(Error::internal(OPERATION, "a chunk got no checksum; this is a bug").with("tensor", spec));
            }
            tensors.push(DescribedTensor {
                spec: spec.clone(),
                key: None,
                digests,
            });
        }
        let mut description = Description::own(self.nonce, chunk_bytes, encoding, tensors);
        description.record_tag = record_tag;
        Ok(match &self.reserved_as {
            Some(reserved_as) => description.reserved_as(reserved_as.clone()),
            None => description,
        })
    }
}

impl Inner {
    /// Checks a sample, registers memory that was lent, and cuts it into objects.
    pub(crate) async fn plan_put(&self, item: PutItem, deadline: Deadline) -> Result<PutPlan> {
        check_names(OPERATION, item.tensors.iter().map(|tensor| tensor.spec.name()))?;
        item.tensors.iter().try_for_each(TensorIn::check)?;
        if item.publication.max_attempts == 0 {
            return Err(Error::invalid(
                OPERATION,
                "a sample needs at least one attempt per group; set max_attempts",
            ));
        }
        let witness = Arc::new(UndoGuard::new(Arc::clone(&self.reclaim.queue)));
        let claim = Arc::new(OnceLock::new());
        let source = Arc::new(InUse {
            _witness: Arc::clone(&witness),
            _claim: Arc::clone(&claim),
        });
        let chunk = self.io.object_bytes();
        self.check_size(&item, chunk)?;
        let mut tensors = Vec::with_capacity(item.tensors.len());
        let mut planned: Vec<(TensorName, u64)> = Vec::with_capacity(item.tensors.len());
        let mut bytes = 0_u64;
        let mut on_device = Vec::new();
        let mut add = |tensors: &mut Vec<_>, spec: TensorSpec, objects: Vec<ObjectMemory>| {
            planned.push((spec.name().clone(), chunks_of(spec.bytes(), chunk)));
            bytes = bytes.saturating_add(self.io.stored_bytes(&spec));
            tensors.push((spec, objects));
        };
        let parts = item.tensors.into_iter().map(|tensor| (tensor.spec, tensor.bytes));
        let (specs, given): (Vec<TensorSpec>, Vec<Source>) = parts.unzip();
        let given = self.memory.register_all(given, deadline).await?;
        for (spec, from) in specs.into_iter().zip(given) {
            let spans = match from {
                TensorMemory::Host(spans) => self.memory.registered(spans, deadline).await?,
                TensorMemory::Device(bytes) => {
                    self.io.stages.prepare_for(OPERATION, &*bytes, chunk)?;
                    on_device.push(bytes.range());
                    // Not the witness: the engine sees only the stage, which holds it itself.
                    let guard: Arc<OnceLock<Claim>> = Arc::clone(&claim);
                    let objects = cut_device(&bytes, chunk, guard).into_iter().map(ObjectMemory::Device);
                    add(&mut tensors, spec, objects.collect());
                    continue;
                }
            };
            let lent: Result<Vec<Span>> = spans
                .into_iter()
                .map(|span| span.guarded(Arc::clone(&source)))
                .collect();
            let objects = cut(&lent?, chunk)?.into_iter().map(ObjectMemory::Host);
            add(&mut tensors, spec, objects.collect());
        }
        Ok(PutPlan {
            sample: item.sample,
            publication: item.publication,
            nonce: Nonce::draw(&*self.runtime.rng),
            reserved_as: None,
            plan: Plan::of_tensors(planned).to_text()?,
            tensors,
            bytes,
            witness,
            claim,
            on_device,
        })
    }

    /// Refuses a sample whose record would be too large, before anything is registered, reserved or moved.
    fn check_size(&self, item: &PutItem, chunk: u64) -> Result<()> {
        /// A generous estimate of a tensor's entry in the description, without its name, its shape and its checksums.
        const ENTRY: usize = 96;
        const DIGEST: usize = 48;
        /// The space for the part about the sample as a whole, a seal's header included.
        const REST: usize = 4096;
        let chunks = |tensor: &TensorIn| chunks_of(tensor.spec.bytes(), chunk);
        check_objects(OPERATION, item.tensors.iter().map(chunks))?;
        let digests = self.runtime.config.checksum && self.io.seals.is_none();
        let count = |tensor: &TensorIn| usize::try_from(chunks(tensor)).unwrap_or(usize::MAX);
        let digests_of = |tensor: &TensorIn| if digests { count(tensor) } else { 0 };
        let about = item.tensors.iter().map(|tensor| {
            // A character of a name takes at most six bytes in JSON.
            let text = 6 * tensor.spec.name().as_str().len() + 21 * tensor.spec.shape().len();
            ENTRY + text + DIGEST * digests_of(tensor)
        });
        if about.sum::<usize>() + REST <= MOST_PUT_BYTES {
            return Ok(());
        }
        let described = |tensor: &TensorIn| DescribedTensor {
            spec: tensor.spec.clone(),
            key: None,
            digests: vec![Digest::from_u128(0); digests_of(tensor)],
        };
        let tensors = item.tensors.iter().map(described).collect();
        let as_written = Description::own(Nonce::from_u64(u64::MAX), chunk, Encoding::Plain, tensors).to_bytes();
        let refused = |error: Error| error.with("tensors", item.tensors.len()).with("moved", "nothing");
        as_written
            .and_then(|bytes| check_length(OPERATION, bytes.len() + REST))
            .map_err(refused)
    }
}
