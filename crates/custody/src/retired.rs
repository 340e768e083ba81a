//! A sample that is to be removed.

use holdfast_core::{Generation, Nonce, ObjectKey, Result};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{SessionId, Tick, Token, Version};
use crate::lease::Lease;
use crate::quota::is_zero;

/// Why a generation was retired.
///
/// It is stored by its name here. A release that does not know a reason reads [`Reason::Other`], and writes that back when
/// it changes the record (a reader releases its lease, a removal fails). Reading a record, no decision depends
/// on its reason; writing one, a sample that is retired as lost is kept for a while ([`Retired::kept_until`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub enum Reason {
    /// Every group has acknowledged it.
    Consumed,
    /// Its producer, or another session that is allowed to, took it back.
    Aborted,
    /// Its producer died, or let its reservation expire, before it committed.
    Abandoned,
    /// A later generation of the same sample was committed.
    Superseded,
    /// At least one group ran out of attempts, and no other group waits for it.
    DeadLetter,
    /// Its objects are gone from the engine.
    Lost,
    /// A reason that only a later release knows.
    Other,
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// A reason as it is stored: its name, or whatever a later release writes.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Stored {
            Known(#[serde(with = "Reason")] Reason),
            Later(IgnoredAny),
        }
        Ok(match Stored::deserialize(deserializer)? {
            Stored::Known(reason) => reason,
            Stored::Later(IgnoredAny) => Self::Other,
        })
    }
}

/// A generation that no new reader can lease. Its objects may be removed once [`Retired::may_be_freed`] holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retired {
    /// Which incarnation; `None` until the index has filled in the version of the reserving write.
    pub generation: Option<Generation>,
    /// Random part of the objects' keys.
    pub nonce: Nonce,
    /// The session that produced it.
    pub producer: SessionId,
    /// Its size in bytes.
    pub bytes: u64,
    /// How many bytes of the store's budget come back when it is freed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paid: u64,
    /// The leases that existed when it was retired and that their holders have not released.
    pub readers: Vec<Lease>,
    /// Why it was retired.
    pub reason: Reason,
    /// How often removing its objects has failed.
    pub failed_frees: u32,
    /// What its producer was about to write, if it never committed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plan: String,
    /// The tick until which the record is kept, although its objects may be removed. The objects of a lost sample may
    /// come back with a process that held them and was away, and are then removed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Tick>,
    /// The objects that it owns although another writer named them, until it is freed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ObjectKey>,
}

impl Retired {
    /// Fills in the version of the write that this record was part of.
    pub fn settle(&mut self, version: Version) {
        self.readers.iter_mut().for_each(|lease| lease.settle(version));
    }

    /// A reader releases its lease.
    pub fn release(mut self, token: Token) -> Result<Self> {
        let before = self.readers.len();
        self.readers.retain(|lease| !lease.has(token));
        if self.readers.len() == before {
            return Err(crate::live::fenced("custody.release", token));
        }
        Ok(self)
    }

    /// Whether a token still holds a lease. A reader checks this before it hands out bytes.
    pub fn holds(&self, token: Token) -> bool {
        self.readers.iter().any(|lease| lease.has(token))
    }

    /// Whether its objects may be removed: no reader can be reading them.
    pub fn may_be_freed(&self) -> bool {
        self.readers.is_empty()
    }

    /// Keeps the record until this tick is over.
    #[must_use]
    pub fn kept_until(mut self, tick: Tick) -> Self {
        self.kept = Some(tick);
        self
    }

    /// The time is over: once its objects are removed, the record may be forgotten.
    #[must_use]
    pub fn kept_no_longer(mut self) -> Self {
        self.kept = None;
        self
    }

    /// Counts a failed attempt to remove its objects. The record stays, and removal is tried again.
    pub fn free_failed(mut self) -> Self {
        self.failed_frees = self.failed_frees.saturating_add(1);
        self
    }
}
