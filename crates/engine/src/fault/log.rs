//! The log: which fault struck which call.

use std::fmt;
use std::time::Duration;

/// The operations that faults can strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the method of Engine with that name")]
pub enum Operation {
    Put,
    Get,
    Remove,
    Probe,
    List,
    Promote,
    Usage,
}

impl Operation {
    /// Its name, as in the operation of an error.
    pub(super) const fn dotted(self) -> &'static str {
        match self {
            Self::Put => "engine.put",
            Self::Get => "engine.get",
            Self::Remove => "engine.remove",
            Self::Probe => "engine.probe",
            Self::List => "engine.list",
            Self::Promote => "engine.raise",
            Self::Usage => "engine.usage",
        }
    }

    /// Whether doing the operation twice, or not knowing whether it was done, can make a difference.
    pub(super) const fn changes_something(self) -> bool {
        matches!(self, Self::Put | Self::Remove)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dotted().trim_start_matches("engine."))
    }
}

/// What a fault did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The call was done and its reply was not delivered.
    ReplyLost,
    /// The call was not done.
    RequestLost,
    /// The call began this much later.
    Delayed(Duration),
    /// The call would have begun after its deadline; it was not done.
    TooLate(Duration),
    /// The caller was told that the object has this length.
    ReadShort {
        /// The length that the caller was told.
        stored: u64,
    },
    /// These bytes of the destination were altered.
    Torn {
        /// The first of them, counted over all buffers.
        at: u64,
        /// How many.
        len: u64,
    },
    /// The object was not passed on.
    Withheld,
    /// A holder died, for this many calls from this one on.
    HolderLost {
        /// How many.
        calls: u32,
    },
    /// The object is on the holder that died.
    HolderDown,
    /// This many objects were lost with the holder that died.
    ObjectsGone(usize),
    /// The master died, for this many calls from this one on.
    MasterLost {
        /// How many.
        calls: u32,
    },
    /// There was no master for the call.
    MasterDown,
}

/// One fault that took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InjectedFault {
    /// The number of the call that the fault struck, from zero.
    pub call: u64,
    /// The call's operation.
    pub operation: Operation,
    /// Which object of the batch, if the fault struck one.
    pub item: Option<usize>,
    /// What it did.
    pub effect: Effect,
}

impl fmt::Display for InjectedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}, {}", self.call, self.operation)?;
        if let Some(item) = self.item {
            write!(f, ", object {item}")?;
        }
        f.write_str(": ")?;
        match self.effect {
            Effect::ReplyLost => f.write_str("the reply was lost"),
            Effect::RequestLost => f.write_str("the request was lost"),
            Effect::Delayed(by) => write!(f, "delayed by {by:?}"),
            Effect::TooLate(by) => write!(f, "delayed by {by:?}, past the deadline"),
            Effect::ReadShort { stored } => write!(f, "read short, at {stored} bytes"),
            Effect::Torn { at, len } => write!(f, "torn, {len} bytes at {at}"),
            Effect::Withheld => f.write_str("withheld from the batch"),
            Effect::HolderLost { calls } => write!(f, "a holder died, for {calls} calls"),
            Effect::HolderDown => f.write_str("its holder is down"),
            Effect::ObjectsGone(count) => write!(f, "{count} objects went with their holder"),
            Effect::MasterLost { calls } => write!(f, "the master died, for {calls} calls"),
            Effect::MasterDown => f.write_str("the master is down"),
        }
    }
}
