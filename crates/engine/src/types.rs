//! What goes into a call and what comes out of it, per object.

use std::time::Duration;

use holdfast_core::{Error, ObjectKey};

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
    /// Whether the engine may evict them. Default: [`Pin::Hard`], because what Holdfast has custody of is never the
    /// engine's to drop.
    pub pin: Pin,
    /// How many copies in DRAM, at most one per holder; an engine with fewer holders makes fewer. Default: 1.
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
    /// It may, when memory gets short.
    Evictable,
    /// It may once this time has passed since the last use; before that only when nothing else can go.
    Soft(Duration),
    /// Never. Only a remove frees the object. Cannot be taken back. A copy may go to SSD all the same, and one that
    /// comes back from there after a restart has lost its pin.
    Hard,
}

/// What became of one object of a put.
#[derive(Clone, Debug)]
pub enum PutOutcome {
    /// There is an object under this key. **If there was one before, it is unchanged**: engines cannot tell the two
    /// apart, so no key is ever to be written twice.
    Stored,
    /// There is no room now; nothing was written. The engine may be making room: try again later.
    Full,
    /// It did not work. Whether anything was written follows from [`Error::retry`].
    Failed(Error),
}

/// What became of one object of a get.
#[derive(Clone, Debug)]
pub enum GetOutcome {
    /// The buffers are full, and the object is exactly as long as they are. Whether the bytes are those that were
    /// committed is for the caller to check: an object removed during the transfer can be torn.
    Loaded,
    /// There is no such object, as far as the engine knows now: a holder that has it may yet register.
    Miss,
    /// Its put has begun and has not ended, or none of its copies can be read yet. No miss: it may come.
    Unfinished,
    /// The object has another length than the buffers; their content is unspecified.
    WrongLength {
        /// How long the object is.
        stored: u64,
    },
    /// It did not work; the content of the buffers is unspecified.
    Failed(Error),
}

/// What became of one object of a forced remove.
#[derive(Clone, Debug)]
pub enum RemoveOutcome {
    /// It is gone from DRAM, whoever was reading it.
    Removed,
    /// There was nothing to remove. For whoever wants it gone this is success.
    Absent,
    /// Its put never ended. The engine will not remove it before its own timeout; it can be read by nobody.
    Unfinished,
    /// It did not work; it may be there or not.
    Failed(Error),
}

/// What a probe sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// No readable object and no put under way.
    Absent,
    /// A put has begun and has not ended; it may never do.
    Unfinished,
    /// A readable object. What reads it later may still miss: presence is a hint.
    Present {
        /// Copies in DRAM.
        dram: u32,
        /// Copies on SSD.
        ssd: u32,
        /// The object's length.
        bytes: u64,
    },
}

/// What became of a hint to bring one object up into DRAM.
#[derive(Clone, Debug)]
pub enum RaiseOutcome {
    /// It is in DRAM already.
    InDram,
    /// It is on SSD only, and the engine has been told. It comes up later, or not at all.
    Asked,
    /// There is no such object.
    Absent,
    /// It did not work.
    Failed(Error),
}

/// What an engine holds, over all of its holders. Figures are as fresh as the engine makes them.
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
    /// Objects it knows.
    pub objects: u64,
    /// Segments that holders have registered now.
    pub holders: u64,
    /// How often this client has seen the engine's directory begin anew (a restarted master, another leader). What was said
    /// before that says nothing about what is there after it.
    pub restarts: u64,
}

/// Memory that an engine has registered for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registrations {
    /// Regions registered and not yet given back, stuck ones included.
    pub regions: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Regions that the engine refused to forget. Their memory is kept, because somebody may still write to it.
    pub stuck: usize,
}

/// What an engine can do and how much at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The engine's name, for people.
    pub engine: &'static str,
    /// The most objects in one batch.
    pub max_batch: usize,
    /// Whether there is an SSD tier.
    pub ssd: bool,
    /// Whether [`crate::Engine::probe`] and [`crate::Engine::usage`] are there (they may need an address of their own).
    pub probe: bool,
}
