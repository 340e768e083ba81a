//! Any sequence of events keeps the invariants, with either route; and each deliberate bug is found by the same
//! sequences.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use tensorhold_core::{Clock, Timestamp};
use tensorhold_engine::Engine;
use tensorhold_prefetch::flaw::Flaw;
use tensorhold_prefetch::{Outcome, Prefetch, Priority, Route};

use crate::world::{OBJECTS, SECOND, World, pattern};

#[derive(Clone, Debug)]
enum Event {
    Exists {
        from: usize,
        count: usize,
        wanted: bool,
    },
    Prefetch {
        from: usize,
        count: usize,
        wanted: bool,
    },
    Step,
    Advance(Duration),
    Get(usize),
    Remove(usize),
    /// The next reads or promotions fail.
    Fail(usize),
    Cancel(usize),
    /// The waiter of the oldest prefetch leaves.
    Leave,
}

fn event() -> impl Strategy<Value = Event> {
    let ask = || (0..OBJECTS, 1..9_usize, any::<bool>());
    prop_oneof![
        4 => ask().prop_map(|(from, count, wanted)| Event::Exists { from, count, wanted }),
        2 => ask().prop_map(|(from, count, wanted)| Event::Prefetch { from, count, wanted }),
        8 => Just(Event::Step),
        5 => (1..400_u64).prop_map(|millis| Event::Advance(Duration::from_millis(millis))),
        1 => (1..12_u32).prop_map(|seconds| Event::Advance(seconds * SECOND)),
        3 => (0..OBJECTS).prop_map(Event::Get),
        1 => (0..OBJECTS).prop_map(Event::Remove),
        1 => (1..3_usize).prop_map(Event::Fail),
        1 => (0..4_usize).prop_map(Event::Cancel),
        1 => Just(Event::Leave),
    ]
}

/// What a caller who looks from outside knows.
struct Witness {
    world: World,
    handles: Vec<(Vec<usize>, Prefetch, Vec<bool>)>,
    removed: [bool; OBJECTS],
    /// Since when an object has been seen in the buffer.
    local: HashMap<usize, Timestamp>,
}

impl Witness {
    fn apply(&mut self, event: &Event) -> Result<(), String> {
        let World {
            engine, keys, clock, ..
        } = &self.world;
        let priority = |wanted: bool| if wanted { Priority::Wanted } else { Priority::Guess };
        match *event {
            Event::Exists { from, count, wanted } => {
                let which: Vec<usize> = (0..count).map(|n| (from + n) % OBJECTS).collect();
                let chosen: Vec<_> = which.iter().map(|n| keys[*n].clone()).collect();
                let asked = engine.exists_and_prefetch(&chosen, priority(wanted), SECOND);
                let (_, prefetch) = asked.map_err(|error| error.to_string())?;
                let ended = prefetch.outcomes().iter().map(Option::is_some).collect();
                self.handles.push((which, prefetch, ended));
            }
            Event::Prefetch { from, count, wanted } => {
                let which: Vec<usize> = (0..count).map(|n| (from + n) % OBJECTS).collect();
                let chosen: Vec<_> = which.iter().map(|n| keys[*n].clone()).collect();
                let prefetch = engine.prefetch(&chosen, priority(wanted));
                let ended = prefetch.outcomes().iter().map(Option::is_some).collect();
                self.handles.push((which, prefetch, ended));
            }
            Event::Step => {
                engine.step();
            }
            Event::Advance(by) => clock.advance(by),
            Event::Get(n) => {
                self.world.observed.fail_next(0);
                match self.world.get(&keys[n]) {
                    Some(_) if self.removed[n] => return Err(format!("object {n} was removed and is served")),
                    Some(bytes) if bytes == pattern(n) => {}
                    Some(_) => return Err(format!("object {n} has other bytes")),
                    None if self.removed[n] => {}
                    None => return Err(format!("object {n} is lost")),
                }
                self.local.remove(&n);
            }
            Event::Remove(n) => {
                engine.remove(&keys[n..=n], SECOND).map_err(|error| error.to_string())?;
                self.removed[n] = true;
                self.local.remove(&n);
                if engine.is_local(&keys[n]) {
                    return Err(format!("object {n} was removed and is still in the buffer"));
                }
            }
            Event::Fail(count) => self.world.observed.fail_next(count),
            Event::Cancel(n) => {
                if let Some((_, prefetch, _)) = self.handles.get(n) {
                    prefetch.cancel();
                }
            }
            Event::Leave => drop((!self.handles.is_empty()).then(|| self.handles.remove(0))),
        }
        self.check()
    }

    fn check(&mut self) -> Result<(), String> {
        let World {
            engine,
            keys,
            clock,
            config,
            ..
        } = &self.world;
        if let Some(broken) = engine.check() {
            return Err(broken);
        }
        let now = clock.now();
        for (n, key) in keys.iter().enumerate() {
            match (self.local.get(&n).copied(), engine.is_local(key)) {
                (None, true) => drop(self.local.insert(n, now)),
                (Some(since), false) if now < since.after(config.keep) => {
                    return Err(format!("PF7: object {n} left the buffer before its time"));
                }
                (Some(_), false) => drop(self.local.remove(&n)),
                _ => {}
            }
        }
        for (which, prefetch, ended) in &mut self.handles {
            for ((n, outcome), ended) in which.iter().zip(prefetch.outcomes()).zip(ended) {
                let news = outcome.is_some() && !*ended;
                *ended |= outcome.is_some();
                let promoted = news && config.route == Route::Promote && matches!(outcome, Some(Outcome::Resident));
                if promoted && !self.world.cluster.leased(&keys[*n]) {
                    return Err(format!("PF7: object {n} was promoted and has no lease"));
                }
            }
        }
        self.check_looks()
    }

    /// PF8. Every other request of this world comes from the prober.
    fn check_looks(&self) -> Result<(), String> {
        if self.world.config.route == Route::Buffer {
            return Ok(());
        }
        let looks = self.world.probes();
        let asked = usize::try_from(self.world.engine.stats().probes.requests).unwrap_or(usize::MAX);
        let span = match (looks.first(), looks.last()) {
            (Some(first), Some(last)) => last.since(*first),
            _ => return Ok(()),
        };
        let allowed = span.as_nanos() / self.world.config.look_every.as_nanos() + 1;
        match (looks.len() - asked) as u128 <= allowed {
            true => Ok(()),
            false => Err(format!("PF8: {} looks in {span:?}", looks.len() - asked)),
        }
    }

    /// Whatever has happened, everything ends.
    fn drain(&mut self) -> Result<(), String> {
        self.world.observed.fail_next(0);
        for _ in 0..20 {
            self.world.clock.advance(SECOND);
            self.world.steps();
            self.check()?;
        }
        for (which, prefetch, _) in &self.handles {
            let progress = prefetch.progress();
            if progress.pending > 0 {
                return Err(format!("PF1: {} of {which:?} never end", progress.pending));
            }
        }
        let counts = self.world.engine.stats().outcomes;
        match counts.asked == counts.ended() {
            true => Ok(()),
            false => Err(format!("PF1: outcomes do not add up: {counts:?}")),
        }
    }
}

fn run(route: Route, events: &[Event], flaw: Option<Flaw>) -> Result<(), String> {
    let world = World::new(route);
    if let Some(flaw) = flaw {
        world.engine.set_flaw(flaw);
    }
    let mut witness = Witness {
        world,
        handles: Vec::new(),
        removed: [false; OBJECTS],
        local: HashMap::new(),
    };
    for event in events {
        witness.apply(event)?;
    }
    witness.drain()
}

/// The first failure among `cases` random sequences.
fn search(cases: u32, flaw: Option<Flaw>) -> Option<String> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let route = prop_oneof![Just(Route::Buffer), Just(Route::Promote)];
    let result = runner.run(&(route, prop::collection::vec(event(), 1..120)), |(route, events)| {
        run(route, &events, flaw).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => None,
        Err(TestError::Fail(why, events)) => Some(format!("{why}\n{events:?}")),
        Err(TestError::Abort(why)) => Some(format!("aborted: {why}")),
    }
}

#[test]
fn every_sequence_of_events_keeps_the_invariants() {
    assert_eq!(search(400, None), None);
}

#[test]
fn every_deliberate_bug_is_found() {
    for flaw in Flaw::ALL {
        let found = search(400, Some(flaw));
        eprintln!(
            "{flaw:?}: {}",
            found.as_deref().unwrap_or("-").lines().next().unwrap_or("-")
        );
        assert!(found.is_some(), "{flaw:?} was not found");
    }
}
