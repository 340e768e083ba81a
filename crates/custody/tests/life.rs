//! Any life of a sample, made of random steps: the invariants hold after each, and a sweep made twice is a sweep.

#![allow(clippy::expect_used, reason = "helpers of tests fail loudly")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use tensorhold_core::{Error, ErrorKind, Generation, Nonce};
use tensorhold_custody::invariants as lc;
use tensorhold_custody::{
    Acknowledged, GroupName, Live, Progress, Publication, Reserved, Retired, SessionId, Sweep, Tick, Token, Verdict,
    Version,
};

const GROUPS: [&str; 2] = ["a", "b"];

#[derive(Clone, Debug)]
enum Step {
    /// By group and session.
    Lease(usize, u64),
    Read(u64),
    /// By group and one of the tokens ever given out.
    Ack(usize, usize),
    Nack(usize, usize),
    Untake(usize, usize),
    Release(usize),
    UseUp(usize),
    Renew(usize),
    Reopen,
    Tick,
    End(u64),
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let (who, group, token) = (1..4_u64, 0..GROUPS.len(), 0..6_usize);
    prop_oneof![
        4 => (group.clone(), who.clone()).prop_map(|(g, s)| Step::Lease(g, s)),
        2 => who.clone().prop_map(Step::Read),
        4 => (group.clone(), token.clone()).prop_map(|(g, t)| Step::Ack(g, t)),
        3 => (group.clone(), token.clone()).prop_map(|(g, t)| Step::Nack(g, t)),
        2 => (group, token.clone()).prop_map(|(g, t)| Step::Untake(g, t)),
        2 => token.clone().prop_map(Step::Release),
        2 => token.clone().prop_map(Step::UseUp),
        1 => token.prop_map(Step::Renew),
        1 => Just(Step::Reopen),
        2 => Just(Step::Tick),
        1 => who.prop_map(Step::End),
        3 => Just(Step::Sweep),
    ]
}

/// One live sample, the tokens that were given out for it (latest first), and how often each group got it.
struct Life {
    live: Live,
    version: u64,
    tick: Tick,
    gone: Vec<SessionId>,
    tokens: Vec<Token>,
    granted: BTreeMap<GroupName, u32>,
}

impl Life {
    fn begin(retain: bool, max_attempts: u32) -> Self {
        let groups = GROUPS.map(|name| GroupName::new(name).expect("a good name")).to_vec();
        let mut reserved = Reserved::new(SessionId(1), Nonce::from_u64(0), 1, Tick(1));
        reserved.settle(Version(1));
        let publication = Publication {
            groups,
            retain,
            max_attempts,
        };
        let generation = Generation::new(1).expect("not zero");
        Self {
            live: reserved
                .commit(SessionId(1), generation, &publication)
                .expect("committed"),
            version: 1,
            tick: Tick(0),
            gone: Vec::new(),
            tokens: Vec::new(),
            granted: BTreeMap::new(),
        }
    }

    fn sweep<T>(&self, what: impl FnOnce(&Sweep<'_>) -> T) -> T {
        what(&Sweep {
            tick: self.tick,
            grace: 1,
            gone: &|session| self.gone.contains(&session),
        })
    }

    fn token(&self, place: usize) -> Token {
        self.tokens.get(place).copied().unwrap_or(Token(9999))
    }

    fn act(&mut self, step: &Step) -> Result<Acknowledged, Error> {
        let live = self.live.clone();
        let group = |place: usize| self.live.groups[place].group.clone();
        let until = self.tick.after(1);
        Ok(match *step {
            Step::Lease(g, s) => Acknowledged::Live(live.lease(&group(g), SessionId(s), until)?),
            Step::Read(s) => Acknowledged::Live(live.read(SessionId(s), until)),
            Step::Ack(g, t) => live.ack(&group(g), self.token(t))?,
            Step::Nack(g, t) => live.nack(&group(g), self.token(t))?,
            Step::Untake(g, t) => Acknowledged::Live(live.give_back(&group(g), self.token(t))?),
            Step::Release(t) => Acknowledged::Live(live.release(self.token(t))?),
            Step::UseUp(t) => live.use_up(self.token(t))?,
            Step::Renew(t) => Acknowledged::Live(live.renew(self.token(t), until)?),
            Step::Reopen => {
                for state in &self.live.groups {
                    if matches!(state.progress, Progress::Acked | Progress::Dead) {
                        self.granted.remove(&state.group);
                    }
                }
                Acknowledged::Live(live.reopen())
            }
            Step::Sweep => match self.sweep(|sweep| self.live.sweep(sweep)) {
                Verdict::Become(next) => next,
                Verdict::Leave => Acknowledged::Live(live),
            },
            Step::Tick => {
                self.tick = self.tick.after(1);
                Acknowledged::Live(live)
            }
            Step::End(s) => {
                self.gone.push(SessionId(s));
                Acknowledged::Live(live)
            }
        })
    }

    /// Takes a step. Returns the record that it retired, if it did.
    fn take(&mut self, step: &Step) -> Result<Option<Retired>, TestCaseError> {
        let shown = match *step {
            Step::Ack(_, t)
            | Step::Nack(_, t)
            | Step::Untake(_, t)
            | Step::Release(t)
            | Step::UseUp(t)
            | Step::Renew(t) => Some(self.token(t)),
            _ => None,
        };
        let held = shown.is_none_or(|token| self.live.holds(token));
        let after = match self.act(step) {
            Ok(after) => after,
            Err(error) => {
                prop_assert!(
                    matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Conflict),
                    "{error}"
                );
                return Ok(None);
            }
        };
        let changed = !matches!(&after, Acknowledged::Live(after) if *after == self.live);
        prop_assert!(lc::stale_changes_nothing(held, changed), "LC4 {step:?}");
        match after {
            Acknowledged::Live(mut next) => {
                self.version += 1;
                next.settle(Version(self.version));
                if let Step::Lease(g, _) = *step {
                    *self.granted.entry(next.groups[g].group.clone()).or_default() += 1;
                }
                if let Step::Untake(g, _) = *step {
                    *self.granted.entry(next.groups[g].group.clone()).or_default() -= 1;
                }
                if matches!(step, Step::Lease(..) | Step::Read(_)) {
                    self.tokens.insert(0, Token(self.version));
                }
                self.live = next;
                Ok(None)
            }
            Acknowledged::Retired(retired) => {
                prop_assert!(lc::consumed_by_all(&self.live, &retired), "LC8 {:?}", self.live);
                prop_assert!(lc::dead_letter_is_exact(&self.live, &retired), "LC9 {:?}", self.live);
                Ok(Some(retired))
            }
        }
    }
}

proptest! {
    #[test]
    fn every_life_keeps_the_invariants(
        retain: bool,
        max_attempts in 1..4_u32,
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let mut life = Life::begin(retain, max_attempts);
        for step in steps {
            if let Some(retired) = life.take(&step)? {
                prop_assert!(!retain);
                let readers = retired.readers.iter().map(|lease| lease.token);
                prop_assert!(readers.eq(life.live.readers.iter().filter(|r| retired.holds(r.token)).map(|r| r.token)));
                // All sessions end: one sweep releases the objects, the next finds nothing to do.
                life.gone = (0..5).map(SessionId).collect();
                let swept = match life.sweep(|sweep| retired.sweep(sweep)) {
                    Verdict::Become(next) => next,
                    Verdict::Leave => retired,
                };
                prop_assert!(swept.may_be_freed());
                prop_assert_eq!(life.sweep(|sweep| swept.sweep(sweep)), Verdict::Leave);
                return Ok(());
            }
            prop_assert!(lc::attempts_are_exact(&life.live), "LC9 {:?}", life.live);
            let granted = |state: &tensorhold_custody::GroupState| life.granted.get(&state.group).copied().unwrap_or(0);
            prop_assert!(lc::deliveries_are_counted(&life.live, granted), "LC9 {:?} {:?}", life.live, life.granted);
            if let Verdict::Become(Acknowledged::Live(next)) = life.sweep(|sweep| life.live.sweep(sweep)) {
                prop_assert_eq!(life.sweep(|sweep| next.sweep(sweep)), Verdict::Leave, "twice is once");
            }
        }
    }
}
