//! A sample that is to be removed.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensorhold_core::{Error, ErrorKind, Generation, Nonce, ObjectKey, Result};

use crate::id::{SessionId, Stamp, Tick, Token, Version, WallTime};
use crate::lease::Lease;
use crate::live::{GroupState, Live, Progress, stamp_done};
use crate::quota::is_zero;
use crate::reserved::{ReservedAs, first_form, is_first_form};

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
    /// Its producer, or another session that is allowed to, took it back; or its last reader has used it up.
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

/// What stays of a sample that a group could not use within its attempts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The groups' states when it was retired: at least one is out of attempts.
    pub groups: Vec<GroupState>,
    /// How often a group may take it.
    pub max_attempts: u32,
    /// As in [`Live`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dead_ticks: u64,
}

/// A generation that no new reader can lease. Its objects may be removed once [`Retired::may_be_freed`] holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retired {
    /// The form of this record.
    #[serde(rename = "v", default = "first_form", skip_serializing_if = "is_first_form")]
    pub(crate) form: u64,
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
    /// The tick until which the record is kept. The objects of a lost sample may be removed at once, but may come back with
    /// a process that held them and was away, and are then removed again. The objects of a dead letter are kept with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Tick>,
    /// The objects that it owns although another writer named them, until it is freed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ObjectKey>,
    /// The reservation that its objects were written under, if it was made ahead; none once they are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_as: Option<ReservedAs>,
    /// When it was reserved.
    #[serde(default, skip_serializing_if = "WallTime::is_unknown")]
    pub reserved_at: WallTime,
    /// When it was committed, if it was.
    #[serde(default, skip_serializing_if = "WallTime::is_unknown")]
    pub committed_at: WallTime,
    /// When it was retired, and by whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<Stamp>,
    /// What stays of it when its objects are gone, until it is dropped; none for a sample that is no dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letter: Option<DeadLetter>,
    /// When its objects were removed, and by whom. Only a dead letter's record outlives them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freed: Option<Stamp>,
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

    /// Sets when it is retired, and by whom.
    #[must_use]
    pub fn stamped(mut self, stamp: Stamp) -> Self {
        self.retired = Some(stamp);
        self
    }

    /// Sets when a live sample is retired, and by whom, and the same for the groups that are done by this write.
    #[must_use]
    pub fn stamped_after(mut self, before: &Live, stamp: Stamp) -> Self {
        if let Some(letter) = &mut self.letter {
            stamp_done(&mut letter.groups, &before.groups, stamp);
        }
        self.stamped(stamp)
    }

    pub(crate) fn leaving(mut self, letter: DeadLetter) -> Self {
        self.letter = Some(letter);
        self
    }

    /// Whether it is a dead letter whose objects are kept with it.
    pub fn keeps_its_objects(&self) -> bool {
        self.letter.is_some() && self.kept.is_some() && self.freed.is_none()
    }

    /// Its objects are gone. A dead letter's record stays, and holds nothing any more; no other record does.
    pub fn after_free(mut self, stamp: Stamp) -> Option<Self> {
        self.letter.as_ref()?;
        self.freed = Some(stamp);
        self.kept = None;
        self.paid = 0;
        self.claims.clear();
        self.reserved_as = None;
        Some(self)
    }

    /// Puts a dead letter back into circulation: the groups that were out of attempts wait for it again, with all their
    /// attempts. `Conflict` if its objects are gone or about to be removed.
    pub fn requeue(self) -> Result<Live> {
        let refuse = |message: &str| Err(Error::new(ErrorKind::Conflict, "custody.requeue", message));
        let (Some(generation), true) = (self.generation, self.keeps_its_objects()) else {
            return refuse("its bytes are gone; put the sample again, and drop this record");
        };
        let Some(mut letter) = self.letter.filter(|_| self.readers.is_empty()) else {
            return refuse("a reader still has it");
        };
        let dead = letter
            .groups
            .iter_mut()
            .filter(|state| state.progress == Progress::Dead);
        dead.for_each(GroupState::begin_anew);
        Ok(Live {
            form: self.form,
            generation,
            nonce: self.nonce,
            producer: self.producer,
            bytes: self.bytes,
            paid: self.paid,
            groups: letter.groups,
            readers: Vec::new(),
            retain: false,
            max_attempts: letter.max_attempts,
            claims: self.claims,
            reserved_as: self.reserved_as,
            dead_ticks: letter.dead_ticks,
            reserved_at: self.reserved_at,
            committed_at: self.committed_at,
        })
    }

    /// Drops a dead letter: once its objects are removed, nothing stays. None if they are gone already.
    pub fn dropped(mut self) -> Option<Self> {
        (self.letter, self.kept) = (None, None);
        self.freed.is_none().then_some(self)
    }

    /// Counts a failed attempt to remove its objects. The record stays, and removal is tried again.
    pub fn free_failed(mut self) -> Self {
        self.failed_frees = self.failed_frees.saturating_add(1);
        self
    }
}
