//! What the steward reports, as Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::report::{BacklogReport, CompactionReport, Report, StoreReport};

/// A value of a store.
type Value = fn(&StoreReport) -> Option<u64>;

/// Name, type, meaning, value.
const OF_A_STORE: &[(&str, &str, &str, Value)] = &[
    (
        "tensorhold_steward_store_open",
        "gauge",
        "Whether the steward has the store open.",
        |s| (!s.idle).then_some(s.open.into()),
    ),
    (
        "tensorhold_steward_on_duty",
        "gauge",
        "Whether this steward sweeps the store.",
        |s| (!s.idle).then_some(s.on_duty.into()),
    ),
    (
        "tensorhold_steward_elected",
        "gauge",
        "Whether any steward holds the store's office.",
        |s| (!s.idle).then_some(s.steward.is_some().into()),
    ),
    (
        "tensorhold_steward_sweeps_total",
        "counter",
        "Sweeps of this steward.",
        |s| Some(s.sweeps),
    ),
    (
        "tensorhold_steward_failed_sweeps_total",
        "counter",
        "Sweeps of this steward that failed.",
        |s| Some(s.failed_sweeps),
    ),
    (
        "tensorhold_steward_leases_taken_back_total",
        "counter",
        "Leases that this steward took back.",
        |s| Some(s.taken_back.leases),
    ),
    (
        "tensorhold_steward_reservations_taken_back_total",
        "counter",
        "Reservations that this steward gave up.",
        |s| Some(s.taken_back.reservations),
    ),
    (
        "tensorhold_steward_sessions_cleared_total",
        "counter",
        "Ended sessions that this steward cleared.",
        |s| Some(s.taken_back.sessions),
    ),
    (
        "tensorhold_steward_freed_total",
        "counter",
        "Samples that this steward freed.",
        |s| Some(s.freed),
    ),
    (
        "tensorhold_steward_failed_frees_total",
        "counter",
        "Frees of this steward that failed.",
        |s| Some(s.failed_frees),
    ),
    (
        "tensorhold_steward_users",
        "gauge",
        "Processes that have the store open, stewards aside.",
        |s| s.users,
    ),
    ("tensorhold_steward_budget_bytes", "gauge", "The store's budget.", |s| {
        s.budget.as_ref().map(|b| b.bytes)
    }),
    (
        "tensorhold_steward_budget_free_bytes",
        "gauge",
        "What no sample was paid with.",
        |s| s.budget.as_ref().map(|b| b.free),
    ),
    (
        "tensorhold_steward_budget_waiting",
        "gauge",
        "Processes that wait for quota.",
        |s| s.budget.as_ref().map(|b| b.waiting),
    ),
    (
        "tensorhold_steward_dead_letters",
        "gauge",
        "Samples that ran out of attempts.",
        |s| s.dead_letters,
    ),
    (
        "tensorhold_steward_quarantined_records",
        "gauge",
        "Records in quarantine; at most 1000 are counted.",
        |s| s.quarantined,
    ),
    (
        "tensorhold_steward_suspected_samples",
        "gauge",
        "Samples that miss an object since a holder has gone: they are lost, or come back.",
        |s| s.holders.as_ref().map(|holders| holders.suspected),
    ),
    (
        "tensorhold_steward_audits_total",
        "counter",
        "Audits by this steward that have ended.",
        |s| Some(s.audits.ended),
    ),
    (
        "tensorhold_steward_failed_audits_total",
        "counter",
        "Audits by this steward that failed.",
        |s| Some(s.audits.failed),
    ),
    (
        "tensorhold_steward_refused_audits_total",
        "counter",
        "Audits that left orphans alone because the index may be the wrong one.",
        |s| Some(s.audits.refused),
    ),
    (
        "tensorhold_steward_audit_trouble",
        "gauge",
        "Whether the last audit failed, was refused, or did not get through everything.",
        |s| Some(s.audits.trouble.is_some().into()),
    ),
    (
        "tensorhold_steward_last_audit_end_seconds",
        "gauge",
        "When the last audit by this steward ended, in seconds since 1970.",
        |s| s.audits.last_ended_ms.map(|at| at / 1000),
    ),
    (
        "tensorhold_steward_orphans_found_total",
        "counter",
        "Objects without a record that audits found; one that is left is found again.",
        |s| Some(s.audits.orphans),
    ),
    (
        "tensorhold_steward_orphans_removed_total",
        "counter",
        "Those of them that were removed.",
        |s| Some(s.audits.removed),
    ),
    (
        "tensorhold_steward_losses_found_total",
        "counter",
        "Live samples without their objects that audits found; one that is not settled is found again.",
        |s| Some(s.audits.lost),
    ),
];

/// The text.
pub(crate) fn text(report: &Report) -> String {
    let mut text = String::new();
    let shown = |(_, store): &(&String, &StoreReport)| !store.idle || has_something(store);
    for (name, kind, help, value) in OF_A_STORE {
        head(&mut text, name, kind, help);
        for (store, report) in report.stores.iter().filter(shown) {
            if let Some(value) = value(report) {
                line(&mut text, name, "store", store, value);
            }
        }
    }
    let name = "tensorhold_steward_stores";
    head(
        &mut text,
        name,
        "gauge",
        "Stores that this steward looks after. Of idle ones hardly more is told.",
    );
    let count = |is: fn(&StoreReport) -> bool| report.stores.values().filter(|store| is(store)).count() as u64;
    line(&mut text, name, "state", "open", count(|store| store.open));
    line(&mut text, name, "state", "idle", count(|store| store.idle));
    line(
        &mut text,
        name,
        "state",
        "closed",
        count(|store| !store.open && !store.idle),
    );
    let name = "tensorhold_steward_forgotten_total";
    head(
        &mut text,
        name,
        "counter",
        "Stores that this steward has forgotten: unused for long enough, and empty.",
    );
    writeln!(text, "{name} {}", report.forgotten).unwrap_or_default();
    let name = "tensorhold_certificate_end_seconds";
    head(
        &mut text,
        name,
        "gauge",
        "When a certificate that the steward uses or is shown ends, in seconds since 1970.",
    );
    for certificate in &report.certificates {
        if let Some(ends) = certificate.ends {
            let (what, at) = (certificate.what, escaped(&certificate.at));
            writeln!(text, "{name}{{certificate=\"{what}\",at=\"{at}\"}} {ends}").unwrap_or_default();
        }
    }
    missing_holders(&mut text, report);
    backlogs(&mut text, report);
    let name = "tensorhold_etcd_up";
    head(
        &mut text,
        name,
        "gauge",
        "Whether an etcd node answers and has found no damaged data.",
    );
    for node in &report.etcd {
        line(
            &mut text,
            name,
            "endpoint",
            &node.endpoint,
            node.trouble.is_none().into(),
        );
    }
    // A node in trouble has no figures.
    let nodes = report.etcd.iter().filter(|node| node.trouble.is_none());
    for (name, help, value) in [
        ("tensorhold_etcd_file_bytes", "The size of an etcd node's file.", 0),
        ("tensorhold_etcd_used_bytes", "How much of that is used.", 1),
        ("tensorhold_etcd_quota_bytes", "Its quota.", 2),
        (
            "tensorhold_etcd_full",
            "Whether etcd refuses writes because it is full.",
            3,
        ),
    ] {
        head(&mut text, name, "gauge", help);
        for node in nodes.clone() {
            let values = [node.bytes, node.used, node.quota, node.full.into()];
            line(&mut text, name, "endpoint", &node.endpoint, values[value]);
        }
    }
    if let Some(compaction) = &report.compaction {
        compactions(&mut text, compaction);
    }
    text
}

/// Whether an idle store has something that is not right.
fn has_something(store: &StoreReport) -> bool {
    let some = |count: Option<u64>| count.is_some_and(|count| count > 0);
    some(store.dead_letters) || some(store.quarantined) || store.audits.trouble.is_some()
}

/// They are the engine's, whose holders all stores share: each is told once, with the time since which a store misses it.
fn missing_holders(text: &mut String, report: &Report) {
    let name = "tensorhold_steward_missing_holder_since_seconds";
    let help = "Since when the engine does not list this holder any more, in seconds since 1970; told for an hour.";
    head(text, name, "gauge", help);
    let mut missing: BTreeMap<&str, u64> = BTreeMap::new();
    let holders = report.stores.values().filter_map(|store| store.holders.as_ref());
    for holder in holders.flat_map(|holders| &holders.missing) {
        let since = missing.entry(&holder.name).or_insert(holder.since_ms);
        *since = holder.since_ms.min(*since);
    }
    for (holder, since_ms) in missing {
        line(text, name, "holder", holder, since_ms / 1000);
    }
}

/// They are of a group.
fn backlogs(text: &mut String, report: &Report) {
    type Of = fn(&BacklogReport) -> Option<u64>;
    let families: [(&str, &str, Of); 2] = [
        (
            "tensorhold_steward_backlog_samples",
            "Samples that wait for a group, of the first 20 groups.",
            |of| Some(of.waiting),
        ),
        (
            "tensorhold_steward_backlog_oldest_seconds",
            "For how long the oldest of them has been there, since its commit.",
            |of| of.oldest_seconds,
        ),
    ];
    for (name, help, value) in families {
        head(text, name, "gauge", help);
        for (store, report) in &report.stores {
            for one in &report.backlog {
                if let Some(value) = value(one) {
                    let (store, group) = (escaped(store), escaped(&one.group));
                    writeln!(text, "{name}{{store=\"{store}\",group=\"{group}\"}} {value}").unwrap_or_default();
                }
            }
        }
    }
}

/// They are of etcd as a whole, so they have no label.
fn compactions(text: &mut String, told: &CompactionReport) {
    for (name, kind, help, value) in [
        (
            "tensorhold_etcd_compactions_total",
            "counter",
            "Times that this steward saw to it that etcd is compacted.",
            Some(told.done),
        ),
        (
            "tensorhold_etcd_failed_compactions_total",
            "counter",
            "Times that this steward could not see to it, or could not tell whether it may.",
            Some(told.failed),
        ),
        (
            "tensorhold_etcd_compacted_revision",
            "gauge",
            "The revision before which etcd has forgotten everything.",
            told.revision,
        ),
        (
            "tensorhold_etcd_last_compaction_seconds",
            "gauge",
            "When this steward last saw to that, in seconds since 1970.",
            told.last_ms.map(|at| at / 1000),
        ),
    ] {
        head(text, name, kind, help);
        if let Some(value) = value {
            writeln!(text, "{name} {value}").unwrap_or_default();
        }
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").unwrap_or_default();
}

fn line(text: &mut String, name: &str, label: &str, of: &str, value: u64) {
    writeln!(text, "{name}{{{label}=\"{}\"}} {value}", escaped(of)).unwrap_or_default();
}

/// The value of a label.
fn escaped(of: &str) -> String {
    of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{EtcdReport, HoldersReport, MissingReport};

    #[test]
    fn every_value_has_its_line() {
        let mut report = Report::default();
        let store = StoreReport {
            on_duty: true,
            users: Some(3),
            backlog: vec![
                BacklogReport {
                    group: "a".to_owned(),
                    waiting: 4,
                    oldest_seconds: Some(61),
                },
                BacklogReport {
                    group: "b".to_owned(),
                    waiting: 1,
                    oldest_seconds: None,
                },
            ],
            ..StoreReport::default()
        };
        report.stores.insert("run/\"7\"".to_owned(), store);
        for (store, since_ms) in [("a", 9_000), ("b", 7_500)] {
            let missing = MissingReport {
                name: "h:1".to_owned(),
                since_ms,
            };
            let holders = HoldersReport {
                missing: vec![missing],
                suspected: 5,
                ..HoldersReport::default()
            };
            let store_report = StoreReport {
                holders: Some(holders),
                ..StoreReport::default()
            };
            report.stores.insert(store.to_owned(), store_report);
        }
        report.etcd.push(EtcdReport {
            endpoint: "http://a".to_owned(),
            bytes: 7,
            ..EtcdReport::default()
        });
        report.etcd.push(EtcdReport {
            endpoint: "http://b".to_owned(),
            trouble: Some("silent".to_owned()),
            ..EtcdReport::default()
        });
        report.compaction = Some(CompactionReport {
            done: 3,
            ..CompactionReport::default()
        });
        let text = text(&report);
        assert!(text.contains("\ntensorhold_etcd_compactions_total 3\n"), "{text}");
        let missing = "tensorhold_steward_missing_holder_since_seconds{holder=\"h:1\"} 7\n";
        assert_eq!(text.matches(missing).count(), 1, "once for all stores: {text}");
        assert!(
            text.contains("tensorhold_steward_suspected_samples{store=\"a\"} 5\n"),
            "{text}"
        );
        assert!(
            !text.contains("\ntensorhold_etcd_compacted_revision "),
            "none is known: {text}"
        );
        assert!(
            text.contains("tensorhold_steward_on_duty{store=\"run/\\\"7\\\"\"} 1\n"),
            "{text}"
        );
        assert!(
            text.contains("tensorhold_steward_users{store=\"run/\\\"7\\\"\"} 3\n"),
            "{text}"
        );
        for line in [
            "tensorhold_steward_backlog_samples{store=\"run/\\\"7\\\"\",group=\"a\"} 4\n",
            "tensorhold_steward_backlog_samples{store=\"run/\\\"7\\\"\",group=\"b\"} 1\n",
            "tensorhold_steward_backlog_oldest_seconds{store=\"run/\\\"7\\\"\",group=\"a\"} 61\n",
        ] {
            assert!(text.contains(line), "{line} is missing: {text}");
        }
        assert_eq!(
            text.matches("backlog_oldest_seconds{").count(),
            1,
            "an age that is not known is not told"
        );
        assert!(
            text.contains("tensorhold_etcd_file_bytes{endpoint=\"http://a\"} 7\n"),
            "{text}"
        );
        assert!(text.contains("tensorhold_etcd_up{endpoint=\"http://a\"} 1\n"), "{text}");
        assert!(text.contains("tensorhold_etcd_up{endpoint=\"http://b\"} 0\n"), "{text}");
        assert!(
            !text.contains("tensorhold_etcd_file_bytes{endpoint=\"http://b\"}"),
            "nothing is known of a silent node: {text}"
        );
        assert!(
            text.contains("tensorhold_steward_failed_audits_total{store=\"run/\\\"7\\\"\"} 0\n"),
            "a counter is there before it counts: {text}"
        );
        assert!(
            !text.contains("tensorhold_steward_dead_letters{") && !text.contains("last_audit_end_seconds{"),
            "what was not looked at is not told: {text}"
        );
        assert!(
            !text.contains("tensorhold_steward_budget_bytes{"),
            "a store without a budget has none: {text}"
        );
    }
}
