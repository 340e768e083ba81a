//! The arguments and outcomes of calls, per object.

use std::time::Duration;

use tensorhold_core::{Error, ObjectKey};

use crate::region::Span;

/// One object of a put or get batch: its key, and the memory that its bytes come from or go to, in order.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The object.
    pub key: ObjectKey,
    /// One or several buffers. The object is their bytes, one after the other.
    pub parts: Vec<Span>,
}

impl Transfer {
    /// An object in one buffer.
    pub fn new(key: ObjectKey, buffer: Span) -> Self {
        Self {
            key,
            parts: vec![buffer],
        }
    }

    /// An object in several buffers.
    pub fn scattered(key: ObjectKey, parts: Vec<Span>) -> Self {
        Self { key, parts }
    }

    /// The bytes of all its buffers.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}

/// How the objects of a put are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutOptions {
    /// Whether the engine may evict them. Default: [`Pin::Hard`], because the engine must never drop objects in
    /// Tensorhold's custody.
    pub pin: Pin,
    /// How many copies in DRAM, at most one per holder. An engine with fewer holders makes fewer copies. Default: 1.
    pub replicas: u32,
    /// Segments to use first, by the engine's own names. Default: none.
    pub preferred_segments: Vec<String>,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self {
            pin: Pin::Hard,
            replicas: 1,
            preferred_segments: Vec::new(),
        }
    }
}

/// Whether an engine may evict an object on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The engine may evict it when memory gets short.
    Evictable,
    /// The engine may evict it once this time has passed since the last use, and earlier only when nothing else can go.
    Soft(Duration),
    /// The engine never evicts it. Only a remove frees the object. The pin cannot be taken back. A copy may go to SSD
    /// all the same, and a copy that comes back from there after a restart has lost its pin.
    Hard,
}

/// The outcome of one object of a put.
#[derive(Clone, Debug)]
pub enum PutOutcome {
    /// There is an object under this key. **If there was one before, it is unchanged**: engines cannot tell the two
    /// cases apart, so no key may ever be written twice.
    Stored,
    /// There is no room now; nothing was written. The engine may be making room: try again later.
    Full,
    /// The put failed. [`Error::retry`] tells whether anything may have been written.
    Failed(Error),
}

/// The outcome of one object of a get.
#[derive(Clone, Debug)]
pub enum GetOutcome {
    /// The buffers are full, and the object is exactly as long as they are. The caller must check whether these are the
    /// committed bytes: an object removed during the transfer can be torn.
    Loaded,
    /// There is no such object, as far as the engine knows now: a holder that has it may still register.
    Miss,
    /// Its put has begun and has not ended, or none of its copies can be read yet. Not a miss: it may become readable.
    Unfinished,
    /// The object has another length than the buffers; their content is unspecified.
    WrongLength {
        /// How long the object is.
        stored: u64,
    },
    /// The get failed; the content of the buffers is unspecified.
    Failed(Error),
}

/// The outcome of one object of a forced remove.
#[derive(Clone, Debug)]
pub enum RemoveOutcome {
    /// It is gone from DRAM, even if readers were reading it.
    Removed,
    /// There was nothing to remove. To a caller that wants the object gone, this is success.
    Absent,
    /// Its put never ended. The engine will not remove it before its own timeout; no reader can read it.
    Unfinished,
    /// The remove failed; the object may be there or not.
    Failed(Error),
}

/// What a probe sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// No readable object and no put in flight.
    Absent,
    /// A put has begun and has not ended; it may never end.
    Unfinished,
    /// A readable object. A later read may still miss: presence is a hint.
    Present {
        /// Copies in DRAM.
        dram: u32,
        /// Copies on SSD.
        ssd: u32,
        /// The object's length.
        bytes: u64,
    },
}

/// The outcome of a hint to promote one object to DRAM.
#[derive(Clone, Debug)]
pub enum PromoteOutcome {
    /// It is in DRAM already.
    InDram,
    /// It is on SSD only, and the engine has been asked. The engine promotes it later, or not at all.
    Asked,
    /// There is no such object.
    Absent,
    /// The hint failed.
    Failed(Error),
}

/// The outcome of a request to move one object to another holder.
#[derive(Clone, Debug)]
pub enum RelocateOutcome {
    /// The holder has been asked. It moves the object later, or not at all.
    Asked,
    /// There is no such object.
    Absent,
    /// The request failed.
    Failed(Error),
}

/// A part of the list of all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The keys, in the order of their bytes.
    pub keys: Vec<ObjectKey>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// Capacity and use over all holders of an engine. The figures are as fresh as the engine makes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of DRAM in all segments.
    pub dram_capacity: u64,
    /// Bytes of DRAM given to objects, finished or not.
    pub dram_used: u64,
    /// Bytes of SSD that may be used; zero if the engine does not know a limit.
    pub ssd_capacity: u64,
    /// Bytes of SSD in use, as far as the engine knows.
    pub ssd_used: u64,
    /// Objects that the engine knows.
    pub objects: u64,
    /// Segments that holders have registered now.
    pub holders: u64,
    /// How often this client has seen the engine's directory begin anew (a restarted master, another leader). An
    /// outcome from before such a change says nothing about what is stored after it.
    pub restarts: u64,
    /// How often holders have registered memory with this incarnation of the engine's directory. It grows when a holder
    /// comes, and when one comes back after the engine had given it up: also if both happened since the last look.
    pub mounts: u64,
}

/// The memory that a holder contributes: one segment. The engine tells SSD for all holders together ([`Usage`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its name in the engine; often a host and a port.
    pub name: String,
    /// Where it serves transfers: what the replicas of objects on it name.
    pub address: String,
    /// Tells this memory from other memory under the same name: another one means that what lay there is gone.
    pub memory: String,
    /// Bytes of DRAM.
    pub dram_capacity: u64,
    /// Bytes of it given to objects, finished or not.
    pub dram_used: u64,
}

/// Memory that an engine has registered for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registrations {
    /// Regions registered and not yet unregistered, stuck ones included.
    pub regions: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Regions that the engine refused to unregister. Their memory is kept, because the engine may still write to it.
    pub stuck: usize,
}

/// What an engine can do, and how much at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The engine's name, for messages.
    pub engine: &'static str,
    /// The most objects in one batch.
    pub max_batch: usize,
    /// Whether there is an SSD tier.
    pub ssd: bool,
    /// Whether [`crate::Engine::probe`] and [`crate::Engine::usage`] are available (they may need an address of their
    /// own).
    pub probe: bool,
    /// Whether [`crate::Engine::list`] is available.
    pub list: bool,
}
