//! Where the bytes of a sample go: memory for each tensor that is wanted, and which part of it each object fills.

use std::sync::Arc;

use holdfast_core::{Deadline, Error, ErrorKind, Result, StoreId, TensorName};
use holdfast_engine::Span;
use holdfast_index::SampleRef;

use crate::description::{DescribedTensor, Description};
use crate::fetch::{Check, Incoming};
use crate::pieces::{cut, wipe};
use crate::plan::{Place, check_names};
use crate::seal::SampleOpener;
use crate::sealed::{SealedRun, opener, run_of};
use crate::store::Inner;
use crate::tensors::{Destination, Source, TensorOut, Wanted, check_length};

const OPERATION: &str = "features.get";

/// Memory for tensors of a sample.
pub(crate) struct Landing<'a> {
    store: &'a StoreId,
    reference: &'a SampleRef,
    description: &'a Description,
    opener: Option<SampleOpener>,
    tensors: Vec<(&'a DescribedTensor, Vec<Span>)>,
}

impl Landing<'_> {
    pub(crate) fn is_sealed(&self) -> bool {
        self.opener.is_some()
    }

    /// Whether all that arrives is compared with what was committed.
    pub(crate) fn is_checked(&self) -> bool {
        let objects = |tensor: &DescribedTensor| tensor.chunks(self.description.chunk_bytes());
        let summed = |(tensor, _): &(&DescribedTensor, _)| tensor.digests.len() as u64 == objects(tensor);
        self.is_sealed() || self.tensors.iter().all(summed)
    }

    /// What is to be fetched.
    pub(crate) fn objects(&self) -> Result<Vec<Incoming>> {
        let place = Place {
            store: self.store,
            sample: self.reference,
        };
        let mut objects = Vec::new();
        for (tensor, parts) in &self.tensors {
            let keys = self.description.keys_of(tensor, place)?;
            let chunks = cut(parts, self.description.chunk_bytes())?;
            let checks = checks(tensor, self.description, self.opener.as_ref(), keys.len())?;
            for ((key, parts), check) in keys.into_iter().zip(chunks).zip(checks) {
                objects.push(Incoming { key, parts, check });
            }
        }
        Ok(objects)
    }

    pub(crate) fn tensors(self) -> Vec<TensorOut> {
        let out = |(tensor, parts): (&DescribedTensor, Vec<Span>)| TensorOut {
            spec: tensor.spec.clone(),
            parts,
        };
        self.tensors.into_iter().map(out).collect()
    }
}

impl Inner {
    /// Memory for what is wanted of a sample.
    pub(crate) async fn landing<'a>(
        &'a self,
        reference: &'a SampleRef,
        description: &'a Description,
        wanted: Wanted,
        deadline: Deadline,
    ) -> Result<Landing<'a>> {
        let store = &self.config.store;
        let opener = opener(self.seals.as_ref(), store, reference, description).inspect_err(|error| {
            if error.kind() == ErrorKind::Corrupt {
                self.count.corrupt.one();
            }
        })?;
        let mut tensors = Vec::new();
        for (tensor, destination) in choose(description, wanted)? {
            tensors.push((tensor, self.memory_for(tensor, destination, deadline).await?));
        }
        Ok(Landing {
            store,
            reference,
            description,
            opener,
            tensors,
        })
    }

    /// Clears the memory of tensors that are not handed out (SS3 in module `sealed`). Nobody writes there any more: what
    /// the engine may still write is a stage.
    pub(crate) async fn clear(&self, landing: &Landing<'_>) {
        let parts: Vec<Span> = landing.tensors.iter().flat_map(|(_, parts)| parts.clone()).collect();
        let again = parts.clone();
        let deadline = self.deadline(self.config.call_within);
        let cleared = self.calls.run(OPERATION, deadline, move |_| wipe(&parts)).await;
        if cleared.is_err()
            && let Err(error) = wipe(&again)
        {
            tracing::error!(%error, "memory of a failed get was not cleared");
        }
    }

    async fn memory_for(
        &self,
        tensor: &DescribedTensor,
        destination: Destination,
        deadline: Deadline,
    ) -> Result<Vec<Span>> {
        let bytes = tensor.spec.bytes();
        let source = match destination {
            Destination::Pool if bytes == 0 => return Ok(Vec::new()),
            Destination::Pool => {
                let len = usize::try_from(bytes)
                    .map_err(|_| Error::invalid(OPERATION, "this tensor is larger than an address space"))?;
                return Ok(vec![self.pool.take(len, deadline).await?]);
            }
            Destination::Spans(spans) => Source::Spans(spans),
            Destination::Lent(memory) => Source::Lent(memory),
        };
        check_length(OPERATION, &tensor.spec, source.bytes())?;
        self.registered(source, deadline).await
    }
}

/// How each object of a tensor is checked.
fn checks(
    tensor: &DescribedTensor,
    description: &Description,
    opener: Option<&SampleOpener>,
    objects: usize,
) -> Result<Vec<Check>> {
    let Some(opener) = opener else {
        let recorded = |at| tensor.digests.get(at).copied().map_or(Check::Nothing, Check::Digest);
        return Ok((0..objects).map(recorded).collect());
    };
    let with = Arc::new(opener.tensor(tensor.spec.name(), tensor.spec.bytes())?);
    let sealed = |at| {
        let run = run_of(with.layout(), description.chunk_bytes(), at)?;
        let with = Arc::clone(&with);
        Ok(Check::Seal(SealedRun { with, run }))
    };
    (0..objects).map(sealed).collect()
}

/// The tensors that are wanted, and where they go.
fn choose(description: &Description, wanted: Wanted) -> Result<Vec<(&DescribedTensor, Destination)>> {
    let named: Vec<(TensorName, Destination)> = match wanted {
        Wanted::All => {
            let all = description.tensors().iter();
            return Ok(all.map(|tensor| (tensor, Destination::Pool)).collect());
        }
        Wanted::Names(names) => names.into_iter().map(|name| (name, Destination::Pool)).collect(),
        Wanted::Into(named) => named,
    };
    check_names(OPERATION, named.iter().map(|(name, _)| name))?;
    let find = |(name, destination): (TensorName, Destination)| {
        let tensor = description.tensor(&name).ok_or_else(|| {
            let there: Vec<&str> = description.tensors().iter().map(|t| t.spec.name().as_str()).collect();
            Error::new(ErrorKind::NotFound, OPERATION, "the sample has no tensor of this name")
                .with("tensor", &name)
                .with("tensors", there.join(", "))
        })?;
        Ok((tensor, destination))
    };
    named.into_iter().map(find).collect()
}
