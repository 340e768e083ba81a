//! A process: what it believes, what it asks, how it reacts to the answer.

use tensorhold_core::Generation;
use tensorhold_custody::invariants as lc;
use tensorhold_custody::{Lease, SessionId, Tick, Token, WallTime};

use super::index::{Op, Reply, Request};
use super::scenario::Chore;
use super::{Object, Role, Sample, Scenario, World};

/// The session of the process at this place.
pub(crate) fn session(process: usize) -> SessionId {
    SessionId(process as u64 + 1)
}

/// What a process believes it has: a reservation (a producer), or a lease (a worker, a reader).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Hold {
    pub(crate) object: Object,
    pub(crate) token: Token,
    pub(crate) until: Tick,
    /// Whether the objects have been there all the time. Only an all-knowing observer can tell.
    pub(crate) whole: bool,
}

/// Where a process is in its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Between two pieces of work.
    #[default]
    Idle,
    /// A producer waits for quota.
    Waiting,
    /// A producer has written and not yet concluded.
    Written,
    /// A holder of a lease transfers the bytes.
    Using,
    /// It has them, and has to read again before it says so.
    Used,
    /// A request is in flight.
    Asked(Request),
    /// No answer came; it has to read back.
    Unsure(Request),
    /// It has ended, in one way or another.
    Ended,
}

/// One process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) phase: Phase,
    pub(crate) hold: Option<Hold>,
    /// How many pieces of its work are behind it.
    pub(crate) done: u8,
    /// Whether it has had its crash or its lost session.
    pub(crate) hurt: bool,
}

impl Process {
    fn rest(&mut self, done: bool) {
        (self.phase, self.hold) = (Phase::Idle, None);
        self.done += u8::from(done);
    }

    /// The lease under which it may be reading.
    pub(crate) fn lease_in_use(&self, object: Object, session: SessionId) -> Option<Lease> {
        let reads = match self.phase {
            Phase::Using => true,
            Phase::Asked(request) | Phase::Unsure(request) => matches!(request.op, Op::Renew { .. }),
            _ => false,
        };
        self.hold
            .filter(|hold| reads && hold.object == object)
            .map(|hold| Lease {
                session,
                token: hold.token,
                until: hold.until,
                since: WallTime::default(),
            })
    }
}

impl World {
    pub(crate) fn ask(&mut self, process: usize, sample: Sample, version: u64, op: Op) {
        self.processes[process].phase = Phase::Asked(Request {
            process,
            sample,
            version,
            op,
        });
    }

    /// The sample that a producer makes next.
    pub(crate) fn next_make(&self, scenario: &Scenario, process: usize) -> Option<Sample> {
        match &scenario.roles[process] {
            Role::Producer(samples) => samples.get(usize::from(self.processes[process].done)).copied(),
            _ => None,
        }
    }

    pub(crate) fn draw(&mut self, scenario: &Scenario, process: usize) {
        let Some(sample) = self.next_make(scenario, process) else {
            return;
        };
        let who = session(process);
        if self.index.gone.contains(&who) {
            self.processes[process].phase = Phase::Ended;
            return;
        }
        if self.index.deposits == 0 {
            self.processes[process].phase = Phase::Waiting;
            return;
        }
        let until = self.index.tick.after(scenario.lease_ticks);
        self.ask(process, sample, 0, Op::Reserve { until });
    }

    /// A producer writes what it has reserved quota for. Nothing is read for that, so it is one step with the answer
    /// that allows it.
    fn put(&mut self, process: usize) {
        if let Some(Hold { object, .. }) = self.processes[process].hold {
            self.ask(
                process,
                object.sample,
                0,
                Op::Put {
                    generation: object.generation,
                },
            );
        }
    }

    /// A producer reads the pending record, even another producer's, and tries to commit or abort it as its own.
    pub(crate) fn conclude(&mut self, process: usize, commit: bool) {
        let Some(Hold { object, .. }) = self.processes[process].hold else {
            return;
        };
        let Some(version) = self.index.pending_of(object.sample).map(|kept| kept.version) else {
            self.processes[process].rest(true);
            return;
        };
        let generation = object.generation;
        let replaces = self.index.live_of(object.sample).map_or(0, |kept| kept.version);
        let op = if commit {
            Op::Commit { generation, replaces }
        } else {
            Op::Abort { generation }
        };
        self.ask(process, object.sample, version, op);
    }

    pub(crate) fn take(&mut self, scenario: &Scenario, process: usize, sample: Sample) {
        let Some(version) = self.index.live_of(sample).map(|kept| kept.version) else {
            return;
        };
        let until = self.index.tick.after(scenario.lease_ticks);
        let op = match scenario.roles[process] {
            Role::Worker(..) => Op::Lease { until },
            _ => Op::Read { until },
        };
        self.ask(process, sample, version, op);
    }

    pub(crate) fn holds(&self, hold: &Hold) -> (bool, bool) {
        let live = self.index.live_of(hold.object.sample);
        let retired = self.index.retired.get(&hold.object);
        (
            live.is_some_and(|kept| kept.record.generation == hold.object.generation && kept.record.holds(hold.token)),
            retired.is_some_and(|kept| kept.record.holds(hold.token)),
        )
    }

    /// The transfer has ended. The holder asks the index whether its token is still good, and only then hands out the
    /// bytes.
    ///
    /// It answers for the sample based on the same read, so that is one step with it: a pause in between is a pause of
    /// its request, and if the record changes meanwhile it reads again.
    pub(crate) fn hand_out(&mut self, scenario: &Scenario, process: usize, nack: bool) {
        let Some(hold) = self.processes[process].hold else {
            return;
        };
        let (live, retired) = self.holds(&hold);
        let told = self.ghost.lost.contains(&hold.object);
        self.ghost
            .check(&lc::LC2, lc::handed_out_is_whole(live || retired, hold.whole, told));
        // Whether it may is asked of `holds`; whether it might is seen in the leases themselves.
        let truly = self.has_lease(session(process), hold.token);
        self.ghost
            .check(&lc::LC4, lc::stale_changes_nothing(truly, live || retired));
        if !(live || retired) {
            self.processes[process].rest(false);
        } else if hold.whole || retired {
            self.answer_for(scenario, process, nack);
        } else if let Some(version) = self.index.live_of(hold.object.sample).map(|kept| kept.version) {
            self.ask(process, hold.object.sample, version, Op::ReportLost);
        }
    }

    /// A holder presents its token to any record of the sample that it finds, even if it is another generation's.
    pub(crate) fn answer_for(&mut self, scenario: &Scenario, process: usize, nack: bool) {
        let Some(Hold { object, token, .. }) = self.processes[process].hold else {
            return;
        };
        let retired = self.index.retired.get(&object).filter(|kept| kept.record.holds(token));
        let (version, op) = match (retired, self.index.live_of(object.sample)) {
            (Some(kept), _) => (
                kept.version,
                Op::LetGo {
                    generation: object.generation,
                    token,
                },
            ),
            (None, None) => return self.processes[process].rest(false),
            (None, Some(kept)) => match scenario.roles[process] {
                Role::Worker(..) if nack => (kept.version, Op::Nack { token }),
                Role::Worker(..) => (kept.version, Op::Ack { token }),
                _ => (kept.version, Op::Release { token }),
            },
        };
        self.ask(process, object.sample, version, op);
    }

    /// A leased sample does not reach the consumer that it is meant for: the lease is undone.
    pub(crate) fn untake(&mut self, process: usize) {
        let Some(Hold { object, token, .. }) = self.processes[process].hold else {
            return;
        };
        let retired = self.index.retired.get(&object).filter(|kept| kept.record.holds(token));
        let generation = object.generation;
        match (retired.map(|kept| kept.version), self.index.live_of(object.sample)) {
            (Some(version), _) => self.ask(process, object.sample, version, Op::LetGo { generation, token }),
            (None, Some(kept)) => self.ask(process, object.sample, kept.version, Op::Untake { token }),
            (None, None) => self.processes[process].rest(false),
        }
    }

    pub(crate) fn renew(&mut self, scenario: &Scenario, process: usize) {
        let Some(Hold { object, token, .. }) = self.processes[process].hold else {
            return;
        };
        let until = self.index.tick.after(scenario.lease_ticks);
        if let Some(version) = self.index.live_of(object.sample).map(|kept| kept.version) {
            self.ask(process, object.sample, version, Op::Renew { token, until });
        }
    }

    pub(crate) fn operate(&mut self, process: usize, chore: Chore) {
        let (sample, op) = match chore {
            Chore::Reopen(sample) => (sample, Op::Reopen),
            Chore::Retire(sample) => (sample, Op::Retire),
        };
        if let Some(version) = self.index.live_of(sample).map(|kept| kept.version) {
            self.ask(process, sample, version, op);
        }
    }

    fn got(&mut self, process: usize, sample: Sample, generation: Generation, token: Token, until: Tick) {
        let object = Object { sample, generation };
        let whole = self.engine.contains(&object);
        self.processes[process].hold = Some(Hold {
            object,
            token,
            until,
            whole,
        });
    }

    /// How a process reacts to an answer.
    pub(crate) fn receive(&mut self, scenario: &Scenario, request: Request, reply: Reply) {
        let process = request.process;
        if reply == Reply::Fenced && self.index.gone.contains(&session(process)) {
            let me = &mut self.processes[process];
            (me.phase, me.hold) = (Phase::Ended, None);
            return;
        }
        match (request.op, reply) {
            (Op::Reserve { until }, Reply::Done(version)) => {
                if let Some(generation) = Generation::new(version) {
                    self.got(process, request.sample, generation, Token::THIS_WRITE, until);
                    self.put(process);
                }
            }
            (Op::Put { .. }, _) if scenario.left.aborts == 0 => self.conclude(process, true),
            (Op::Put { .. }, _) | (Op::Commit { .. }, Reply::Conflict) => {
                self.processes[process].phase = Phase::Written
            }
            (Op::Lease { until } | Op::Read { until }, Reply::Done(version)) => {
                if let Some(generation) = self.index.live_of(request.sample).map(|kept| kept.record.generation) {
                    self.got(process, request.sample, generation, Token(version), until);
                    self.processes[process].phase = Phase::Using;
                    self.processes[process].done += 1;
                }
            }
            (Op::Renew { until, .. }, Reply::Done(_)) => {
                let me = &mut self.processes[process];
                me.phase = Phase::Using;
                if let Some(hold) = &mut me.hold {
                    hold.until = hold.until.max(until);
                }
            }
            (Op::Renew { .. } | Op::ReportLost, Reply::Conflict) => self.processes[process].phase = Phase::Using,
            // No reader reads under a lease that is being undone.
            (Op::Untake { .. }, Reply::Conflict) => self.untake(process),
            (Op::ReportLost, Reply::Done(_))
            | (Op::Ack { .. } | Op::Nack { .. } | Op::Release { .. } | Op::LetGo { .. }, Reply::Conflict) => {
                self.processes[process].phase = Phase::Used;
            }
            (Op::Reserve { .. } | Op::Commit { .. } | Op::Abort { .. } | Op::Retire | Op::Reopen, _) => {
                self.processes[process].rest(true);
            }
            _ => self.processes[process].rest(false),
        }
    }

    /// No answer came: a process finds out what became of its request.
    pub(crate) fn read_back(&mut self, request: Request) {
        let (process, sample) = (request.process, request.sample);
        let who = session(process);
        let mine = self.index.pending_of(sample).filter(|kept| kept.record.session == who);
        match request.op {
            Op::Reserve { .. } => match mine.and_then(|kept| Some((kept.record.generation?, kept.record.until))) {
                Some((generation, until)) => {
                    self.got(process, sample, generation, Token::THIS_WRITE, until);
                    self.put(process);
                }
                None => self.processes[process].rest(false),
            },
            Op::Put { generation } => {
                if self.engine.contains(&Object { sample, generation }) {
                    self.processes[process].phase = Phase::Written;
                } else {
                    self.put(process);
                }
            }
            Op::Commit { generation, .. } | Op::Abort { generation } => {
                if mine.is_some_and(|kept| kept.record.generation == Some(generation)) {
                    self.processes[process].phase = Phase::Written;
                } else {
                    self.processes[process].rest(true);
                }
            }
            Op::Lease { .. } | Op::Read { .. } => {
                let found = self.index.live_of(sample).and_then(|kept| {
                    let lease = kept.record.leases().find(|lease| lease.session == who)?;
                    Some((kept.record.generation, lease.token, lease.until))
                });
                match found {
                    Some((generation, token, until)) => {
                        self.got(process, sample, generation, token, until);
                        self.processes[process].phase = Phase::Using;
                        self.processes[process].done += 1;
                    }
                    None => self.processes[process].rest(false),
                }
            }
            Op::Untake { .. } => {
                let held = self.processes[process].hold.map(|hold| self.holds(&hold));
                match held {
                    Some((true, _) | (_, true)) => self.untake(process),
                    _ => self.processes[process].rest(false),
                }
            }
            Op::Renew { .. } | Op::ReportLost => self.processes[process].phase = Phase::Using,
            Op::Retire | Op::Reopen => self.processes[process].rest(true),
            _ => self.processes[process].phase = Phase::Used,
        }
    }
}
