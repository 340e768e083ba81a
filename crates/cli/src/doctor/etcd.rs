//! etcd's nodes: reachable, of a good release, with room, with a leader.

use std::sync::Arc;
use std::time::Duration;

use tensorhold_core::{ErrorKind, SystemClock};
use tensorhold_index_etcd::{NodeStatus, diagnose};

use super::Finding;
use crate::failure::reason;
use crate::http;
use crate::local::install::{GET_ETCD, trouble_with};
use crate::settings::Settings;
use crate::text::{age, bytes, shown};

const AREA: &str = "etcd";
/// A read that takes longer than this slows every operation of a store down.
const SLOW: Duration = Duration::from_millis(50);
/// What etcd takes for its quota if it is told nothing.
const USUAL_QUOTA: u64 = 2 << 30;

pub(super) async fn probe(settings: &Settings, within: Duration) -> Vec<Finding> {
    let reports = match diagnose(settings.etcd.clone(), Arc::new(SystemClock::new()), within).await {
        Ok(reports) => reports,
        Err(error) => {
            return vec![Finding::problem(
                AREA,
                reason(&error),
                "docs/settings.md has every setting",
            )];
        }
    };
    let mut findings = Vec::new();
    for report in reports {
        let at = shown(&report.endpoint);
        match report.status {
            Ok(status) => {
                let quota = quota(&report.endpoint, within.min(Duration::from_secs(2))).await;
                findings.extend(judge(&at, &status, quota, settings.etcd_is_of_up));
            }
            Err(error) => findings.push(match error.kind() {
                ErrorKind::Denied => Finding::problem(
                    AREA,
                    format!("{at} does not let us in: {}", reason(&error)),
                    "check TENSORHOLD_ETCD_USER, TENSORHOLD_ETCD_PASSWORD and the user's role (docs/security.md)",
                ),
                _ => Finding::problem(
                    AREA,
                    format!("{at} does not answer: {}", reason(&error)),
                    settings.advice_if_unreachable("--etcd, or TENSORHOLD_ETCD"),
                ),
            }),
        }
    }
    findings.extend(login(settings));
    findings
}

fn judge(at: &str, status: &NodeStatus, quota: Option<u64>, for_development: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let role = match (status.leads, status.has_leader) {
        (true, _) => "leads",
        (false, true) => "follows",
        (false, false) => "knows no leader",
    };
    let limit = quota.map(|quota| format!(" of {}", bytes(quota))).unwrap_or_default();
    let summary = format!(
        "{at}: {}, {role}, holds {}{limit}, a read takes {}",
        shown(&status.version),
        bytes(status.database_bytes),
        age(status.read_took)
    );
    findings.push(match status.has_leader {
        true => Finding::ok(AREA, summary),
        false => Finding::problem(
            AREA,
            summary,
            "a majority of etcd's nodes must run and reach each other",
        ),
    });
    if let Some(why) = trouble_with(&status.version) {
        let old = format!("{at}: {} is older than 3.5.8: {why}", shown(&status.version));
        findings.push(match for_development {
            true => Finding::note(
                AREA,
                old,
                format!("for a try it will do. For more, {GET_ETCD}; then `tensorhold down` and `tensorhold up`, which takes one in PATH first"),
            ),
            false => Finding::problem(
                AREA,
                old,
                format!("{GET_ETCD}. If `tensorhold up --dir` has started this one, name its folder: --dir"),
            ),
        });
    }
    if status.full {
        findings.push(Finding::problem(
            AREA,
            format!("{at}: its quota is used up (NOSPACE): nothing can be put, taken or acknowledged"),
            "compact, defragment and disarm the alarm: docs/etcd-restore.md, \"Full\"",
        ));
    }
    if status.corrupt {
        findings.push(Finding::problem(
            AREA,
            format!("{at}: etcd has found corrupt data (CORRUPT)"),
            "replace the member that is corrupt: etcd's documentation, \"Data corruption\"",
        ));
    }
    let quota_or_usual = quota.unwrap_or(USUAL_QUOTA);
    if !status.full && status.database_bytes > quota_or_usual / 5 * 4 {
        findings.push(Finding::note(
            AREA,
            format!(
                "{at}: {} of {} are used",
                bytes(status.database_bytes),
                bytes(quota_or_usual)
            ),
            "turn automatic compaction on, defragment, or raise --quota-backend-bytes: docs/etcd-restore.md",
        ));
    }
    if status.read_took > SLOW {
        findings.push(Finding::note(
            AREA,
            format!("{at}: a read took {}", age(status.read_took)),
            "put etcd on a fast disk and near the processes that use it",
        ));
    }
    findings
}

/// How we log in, and whether the connection is encrypted.
fn login(settings: &Settings) -> Option<Finding> {
    let plain = settings
        .etcd
        .endpoints
        .iter()
        .any(|endpoint| endpoint.starts_with("http://"));
    let remote = settings.etcd.endpoints.iter().any(|endpoint| {
        let host = endpoint.split("://").nth(1).unwrap_or_default();
        !(host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]"))
    });
    match (&settings.etcd.user, plain && remote) {
        (Some(user), false) => Some(Finding::ok(AREA, format!("logged in as {}", shown(user)))),
        (Some(user), true) => Some(Finding::note(
            AREA,
            format!(
                "logged in as {}, over http: hosts on the way can read the password and the records",
                shown(user)
            ),
            "use https endpoints (docs/security.md)",
        )),
        (None, true) => Some(Finding::note(
            AREA,
            "neither TLS nor a login protects the index: every program that reaches etcd can change it",
            "docs/security.md says how both are turned on",
        )),
        (None, false) => None,
    }
}

/// The quota, which only the metrics of etcd 3.5 tell; they are asked where no certificates are needed for it.
async fn quota(endpoint: &str, within: Duration) -> Option<u64> {
    if !endpoint.starts_with("http://") {
        return None;
    }
    let url = format!("{endpoint}/metrics");
    let asked = tokio::task::spawn_blocking(move || http::get(&url, within)).await;
    let reply = asked.ok()?.ok()?;
    let line = reply
        .body
        .lines()
        .find_map(|line| line.strip_prefix("etcd_server_quota_backend_bytes "))?;
    let quota: f64 = line.trim().parse().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a size, checked to be positive"
    )]
    (quota > 0.0).then_some(quota as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Level;

    #[test]
    fn the_etcd_of_up_is_no_problem_and_its_trouble_is_told() {
        let status = NodeStatus {
            version: "3.5.1".to_owned(),
            database_bytes: 1 << 20,
            used_bytes: 1 << 20,
            leads: true,
            has_leader: true,
            full: false,
            corrupt: false,
            read_took: Duration::from_millis(1),
            schema: None,
        };
        let told = |of_up| {
            judge("http://127.0.0.1:7", &status, None, of_up)
                .pop()
                .expect("a finding")
        };
        let (ours, other) = (told(true), told(false));
        assert_eq!((ours.level, other.level), (Level::Note, Level::Problem));
        assert!(ours.finding.contains("may lose committed changes"), "{}", ours.finding);
    }
}
