//! The store and the processes: what a transaction does when it is applied, and what its process makes of the reply.

use std::collections::BTreeMap;

use tensorhold_core::Nonce;
use tensorhold_custody::quota::{Broker, Deposit, Payment, Waiter};
use tensorhold_custody::{Reserved, Retired, SessionId, Tick, Version};

use super::scenario::{Bug, Scenario};

/// A waiter: its process, and its number there.
pub(crate) type Id = (usize, u8);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Record {
    Reserved(Reserved),
    Retired(Retired),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queued {
    pub(super) since: Version,
    pub(super) id: Id,
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
    pub(super) crashed: bool,
    pub(super) arrived: u8,
    pub(super) broker: Broker<u8, Id>,
    /// The waiter in the shared queue, since when, and whether its caller leaves.
    pub(super) place: Option<(Waiter<Id>, Version, bool)>,
    pub(super) task: Option<Txn>,
    pub(super) free: Option<Txn>,
    /// Only with [`Bug::ChangeKeptInMemory`].
    pub(super) kept: u64,
    pub(super) in_a_row: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(super) version: u64,
    pub(super) deposits: BTreeMap<u8, Deposit>,
    pub(super) queue: Vec<Queued>,
    pub(super) records: BTreeMap<Id, Record>,
    pub(super) processes: [Process; 2],
    /// Waiters by how often they were served, and those who left or died.
    pub(super) served: BTreeMap<Id, u8>,
    pub(super) gone: Vec<Id>,
    pub(super) crashes: [bool; 2],
    pub(super) lost_replies: u8,
    pub(super) leaves: u8,
}

fn session(process: usize) -> SessionId {
    SessionId(process as u64)
}

impl World {
    pub(super) fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    pub(super) fn deposit(&mut self, bytes: u64, version: Version) -> Option<(u8, Deposit)> {
        let key = (0..).find(|key| !self.deposits.contains_key(key))?;
        let deposit = Deposit { bytes, version };
        (bytes > 0).then(|| {
            self.deposits.insert(key, deposit);
            (key, deposit)
        })
    }

    pub(super) fn has(&self, spent: &[(u8, Deposit)]) -> bool {
        spent
            .iter()
            .all(|(key, deposit)| self.deposits.get(key) == Some(deposit))
    }

    pub(super) fn reserve(&mut self, id: Id, bytes: u64) {
        let record = Reserved::new(session(id.0), Nonce::from_u64(0), bytes, Tick(9)).with_paid(bytes);
        self.records.insert(id, Record::Reserved(record));
        *self.served.entry(id).or_default() += 1;
    }

    pub(super) fn serve(&mut self, served: &[Queued], spent: &[(u8, Deposit)], bytes: u64) {
        for (key, _) in spent {
            self.deposits.remove(key);
        }
        for queued in served {
            self.queue.retain(|other| other != queued);
            self.reserve(queued.id, bytes);
        }
    }

    /// Applies a transaction if its conditions hold. Returns its version, and the deposit that the process remembers.
    pub(super) fn apply(
        &mut self,
        scenario: &Scenario,
        process: usize,
        txn: &Txn,
    ) -> Option<(Version, Option<(u8, Deposit)>)> {
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
    pub(super) fn told(&mut self, process: usize, txn: Txn, outcome: Option<(Version, Option<(u8, Deposit)>)>) {
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
    pub(super) fn unclear(&mut self, process: usize, txn: Txn) {
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
