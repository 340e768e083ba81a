//! What a run says in the end: tables for people, one JSON object for scripts.

use std::ops::Range;

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::Options;
use crate::conductor::{Ended, Moment};
use crate::latency::{Latencies, Step, Summary, add};
use crate::ledger::Ledger;

/// One thing that must hold, and what was seen.
#[derive(Serialize)]
struct Claim {
    claim: &'static str,
    seen: String,
    holds: bool,
}

/// What a run found.
pub(crate) struct Report {
    title: String,
    claims: Vec<Claim>,
    latencies: Vec<(Step, Summary)>,
    windows: Vec<Value>,
    figures: Map<String, Value>,
}

fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

impl Report {
    pub(crate) fn of(
        options: &Options,
        (live, sessions): (u64, usize),
        start_us: u64,
        ended: &Ended,
        ledger: &Ledger,
        moments: &[Moment],
        left: Vec<String>,
    ) -> Result<Self> {
        let (counts, verdict) = (ledger.counts, ledger.verdict());
        let crashes = ended.killed > 0;
        let claim = |claim, seen, holds| Claim { claim, seen, holds };
        let mut claims = vec![
            claim(
                "every sample that was due was put",
                format!(
                    "{} of {}; {} were in the hands of a producer that died",
                    counts.put,
                    options.samples(),
                    verdict.unknown
                ),
                verdict.never_begun == 0 && (crashes || verdict.unknown == 0),
            ),
            claim(
                "every sample that was put was acknowledged by every group",
                format!("{} lost", verdict.lost),
                verdict.lost == 0,
            ),
            claim(
                "no group acknowledged a sample twice",
                format!("{} times", verdict.acked_again),
                verdict.acked_again == 0,
            ),
            claim(
                "no sample was delivered twice, unless a consumer died with it",
                format!(
                    "{} times; and {} after a death",
                    verdict.delivered_again_unexplained, verdict.delivered_again
                ),
                verdict.delivered_again_unexplained == 0,
            ),
            claim(
                "every sample was freed",
                format!("{} of {}", counts.freed, counts.put),
                crashes || verdict.not_freed == 0,
            ),
            claim(
                "nothing is left in the index but live samples put before",
                format!("{} keys left {:?}", left.len(), left.iter().take(3).collect::<Vec<_>>()),
                left.is_empty(),
            ),
        ];
        if let Some(bytes) = options.budget {
            let free: u64 = ended.budgets.iter().map(|budget| budget.free).sum();
            let (held, all) = (live * options.bytes, bytes * u64::from(options.clusters));
            claims.push(claim(
                "the quota adds up",
                format!("{free} bytes free and {held} held, of {all}"),
                free + held == all,
            ));
        }
        let mut report = Self {
            title: format!("{live} live samples, {sessions} idle sessions"),
            claims,
            latencies: together(ended, 0..u64::MAX)?,
            windows: windows(options, ended, moments)?,
            figures: Map::new(),
        };
        // Of an hour, its first and its last ten minutes.
        let sixth = (options.windows() / 6).max(1);
        for (name, windows) in [
            ("first_sixth", 0..sixth),
            ("last_sixth", options.windows() - sixth..u64::MAX),
        ] {
            let latencies = latencies_json(&together(ended, windows)?)?;
            report.figures.insert(name.to_owned(), latencies);
        }
        let put_seconds = ended.put_by_us.saturating_sub(start_us) as f64 / 1e6;
        let samples = counts.put.max(1) as f64;
        for (name, figure) in [
            ("rate", options.rate),
            ("rate_reached", counts.put as f64 / put_seconds),
            ("put_seconds", put_seconds),
            ("clients_cpu_us_per_sample", ended.cpu_us / samples),
        ] {
            report.figures.insert(name.to_owned(), rounded(figure).into());
        }
        if let Some(bytes) = options.budget {
            report.figures.insert("budget".to_owned(), bytes.into());
        }
        if let (Some(first), Some(last)) = (moments.first(), moments.last()) {
            for (name, of) in [
                ("etcd_cpu_us_per_sample", last.etcd.cpu_us - first.etcd.cpu_us),
                ("etcd_requests_per_sample", last.etcd.requests - first.etcd.requests),
                (
                    "etcd_keep_alives_per_sample",
                    last.etcd.keep_alives - first.etcd.keep_alives,
                ),
                ("etcd_fsyncs_per_sample", last.etcd.fsyncs - first.etcd.fsyncs),
                (
                    "etcd_received_bytes_per_sample",
                    last.etcd.received_bytes - first.etcd.received_bytes,
                ),
                (
                    "etcd_sent_bytes_per_sample",
                    last.etcd.sent_bytes - first.etcd.sent_bytes,
                ),
                ("etcd_log_bytes_per_sample", last.etcd.log_bytes - first.etcd.log_bytes),
            ] {
                report.figures.insert(name.to_owned(), rounded(of / samples).into());
            }
            let requests = first.requests.iter().zip(&last.requests);
            let requests: Vec<f64> = requests.map(|(first, last)| last - first).collect();
            report
                .figures
                .insert("requests_of_clusters".to_owned(), requests.into());
            // With the live samples in it, and before the first sample of the run.
            for (name, figure) in [
                ("etcd_db_in_use_bytes_before", first.etcd.db_in_use_bytes),
                ("etcd_rss_bytes_before", first.etcd.rss_bytes),
                ("settled_seconds", last.at_seconds - first.at_seconds),
            ] {
                report.figures.insert(name.to_owned(), rounded(figure).into());
            }
            let most = |of: fn(&Moment) -> f64| moments.iter().map(of).fold(0.0, f64::max);
            report.figures.insert(
                "etcd_db_bytes_most".to_owned(),
                most(|moment| moment.etcd.db_bytes).into(),
            );
            report.figures.insert(
                "etcd_rss_bytes_most".to_owned(),
                most(|moment| moment.etcd.rss_bytes).into(),
            );
        }
        // What a killed worker called is not known.
        if !crashes {
            for (name, samples, calls) in [
                ("samples_per_put", counts.put, ended.puts),
                ("samples_per_take", counts.leased, ended.takes),
            ] {
                let figure = rounded(samples as f64 / calls.max(1) as f64);
                report.figures.insert(name.to_owned(), figure.into());
            }
        }
        for (name, count) in [
            ("clusters", options.clusters.into()),
            ("due", options.samples()),
            ("put", counts.put),
            ("leased", counts.leased),
            ("acked", counts.acked),
            ("freed", counts.freed),
            ("lost", verdict.lost),
            ("delivered_again", verdict.delivered_again),
            ("delivered_again_unexplained", verdict.delivered_again_unexplained),
            ("killed", ended.killed),
            ("left", left.len() as u64),
            ("live", live),
            ("sessions", sessions as u64),
            ("seconds", options.seconds),
            ("history", options.history.into()),
            ("producers", options.producers),
            ("consumers", options.consumers),
            ("groups", options.groups.into()),
            ("batch", options.batch as u64),
            ("at_once", options.at_once as u64),
        ] {
            report.figures.insert(name.to_owned(), count.into());
        }
        Ok(report)
    }

    pub(crate) fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.holds)
    }

    fn json(&self) -> Result<Value> {
        let mut line = self.figures.clone();
        line.insert("holds".to_owned(), self.holds().into());
        line.insert("claims".to_owned(), serde_json::to_value(&self.claims)?);
        line.insert("windows".to_owned(), self.windows.clone().into());
        line.insert("latency".to_owned(), latencies_json(&self.latencies)?);
        Ok(line.into())
    }
}

/// The latencies of some windows together.
fn together(ended: &Ended, windows: Range<u64>) -> Result<Vec<(Step, Summary)>> {
    let mut total = Latencies::new();
    for (step, histogram) in ended.windows.range(windows).flat_map(|(_, window)| window) {
        add(&mut total, *step, histogram)?;
    }
    Ok(total.iter().map(|(step, all)| (*step, Summary::of(all))).collect())
}

fn latencies_json(latencies: &[(Step, Summary)]) -> Result<Value> {
    let by_name = latencies
        .iter()
        .map(|(step, summary)| Ok((name(*step)?, serde_json::to_value(summary)?)))
        .collect::<Result<Map<_, _>>>()?;
    Ok(by_name.into())
}

/// The windows of the run: latencies, and what etcd told at the end of each.
fn windows(options: &Options, ended: &Ended, moments: &[Moment]) -> Result<Vec<Value>> {
    let length = options.window().as_secs_f64();
    let mut windows = Vec::new();
    for (window, latencies) in &ended.windows {
        let end = (*window + 1) as f64 * length;
        let mut line = Map::from_iter([
            ("window".to_owned(), (*window).into()),
            ("until_s".to_owned(), end.into()),
        ]);
        for (step, histogram) in latencies {
            line.insert(name(*step)?, serde_json::to_value(Summary::of(histogram))?);
        }
        // The first look after its end; the last window has the one when all was used up.
        let moment = moments
            .iter()
            .find(|moment| moment.at_seconds >= end)
            .or(moments.last());
        if let Some(Moment { etcd, .. }) = moment {
            line.insert("etcd_db_bytes".to_owned(), etcd.db_bytes.into());
            line.insert("etcd_db_in_use_bytes".to_owned(), etcd.db_in_use_bytes.into());
            line.insert("etcd_rss_bytes".to_owned(), etcd.rss_bytes.into());
        }
        windows.push(line.into());
    }
    Ok(windows)
}

fn name(step: Step) -> Result<String> {
    Ok(serde_json::from_value(serde_json::to_value(step)?)?)
}

/// The tables for people, unless only JSON is wanted; then the one line of JSON, last.
pub(crate) fn print(reports: &[Report], json_only: bool) -> Result<()> {
    if !json_only {
        for report in reports {
            println!("{}\n{}\n", report.title, windows_table(report));
        }
        println!("{}\n", latency_table(reports)?);
        println!("{}\n", figures_table(reports));
        for report in reports {
            let mut claims = table(&["claim", "seen", "holds"]);
            for Claim { claim, seen, holds } in &report.claims {
                claims.add_row([*claim, seen.as_str(), if *holds { "yes" } else { "NO" }]);
            }
            println!("{}\n{claims}\n", report.title);
        }
    }
    let lines = reports.iter().map(Report::json).collect::<Result<Vec<_>>>()?;
    let line = match lines.as_slice() {
        [one] => one.clone(),
        several => Map::from_iter([("runs".to_owned(), several.to_vec().into())]).into(),
    };
    println!("{line}");
    Ok(())
}

fn windows_table(report: &Report) -> Table {
    let mut table = table(&[
        "until, s",
        "put p50, ms",
        "put p99",
        "delivery p99",
        "ack p99",
        "etcd file, MiB",
        "in use",
        "RSS",
    ]);
    for window in &report.windows {
        let figure = |path: &str| window.pointer(path).and_then(Value::as_f64);
        let shown = |path: &str| figure(path).map_or("-".to_owned(), |figure| format!("{figure:.1}"));
        let mib =
            |path: &str| figure(path).map_or("-".to_owned(), |figure| format!("{:.1}", figure / f64::from(1 << 20)));
        table.add_row([
            shown("/until_s"),
            shown("/put/p50_ms"),
            shown("/put/p99_ms"),
            shown("/delivery/p99_ms"),
            shown("/ack/p99_ms"),
            mib("/etcd_db_bytes"),
            mib("/etcd_db_in_use_bytes"),
            mib("/etcd_rss_bytes"),
        ]);
    }
    table
}

/// The latencies of all runs, side by side.
fn latency_table(reports: &[Report]) -> Result<Table> {
    let mut table = table(&["latency, ms", "", "count", "p50", "p99", "p99.9", "max"]);
    let steps: std::collections::BTreeSet<Step> = reports
        .iter()
        .flat_map(|report| report.latencies.iter().map(|(step, _)| *step))
        .collect();
    for step in steps {
        for report in reports {
            for (_, summary) in report.latencies.iter().filter(|(of, _)| *of == step) {
                let mut row = vec![name(step)?, report.title.clone(), summary.count.to_string()];
                let figures = [summary.p50_ms, summary.p99_ms, summary.p999_ms, summary.max_ms];
                row.extend(figures.map(|figure| format!("{figure:.2}")));
                table.add_row(row);
            }
        }
    }
    Ok(table)
}

fn figures_table(reports: &[Report]) -> Table {
    let mut headings = vec!["figure"];
    headings.extend(reports.iter().map(|report| report.title.as_str()));
    let mut table = table(&headings);
    for name in reports.iter().take(1).flat_map(|report| report.figures.keys()) {
        let mut row = vec![name.clone()];
        row.extend(
            reports
                .iter()
                .map(|report| report.figures.get(name).map_or(String::new(), Value::to_string)),
        );
        table.add_row(row);
    }
    table
}

fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(headings.to_vec());
    table
}
