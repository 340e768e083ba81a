//! One state for all worlds that cannot be told apart by what happens next.
//!
//! Each rule forgets something that can have no effect any more, or picks one of several worlds that are the same but for
//! the names of processes that do the same work. None takes a step away, except steps that change nothing.

use std::collections::BTreeSet;

use tensorhold_custody::{Acknowledged, Lease, Progress, Retired, SessionId, Sweep, Tick, Token, Verdict};

use super::index::{Op, Request};
use super::process::{Phase, Process, session};
use super::sweeper::{Key, Sweeper};
use super::{Role, Scenario, World};

/// What a sweeper knew of the clock and of sessions that are gone.
type Known = (Tick, BTreeSet<SessionId>);

/// What a sweeper decided.
#[derive(PartialEq)]
enum Decision {
    Retire(Option<Verdict<Retired>>),
    TakeBack(Option<Verdict<Acknowledged>>),
}

impl World {
    /// Brings the world into the one form that stands for all that are alike.
    pub(crate) fn normalise(&mut self, scenario: &Scenario) {
        self.ghost.forget_what_cannot_matter(&self.index);
        self.forget_dead_requests();
        self.forget_dead_sweeps(scenario);
        self.forget_dead_processes(scenario);
        self.sort_workers(scenario);
        self.renumber();
        self.late.sort_unstable();
        self.sweepers.sort_unstable();
    }

    /// A late request of a session that is gone, or on condition of a version that is gone, will be refused.
    fn forget_dead_requests(&mut self) {
        let mut late = std::mem::take(&mut self.late);
        late.retain(|request| self.may_take_effect(request));
        self.late = late;
    }

    fn may_take_effect(&self, request: &Request) -> bool {
        let alive = !self.index.gone.contains(&session(request.process));
        let now = match request.op {
            Op::Put { .. } => return true,
            Op::Reserve { .. } => return alive,
            Op::Commit { .. } | Op::Abort { .. } => self.version_of(Key::Pending(request.sample)),
            Op::LetGo { generation, .. } => {
                let sample = request.sample;
                self.version_of(Key::Retired(super::Object { sample, generation }))
            }
            _ => self.version_of(Key::Live(request.sample)),
        };
        alive && now == Some(request.version)
    }

    /// A sweeper whose record has changed will write nothing, so it may as well be idle. What it would remove again is
    /// an orphan, if it is there at all, and any process may remove those. What a sweeper knew matters only as far as
    /// it decides.
    fn forget_dead_sweeps(&mut self, scenario: &Scenario) {
        let bug = scenario.bugs.quota_returned_twice;
        let mut sweepers = std::mem::take(&mut self.sweepers);
        for sweeper in &mut sweepers {
            let stale = match sweeper {
                Sweeper::Idle => false,
                Sweeper::Looked { key, version, .. } => self.version_of(*key) != Some(*version),
                Sweeper::Freeing(free) => !bug && !self.index.retired.contains_key(&free.object),
                Sweeper::Removed { free, .. } => {
                    !bug && self.version_of(Key::Retired(free.object)) != Some(free.version)
                }
            };
            if stale {
                *sweeper = Sweeper::Idle;
            }
            if let Sweeper::Looked { key, tick, gone, .. } = sweeper {
                let knew = (*tick, self.named_in(*key, gone));
                let knows = (self.index.tick, self.named_in(*key, &self.index.gone));
                let same = self.decide(scenario, *key, &knew) == self.decide(scenario, *key, &knows);
                (*tick, *gone) = if same { knows } else { knew };
            }
        }
        self.sweepers = sweepers;
    }

    /// Those of the sessions that the record names.
    fn named_in(&self, key: Key, sessions: &BTreeSet<SessionId>) -> BTreeSet<SessionId> {
        let leases: Vec<SessionId> = match key {
            Key::Pending(sample) => self
                .index
                .pending_of(sample)
                .map(|kept| kept.record.session)
                .into_iter()
                .collect(),
            Key::Live(sample) => {
                let leases = self
                    .index
                    .live_of(sample)
                    .into_iter()
                    .flat_map(|kept| kept.record.leases());
                leases.map(|lease| lease.session).collect()
            }
            Key::Retired(object) | Key::Freeable(object) => {
                let leases = self
                    .index
                    .retired
                    .get(&object)
                    .into_iter()
                    .flat_map(|kept| &kept.record.readers);
                leases.map(|lease| lease.session).collect()
            }
        };
        leases
            .into_iter()
            .filter(|session| sessions.contains(session))
            .collect()
    }

    /// What a sweep of this record would do, knowing this.
    fn decide(&self, scenario: &Scenario, key: Key, known: &Known) -> Decision {
        let gone = |session: SessionId| known.1.contains(&session);
        let sweep = Sweep {
            tick: known.0,
            grace: scenario.grace,
            gone: &gone,
        };
        match key {
            Key::Pending(sample) => {
                Decision::Retire(self.index.pending_of(sample).map(|kept| kept.record.sweep(&sweep)))
            }
            Key::Live(sample) => Decision::TakeBack(self.index.live_of(sample).map(|kept| kept.record.sweep(&sweep))),
            Key::Retired(object) | Key::Freeable(object) => {
                Decision::Retire(self.index.retired.get(&object).map(|kept| kept.record.sweep(&sweep)))
            }
        }
    }

    /// All leases in the index.
    fn leases(&self) -> impl Iterator<Item = &Lease> {
        let live = self.index.live.iter().flatten().flat_map(|kept| kept.record.leases());
        let retired = self.index.retired.values().flat_map(|kept| &kept.record.readers);
        live.chain(retired)
    }

    /// Whether there is a lease of this session with this token.
    pub(crate) fn has_lease(&self, session: SessionId, token: Token) -> bool {
        self.leases()
            .any(|lease| (lease.session, lease.token) == (session, token))
    }

    /// How far a process came, and whether it may still be hurt, does not matter once it has ended. If nothing refers to
    /// its session either, that may as well be gone.
    fn forget_dead_processes(&mut self, scenario: &Scenario) {
        let nobody_is_hurt = self.left.crashes == 0 && self.left.expiries == 0;
        for place in 0..scenario.roles.len() {
            let who = session(place);
            let ended = self.processes[place].phase == Phase::Ended;
            self.processes[place].hurt &= !nobody_is_hurt && !ended;
            if !ended {
                continue;
            }
            self.processes[place].done = 0;
            let idle = !self.leases().any(|lease| lease.session == who)
                && !self
                    .index
                    .pending
                    .iter()
                    .flatten()
                    .any(|kept| kept.record.session == who)
                && !self.late.iter().any(|request| request.process == place);
            if idle {
                self.index.gone.insert(who);
            }
        }
    }

    /// Workers of one group that take equally many samples are alike but for their names.
    fn sort_workers(&mut self, scenario: &Scenario) {
        for place in 1..scenario.roles.len() {
            let alike = match (&scenario.roles[place - 1], &scenario.roles[place]) {
                (Role::Worker(group, takes), Role::Worker(other, others)) => group == other && takes == others,
                (Role::Reader(takes), Role::Reader(others)) => takes == others,
                _ => false,
            };
            if alike && self.all_about(place - 1) > self.all_about(place) {
                self.swap(place - 1, place);
            }
        }
    }

    /// Everything that there is about a worker, except its name.
    fn all_about(&self, place: usize) -> (Process, Vec<Request>, Vec<Token>, [bool; 3]) {
        let nameless = |request: &Request| Request { process: 0, ..*request };
        let mut process = self.processes[place];
        if let Phase::Asked(request) | Phase::Unsure(request) = &mut process.phase {
            *request = nameless(request);
        }
        let who = session(place);
        let mut late: Vec<_> = self
            .late
            .iter()
            .filter(|late| late.process == place)
            .map(nameless)
            .collect();
        late.sort_unstable();
        let leases = self.leases().filter(|lease| lease.session == who);
        let mut gone = [self.index.gone.contains(&who), false, false];
        for (known, sweeper) in gone.iter_mut().skip(1).zip(&self.sweepers) {
            *known = matches!(sweeper, Sweeper::Looked { gone, .. } if gone.contains(&who));
        }
        (process, late, leases.map(|lease| lease.token).collect(), gone)
    }

    fn swap(&mut self, one: usize, other: usize) {
        let place = |place: usize| match place {
            place if place == one => other,
            place if place == other => one,
            place => place,
        };
        let rename = |name: &mut SessionId| {
            if *name == session(one) {
                *name = session(other);
            } else if *name == session(other) {
                *name = session(one);
            }
        };
        let rename_all = |names: &mut BTreeSet<SessionId>| {
            if names.contains(&session(one)) != names.contains(&session(other)) {
                let old = std::mem::take(names);
                names.extend(old.into_iter().map(|mut name| {
                    rename(&mut name);
                    name
                }));
            }
        };
        self.processes.swap(one, other);
        for Process { phase, .. } in &mut self.processes {
            if let Phase::Asked(request) | Phase::Unsure(request) = phase {
                request.process = place(request.process);
            }
        }
        self.late
            .iter_mut()
            .for_each(|request| request.process = place(request.process));
        for kept in self.index.live.iter_mut().flatten() {
            for state in &mut kept.record.groups {
                if let Progress::Leased(lease) = &mut state.progress {
                    rename(&mut lease.session);
                }
            }
            kept.record
                .readers
                .iter_mut()
                .for_each(|lease| rename(&mut lease.session));
        }
        for kept in self.index.retired.values_mut() {
            kept.record
                .readers
                .iter_mut()
                .for_each(|lease| rename(&mut lease.session));
        }
        rename_all(&mut self.index.gone);
        for sweeper in &mut self.sweepers {
            if let Sweeper::Looked { gone, .. } = sweeper {
                rename_all(gone);
            }
        }
    }
}
