//! A world for a planner: requests, host and device memory, and a store that forgets, lies, fails and takes its time.
//!
//! The content of a page is the key of what was written to it, on each rank apart. An operation reads and writes at the
//! moment it ends, and what it fills is garbage from the moment it starts: the two worst moments there are.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tensorhold_kvcache::plan::flaw::Flaw;
use tensorhold_kvcache::plan::invariants;
use tensorhold_kvcache::plan::{
    Applied, Completion, DevicePage, HostPage, Operation, OperationId, PageKey, PageKeys, PlanEvent, Planner,
    PlannerConfig, RequestId, State, Ticket, Work,
};

use crate::cases::{Case, note, note_times};

pub(crate) const RANKS: usize = 3;
pub(crate) const PAGE: u32 = 2;
const HOST: u32 = 13;
const DEVICE: u32 = 18;

/// One rank's memory and its part of the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) host: BTreeMap<HostPage, PageKey>,
    pub(crate) device: BTreeMap<DevicePage, PageKey>,
    pub(crate) l3: BTreeMap<PageKey, PageKey>,
}

#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) operation: Operation,
    /// What each rank has reported.
    pub(crate) ranks: Vec<Option<Completion>>,
    pub(crate) ticket: Option<Ticket>,
}

#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) ticket: Ticket,
    pub(crate) keys: PageKeys,
    pub(crate) table: Vec<DevicePage>,
    pub(crate) cached: usize,
    pub(crate) computed: bool,
}

/// Bits to decide by, used up from the lowest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice(pub(crate) u32);

impl Choice {
    pub(crate) fn below(&mut self, most: u32) -> u32 {
        let most = most.max(1);
        let chosen = self.0 % most;
        self.0 = (self.0 / most) ^ self.0.rotate_left(13);
        chosen
    }

    pub(crate) fn one_in(&mut self, many: u32) -> bool {
        self.below(many) == 0
    }
}

pub(crate) struct World {
    pub(crate) planners: Vec<Planner>,
    pub(crate) memory: Vec<Memory>,
    pub(crate) flights: BTreeMap<OperationId, InFlight>,
    pub(crate) live: BTreeMap<u64, Live>,
    /// Tickets of requests that have ended.
    pub(crate) past: Vec<Ticket>,
    /// Completions that were delivered.
    pub(crate) delivered: Vec<Vec<Completion>>,
    pub(crate) acknowledged: BTreeSet<PageKey>,
    /// Keys that were once in host memory.
    pub(crate) ever: HashSet<PageKey>,
    /// Keys that the store was said to have, on all ranks.
    pub(crate) said: HashSet<PageKey>,
    pub(crate) tick: u64,
    root: PageKey,
    seen: (u64, u64),
    /// What each rank has reported, byte by byte, for tests that compare it.
    pub(crate) written: Option<Vec<Vec<u8>>>,
}

pub(crate) fn root(number: u8) -> PageKey {
    PageKey::from_bytes([number; 32])
}

impl World {
    pub(crate) fn new(flaw: Option<Flaw>) -> Self {
        Self::with_ranks(flaw, RANKS)
    }

    pub(crate) fn with_ranks(flaw: Option<Flaw>, ranks: usize) -> Self {
        let config = PlannerConfig {
            prefetch_threshold: 1,
            query_ticks: 3,
            prefetch_ticks: 4,
            ranks: u32::try_from(ranks).unwrap(),
            ..PlannerConfig::new(root(0), PAGE, HOST, DEVICE)
        };
        Self::with_config(flaw, ranks, config)
    }

    pub(crate) fn with_config(flaw: Option<Flaw>, ranks: usize, config: PlannerConfig) -> Self {
        let planner = || {
            let mut planner = Planner::new(config.clone()).unwrap();
            planner.set_flaw(flaw);
            planner
        };
        Self {
            planners: (0..ranks).map(|_| planner()).collect(),
            memory: (0..ranks).map(|_| Memory::default()).collect(),
            flights: BTreeMap::new(),
            live: BTreeMap::new(),
            past: Vec::new(),
            delivered: Vec::new(),
            acknowledged: BTreeSet::new(),
            ever: HashSet::new(),
            said: HashSet::new(),
            tick: 0,
            root: config.root,
            seen: (0, 0),
            written: None,
        }
    }

    /// Another world in the same state.
    pub(crate) fn copy(&self) -> Self {
        Self {
            planners: self.planners.iter().map(Planner::copy).collect(),
            memory: self.memory.clone(),
            flights: self.flights.clone(),
            live: self.live.clone(),
            past: self.past.clone(),
            delivered: self.delivered.clone(),
            acknowledged: self.acknowledged.clone(),
            ever: self.ever.clone(),
            said: self.said.clone(),
            written: self.written.clone(),
            ..*self
        }
    }

    /// All that decides what can happen next, as text.
    pub(crate) fn picture_of_all(&self) -> String {
        let planner = self.planner().picture();
        format!(
            "{planner} {:?} {:?} {:?} {:?} {:?}",
            self.memory, self.flights, self.live, self.past, self.acknowledged
        )
    }

    pub(crate) fn planner(&self) -> &Planner {
        &self.planners[0]
    }

    pub(crate) fn state(&self, ticket: Ticket) -> Option<State> {
        self.planner().state(ticket)
    }

    /// All that must hold, now.
    pub(crate) fn check(&mut self) {
        for planner in &self.planners {
            assert_eq!(planner.violations(), []);
        }
        let planner = self.planner();
        invariants::check(planner).unwrap_or_else(|broken| panic!("{broken}"));
        for memory in &self.memory {
            let host = |page| memory.host.get(&page).copied();
            let device = |page| memory.device.get(&page).copied();
            invariants::contents_are_what_keys_say(planner, host, device).unwrap_or_else(|broken| panic!("{broken}"));
        }
        invariants::l3_has_what_is_noted(planner, |key| self.acknowledged.contains(key))
            .unwrap_or_else(|broken| panic!("{broken}"));
        self.note_index_cases();
    }

    fn note_index_cases(&mut self) {
        let seen = self.planner().splits_and_evictions();
        let (split, evicted) = (seen.0 > self.seen.0, seen.1 > self.seen.1);
        self.seen = seen;
        if !split && !evicted {
            return;
        }
        let full = self.planner().host_pages().0 == 0;
        for flight in self.flights.values() {
            match &flight.operation.work {
                Work::Prefetch(pages) => {
                    note_times(Case::SplitWhilePrefetching, u64::from(split));
                    let anchored = pages.first().is_some_and(|at| at.index > 0);
                    note_times(Case::EvictionAroundAnchor, u64::from(evicted && anchored && full));
                }
                Work::Backup(_) => note_times(Case::EvictionBeforeBackupDone, u64::from(evicted)),
                _ => {}
            }
        }
    }

    /// Tells every rank the same, and sees that every rank says the same.
    pub(crate) fn tell(&mut self, event: &PlanEvent) -> tensorhold_core::Result<Applied> {
        let mut answers = self.planners.iter_mut().map(|planner| planner.on_event(event.clone()));
        let first = answers.next().unwrap();
        for other in answers {
            assert_eq!(format!("{first:?}"), format!("{other:?}"), "KV21: ranks differ");
        }
        self.check();
        first
    }

    pub(crate) fn submit(&mut self, id: u64, tokens: &[u32]) -> Option<Ticket> {
        let mut keys = PageKeys::new(self.root, PAGE);
        keys.extend(tokens);
        let mut answers = self
            .planners
            .iter_mut()
            .map(|planner| planner.submit(RequestId(id), keys.clone()));
        let first = answers.next().unwrap().ok();
        assert!(answers.all(|other| other.ok() == first), "KV21: ranks differ");
        let ticket = first?;
        let found = self.planner().find(&keys);
        let l3 = |key: &PageKey| self.memory.iter().all(|memory| memory.l3.contains_key(key));
        let gone = found.host + found.device == 0;
        let once = keys
            .as_slice()
            .iter()
            .take(2)
            .all(|key| self.ever.contains(key) && l3(key));
        if gone && once && keys.pages() > 2 && self.planner().waits_for(ticket).is_some() {
            note(Case::GoneButInL3);
        }
        let live = Live {
            ticket,
            keys,
            table: Vec::new(),
            cached: 0,
            computed: false,
        };
        self.live.insert(ticket.turn, live);
        self.check();
        Some(ticket)
    }

    /// Whether the request was told to run.
    pub(crate) fn is_running(&self, turn: u64) -> bool {
        let live = self.live.get(&turn);
        live.is_some_and(|live| !live.table.is_empty() && self.planner().waits_for(live.ticket).is_none())
    }

    /// The model runs: it reads all that it has, and writes what is missing.
    pub(crate) fn compute(&mut self, turn: u64) {
        let Some(live) = self.live.get_mut(&turn) else { return };
        for memory in &mut self.memory {
            for (place, (page, key)) in live.table.iter().zip(live.keys.as_slice()).enumerate() {
                if live.computed || place < live.cached {
                    let content = memory.device.get(page);
                    assert_eq!(content, Some(key), "KV18: {:?} lost {page:?}", live.ticket);
                }
                memory.device.insert(*page, *key);
            }
            // The page that is not full yet is written, too.
            if let Some(page) = live.table.get(live.keys.as_slice().len()) {
                memory.device.remove(page);
            }
        }
        live.computed = true;
    }

    pub(crate) fn append(&mut self, turn: u64, tokens: &[u32]) -> bool {
        let Some(live) = self.live.get(&turn) else { return false };
        let ticket = live.ticket;
        let wanted = u32::try_from(tokens.len()).unwrap();
        if self.tell(&PlanEvent::Reserve(ticket, wanted)).is_err() {
            return false;
        }
        self.step(0);
        let Some(live) = self.live.get_mut(&turn) else {
            return false;
        };
        let before = live.keys.as_slice().len();
        live.keys.extend(tokens);
        for memory in &mut self.memory {
            for (page, key) in live.table.iter().zip(live.keys.as_slice()).skip(before) {
                memory.device.insert(*page, *key);
            }
        }
        assert_eq!(
            self.tell(&PlanEvent::Appended(ticket, tokens.to_vec())).unwrap(),
            Applied::Done
        );
        self.compute(turn);
        true
    }

    pub(crate) fn new_root(&mut self, number: u8) {
        self.root = root(number);
        self.tell(&PlanEvent::NewWeights(self.root)).unwrap();
    }

    /// The counters of the planner, as cases.
    pub(crate) fn note_counters(&self) {
        let counters = self.planner().counters();
        note_times(Case::GrewBeforeSchedule, counters.grew_before_schedule);
        note_times(Case::ShrankBeforeSchedule, counters.shrank_before_schedule);
        note_times(Case::GrewBeforeCompletion, counters.grew_before_completion);
        note_times(Case::ShrankBeforeCompletion, counters.cleared_before_completion);
        note_times(Case::HangingGet, counters.deadlines);
        note_times(Case::Declined, counters.declined);
        note_times(Case::NoRoom, counters.no_room);
        note_times(Case::AtThreshold, counters.at_threshold);
        note_times(Case::ExactMultiple, counters.exact_multiples);
        note_times(Case::Duplicates, counters.duplicates);
    }
}
