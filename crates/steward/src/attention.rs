//! What an operator should see to, as far as one look tells: the page, `tensorhold status` and `tensorhold top` show the same
//! list. Each entry names the alert of `ops/prometheus` that fires for it, if it lasts, and so the runbook's entry that says
//! what to do.
//!
//! A steward evaluates no rules: what only shows over time (slow frees, a rate of failures) is Prometheus'. What is not known
//! is not listed.

use serde::Serialize;

use crate::report::{EtcdReport, StoreReport};

/// Something that an operator should see to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attention {
    /// The store; none for what all stores share.
    pub store: Option<String>,
    /// `critical` or `warning`, as the alert's.
    pub level: &'static str,
    /// What is so.
    pub what: String,
    /// The alert, whose entry in the runbook says what to do.
    pub alert: &'static str,
    /// That entry.
    pub runbook: String,
}

const CRITICAL: &str = "critical";
const WARNING: &str = "warning";

impl Attention {
    fn new(store: Option<&str>, level: &'static str, alert: &'static str, what: impl Into<String>) -> Self {
        Self {
            store: store.map(str::to_owned),
            level,
            what: what.into(),
            alert,
            runbook: format!("docs/runbook.md#{}", alert.to_lowercase()),
        }
    }
}

/// What one look showed of a store. What is not known is none, or zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Samples whose bytes are gone.
    pub lost: u64,
    /// Samples that ran out of attempts.
    pub dead: u64,
    /// Records that no release can read.
    pub quarantined: u64,
    /// The budget, what is free of it, and how many processes wait for some.
    pub budget: Option<(u64, u64, u64)>,
    /// Whether processes have it open and none holds an office.
    pub unswept: bool,
}

/// What should be seen to in a store, what is worst first.
pub fn of_store(store: &str, seen: &Seen) -> Vec<Attention> {
    let count = |number: u64, one: &str, many: &str| format!("{number} {}", if number == 1 { one } else { many });
    let mut all = Vec::new();
    let mut add = |level, alert, what: String| all.push(Attention::new(Some(store), level, alert, what));
    if seen.lost > 0 {
        let what = count(seen.lost, "sample is lost", "samples are lost");
        add(
            CRITICAL,
            "TensorholdSamplesLost",
            format!("{what}: the engine does not have the bytes any more"),
        );
    }
    if seen.unswept {
        let what = "nobody sweeps it: leases and reservations do not expire";
        add(CRITICAL, "TensorholdNobodySweeps", what.to_owned());
    }
    if let Some((bytes, free, waiting)) = seen
        .budget
        .filter(|(bytes, free, waiting)| *waiting > 0 && *free < bytes / 10)
    {
        let percent = 100 * u128::from(bytes.saturating_sub(free)) / u128::from(bytes.max(1));
        let who = count(waiting, "process waits", "processes wait");
        add(
            WARNING,
            "TensorholdBudgetExhausted",
            format!("{who} for budget, {percent} % of which is used"),
        );
    }
    if seen.dead > 0 {
        let what = count(seen.dead, "dead letter", "dead letters");
        add(
            WARNING,
            "TensorholdDeadLetters",
            format!("{what}: groups ran out of attempts"),
        );
    }
    if seen.quarantined > 0 {
        let what = count(seen.quarantined, "record", "records");
        add(
            WARNING,
            "TensorholdRecordsQuarantined",
            format!("{what} in quarantine: no release can read them"),
        );
    }
    all
}

/// What should be seen to in etcd, by what its nodes say.
pub fn of_etcd<'a>(nodes: impl IntoIterator<Item = &'a EtcdReport>, warn_full: f64) -> Vec<Attention> {
    let mut all = Vec::new();
    for node in nodes {
        let at = &node.endpoint;
        let mut add = |level, alert, what: String| all.push(Attention::new(None, level, alert, what));
        #[expect(clippy::cast_precision_loss, reason = "a part of the whole")]
        let part = node.bytes as f64 / node.quota.max(1) as f64;
        if node.full {
            let what = format!("etcd at {at} is full and refuses writes");
            add(CRITICAL, "TensorholdEtcdFull", what);
        } else if node.quota > 0 && part >= warn_full {
            let what = format!("the file of etcd at {at} is at {:.0} % of its quota", 100.0 * part);
            add(WARNING, "TensorholdEtcdNearQuota", what);
        }
        if let Some(trouble) = &node.trouble {
            add(CRITICAL, "TensorholdEtcdNodeSilent", format!("etcd at {at}: {trouble}"));
        }
    }
    all
}

/// What should be seen to in a store that a steward looks after.
pub(crate) fn of_report(store: &str, report: &StoreReport) -> Vec<Attention> {
    let one = |alert, what: String| vec![Attention::new(Some(store), WARNING, alert, what)];
    if !report.open {
        // Without trouble it was not tried yet.
        let trouble = report.trouble.as_ref();
        let closed = trouble.map(|why| one("TensorholdStewardStoreClosed", format!("it cannot be opened: {why}")));
        return closed.unwrap_or_default();
    }
    let seen = Seen {
        lost: report.lost.unwrap_or(0),
        dead: report.dead_letters.unwrap_or(0),
        quarantined: report.quarantined.unwrap_or(0),
        budget: report.budget.as_ref().map(|of| (of.bytes, of.free, of.waiting)),
        unswept: !report.on_duty
            && report.steward.is_none()
            && report.sweepers.is_empty()
            && report.users.is_some_and(|users| users > 0),
    };
    let mut all = of_store(store, &seen);
    if let Some(why) = &report.trouble {
        all.extend(one("TensorholdSweepsFailing", format!("the last sweep failed: {why}")));
    }
    if let Some(why) = &report.audits.trouble {
        all.extend(one(
            "TensorholdAuditTrouble",
            format!("the last audit was in trouble: {why}"),
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{AuditsReport, BudgetReport};

    #[test]
    fn what_is_well_or_not_known_is_not_listed() {
        assert_eq!(of_store("s", &Seen::default()), []);
        let open = StoreReport {
            open: true,
            on_duty: true,
            users: Some(3),
            budget: Some(BudgetReport {
                bytes: 100,
                free: 5,
                waiting: 0,
                first_waits_for: None,
            }),
            ..StoreReport::default()
        };
        assert_eq!(of_report("s", &open), [], "a budget that is used is there for that");
        assert_eq!(of_report("s", &StoreReport::default()), [], "it was not tried yet");
        let node = EtcdReport {
            bytes: 60,
            quota: 100,
            ..EtcdReport::default()
        };
        assert_eq!(of_etcd([&node], 0.7), []);
    }

    #[test]
    fn each_trouble_is_listed_the_worst_first_and_the_runbook_knows_it() {
        let report = StoreReport {
            open: true,
            users: Some(1),
            lost: Some(1),
            dead_letters: Some(2),
            quarantined: Some(3),
            trouble: Some("etcd was away".to_owned()),
            budget: Some(BudgetReport {
                bytes: 200,
                free: 1,
                waiting: 2,
                first_waits_for: Some(9),
            }),
            audits: AuditsReport {
                trouble: Some("the wrong index".to_owned()),
                ..AuditsReport::default()
            },
            ..StoreReport::default()
        };
        let closed = StoreReport {
            trouble: Some("no engine".to_owned()),
            ..StoreReport::default()
        };
        let nodes = [
            (71, false, None),
            (100, true, None),
            (0, false, Some("silent".to_owned())),
        ];
        let nodes = nodes.map(|(bytes, full, trouble)| EtcdReport {
            endpoint: "http://a".to_owned(),
            bytes,
            quota: 100,
            full,
            trouble,
            ..EtcdReport::default()
        });
        let mut all = of_report("s", &report);
        let levels: Vec<_> = all.iter().map(|one| one.level).collect();
        assert!(levels.is_sorted(), "the worst first: {levels:?}");
        assert!(all[2].what.contains("99 %"), "{:?}", all[2]);
        all.extend(of_report("s", &closed));
        all.extend(of_etcd(&nodes, 0.7));
        let told: Vec<_> = all
            .iter()
            .map(|one| one.alert.trim_start_matches("Tensorhold"))
            .collect();
        assert_eq!(
            told,
            [
                "SamplesLost",
                "NobodySweeps",
                "BudgetExhausted",
                "DeadLetters",
                "RecordsQuarantined",
                "SweepsFailing",
                "AuditTrouble",
                "StewardStoreClosed",
                "EtcdNearQuota",
                "EtcdFull",
                "EtcdNodeSilent",
            ]
        );
        let book = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runbook.md");
        let book = std::fs::read_to_string(book).expect("the runbook");
        let rules = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ops/prometheus/rules.yml");
        let rules = std::fs::read_to_string(rules).expect("the rules");
        for one in &all {
            assert!(
                book.contains(&format!("\n## {}\n", one.alert)),
                "the runbook has no {}",
                one.alert
            );
            let rule = rules.split("- alert: ").find(|rule| rule.starts_with(one.alert));
            let rule = rule.unwrap_or_else(|| panic!("no rule {}", one.alert));
            assert!(
                rule.contains(&format!("severity: {}", one.level)),
                "{} is as grave as its alert",
                one.alert
            );
        }
    }
}
