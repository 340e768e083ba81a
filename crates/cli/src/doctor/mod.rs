//! `doctor`: is everything there that a store needs, and is it set up as it should be?
//!
//! Each probe has the command's deadline and they run side by side, so a server that hangs costs no other probe its time.
//! A probe never fails: what it cannot find out is a finding. It changes no
//! sample; an index that is empty gets its version, its epoch and its clock, as from any process.
//!
//! | level | meaning |
//! |---|---|
//! | ok | as it should be |
//! | note | worth knowing; works |
//! | problem | something does not work, or will not; with what to do. Exit code 1 |

mod etcd;
mod host;
mod index;
mod master;

use std::time::Duration;

use comfy_table::Color;
use serde::Serialize;

use crate::commands::Context;
use crate::failure::{Failure, WRONG};
use crate::io::Progress;
use crate::output::{Answer, Output, draw, object, table, word};
use crate::settings::{Settings, Source};
use crate::text::{count, shown};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    Ok,
    Note,
    Problem,
}

/// What a probe has found out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    area: &'static str,
    level: Level,
    finding: String,
    #[serde(rename = "do")]
    to_do: Option<String>,
}

impl Finding {
    fn ok(area: &'static str, finding: impl Into<String>) -> Self {
        Self {
            area,
            level: Level::Ok,
            finding: finding.into(),
            to_do: None,
        }
    }

    fn note(area: &'static str, finding: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self {
            level: Level::Note,
            to_do: Some(to_do.into()),
            ..Self::ok(area, finding)
        }
    }

    fn problem(area: &'static str, finding: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self {
            level: Level::Problem,
            ..Self::note(area, finding, to_do)
        }
    }
}

pub(crate) async fn run(
    settings: Settings,
    context: &Context<'_>,
    within: Duration,
    progress: &mut Progress<'_>,
) -> Result<Answer, Failure> {
    let probes = async {
        tokio::join!(
            host::versions(context.host, within),
            etcd::probe(&settings, within),
            index::probe(&settings, context.now_ms, within),
            master::probe(&settings, within),
            host::kernel(&settings),
        )
    };
    let (versions, etcd, index, master, kernel) = progress.wait("looking", probes).await;
    let mut findings = vec![source(&settings)];
    for part in [versions, etcd, index, master, kernel] {
        findings.extend(part);
    }
    Ok(answer(&findings, context.output))
}

fn source(settings: &Settings) -> Finding {
    match &settings.source {
        Source::Given => Finding::ok(
            "settings",
            "addresses are given by flags, variables or a file of settings",
        ),
        Source::Up(folder) => Finding::ok(
            "settings",
            format!("the cluster of `tensorhold up` in {}", folder.display()),
        ),
        Source::Defaults => Finding::note(
            "settings",
            "nothing names an etcd or a master: the usual ports of this host are asked",
            "name yours (--etcd and --master, or TENSORHOLD_ETCD and TENSORHOLD_MASTER), or `tensorhold up`",
        ),
    }
}

fn answer(findings: &[Finding], output: Output) -> Answer {
    let mut rows = table(output, &["", "area", "finding"]);
    for finding in findings {
        let level = match finding.level {
            Level::Ok => word("ok", Color::Green),
            Level::Note => word("note", Color::Yellow),
            Level::Problem => word("problem", Color::Red),
        };
        rows.add_row([level, finding.area.into(), shown(&finding.finding).into()]);
        if let Some(to_do) = &finding.to_do {
            rows.add_row([
                "".into(),
                "".into(),
                comfy_table::Cell::new(format!("  → {}", shown(to_do))),
            ]);
        }
    }
    let of = |level| u64::try_from(findings.iter().filter(|finding| finding.level == level).count()).unwrap_or(0);
    let (problems, notes) = (of(Level::Problem), of(Level::Note));
    let summary = match (problems, notes) {
        (0, 0) => "all is well".to_owned(),
        _ => format!(
            "{}, {}",
            count(problems, "problem", "problems"),
            count(notes, "note", "notes")
        ),
    };
    let value = object!("findings": findings, "problems": problems, "notes": notes);
    let answer = Answer::new(value, format!("{}\n{summary}\n", draw(&rows)));
    if problems > 0 { answer.with_code(WRONG) } else { answer }
}
