//! Exploring a scenario.

use std::time::Duration;

use stateright::{Checker as _, CheckerBuilder, Model as _};

use super::scenario::{Action, Scenario, Which};
use super::world::World;

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
