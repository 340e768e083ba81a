//! Which processes are in the world, what they do, and how much may go wrong.

use tensorhold_custody::{GroupName, Publication};

use super::Sample;
use super::check::Ghost;
use super::index::Index;
use super::process::Process;
use super::reach::Reach;
use super::sweeper::Sweeper;
use super::{Object, World};

/// What a process does.
#[derive(Clone, Debug)]
pub(crate) enum Role {
    /// Makes these samples, one after the other.
    Producer(Vec<Sample>),
    /// Works for the group with this number; takes so many samples.
    Worker(usize, u8),
    /// Reads so many samples without using them up.
    Reader(u8),
    /// Does these things, one after the other.
    Operator(Vec<Chore>),
}

/// Something that an operator does to a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Chore {
    /// Opens it for another epoch.
    Reopen(Sample),
    /// Takes it out of circulation.
    Retire(Sample),
}

/// How much of each may still happen. Only shrinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Left {
    pub(crate) ticks: u8,
    /// Requests that come late, twice or never.
    pub(crate) faults: u8,
    /// Crashes, over all processes. Each may crash once.
    pub(crate) crashes: u8,
    /// Sessions that end under a process that lives, over all processes.
    pub(crate) expiries: u8,
    pub(crate) sweeper_deaths: u8,
    pub(crate) failing_removes: u8,
    pub(crate) aborts: u8,
    pub(crate) nacks: u8,
    /// Leases that do not reach the consumer that they are for.
    pub(crate) untakes: u8,
    pub(crate) renewals: u8,
    /// Losses of objects by the engine.
    pub(crate) losses: u8,
}

/// Deliberate bugs, each at the place of the check that it leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bugs {
    /// Objects are removed without asking whether a reader is left.
    pub(crate) free_before_readers_end: bool,
    /// An acknowledgement is accepted with any token.
    pub(crate) token_not_checked_on_ack: bool,
    /// Quota comes back for every finished remove, whether or not the record was still there.
    pub(crate) quota_returned_twice: bool,
}

/// A world to explore.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) samples: Sample,
    pub(crate) roles: Vec<Role>,
    pub(crate) publication: Publication,
    /// In samples: each takes one byte.
    pub(crate) budget: u64,
    pub(crate) lease_ticks: u64,
    pub(crate) grace: u64,
    pub(crate) sweepers: usize,
    pub(crate) left: Left,
    pub(crate) bugs: Bugs,
    /// What must come up in it, so that "nothing is ever broken" says something.
    pub(crate) reaches: &'static [Reach],
}

impl Scenario {
    /// A world with one group per name, in which nothing goes wrong yet.
    pub(crate) fn new(name: &'static str, samples: Sample, groups: &[&str], roles: Vec<Role>) -> Self {
        let groups = groups.iter().filter_map(|name| GroupName::new(name).ok()).collect();
        Self {
            name,
            samples,
            roles,
            publication: Publication {
                groups,
                retain: false,
                max_attempts: 2,
            },
            budget: u64::from(samples) + 1,
            lease_ticks: 0,
            grace: 0,
            sweepers: 2,
            left: Left::default(),
            bugs: Bugs::default(),
            reaches: &[],
        }
    }

    /// The same with other budgets.
    pub(crate) fn with_left(mut self, change: impl FnOnce(Left) -> Left) -> Self {
        self.left = change(self.left);
        self
    }

    /// The same, but only these situations have to come up.
    pub(crate) fn reaching(mut self, reaches: &'static [Reach]) -> Self {
        self.reaches = reaches;
        self
    }

    /// The initial state: no records, all processes present.
    pub(crate) fn begin(&self) -> World {
        let none = usize::from(self.samples);
        World {
            index: Index::new(none, self.budget),
            engine: std::collections::BTreeSet::<Object>::new(),
            processes: self.roles.iter().map(|_| Process::default()).collect(),
            sweepers: vec![Sweeper::Idle; self.sweepers],
            late: Vec::new(),
            left: self.left,
            ghost: Ghost::new(none),
        }
    }
}
