//! What can happen next, and what then is.

use stateright::{Model, Property};
use tensorhold_custody::Progress;
use tensorhold_custody::invariants as lc;

use super::index::Request;
use super::process::{Phase, session};
use super::scenario::Chore;
use super::sweeper::Sweeper;
use super::{Action, Role, Sample, Scenario, World};

/// The model of one scenario.
#[derive(Clone, Debug)]
pub(crate) struct Custody(pub(crate) Scenario);

impl Custody {
    fn of_process(&self, world: &World, process: usize, actions: &mut Vec<Action>) {
        let scenario = &self.0;
        let me = &world.processes[process];
        let gone = world.index.gone.contains(&session(process));
        match me.phase {
            Phase::Idle => self.of_idle(world, process, actions),
            Phase::Waiting => {
                if gone || world.index.deposits > 0 {
                    actions.push(Action::Draw(process));
                }
                actions.push(Action::StopWaiting(process));
            }
            Phase::Written => {
                actions.push(Action::Commit(process));
                if world.left.aborts > 0 {
                    actions.push(Action::Abort(process));
                }
            }
            Phase::Using => {
                actions.push(Action::HandOut(process, false));
                if world.left.nacks > 0 && matches!(scenario.roles[process], Role::Worker(..)) {
                    actions.push(Action::HandOut(process, true));
                }
                if world.left.untakes > 0 && matches!(scenario.roles[process], Role::Worker(..)) {
                    actions.push(Action::Untake(process));
                }
                let live = me.hold.and_then(|hold| world.index.live_of(hold.object.sample));
                if world.left.renewals > 0 && live.is_some() {
                    actions.push(Action::Renew(process));
                }
            }
            Phase::Used => actions.push(Action::Ack(process)),
            Phase::Asked(_) => {
                actions.push(Action::Deliver(process));
                if world.left.faults > 0 {
                    actions.extend([Action::DeliverTwice(process), Action::TimeOut(process)]);
                }
            }
            Phase::Unsure(_) => actions.push(Action::ReadBack(process)),
            Phase::Ended => {}
        }
        let ended = me.phase == Phase::Ended;
        if !ended && !me.hurt && world.left.crashes > 0 {
            actions.push(Action::Crash(process));
        }
        if !gone && (ended || (!me.hurt && world.left.expiries > 0)) {
            actions.push(Action::SessionEnds(process));
        }
    }

    fn of_idle(&self, world: &World, process: usize, actions: &mut Vec<Action>) {
        let scenario = &self.0;
        let done = world.processes[process].done;
        let producing = |(other, role): (usize, &Role)| {
            matches!(role, Role::Producer(_)) && world.processes[other].phase != Phase::Ended
        };
        let more_to_come = scenario.roles.iter().enumerate().any(producing);
        let close = match &scenario.roles[process] {
            Role::Producer(_) => {
                let next = world.next_make(scenario, process);
                actions.extend(next.map(|_| Action::Draw(process)));
                next.is_none()
            }
            Role::Worker(_, takes) | Role::Reader(takes) => {
                let open = (0..scenario.samples).filter(|sample| self.takeable(world, process, *sample));
                let before = actions.len();
                if done < *takes {
                    actions.extend(open.map(|sample| Action::Take(process, sample)));
                }
                actions.len() == before && (done >= *takes || !more_to_come)
            }
            Role::Operator(chores) => {
                let possible = |chore: &Chore| match chore {
                    Chore::Reopen(sample) => world.index.live_of(*sample).is_some_and(|kept| {
                        let done = |progress| matches!(progress, Progress::Acked | Progress::Dead);
                        kept.record.groups.iter().any(|state| done(state.progress))
                    }),
                    Chore::Retire(sample) => world.index.live_of(*sample).is_some(),
                };
                let next = chores.get(usize::from(done)).filter(|chore| possible(chore));
                actions.extend(next.map(|_| Action::Operate(process)));
                next.is_none() && (usize::from(done) >= chores.len() || !more_to_come)
            }
        };
        if close {
            actions.push(Action::Close(process));
        }
    }

    /// Whether a process could take this sample.
    fn takeable(&self, world: &World, process: usize, sample: Sample) -> bool {
        let live = world.index.live_of(sample).map(|kept| &kept.record);
        live.is_some_and(|live| match self.0.roles[process] {
            Role::Worker(group, _) => live
                .groups
                .get(group)
                .is_some_and(|state| state.progress == Progress::Waiting),
            Role::Reader(_) => true,
            Role::Producer(_) | Role::Operator(_) => false,
        })
    }

    fn of_sweepers(&self, world: &World, actions: &mut Vec<Action>) {
        let due = world.due(&self.0);
        let mut idle_seen = false;
        for (place, sweeper) in world.sweepers.iter().enumerate() {
            match sweeper {
                // Idle ones are alike: one of them is enough.
                Sweeper::Idle if idle_seen => {}
                Sweeper::Idle => {
                    idle_seen = true;
                    actions.extend(due.iter().map(|key| Action::Look(place, *key)));
                }
                Sweeper::Looked { .. } | Sweeper::Removed { .. } => actions.push(Action::Write(place)),
                Sweeper::Freeing(_) => {
                    actions.push(Action::Remove(place));
                    if world.left.failing_removes > 0 {
                        actions.extend([Action::RemoveFails(place, true), Action::RemoveFails(place, false)]);
                    }
                }
            }
            if *sweeper != Sweeper::Idle && world.left.sweeper_deaths > 0 {
                actions.push(Action::SweeperDies(place));
            }
        }
        actions.extend(world.orphans().map(Action::Audit));
    }

    fn asked(world: &World, process: usize) -> Option<Request> {
        match world.processes[process].phase {
            Phase::Asked(request) | Phase::Unsure(request) => Some(request),
            _ => None,
        }
    }

    /// The next state as it comes, not yet merged with those that are alike.
    pub(crate) fn plain_step(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        self.step(&mut next, action)?;
        Some(next)
    }

    fn step(&self, world: &mut World, action: Action) -> Option<()> {
        let scenario = &self.0;
        match action {
            Action::Tick => {
                world.left.ticks -= 1;
                world.index.tick = world.index.tick.after(1);
            }
            Action::Draw(process) => world.draw(scenario, process),
            Action::StopWaiting(process) => {
                world.processes[process].phase = Phase::Idle;
                world.processes[process].done += 1;
            }
            Action::Commit(process) => world.conclude(process, true),
            Action::Abort(process) => {
                world.left.aborts -= 1;
                world.conclude(process, false);
            }
            Action::Take(process, sample) => world.take(scenario, process, sample),
            Action::HandOut(process, nack) => {
                world.left.nacks -= u8::from(nack);
                world.hand_out(scenario, process, nack);
            }
            Action::Untake(process) => {
                world.left.untakes -= 1;
                world.untake(process);
            }
            Action::Renew(process) => {
                world.left.renewals -= 1;
                world.renew(scenario, process);
            }
            Action::Ack(process) => world.answer_for(scenario, process, false),
            Action::Operate(process) => {
                let Role::Operator(chores) = &scenario.roles[process] else {
                    return None;
                };
                world.operate(process, *chores.get(usize::from(world.processes[process].done))?);
            }
            Action::Close(process) => {
                world.processes[process].phase = Phase::Ended;
                world.index.gone.insert(session(process));
            }
            Action::Deliver(process) => {
                let request = Self::asked(world, process)?;
                let reply = world.execute(scenario, &request);
                world.receive(scenario, request, reply);
            }
            Action::DeliverTwice(process) => {
                world.left.faults -= 1;
                let request = Self::asked(world, process)?;
                let reply = world.execute(scenario, &request);
                world.receive(scenario, request, reply);
                world.late.push(request);
            }
            Action::TimeOut(process) => {
                world.left.faults -= 1;
                let request = Self::asked(world, process)?;
                world.processes[process].phase = Phase::Unsure(request);
                world.late.push(request);
            }
            Action::ReadBack(process) => {
                let request = Self::asked(world, process)?;
                world.read_back(request);
            }
            Action::Arrive(place) => {
                let request = world.late.remove(place);
                world.execute(scenario, &request);
            }
            Action::Vanish(place) => drop(world.late.remove(place)),
            Action::Crash(process) => {
                world.left.crashes -= 1;
                if let Phase::Asked(request) = world.processes[process].phase {
                    world.late.push(request);
                }
                let me = &mut world.processes[process];
                (me.phase, me.hold, me.hurt) = (Phase::Ended, None, true);
            }
            Action::SessionEnds(process) => {
                let me = &mut world.processes[process];
                if me.phase != Phase::Ended {
                    world.left.expiries -= 1;
                    me.hurt = true;
                }
                world.index.gone.insert(session(process));
            }
            Action::Look(place, key) => world.sweepers[place] = world.look(key),
            Action::Write(place) => {
                let sweeper = std::mem::replace(&mut world.sweepers[place], Sweeper::Idle);
                world.write(scenario, &sweeper);
            }
            Action::Remove(place) => Self::remove(world, place, true, false)?,
            Action::RemoveFails(place, took_effect) => {
                world.left.failing_removes -= 1;
                Self::remove(world, place, took_effect, true)?;
            }
            Action::SweeperDies(place) => {
                world.left.sweeper_deaths -= 1;
                world.sweepers[place] = Sweeper::Idle;
            }
            Action::Audit(object) => world.remove(object),
            Action::Lose(object) => {
                world.left.losses -= 1;
                world.ghost.lost.insert(object);
                world.vanish(object);
            }
        }
        Some(())
    }

    fn remove(world: &mut World, place: usize, takes_effect: bool, failed: bool) -> Option<()> {
        let Sweeper::Freeing(free) = world.sweepers[place] else {
            return None;
        };
        if takes_effect {
            world.remove(free.object);
        }
        world.sweepers[place] = Sweeper::Removed { free, failed };
        Some(())
    }
}

impl Model for Custody {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.0.begin()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // A broken world has told its story.
        if !world.ghost.broken.is_empty() {
            return;
        }
        for process in 0..world.processes.len() {
            self.of_process(world, process, actions);
        }
        self.of_sweepers(world, actions);
        for place in 0..world.late.len() {
            actions.extend([Action::Arrive(place), Action::Vanish(place)]);
        }
        if world.left.ticks > 0 {
            actions.push(Action::Tick);
        }
        if world.left.losses > 0 {
            let committed = world.ghost.committed.iter().filter(|(_, reason)| reason.is_none());
            actions.extend(committed.map(|(object, _)| Action::Lose(*object)));
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = self.plain_step(world, action)?;
        next.normalise(&self.0);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always(lc::LC1.name(), |_, world| world.satisfies(&lc::LC1)),
            Property::<Self>::always(lc::LC2.name(), |_, world| world.satisfies(&lc::LC2)),
            Property::<Self>::always(lc::LC3.name(), |_, world| world.satisfies(&lc::LC3)),
            Property::<Self>::always(lc::LC4.name(), |_, world| world.satisfies(&lc::LC4)),
            Property::<Self>::always(lc::LC5.name(), |_, world| world.satisfies(&lc::LC5)),
            Property::<Self>::always(lc::LC7.name(), |_, world| world.satisfies(&lc::LC7)),
            Property::<Self>::always(lc::LC8.name(), |_, world| world.satisfies(&lc::LC8)),
            Property::<Self>::always(lc::LC9.name(), |_, world| world.satisfies(&lc::LC9)),
            Property::<Self>::always(lc::LC6.name(), |model, world| {
                !world.ghost.broken.is_empty() || world.two_sweeps_suffice(&model.0)
            }),
            Property::<Self>::always("LC6 at the end", |model, world| {
                let mut next = Vec::new();
                model.actions(world, &mut next);
                !next.is_empty() || !world.ghost.broken.is_empty() || world.ended_clean()
            }),
        ];
        properties.extend(self.0.reaches.iter().map(|reach| reach.property()));
        properties
    }
}
