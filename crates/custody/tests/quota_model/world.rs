//! The quota in a world of two processes: the broker and the sharing that run in production, over a small store.
//!
//! Every process has a broker, one transaction of its task in flight, and one of a free. A transaction is prepared from
//! what is there at one moment and applied at another, when its conditions may no longer hold; its reply may be lost;
//! a process may crash at any moment. Checked in every reachable state:
//!
//! - the deposits and what records were paid with are the budget (LC5);
//! - no waiter is served twice;
//! - no process serves its own waiters for long while another one waits;
//! - when nothing can happen any more, everybody who did not leave was served, and the whole budget is in deposits.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_core::Nonce;
use holdfast_custody::quota::{Broker, Deposit, Payment, Waiter, share};
use holdfast_custody::{Reason, Reserved, Retired, SessionId, Tick, Version, invariants as lc};
use stateright::{Checker as _, CheckerBuilder, Model, Property};

/// A waiter: its process, and its number there.
pub(crate) type Id = (usize, u8);

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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Record {
    Reserved(Reserved),
    Retired(Retired),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queued {
    since: Version,
    id: Id,
}

/// A transaction that was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Txn {
    Pay(Payment<u8, Id>),
    Join(Waiter<Id>),
    Withdraw,
    Serve {
        served: Vec<Queued>,
        spent: Vec<(u8, Deposit)>,
        rest: u64,
    },
    Free {
        of: Id,
        own: Vec<Waiter<Id>>,
        served: Vec<Queued>,
        spent: Vec<(u8, Deposit)>,
        rest: u64,
        nobody_waits: bool,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    crashed: bool,
    arrived: u8,
    broker: Broker<u8, Id>,
    /// The waiter in the shared queue, since when, and whether its caller leaves.
    place: Option<(Waiter<Id>, Version, bool)>,
    task: Option<Txn>,
    free: Option<Txn>,
    /// Only with [`Bug::ChangeKeptInMemory`].
    kept: u64,
    in_a_row: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    version: u64,
    deposits: BTreeMap<u8, Deposit>,
    queue: Vec<Queued>,
    records: BTreeMap<Id, Record>,
    processes: [Process; 2],
    /// Waiters by how often they were served, and those who left or died.
    served: BTreeMap<Id, u8>,
    gone: Vec<Id>,
    crashes: [bool; 2],
    lost_replies: u8,
    leaves: u8,
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

fn session(process: usize) -> SessionId {
    SessionId(process as u64)
}

impl World {
    fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    fn deposit(&mut self, bytes: u64, version: Version) -> Option<(u8, Deposit)> {
        let key = (0..).find(|key| !self.deposits.contains_key(key))?;
        let deposit = Deposit { bytes, version };
        (bytes > 0).then(|| {
            self.deposits.insert(key, deposit);
            (key, deposit)
        })
    }

    fn has(&self, spent: &[(u8, Deposit)]) -> bool {
        spent
            .iter()
            .all(|(key, deposit)| self.deposits.get(key) == Some(deposit))
    }

    fn reserve(&mut self, id: Id, bytes: u64) {
        let record = Reserved::new(session(id.0), Nonce::from_u64(0), bytes, Tick(9)).with_paid(bytes);
        self.records.insert(id, Record::Reserved(record));
        *self.served.entry(id).or_default() += 1;
    }

    fn serve(&mut self, served: &[Queued], spent: &[(u8, Deposit)], bytes: u64) {
        for (key, _) in spent {
            self.deposits.remove(key);
        }
        for queued in served {
            self.queue.retain(|other| other != queued);
            self.reserve(queued.id, bytes);
        }
    }

    /// Applies a transaction if its conditions hold. Returns its version, and the deposit that the process remembers.
    fn apply(&mut self, scenario: &Scenario, process: usize, txn: &Txn) -> Option<(Version, Option<(u8, Deposit)>)> {
        let can = match txn {
            Txn::Pay(payment) => self.queue.is_empty() && self.has(&payment.deposits),
            Txn::Join(waiter) => !self.queue.iter().any(|queued| queued.id.0 == waiter.what.0),
            Txn::Withdraw => {
                let place = self.processes[process].place.as_ref();
                place.is_some_and(|(waiter, since, _)| {
                    self.queue.contains(&Queued {
                        since: *since,
                        id: waiter.what,
                    })
                })
            }
            Txn::Serve { served, spent, .. } => {
                self.has(spent) && served.iter().all(|queued| self.queue.contains(queued))
            }
            Txn::Free {
                of,
                served,
                spent,
                nobody_waits,
                ..
            } => {
                let there = matches!(self.records.get(of), Some(Record::Retired(_)));
                (there || scenario.bug == Some(Bug::ReturnedTwice))
                    && self.has(spent)
                    && served.iter().all(|queued| self.queue.contains(queued))
                    && (!nobody_waits || self.queue.is_empty())
            }
        };
        if !can {
            return None;
        }
        let version = self.next_version();
        let mut made = None;
        match txn {
            Txn::Pay(payment) => {
                for (key, _) in &payment.deposits {
                    self.deposits.remove(key);
                }
                for waiter in &payment.waiters {
                    self.reserve(waiter.what, waiter.bytes);
                }
                if scenario.bug == Some(Bug::ChangeKeptInMemory) {
                    self.processes[process].kept += payment.change;
                } else {
                    made = self.deposit(payment.change, version);
                }
            }
            Txn::Join(waiter) => self.queue.push(Queued {
                since: version,
                id: waiter.what,
            }),
            Txn::Withdraw => {
                self.queue.retain(|queued| queued.id.0 != process);
            }
            Txn::Serve { served, spent, rest } => {
                self.serve(served, spent, scenario.bytes);
                self.deposit(*rest, version);
            }
            Txn::Free {
                of,
                own,
                served,
                spent,
                rest,
                nobody_waits,
            } => {
                self.records.remove(of);
                for waiter in own {
                    self.reserve(waiter.what, waiter.bytes);
                }
                let others = self.queue.iter().any(|queued| queued.id.0 != process);
                let in_a_row = &mut self.processes[process].in_a_row;
                *in_a_row = if !own.is_empty() && others { *in_a_row + 1 } else { 0 };
                self.serve(served, spent, scenario.bytes);
                let deposit = self.deposit(*rest, version);
                made = deposit.filter(|_| *nobody_waits);
            }
        }
        for other in 0..2 {
            // Counted anew for each request of the other process.
            if !self.queue.iter().any(|queued| queued.id.0 == 1 - other) {
                self.processes[other].in_a_row = 0;
            }
        }
        Some((version, made))
    }

    /// The process learns what became of its transaction.
    fn told(&mut self, process: usize, txn: Txn, outcome: Option<(Version, Option<(u8, Deposit)>)>) {
        let me = &mut self.processes[process];
        let applied = outcome.is_some();
        if let Some((key, deposit)) = outcome.and_then(|(_, made)| made) {
            me.broker.made(key, deposit);
        }
        match txn {
            Txn::Pay(payment) if !applied => payment
                .waiters
                .into_iter()
                .for_each(|waiter| me.broker.put_back(waiter)),
            Txn::Free { own, .. } if !applied => own.into_iter().for_each(|waiter| me.broker.put_back(waiter)),
            Txn::Join(waiter) => match outcome {
                Some((since, _)) => me.place = Some((waiter, since, false)),
                None => me.broker.put_back(waiter),
            },
            Txn::Withdraw if applied => {
                if let Some((waiter, ..)) = me.place.take() {
                    self.gone.push(waiter.what);
                }
            }
            _ => {}
        }
    }

    /// The process does not learn it. Its waiters are told that it is unclear, and read: those who were not served try
    /// again. A place in the queue is found again by reading, too.
    fn unclear(&mut self, process: usize, txn: Txn) {
        let waiters = match txn {
            Txn::Pay(payment) => payment.waiters,
            Txn::Free { own, .. } => own,
            Txn::Join(waiter) => {
                let own = self.queue.iter().find(|queued| queued.id == waiter.what);
                match own.map(|queued| queued.since) {
                    Some(since) => self.processes[process].place = Some((waiter, since, false)),
                    None => self.processes[process].broker.put_back(waiter),
                }
                return;
            }
            Txn::Withdraw | Txn::Serve { .. } => return,
        };
        for waiter in waiters {
            if !self.served.contains_key(&waiter.what) {
                self.processes[process].broker.put_back(waiter);
            }
        }
    }
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

/// Two processes with two waiters each, a budget for one, and a crash of each.
pub(crate) fn small() -> Scenario {
    Scenario {
        waiters: [2, 2],
        at_once: [2, 2],
        budget: 1,
        bytes: 1,
        crashes: [true, true],
        frees: [true, true],
        lost_replies: 0,
        leaves: 0,
        bug: None,
    }
}

/// The situations that must come up, so that "nothing is ever broken" says something.
const SOMETIMES: [&str; 3] = [
    "a process waits in the queue",
    "both wait in the queue",
    "all ends well",
];

/// Explores a scenario, up to so many states. Returns the names of the properties that do not hold, and how many states
/// there were.
pub(crate) fn explore(scenario: &Scenario, most: Option<usize>) -> (Vec<&'static str>, usize) {
    let checker = checker(scenario, most).spawn_bfs().join();
    (broken(checker.discoveries().into_keys()), checker.unique_state_count())
}

/// What happens if one process is always faster than the other, whose one waiter waits in the queue: the most often that
/// it served its own in a row.
#[allow(dead_code, reason = "the example does not use it")]
pub(crate) fn served_in_a_row(scenario: &Scenario) -> u8 {
    const STEPS: usize = 400;
    let mut world = scenario.init_states().remove(0);
    let take = |world: &mut World, action| {
        if let Some(next) = scenario.next_state(world, action) {
            *world = next;
        }
    };
    for process in 0..2 {
        take(&mut world, Action::Arrive(process));
        take(&mut world, Action::Prepare(process));
        take(&mut world, Action::Apply(process, Which::Task, false));
    }
    let mut most = 0;
    for _ in 0..STEPS {
        let own = world.queue.iter().position(|queued| queued.id.0 == 0);
        let rank = |action: &Action| match action {
            Action::Arrive(0) => Some(0),
            Action::Apply(0, _, false) => Some(1),
            Action::Told(0) => Some(2),
            Action::Prepare(0) => Some(3),
            Action::Retire(_) => Some(4),
            // The draw favours it, too.
            Action::Free(0, _, drawn) if own.is_none_or(|own| own == *drawn) => Some(5),
            _ => None,
        };
        let mut actions = Vec::new();
        scenario.actions(&world, &mut actions);
        let Some(next) = actions
            .into_iter()
            .filter(|action| rank(action).is_some())
            .min_by_key(&rank)
        else {
            break;
        };
        take(&mut world, next);
        most = most.max(world.processes[0].in_a_row);
    }
    most
}

fn checker(scenario: &Scenario, most: Option<usize>) -> CheckerBuilder<Scenario> {
    let checker = scenario.clone().checker().threads(2).timeout(Duration::from_secs(600));
    match most {
        Some(most) => checker.target_state_count(most),
        None => checker,
    }
}

fn broken(found: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    found.filter(|name| !SOMETIMES.contains(name)).collect()
}
