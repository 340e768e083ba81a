//! What the page shows of one store, and looking at it.
//!
//! ```text
//!            every look_every, with a point of the history
//!  wait ──────────────────────────────────────────────────▶ look ──▶ the view is replaced, viewers are told
//!    ▲       while a viewer watches: after 1 s, or after      │
//!    │       ten times what the last look took                │
//!    └────────────────────────────────────────────────────────┘
//! ```
//! A look beside that of [`crate::tend`], which decides things by what it sees; nothing is decided by this one. It runs only
//! in a steward that has an HTTP interface. Its count of the records is also that of the store's report: they are not counted
//! twice.
//!
//! # What is exact
//! - How many samples there are in each state: etcd counts them.
//! - Bytes by state: exact if the state has at most [`SAMPLED`] samples. Of more, each look reads the next [`SAMPLED`]
//!   records, and the mean of the last such parts is taken for all: [`sampling`]. `exact` says which it is.
//! - Leases: see [`tensorhold_index::Index::leases`]; `leases_complete` says whether all were looked at.
//! - What waits for groups: etcd counts it ([`tensorhold_index::Index::backlog`]). What is leased by them is counted among
//!   the live samples that were read.
//! - Changes: the difference to what was seen half a minute ago ([`crate::recent`]). Bytes only where both are exact.
//! - What cannot be read stays as it was, and `trouble` says so.
//!
//! # Bounds
//! A look reads at most [`SAMPLED`] records of each state, and of the lists of leases, waiting producers and dead letters
//! the first [`SHOWN`].

pub(crate) mod history;
mod sampling;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tensorhold_core::{Clock as _, Result, SystemClock};
use tensorhold_custody::{Progress, SessionId, Tick};
use tensorhold_features::{FeatureStore, Identity};
use tensorhold_index::{Backlog, BudgetUse, Counts, HeldLease, LeaseList, Record, RecordQuery, SampleRecord, Stage};
use tokio::time::Instant;

use self::history::Point;
use self::sampling::Sampling;
use crate::options::StoreOptions;
use crate::recent::Recent;
use crate::report::{BacklogReport, SessionReport, now_ms};
use crate::state::State;

/// How long one call of a look may take.
const WITHIN: Duration = Duration::from_secs(10);
/// The pause between two looks while a viewer watches, at least.
const WATCHED: Duration = Duration::from_secs(1);
/// A look takes at most one part in so many of the time.
const SHARE: u32 = 10;
/// How often the sessions are listed while a viewer watches.
const LIST_EVERY: Duration = Duration::from_secs(3);
/// The records of a state that one look reads.
const SAMPLED: usize = 500;
/// The most entries of each list that is shown.
pub(crate) const SHOWN: usize = 20;
/// The most holders that are shown. Each is in what every store's view says.
const MOST_HOLDERS: usize = 100;

/// What is known of a store, for people.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct View {
    /// When it was looked last, in milliseconds since 1970.
    looked_ms: Option<u64>,
    /// How long that took.
    took_ms: u64,
    /// When the last point of the history was made.
    pub(crate) point_ms: Option<u64>,
    /// What could not be read: it is as it was before.
    look_trouble: Vec<String>,
    states: Vec<StateView>,
    /// The seconds that what changed `per_s` is told over; none before there are two looks.
    change_over_s: Option<u64>,
    sessions: u64,
    ended_sessions: u64,
    /// What waits for whom; what is leased, among `groups_of` live samples.
    groups: Vec<GroupView>,
    groups_of: u64,
    leases: Vec<LeaseView>,
    leases_complete: bool,
    budget: Option<BudgetView>,
    dead: Vec<DeadView>,
    pub(crate) engine: Option<EngineView>,
    pub(crate) holders: Vec<HolderView>,
}

/// The samples in one state.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct StateView {
    state: &'static str,
    samples: u64,
    bytes: u64,
    /// Whether the bytes are exact, and not taken from the mean of some.
    exact: bool,
    /// How many more there are, and how many more bytes they have, a second; what came and went has cancelled out.
    samples_per_s: Option<f64>,
    bytes_per_s: Option<f64>,
}

/// A group, and how many samples wait for it and are leased by it.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct GroupView {
    group: String,
    waiting: u64,
    /// How many more wait, a second.
    waiting_per_s: Option<f64>,
    /// When the oldest sample that waits was committed, in milliseconds since 1970.
    oldest_ms: Option<u64>,
    leased: u64,
}

/// A process, as far as it is known. All of it is what the process said of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Who {
    session: String,
    /// Whether it is among the sessions that are alive.
    alive: bool,
    program: String,
    role: String,
    host: String,
    pid: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct LeaseView {
    sample: String,
    generation: u64,
    bytes: u64,
    /// None for a reader.
    group: Option<String>,
    attempts: u32,
    /// None if it is not known.
    since_ms: Option<u64>,
    /// Seconds until it ends by the shared clock, if nobody renews it; none if that is not known.
    ends_in_s: Option<u64>,
    held_by: Who,
}

/// The budget, and who waits for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct BudgetView {
    pub(crate) bytes: u64,
    pub(crate) free: u64,
    /// How much more of it is used, a second.
    used_per_s: Option<f64>,
    /// How many processes wait: at most a thousand are counted.
    pub(crate) waiting: u64,
    first: Vec<WaitingView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct WaitingView {
    who: Who,
    wants: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct DeadView {
    sample: String,
    generation: u64,
    bytes: u64,
    since_ms: Option<u64>,
    /// The groups that ran out of attempts.
    groups: Vec<String>,
    attempts: u32,
    producer: Who,
}

/// What the engine has, for all stores.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct EngineView {
    pub(crate) dram_used: u64,
    pub(crate) dram_capacity: u64,
    pub(crate) ssd_used: u64,
    pub(crate) ssd_capacity: u64,
    objects: u64,
    holders: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct HolderView {
    name: String,
    dram_used: u64,
    dram_capacity: u64,
}

impl View {
    pub(crate) fn budget(&self) -> Option<&BudgetView> {
        self.budget.as_ref()
    }
}

/// Looks at a store for as long as it is polled.
pub(crate) async fn keep(state: &State, options: &StoreOptions, store: &FeatureStore) {
    if state.options.http.is_none() {
        return std::future::pending().await;
    }
    let mut viewers = state.page.viewers();
    let mut looker = Looker::new(store);
    let mut next_point = Instant::now();
    loop {
        let begun = Instant::now();
        let is_point = begun >= next_point;
        let (view, point) = looker.look(is_point).await;
        // A look that takes long is not followed by the next one at once: etcd has other work.
        let paced = begun + SHARE * begun.elapsed();
        if is_point {
            next_point = (begun + state.options.look_every).max(paced);
        }
        if let Some(sessions) = looker.sessions.take() {
            state.page.saw_sessions(&options.store, sessions);
        }
        state.page.saw(&options.store, view, point.filter(|_| is_point));
        state.counted(&options.store, looker.counts.as_ref());
        let backlog = looker.backlog();
        state.note(&options.store, |report| report.backlog = backlog);
        let soon = (begun + WATCHED).max(paced);
        loop {
            let is_watched = *viewers.borrow_and_update() > 0;
            let next = if is_watched { soon.min(next_point) } else { next_point };
            tokio::select! {
                () = tokio::time::sleep_until(next) => break,
                // Its sender lives in the state.
                changed = viewers.changed() => if changed.is_err() {
                    tokio::time::sleep_until(next_point).await;
                    break;
                },
            }
        }
    }
}

/// What is compared with what is seen later.
#[derive(Clone, Debug, Default)]
struct Figures {
    samples: [u64; 6],
    /// Those that are exact.
    bytes: [Option<u64>; 6],
    waiting: BTreeMap<String, u64>,
    budget_used: Option<u64>,
}

struct Looker<'a> {
    store: &'a FeatureStore,
    view: View,
    /// The records, as last counted; none if they could not be.
    counts: Option<Counts>,
    sampling: [Sampling; 6],
    /// How many samples each group has leased, of those that were read.
    leased: BTreeMap<String, u64>,
    /// What was seen lately.
    recent: Recent<Figures>,
    clock: SystemClock,
    people: BTreeMap<SessionId, Identity>,
    /// When they were listed, and the list if nobody has taken it yet.
    listed: Option<Instant>,
    sessions: Option<Vec<SessionReport>>,
}

impl<'a> Looker<'a> {
    fn new(store: &'a FeatureStore) -> Self {
        Self {
            store,
            view: View::default(),
            counts: None,
            sampling: Default::default(),
            leased: BTreeMap::new(),
            recent: Recent::default(),
            clock: SystemClock::new(),
            people: BTreeMap::new(),
            listed: None,
            sessions: None,
        }
    }

    /// Looks. Returns a point only if all that it has was read now.
    async fn look(&mut self, lists_people: bool) -> (View, Option<Point>) {
        let begun = Instant::now();
        let store = self.store;
        self.view.look_trouble.clear();
        let (counts, backlog, budget, leases, usage, holders) = tokio::join!(
            store.counts(WITHIN),
            store.backlog(SHOWN, WITHIN),
            store.budget_use(WITHIN),
            store.leases(SHOWN, WITHIN),
            store.engine_usage(WITHIN),
            store.holders(WITHIN),
        );
        let counts = self.read("counts", counts);
        if let Some(counts) = &counts {
            self.saw_counts(counts).await;
        }
        if let Some(backlog) = self.read("backlog", backlog) {
            self.saw_backlog(&backlog);
        }
        let leases = self.read("leases", leases);
        let budget = self.read("budget", budget);
        let dead = match counts.as_ref().map(|counts| counts.of(Stage::Dead)) {
            Some(0) => Some(Vec::new()),
            Some(_) => {
                let listed = store.records(&RecordQuery::of(Stage::Dead), None, SHOWN, WITHIN).await;
                self.read("dead letters", listed).map(|list| list.records)
            }
            None => None,
        };
        self.know_people(lists_people, leases.as_ref(), budget.as_ref().and_then(Option::as_ref))
            .await;
        if let Some(leases) = &leases {
            let clock = store.shared_clock();
            self.view.leases = leases.leases.iter().map(|held| self.lease(held, clock)).collect();
            self.view.leases_complete = leases.complete;
        }
        if let Some(budget) = &budget {
            self.view.budget = budget.as_ref().map(|budget| self.budget(budget));
        }
        if let Some(dead) = &dead {
            self.view.dead = dead.iter().map(|record| self.dead(record)).collect();
        }
        if let Some(usage) = self.read("engine", usage) {
            self.view.engine = Some(EngineView {
                dram_used: usage.dram_used,
                dram_capacity: usage.dram_capacity,
                ssd_used: usage.ssd_used,
                ssd_capacity: usage.ssd_capacity,
                objects: usage.objects,
                holders: usage.holders,
            });
        }
        if let Some(holders) = self.read("holders", holders) {
            let told = |holder: tensorhold_engine::Holder| HolderView {
                name: holder.name,
                dram_used: holder.dram_used,
                dram_capacity: holder.dram_capacity,
            };
            self.view.holders = holders.into_iter().take(MOST_HOLDERS).map(told).collect();
        }
        if counts.is_some() {
            self.compare();
        }
        self.view.looked_ms = Some(now_ms());
        self.view.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.counts = counts;
        let point = self.counts.is_some().then(|| self.point());
        (self.view.clone(), point)
    }

    /// What was read; if it was not, that is noted.
    fn read<T>(&mut self, what: &str, read: Result<T>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(error) => {
                tracing::debug!(store = %self.store.config().store, what, %error, "a look for the page failed");
                self.view.look_trouble.push(format!("{what}: {error}"));
                None
            }
        }
    }

    async fn saw_counts(&mut self, counts: &Counts) {
        (self.view.sessions, self.view.ended_sessions) = (counts.sessions, counts.ended_sessions);
        let mut states = Vec::with_capacity(Stage::ALL.len());
        for (at, stage) in Stage::ALL.into_iter().enumerate() {
            let samples = counts.of(stage);
            let before = self
                .view
                .states
                .get(at)
                .map_or((0, false), |state| (state.bytes, state.exact));
            let (bytes, exact) = match samples {
                0 => {
                    self.sampling[at] = Sampling::default();
                    if stage == Stage::Live {
                        self.leased.clear();
                        self.view.groups_of = 0;
                    }
                    (0, true)
                }
                _ => self.sample(at, stage, samples).await.unwrap_or((before.0, false)),
            };
            states.push(StateView {
                state: stage.name(),
                samples,
                bytes,
                exact,
                samples_per_s: None,
                bytes_per_s: None,
            });
        }
        self.view.states = states;
    }

    /// Reads the next records of a stage.
    async fn sample(&mut self, at: usize, stage: Stage, count: u64) -> Option<(u64, bool)> {
        let place = self.sampling[at].place.clone();
        let listed = self
            .store
            .records(&RecordQuery::of(stage), place.as_ref(), SAMPLED, WITHIN)
            .await;
        let list = self.read(stage.name(), listed)?;
        if stage == Stage::Live {
            self.saw_live(&list.records);
        }
        let bytes = list.records.iter().map(|record| held_bytes(&record.record));
        let bytes = bytes.fold(0, u64::saturating_add);
        let (bytes, is_all) = self.sampling[at].add(list.records.len() as u64, bytes, list.next, count);
        Some((bytes, is_all && list.later == 0))
    }

    fn saw_live(&mut self, records: &[SampleRecord]) {
        self.leased.clear();
        for record in records {
            let Record::Live(live) = &record.record else { continue };
            for state in live
                .groups
                .iter()
                .filter(|state| matches!(state.progress, Progress::Leased(_)))
            {
                let name = state.group.as_str();
                if self.leased.len() < SHOWN || self.leased.contains_key(name) {
                    *self.leased.entry(name.to_owned()).or_default() += 1;
                }
            }
        }
        self.view.groups_of = records.len() as u64;
    }

    /// Takes in what waits. Groups for which nothing waits are those that have leased something.
    fn saw_backlog(&mut self, backlog: &[Backlog]) {
        let group = |name: &str| GroupView {
            group: name.to_owned(),
            waiting: 0,
            waiting_per_s: None,
            oldest_ms: None,
            leased: 0,
        };
        let mut groups: BTreeMap<&str, GroupView> = BTreeMap::new();
        for one in backlog {
            let seen = groups.entry(one.group.as_str()).or_insert_with_key(|name| group(name));
            (seen.waiting, seen.oldest_ms) = (one.waiting, one.oldest.map(|at| at.0));
        }
        for (name, leased) in &self.leased {
            groups.entry(name).or_insert_with_key(|name| group(name)).leased = *leased;
        }
        self.view.groups = groups.into_values().collect();
    }

    /// What waits, for the report.
    fn backlog(&self) -> Vec<BacklogReport> {
        let seconds = |since: u64| now_ms().saturating_sub(since) / 1000;
        let report = |group: &GroupView| BacklogReport {
            group: group.group.clone(),
            waiting: group.waiting,
            oldest_seconds: group.oldest_ms.map(seconds),
        };
        self.view.groups.iter().map(report).collect()
    }

    /// Says how fast what is seen now has changed.
    fn compare(&mut self) {
        let of = |at: usize| self.view.states.get(at);
        let used = |budget: &BudgetView| budget.bytes.saturating_sub(budget.free);
        let figures = Figures {
            samples: std::array::from_fn(|at| of(at).map_or(0, |state| state.samples)),
            bytes: std::array::from_fn(|at| of(at).filter(|state| state.exact).map(|state| state.bytes)),
            waiting: self
                .view
                .groups
                .iter()
                .map(|group| (group.group.clone(), group.waiting))
                .collect(),
            budget_used: self.view.budget.as_ref().map(used),
        };
        let before = self.recent.saw(self.clock.now(), figures.clone());
        self.view.change_over_s = before.as_ref().map(|before| before.ago.as_secs());
        let change = |was: Option<u64>, now: Option<u64>| Some(before.as_ref()?.per_second(was?, now?));
        if let Some(budget) = &mut self.view.budget {
            let was = before.as_ref().and_then(|before| before.seen.budget_used);
            budget.used_per_s = change(was, figures.budget_used);
        }
        for (at, state) in self.view.states.iter_mut().enumerate() {
            let was = before
                .as_ref()
                .map(|before| (before.seen.samples[at], before.seen.bytes[at]));
            state.samples_per_s = change(was.map(|was| was.0), Some(figures.samples[at]));
            state.bytes_per_s = change(was.and_then(|was| was.1), figures.bytes[at]);
        }
        for group in &mut self.view.groups {
            // A group that was not there had nothing that waited for it.
            let was = before
                .as_ref()
                .map(|before| before.seen.waiting.get(&group.group).copied().unwrap_or(0));
            group.waiting_per_s = change(was, Some(group.waiting));
        }
    }

    /// Lists the sessions if it is time to, or if one is named that is not known.
    async fn know_people(&mut self, is_time: bool, leases: Option<&LeaseList>, budget: Option<&BudgetUse>) {
        let holding = leases
            .into_iter()
            .flat_map(|list| &list.leases)
            .map(|held| held.lease.session);
        let waiting = budget
            .into_iter()
            .flat_map(|budget| &budget.waiting)
            .map(|(session, _)| *session);
        let is_unknown = |session: SessionId| !self.people.contains_key(&session);
        let is_old = self.listed.is_none_or(|listed| listed.elapsed() >= LIST_EVERY);
        if is_time || is_old || holding.chain(waiting.take(SHOWN)).any(is_unknown) {
            let listed = self.store.sessions(WITHIN).await;
            if let Some(sessions) = self.read("sessions", listed) {
                self.listed = Some(Instant::now());
                self.sessions = Some(sessions.iter().map(SessionReport::from).collect());
                let said = sessions
                    .into_iter()
                    .map(|session| (session.id, session.identity.unwrap_or_default()));
                self.people = said.collect();
            }
        }
    }

    fn who(&self, session: SessionId) -> Who {
        let id = format!("{:016x}", session.0);
        match self.people.get(&session) {
            Some(said) => Who {
                session: id,
                alive: true,
                program: said.program.clone(),
                role: said.role.clone(),
                host: said.host.clone(),
                pid: said.pid,
            },
            None => Who {
                session: id,
                ..Who::default()
            },
        }
    }

    fn lease(&self, held: &HeldLease, clock: Option<(Tick, Duration)>) -> LeaseView {
        let ends_in = |(now, length): (Tick, Duration)| {
            let ticks = held.lease.until.0.checked_sub(now.0)?.saturating_add(1);
            Some(
                length
                    .saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
                    .as_secs(),
            )
        };
        LeaseView {
            sample: held.sample.sample.to_string(),
            generation: held.sample.generation.get(),
            bytes: held.bytes,
            group: held.group.as_ref().map(|group| group.as_str().to_owned()),
            attempts: held.attempts,
            since_ms: Some(held.lease.since.0).filter(|since| *since > 0),
            ends_in_s: clock.map(|clock| ends_in(clock).unwrap_or(0)),
            held_by: self.who(held.lease.session),
        }
    }

    fn budget(&self, budget: &BudgetUse) -> BudgetView {
        let waiting = |(session, wants): &(SessionId, u64)| WaitingView {
            who: self.who(*session),
            wants: *wants,
        };
        BudgetView {
            bytes: budget.bytes,
            free: budget.free,
            used_per_s: None,
            waiting: budget.waiting.len() as u64,
            first: budget.waiting.iter().take(SHOWN).map(waiting).collect(),
        }
    }

    fn dead(&self, found: &SampleRecord) -> DeadView {
        let groups = match &found.record {
            Record::Retired(retired) => retired.letter.as_ref().map_or(&[][..], |letter| &letter.groups),
            Record::Reserved(_) | Record::Live(_) => &[],
        };
        let spent = groups.iter().filter(|state| state.progress == Progress::Dead);
        DeadView {
            sample: found.sample.sample.to_string(),
            generation: found.sample.generation.get(),
            bytes: found.record.bytes(),
            since_ms: Some(found.record.since().0).filter(|since| *since > 0),
            groups: spent.clone().map(|state| state.group.as_str().to_owned()).collect(),
            attempts: spent.map(|state| state.attempts).max().unwrap_or(0),
            producer: self.who(found.record.producer()),
        }
    }

    fn point(&self) -> Point {
        let of = |value: fn(&StateView) -> u64| std::array::from_fn(|at| self.view.states.get(at).map_or(0, value));
        Point {
            at_ms: now_ms(),
            bytes: of(|state| state.bytes),
            samples: of(|state| state.samples),
            budget_used: self
                .view
                .budget
                .as_ref()
                .map_or(0, |budget| budget.bytes.saturating_sub(budget.free)),
            dram_used: self.view.engine.as_ref().map_or(0, |engine| engine.dram_used),
        }
    }
}

/// The bytes that a sample holds. A dead letter's record may outlive them.
fn held_bytes(record: &Record) -> u64 {
    match record {
        Record::Retired(retired) if retired.freed.is_some() => 0,
        record => record.bytes(),
    }
}
