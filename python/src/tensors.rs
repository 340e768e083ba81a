//! Tensors in and out: their description from Python, and where their bytes are.
//!
//! Tensors are put from where they lie. Only small ones (token ids, masks) are copied into the pool first, because
//! registering and forgetting their memory takes longer than the copy.
//!
//! Nothing arrives in host memory that is not the store's. A transfer may outlive its call, and then writes whenever it
//! ends; no reference to a Python object keeps its memory in place until then (`share_memory_` of torch, which its
//! multiprocessing calls, exchanges the memory *in* a storage, and `resize_` does). So the bytes arrive in memory of the
//! store, are checked there, and are copied by the caller's own thread before its call returns (`_inputs.fill`).

#![expect(
    unsafe_code,
    reason = "the FFI edge: bytes of Python objects, named by their address"
)]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use tensorhold_core::{DType, Error, ErrorKind, Result, TensorName, TensorSpec};
use tensorhold_engine::{Access, Busy, Span};
use tensorhold_features::{Description, Destination, DeviceBytes, Source, TensorIn, TensorOut, Wanted};

use crate::convert::Spec;
use crate::device::{Allocator, OnDevice};
use crate::errors::OrRaise;
use crate::loan_table::{Output, Piece};
use crate::memory::Memory;
use crate::opening::Parts;
use crate::operation::Until;

/// Where a tensor's bytes are, according to Python.
#[derive(FromPyObject)]
pub(crate) enum Bytes {
    /// Memory of a store.
    #[pyo3(transparent)]
    Own(Py<Memory>),
    /// Memory of a device.
    #[pyo3(transparent)]
    OnDevice(Py<OnDevice>),
    /// Memory of another object: address, length, and the object that keeps it alive.
    Lent(usize, usize, Py<PyAny>),
}

/// Name, element type, shape, and the bytes, if it has any.
pub(crate) type Given = (String, String, Vec<u64>, Option<Bytes>);

/// Where a tensor's bytes are, ready for the store's tasks.
pub(crate) enum Place {
    Nowhere,
    Output(Arc<Output>),
    Piece(Piece),
    /// In the pool; the original piece is kept with it.
    Copied(Span, Piece),
    Device(Arc<dyn DeviceBytes>),
}

impl Place {
    pub(crate) fn of(py: Python<'_>, bytes: Option<Bytes>) -> Result<Self> {
        Ok(match bytes {
            None => Self::Nowhere,
            Some(Bytes::OnDevice(tensor)) => Self::Device(tensor.get().bytes(py)?),
            Some(Bytes::Own(memory)) => {
                let output = memory.get().output()?;
                if output.is_known() {
                    return Ok(Self::Output(Arc::clone(output)));
                }
                let (address, len) = (output.span().address(), output.span().len());
                let owner = memory.into_any();
                Self::Piece(Piece {
                    address,
                    len,
                    owner,
                    is_ours: true,
                })
            }
            Some(Bytes::Lent(_, 0, _)) => Self::Nowhere,
            // The last net: small pieces are copied from here without any further look.
            Some(Bytes::Lent(0, ..)) => {
                let message = "a tensor says that its bytes lie at address 0; pass one that has bytes of its own";
                return Err(Error::new(ErrorKind::Unsupported, "python.tensor", message));
            }
            Some(Bytes::Lent(address, len, owner)) => Self::Piece(Piece {
                address,
                len,
                owner,
                is_ours: false,
            }),
        })
    }
}

/// A tensor to be put, ready for the store's tasks.
pub(crate) struct Ready {
    pub(crate) spec: TensorSpec,
    pub(crate) place: Place,
}

pub(crate) fn spec(name: &str, dtype: &str, shape: Vec<u64>) -> Result<TensorSpec> {
    let dtype: DType = dtype.parse()?;
    TensorSpec::new(TensorName::new(name)?, dtype, shape)
}

impl Ready {
    pub(crate) fn of(py: Python<'_>, given: Given) -> Result<Self> {
        let (name, dtype, shape, bytes) = given;
        Ok(Self {
            spec: spec(&name, &dtype, shape)?,
            place: Place::of(py, bytes)?,
        })
    }
}

/// Tensors up to this size are copied into the pool instead of being registered, if there is room.
const SMALL: usize = 128 << 10;

/// Copies small pieces into memory of the pool; `None` if the pool has no room: this does not wait for room, because
/// lending needs none.
async fn copied(parts: &Parts, pieces: &[&Piece], within: Duration) -> Result<Option<Vec<Span>>> {
    let usage = parts.store.pool().usage();
    let room = usage.budget.saturating_sub(usage.lent);
    if room < 2 * SMALL as u64 {
        return Ok(None);
    }
    // A late get may still write there.
    let ranges = pieces.iter().map(|piece| piece.address..piece.address + piece.len);
    let mut waiting = Busy::process().claim("python.put", Access::Read, ranges)?;
    let Ok(_unchanged) = tokio::time::timeout(within, &mut waiting).await else {
        return Err(waiting.refusal());
    };
    let lens: Vec<usize> = pieces.iter().map(|piece| piece.len).collect();
    let Some(spans) = parts.store.pool().free_buffers(&lens, within).await? else {
        return Ok(None);
    };
    for (piece, span) in pieces.iter().zip(&spans) {
        let from = std::ptr::with_exposed_provenance::<u8>(piece.address);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(span.address());
        // SAFETY: the piece's owner keeps its bytes alive, no engine writes to them while they are claimed, and the
        // call's contract is that no other code changes them; the buffer was just allocated for this copy alone and is
        // as long. No reference is made to either.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, piece.len);
        }
    }
    Ok(Some(spans))
}

/// The memory of each place, in order: registered, or on a device.
async fn registered(parts: &Parts, places: Vec<Place>, within: Duration) -> Result<Vec<Source>> {
    let mut pieces = Vec::new();
    let mut known: Vec<Option<Source>> = Vec::with_capacity(places.len());
    for place in places {
        known.push(match place {
            Place::Nowhere => Some(Source::Spans(Vec::new())),
            Place::Output(output) => Some(Source::from(output.span().clone())),
            Place::Copied(span, _source) => Some(Source::from(span)),
            Place::Device(bytes) => Some(Source::Device(bytes)),
            Place::Piece(piece) => {
                pieces.push(piece);
                None
            }
        });
    }
    let mut lent = parts.loans.lend(&parts.store, pieces, within).await?.into_iter();
    let missing = || Error::internal("python.lend", "a tensor got no memory; this is a bug in Tensorhold");
    known
        .into_iter()
        .map(|known| known.or_else(|| lent.next().map(Source::from)).ok_or_else(missing))
        .collect()
}

/// The same places, with small pieces moved into the pool.
async fn small_copied(parts: &Parts, places: Vec<Place>, within: Duration) -> Result<Vec<Place>> {
    let small = |place: &Place| matches!(place, Place::Piece(piece) if piece.len <= SMALL);
    let pieces = places.iter().filter_map(|place| match place {
        Place::Piece(piece) if small(place) => Some(piece),
        _ => None,
    });
    let pieces: Vec<&Piece> = pieces.collect();
    if pieces.is_empty() {
        return Ok(places);
    }
    let Some(spans) = copied(parts, &pieces, within).await? else {
        return Ok(places);
    };
    let mut spans = spans.into_iter();
    let moved = |place: Place| match place {
        Place::Piece(piece) if piece.len <= SMALL => match spans.next() {
            Some(span) => Place::Copied(span, piece),
            None => Place::Piece(piece),
        },
        other => other,
    };
    Ok(places.into_iter().map(moved).collect())
}

/// Tensors in the store's form, for several samples at once: overlapping memory is lent only once.
pub(crate) async fn sources(parts: &Parts, samples: Vec<Vec<Ready>>, within: Duration) -> Result<Vec<Vec<TensorIn>>> {
    let mut places = Vec::new();
    let mut specs = Vec::new();
    for tensors in samples {
        let mut of_sample = Vec::with_capacity(tensors.len());
        for Ready { spec, place } in tensors {
            of_sample.push(spec);
            places.push(place);
        }
        specs.push(of_sample);
    }
    let until = Until::after(within);
    let found = async {
        let places = small_copied(parts, places, until.left()).await?;
        registered(parts, places, until.left()).await
    };
    let mut memory = parts.store.unless_closed("python.put", found).await?.into_iter();
    let tensor = |spec: TensorSpec, memory: Option<Source>| TensorIn {
        spec,
        bytes: memory.unwrap_or(Source::Spans(Vec::new())),
    };
    Ok(specs
        .into_iter()
        .map(|of_sample| of_sample.into_iter().map(|spec| tensor(spec, memory.next())).collect())
        .collect())
}

/// A get request from Python, ready for the store's tasks.
pub(crate) enum Wish {
    All,
    Names(Vec<TensorName>),
    Into(Vec<Ready>),
    /// Into memory of a device, which is allocated when the tensors are known.
    Allocated(Option<Vec<TensorName>>, Allocator),
}

/// Where a get puts bytes, according to Python.
#[derive(FromPyObject)]
pub(crate) enum IntoMemory {
    /// These tensors.
    #[pyo3(transparent)]
    Given(Vec<Given>),
    /// What this function returns for the specs of the tensors.
    #[pyo3(transparent)]
    Allocator(Py<PyAny>),
}

impl Wish {
    pub(crate) fn of(py: Python<'_>, names: Option<Vec<String>>, into: Option<IntoMemory>) -> PyResult<Self> {
        let checked = |names: Vec<String>| names.iter().map(TensorName::new).collect::<Result<Vec<_>>>();
        let names = names.map(checked).transpose().or_raise(py)?;
        Ok(match (into, names) {
            (Some(IntoMemory::Given(into)), _) => {
                let chosen: Result<Vec<Ready>> = into.into_iter().map(|given| Ready::of(py, given)).collect();
                Self::Into(chosen.or_raise(py)?)
            }
            (Some(IntoMemory::Allocator(allocate)), names) if allocate.bind(py).is_callable() => {
                Self::Allocated(names, Allocator::new(allocate))
            }
            (Some(IntoMemory::Allocator(_)), _) => {
                let error = Error::internal(
                    "python.get",
                    "the memory to get into is not what it should be; this is a bug",
                );
                return Err(error).or_raise(py);
            }
            (None, None) => Self::All,
            (None, Some(names)) => Self::Names(names),
        })
    }

    /// The same, if all of it goes into memory of the pool.
    pub(crate) fn of_pool(&self) -> Option<Wanted> {
        match self {
            Self::All => Some(Wanted::All),
            Self::Names(names) => Some(Wanted::Names(names.clone())),
            Self::Into(_) | Self::Allocated(..) => None,
        }
    }

    /// The get plan for a sample with this description.
    pub(crate) async fn wanted(self, parts: &Parts, sample: &Description, within: Duration) -> Result<Wanted> {
        Ok(match self {
            Self::All => Wanted::All,
            Self::Names(names) => Wanted::Names(names),
            Self::Allocated(names, allocator) => {
                let all = sample.tensors().iter().map(|tensor| &tensor.spec);
                let chosen: Vec<TensorSpec> = match &names {
                    None => all.cloned().collect(),
                    Some(names) => names
                        .iter()
                        .filter_map(|name| sample.tensor(name).map(|tensor| tensor.spec.clone()))
                        .collect(),
                };
                match names {
                    // The get itself reports that there is no such tensor.
                    Some(names) if names.len() > chosen.len() => Wanted::Names(names),
                    _ => Wanted::Into(allocator.allocate(chosen, within).await?),
                }
            }
            Self::Into(chosen) => {
                let mut names = Vec::with_capacity(chosen.len());
                let mut known = Vec::with_capacity(chosen.len());
                let mut ours = Vec::new();
                for Ready { spec, place } in chosen {
                    check_fits(sample, &spec)?;
                    names.push(spec.name().clone());
                    known.push(match place {
                        Place::Piece(piece) if !piece.is_ours => Some(match parts.loans.known(&piece) {
                            Some(span) => Destination::Spans(vec![span?]),
                            None => Destination::Pool,
                        }),
                        place => {
                            ours.push(place);
                            None
                        }
                    });
                }
                let found = registered(parts, ours, within);
                let memory = parts.store.unless_closed("python.get", found).await?.into_iter();
                let mut ours = memory.map(|source| match source {
                    Source::Spans(spans) => Destination::Spans(spans),
                    Source::Lent(memory) => Destination::Lent(memory),
                    Source::Device(bytes) => Destination::Device(bytes),
                });
                let missing = || Error::internal("python.get", "a tensor got no memory; this is a bug in Tensorhold");
                let destinations = known
                    .into_iter()
                    .map(|known| known.or_else(|| ours.next()).ok_or_else(missing));
                let destinations: Result<Vec<Destination>> = destinations.collect();
                Wanted::Into(names.into_iter().zip(destinations?).collect())
            }
        })
    }
}

/// Refuses a destination with another element type or shape than the tensor that goes there. Flat bytes accept any
/// tensor.
fn check_fits(sample: &Description, given: &TensorSpec) -> Result<()> {
    let Some(tensor) = sample.tensor(given.name()) else {
        return Ok(()); // the get itself reports that there is no such tensor
    };
    let flat = given.dtype() == DType::Uint8 && given.shape().len() == 1 && given.bytes() == tensor.spec.bytes();
    if flat || (given.dtype() == tensor.spec.dtype() && given.shape() == tensor.spec.shape()) {
        return Ok(());
    }
    Err(Error::invalid(
        "python.get",
        "the memory to get into has another element type or shape than the tensor",
    )
    .with("tensor", &tensor.spec)
    .with("into", given))
}

/// The result of a get for Python: for each tensor its spec and, if its bytes are in the pool, its memory.
pub(crate) struct Got {
    tensors: Vec<TensorOut>,
    parts: Parts,
    /// The tensors that the store found memory for; none if it did for all.
    found_for: Option<HashSet<TensorName>>,
}

/// The tensors of a get for which the store finds memory; none if it does for all.
pub(crate) fn found_for(wanted: &Wanted) -> Option<HashSet<TensorName>> {
    match wanted {
        Wanted::All | Wanted::Names(_) => None,
        Wanted::Into(named) => {
            let found = named.iter().filter(|(_, to)| matches!(to, Destination::Pool));
            Some(found.map(|(name, _)| name.clone()).collect())
        }
    }
}

impl Got {
    /// Of tensors that are all in memory that the store found.
    pub(crate) fn new(tensors: Vec<TensorOut>, parts: Parts) -> Self {
        Self::some_found(tensors, parts, None)
    }

    /// Of tensors of which only these are in memory that the store found: see [`found_for`].
    pub(crate) fn some_found(tensors: Vec<TensorOut>, parts: Parts, found_for: Option<HashSet<TensorName>>) -> Self {
        Self {
            tensors,
            parts,
            found_for,
        }
    }

    pub(crate) fn deliver(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut all = Vec::with_capacity(self.tensors.len());
        for tensor in self.tensors {
            let spec = Spec::of(&tensor.spec);
            let mut spans = tensor.parts.into_iter();
            // What arrived in memory that the caller named is there already.
            let found_for = self.found_for.as_ref();
            let is_found = found_for.is_none_or(|names| names.contains(tensor.spec.name()));
            let memory = match spans.next().filter(|_| is_found) {
                Some(span) => Some(Py::new(py, memory(span, &self.parts))?),
                None => None,
            };
            all.push((spec, memory));
        }
        all.into_py_any(py)
    }
}

/// Memory of the pool, or memory allocated outside it, as a Python object.
pub(crate) fn memory(span: Span, parts: &Parts) -> Memory {
    let known = !parts.store.is_private(&span);
    Memory::new(Output::new(span, known, &parts.loans, &parts.reaper))
}
