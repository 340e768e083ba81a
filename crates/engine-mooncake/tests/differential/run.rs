//! One seed, operation by operation, on two engines.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use tensorhold_core::{ObjectKey, SystemClock, poll_until};
use tensorhold_engine::{Pin, Presence, RemoveOutcome};

use crate::common::WITHIN;
use crate::judge::{Allowed, Circumstances, judge};
use crate::model::Model;
use crate::op::Op;
use crate::plan::plan;
use crate::profile::{Profile, Scene};
use crate::side::{Answer, Side};

/// Operations of one seed, before the sweep at its end.
pub const OPERATIONS: usize = 300;
/// How many operations are shown with a difference.
const SHOWN: usize = 15;

/// What happened, counted.
#[derive(Debug, Default)]
pub struct Tally {
    pub operations: BTreeMap<&'static str, u64>,
    pub outcomes: BTreeMap<String, u64>,
    /// Operations in which each was needed.
    pub allowed: BTreeMap<Allowed, u64>,
    /// Operations in which any was needed.
    pub operations_allowed: u64,
    pub seeds: Vec<u64>,
}

impl Tally {
    pub fn total(&self) -> u64 {
        self.operations.values().sum()
    }

    pub fn add(&mut self, other: Self) {
        let sums = other.operations.into_iter();
        sums.for_each(|(name, n)| *self.operations.entry(name).or_default() += n);
        let sums = other.outcomes.into_iter();
        sums.for_each(|(name, n)| *self.outcomes.entry(name).or_default() += n);
        let sums = other.allowed.into_iter();
        sums.for_each(|(name, n)| *self.allowed.entry(name).or_default() += n);
        self.operations_allowed += other.operations_allowed;
        self.seeds.extend(other.seeds);
    }

    fn count(&mut self, op: &Op, answer: &Answer) {
        *self.operations.entry(op.name()).or_default() += 1;
        let mut seen = |name: String| *self.outcomes.entry(name).or_default() += 1;
        match answer {
            Answer::Objects(objects) => objects
                .iter()
                .for_each(|object| seen(format!("{}:{}", op.name(), object.name()))),
            Answer::Refused(kind, _) => seen(format!("{}:{kind:?}", op.name())),
            Answer::Usage(_) | Answer::Abandoned => {}
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seeds {:?}: {} operations", self.seeds, self.total())?;
        writeln!(f, "  operations {:?}", self.operations)?;
        writeln!(f, "  outcomes   {:?}", self.outcomes)?;
        write!(
            f,
            "  allowed    {:?}, in {} operations",
            self.allowed, self.operations_allowed
        )
    }
}

/// Two engines that do not do the same.
#[derive(Debug)]
pub struct Difference {
    pub seed: u64,
    pub operation: usize,
    pub op: String,
    pub why: String,
    pub answers: [(&'static str, String); 2],
    pub last: Vec<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, operation {}: {}", self.seed, self.operation, self.why)?;
        writeln!(f, "  {}", self.op)?;
        for (name, answer) in &self.answers {
            writeln!(f, "  {name:>8}: {answer}")?;
        }
        writeln!(f, "the operations before it:")?;
        self.last.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        write!(
            f,
            "again: TENSORHOLD_SEED={} cargo test … --test differential",
            self.seed
        )
    }
}

struct Run<'a> {
    profile: &'a Profile,
    memory: &'a Side,
    real: &'a Side,
    model: Model,
    /// Whether the pool has come so near to full that eviction may have begun.
    short: bool,
}

/// Runs a seed on two engines. The first difference without a name ends it.
pub fn run(seed: u64, profile: &Profile, memory: &Side, real: &Side) -> Result<Tally, Box<Difference>> {
    let mut run = Run {
        profile,
        memory,
        real,
        model: Model::default(),
        short: false,
    };
    let mut tally = Tally {
        seeds: vec![seed],
        ..Tally::default()
    };
    let mut last = VecDeque::new();
    for (operation, op) in plan(seed, OPERATIONS, profile).iter().enumerate() {
        let (answers, allowed) = run.step(op);
        let allowed = allowed.map_err(|why| {
            Box::new(Difference {
                seed,
                operation,
                op: op.to_string(),
                why,
                answers: [(memory.name, show(&answers[0])), (real.name, show(&answers[1]))],
                last: last.iter().cloned().collect(),
            })
        })?;
        tally.count(op, &answers[1]);
        for reason in &allowed {
            *tally.allowed.entry(*reason).or_default() += 1;
        }
        tally.operations_allowed += u64::from(!allowed.is_empty());
        if last.len() == SHOWN {
            last.pop_front();
        }
        last.push_back(format!("{operation}: {op}\n      → {} {allowed:?}", show(&answers[1])));
    }
    Ok(tally)
}

fn show(answer: &Answer) -> String {
    match answer {
        Answer::Objects(objects) => format!("{objects:?}"),
        other => format!("{other:?}"),
    }
}

impl Run<'_> {
    /// The two answers, and the reasons for their differences; at the end of it, both hold the same.
    fn step(&mut self, op: &Op) -> ([Answer; 2], Result<Vec<Allowed>, String>) {
        let before = self.memory.usage();
        self.short |= before.dram_used + op.adds() > self.profile.watermark();
        let answers = [self.memory.run(op, &self.model), self.real.run(op, &self.model)];
        let reasons = self.compare(op, &answers, before);
        (answers, reasons)
    }

    fn compare(
        &mut self,
        op: &Op,
        [memory, real]: &[Answer; 2],
        before: tensorhold_engine::Usage,
    ) -> Result<Vec<Allowed>, String> {
        let circumstances = Circumstances {
            profile: self.profile,
            model: &self.model,
            before,
            short: self.short,
            real: self.real,
        };
        let reasons = judge(op, memory, real, &circumstances)?;
        self.model.apply(op, memory);
        let keys = op.keys();
        for (at, _) in reasons.iter().filter(|(_, reason)| *reason == Allowed::CapacityEdge) {
            self.remove_from_both(keys[*at])?;
        }
        let mut reasons: Vec<_> = reasons.into_iter().map(|(_, reason)| reason).collect();
        if self.profile.scene == Scene::Evicting && self.align(op)? {
            reasons.push(Allowed::EvictionTiming);
        }
        if reasons.contains(&Allowed::EvictionTiming) && matches!(op, Op::Usage { .. }) {
            self.usage_agrees(op)?;
        }
        reasons.sort_unstable();
        reasons.dedup();
        Ok(reasons)
    }

    /// What only one still has, is removed from both. True if there was such an object.
    fn align(&mut self, op: &Op) -> Result<bool, String> {
        let mut keys = self.model.keys();
        let put: &[_] = match op {
            Op::Put { objects, .. } => objects,
            _ => &[],
        };
        keys.extend(put.iter().map(|object| object.key.clone()));
        keys.sort_unstable();
        keys.dedup();
        let mut differed = false;
        for (key, (memory, real)) in keys
            .iter()
            .zip(self.memory.probe(&keys).into_iter().zip(self.real.probe(&keys)))
        {
            let pinned = self.model.get(key).is_some_and(|first| first.pin == Pin::Hard);
            let just_put = put.iter().any(|object| object.key == *key);
            match (memory, real) {
                (Presence::Absent, Presence::Absent) if !pinned || just_put => self.model.forget(key),
                (Presence::Absent, Presence::Present { .. }) | (Presence::Present { .. }, Presence::Absent)
                    if self.short && (!pinned || just_put) =>
                {
                    self.remove_from_both(key)?;
                    differed = true;
                }
                (memory, real) if memory == real => {}
                (memory, real) => {
                    return Err(format!(
                        "{:?} is then {memory:?} in the memory engine and {real:?} in the real one",
                        key.as_str()
                    ));
                }
            }
        }
        Ok(differed)
    }

    fn remove_from_both(&mut self, key: &ObjectKey) -> Result<(), String> {
        for side in [self.memory, self.real] {
            let outcome = side.remove(std::slice::from_ref(key)).remove(0);
            if !matches!(outcome, RemoveOutcome::Removed | RemoveOutcome::Absent) {
                return Err(format!("bringing {} into line: {outcome:?}", side.name));
            }
        }
        self.model.forget(key);
        Ok(())
    }

    /// Whether use is the same again once both hold the same objects. Eviction may still be going on.
    fn usage_agrees(&mut self, op: &Op) -> Result<(), String> {
        let mut last = Ok(());
        let agree = poll_until(&SystemClock::new(), WITHIN, Duration::from_millis(20), || {
            last = self.align(op).and_then(|_| {
                let (memory, real) = (self.memory.usage(), self.real.usage());
                let same = memory == real;
                same.then_some(())
                    .ok_or(format!("in line, and yet {memory:?} against {real:?}"))
            });
            last.is_ok().then_some(())
        });
        agree.map_or(last, |()| Ok(()))
    }
}
