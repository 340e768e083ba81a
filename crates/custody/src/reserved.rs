//! A sample that is being written.

use holdfast_core::{Error, ErrorKind, Generation, Nonce, ObjectKey, Result};
use serde::{Deserialize, Serialize};

use crate::id::{SessionId, Tick, Version, WallTime};
use crate::live::{GroupState, Live, Progress, Publication};
use crate::quota::is_zero;
use crate::retired::{Reason, Retired};

/// Bytes reserved for a sample that its producer is writing.
///
/// Its generation is the version of the write that reserved it, so of two reservations of one sample id the later one
/// has the larger generation, no matter which producers made them.
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
            generation,
            nonce: self.nonce,
            producer: self.session,
            bytes: self.bytes,
            paid: self.paid,
            groups,
            readers: Vec::new(),
            retain: publication.retain,
            max_attempts: publication.max_attempts,
            claims: self.claims,
            dead_ticks: 0,
            reserved_at: self.reserved_at,
            committed_at: WallTime::default(),
        })
    }

    /// The producer gives up, or a sweep gives it up: whatever it wrote is to be removed.
    pub fn abort(self, reason: Reason) -> Retired {
        Retired {
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
