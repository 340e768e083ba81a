//! A sample that is being written.

use holdfast_core::{Error, ErrorKind, Generation, Nonce, ObjectKey, Result};
use serde::{Deserialize, Serialize};

use crate::credit::is_zero;
use crate::id::{SessionId, Tick, Version};
use crate::live::{GroupState, Live, Progress, Publication};
use crate::retired::{Reason, Retired};

/// Bytes set aside for a sample that its producer is writing.
///
/// Its generation is the version of the write that reserved it, so of two reservations of one sample id the later one
/// has the larger generation, whoever made them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reserved {
    /// The physical incarnation; `None` until the index has told the version of the reserving write.
    pub generation: Option<Generation>,
    /// Random part of the objects' keys.
    pub nonce: Nonce,
    /// The producer.
    pub session: SessionId,
    /// The bytes that it may write.
    pub bytes: u64,
    /// The bytes of the store's budget that it holds; none if the store had no budget when it was reserved.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paid: u64,
    /// The last tick at which it may commit.
    pub until: Tick,
    /// What it is about to write, in its own words: whoever removes the objects of one that never commits reads it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plan: String,
    /// The objects that it owns although it did not name them: keys that another writer chose. No other record has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ObjectKey>,
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
        }
    }

    /// Says how many bytes of the store's budget were taken for it.
    #[must_use]
    pub fn with_paid(mut self, bytes: u64) -> Self {
        self.paid = bytes;
        self
    }

    /// Says what is about to be written.
    #[must_use]
    pub fn with_plan(mut self, plan: impl Into<String>) -> Self {
        self.plan = plan.into();
        self
    }

    /// Says which objects of another writer's naming it owns.
    #[must_use]
    pub fn with_claims(mut self, keys: &[ObjectKey]) -> Self {
        self.claims = keys.to_vec();
        self
    }

    /// Puts in the version of the write that made it.
    pub fn settle(&mut self, version: Version) {
        if self.generation.is_none() {
            self.generation = Generation::new(version.0);
        }
    }

    /// What the producer wrote becomes visible, to all groups at once. Only the session and the generation that made
    /// the reservation may do so.
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
        })
    }

    /// The producer gives up, or is given up on: whatever it wrote is to be removed.
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
        }
    }

    /// Refuses everybody but the producer of this very reservation.
    pub fn check_owner(&self, operation: &'static str, session: SessionId, generation: Generation) -> Result<()> {
        if self.session == session && self.generation == Some(generation) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Fenced,
            operation,
            "the reservation belongs to another producer or generation by now",
        )
        .with("session", session)
        .with("generation", generation))
    }
}
