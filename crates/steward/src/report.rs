//! What a steward has seen and done last: for its page, its interface and its metrics.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_features::{LiveSession, Sweeping};
use holdfast_index::{Leader, SweepReport};
use holdfast_index_etcd::Storage;
use serde::Serialize;

/// The most actions that are remembered of a store.
pub(crate) const MOST_ACTIONS: usize = 100;

/// Everything that is known.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Whether the steward changes nothing.
    pub read_only: bool,
    /// The stores, by name.
    pub stores: BTreeMap<String, StoreReport>,
    /// The nodes of etcd.
    pub etcd: Vec<EtcdReport>,
}

/// One store.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreReport {
    /// Whether it is open; if not, `trouble` says why.
    pub open: bool,
    /// What does not work now.
    pub trouble: Option<String>,
    /// Whether this steward holds the office, and sweeps.
    pub on_duty: bool,
    /// The steward in office.
    pub steward: Option<LeaderReport>,
    /// The processes that sweep while there is none.
    pub sweepers: Vec<LeaderReport>,
    /// Sweeps of this steward.
    pub sweeps: u64,
    /// Those that failed.
    pub failed_sweeps: u64,
    /// What it has taken back since it started.
    pub taken_back: TakenBack,
    /// Samples that it has freed since it started.
    pub freed: u64,
    /// Frees that failed and are tried again.
    pub failed_frees: u64,
    /// Processes that have the store open, stewards aside.
    pub users: Option<u64>,
    /// Seconds since one was last seen; none while one is there, or if nobody looked yet.
    pub unused_seconds: Option<u64>,
    /// The budget.
    pub budget: Option<BudgetReport>,
    /// What was done last, the latest last.
    pub actions: Vec<Action>,
}

/// Who holds an office.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeaderReport {
    /// Its session.
    pub session: String,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Since when, in milliseconds since 1970, by its own clock.
    pub since_ms: u64,
}

impl From<&Leader> for LeaderReport {
    fn from(leader: &Leader) -> Self {
        Self {
            session: format!("{:016x}", leader.session.0),
            host: leader.identity.host.clone(),
            pid: leader.identity.pid,
            since_ms: leader.identity.started_ms,
        }
    }
}

/// What sweeps have taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TakenBack {
    /// Leases.
    pub leases: u64,
    /// Reservations.
    pub reservations: u64,
    /// Samples that were retired because of that.
    pub retired: u64,
    /// Ended sessions that were cleared.
    pub sessions: u64,
    /// Records that could not be decoded.
    pub quarantined: u64,
}

impl TakenBack {
    pub(crate) fn add(&mut self, report: &SweepReport) {
        self.leases += report.taken_back as u64;
        self.reservations += report.abandoned as u64;
        self.retired += report.retired as u64;
        self.sessions += report.sessions_cleared as u64;
        self.quarantined += report.quarantined as u64;
    }
}

/// The budget of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BudgetReport {
    /// In bytes.
    pub bytes: u64,
    /// What no sample was paid with.
    pub free: u64,
    /// Processes that wait for some.
    pub waiting: u64,
    /// The bytes that the first of them waits for.
    pub first_waits_for: Option<u64>,
}

/// Something that the steward did, or found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// One node of etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EtcdReport {
    /// Its address.
    pub endpoint: String,
    /// The size of its file.
    pub bytes: u64,
    /// How much of that is used.
    pub used: u64,
    /// The quota.
    pub quota: u64,
    /// Whether it refuses writes because it is full.
    pub full: bool,
    /// Whether it leads.
    pub leads: bool,
    /// Why nothing is known of it.
    pub trouble: Option<String>,
}

impl EtcdReport {
    pub(crate) fn of(storage: Storage, quota: u64) -> Self {
        Self {
            quota: storage.quota.unwrap_or(quota),
            endpoint: storage.endpoint,
            bytes: storage.bytes,
            used: storage.used,
            full: storage.full,
            leads: storage.leads,
            trouble: storage.corrupt.then(|| "etcd has found damaged data".to_owned()),
        }
    }
}

impl StoreReport {
    /// Remembers an action; the oldest one is forgotten.
    pub(crate) fn acted(&mut self, what: impl Into<String>, why: impl Into<String>) {
        if self.actions.len() >= MOST_ACTIONS {
            self.actions.remove(0);
        }
        self.actions.push(Action {
            at_ms: now_ms(),
            what: what.into(),
            why: why.into(),
        });
    }

    /// Takes in who sweeps.
    pub(crate) fn sweeping(&mut self, sweeping: &Sweeping) {
        use holdfast_features::Office;
        let of = |office| sweeping.leaders.of(office).map(LeaderReport::from);
        self.on_duty = sweeping.on_duty;
        self.steward = of(Office::Steward);
        self.sweepers = [Office::Sweeper, Office::Deputy].into_iter().filter_map(of).collect();
        self.sweeps = sweeping.sweeps;
        self.failed_sweeps = sweeping.failed;
        self.trouble.clone_from(&sweeping.last_error);
    }
}

/// A session, as the interface tells of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionReport {
    /// Its id.
    pub session: String,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// What is running.
    pub program: String,
    /// The release of Holdfast.
    pub version: String,
    /// What it is in the run.
    pub role: String,
    /// Whether it is a steward.
    pub steward: bool,
    /// When it was opened, in milliseconds since 1970.
    pub started_ms: u64,
}

impl From<&LiveSession> for SessionReport {
    fn from(session: &LiveSession) -> Self {
        let said = session.identity.clone().unwrap_or_default();
        Self {
            session: format!("{:016x}", session.id.0),
            host: said.host,
            pid: said.pid,
            program: said.program,
            version: said.version,
            role: said.role,
            steward: said.steward,
            started_ms: said.started_ms,
        }
    }
}

/// Now, for people.
pub(crate) fn now_ms() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "for people, who compare it with their own clocks"
    )]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
