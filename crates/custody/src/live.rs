//! A committed sample.

use serde::{Deserialize, Serialize};
use tensorhold_core::{Error, ErrorKind, Generation, Nonce, ObjectKey, Result};

use crate::id::{GroupName, SessionId, Stamp, Tick, Token, Version, WallTime};
use crate::lease::Lease;
use crate::quota::is_zero;
use crate::reserved::{ReservedAs, first_form, is_first_form};
use crate::retired::{DeadLetter, Reason, Retired};

/// Which groups a sample is for, and how they use it. Its producer says so at the commit; it is stored in [`Live`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Publication {
    /// The groups that each use it once. With none, it stays until it is retired explicitly.
    pub groups: Vec<GroupName>,
    /// Whether it stays for the next epoch when every group has acknowledged it.
    pub retain: bool,
    /// How often a group may take it before it becomes a dead letter.
    pub max_attempts: u32,
}

impl Publication {
    /// Refuses a publication with which no sample can be committed.
    pub fn check(&self, operation: &'static str) -> Result<()> {
        if self.max_attempts == 0 {
            return Err(Error::invalid(
                operation,
                "a sample needs at least one attempt per group",
            ));
        }
        let mut groups: Vec<&GroupName> = self.groups.iter().collect();
        groups.sort();
        if groups.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(operation, "a group is named twice in the publication"));
        }
        Ok(())
    }
}

/// How far one group is with a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Progress {
    /// Waits to be taken.
    Waiting,
    /// Taken.
    Leased(Lease),
    /// Used and acknowledged.
    Acked,
    /// Out of attempts.
    Dead,
}

/// One group's side of a sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupState {
    /// The group.
    pub group: GroupName,
    /// How often the group has taken the sample, the present lease included. A lease that was undone does not count.
    /// Exact: LC9.
    pub attempts: u32,
    /// How far the group is.
    pub progress: Progress,
    /// When the group was done with it, used or out of attempts, and by whose write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<Stamp>,
}

/// A committed sample, visible to its groups and to readers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Live {
    /// The form of this record.
    #[serde(rename = "v", default = "first_form", skip_serializing_if = "is_first_form")]
    pub(crate) form: u64,
    /// Which incarnation of the sample: the version of the write that reserved it or, if it was reserved ahead, of the
    /// write that committed it.
    pub generation: Generation,
    /// Random part of the objects' keys.
    pub nonce: Nonce,
    /// The session that produced it.
    pub producer: SessionId,
    /// Its size in bytes.
    pub bytes: u64,
    /// The bytes of the store's budget that it holds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub paid: u64,
    /// One entry per group, in the order of their names.
    pub groups: Vec<GroupState>,
    /// Leases of readers, which do not use the sample up.
    pub readers: Vec<Lease>,
    /// Whether it stays when every group is done.
    pub retain: bool,
    /// The most attempts of a group.
    pub max_attempts: u32,
    /// The objects that it owns although another writer named them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ObjectKey>,
    /// The reservation that its objects were written under, if it was made ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_as: Option<ReservedAs>,
    /// How many ticks its objects are kept if it becomes a dead letter. In the record, so that a sweeper with
    /// other settings keeps to it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dead_ticks: u64,
    /// When it was reserved.
    #[serde(default, skip_serializing_if = "WallTime::is_unknown")]
    pub reserved_at: WallTime,
    /// When it was committed.
    #[serde(default, skip_serializing_if = "WallTime::is_unknown")]
    pub committed_at: WallTime,
}

/// The result of an ack or a nack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acknowledged {
    /// Other groups still need it, or it is retained.
    Live(Live),
    /// It was the last group.
    Retired(Retired),
}

pub(crate) fn fenced(operation: &'static str, token: Token) -> Error {
    Error::new(
        ErrorKind::Fenced,
        operation,
        "this token holds no lease on the sample any more",
    )
    .with("token", token)
}

impl Live {
    /// Fills in the version of the write that this record was part of.
    pub fn settle(&mut self, version: Version) {
        // The committing write could not know its own version. It is larger than that of the reservation.
        if let Some(reserved_as) = &self.reserved_as
            && self.generation == reserved_as.generation
            && let Some(generation) = Generation::new(version.0)
        {
            self.generation = generation;
        }
        self.leases_mut().for_each(|lease| lease.settle(version));
    }

    /// Fills in when, and by whom, what this write changes was done. `before` is the record that it replaces, if any.
    pub fn stamp(&mut self, before: Option<&Self>, stamp: Stamp) {
        match before.filter(|before| before.generation == self.generation) {
            None => self.committed_at = stamp.at,
            Some(before) => stamp_done(&mut self.groups, &before.groups, stamp),
        }
        self.leases_mut().for_each(|lease| lease.stamp(stamp.at));
    }

    /// Its position in ready lists, known before it is committed: the version of the write that reserved it.
    pub fn order(&self) -> Generation {
        match &self.reserved_as {
            Some(reserved_as) => reserved_as.generation,
            None => self.generation,
        }
    }

    /// All leases on it.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        let of_groups = self.groups.iter().filter_map(|state| match &state.progress {
            Progress::Leased(lease) => Some(lease),
            _ => None,
        });
        of_groups.chain(&self.readers)
    }

    fn leases_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        let of_groups = self.groups.iter_mut().filter_map(|state| match &mut state.progress {
            Progress::Leased(lease) => Some(lease),
            _ => None,
        });
        of_groups.chain(&mut self.readers)
    }

    fn group_mut(&mut self, operation: &'static str, group: &GroupName) -> Result<&mut GroupState> {
        self.groups
            .iter_mut()
            .find(|state| state.group == *group)
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    operation,
                    "the sample was not published for this group",
                )
                .with("group", group)
            })
    }

    /// The state of a group whose lease has this token.
    fn held(&mut self, operation: &'static str, group: &GroupName, token: Token) -> Result<&mut GroupState> {
        let state = self.group_mut(operation, group)?;
        match state.progress {
            Progress::Leased(lease) if lease.has(token) => Ok(state),
            _ => Err(fenced(operation, token).with("group", group)),
        }
    }

    /// A group takes the sample. `Conflict` if the group has it already, has used it, or is out of attempts.
    pub fn lease(mut self, group: &GroupName, session: SessionId, until: Tick) -> Result<Self> {
        let state = self.group_mut("custody.lease", group)?;
        if state.progress != Progress::Waiting {
            return Err(Error::new(
                ErrorKind::Conflict,
                "custody.lease",
                "the group already has a lease on this sample, has acknowledged it, or is out of attempts",
            )
            .with("group", group)
            .with_retry(tensorhold_core::Retry::Never));
        }
        state.attempts = state.attempts.saturating_add(1);
        state.progress = Progress::Leased(Lease::granted(session, until));
        Ok(self)
    }

    /// A reader takes a lease, without using the sample up.
    pub fn read(mut self, session: SessionId, until: Tick) -> Self {
        self.readers.push(Lease::granted(session, until));
        self
    }

    /// Extends a lease. Its token stays the same.
    pub fn renew(mut self, token: Token, until: Tick) -> Result<Self> {
        let lease = self
            .leases_mut()
            .find(|lease| lease.has(token))
            .ok_or_else(|| fenced("custody.renew", token))?;
        lease.until = lease.until.max(until);
        Ok(self)
    }

    /// Whether a token still holds a lease. A reader checks this before it hands out bytes.
    pub fn holds(&self, token: Token) -> bool {
        self.leases().any(|lease| lease.has(token))
    }

    /// A group has used the sample. When every group is done, the sample is retired, unless it is retained.
    pub fn ack(mut self, group: &GroupName, token: Token) -> Result<Acknowledged> {
        self.held("custody.ack", group, token)?.progress = Progress::Acked;
        Ok(self.retire_if_done())
    }

    /// A group hands the sample back unused: it waits for another attempt, or is out of attempts.
    pub fn nack(mut self, group: &GroupName, token: Token) -> Result<Acknowledged> {
        let most = self.max_attempts;
        self.held("custody.nack", group, token)?.hand_back(most);
        Ok(self.retire_if_done())
    }

    /// Undoes a group's lease: the sample goes back as if it had never been taken, and the attempt is not counted. For
    /// a lease that did not reach the consumer that it was meant for, and for one whose sample the engine could not
    /// serve. It needs the lease's own token, so a lease that was taken back meanwhile, and counted, stays counted.
    pub fn give_back(mut self, group: &GroupName, token: Token) -> Result<Self> {
        let state = self.held("custody.give_back", group, token)?;
        state.attempts = state.attempts.saturating_sub(1);
        state.progress = Progress::Waiting;
        Ok(self)
    }

    /// A reader releases its lease.
    pub fn release(mut self, token: Token) -> Result<Self> {
        let before = self.readers.len();
        self.readers.retain(|lease| !lease.has(token));
        if self.readers.len() == before {
            return Err(fenced("custody.release", token));
        }
        Ok(self)
    }

    /// A reader has used the sample up and releases its lease. The last one retires the sample, unless it was published for
    /// groups, which then use it up, or is retained.
    pub fn use_up(self, token: Token) -> Result<Acknowledged> {
        let after = self.release(token)?;
        if after.retain || !after.groups.is_empty() || !after.readers.is_empty() {
            return Ok(Acknowledged::Live(after));
        }
        Ok(Acknowledged::Retired(after.retire(Reason::Aborted)))
    }

    /// Another epoch: every group that is done waits for the sample again, with all its attempts.
    pub fn reopen(mut self) -> Self {
        for state in &mut self.groups {
            if state.is_done() {
                state.begin_anew();
            }
        }
        self
    }

    /// Takes the sample out of circulation. Holders of leases keep the objects until their leases end.
    pub fn retire(self, reason: Reason) -> Retired {
        let readers = self.leases().copied().collect();
        Retired {
            form: self.form,
            generation: Some(self.generation),
            nonce: self.nonce,
            producer: self.producer,
            bytes: self.bytes,
            paid: self.paid,
            readers,
            reason,
            failed_frees: 0,
            plan: String::new(),
            kept: None,
            claims: self.claims,
            reserved_as: self.reserved_as,
            reserved_at: self.reserved_at,
            committed_at: self.committed_at,
            retired: None,
            letter: None,
            freed: None,
        }
    }

    /// Takes back every lease that `over` says is over. Returns how many.
    pub(crate) fn take_back(&mut self, over: impl Fn(&Lease) -> bool) -> usize {
        let mut taken = 0;
        let most = self.max_attempts;
        for state in &mut self.groups {
            if matches!(&state.progress, Progress::Leased(lease) if over(lease)) {
                state.hand_back(most);
                taken += 1;
            }
        }
        let before = self.readers.len();
        self.readers.retain(|lease| !over(lease));
        taken + before - self.readers.len()
    }

    /// Retires the sample if it was published for groups, all of them are done, and it is not retained.
    pub(crate) fn retire_if_done(self) -> Acknowledged {
        let dead = self.groups.iter().any(|state| state.progress == Progress::Dead);
        if self.retain || self.groups.is_empty() || !self.groups.iter().all(GroupState::is_done) {
            return Acknowledged::Live(self);
        }
        if !dead {
            return Acknowledged::Retired(self.retire(Reason::Consumed));
        }
        let letter = DeadLetter {
            groups: self.groups.clone(),
            max_attempts: self.max_attempts,
            dead_ticks: self.dead_ticks,
        };
        Acknowledged::Retired(self.retire(Reason::DeadLetter).leaving(letter))
    }
}

/// Fills in when, and by whom, groups became done that were not before.
pub(crate) fn stamp_done(groups: &mut [GroupState], before: &[GroupState], stamp: Stamp) {
    for state in groups.iter_mut().filter(|state| state.is_done()) {
        let was_open = |before: &GroupState| before.group == state.group && !before.is_done();
        if before.iter().any(was_open) {
            state.done = Some(stamp);
        }
    }
}

impl GroupState {
    /// Whether the group has used the sample, or is out of attempts.
    pub fn is_done(&self) -> bool {
        matches!(self.progress, Progress::Acked | Progress::Dead)
    }

    /// The group waits for the sample again, with all its attempts.
    pub(crate) fn begin_anew(&mut self) {
        (self.attempts, self.progress, self.done) = (0, Progress::Waiting, None);
    }

    fn hand_back(&mut self, most: u32) {
        self.progress = if self.attempts >= most {
            Progress::Dead
        } else {
            Progress::Waiting
        };
    }
}
