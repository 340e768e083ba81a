//! The judge: what an observer that sees everything remembers, and the properties.
//!
//! Some invariants speak of a step (a free, an acknowledgement): they are checked where the step is taken and leave a
//! mark in [`Ghost::broken`]. The others speak of a state. Both use the predicates of `tensorhold_custody::invariants`.

use std::collections::{BTreeMap, BTreeSet};

use tensorhold_core::{Generation, Invariant};
use tensorhold_custody::invariants as lc;
use tensorhold_custody::{Acknowledged, GroupState, Lease, Live, Progress, Reason, Retired, SessionId, Token};

use super::index::{Index, Op};
use super::process::{Phase, session};
use super::sweeper::Sweeper;
use super::{Object, Sample, Scenario, World};

/// What the observer remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    /// Invariants that a step has broken.
    pub(crate) broken: BTreeSet<&'static str>,
    /// Every generation that was committed and is not yet freed, and why it was retired, if it was.
    pub(crate) committed: BTreeMap<Object, Option<Reason>>,
    /// The latest generation that was committed of each sample.
    pub(crate) latest: Vec<Option<Generation>>,
    /// How many leases each group of the live record was granted.
    pub(crate) granted: Vec<Vec<u32>>,
    /// What the engine has lost.
    pub(crate) lost: BTreeSet<Object>,
}

impl Ghost {
    pub(crate) fn new(samples: usize) -> Self {
        Self {
            broken: BTreeSet::new(),
            committed: BTreeMap::new(),
            latest: vec![None; samples],
            granted: vec![Vec::new(); samples],
            lost: BTreeSet::new(),
        }
    }

    /// Marks an invariant that does not hold.
    pub(crate) fn check(&mut self, invariant: &Invariant, holds: bool) {
        if !holds {
            self.broken.insert(invariant.name());
        }
    }

    pub(crate) fn committed(&mut self, sample: Sample, live: &Live) {
        let at = usize::from(sample);
        let later = self.latest[at].is_none_or(|latest| latest < live.generation);
        self.check(&lc::LC1, later);
        self.latest[at] = Some(live.generation);
        self.granted[at] = vec![0; live.groups.len()];
        let object = Object {
            sample,
            generation: live.generation,
        };
        self.committed.insert(object, None);
    }

    pub(crate) fn retired(&mut self, object: Object, reason: Reason) {
        if let Some(why) = self.committed.get_mut(&object) {
            why.get_or_insert(reason);
        }
    }

    pub(crate) fn freed(&mut self, object: Object) {
        self.committed.remove(&object);
        self.lost.remove(&object);
    }

    /// Judges a step from a live record, and counts the leases that it granted and undid.
    pub(crate) fn judge_step(
        &mut self,
        sample: Sample,
        before: &Live,
        after: &Acknowledged,
        by: Option<(SessionId, Op)>,
    ) {
        let granted = &mut self.granted[usize::from(sample)];
        match by {
            Some((_, op @ (Op::Lease { .. } | Op::Untake { .. }))) => {
                if let Acknowledged::Live(after) = after {
                    let undone = matches!(op, Op::Untake { .. });
                    let new = |(old, new): (&GroupState, &GroupState)| u32::from(old.progress != new.progress);
                    let steps = before.groups.iter().zip(&after.groups).map(new);
                    granted.iter_mut().zip(steps).for_each(|(count, step)| {
                        *count = if undone { *count - step } else { *count + step };
                    });
                }
            }
            Some((_, Op::Reopen)) => {
                for (count, state) in granted.iter_mut().zip(&before.groups) {
                    if matches!(state.progress, Progress::Acked | Progress::Dead) {
                        *count = 0;
                    }
                }
            }
            _ => {}
        }
        if let Some((who, token)) = by.and_then(|(who, op)| Some((who, shown(op)?))) {
            let mine = |lease: &Lease| lease.token == token && lease.session == who;
            let changed = !matches!(after, Acknowledged::Live(after) if after == before);
            let held = before.leases().any(mine);
            self.check(&lc::LC4, lc::stale_changes_nothing(held, changed));
        }
        match after {
            Acknowledged::Retired(after) => self.judge_retirement(before, after),
            Acknowledged::Live(after) => self.check(&lc::LC9, lc::attempts_are_exact(after)),
        }
        if matches!(after, Acknowledged::Retired(_)) {
            self.granted[usize::from(sample)].clear();
        }
    }

    fn judge_retirement(&mut self, before: &Live, after: &Retired) {
        self.check(&lc::LC8, lc::consumed_by_all(before, after));
        self.check(&lc::LC9, lc::dead_letter_is_exact(before, after));
    }

    /// Drops memories that no later judgement can depend on, so that they do not keep equal worlds apart.
    pub(crate) fn forget_what_cannot_matter(&mut self, index: &Index) {
        for (at, latest) in self.latest.iter_mut().enumerate() {
            let older = |latest: Generation| {
                index.pending[at]
                    .as_ref()
                    .is_some_and(|kept| kept.record.generation < Some(latest))
            };
            if index.live[at].is_none() && !latest.is_some_and(older) {
                *latest = None;
            }
        }
    }
}

/// The token that a request presents.
fn shown(op: Op) -> Option<Token> {
    match op {
        Op::Renew { token, .. }
        | Op::Ack { token }
        | Op::Nack { token }
        | Op::Untake { token }
        | Op::Release { token } => Some(token),
        _ => None,
    }
}

impl World {
    fn retired_of(&self, sample: Sample) -> impl Iterator<Item = &Retired> {
        let of_sample = move |(object, _): &(&Object, _)| object.sample == sample;
        self.index
            .retired
            .iter()
            .filter(of_sample)
            .map(|(_, kept)| &kept.record)
    }

    /// Whether an invariant holds, in this state and in the steps that led to it. LC6 is checked separately.
    pub(crate) fn satisfies(&self, invariant: &Invariant) -> bool {
        let index = &self.index;
        let mut samples = 0..u8::try_from(index.live.len()).unwrap_or(u8::MAX);
        let live = |sample| index.live_of(sample).map(|kept| &kept.record);
        let holds = match *invariant {
            lc::LC1 => samples.all(|sample| {
                let live: Vec<_> = live(sample).map(|live| live.generation).into_iter().collect();
                lc::one_live_generation(&live, self.ghost.latest[usize::from(sample)])
            }),
            lc::LC2 => samples.all(|sample| lc::retired_is_hidden(live(sample), self.retired_of(sample))),
            lc::LC5 => {
                let reserved = index.pending.iter().flatten().map(|kept| kept.record.paid);
                let live = index.live.iter().flatten().map(|kept| kept.record.paid);
                let retired = index.retired.values().map(|kept| kept.record.paid);
                let paid = reserved.chain(live).chain(retired);
                lc::budget_is_accounted_for(index.budget, std::iter::once(index.deposits), paid)
            }
            lc::LC7 => self.ghost.committed.iter().all(|(object, reason)| {
                let there = self.engine.contains(object) || self.ghost.lost.contains(object);
                lc::commit_is_kept(object.generation, live(object.sample), there, *reason)
            }),
            lc::LC9 => samples.all(|sample| {
                let granted = &self.ghost.granted[usize::from(sample)];
                live(sample).is_none_or(|live| {
                    let place = |state: &GroupState| live.groups.iter().position(|other| other.group == state.group);
                    lc::attempts_are_exact(live)
                        && lc::deliveries_are_counted(live, |state| place(state).map_or(0, |at| granted[at]))
                })
            }),
            _ => true,
        };
        holds && !self.ghost.broken.contains(invariant.name())
    }

    fn nothing_lingers(&self) -> bool {
        let index = &self.index;
        let live: Vec<_> = index.live.iter().flatten().map(|kept| &kept.record).collect();
        let unfinished = index.pending.iter().flatten().count() + index.retired.len();
        let objects = self.engine.iter().map(|object| object.generation);
        lc::nothing_lingers(unfinished, &live, (index.budget, index.deposits), objects)
    }

    /// LC6 at the end of a run: every process has ended, nothing lingers.
    pub(crate) fn ended_clean(&self) -> bool {
        self.processes.iter().all(|process| process.phase == Phase::Ended)
            && self.sweepers.iter().all(|sweeper| *sweeper == Sweeper::Idle)
            && self.nothing_lingers()
    }

    /// LC6 at any time: if every process died now, with every put in flight still arriving, two sweeps would suffice:
    /// one to take back what the dead sessions held, one to free it.
    pub(crate) fn two_sweeps_suffice(&self, scenario: &Scenario) -> bool {
        let mut world = self.clone();
        world.index.gone = (0..world.processes.len()).map(session).collect();
        let under_way = world.processes.iter().filter_map(|process| match process.phase {
            Phase::Asked(request) => Some(request),
            _ => None,
        });
        for request in under_way.chain(world.late.clone()).collect::<Vec<_>>() {
            world.execute(scenario, &request);
        }
        for process in 0..world.processes.len() {
            world.processes[process].hold = None;
            world.processes[process].phase = Phase::Ended;
        }
        for _sweep in 0..2 {
            for key in world.due(scenario) {
                let sweeper = match world.look(key) {
                    Sweeper::Freeing(free) => {
                        world.remove(free.object);
                        Sweeper::Removed { free, failed: false }
                    }
                    sweeper => sweeper,
                };
                world.write(scenario, &sweeper);
            }
            world.audit();
        }
        world.nothing_lingers()
    }

    /// Objects without a record.
    pub(crate) fn orphans(&self) -> impl Iterator<Item = Object> {
        self.engine.iter().copied().filter(|object| !self.index.knows(*object))
    }

    fn audit(&mut self) {
        for object in self.orphans().collect::<Vec<_>>() {
            self.remove(object);
        }
    }
}
