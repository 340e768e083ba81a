//! The get plan: destination memory for each tensor that is wanted, and which part of it each object fills.
//!
//! ```text
//! the caller's memory ─▶ claimed, all of it at once (it may be in use by a late call) ─┐
//! memory of the pool  ─▶ taken, all of it at once, in turn                             ├─▶ objects
//!        └ more than half of the pool, and not free: memory of its own, and a stage ───┘
//! ```
//! A get waits for the caller's memory first and holds none of the pool's while it does. The pool memory that it then
//! waits for is held by gets that wait for nothing more. So no two gets wait for each other.
//!
//! A sample may be larger than the pool: its tensors then lie in private memory (module `backing`), and its objects
//! arrive one after the other in a stage, are checked there and copied. Only if an object fits no stage (one of another
//! program, or of a store with larger chunks) is its tensor's memory registered.

use std::sync::Arc;

use tensorhold_core::{Deadline, Error, ErrorKind, Result, StoreId, TensorName};
use tensorhold_engine::{Access, Claim, HostMemory, Span};
use tensorhold_index::SampleRef;

use crate::io::read::{Check, Incoming};
use crate::io::sealed::{SealedRun, opener, run_of};
use crate::memory::backing::Backing;
use crate::memory::device::{ObjectMemory, cut_device};
use crate::memory::spans::{cut, wipe};
use crate::memory::tensors::{Destination, Source, TensorMemory, TensorOut, Wanted, check_length};
use crate::record::description::{DescribedTensor, Description};
use crate::record::plan::{SampleObjects, check_names};
use crate::seal::SampleOpener;
use crate::store::Inner;

const OPERATION: &str = "features.get";

/// The get plan of a sample: its tensors and their destination memory.
pub(crate) struct GetPlan<'a> {
    store: &'a StoreId,
    reference: &'a SampleRef,
    description: &'a Description,
    opener: Option<SampleOpener>,
    tensors: Vec<PlannedTensor<'a>>,
    /// The claim on the caller's memory, until its bytes are handed out and no call can write there any more.
    claim: Arc<Claim>,
}

/// A tensor and its destination memory.
struct PlannedTensor<'a> {
    described: &'a DescribedTensor,
    memory: TensorMemory,
    /// Whether it is the caller's memory, which other operations may use too.
    claimed: bool,
    /// Whether plain bytes arrive in a stage, because the engine does not know this memory.
    staged: bool,
}

impl GetPlan<'_> {
    pub(crate) fn is_sealed(&self) -> bool {
        self.opener.is_some()
    }

    /// Whether every byte that arrives is compared with the committed one.
    pub(crate) fn is_checked(&self) -> bool {
        let objects = |tensor: &DescribedTensor| tensor.chunks(self.description.chunk_bytes());
        let summed = |tensor: &PlannedTensor<'_>| tensor.described.digests.len() as u64 == objects(tensor.described);
        self.is_sealed() || self.tensors.iter().all(summed)
    }

    /// The objects to fetch.
    pub(crate) fn objects(&self) -> Result<Vec<Incoming>> {
        let place = SampleObjects {
            store: self.store,
            sample: self.reference,
        };
        let mut objects = Vec::new();
        for tensor in &self.tensors {
            let keys = self.description.keys_of(tensor.described, place)?;
            // Everything that may write there, the engine or the checking thread, holds the claim.
            let held = |part: &Span| match tensor.claimed {
                true => part.clone().guarded(Arc::clone(&self.claim)),
                false => Ok(part.clone()),
            };
            let chunk = self.description.chunk_bytes();
            let memory: Vec<ObjectMemory> = match &tensor.memory {
                TensorMemory::Host(parts) => {
                    let parts: Result<Vec<Span>> = parts.iter().map(held).collect();
                    cut(&parts?, chunk)?.into_iter().map(ObjectMemory::Host).collect()
                }
                TensorMemory::Device(bytes) => {
                    let claim: Arc<Claim> = Arc::clone(&self.claim);
                    let parts = cut_device(bytes, chunk, claim).into_iter();
                    parts.map(ObjectMemory::Device).collect()
                }
            };
            let checks = checks(tensor.described, self.description, self.opener.as_ref(), keys.len())?;
            for ((key, memory), check) in keys.into_iter().zip(memory).zip(checks) {
                let staged = tensor.staged;
                objects.push(Incoming {
                    key,
                    memory,
                    check,
                    staged,
                });
            }
        }
        Ok(objects)
    }

    pub(crate) fn tensors(self) -> Vec<TensorOut> {
        let out = |tensor: PlannedTensor<'_>| TensorOut {
            spec: tensor.described.spec.clone(),
            parts: match tensor.memory {
                TensorMemory::Host(parts) => parts,
                TensorMemory::Device(_) => Vec::new(),
            },
        };
        self.tensors.into_iter().map(out).collect()
    }
}

impl Inner {
    /// Plans a get: finds memory for the wanted tensors of a sample.
    pub(crate) async fn plan_get<'a>(
        &'a self,
        reference: &'a SampleRef,
        description: &'a Description,
        wanted: Wanted,
        deadline: Deadline,
    ) -> Result<GetPlan<'a>> {
        let store = &self.runtime.config.store;
        let opener = opener(self.io.seals.as_ref(), store, reference, description).inspect_err(|error| {
            if error.kind() == ErrorKind::Corrupt {
                self.runtime.count.corrupt.one();
            }
        })?;
        let mut chosen = Vec::new();
        let mut given = Vec::new();
        for (tensor, destination) in choose(description, wanted)? {
            let source = source(tensor, destination)?;
            if let Some(Source::Device(bytes)) = &source {
                let stages = &self.io.stages;
                stages.prepare_for(OPERATION, &**bytes, description.chunk_bytes())?;
            }
            chosen.push((tensor, source.is_some()));
            given.extend(source);
        }
        let given = self.memory.register_all(given, deadline).await?;
        let ranges: Vec<_> = given.iter().flat_map(TensorMemory::ranges).collect();
        let mut given = given.into_iter();
        let claim = self.memory.claim(OPERATION, Access::Write, ranges, deadline).await?;
        let wanting = chosen.iter().filter(|(_, claimed)| !claimed);
        let wanting: Vec<&DescribedTensor> = wanting.map(|(tensor, _)| *tensor).collect();
        let mut made = self.memory_for(&wanting, description, deadline).await?.into_iter();
        let plan = |(tensor, claimed): (&'a DescribedTensor, bool)| {
            let given = if claimed { given.next() } else { None };
            let memory = given.unwrap_or_else(|| TensorMemory::Host(made.next().into_iter().collect()));
            let unknown = match &memory {
                TensorMemory::Host(parts) => parts.iter().any(|part| self.memory.private.keeps_private(part)),
                TensorMemory::Device(_) => true,
            };
            PlannedTensor {
                described: tensor,
                staged: unknown && opener.is_none(),
                memory,
                claimed,
            }
        };
        let tensors = chosen.into_iter().map(plan).collect();
        Ok(GetPlan {
            store,
            reference,
            description,
            opener,
            tensors,
            claim,
        })
    }

    /// Plans a get whose description the index has not confirmed (module `early`, EG2 to EG4). None if the sample has to
    /// be got otherwise, or no memory is free.
    pub(crate) async fn plan_early<'a>(
        &'a self,
        reference: &'a SampleRef,
        description: &'a Description,
        wanted: &Wanted,
        deadline: Deadline,
    ) -> Result<Option<GetPlan<'a>>> {
        let Some(wanted) = wanted.of_pool() else {
            return Ok(None);
        };
        let store = &self.runtime.config.store;
        let opener = opener(self.io.seals.as_ref(), store, reference, description)?;
        let chosen: Vec<&DescribedTensor> = choose(description, wanted)?.into_iter().map(|(one, _)| one).collect();
        let lens = lengths(chosen.iter().filter(|tensor| tensor.spec.bytes() > 0))?;
        let pool = &self.memory.pool;
        if chosen.iter().any(|tensor| tensor.key.is_some()) || pool.is_large(&lens) {
            return Ok(None);
        }
        let spans = match lens.is_empty() {
            true => Some(Vec::new()),
            false => pool.take_free(&lens, deadline).await?,
        };
        let Some(spans) = spans else {
            return Ok(None);
        };
        let mut spans = spans.into_iter();
        let plan = |described: &'a DescribedTensor| PlannedTensor {
            described,
            memory: TensorMemory::Host(match described.spec.bytes() {
                0 => Vec::new(),
                _ => spans.next().into_iter().collect(),
            }),
            claimed: false,
            staged: false,
        };
        let tensors = chosen.into_iter().map(plan).collect();
        let plan = GetPlan {
            store,
            reference,
            description,
            opener,
            tensors,
            claim: self
                .memory
                .claim(OPERATION, Access::Write, Vec::new(), deadline)
                .await?,
        };
        Ok(plan.is_checked().then_some(plan))
    }

    /// Clears the memory of tensors that are not handed out (SS3 in module `sealed`). Nothing else writes there any
    /// more: the engine may still write only to a stage.
    pub(crate) async fn clear(&self, plan: &GetPlan<'_>) {
        let host = plan.tensors.iter().flat_map(|tensor| tensor.memory.host());
        let parts: Vec<Span> = host.cloned().collect();
        let again = parts.clone();
        let deadline = self.runtime.own_deadline();
        let cleared = self
            .runtime
            .blocking
            .run(OPERATION, deadline, move |_| wipe(&parts))
            .await;
        if cleared.is_err()
            && let Err(error) = wipe(&again)
        {
            tracing::error!(%error, "memory of a failed get was not cleared");
        }
    }

    /// Memory for each of these tensors: from the pool, or allocated for it if together they are more than the pool can
    /// spare.
    async fn memory_for(
        &self,
        tensors: &[&DescribedTensor],
        description: &Description,
        deadline: Deadline,
    ) -> Result<Vec<Span>> {
        let lens = lengths(tensors)?;
        if lens.is_empty() {
            return Ok(Vec::new());
        }
        if !self.memory.pool.is_large(&lens) {
            return self.memory.pool.take_all(&lens, deadline).await;
        }
        // It would wait for all other gets, and they for it.
        if let Some(spans) = self.memory.pool.take_free(&lens, deadline).await? {
            return Ok(spans);
        }
        let chunk = description.chunk_bytes();
        let passes = |tensor: &&DescribedTensor| {
            let object = match tensor.key {
                Some(_) => tensor.spec.bytes(),
                None => tensor.spec.bytes().min(chunk),
            };
            self.io.seals.is_some() || usize::try_from(object).is_ok_and(|len| self.io.stages.incoming.ever_fits(len))
        };
        let backings = tensors.iter().map(|tensor| match passes(tensor) {
            true => self.memory.private.clone(),
            false => self.memory.backing.clone(),
        });
        let made: Vec<_> = lens.into_iter().zip(backings).collect();
        let make = move |within| {
            let one =
                |(len, backing): (usize, Backing)| Ok(backing.region(HostMemory::allocate(len)?, within)?.whole());
            made.into_iter().map(one).collect()
        };
        self.runtime.blocking.run(OPERATION, deadline, make).await
    }
}

/// The caller's memory; none if the store is to find some.
fn source(tensor: &DescribedTensor, destination: Destination) -> Result<Option<Source>> {
    let source = match destination {
        Destination::Pool if tensor.spec.bytes() > 0 => return Ok(None),
        Destination::Pool => Source::Spans(Vec::new()),
        Destination::Spans(spans) => Source::Spans(spans),
        Destination::Lent(memory) => Source::Lent(memory),
        Destination::Device(bytes) => Source::Device(bytes),
    };
    check_length(OPERATION, &tensor.spec, source.bytes())?;
    Ok(Some(source))
}

/// The lengths of tensors in memory.
fn lengths<'a>(tensors: impl IntoIterator<Item = &'a &'a DescribedTensor>) -> Result<Vec<usize>> {
    let length = |tensor: &&DescribedTensor| {
        usize::try_from(tensor.spec.bytes())
            .map_err(|_| Error::invalid(OPERATION, "this tensor is larger than an address space"))
    };
    tensors.into_iter().map(length).collect()
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
