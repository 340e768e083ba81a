//! The scenarios that are run, and how.

use stateright::{Checker, HasDiscoveries, Model};

use super::reach::Reach;
use super::scenario::Chore;
use super::steps::Custody;
use super::{Action, Left, Role, Scenario};

/// What a run found about one property.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) property: &'static str,
    /// Whether it is as it should be.
    pub(crate) good: bool,
    /// The way to a state that breaks it (or that reaches what is to be reached).
    pub(crate) path: Option<Vec<Action>>,
}

/// What a run found.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) unique: usize,
    pub(crate) generated: usize,
    pub(crate) depth: usize,
    pub(crate) complete: bool,
    pub(crate) verdicts: Vec<Verdict>,
}

impl Outcome {
    /// What is not as it should be.
    pub(crate) fn bad(&self) -> Vec<&Verdict> {
        self.verdicts.iter().filter(|verdict| !verdict.good).collect()
    }
}

/// Explores a scenario: all of it, or until so many states were generated, or (`until_broken`) until something breaks.
pub(crate) fn explore(scenario: Scenario, most: Option<usize>, until_broken: bool, threads: usize) -> Outcome {
    let model = Custody(scenario);
    let mut builder = model.clone().checker().threads(threads);
    if let Some(most) = most {
        builder = builder.target_state_count(most);
    }
    if until_broken {
        builder = builder.finish_when(HasDiscoveries::AnyFailures);
    }
    let checker = builder.spawn_bfs().join();
    let found = checker.discoveries();
    let verdicts = model.properties().into_iter().map(|property| {
        let path = found.get(property.name).map(|path| path.clone().into_actions());
        let good = property.expectation.discovery_is_failure() != path.is_some();
        Verdict {
            property: property.name,
            good,
            path,
        }
    });
    Outcome {
        unique: checker.unique_state_count(),
        generated: checker.state_count(),
        depth: checker.max_depth(),
        complete: most.is_none_or(|most| checker.state_count() < most) && !until_broken,
        verdicts: verdicts.collect(),
    }
}

/// One producer, two workers of one group, one sample: a lease runs out, the sample is delivered again, the first worker
/// comes back with its old token.
pub(crate) fn redelivery() -> Scenario {
    let roles = vec![Role::Producer(vec![0]), Role::Worker(0, 1), Role::Worker(0, 1)];
    let mut scenario = Scenario::new("redelivery", 1, &["a"], roles);
    scenario.left = Left {
        ticks: 1,
        faults: 1,
        crashes: 1,
        expiries: 1,
        sweeper_deaths: 1,
        failing_removes: 1,
        ..Left::default()
    };
    scenario.reaches = &[
        Reach::Consumed,
        Reach::DeadLetter,
        Reach::Abandoned,
        Reach::Orphan,
        Reach::DoubleFree,
        Reach::StaleReader,
        Reach::StaleAck,
        Reach::FailedFree,
    ];
    scenario
}

/// Two producers of the same sample, a worker and a reader: the later commit takes the earlier one's place under readers.
pub(crate) fn supersession() -> Scenario {
    let roles = vec![
        Role::Producer(vec![0]),
        Role::Producer(vec![0]),
        Role::Worker(0, 1),
        Role::Reader(1),
    ];
    let mut scenario = Scenario::new("supersession", 1, &["a"], roles);
    scenario.left = Left {
        ticks: 1,
        crashes: 1,
        ..Left::default()
    };
    scenario.reaches = &[
        Reach::Superseded,
        Reach::RetiredReader,
        Reach::Abandoned,
        Reach::Consumed,
    ];
    scenario
}

/// Two groups, renewal, nack, abort, and an engine that loses objects.
pub(crate) fn groups() -> Scenario {
    let roles = vec![Role::Producer(vec![0]), Role::Worker(0, 2), Role::Worker(1, 1)];
    let mut scenario = Scenario::new("groups", 1, &["a", "b"], roles);
    scenario.grace = 1;
    scenario.left = Left {
        ticks: 2,
        expiries: 1,
        nacks: 1,
        renewals: 1,
        aborts: 1,
        losses: 1,
        ..Left::default()
    };
    scenario.reaches = &[Reach::Consumed, Reach::Aborted, Reach::Lost, Reach::DeadLetter];
    scenario
}

/// A retained sample that an operator opens again and in the end retires.
pub(crate) fn epochs() -> Scenario {
    let chores = vec![Chore::Reopen(0), Chore::Retire(0)];
    let roles = vec![
        Role::Producer(vec![0]),
        Role::Worker(0, 2),
        Role::Worker(0, 1),
        Role::Operator(chores),
    ];
    let mut scenario = Scenario::new("epochs", 1, &["a"], roles);
    scenario.publication.retain = true;
    scenario.publication.max_attempts = 1;
    scenario.left = Left {
        ticks: 1,
        crashes: 1,
        faults: 1,
        ..Left::default()
    };
    scenario.reaches = &[Reach::Aborted, Reach::RetiredReader, Reach::StaleReader];
    scenario
}

/// Two producers with quota for one sample: one waits until the other's is freed.
pub(crate) fn pressure() -> Scenario {
    let roles = vec![Role::Producer(vec![0]), Role::Producer(vec![1]), Role::Worker(0, 2)];
    let mut scenario = Scenario::new("pressure", 2, &["a"], roles);
    scenario.budget = 1;
    scenario.left = Left {
        ticks: 1,
        crashes: 2,
        faults: 1,
        failing_removes: 1,
        ..Left::default()
    };
    scenario.reaches = &[Reach::Waiting, Reach::Consumed, Reach::DoubleFree, Reach::FailedFree];
    scenario
}

/// Two producers, two consumers, two samples, one crash each, and leases that run out.
pub(crate) fn two_by_two() -> Scenario {
    let roles = vec![
        Role::Producer(vec![0]),
        Role::Producer(vec![1]),
        Role::Worker(0, 1),
        Role::Worker(0, 1),
    ];
    let mut scenario = Scenario::new("two by two by two", 2, &["a"], roles);
    scenario.left = Left {
        ticks: 1,
        crashes: 4,
        ..Left::default()
    };
    scenario.reaches = &[Reach::Consumed, Reach::Abandoned, Reach::StaleReader, Reach::DoubleFree];
    scenario
}

/// The same with everything else that can go wrong, too large to see the end of.
pub(crate) fn everything() -> Scenario {
    let mut scenario = two_by_two();
    scenario.name = "everything";
    scenario.roles.splice(2.., [Role::Worker(0, 2), Role::Worker(0, 2)]);
    scenario.left = Left {
        ticks: 2,
        faults: 2,
        crashes: 4,
        expiries: 2,
        sweeper_deaths: 1,
        failing_removes: 1,
        aborts: 1,
        nacks: 1,
        untakes: 1,
        renewals: 1,
        losses: 1,
    };
    scenario.reaching(&[])
}
