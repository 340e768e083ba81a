//! What may happen in a world, and what must hold in it.

use std::collections::BTreeMap;

use stateright::{Model, Property};
use tensorhold_custody::quota::{Deposit, Waiter, share};
use tensorhold_custody::{Reason, Version, invariants as lc};

use super::world::{Id, Process, Queued, Record, Txn, World};

/// How often in a row a process may serve its own waiters while another process waits.
pub(crate) const MOST_IN_A_ROW: u8 = 8;

/// What is left out, deliberately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// What is left of a payment is kept in the process's memory.
    ChangeKeptInMemory,
    /// A free does not require that the record is still there.
    ReturnedTwice,
    /// A broker does not know that its process is in the queue.
    OwnWaitersForEver,
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// How many reservations each process makes, and how many of them wait at the same time.
    pub(crate) waiters: [u8; 2],
    pub(crate) at_once: [u8; 2],
    pub(crate) budget: u64,
    /// The bytes of each reservation.
    pub(crate) bytes: u64,
    pub(crate) crashes: [bool; 2],
    /// Which of them free.
    pub(crate) frees: [bool; 2],
    pub(crate) lost_replies: u8,
    pub(crate) leaves: u8,
    pub(crate) bug: Option<Bug>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Arrive(usize),
    Leave(Id),
    Prepare(usize),
    Serve(usize),
    Free(usize, Id, usize),
    /// A transaction is applied, or refused: of the task, or of a free. `true`: the reply is lost.
    Apply(usize, Which, bool),
    Told(usize),
    Retire(Id),
    Crash(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Task,
    Free,
}

impl Scenario {
    fn look(world: &World) -> (Vec<(u8, Deposit)>, u64) {
        let mut deposits: Vec<_> = world.deposits.iter().map(|(key, deposit)| (*key, *deposit)).collect();
        deposits.sort_by_key(|(key, deposit)| (deposit.version, *key));
        let bytes = deposits.iter().map(|(_, deposit)| deposit.bytes).sum();
        (deposits, bytes)
    }

    /// The share of the queue in what is freed and deposited.
    fn share(&self, world: &World, freed: u64, drawn: Option<usize>) -> (Vec<Queued>, Vec<(u8, Deposit)>, u64) {
        let (deposits, bytes) = Self::look(world);
        let wants: Vec<u64> = world.queue.iter().map(|_| self.bytes).collect();
        let shared = share(freed, bytes, &wants, drawn, |_| true);
        let served = shared.served.iter().map(|at| world.queue[*at].clone()).collect();
        let spent = if shared.spends_deposits { deposits } else { Vec::new() };
        (served, spent, shared.rest)
    }

    fn prepare(&self, world: &mut World, process: usize) {
        let (deposits, _) = Self::look(world);
        let empty = world.queue.is_empty();
        let me = &mut world.processes[process];
        if let Some((.., leaving)) = &me.place {
            me.task = leaving.then_some(Txn::Withdraw);
            return;
        }
        if empty {
            let payment = me.broker.pay_from_own(8, |_| true);
            me.task = payment.or_else(|| me.broker.pay(&deposits, 8, |_| true)).map(Txn::Pay);
        }
        if me.task.is_none() {
            me.task = me.broker.take_first().map(Txn::Join);
        }
    }

    fn free(&self, world: &mut World, process: usize, of: Id, drawn: usize) {
        let Some(Record::Retired(record)) = world.records.get(&of) else {
            return;
        };
        let mut freed = record.paid;
        let now = Version(world.version);
        let me = &mut world.processes[process];
        let known = me.place.as_ref().map(|(waiter, ..)| waiter.since);
        me.broker
            .in_queue(known.filter(|_| self.bug != Some(Bug::OwnWaitersForEver)));
        let own = me.broker.feed(freed, now, |_| true);
        freed -= own.iter().map(|waiter| waiter.bytes).sum::<u64>();
        let nobody_waits = world.queue.is_empty() && freed > 0;
        let (served, spent, rest) = match freed > 0 && !nobody_waits {
            true => self.share(world, freed, Some(drawn)),
            false => (Vec::new(), Vec::new(), freed),
        };
        world.processes[process].free = Some(Txn::Free {
            of,
            own,
            served,
            spent,
            rest,
            nobody_waits,
        });
    }

    fn is_over(&self, world: &World) -> bool {
        let (_, bytes) = Self::look(world);
        let everybody = (0..2).flat_map(|process| (0..self.waiters[process]).map(move |number| (process, number)));
        if world.processes.iter().all(|process| process.crashed) {
            return true;
        }
        let mut alive = everybody.filter(|(process, _)| !world.processes[*process].crashed);
        bytes == self.budget && alive.all(|id| world.gone.contains(&id) || world.served.contains_key(&id))
    }
}

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            version: 1,
            deposits: BTreeMap::new(),
            queue: Vec::new(),
            records: BTreeMap::new(),
            processes: Default::default(),
            served: BTreeMap::new(),
            gone: Vec::new(),
            crashes: self.crashes,
            lost_replies: self.lost_replies,
            leaves: self.leaves,
        };
        world.deposit(self.budget, Version(1));
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (process, me) in world.processes.iter().enumerate() {
            if me.crashed {
                continue;
            }
            let waits = |number: &u8| {
                let id = (process, *number);
                !world.served.contains_key(&id) && !world.gone.contains(&id)
            };
            let waiting = (0..me.arrived).filter(waits).count();
            if me.arrived < self.waiters[process] && waiting < usize::from(self.at_once[process]) {
                actions.push(Action::Arrive(process));
            }
            let told = |(waiter, since, _): &(Waiter<Id>, Version, bool)| {
                !world.queue.contains(&Queued {
                    since: *since,
                    id: waiter.what,
                })
            };
            if me.place.as_ref().is_some_and(told) && me.task.is_none() {
                actions.push(Action::Told(process));
            }
            let leaving = me.place.as_ref().is_some_and(|(.., leaving)| *leaving);
            let first = me.broker.first().is_some() && me.place.is_none();
            if me.task.is_none() && (first || leaving && !me.place.as_ref().is_some_and(told)) {
                actions.push(Action::Prepare(process));
            }
            let (_, bytes) = Self::look(world);
            if me.task.is_none() && !world.queue.is_empty() && bytes >= self.bytes {
                actions.push(Action::Serve(process));
            }
            for (which, txn) in [(Which::Task, &me.task), (Which::Free, &me.free)] {
                if txn.is_some() {
                    actions.push(Action::Apply(process, which, false));
                    if world.lost_replies > 0 {
                        actions.push(Action::Apply(process, which, true));
                    }
                }
            }
            if me.free.is_none() && self.frees[process] {
                for (id, record) in &world.records {
                    if matches!(record, Record::Retired(_)) {
                        let places = world.queue.len().max(1);
                        actions.extend((0..places).map(|drawn| Action::Free(process, *id, drawn)));
                    }
                }
            }
            if world.crashes[process] {
                actions.push(Action::Crash(process));
            }
            if world.leaves > 0 {
                actions.extend(
                    (0..me.arrived)
                        .filter(waits)
                        .map(|number| Action::Leave((process, number))),
                );
            }
        }
        for (id, record) in &world.records {
            if matches!(record, Record::Reserved(_)) {
                actions.push(Action::Retire(*id));
            }
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Arrive(process) => {
                let now = Version(world.version);
                let me = &mut world.processes[process];
                me.broker.arrive(self.bytes, now, (process, me.arrived));
                me.arrived += 1;
            }
            Action::Leave(id) => {
                world.leaves -= 1;
                let me = &mut world.processes[id.0];
                let number = u64::from(id.1) + 1;
                if me.broker.leave(number).is_some() {
                    world.gone.push(id);
                } else {
                    let (_, _, leaving) = me.place.as_mut().filter(|(waiter, ..)| waiter.what == id)?;
                    *leaving = true;
                }
            }
            Action::Prepare(process) => self.prepare(&mut world, process),
            Action::Serve(process) => {
                let (served, spent, rest) = self.share(&world, 0, None);
                world.processes[process].task = Some(Txn::Serve { served, spent, rest });
            }
            Action::Free(process, of, drawn) => self.free(&mut world, process, of, drawn),
            Action::Apply(process, which, lost) => {
                let me = &mut world.processes[process];
                let txn = match which {
                    Which::Task => me.task.take(),
                    Which::Free => me.free.take(),
                }?;
                let outcome = world.apply(self, process, &txn);
                if lost {
                    world.lost_replies -= 1;
                    world.unclear(process, txn);
                } else {
                    world.told(process, txn, outcome);
                }
            }
            Action::Told(process) => world.processes[process].place = None,
            Action::Retire(id) => {
                let Some(Record::Reserved(record)) = world.records.remove(&id) else {
                    return None;
                };
                world.records.insert(id, Record::Retired(record.abort(Reason::Aborted)));
                world.version += 1;
            }
            Action::Crash(process) => {
                world.crashes[process] = false;
                world.queue.retain(|queued| queued.id.0 != process);
                world.processes[process] = Process {
                    crashed: true,
                    ..Process::default()
                };
            }
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("LC5", |scenario: &Self, world: &World| {
                let paid = world.records.values().map(|record| match record {
                    Record::Reserved(record) => record.paid,
                    Record::Retired(record) => record.paid,
                });
                let kept = world.processes.iter().map(|process| process.kept);
                let deposits = world.deposits.values().map(|deposit| deposit.bytes).chain(kept);
                lc::budget_is_accounted_for(scenario.budget, deposits, paid)
            }),
            Property::always("served once", |_, world: &World| {
                world.served.values().all(|times| *times <= 1)
            }),
            Property::always("own waiters not for ever", |_, world: &World| {
                world.processes.iter().all(|process| process.in_a_row <= MOST_IN_A_ROW)
            }),
            Property::always("nobody waits for nothing", |scenario: &Self, world: &World| {
                let mut actions = Vec::new();
                scenario.actions(world, &mut actions);
                !actions.is_empty() || scenario.is_over(world)
            }),
            Property::sometimes("a process waits in the queue", |_, world: &World| {
                !world.queue.is_empty()
            }),
            Property::sometimes("both wait in the queue", |_, world: &World| world.queue.len() == 2),
            Property::sometimes("all ends well", |scenario: &Self, world: &World| {
                scenario.is_over(world) && world.served.len() == 4
            }),
        ]
    }
}
