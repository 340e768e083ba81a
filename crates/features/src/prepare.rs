//! A sample before it is put: checked, its memory registered, on loan and cut into objects.

use std::sync::Arc;

use holdfast_core::{Deadline, Digest, Error, Nonce, Result, SampleId, TensorName, TensorSpec};
use holdfast_custody::Publication;
use holdfast_engine::Span;

use crate::codec::Encoding;
use crate::description::{DescribedTensor, Description, chunks_of};
use crate::loan::lend;
use crate::pieces::cut;
use crate::plan::{Plan, check_names};
use crate::put::PutItem;
use crate::store::Inner;
use crate::tensors::{Source, TensorIn};
use crate::writing::Witness;

const OPERATION: &str = "features.put";

/// A sample that can be reserved: its memory is registered and cut.
pub(crate) struct Prepared {
    pub(crate) sample: SampleId,
    pub(crate) publication: Publication,
    pub(crate) nonce: Nonce,
    pub(crate) tensors: Vec<(TensorSpec, Vec<Vec<Span>>)>,
    pub(crate) plan: String,
    pub(crate) bytes: u64,
    pub(crate) witness: Arc<Witness>,
}

impl Prepared {
    /// What is recorded of it; takes the checksums of its chunks off `digests`.
    pub(crate) fn describe(
        &self,
        chunk_bytes: u64,
        checksum: bool,
        digests: &mut impl Iterator<Item = Digest>,
    ) -> Result<Description> {
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for (spec, chunks) in &self.tensors {
            let digests: Vec<Digest> = digests.take(if checksum { chunks.len() } else { 0 }).collect();
            if checksum && digests.len() != chunks.len() {
                return Err(Error::internal(OPERATION, "a chunk got no checksum").with("tensor", spec));
            }
            tensors.push(DescribedTensor {
                spec: spec.clone(),
                key: None,
                digests,
            });
        }
        Ok(Description::own(self.nonce, chunk_bytes, Encoding::Plain, tensors))
    }
}

impl Inner {
    /// Checks a sample, registers memory that was lent, and cuts it into objects.
    pub(crate) async fn prepare(&self, item: PutItem, deadline: Deadline) -> Result<Prepared> {
        check_names(OPERATION, item.tensors.iter().map(|tensor| tensor.spec.name()))?;
        item.tensors.iter().try_for_each(TensorIn::check)?;
        if item.publication.max_attempts == 0 {
            return Err(Error::invalid(
                OPERATION,
                "a sample needs at least one attempt per group; set max_attempts",
            ));
        }
        let witness = Arc::new(Witness::new(Arc::clone(&self.frees)));
        let (chunk, encoding) = (self.config.chunk_bytes, Encoding::Plain);
        let mut tensors = Vec::with_capacity(item.tensors.len());
        let mut planned: Vec<(TensorName, u64)> = Vec::with_capacity(item.tensors.len());
        let mut bytes = 0_u64;
        for TensorIn { spec, bytes: source } in item.tensors {
            let spans = self.registered(source, deadline).await?;
            let lent: Result<Vec<Span>> = spans.into_iter().map(|span| lend(span, Arc::clone(&witness))).collect();
            let chunks = cut(&lent?, chunk)?;
            planned.push((spec.name().clone(), chunks_of(spec.bytes(), chunk)));
            bytes = bytes.saturating_add(encoding.stored_bytes(spec.bytes()));
            tensors.push((spec, chunks));
        }
        Ok(Prepared {
            sample: item.sample,
            publication: item.publication,
            nonce: Nonce::draw(&*self.rng),
            plan: Plan::of_tensors(planned).to_text()?,
            tensors,
            bytes,
            witness,
        })
    }

    /// Memory that is registered, or is from now on.
    pub(crate) async fn registered(&self, source: Source, deadline: Deadline) -> Result<Vec<Span>> {
        match source {
            Source::Spans(spans) => Ok(spans),
            Source::Lent(memory) => {
                let engine = Arc::clone(&self.engine);
                let call = move |within| engine.register(memory, within);
                let region = self.calls.run("features.register", deadline, call).await?;
                Ok(vec![region.whole()])
            }
        }
    }
}
