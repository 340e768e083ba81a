//! A sample that is being written.

use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Generation, Nonce, ObjectKey, Result, SampleId};

use crate::id::{SessionId, Tick, Version, WallTime};
use crate::live::{GroupState, Live, Progress, Publication};
use crate::quota::is_zero;
use crate::retired::{Reason, Retired};

/// Bytes reserved for a sample that its producer is writing.
///
/// Its generation is the version of the write that reserved it, so of two reservations of one sample id the later one
/// has the larger generation, no matter which producers made them. A reservation that was made ahead has a name of its
/// own, which no sample has; the commit gives it its sample's name ([`Reserved::commit_as`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reserved {
    /// The physical incarnation; `None` until the index has filled in the version of the reserving write.
    pub generation: Option<Generation>,
    /// Random part of the objects' keys.
    pub nonce: Nonce,
    /// The producer's session.
    pub session: SessionId,
    /// The bytes that the producer may write.
    pub bytes: u64,
    /// The bytes of the store's budget that it holds; zero if the store had no budget when it was reserved.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paid: u64,
    /// The last tick at which the producer may commit.
    pub until: Tick,
    /// What the producer is about to write, in its own format. The reclaimer reads it if the sample never commits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plan: String,
    /// The objects that it owns although another writer chose their keys. No other record has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ObjectKey>,
    /// When it was reserved.
    #[serde(default, skip_serializing_if = "WallTime::is_unknown")]
    pub reserved_at: WallTime,
}

/// The reservation under which a sample's objects were written, if it was made ahead.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReservedAs {
    /// The reservation's own name.
    pub name: SampleId,
    /// The version of the write that reserved it.
    pub generation: Generation,
}

impl ReservedAs {
    /// The form of a record: releases that do not know this field must not touch a record that has it.
    pub(crate) fn form(of: Option<&Self>) -> u64 {
        if of.is_some() { SECOND_FORM } else { FIRST_FORM }
    }
}

/// The form of a record that does not say which one it has.
const FIRST_FORM: u64 = 1;
/// The form of a record with [`ReservedAs`].
const SECOND_FORM: u64 = 2;

/// The form of records that do not state one.
pub(crate) fn first_form() -> u64 {
    FIRST_FORM
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_first_form(form: &u64) -> bool {
    *form == FIRST_FORM
}

impl Reserved {
    /// A reservation made by the write that is being prepared.
    pub fn new(session: SessionId, nonce: Nonce, bytes: u64, until: Tick) -> Self {
        Self {
            generation: None,
            nonce,
            session,
            bytes,
            paid: 0,
            until,
            plan: String::new(),
            claims: Vec::new(),
            reserved_at: WallTime::default(),
        }
    }

    /// Sets when it is reserved.
    #[must_use]
    pub fn stamped(mut self, at: WallTime) -> Self {
        self.reserved_at = at;
        self
    }

    /// Sets how many bytes of the store's budget were taken for it.
    #[must_use]
    pub fn with_paid(mut self, bytes: u64) -> Self {
        self.paid = bytes;
        self
    }

    /// Sets what is about to be written.
    #[must_use]
    pub fn with_plan(mut self, plan: impl Into<String>) -> Self {
        self.plan = plan.into();
        self
    }

    /// Sets the objects that it owns although another writer named them.
    #[must_use]
    pub fn with_claims(mut self, keys: &[ObjectKey]) -> Self {
        self.claims = keys.to_vec();
        self
    }

    /// Fills in the version of the write that made it.
    pub fn settle(&mut self, version: Version) {
        if self.generation.is_none() {
            self.generation = Generation::new(version.0);
        }
    }

    /// Makes what the producer wrote visible, to all groups at once. Only the session and the generation that made the
    /// reservation may do so.
    pub fn commit(self, session: SessionId, generation: Generation, publication: &Publication) -> Result<Live> {
        let bytes = self.bytes;
        self.committed(session, generation, publication, bytes, None)
    }

    /// As [`Reserved::commit`], for a reservation that was made ahead under this name: the sample that it becomes has so
    /// many bytes. Its generation is the version of the committing write: it is larger than that of every earlier
    /// generation of the sample, whichever of them was reserved first.
    pub fn commit_as(
        self,
        session: SessionId,
        reserved_as: ReservedAs,
        publication: &Publication,
        bytes: u64,
    ) -> Result<Live> {
        let generation = reserved_as.generation;
        self.committed(session, generation, publication, bytes, Some(reserved_as))
    }

    fn committed(
        self,
        session: SessionId,
        generation: Generation,
        publication: &Publication,
        bytes: u64,
        reserved_as: Option<ReservedAs>,
    ) -> Result<Live> {
        self.check_owner("custody.commit", session, generation)?;
        publication.check("custody.commit")?;
        let mut groups: Vec<GroupState> = publication
            .groups
            .iter()
            .map(|group| GroupState {
                group: group.clone(),
                attempts: 0,
                progress: Progress::Waiting,
                done: None,
            })
            .collect();
        groups.sort_by(|a, b| a.group.cmp(&b.group));
        Ok(Live {
            form: ReservedAs::form(reserved_as.as_ref()),
            generation,
            nonce: self.nonce,
            producer: self.session,
            bytes,
            paid: self.paid,
            groups,
            readers: Vec::new(),
            retain: publication.retain,
            max_attempts: publication.max_attempts,
            claims: self.claims,
            reserved_as,
            dead_ticks: 0,
            reserved_at: self.reserved_at,
            committed_at: WallTime::default(),
        })
    }

    /// The producer gives up, or a sweep gives it up: whatever it wrote is to be removed.
    pub fn abort(self, reason: Reason) -> Retired {
        Retired {
            form: ReservedAs::form(None),
            generation: self.generation,
            nonce: self.nonce,
            producer: self.session,
            bytes: self.bytes,
            paid: self.paid,
            readers: Vec::new(),
            reason,
            failed_frees: 0,
            plan: self.plan,
            kept: None,
            claims: self.claims,
            reserved_as: None,
            reserved_at: self.reserved_at,
            committed_at: WallTime::default(),
            retired: None,
            letter: None,
            freed: None,
        }
    }

    /// Refuses every caller but the producer of exactly this reservation.
    pub fn check_owner(&self, operation: &'static str, session: SessionId, generation: Generation) -> Result<()> {
        if self.session == session && self.generation == Some(generation) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Fenced,
            operation,
            "the reservation now belongs to another producer or generation; reserve the sample again",
        )
        .with("session", session)
        .with("generation", generation))
    }
}
