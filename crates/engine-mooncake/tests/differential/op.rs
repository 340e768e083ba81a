//! The operations of a sequence, done to both engines, and how they are printed.

use std::fmt;

use tensorhold_core::ObjectKey;
use tensorhold_engine::Pin;

/// Operations with this many clients, so that what one does is seen by another.
pub const CLIENTS: usize = 2;

/// One operation.
#[derive(Clone, Debug)]
pub enum Op {
    Put {
        client: usize,
        objects: Vec<Object>,
        pin: Pin,
        replicas: u32,
    },
    Get {
        client: usize,
        reads: Vec<Read>,
    },
    Remove {
        client: usize,
        keys: Vec<ObjectKey>,
    },
    Probe {
        client: usize,
        keys: Vec<ObjectKey>,
    },
    Promote {
        client: usize,
        keys: Vec<ObjectKey>,
    },
    Usage {
        client: usize,
    },
    /// A call that the contract refuses, or that has nothing to do.
    Odd {
        client: usize,
        call: Call,
        what: Oddity,
        keys: Vec<ObjectKey>,
    },
    /// A writer that dies half-way.
    Abandon {
        key: ObjectKey,
        bytes: u64,
    },
}

/// One object of a put: its bytes follow from `content`, its length is that of its parts.
#[derive(Clone, Debug)]
pub struct Object {
    pub key: ObjectKey,
    pub parts: Vec<usize>,
    pub content: u64,
}

impl Object {
    pub fn len(&self) -> usize {
        self.parts.iter().sum()
    }
}

/// One object of a get, with the lengths of the buffers that it is read into.
#[derive(Clone, Debug)]
pub struct Read {
    pub key: ObjectKey,
    pub parts: Vec<usize>,
}

/// A method of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Put,
    Get,
    Remove,
    Probe,
    Promote,
    Usage,
}

/// What is odd about an [`Op::Odd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// No objects at all.
    Empty,
    /// One object more than the engine takes.
    TooMany,
    /// No time.
    NoTime,
    /// A key occurs twice (put, get).
    Twice,
    /// Objects without a single copy (put).
    NoCopies,
    /// An object without parts (put, get).
    NoParts,
    /// Memory that another client has registered (put, get).
    Foreign,
}

impl Op {
    /// A short name, for counting.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Get { .. } => "get",
            Self::Remove { .. } => "remove",
            Self::Probe { .. } => "probe",
            Self::Promote { .. } => "promote",
            Self::Usage { .. } => "usage",
            Self::Odd { .. } => "odd",
            Self::Abandon { .. } => "abandon",
        }
    }

    /// The key of each object, in the order of the outcomes.
    pub fn keys(&self) -> Vec<&ObjectKey> {
        match self {
            Self::Put { objects, .. } => objects.iter().map(|object| &object.key).collect(),
            Self::Get { reads, .. } => reads.iter().map(|read| &read.key).collect(),
            Self::Remove { keys, .. }
            | Self::Probe { keys, .. }
            | Self::Promote { keys, .. }
            | Self::Odd { keys, .. } => keys.iter().collect(),
            Self::Usage { .. } => Vec::new(),
            Self::Abandon { key, .. } => vec![key],
        }
    }

    /// The bytes that a put would add at most, over all copies.
    pub fn adds(&self) -> u64 {
        match self {
            Self::Put { objects, replicas, .. } => {
                objects.iter().map(|object| object.len() as u64).sum::<u64>() * u64::from(*replicas)
            }
            Self::Abandon { bytes, .. } => *bytes,
            _ => 0,
        }
    }
}

/// `4096`, or `1+4095` for an object in two parts.
fn lengths(parts: &[usize]) -> String {
    let parts: Vec<_> = parts.iter().map(usize::to_string).collect();
    parts.join("+")
}

/// A key as it is shown: quoted, and cut if it is long.
fn name(key: &ObjectKey) -> String {
    const SHOWN: usize = 40;
    let text = key.as_str();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}

fn keys(f: &mut fmt::Formatter<'_>, keys: &[ObjectKey]) -> fmt::Result {
    keys.iter().try_for_each(|key| write!(f, " {}", name(key)))
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put {
                client,
                objects,
                pin,
                replicas,
            } => {
                write!(f, "client {client}: put {pin:?} ×{replicas}")?;
                objects.iter().try_for_each(|object| {
                    let (key, content) = (name(&object.key), object.content);
                    write!(f, " {key}[{} of pattern {content}]", lengths(&object.parts))
                })
            }
            Self::Get { client, reads } => {
                write!(f, "client {client}: get")?;
                let mut reads = reads.iter();
                reads.try_for_each(|read| write!(f, " {}[{}]", name(&read.key), lengths(&read.parts)))
            }
            Self::Remove { client, keys: of } => write!(f, "client {client}: remove").and_then(|()| keys(f, of)),
            Self::Probe { client, keys: of } => write!(f, "client {client}: probe").and_then(|()| keys(f, of)),
            Self::Promote { client, keys: of } => write!(f, "client {client}: promote").and_then(|()| keys(f, of)),
            Self::Usage { client } => write!(f, "client {client}: usage"),
            Self::Odd {
                client,
                call,
                what,
                keys: of,
            } => write!(f, "client {client}: {call:?} that is odd ({what:?})").and_then(|()| keys(f, of)),
            Self::Abandon { key, bytes } => write!(f, "a writer dies while it puts {}[{bytes}]", name(key)),
        }
    }
}
