//! The index: records with versions, written on condition that they have not changed; sessions; the budget.
//!
//! A transaction is one step. It is refused as a whole if its sender's session is gone, if a version differs, or if the
//! custody code refuses. What is left of the budget is read and written inside the transaction that needs it; how
//! processes wait for it is `quota_model`'s.

use std::collections::{BTreeMap, BTreeSet};

use tensorhold_core::{Error, ErrorKind, Generation, Nonce};
use tensorhold_custody::invariants as lc;
use tensorhold_custody::{
    Acknowledged, GroupName, Live, Progress, Reason, Reserved, Retired, SessionId, Tick, Token, Version,
};

use super::process::session;
use super::{Object, Role, Sample, Scenario, World};

/// A record and the revision at which it was last written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kept<T> {
    pub(crate) version: u64,
    pub(crate) record: T,
}

/// What the index stores.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Index {
    pub(crate) revision: u64,
    pub(crate) tick: Tick,
    pub(crate) gone: BTreeSet<SessionId>,
    pub(crate) pending: Vec<Option<Kept<Reserved>>>,
    pub(crate) live: Vec<Option<Kept<Live>>>,
    pub(crate) retired: BTreeMap<Object, Kept<Retired>>,
    pub(crate) budget: u64,
    /// Of the budget, what no record was paid with.
    pub(crate) deposits: u64,
}

/// What a process asks of the index, or of the engine ([`Op::Put`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Request {
    pub(crate) sample: Sample,
    /// The version of the record that the process read; zero if there was none.
    pub(crate) version: u64,
    pub(crate) op: Op,
    pub(crate) process: usize,
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Op {
    Reserve { until: Tick },
    Put { generation: Generation },
    Commit { generation: Generation, replaces: u64 },
    Abort { generation: Generation },
    Lease { until: Tick },
    Read { until: Tick },
    Renew { token: Token, until: Tick },
    Ack { token: Token },
    Nack { token: Token },
    Untake { token: Token },
    Release { token: Token },
    LetGo { generation: Generation, token: Token },
    ReportLost,
    Retire,
    Reopen,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Done, at this revision.
    Done(u64),
    /// The record has changed since it was read.
    Conflict,
    /// The session is gone, or the token or generation is stale.
    Fenced,
    /// The request cannot be granted.
    Refused,
}

impl From<Error> for Reply {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Fenced => Self::Fenced,
            _ => Self::Refused,
        }
    }
}

impl Index {
    pub(crate) fn new(samples: usize, budget: u64) -> Self {
        Self {
            revision: 0,
            tick: Tick(0),
            gone: BTreeSet::new(),
            pending: vec![None; samples],
            live: vec![None; samples],
            retired: BTreeMap::new(),
            budget,
            deposits: budget,
        }
    }

    pub(crate) fn live_of(&self, sample: Sample) -> Option<&Kept<Live>> {
        self.live[usize::from(sample)].as_ref()
    }

    pub(crate) fn pending_of(&self, sample: Sample) -> Option<&Kept<Reserved>> {
        self.pending[usize::from(sample)].as_ref()
    }

    /// Whether there is a record of this generation.
    pub(crate) fn knows(&self, object: Object) -> bool {
        let generation = Some(object.generation);
        self.retired.contains_key(&object)
            || self
                .live_of(object.sample)
                .is_some_and(|kept| Some(kept.record.generation) == generation)
            || self
                .pending_of(object.sample)
                .is_some_and(|kept| kept.record.generation == generation)
    }

    fn next_version(&mut self) -> Version {
        self.revision += 1;
        Version(self.revision)
    }
}

impl World {
    /// One transaction, or one put.
    pub(crate) fn execute(&mut self, scenario: &Scenario, request: &Request) -> Reply {
        let who = session(request.process);
        let at = usize::from(request.sample);
        if let Op::Put { generation } = request.op {
            // The engine knows no sessions.
            self.engine.insert(Object {
                sample: request.sample,
                generation,
            });
            return Reply::Done(0);
        }
        if self.index.gone.contains(&who) {
            return Reply::Fenced;
        }
        let group = match &scenario.roles[request.process] {
            Role::Worker(group, _) => scenario.publication.groups.get(*group),
            _ => None,
        };
        match request.op {
            Op::Put { .. } => Reply::Refused,
            Op::Reserve { until } => {
                if self.index.pending[at].is_some() {
                    return Reply::Conflict;
                }
                let Some(left) = self.index.deposits.checked_sub(1) else {
                    return Reply::Refused;
                };
                self.index.deposits = left;
                let mut record = Reserved::new(who, Nonce::from_u64(0), 1, until).with_paid(1);
                let version = self.index.next_version();
                record.settle(version);
                self.index.pending[at] = Some(Kept {
                    version: version.0,
                    record,
                });
                Reply::Done(version.0)
            }
            Op::Commit { generation, replaces } => self.commit(scenario, request, generation, replaces),
            Op::Abort { generation } => {
                let Some(kept) = self.index.pending[at]
                    .clone()
                    .filter(|kept| kept.version == request.version)
                else {
                    return Reply::Conflict;
                };
                if let Err(error) = kept.record.check_owner("model.abort", who, generation) {
                    return error.into();
                }
                let held = kept.record.session == who && kept.record.generation == Some(generation);
                self.ghost.check(&lc::LC4, lc::stale_changes_nothing(held, true));
                self.index.pending[at] = None;
                let version = self.index.next_version();
                self.retire(request.sample, kept.record.abort(Reason::Aborted), version)
            }
            Op::LetGo { generation, token } => {
                let object = Object {
                    sample: request.sample,
                    generation,
                };
                let Some(kept) = self
                    .index
                    .retired
                    .get(&object)
                    .filter(|kept| kept.version == request.version)
                else {
                    return Reply::Conflict;
                };
                let before = kept.record.clone();
                match before.clone().release(token) {
                    Ok(after) => {
                        let held = before.readers.iter().any(|l| l.token == token && l.session == who);
                        self.ghost
                            .check(&lc::LC4, lc::stale_changes_nothing(held, after != before));
                        let version = self.index.next_version();
                        self.retire(request.sample, after, version)
                    }
                    Err(error) => error.into(),
                }
            }
            op => self.change_live(request.sample, request.version, Some((who, op)), |live| {
                act(live, op, who, group, scenario)
            }),
        }
    }

    fn commit(&mut self, scenario: &Scenario, request: &Request, generation: Generation, replaces: u64) -> Reply {
        let (who, at) = (session(request.process), usize::from(request.sample));
        let Some(kept) = self.index.pending[at]
            .clone()
            .filter(|kept| kept.version == request.version)
        else {
            return Reply::Conflict;
        };
        if self.index.live[at].as_ref().map_or(0, |kept| kept.version) != replaces {
            return Reply::Conflict;
        }
        let held = kept.record.session == who && kept.record.generation == Some(generation);
        let mut live = match kept.record.commit(who, generation, &scenario.publication) {
            Ok(live) => live,
            Err(error) => return error.into(),
        };
        self.ghost.check(&lc::LC4, lc::stale_changes_nothing(held, true));
        self.index.pending[at] = None;
        let version = self.index.next_version();
        if let Some(old) = self.index.live[at].take() {
            self.retire(request.sample, old.record.retire(Reason::Superseded), version);
        }
        live.settle(version);
        self.ghost.committed(request.sample, &live);
        self.index.live[at] = Some(Kept {
            version: version.0,
            record: live,
        });
        Reply::Done(version.0)
    }

    /// Read, transition, write if unchanged. `by` is the process that does so and how, if it is not a sweep.
    pub(crate) fn change_live(
        &mut self,
        sample: Sample,
        version: u64,
        by: Option<(SessionId, Op)>,
        transition: impl FnOnce(Live) -> Result<Acknowledged, Error>,
    ) -> Reply {
        let at = usize::from(sample);
        let Some(kept) = self.index.live[at].clone().filter(|kept| kept.version == version) else {
            return Reply::Conflict;
        };
        let before = kept.record;
        let after = match transition(before.clone()) {
            Ok(after) => after,
            Err(error) => return error.into(),
        };
        self.ghost.judge_step(sample, &before, &after, by);
        let version = self.index.next_version();
        match after {
            Acknowledged::Live(mut record) => {
                record.settle(version);
                self.index.live[at] = Some(Kept {
                    version: version.0,
                    record,
                });
                Reply::Done(version.0)
            }
            Acknowledged::Retired(record) => {
                self.index.live[at] = None;
                self.retire(sample, record, version)
            }
        }
    }

    /// Stores a retired record, new or changed.
    pub(crate) fn retire(&mut self, sample: Sample, mut record: Retired, version: Version) -> Reply {
        record.settle(version);
        let Some(generation) = record.generation else {
            return Reply::Refused;
        };
        let object = Object { sample, generation };
        self.ghost.retired(object, record.reason);
        self.index.retired.insert(
            object,
            Kept {
                version: version.0,
                record,
            },
        );
        Reply::Done(version.0)
    }

    /// The same for a sweep's change of a retired record.
    pub(crate) fn change_retired(&mut self, sample: Sample, record: Retired) -> Reply {
        let version = self.index.next_version();
        self.retire(sample, record, version)
    }
}

/// What a process does to a live record.
fn act(
    live: Live,
    op: Op,
    who: SessionId,
    group: Option<&GroupName>,
    scenario: &Scenario,
) -> Result<Acknowledged, Error> {
    let no_group = || Error::invalid("model.act", "only workers do this");
    Ok(match op {
        Op::Lease { until } => Acknowledged::Live(live.lease(group.ok_or_else(no_group)?, who, until)?),
        Op::Read { until } => Acknowledged::Live(live.read(who, until)),
        Op::Renew { token, until } => Acknowledged::Live(live.renew(token, until)?),
        Op::Ack { token } => {
            let group = group.ok_or_else(no_group)?;
            let whoever = live.groups.iter().find_map(|state| match state.progress {
                Progress::Leased(lease) if state.group == *group => Some(lease.token),
                _ => None,
            });
            let bug = scenario.bugs.token_not_checked_on_ack;
            live.ack(group, whoever.filter(|_| bug).unwrap_or(token))?
        }
        Op::Nack { token } => live.nack(group.ok_or_else(no_group)?, token)?,
        Op::Untake { token } => Acknowledged::Live(live.give_back(group.ok_or_else(no_group)?, token)?),
        Op::Release { token } => Acknowledged::Live(live.release(token)?),
        Op::ReportLost => Acknowledged::Retired(live.retire(Reason::Lost)),
        Op::Retire => Acknowledged::Retired(live.retire(Reason::Aborted)),
        Op::Reopen => Acknowledged::Live(live.reopen()),
        _ => return Err(no_group()),
    })
}
