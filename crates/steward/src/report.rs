//! What a steward has seen and done last: for its page, its interface and its metrics.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tensorhold_core::Result;
use tensorhold_features::{HoldersSeen, LiveSession, Sweeping};
use tensorhold_index::{Leader, SweepReport};
use tensorhold_index_etcd::Storage;

use crate::Audited;
use crate::certificates::CertificateReport;

/// The most actions that are remembered of a store.
pub(crate) const MOST_ACTIONS: usize = 100;
/// The most records in quarantine that are counted: each is read.
pub const MOST_QUARANTINED: usize = 1000;

/// Everything that is known.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Whether the steward changes nothing.
    pub read_only: bool,
    /// The stores, by name.
    pub stores: BTreeMap<String, StoreReport>,
    /// How many stores it has forgotten.
    pub forgotten: u64,
    /// The certificates that it uses or is shown.
    pub certificates: Vec<CertificateReport>,
    /// The nodes of etcd.
    pub etcd: Vec<EtcdReport>,
    /// Compactions of etcd; none if no etcd is watched.
    pub compaction: Option<CompactionReport>,
    /// Why the stores of the index cannot be listed: those that have begun since are not looked after.
    pub trouble: Option<String>,
}

/// One store.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreReport {
    /// Whether it is open; if not, it is idle, or `trouble` says why.
    pub open: bool,
    /// Whether it is left alone, because nobody uses it and there is nothing to do. What else is said is from before.
    pub idle: bool,
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
    /// Samples that ran out of attempts; none if they could not be counted.
    pub dead_letters: Option<u64>,
    /// Samples whose bytes are gone; none if they could not be counted.
    pub lost: Option<u64>,
    /// What waits for groups, for the first twenty of them; empty without an HTTP interface, which alone tells it.
    pub backlog: Vec<BacklogReport>,
    /// Records in quarantine, up to [`MOST_QUARANTINED`]; none if they could not be counted.
    pub quarantined: Option<u64>,
    /// The engine's holders, as the process saw them last that looks at them; none before the first look.
    pub holders: Option<HoldersReport>,
    /// What its audits have found since it started.
    pub audits: AuditsReport,
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

/// What the steward's own audits of a store have found; those that were asked for over HTTP are not counted. Each audit that
/// only reports finds the same again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AuditsReport {
    /// Audits that have ended.
    pub ended: u64,
    /// Audits that failed.
    pub failed: u64,
    /// Those of the ended ones that left the orphans alone because the index may be the wrong one.
    pub refused: u64,
    /// Objects that no record owned.
    pub orphans: u64,
    /// Those of them that were removed.
    pub removed: u64,
    /// Live samples whose objects were gone.
    pub lost: u64,
    /// When the last one ended, in milliseconds since 1970; none before the first.
    pub last_ended_ms: Option<u64>,
    /// What was wrong with the last one: it failed, was refused, or did not look at everything.
    pub trouble: Option<String>,
}

impl AuditsReport {
    /// Takes in how an audit ended.
    pub(crate) fn add(&mut self, audit: &Result<Audited>, now_ms: u64) {
        let found = match audit {
            Ok(found) => found,
            Err(error) => {
                self.failed += 1;
                self.trouble = Some(error.to_string());
                return;
            }
        };
        self.ended += 1;
        self.refused += u64::from(found.refused.is_some());
        self.orphans += found.orphans;
        self.removed += found.removed;
        self.lost += found.lost;
        self.last_ended_ms = Some(now_ms);
        let incomplete = (!found.complete).then(|| "it did not get through everything".to_owned());
        self.trouble = found.refused.clone().or(incomplete);
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

/// The engine's holders, and what may be lost with those that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HoldersReport {
    /// How many the engine lists.
    pub listed: u64,
    /// Those that it lists no more.
    pub missing: Vec<MissingReport>,
    /// The store's samples that miss an object: they are lost, or come back.
    pub suspected: u64,
    /// Whether samples are still looked for because a holder has gone.
    pub unsettled: bool,
}

/// A holder that the engine does not list any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingReport {
    /// Its name.
    pub name: String,
    /// When that was seen, in milliseconds since 1970.
    pub since_ms: u64,
}

impl From<&HoldersSeen> for HoldersReport {
    fn from(seen: &HoldersSeen) -> Self {
        let missing = seen.missing.iter().map(|one| MissingReport {
            name: one.name.clone(),
            since_ms: one.since_ms,
        });
        Self {
            listed: seen.listed.len() as u64,
            missing: missing.collect(),
            suspected: seen.suspected,
            unsettled: seen.unsettled,
        }
    }
}

/// The samples that wait for a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BacklogReport {
    /// The group.
    pub group: String,
    /// How many.
    pub waiting: u64,
    /// For how many seconds the oldest of them has been there, since its commit; none if that is not known.
    pub oldest_seconds: Option<u64>,
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
    /// What a node says of its storage. Its quota is what it says or, before etcd 3.6, `quota`.
    pub fn of(storage: Storage, quota: u64) -> Self {
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

/// Compactions of etcd by this steward.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompactionReport {
    /// Compactions since it started.
    pub done: u64,
    /// Those that failed.
    pub failed: u64,
    /// The revision before which etcd has forgotten everything, by this steward, another one or itself; none before the
    /// first compaction.
    pub revision: Option<u64>,
    /// When that was last seen to, in milliseconds since 1970.
    pub last_ms: Option<u64>,
    /// Why etcd is not compacted now.
    pub why_not: Option<String>,
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

    /// Takes in what was seen of the holders.
    pub(crate) fn saw_holders(&mut self, seen: &HoldersSeen) {
        let now = HoldersReport::from(seen);
        let before = self.holders.take().unwrap_or_default();
        for gone in now.missing.iter().filter(|one| !before.missing.contains(one)) {
            self.acted(
                format!("missed the holder {}, and looks for the samples on it", gone.name),
                "the engine does not list it any more",
            );
        }
        self.holders = Some(now);
    }

    /// Takes in who sweeps.
    pub(crate) fn sweeping(&mut self, sweeping: &Sweeping) {
        use tensorhold_features::Office;
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
    /// The release of Tensorhold.
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

#[cfg(test)]
mod tests {
    use tensorhold_core::{Error, ErrorKind};

    use super::*;

    #[test]
    fn audits_add_up_and_only_the_last_one_is_in_trouble() {
        let mut audits = AuditsReport::default();
        let good = Audited {
            orphans: 3,
            removed: 2,
            lost: 1,
            complete: true,
            ..Audited::default()
        };
        audits.add(&Ok(good.clone()), 7);
        let refused = Audited {
            refused: Some("the wrong index".to_owned()),
            removed: 0,
            ..good.clone()
        };
        audits.add(&Ok(refused), 8);
        assert_eq!(audits.trouble.as_deref(), Some("the wrong index"));
        audits.add(&Err(Error::new(ErrorKind::Timeout, "audit", "too late")), 9);
        let told = (audits.ended, audits.failed, audits.refused, audits.last_ended_ms);
        assert_eq!(told, (2, 1, 1, Some(8)), "one that failed has not ended: {audits:?}");
        assert_eq!((audits.orphans, audits.removed, audits.lost), (6, 2, 2));
        assert!(audits.trouble.as_deref().is_some_and(|why| why.contains("too late")));
        let part = Audited {
            complete: false,
            ..good.clone()
        };
        audits.add(&Ok(part), 10);
        assert!(audits.trouble.is_some(), "it did not look at everything");
        audits.add(&Ok(good), 11);
        assert_eq!(audits.trouble, None, "the last one was well");
    }
}
