//! The small core, explored completely: two requests that share a page, a host that is too small for both, a store that
//! fails once, an abort, a clear, a deadline. Every order of events, all invariants in every state.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use stateright::{Checker, HasDiscoveries, Model, Property};
use tensorhold_kvcache::plan::flaw::Flaw;
use tensorhold_kvcache::plan::{OperationId, PageKeys, PlanEvent, PlannerConfig, State};

use crate::world::{PAGE, World, root};

/// What is left of what may happen only so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Left {
    faults: u8,
    aborts: u8,
    jumps: u8,
    clears: u8,
    retracts: u8,
    /// Which prompts are still to come.
    prompts: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Submit(u8),
    Plan,
    /// Time passes, until after every deadline.
    Jump,
    Complete(OperationId),
    /// It ends after so many pages.
    Cut(OperationId, u32),
    /// The request does what comes next.
    Advance(u64),
    Retract(u64),
    Abort(u64),
    Clear,
}

/// One state: a world, and what may still happen to it. Known by what decides the future.
#[derive(Clone)]
struct Place {
    world: Arc<World>,
    left: Left,
    broken: Option<Arc<str>>,
    id: [u64; 2],
}

impl Place {
    fn new(world: World, left: Left, broken: Option<Arc<str>>) -> Self {
        let picture = if broken.is_some() {
            String::new()
        } else {
            world.picture_of_all()
        };
        let id = [1u8, 2].map(|salt| {
            let mut hasher = DefaultHasher::new();
            (salt, &picture, left, &broken).hash(&mut hasher);
            hasher.finish()
        });
        Self {
            world: Arc::new(world),
            left,
            broken,
            id,
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {:?} {:?}", self.id[0], self.left, self.broken)
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Place {}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

#[derive(Clone)]
struct Core {
    name: &'static str,
    flaw: Option<Flaw>,
    left: Left,
    host_pages: u32,
}

/// Three pages and a token; the first page is the same for all.
fn prompt(number: u8) -> Vec<u32> {
    (0..3 * PAGE + 1)
        .map(|at| if at < PAGE { 0 } else { 10 + u32::from(number) })
        .collect()
}

impl Core {
    fn start(&self) -> World {
        let config = PlannerConfig {
            prefetch_threshold: 1,
            ..PlannerConfig::new(root(0), PAGE, self.host_pages, 9)
        };
        let mut world = World::with_config(self.flaw, 1, config);
        // L3 has the first prompt from an earlier life.
        let mut keys = PageKeys::new(root(0), PAGE);
        keys.extend(&prompt(0));
        for key in keys.as_slice() {
            world.memory[0].l3.insert(*key, *key);
        }
        world
    }

    fn apply(world: &mut World, step: Step) {
        let ticket = |world: &World, turn: u64| world.live.get(&turn).map(|live| live.ticket);
        match step {
            Step::Submit(number) => drop(world.submit(u64::from(number), &prompt(number))),
            Step::Plan => drop(world.step(0)),
            Step::Jump => drop(world.step(1_000)),
            Step::Complete(id) => {
                world.perform(id, 0, None, false);
                world.deliver(id);
            }
            Step::Cut(id, limit) => {
                world.perform(id, 0, Some(limit), false);
                world.deliver(id);
            }
            Step::Advance(turn) => {
                let Some(ticket) = ticket(world, turn) else { return };
                let state = world.state(ticket);
                if state != Some(State::Retracted) {
                    world.compute(turn);
                }
                let event = match state {
                    Some(State::Prefilling) => PlanEvent::PrefillDone(ticket),
                    Some(State::Retracted) => PlanEvent::Resume(ticket),
                    _ => PlanEvent::Finish(ticket),
                };
                world.tell(&event).unwrap();
            }
            Step::Retract(turn) => {
                let Some(ticket) = ticket(world, turn) else { return };
                world.tell(&PlanEvent::Retract(ticket)).unwrap();
            }
            Step::Abort(turn) => {
                let Some(ticket) = ticket(world, turn) else { return };
                world.tell(&PlanEvent::Abort(ticket)).unwrap();
            }
            Step::Clear => drop(world.tell(&PlanEvent::Clear).unwrap()),
        }
    }
}

impl Model for Core {
    type State = Place;
    type Action = Step;

    fn init_states(&self) -> Vec<Place> {
        vec![Place::new(self.start(), self.left, None)]
    }

    fn actions(&self, place: &Place, steps: &mut Vec<Step>) {
        if place.broken.is_some() {
            return;
        }
        let (world, left) = (&place.world, place.left);
        steps.push(Step::Plan);
        steps.extend(
            (0..2)
                .filter(|number| left.prompts & (1 << number) != 0)
                .map(Step::Submit),
        );
        for (id, flight) in &world.flights {
            steps.push(Step::Complete(*id));
            if left.faults > 0 {
                let pages = flight.operation.work.pages();
                let cuts: &[u32] = if pages > 1 { &[0, 1] } else { &[0] };
                steps.extend(cuts.iter().map(|cut| Step::Cut(*id, *cut)));
            }
        }
        for (turn, live) in &world.live {
            let Some(state) = world.state(live.ticket) else {
                continue;
            };
            let runs = state == State::Prefilling && world.is_running(*turn);
            let done = state == State::PrefillDone;
            if runs || done || state == State::Retracted {
                steps.push(Step::Advance(*turn));
            }
            if left.aborts > 0 && state != State::Aborting {
                steps.push(Step::Abort(*turn));
            }
            if left.retracts > 0 && (state == State::Prefilling || done) {
                steps.push(Step::Retract(*turn));
            }
        }
        if left.jumps > 0 {
            steps.push(Step::Jump);
        }
        if left.clears > 0 {
            steps.push(Step::Clear);
        }
    }

    fn next_state(&self, place: &Place, step: Step) -> Option<Place> {
        let mut left = place.left;
        match step {
            Step::Submit(number) => left.prompts &= !(1 << number),
            Step::Cut(..) => left.faults -= 1,
            Step::Abort(_) => left.aborts -= 1,
            Step::Jump => left.jumps -= 1,
            Step::Clear => left.clears -= 1,
            Step::Retract(_) => left.retracts -= 1,
            _ => {}
        }
        let mut world = place.world.copy();
        let broken = catch_unwind(AssertUnwindSafe(|| Self::apply(&mut world, step)))
            .err()
            .map(|panic| {
                let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
                Arc::from(text)
            });
        let next = Place::new(world, left, broken);
        (next != *place).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("everything holds", |_, place: &Place| place.broken.is_none()),
            // What can still end, ends: a state from which nothing leads on is one in which nothing is under way.
            Property::always("nothing is stuck", |model: &Core, place: &Place| {
                let mut steps = Vec::new();
                model.actions(place, &mut steps);
                let over = place.world.live.is_empty() && !place.world.planner().pending();
                let waits = steps
                    .iter()
                    .any(|step| !matches!(step, Step::Jump | Step::Clear | Step::Abort(_)));
                over || waits || place.broken.is_some()
            }),
            Property::sometimes("both end", |_, place: &Place| {
                place.left.prompts == 0 && place.world.past.len() == 2
            }),
            Property::sometimes("a prefetch is published", |_, place: &Place| {
                place.world.planner().counters().prefetches > 0 && place.world.planner().counters().published > 0
            }),
            Property::sometimes("something is evicted", |_, place: &Place| {
                place.world.planner().splits_and_evictions().1 > 0
            }),
        ]
    }
}

const NOTHING: Left = Left {
    faults: 0,
    aborts: 0,
    jumps: 0,
    clears: 0,
    retracts: 0,
    prompts: 3,
};

fn explore(core: Core) {
    let name = core.name;
    let checker = core.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} unique states, {} generated, depth {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    for (property, path) in checker.discoveries() {
        if checker.model().property(property).expectation.discovery_is_failure() {
            panic!(
                "{name}: {property}: {:?} {:?}",
                path.last_state(),
                path.clone().into_actions()
            );
        }
    }
    checker.assert_properties();
}

fn core(name: &'static str, left: Left) -> Core {
    Core {
        name,
        flaw: None,
        left,
        host_pages: 4,
    }
}

#[test]
fn every_order_with_a_store_that_fails_twice() {
    explore(core("faults", Left { faults: 2, ..NOTHING }));
}

#[test]
fn every_order_with_an_abort_and_a_store_that_fails() {
    explore(core(
        "abort",
        Left {
            aborts: 1,
            faults: 1,
            ..NOTHING
        },
    ));
}

#[test]
fn every_order_with_a_deadline_and_a_clear() {
    explore(core(
        "deadline and clear",
        Left {
            jumps: 1,
            clears: 1,
            ..NOTHING
        },
    ));
}

#[test]
fn every_order_with_a_retraction() {
    explore(core("retraction", Left { retracts: 1, ..NOTHING }));
}

fn is_found(flaw: Flaw) {
    let core = Core {
        flaw: Some(flaw),
        ..core("flaw", Left { faults: 1, ..NOTHING })
    };
    let checker = core
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let path = checker
        .discovery("everything holds")
        .unwrap_or_else(|| panic!("{flaw:?} was not found"));
    let why = path.last_state().broken.clone();
    println!(
        "{flaw:?}: found after {} states, {} steps: {why:?}",
        checker.unique_state_count(),
        path.into_actions().len()
    );
}

#[test]
fn the_model_finds_a_suffix_under_the_wrong_prefix() {
    is_found(Flaw::SuffixUnderWrongPrefix);
}

#[test]
fn the_model_finds_hashes_of_another_match() {
    is_found(Flaw::HashesOfAnotherMatch);
}

#[test]
fn the_model_finds_a_backup_that_is_not_pinned() {
    is_found(Flaw::BackupNotPinned);
}
