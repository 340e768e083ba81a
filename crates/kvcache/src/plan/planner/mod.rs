//! The planner: events in, plans out.
//!
//! The planner owns the pools, the index, the requests and the operations in flight. Every page is in one of them, and
//! only a transition moves it. Nothing here waits, blocks or reads a clock (KV25): time is the tick that
//! [`Planner::step`] is given.
//!
//! # Incremental
//! A step examines only what has changed since the last one: requests that L3 has answered for, requests to write back,
//! deadlines that have passed, and the queue for device pages, from its head. It never examines all requests.
//!
//! # Offsets
//! Every offset comes from a pin that is held (KV10): a prefetch is scheduled from where the host match ends *at that
//! moment*, pinned, and published below that same pin. The query's answer is carried as an absolute index, so it means
//! the same however the match has changed since.
//!
//! # When pages are released
//! An operation in flight owns the pages that it fills and pins the pages that it reads. They are released when it is
//! acknowledged, whatever happened to its request. A request that is aborted, or whose deadline has passed, goes on
//! without them. So a store that acts late cannot write into a page that has a new owner (KV2, KV5), and a store that
//! never acts cannot hold up a request for longer than the deadline (KV19).
//!
//! # Duplicate, late and missing events
//! A completion of an operation that is not in flight is ignored. An event that does not fit is refused and changes
//! nothing. An operation that is never acknowledged keeps its pages. The tier prevents that by one terminal completion
//! per operation (KV3), and [`Planner::pending`] reports it (KV24).

mod copy;
mod counters;
mod drain;
mod end;
mod flight;
mod lookup;
mod run;
mod transition;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use tensorhold_core::{Error, ErrorKind, Recorder, Result};

use super::event::{Applied, Plan, PlanEvent};
use super::flaw::Flaw;
use super::index::{Match, RadixIndex, node::MOST_PAGES};
use super::key::{PageKey, PageKeys};
use super::operation::OperationId;
use super::pool::Pool;
use super::request::{Ending, Phase, Request, RequestId, State, Submitted, Ticket};
pub use counters::Counters;
pub(crate) use flight::{Flight, Holds};
use transition::unlawful;

/// The settings of a planner. The same on every rank.
#[derive(Clone, Debug)]
pub struct PlannerConfig {
    /// The start of all keys: [`super::Namespace::root`].
    pub root: PageKey,
    /// Tokens per page.
    pub page_tokens: u32,
    /// Pages in host memory.
    pub host_pages: u32,
    /// Pages in device memory.
    pub device_pages: u32,
    /// A prefetch must fetch more pages than this. Default: 4.
    pub prefetch_threshold: u32,
    /// For how many ticks a request waits for L3's answer to its query. Default: 10.
    pub query_ticks: u64,
    /// For how many ticks a request waits for its prefetch. Default: 100.
    pub prefetch_ticks: u64,
    /// How many pages that L3 acknowledged before are backed up again when a request is written back, for one request in
    /// a step: L3 evicts by its own order, in which a page that host memory serves is not used. A backup of a page that
    /// L3 still has moves no bytes. Default: 256; 0 for none.
    pub recheck_pages: u32,
    /// How many ranks report each completion. Default: 1, for a caller that has already taken the minimum.
    pub ranks: u32,
}

impl PlannerConfig {
    /// The defaults.
    pub fn new(root: PageKey, page_tokens: u32, host_pages: u32, device_pages: u32) -> Self {
        Self {
            root,
            page_tokens,
            host_pages,
            device_pages,
            prefetch_threshold: 4,
            query_ticks: 10,
            prefetch_ticks: 100,
            recheck_pages: 256,
            ranks: 1,
        }
    }
}

/// Turns events into plans. See the module documentation.
#[derive(Debug)]
pub struct Planner {
    pub(crate) config: PlannerConfig,
    pub(crate) index: RadixIndex,
    pub(crate) requests: BTreeMap<u64, Request>,
    by_id: HashMap<RequestId, u64>,
    pub(crate) flights: BTreeMap<OperationId, Flight>,
    /// When a request stops waiting for an operation.
    pub(crate) deadlines: BTreeSet<(u64, OperationId)>,
    /// Requests whose query the next plan hands out: their time begins then.
    pub(crate) asking: Vec<u64>,
    /// Requests whose query was answered.
    pub(crate) answered: VecDeque<u64>,
    /// Requests to write back.
    pub(crate) draining: VecDeque<u64>,
    /// Requests that wait for device pages, in the order of their arrival.
    pub(crate) line: VecDeque<u64>,
    /// The next plan, as far as it is known.
    pub(crate) next: Plan,
    pub(crate) now: u64,
    /// The last step in which pages that L3 had acknowledged were backed up again.
    pub(crate) rechecked: Option<u64>,
    next_turn: u64,
    next_operation: u64,
    pub(crate) counters: Counters,
    pub(crate) recorder: Recorder,
    #[cfg(feature = "testing")]
    flaw: Option<Flaw>,
}

/// Whether a request stays after a transition.
enum After {
    Stays,
    Ends(Ending),
}

impl Planner {
    /// A planner with empty pools.
    pub fn new(config: PlannerConfig) -> Result<Self> {
        if config.page_tokens == 0 || config.ranks == 0 || config.device_pages == 0 {
            return Err(Error::invalid(
                "kv.planner",
                "a page needs tokens, a plan needs ranks, and a model needs device pages",
            ));
        }
        if config.host_pages > MOST_PAGES || config.device_pages > MOST_PAGES {
            return Err(Error::invalid("kv.planner", "a pool has too many pages").with("most", MOST_PAGES));
        }
        Ok(Self {
            index: RadixIndex::new(Pool::new(config.host_pages), Pool::new(config.device_pages)),
            config,
            requests: BTreeMap::new(),
            by_id: HashMap::new(),
            flights: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            asking: Vec::new(),
            answered: VecDeque::new(),
            draining: VecDeque::new(),
            line: VecDeque::new(),
            next: Plan::default(),
            now: 0,
            rechecked: None,
            next_turn: 0,
            next_operation: 0,
            counters: Counters::default(),
            recorder: Recorder::default(),
            #[cfg(feature = "testing")]
            flaw: None,
        })
    }

    /// Submits a request. Refused if its id is in use, if its keys do not start from this planner's root, or if it
    /// could never fit into device memory.
    pub fn submit(&mut self, request: RequestId, keys: PageKeys) -> Result<Ticket> {
        let refuse = |kind, why: &str| Err(Error::new(kind, "kv.submit", why).with("request", request.0));
        if self.by_id.contains_key(&request) {
            return refuse(
                ErrorKind::Conflict,
                "this request id is in use; wait until it has ended",
            );
        }
        if *keys.root() != self.config.root || keys.page_tokens() != self.config.page_tokens {
            return refuse(
                ErrorKind::Conflict,
                "these keys belong to another namespace, or the weights have changed; make them from the current root",
            );
        }
        if keys.tokens() == 0 {
            return refuse(ErrorKind::Invalid, "a prompt needs at least one token");
        }
        if self.pages_to_run(&keys) > self.config.device_pages {
            return refuse(
                ErrorKind::Capacity,
                "this prompt is larger than the device's pool of pages",
            );
        }
        self.next_turn += 1;
        let ticket = Ticket {
            request,
            turn: self.next_turn,
        };
        if keys.tokens().is_multiple_of(u64::from(keys.page_tokens())) {
            self.counters.exact_multiples += 1;
        }
        let waits = self.look_up(ticket.turn, &keys);
        let phase = Phase::Submitted(Submitted { waits });
        self.by_id.insert(request, ticket.turn);
        self.requests.insert(ticket.turn, Request { ticket, keys, phase });
        Ok(ticket)
    }

    /// Applies an event. A refused event has changed nothing.
    pub fn on_event(&mut self, event: PlanEvent) -> Result<Applied> {
        let result = match event {
            PlanEvent::Completed(ranks) => self.completed(&ranks),
            PlanEvent::PrefillDone(ticket) => self.prefill_done(ticket),
            PlanEvent::Reserve(ticket, tokens) => self.reserve(ticket, tokens),
            PlanEvent::Appended(ticket, tokens) => self.appended(ticket, &tokens),
            PlanEvent::Finish(ticket) => self.finish(ticket),
            PlanEvent::Retract(ticket) => self.retract(ticket),
            PlanEvent::Resume(ticket) => self.resume(ticket),
            PlanEvent::Abort(ticket) => self.abort(ticket),
            PlanEvent::Clear => self.clear(None),
            PlanEvent::NewWeights(root) => self.clear(Some(root)),
        };
        self.counters.refused += u64::from(result.is_err());
        result
    }

    /// Returns the plan for this `tick`. Ticks never go back; a smaller one is treated as the latest.
    pub fn step(&mut self, tick: u64) -> Plan {
        self.now = self.now.max(tick);
        self.begin_queries();
        self.expire();
        while let Some(turn) = self.answered.pop_front() {
            self.decide(turn);
        }
        while let Some(turn) = self.draining.pop_front() {
            self.write_back(turn);
        }
        while let Some(turn) = self.line.front().copied() {
            if !self.admit(turn) {
                break;
            }
            self.line.pop_front();
        }
        std::mem::take(&mut self.next)
    }

    /// How much of a prompt is in host and in device memory now.
    pub fn find(&self, keys: &PageKeys) -> Match {
        self.index.find(keys.as_slice())
    }

    /// Whether anything is outstanding: a request, an operation, a pin, or a plan that was not taken yet (KV24).
    pub fn pending(&self) -> bool {
        !self.requests.is_empty() || !self.flights.is_empty() || self.index.pins() > 0 || self.next != Plan::default()
    }

    /// The state of a request, if it has not ended.
    pub fn state(&self, ticket: Ticket) -> Option<State> {
        self.requests.get(&ticket.turn).map(|request| request.phase.state())
    }

    /// The operation that a request waits for, if any.
    pub fn waits_for(&self, ticket: Ticket) -> Option<OperationId> {
        self.requests
            .get(&ticket.turn)
            .and_then(|request| request.phase.operation())
    }

    /// The counters so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Free, owned and indexed pages of the host pool.
    pub fn host_pages(&self) -> (u32, u32, u32) {
        let pool = &self.index.host;
        (pool.free_count(), pool.owned_count(), pool.published_count())
    }

    /// Free, owned and indexed pages of the device pool.
    pub fn device_pages(&self) -> (u32, u32, u32) {
        let pool = &self.index.device;
        (pool.free_count(), pool.owned_count(), pool.published_count())
    }

    /// Nodes of the index.
    pub fn nodes(&self) -> u32 {
        self.index.nodes()
    }

    /// Edges split and pages evicted so far.
    pub fn splits_and_evictions(&self) -> (u64, u64) {
        (self.index.splits(), self.index.evicted())
    }

    /// Switches a deliberate bug on.
    #[cfg(feature = "testing")]
    pub fn set_flaw(&mut self, flaw: Option<Flaw>) {
        self.flaw = flaw;
    }

    #[cfg(feature = "testing")]
    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    #[cfg(not(feature = "testing"))]
    #[allow(clippy::unused_self, reason = "with the feature `testing` it is used")]
    pub(super) fn has(&self, _: Flaw) -> bool {
        false
    }
}
