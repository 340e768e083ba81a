//! Tensors on their way in and out: their specs, and where their bytes lie.
//!
//! Bytes move once, between the memory named here and the engine. Memory is named as registered [`Span`]s, or *lent*:
//! then it is registered for the transfer and unregistered after it. Bytes on a device pass through a stage (module
//! `device`).

use std::ops::Range;
use std::sync::Arc;

use tensorhold_core::{Error, Result, TensorName, TensorSpec};
use tensorhold_engine::{HostMemory, Span};

use crate::memory::device::DeviceBytes;

/// A tensor to be put.
#[derive(Debug)]
pub struct TensorIn {
    /// Its name, element type and shape.
    pub spec: TensorSpec,
    /// Its bytes, dense and in row-major order.
    pub bytes: Source,
}

/// Where the bytes of a tensor are before a put. **The caller must not change them until the put has returned**: the
/// checksum is computed while they move, and must be that of the bytes that the engine stored.
#[derive(Debug)]
pub enum Source {
    /// Registered memory, in one or several pieces; no spans for a tensor without bytes.
    Spans(Vec<Span>),
    /// Memory that is registered for the transfer. It must not overlap memory that is registered already.
    Lent(HostMemory),
    /// Memory of a device.
    Device(Arc<dyn DeviceBytes>),
}

impl Source {
    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Spans(spans) => spans.iter().map(|span| span.len() as u64).sum(),
            Self::Lent(memory) => memory.len() as u64,
            Self::Device(bytes) => bytes.len() as u64,
        }
    }
}

impl From<Span> for Source {
    fn from(span: Span) -> Self {
        Self::Spans(vec![span])
    }
}

impl From<HostMemory> for Source {
    fn from(memory: HostMemory) -> Self {
        Self::Lent(memory)
    }
}

impl TensorIn {
    /// A tensor and its bytes.
    pub fn new(spec: TensorSpec, bytes: impl Into<Source>) -> Self {
        Self {
            spec,
            bytes: bytes.into(),
        }
    }

    /// Refuses bytes whose number differs from what the spec says.
    pub(crate) fn check(&self) -> Result<()> {
        check_length("features.put", &self.spec, self.bytes.bytes())
    }
}

/// The memory of a tensor, registered if it lies in the host's.
pub(crate) enum TensorMemory {
    Host(Vec<Span>),
    Device(Arc<dyn DeviceBytes>),
}

impl TensorMemory {
    /// Its pieces in the host's memory.
    pub(crate) fn host(&self) -> &[Span] {
        match self {
            Self::Host(parts) => parts,
            Self::Device(_) => &[],
        }
    }

    /// What is to be claimed.
    pub(crate) fn ranges(&self) -> Vec<Range<usize>> {
        match self {
            Self::Host(parts) => parts.iter().map(Span::range).collect(),
            Self::Device(bytes) => vec![bytes.range()],
        }
    }
}

pub(crate) fn check_length(operation: &'static str, spec: &TensorSpec, given: u64) -> Result<()> {
    if given == spec.bytes() {
        return Ok(());
    }
    Err(Error::invalid(
        operation,
        "the memory is not as long as the tensor; check shape and element type",
    )
    .with("tensor", spec)
    .with("tensor_bytes", spec.bytes())
    .with("memory_bytes", given))
}

/// Which tensors of a sample to get, and into which memory.
#[derive(Debug, Default)]
pub enum Wanted {
    /// All of them, into memory of the pool.
    #[default]
    All,
    /// These, into memory of the pool.
    Names(Vec<TensorName>),
    /// These, each into memory of the caller's choice.
    Into(Vec<(TensorName, Destination)>),
}

impl Wanted {
    /// The same, if all of it goes into memory of the pool.
    pub(crate) fn of_pool(&self) -> Option<Self> {
        match self {
            Self::All => Some(Self::All),
            Self::Names(names) => Some(Self::Names(names.clone())),
            Self::Into(_) => None,
        }
    }
}

/// Where the bytes of a tensor go. When a get fails, the content of this memory is unspecified; in a sealed store it is
/// zeros, or what was there before.
#[derive(Debug, Default)]
pub enum Destination {
    /// Memory of the store's pool: registered and warm, so the fastest.
    #[default]
    Pool,
    /// Registered memory of the caller, exactly as long as the tensor; no spans for a tensor without bytes.
    Spans(Vec<Span>),
    /// Memory that is registered for the transfer, exactly as long as the tensor. It must not overlap memory that is
    /// registered already.
    Lent(HostMemory),
    /// Memory of a device, exactly as long as the tensor.
    Device(Arc<dyn DeviceBytes>),
}

/// A tensor that was got: exactly the committed bytes.
///
/// Dropping the last clone of its spans gives the memory back to its owner: the pool, or the caller that lent it.
#[derive(Clone, Debug)]
pub struct TensorOut {
    /// Its name, element type and shape.
    pub spec: TensorSpec,
    /// Its bytes, in order. One piece, unless the caller's own memory came in several; none for a tensor without bytes, or
    /// on a device.
    pub parts: Vec<Span>,
}

impl TensorOut {
    /// Where its bytes begin, if they lie in one piece.
    pub fn address(&self) -> Option<usize> {
        match self.parts.as_slice() {
            [only] => Some(only.address()),
            _ => None,
        }
    }

    /// A copy of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        match self.parts.as_slice() {
            [only] => only.to_vec(),
            parts => parts.iter().flat_map(Span::to_vec).collect(),
        }
    }
}
